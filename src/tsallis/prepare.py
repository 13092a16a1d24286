"""The preparation of a run from its configuration: data, vocabularies and plain arguments."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import torch

from tsallis.config import (
    AnswererConfig,
    ClassificationData,
    ClassifierConfig,
    Config,
    DataConfig,
    InflectionData,
    SplitImages,
    SubwordsConfig,
    TranslationData,
    VisualData,
)
from tsallis.data import Vocabulary, english_verbs, read_inflection, read_languages
from tsallis.data.batching import BatchPlan, counted
from tsallis.data.classification import LabelledText, find_split, label_names, read_labelled, split_off, words
from tsallis.data.corpus import Corpus, Counts, SampledCorpus
from tsallis.data.image_store import ImageQuestion, ImageStore
from tsallis.data.images import open_pictures
from tsallis.data.inflection import InflectionExample
from tsallis.data.learned import cached_subwords
from tsallis.data.parallel import cached_corpus, cached_sampled_corpus, read_parallel
from tsallis.data.reading import find_packed
from tsallis.data.subwords import Subwords
from tsallis.data.visual import answer_names, question_words, read_questions, split_by_image
from tsallis.datasets.number_names import german_english_numbers
from tsallis.errors import InputError, memory_for
from tsallis.files import read_file
from tsallis.functional import estimate_tau, estimate_tau_from_scores
from tsallis.tasks import (
    LONGEST,
    Lines,
    check_language,
    check_options,
    documents,
    language_scores,
    questions,
    refuse_long,
    score_values,
    task_of,
    texts,
)
from tsallis.training.run_folder import CONFIG, Run, Symbols, build_model
from tsallis.training.schema import ModelRecord, read_record
from tsallis.training.trainer import Measure, Settings

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Data:
    """The training data of a configuration as numbers."""

    train: Corpus | SampledCorpus
    dev: Corpus
    references: list[str]  # of the development set
    src_vocab: Symbols
    tgt_vocab: Symbols
    image_store: ImageStore | None = None  # the images that sources name
    languages: list[str] | None = None  # of the development set's rows, where they have one


@dataclass(frozen=True)
class Prepared:
    """The data, model description, task and settings that a configuration describes."""

    data: Data
    description: dict[str, Any]  # class and arguments of the model
    task: dict[str, Any]
    settings: Settings

    def build(self) -> Any:
        """Return the model, as the seed makes it."""
        torch.manual_seed(self.settings.seed)
        with memory_for("the model (see the sizes of model)"):
            model = build_model(self.description, "model")
        if self.data.image_store is not None:
            model.image_store = self.data.image_store
        return model

    def measure(self) -> Measure:
        """Return a function that scores a search on the development set, without the costly scores."""
        task, data = task_of(self.task), self.data

        def measure(results: Any) -> dict[str, float]:
            outputs = texts(results, data.tgt_vocab)
            references, languages = data.references[: len(outputs)], (data.languages or [])[: len(outputs)]
            each = language_scores(task, outputs, references, languages, quick=True)
            return score_values(task.scores(outputs, references, quick=True), each)

        return measure


def prepare(config: Config, folder: Path | None = None) -> Prepared:
    """Read the data and work out every argument.

    Args:
        config: of the run.
        folder: of a run that may have been started with this configuration: then its model stays as it was described.

    Raises:
        InputError: a threshold of alpha-ReLU that would not fit the model, and what reading the data finds.
    """
    description = _started(config, folder)
    if description is None:
        _check_formula(config)
    section = config.data
    task: dict[str, Any] = {"task": section.task}
    if isinstance(section, TranslationData):
        data = _translation(section)
        task |= {"src": section.src, "tgt": section.tgt, "max_length": section.max_length}
    elif isinstance(section, ClassificationData):
        data = _classification(section)
        task["max_length"] = section.max_length
    elif isinstance(section, VisualData):
        data = _visual(section)
        task |= {"images": _images(section, "test"), "size": section.size, "max_length": section.max_length}
    else:
        data = _inflection(section)
        task |= {"languages": languages(section), "max_length": section.max_length}
    settings = Settings(**config.training.model_dump())
    count = len(set(data.languages or ()))
    if settings.validation_rows is not None and settings.validation_rows < count:
        raise InputError(
            f"training.validation_rows: {settings.validation_rows} rows can't stand for {count} languages: "
            f"expected at least {count}"
        )
    BatchPlan(data.train.lengths(), settings.batch_size, settings.max_tokens)  # refuses rows that fit no batch
    return Prepared(data, description or _description(config, data, settings), task, settings)


def _started(config: Config, folder: Path | None) -> dict[str, Any] | None:
    """Return the description of the run in a folder, if it has this configuration.

    What is estimated, the threshold of alpha-ReLU, is estimated once: another machine would find a slightly other one.
    """
    if folder is None or not (folder / CONFIG).exists() or read_file(folder / CONFIG) != config.text().encode():
        return None
    path = folder / "model.json"
    record = read_record(path, ModelRecord)
    for key, value in config.model.model_dump(mode="json", exclude={"architecture", "tau"}).items():
        if record.arguments.get(key, value) != value:  # it would be built before anything else is compared
            raise InputError(f"{path}: {key} is {record.arguments[key]!r}, {value!r} by {CONFIG}; restore the file")
    return {"class": record.name, "arguments": dict(record.arguments)}


def _check_formula(config: Config) -> None:
    """Refuse `tau: formula` where its assumptions fail: outputs would sum to many times 1 before the first update.

    It is derived for 1.5 and for scores of a normalised state and a Xavier-uniform matrix (Tezekbayev et al. 2022,
    lemma 3). A matrix that is the target embedding's, too, is initialised as an embedding; an LSTM normalises nothing.
    """
    model = config.model
    if isinstance(model, ClassifierConfig | AnswererConfig) or model.output != "alpha_relu" or model.tau != "formula":
        return
    conflicts = [f"architecture {model.architecture}"] if model.architecture != "transformer" else []
    conflicts += [f"share: {model.share}"] if model.share != "none" else []
    conflicts += [f"output_alpha {model.output_alpha:g}"] if model.output_alpha != 1.5 else []
    if conflicts:
        raise InputError(
            "model.tau: formula is for a Transformer with an output matrix of its own (share: none) and output_alpha "
            f"1.5 alone, found {', '.join(conflicts)}; use tau: auto, the mean threshold of the first batch"
        )


def _description(config: Config, data: Data, settings: Settings) -> dict[str, Any]:
    """Return the model's class and arguments."""
    model = config.model
    sizes = {"src_vocab": len(data.src_vocab), "tgt_vocab": len(data.tgt_vocab)}
    if isinstance(model, ClassifierConfig):
        return {"class": model.architecture, "arguments": sizes | model.model_dump(exclude={"architecture"})}
    if isinstance(model, AnswererConfig):
        images = {"kind": "questions", **_of_images(data)}
        return {
            "class": model.architecture,
            "arguments": sizes | images | model.model_dump(exclude={"architecture"}),
        }
    if model.share == "all" and data.src_vocab != data.tgt_vocab:
        raise InputError("model.share: all needs one vocabulary for both sides (data.subwords.joint: true)")
    arguments = model.model_dump(exclude={"tau", "architecture"})
    arguments = {**sizes, **arguments}
    arguments["tau"] = model.tau if isinstance(model.tau, float) else 0.0
    if model.output == "alpha_relu" and model.tau == "formula":
        arguments["tau"] = estimate_tau(model.d_model, len(data.tgt_vocab))
    description = {"class": model.architecture, "arguments": arguments}
    if model.output == "alpha_relu" and model.tau == "auto":
        arguments["tau"] = _first_threshold(description, data.train, settings)
    return description


