"""Language modelling of texts or synthetic tasks: predict each token from the previous tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from tsallis.analysis.score_names import TEXT_SCORES
from tsallis.errors import InputError
from tsallis.symbols import UNK
from tsallis.toolkit.config import ON_RESUME, Alpha, Count, Depth, FileName, Section, Size
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.data.corpus_cache import cache_folder, cached_subwords
from tsallis.toolkit.data.io import Ignored, number_lines, stream_lines
from tsallis.toolkit.data.packing import TextCorpus, pack
from tsallis.toolkit.data.subwords import Subwords
from tsallis.toolkit.data.vocabulary import Vocabulary
from tsallis.toolkit.datasets.embedded import german_english_numbers
from tsallis.toolkit.datasets.synthetic_corpus import SyntheticCorpus, synthetic_corpus, synthetic_vocabulary
from tsallis.toolkit.evaluation.text_scores import CorpusScore
from tsallis.toolkit.tasks.base import LONGEST, Task, find_file, split_name
from tsallis.toolkit.tasks.sequences import SequenceModel, SequenceTask, check_source
from tsallis.toolkit.tasks.subwords import LearningConfig
from tsallis.toolkit.tasks.types import Data, Lines, ModelSection, Vocabularies
from tsallis.toolkit.training.run_folder import Run

ENDINGS = ("", ".txt", ".xz", ".gz", ".txt.xz", ".txt.gz")
CHUNK = 8192  # number of texts encoded at once
DEV_SEED, TEST_SEED = 1 << 40, 1 << 41  # seeds of dev and test data; they are larger than every seed of training data
Symbols = Vocabulary | Subwords


class SyntheticConfig(Section):
    """Settings of a synthetic task, which generates new examples in every epoch."""

    name: Literal["recall", "copy", "reverse", "sort", "two-back", "flip-flop", "local-count"]
    min_length: Count = 16  # minimum number of tokens per example
    max_length: Count = 64  # maximum number of tokens per example
    examples: Count = 10_000  # number of training examples per epoch
    dev_examples: Count = 256  # number of examples of the development set
    test_lengths: tuple[Count, ...] = Field((64, 128, 256), min_length=1, max_length=100)
    test_examples: Count = 64  # number of test examples per length
    seed: int = Field(1, ge=0, lt=DEV_SEED)

    @model_validator(mode="after")
    def _check_lengths(self) -> SyntheticConfig:
        synthetic_corpus(self.name, 1, [(self.min_length, self.max_length), *self.tests])
        return self

    @property
    def tests(self) -> list[tuple[int, int]]:
        """Minimum and maximum length of each group of test examples."""
        return [(length, length) for length in self.test_lengths]

    def corpus(self, split: str) -> SyntheticCorpus:
        """Return the corpus of a split."""
        if split == "test":
            return synthetic_corpus(self.name, self.test_examples, self.tests, TEST_SEED)
        num_examples, seed = (self.examples, self.seed) if split == "train" else (self.dev_examples, DEV_SEED)
        return synthetic_corpus(self.name, num_examples, [(self.min_length, self.max_length)], seed)


class LanguageData(Section):
    """Texts: `train: train` names the file train or train.txt in the folder, plain or compressed (.xz, .gz)."""

    task: Literal["language"]
    embedded: Literal["german-numbers"] | None = None
    synthetic: SyntheticConfig | None = None
    folder: Annotated[FileName, ON_RESUME] = "."
    train: Annotated[FileName | None, ON_RESUME] = None
    dev: Annotated[FileName | None, ON_RESUME] = None
    test: Annotated[FileName | None, ON_RESUME] = None
    texts: Literal["lines", "paragraphs"] = (
        "lines"  # with "lines", each line is a text; with "paragraphs", blank lines separate texts
    )
    subwords: LearningConfig | None = None  # options for learning subwords; default: symbols are characters
    length: int = Field(256, ge=2, lt=2**31)  # maximum number of tokens per row
    cache: Annotated[FileName | None, ON_RESUME] = None  # folder for learned subwords; default: ~/.cache/tsallis

    @model_validator(mode="after")
    def _check_combinations(self) -> LanguageData:
        check_source(self, ("train", "dev", "test"), "german-numbers, or synthetic", ("embedded", "synthetic"))
        if self.embedded is not None and self.synthetic is not None:
            raise ValueError("set either embedded or synthetic, not both")
        if self.synthetic is not None and self.subwords is not None:
            raise ValueError("subwords can't be used with synthetic data: leave out subwords")
        return self


class LanguageConfig(SequenceModel):
    """Arguments of `tsallis.models.LanguageModel`."""

    architecture: Literal["language"] = "language"
    d_model: Size = 512
    heads: Size = 8
    kv_heads: Size | None = None  # number of heads of keys and values; default: the value of `heads`
    layers: Depth = 6
    d_ff: Size = 1376
    dropout: float = Field(0.0, ge=0, lt=1)
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    alpha: Alpha | Literal["learned"] = 1.5
    positions: Literal["none", "rope", "alibi", "nape"] = "nape"
    length_scale: Literal["input", "head", "ssmax"] | None = None
    share: bool = True

    def sizes(self, data: Data) -> dict[str, Any]:
        return {"vocab": len(data.vocabularies.tgt)}


@dataclass(frozen=True)
class Language(SequenceTask):
    """Task of language modelling. Each line is a prompt to continue, or a complete text to score."""

    length: Annotated[int, Field(ge=2)] = 256
    synthetic: str | None = None  # name of the synthetic task, if any; its runs can't read lines

    name = "language"
    Config = LanguageData
    models: ClassVar[Mapping[str, type[ModelSection]]] = {"language": LanguageConfig}
    noun = "text"
    formats = ("prompt", "text")
    scores = TEXT_SCORES
    options = ("length",)
    searched = False
    refusals: ClassVar[Mapping[str, str]] = {
        "translate": "use tsallis generate to continue texts",
        "look": "use tsallis analyze --text FILE",
    }

    @classmethod
    def load(cls, config: LanguageData) -> tuple[Task, Data]:
        synthetic = config.synthetic
        symbols = _build_vocabulary(config) if synthetic is None else synthetic_vocabulary(synthetic.name)
        task = _task_of(config)
        vocabularies = Vocabularies(symbols, symbols)
        train, dev = (task.pack_split(config, split, vocabularies) for split in ("train", "dev"))
        return task, Data(train.corpus, dev, vocabularies)

    @classmethod
    def examples(cls, config: LanguageData, split: str, length: int | None = None) -> list[tuple[str, str]]:
        """Read the texts of a split, each with an empty prompt. Only :meth:`pack_split` uses `length`."""
        if config.synthetic is not None:
            raise InputError(f"data.synthetic: the task {config.synthetic.name} has symbols but no texts")
        if config.embedded is not None:
            return [("", german) for german, _ in german_english_numbers()[split]]
        return [("", text) for text in read_texts(_find_split(config, split), config.texts)]

    @classmethod
    def files(cls, config: LanguageData, split: str) -> list[Path]:
        return [] if config.embedded or config.synthetic else [_find_split(config, split)]

    @classmethod
    def config_facts(cls, config: LanguageData) -> dict[str, Any]:
        return asdict(_task_of(config))

    def parse(self, line: str, origin: str, gold: bool) -> tuple[str, str]:
        if self.synthetic is not None:
            raise InputError(f"{origin}: a run of the synthetic task {self.synthetic} can't read texts")
        return ("", line) if gold else (line, "")

    def number_lines(
        self, lines: Iterable[str], gold: bool, ignored: Ignored, first: int = 0
    ) -> Iterator[tuple[int, str]]:
        """Yield lines with all their spaces. An empty line is an empty prompt. If `gold` is true, skip blank lines."""
        for number, line in enumerate(lines):
            if gold and not line.strip():
                ignored.blank += 1
            else:
                yield number, line.removesuffix("\r")

    def encode(self, examples: Sequence[tuple[str, str]], vocabularies: Vocabularies) -> Lines:
        """Encode prompts and texts; either side may be empty."""
        sides = ([pair[side] for pair in examples] for side in range(2))
        prompts, texts = ([row.tolist() for row in encode_texts(side, vocabularies.tgt)] for side in sides)
        titles = [prompt or text for prompt, text in examples]
        count = len(examples)
        return Lines(TextCorpus(prompts, texts), [text for _, text in examples], titles, list(range(count)), count)

    def unknown_symbols(self, run: Run, source: Sequence[int], title: str) -> list[str]:
        if not isinstance(run.tgt_vocab, Vocabulary):
            return super().unknown_symbols(run, source, title)
        return [character for character, n in zip(title, source, strict=False) if n == UNK]

    def split(self, run: Run, config: LanguageData, split: str, **options: Any) -> Lines:
        """Return a split packed into rows of at most `length` tokens (default: as in training)."""
        return self.pack_split(config, split, self.vocabularies(run), self.check_options(run, options).get("length"))

    def sentences(self, run: Run, config: LanguageData, split: str, **options: Any) -> Lines:
        """Return the texts of a split; long texts are cut to the length of a row."""
        self.check_options(run, options)
        corpus = self.encode(self.read_split(config, split), self.vocabularies(run)).corpus
        return _untitled_lines(TextCorpus(corpus.src, [list(row[: self.length - 1]) for row in corpus.tgt]))

    def pack_split(
        self, config: LanguageData, split: str, vocabularies: Vocabularies, length: int | None = None
    ) -> Lines:
        """Return the texts of a split packed into rows, or the examples of a synthetic task.

        Raises:
            InputError: If the split has no symbols or can't be read.
        """
        if config.synthetic is not None:
            if length is not None:
                raise InputError(
                    f"length applies only to texts, got {length} for synthetic data: set data.synthetic.test_lengths"
                )
            return _untitled_lines(config.synthetic.corpus(split))
        texts = _texts(config, split)
        try:
            encoded = encode_texts(texts, vocabularies.tgt)
            return _untitled_lines(pack(encoded, length or self.length, len(vocabularies.tgt)))
        except InputError as error:
            name = "data.embedded" if config.embedded is not None else _find_split(config, split)
            raise InputError(f"{name}: {error}") from error

    def score(self, texts: Sequence[str], references: Sequence[str], quick: bool = False) -> list[CorpusScore]:
        """Return an empty list, because sampled texts have no references."""
        return []

    @property
    def limit(self) -> int:
        return max(LONGEST, 8 * self.length)


def _task_of(config: LanguageData) -> Language:
    synthetic = config.synthetic
    return Language(config.length) if synthetic is None else Language(synthetic.max_length, synthetic.name)


def read_texts(path: Path, texts: str) -> Iterator[str]:
    """Yield the texts of a file: one per line, or with `texts="paragraphs"` one per paragraph.

    The lines of a paragraph are joined by spaces. White space around lines is removed. Empty texts are skipped.
    """
    lines = stream_lines(path)
    if texts == "lines":
        ignored = Ignored()
        yield from (line for _, line in number_lines(lines, ignored))
        ignored.warn(str(path))
        return
    text: list[str] = []
    for line in chain(lines, [""]):
        if line:
            text.append(line)
        elif text:
            yield " ".join(text)
            text = []


def encode_texts(texts: Sequence[str], symbols: Symbols) -> Iterator[NDArray[np.int32]]:
    """Yield the encoded symbols of each text."""
    if isinstance(symbols, Vocabulary):
        for text in texts:
            yield np.array(symbols.encode(text), np.int32)
        return
    for start in range(0, len(texts), CHUNK):
        yield from symbols.encode_arrays(texts[start : start + CHUNK])


def _texts(config: LanguageData, split: str) -> list[str]:
    return [text for _, text in Language.read_split(config, split)]


def _build_vocabulary(config: LanguageData) -> Symbols:
    """Return the vocabulary of characters in the training texts, or learn subwords."""
    if config.subwords is None:
        return Vocabulary.build(_texts(config, "train"))
    learning = {**config.subwords.learning(), "normalization": "identity"}
    if config.embedded is not None:
        return Subwords.train(_texts(config, "train"), **learning)
    return cached_subwords(cache_folder(config.cache), [_find_split(config, "train")], **learning)


def _find_split(config: LanguageData, split: str) -> Path:
    return find_file(config.folder, split_name(config, split), ENDINGS)


def _untitled_lines(corpus: Corpus) -> Lines:
    """Return the rows of a corpus as lines without titles and references."""
    count = len(corpus)
    return Lines(corpus, [""] * count, [""] * count, list(range(count)), count)
