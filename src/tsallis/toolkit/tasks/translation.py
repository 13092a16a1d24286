"""Translation of sentences, with subwords learned from a parallel corpus."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from tsallis.errors import InputError
from tsallis.search import SearchOptions
from tsallis.toolkit.config import ON_RESUME, Count, FileName, Section
from tsallis.toolkit.data.corpus import Corpus, SampledCorpus
from tsallis.toolkit.data.corpus_cache import cache_folder, cached_corpus, cached_subwords, read_parallel
from tsallis.toolkit.data.io import Ignored, current_folder, find_packed
from tsallis.toolkit.data.ragged import RaggedRows
from tsallis.toolkit.data.subword_numbers import load_subwords
from tsallis.toolkit.data.subwords import Subwords
from tsallis.toolkit.datasets.embedded import german_english_numbers
from tsallis.toolkit.evaluation.text_scores import (
    CorpusScore,
    length_ratio,
    sacrebleu_language,
    sentence_chrf,
    translation_scores,
)
from tsallis.toolkit.tasks.base import LONGEST, Task, refuse_long, split_columns, split_name
from tsallis.toolkit.tasks.sequences import SequenceTask, check_source
from tsallis.toolkit.tasks.subwords import LearningConfig
from tsallis.toolkit.tasks.types import Data, Lines, Vocabularies
from tsallis.toolkit.training.run_folder import Run

Pair = tuple[str, str]


class SubwordsConfig(LearningConfig):
    """Options of the subword models that segment sentences into symbols."""

    model: FileName | None = None  # existing sentencepiece model for both languages; default: learn one
    src_model: FileName | None = None  # existing sentencepiece model of the source; needs tgt_model
    tgt_model: FileName | None = None
    joint: bool = True  # whether both languages share one vocabulary
    sample: float = Field(0.0, ge=0, lt=1)  # strength of subword regularisation, usually 0.1; 0 means off

    @property
    def models(self) -> tuple[str, str] | None:
        """Existing models of source and target; None if the configuration names no models."""
        if self.model is not None:
            return self.model, self.model
        return None if self.src_model is None or self.tgt_model is None else (self.src_model, self.tgt_model)

    @model_validator(mode="after")
    def _check_models(self) -> SubwordsConfig:
        num_missing = (self.src_model is None) + (self.tgt_model is None)
        if num_missing == 1 or (self.model is not None and num_missing == 0):
            raise ValueError("set either model, or both src_model and tgt_model")
        changed_options = self.learning_options() + (["joint"] if not self.joint else [])
        if self.models is not None and changed_options:
            raise ValueError(f"an existing model is not trained again: leave out {', '.join(changed_options)}")
        if self.kind == "word" and self.sample:
            raise ValueError(
                "sample can't be used with kind: word, because a text has only one segmentation into words"
            )
        return self


class TranslationData(Section):
    """Parallel corpus: `train: train`, `src: de` and `tgt: en` name the files train.de and train.en in the folder.

    Files may be compressed, with the ending .xz or .gz.
    """

    task: Literal["translation"]
    embedded: Literal["german-english-numbers"] | None = None
    folder: Annotated[FileName, ON_RESUME] = "."
    train: Annotated[FileName | None, ON_RESUME] = None
    dev: Annotated[FileName | None, ON_RESUME] = None
    test: Annotated[FileName | None, ON_RESUME] = None
    src: FileName = "de"
    tgt: FileName = "en"
    subwords: SubwordsConfig = SubwordsConfig()
    lowercase: bool = False  # whether subwords and scores ignore case
    tokenized: bool = False  # whether the text is tokenized already: BLEU then splits at white space only
    joiner: str | None = Field(None, min_length=1, max_length=10)  # mark inside a split word, such as @@
    max_length: Count = 256  # maximum number of symbols per side; longer training pairs are left out
    # Folder for subwords and encoded text; default: ~/.cache/tsallis.
    cache: Annotated[FileName | None, ON_RESUME] = None

    @model_validator(mode="after")
    def _check_combinations(self) -> TranslationData:
        check_source(self, ("train", "dev", "test"), "german-english-numbers")
        if self.lowercase and self.subwords.models is not None:
            raise ValueError(
                "lowercase can't be used with an existing model, which has its own rule for case: leave it out"
            )
        return self

    @property
    def normalization(self) -> str:
        """Normalization rule of sentencepiece."""
        plain = "identity" if self.subwords.kind == "word" else "nmt_nfkc"
        return "nmt_nfkc_cf" if self.lowercase else plain


@dataclass(frozen=True)
class Translation(SequenceTask):
    """Task of translating sentences, one per line.

    A line with a reference is `source<TAB>target`. Blank lines are skipped.
    """

    src: str | None = None
    tgt: str | None = None  # code of the target language, for the tokenizer of BLEU
    max_length: Annotated[int, Field(ge=1)] | None = None
    lowercase: bool = False
    tokenized: bool = False
    joiner: str | None = None

    name = "translation"
    Config = TranslationData
    noun = "translation"
    formats = ("text", "source<TAB>target")
    scores = ("bleu", "chrf", "ter", "exact")
    costly_scores = ("ter",)
    search_defaults = SearchOptions(end_rule="competing")
    empty_outputs = True

    @classmethod
    def load(cls, config: TranslationData) -> tuple[Task, Data]:
        task = cls(config.src, config.tgt, config.max_length, config.lowercase, config.tokenized, config.joiner)
        task.score([""], [""], quick=True)  # raises if the tokenizer of the target language is missing
        train, vocabularies = _load_embedded(task, config) if config.embedded else _load_cached(config)
        files = ["data.embedded"] * 2 if config.embedded else [*map(str, find_sides(config, "dev"))]
        dev = task.pairs(cls.read_split(config, "dev"), vocabularies, " and ".join(files))
        limit = max(LONGEST, config.max_length)
        refuse_long(dev.corpus, limit, lambda row, side: f"{files[side]}:{dev.numbers[row] + 1}")
        return task, Data(train, dev, vocabularies)

    @classmethod
    def examples(cls, config: TranslationData, split: str) -> list[Pair]:
        return german_english_numbers()[split] if config.embedded else list(read_parallel(*find_sides(config, split)))

    @classmethod
    def files(cls, config: TranslationData, split: str) -> list[Path]:
        return [] if config.embedded else [*find_sides(config, split)]

    @property
    def limit(self) -> int:
        return max(LONGEST, self.max_length or 0)

    def number_lines(
        self, lines: Iterable[str], gold: bool, ignored: Ignored, first: int = 0
    ) -> Iterator[tuple[int, str]]:
        """Yield lines without ignored characters at their ends; trailing spaces of targets are kept for scoring."""
        lines = [*lines]
        for number, line in super().number_lines(lines, gold, ignored, first):
            raw_line = lines[number].removesuffix("\r")
            keep_spaces = gold and raw_line.count("\t") == 1 and raw_line.rpartition("\t")[2].strip()
            yield number, raw_line if keep_spaces else line

    def parse(self, line: str, origin: str, gold: bool, empty: bool = False) -> Pair:
        if not gold:
            return split_columns(line, origin, self.formats[0], (1,))[0], ""
        fields = split_columns(line, origin, self.formats[1], (2,))
        sides = zip(("source", "target"), fields, (False, empty), strict=True)
        if missing := [side for side, field, may_be_empty in sides if not field.strip() and not may_be_empty]:
            raise InputError(f"{origin}: expected {self.formats[1]}, found an empty {missing[0]}")
        return fields[0], fields[1]

    def read(self, lines: Sequence[str], name: str, run: Run, gold: bool, first: int = 0, **options: Any) -> Lines:
        encoded = super().read(lines, name, run, gold, first, **options)
        rows = set(encoded.numbers)
        missing = (number for number, line in enumerate(lines) if number not in rows and line.strip())
        if gold and (number := next(missing, None)) is not None:
            raise InputError(f"{name}:{first + number + 1}: expected a source with at least one subword, found none")
        return encoded

    def encode(self, examples: Sequence[Pair], vocabularies: Vocabularies) -> Lines:
        """Encode pairs of sentences as numbers. A missing target is empty; pairs without a source are skipped."""
        sides = enumerate((vocabularies.src, vocabularies.tgt))
        src, tgt = (vocab.encode_many([pair[i].strip() for pair in examples]) for i, vocab in sides)
        numbers = [i for i, row in enumerate(src) if row]
        corpus = Corpus([src[i] for i in numbers], [tgt[i] for i in numbers])
        titles, references = ([examples[i][side] for i in numbers] for side in range(2))
        return Lines(corpus, references, titles, numbers, len(examples))

    def pairs(self, examples: Sequence[Pair], vocabularies: Vocabularies, name: str) -> Lines:
        """Encode the pairs that have no empty side; `name` is the name of the files in errors.

        Raises:
            InputError: If no pair is left.
        """
        lines = self.encode(examples, vocabularies)
        lengths = lines.corpus.lengths()[:, 1].tolist() if len(lines.corpus) else []
        rows = [row for row, length in enumerate(lengths) if length]
        if not rows:
            raise InputError(f"{name}: all {len(examples)} pairs have an empty source or target")
        return lines.select(rows)

    def utility(self, text: str, reference: str) -> float:
        """Return the chrF of two sentences, from 0 to 1."""
        return sentence_chrf(text, reference)

    def score(self, texts: Sequence[str], references: Sequence[str], quick: bool = False) -> list[CorpusScore]:
        names = ("bleu", "chrf") if quick else ("bleu", "chrf", "ter")
        texts, references = ([self._normalize_text(text) for text in side] for side in (texts, references))
        with self._tokenizer_errors():
            scores = translation_scores(texts, references, self.tgt or "", names, self.lowercase, self.tokenized)
        return [
            *scores,
            CorpusScore.mean("exact", [float(a.split() == b.split()) for a, b in zip(texts, references, strict=True)]),
        ]

    def measure_outputs(self, texts: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Return "length_ratio": the number of words in outputs divided by the number of words in references."""
        texts, references = ([self._normalize_text(text) for text in side] for side in (texts, references))
        with self._tokenizer_errors():
            return {"length_ratio": length_ratio(texts, references, self.tgt or "", self.tokenized)}

    @contextmanager
    def _tokenizer_errors(self) -> Iterator[None]:
        """Convert the error of sacrebleu about missing packages to an InputError that names the packages."""
        try:
            yield
        except RuntimeError as error:
            package = f"sacrebleu[{sacrebleu_language(self.tgt or '')}]"
            install = f"pip install '{package}', or set data.tokenized to true if the texts are tokenized"
            raise InputError(
                f"data.tgt: the scores of the language {self.tgt} need more packages: {install}"
            ) from error

    def _normalize_text(self, text: str) -> str:
        """Prepare a text for scoring: join the parts of words, and fold case if `lowercase` is set."""
        if self.joiner is not None:
            text = text.replace(f"{self.joiner} ", "").removesuffix(self.joiner)
        return text.casefold() if self.lowercase else text