@torch.no_grad()
def _first_threshold(description: dict[str, Any], corpus: Corpus | SampledCorpus, settings: Settings) -> float:
    """The mean entmax threshold of the first batch through the untrained network (Tezekbayev et al. 2022, sec. 3)."""
    torch.manual_seed(settings.seed)
    model = build_model(description).eval()
    batch = corpus.batch(range(min(settings.batch_size, len(corpus))))
    hidden = model(batch.src, batch.src_lengths, batch.tgt_in).hidden[counted(batch.tgt_out)]  # [symbols, d_model]
    return float(estimate_tau_from_scores(model.output.scores(hidden), model.output.alpha))


def split_lines(run: Run, data: DataConfig, split: str, **options: Any) -> Lines:
    """Return one split of a run's own data; options as of :func:`tsallis.tasks.read_lines`, of which None are not set.

    Raises:
        InputError: an option the run's task doesn't take, a language it doesn't know, and what reading finds.
    """
    values = check_options(run, options)
    if isinstance(data, InflectionData):
        if "language" in values:
            check_language(run, values["language"])
        if data.languages == "all":  # those there were when the run was started
            data = data.model_copy(update={"languages": run.task.get("languages")})
    return task_of(run.task).encode(read_split(data, split, **values), run)


def read_split(data: DataConfig, split: str, language: str | None = None, images: Path | None = None) -> list[Any]:
    """Return the examples of one split.

    Args:
        data: where they are.
        split: "train", "dev" or "test".
        language: of a configuration with languages, only this one.
        images: of visual questions, in place of the split's own.

    Returns:
        Of inflection :class:`InflectionExample`, of translation pairs of sentences, of classification
        :class:`LabelledText`, of visual questions :class:`ImageQuestion`.
    """
    if split not in SPLITS:
        raise InputError(f"split must be train, dev or test, got {split!r}")
    if isinstance(data, ClassificationData):
        return _documents(data, split)
    if isinstance(data, VisualData):
        return _image_questions(data, split, images)
    if data.embedded == "english-verbs":
        return list(english_verbs()[split])
    if data.embedded == "german-english-numbers":
        return list(german_english_numbers()[split])
    if isinstance(data, TranslationData):
        return list(read_parallel(*sides(data, split)))
    path = str(Path(data.folder) / _name(data, split))
    names = languages(data) if language is None else [language]
    return read_inflection(path) if names is None else read_languages(path, names)