def _load_cached(config: TranslationData) -> tuple[Corpus, Vocabularies]:
    """Learn subwords and encode the training files; reuse cached subwords and cached text if possible."""
    cache, options = cache_folder(config.cache), config.subwords
    paths = find_sides(config, "train")
    try:
        src, tgt = _learn(config, paths, partial(cached_subwords, cache))
    except InputError:
        deque(read_parallel(*paths), maxlen=0)  # raises if the files have different numbers of lines
        raise
    return cached_corpus(cache, *paths, src, tgt, config.max_length, options.sample or None), Vocabularies(src, tgt)


def _learn(config: TranslationData, sides: Sequence[Any], learn: Callable[..., Subwords]) -> tuple[Subwords, Subwords]:
    """Load the existing subword models of source and target, or learn models from the texts in `sides`."""
    if (options := config.subwords).models is not None:
        return load_subwords(options.models[0]), load_subwords(options.models[1])
    learning = {**options.learning(), "normalization": config.normalization}
    if options.joint:
        joint = learn(sides, **learning)
        return joint, joint
    return learn(sides[:1], **learning), learn(sides[1:], **learning)


def _load_embedded(task: Translation, config: TranslationData) -> tuple[Corpus, Vocabularies]:
    """Learn subwords from the embedded training pairs and encode the pairs.

    Raises:
        InputError: If all pairs are longer than `max_length`.
    """
    pairs, options = task.read_split(config, "train"), config.subwords
    columns = [[pair[i] for pair in pairs] for i in range(2)]
    src, tgt = _learn(config, columns, lambda texts, **learning: Subwords.train(chain(*texts), **learning))
    train, longest = task.pairs(pairs, Vocabularies(src, tgt), "data.embedded"), config.max_length
    rows = [row for row, length in enumerate(train.corpus.lengths().amax(1).tolist()) if length <= longest]
    if not rows:
        raise InputError(f"data.embedded: all {len(pairs)} pairs have more than {longest} subwords (data.max_length)")
    train = train.select(rows)
    if not options.sample:
        return train.corpus, Vocabularies(src, tgt)
    src_text, tgt_text = map(_as_bytes, (train.titles, train.references))
    corpus = SampledCorpus(
        **vars(train.corpus),
        src_text=src_text,
        tgt_text=tgt_text,
        src_subwords=src,
        tgt_subwords=tgt,
        alpha=options.sample,
        max_length=longest,
    )
    return corpus, Vocabularies(src, tgt)


def _as_bytes(texts: Sequence[str]) -> RaggedRows:
    return RaggedRows.of([np.frombuffer(text.strip().encode(), np.uint8) for text in texts], np.uint8)


def find_sides(config: TranslationData, split: str) -> tuple[Path, Path]:
    """Return the source and target files of a split, compressed or not.

    Raises:
        InputError: If a file is missing.
    """
    name = split_name(config, split)
    return _find_side(config, name, config.src), _find_side(config, name, config.tgt)


def _find_side(config: TranslationData, name: str, language: str) -> Path:
    path = Path(config.folder) / f"{name}.{language}"
    if file := find_packed(path):
        return file
    if (Path(config.folder) / name).is_file():
        sides = f"{name}.{config.src} and {name}.{config.tgt}"
        raise InputError(
            f"{Path(config.folder) / name}: expected one file per language, {sides}, found a single file: write its "
            "two columns to these two files"
        )
    raise InputError(
        f"{path}{current_folder(path)}: no such file, and none with .xz or .gz added to the name. Translation needs "
        f"one file per language (data.src, data.tgt): {name}.{config.src} and {name}.{config.tgt}"
    )