def _documents(data: ClassificationData, split: str) -> list[LabelledText]:
    """Read the documents of one split; without a file for dev, a share of train is held out."""
    held_out = data.dev is None and split != "test"
    name = data.train if held_out else _name(data, split)
    path = find_split(data.folder, name)
    if path is None:
        raise InputError(f"{Path(data.folder) / name}: there is no such file (nor one that ends in .tsv, .xz or .gz)")
    texts = read_labelled(path)
    return split_off(texts, data.held_out)[split == "dev"] if held_out else texts


def _classification(data: ClassificationData) -> Data:
    train, dev = read_split(data, "train"), read_split(data, "dev")
    for name, examples in (("train", train), ("dev", dev)):
        if not examples:
            raise InputError(f"data.{name}: there are no documents (data.held_out: {data.held_out:g})")
    src = Vocabulary.build((words(e.text) for e in train), data.min_count)
    tgt = Vocabulary(label_names(train))
    encoded = [documents(examples, src, tgt, data.max_length) for examples in (train, dev)]
    return Data(encoded[0], encoded[1], [e.label for e in dev], src, tgt)


def _image_questions(data: VisualData, split: str, images: Path | None = None) -> list[ImageQuestion]:
    """Read the questions of one split; without a file for dev, those about a share of train's images are held out."""
    held_out = data.dev is None and split != "test"
    path = find_packed(Path(data.folder) / (data.train if held_out else _name(data, split)))
    source = images or _images(data, "train" if held_out else split)
    if path is None:
        raise InputError(f"{Path(data.folder) / _name(data, split)}: there is no such file (nor one in .xz or .gz)")
    if source is None:
        raise InputError(f"the configuration names no images of {split} (data.images.{split})")
    pictures = open_pictures(source, data.size)
    examples = read_questions(path, pictures)
    if held_out:
        examples = split_by_image(examples, data.held_out)[split == "dev"]
    return [ImageQuestion(question, pictures) for question in examples]


def _images(data: VisualData, split: str) -> str | None:
    """Return the path of a split's images, None where the configuration names none."""
    source = data.images
    if isinstance(source, SplitImages):
        name = getattr(source, split) or (source.train if split == "dev" else None)
    else:
        name = source
    if name is None:
        return None
    path = Path(data.folder) / name
    return str(path if path.is_dir() else find_packed(path) or path)


def _visual(data: VisualData) -> Data:
    train, dev = read_split(data, "train"), read_split(data, "dev")
    if not train or not dev:
        raise InputError(f"data.train: there are too few images to hold some out (data.held_out: {data.held_out:g})")
    src = Vocabulary.build((question_words(e.question.question) for e in train), data.min_count)
    tgt = Vocabulary(answer_names([e.question for e in train], data.answers))
    image_store = ImageStore()
    encoded = [questions(examples, src, tgt, image_store, data.max_length) for examples in (train, dev)]
    return Data(encoded[0], encoded[1], [e.question.answer for e in dev], src, tgt, image_store)


def _of_images(data: Data) -> dict[str, Any]:
    """Return the model arguments that depend on its images: their kind and depth."""
    assert data.image_store is not None
    one = data.image_store(torch.zeros(1, dtype=torch.long))  # [1, height, width, channels]
    return {"image": "features" if one.is_floating_point() else "cnn", "d_image": one.shape[-1]}


def _name(data: DataConfig, split: str) -> str:
    name: str | None = getattr(data, split)
    if name is None:
        raise InputError(f"the configuration names no {split} file (data.{split})")
    return name


def languages(data: InflectionData) -> list[str] | None:
    """Return the languages of a configuration; "all" is looked up in the folder."""
    if data.languages != "all":
        return data.languages
    assert data.train is not None
    if data.train.count("{language}") != 1:
        raise InputError(f"data.train: languages: all needs one {{language}} in the name, found {data.train!r}")
    before, after = data.train.split("{language}")
    names = sorted(p.name[len(before) : len(p.name) - len(after)] for p in Path(data.folder).glob(f"{before}*{after}"))
    if not names:
        raise InputError(f"data.folder: no file {before}*{after} in {data.folder}")
    return names


def _inflection(data: InflectionData) -> Data:
    read, dev = read_split(data, "train"), read_split(data, "dev")
    train = [e for e in read if max(len(e.src_tokens()), len(e.tgt_tokens())) <= data.max_length]
    if not train:
        limit = f"{data.max_length} symbols (data.max_length)"
        raise InputError(f"data.train: none of {len(read)} examples has at most {limit}")
    src, tgt = (Vocabulary.build(x) for x in ((e.src_tokens() for e in train), (e.tgt_tokens() for e in train)))
    places = {id(e): i for i, e in enumerate(dev)}
    dev = _in_turn(dev)
    encoded = [Corpus.encode(examples, src, tgt) for examples in (train, dev)]
    refuse_long(encoded[1], data.max_length, "data.dev", [places[id(e)] for e in dev])
    counts = Counts(len(read), len(train), 0, len(read) - len(train))
    names = [e.language or "" for e in dev] if data.languages is not None else None
    forms = [e.form or "" for e in dev]
    return Data(replace(encoded[0], counts=counts), encoded[1], forms, src, tgt, languages=names)


def _in_turn(examples: list[InflectionExample]) -> list[InflectionExample]:
    """Let languages take turns, so that the first examples, whatever their number, are evenly of all."""
    each: dict[str | None, list[InflectionExample]] = {}
    for example in examples:
        each.setdefault(example.language, []).append(example)
    return [example for turn in zip_longest(*each.values()) for example in turn if example is not None]


def sides(data: TranslationData, split: str) -> tuple[Path, Path]:
    """Return the files of a split, packed or not.

    Raises:
        InputError: no such file.
    """
    name = _name(data, split)
    return _side(data, name, data.src), _side(data, name, data.tgt)


def _side(data: TranslationData, name: str, language: str) -> Path:
    path = Path(data.folder) / f"{name}.{language}"
    if file := find_packed(path):
        return file
    raise InputError(f"{path}: there is no such file (nor one that ends in .xz or .gz); see `tsallis data list`")


def _translation(data: TranslationData) -> Data:
    if data.embedded is not None:
        return _embedded_translation(data)
    cache, options = cache_folder(data.cache), data.subwords
    train, dev = sides(data, "train"), sides(data, "dev")
    groups: list[tuple[Path, ...]] = [train, train] if options.joint else [train[:1], train[1:]]
    src, tgt = (cached_subwords(cache, paths, **_learning(options)) for paths in groups)
    corpus_args = (*train, src, tgt, data.max_length)
    corpus: Corpus | SampledCorpus
    if options.sample:
        corpus = cached_sampled_corpus(cache, *corpus_args, alpha=options.sample)
    else:
        corpus = cached_corpus(cache, *corpus_args)
    return Data(corpus, *_encoded(read_parallel(*dev), src, tgt, data.max_length), src, tgt)


def _encoded(
    pairs: Iterable[tuple[str, str]], src: Subwords, tgt: Subwords, max_length: int
) -> tuple[Corpus, list[str]]:
    """Pairs whose sides both have symbols, as numbers; and the text of their targets."""
    sides = list(zip(*pairs, strict=True)) or [(), ()]
    rows = list(zip(src.encode_many(sides[0]), tgt.encode_many(sides[1]), sides[1], strict=True))
    places = [i for i, row in enumerate(rows) if row[0] and row[1]]
    if not places:
        raise InputError(f"of {len(sides[0])} pairs of sentences none has symbols on both sides")
    corpus = Corpus([rows[i][0] for i in places], [rows[i][1] for i in places])
    refuse_long(corpus, max(LONGEST, max_length), "data.dev", places)
    return corpus, [rows[i][2] for i in places]


def _learning(options: SubwordsConfig) -> dict[str, Any]:
    """Return the options for learning subwords, without those for sampling."""
    return options.model_dump(exclude={"joint", "sample"})


def _embedded_translation(data: TranslationData) -> Data:
    splits, options = german_english_numbers(), data.subwords
    columns = [[pair[i] for pair in splits["train"]] for i in range(2)]
    groups: list[Iterable[str]] = [chain(*columns), chain(*columns)] if options.joint else [*columns]
    src, tgt = (Subwords.train(lines, **_learning(options)) for lines in groups)
    train, _ = _encoded(splits["train"], src, tgt, data.max_length)
    return Data(train, *_encoded(splits["dev"], src, tgt, data.max_length), src, tgt)


def cache_folder(given: str | None) -> Path:
    """Return the folder where subwords and encoded text are cached."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) if given is not None else Path(base) / "tsallis"
