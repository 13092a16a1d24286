"""The base class of tasks. A task defines the examples of a run, their encoding, and the scores of outputs.

Each task is a class in a module of this package, with an entry in :mod:`tsallis.toolkit.tasks.registry`. Other modules
prepare a run of any task (`prepared`), evaluate it (`scoring`), and describe it (`attention_weights`, `manifest`).
"""

from __future__ import annotations

import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter, ValidationError

from tsallis.errors import IgnoredInputWarning, InputError, OptionError, describe, shorten
from tsallis.models.batch import Batch
from tsallis.models.registry import MODELS
from tsallis.models.spellings import ambiguous_text
from tsallis.search import SearchOptions
from tsallis.symbols import UNK
from tsallis.toolkit.config import Section
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.data.io import (
    PACKED_ENDINGS,
    Ignored,
    current_folder,
    find_packed,
    number_lines,
    read_examples,
    read_lines,
)
from tsallis.toolkit.evaluation.text_scores import CorpusScore
from tsallis.toolkit.tasks.types import SPLITS, Attention, Data, Lines, ModelSection, Vocabularies
from tsallis.toolkit.training.file_names import CONFIG, MODEL, TASK
from tsallis.toolkit.training.run_folder import Run
from tsallis.toolkit.training.schema import explain

LONGEST = 1024  # minimum value of the limit on symbols per line; lines of this length are searched within seconds


class Task(ABC):
    """Base class of tasks: examples, their encoding as numbers, and the text of outputs.

    A subclass is a frozen dataclass. `task.json` in a run folder stores the fields, because commands need them to read
    lines after training. A field that is also a setting of `Config` has the same name and value.

    Interface:
        A new task defines these members. `SequenceTask` already defines `models` and `attention`; `LabelTask` already
        defines `scores` and `score`.

        - `name`, `Config`, `models`, `noun`, `scores` and `formats`: see below.
        - `load`: read the training data, and build the vocabularies. The vocabularies turn outputs into text: a
          :class:`~tsallis.toolkit.data.vocabulary.Vocabulary` joins symbols with a separator, and
          :class:`~tsallis.toolkit.data.subwords.Subwords` join pieces to words. `decode` reverses `encode`.
        - `examples`: read the examples of a split from its file.
        - `parse`: read the example on one line.
        - `encode`: encode examples as numbers.
        - `score`: compare outputs with references.
        - `attention`: return the attention to the source.

        All other members have defaults.

    Attributes:
        name: Value of the key `task` in the section `data`.
        Config: Schema of the section `data`.
        models: Schemas of the section `model` by `architecture`; the first is the default.
        noun: Word for an output in messages, such as "answer".
        scores: Names of the scores that `score` returns. The first one selects the best checkpoint.
        costly_scores: Names of the scores that `score` skips if `quick` is true.
        hidden_scores: Names of scores that say nothing about this task; tables of scores omit them.
        header: Header columns of the training data; a first line made of these columns is skipped.
        options: Names of the keyword arguments of `read` and `examples`, such as `language`.
        searched: Whether evaluation searches for outputs. If not, the texts themselves are scored.
        search_defaults: Search options that differ from the defaults of :mod:`tsallis.search`.
        empty_outputs: Whether `read` accepts the keyword `empty`, which allows empty references.
        refusals: Reasons why some commands don't support this task, by command.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid")  # used by `restore`

    name: ClassVar[str]
    Config: ClassVar[type[Section]]
    models: ClassVar[Mapping[str, type[ModelSection]]]
    noun: ClassVar[str]
    scores: ClassVar[tuple[str, ...]]
    costly_scores: ClassVar[tuple[str, ...]] = ()
    hidden_scores: ClassVar[frozenset[str]] = frozenset()
    options: ClassVar[tuple[str, ...]] = ()
    header: tuple[str, ...] = ()
    searched: ClassVar[bool] = True
    search_defaults: ClassVar[SearchOptions] = SearchOptions()
    empty_outputs: ClassVar[bool] = False
    refusals: ClassVar[Mapping[str, str]] = {"generate": "only language models generate texts"}

    @property
    @abstractmethod
    def formats(self) -> tuple[str, str]:
        """Formats of an input line: one without the reference output, and one with the reference output."""

    @property
    def separators(self) -> str:
        """Characters that separate the parts of the last column, and are ignored at the end of a line."""
        return ""

    @classmethod
    @abstractmethod
    def load(cls, config: Any) -> tuple[Task, Data]:
        """Read and encode the training data of a configuration's section `data`.

        Raises:
            InputError: If data can't be read or used. The message names file and line.
        """

    @classmethod
    @abstractmethod
    def examples(cls, config: Any, split: str) -> list[Any]:
        """Read the examples of a split: "train", "dev" or "test". Subclasses also accept the keywords in `options`.

        Raises:
            InputError: If a line can't be read. The message names file and line.
        """

    @classmethod
    def files(cls, config: Any, split: str) -> list[Path]:
        """Return the files that `examples` reads for a split; embedded data has no files.

        Raises:
            InputError: If the configuration does not name a file for the split.
        """
        path = find_packed(Path(config.folder) / split_name(config, split))
        return [] if path is None else [path]

    @abstractmethod
    def parse(self, line: str, origin: str, gold: bool) -> Any:
        """Parse an input line. If `gold` is true, the line also contains the reference output.

        Raises:
            InputError: If the line is malformed. The message begins with `origin`, the file and line number.
        """

    def holds_symbols(self, example: Any) -> bool:
        """Return whether the input of an example contains any symbols."""
        return True

    def number_lines(
        self, lines: Iterable[str], gold: bool, ignored: Ignored, first: int = 0
    ) -> Iterator[tuple[int, str]]:
        """Yield each input line with its number; skip blank lines, comments, and the header before all examples.

        See :func:`tsallis.toolkit.data.io.number_lines`; `first` is the number of the first line in its file.
        """
        names, at_start = set(self.header), not first
        for number, line in number_lines(lines, ignored, self.formats[gold].count("<TAB>") + 1, self.separators):
            if self.is_comment(line):
                continue
            cells = _split_cells(line) if at_start else ()
            at_start = False
            if len(cells) < 2 or not names.issuperset(cells):  # one cell may be a word
                yield number, line

    def is_comment(self, line: str) -> bool:
        """Return whether a line is a comment, which is skipped."""
        return False

    def read_header(self, path: Path | str) -> tuple[str, ...]:
        """Return the columns of the first line of a file that is neither blank nor a comment."""
        return self._first_cells(read_lines(path, self.formats[True]))

    def _first_cells(self, lines: Iterable[str]) -> tuple[str, ...]:
        return _split_cells(next((line for line in lines if line.strip() and not self.is_comment(line)), ""))

    def fits_header(self, cells: Sequence[str]) -> bool:
        """Return whether columns are in the order of the header of the training data."""
        header = iter(self.header)
        return all(cell in header for cell in cells)

    def _check_header(self, cells: Sequence[str], name: Path | str) -> None:
        """Raise if a first line is a header with other columns than the training data; `name` is that of the file."""
        if len(cells) > 1 and {*self.header}.issuperset(cells) and not self.fits_header(cells):
            found, expected = ("<TAB>".join(names) for names in (cells, self.header))
            raise InputError(f"{name}: expected the columns of the training data, {expected}, found the header {found}")

    def example_lines(self, path: Path | str) -> Iterator[tuple[str, str]]:
        """Return the location and the text of each line with an example, see `data.io.read_examples`."""
        first = self.read_header(path) if self.header else ()
        self._check_header(first, path)
        if not {*self.header}.issuperset(first):
            hint = "is read as an example, because it is not the header of the training data"
            warnings.warn(f"{path}: the first line, {shorten('<TAB>'.join(first))}, {hint}", IgnoredInputWarning, 2)
        return read_examples(path, self.formats[True], lambda lines, ignored: self.number_lines(lines, True, ignored))

    def parse_lines(
        self, lines: Iterable[tuple[int, str]], name: str, run: Run, gold: bool, first: int, **options: Any
    ) -> list[tuple[int, Any]]:
        """Parse numbered lines; return each example with its line number. `name` is the name of the input in errors."""
        return [(number, self.parse(line, f"{name}:{first + number + 1}", gold, **options)) for number, line in lines]

    @abstractmethod
    def encode(self, examples: Sequence[Any], vocabularies: Vocabularies) -> Lines:
        """Encode examples as numbers; examples without symbols are skipped."""

    @abstractmethod
    def score(self, texts: Sequence[str], references: Sequence[str], quick: bool = False) -> list[CorpusScore]:
        """Compute the scores of outputs. The first score selects the best model. `quick` skips costly scores."""

    def preview(self, data: Data) -> list[str]:
        """Return lines that show how the model sees some examples."""
        return []

    def measure_outputs(self, texts: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Return statistics of outputs by name, in addition to the scores."""
        return {}

    def warn_variants(self, lines: Lines, name: str) -> None:  # noqa: B027 (most tasks have nothing to report)
        """Warn if not all lines can be right, because a source has several targets; `name` is that of the input."""

    def normalized(self, text: str, run: Run) -> str:
        """Return a part of an output in the form that outputs have; white space at its ends stays."""
        core, normalize = text.strip(), getattr(run.tgt_vocab, "normalize", None)
        return text.replace(core, normalize(core)) if core and normalize is not None else text

    def spell(self, text: str, run: Run) -> list[int]:
        """Encode the text of an output, or of the beginning of an output."""
        return run.tgt_vocab.encode(self.normalized(text, run))

    def ambiguous_text(self, vocabulary: Any) -> Callable[[Sequence[int]], str] | None:
        """Return a function that decodes symbols to text, or None if no two sequences spell the same text.

        Args:
            vocabulary: Vocabulary of the outputs.
        """
        return ambiguous_text(vocabulary)

    def answers(self, reference: str) -> list[str]:
        """Return the right answers in a reference."""
        return [reference]

    def first_answer(self, reference: str) -> str:
        """Return the first right answer in a reference, or an empty text."""
        return next(iter(self.answers(reference)), "")

    def input_line(self, title: str) -> str:
        """Return the input line for a title; see `titles` of :class:`~tsallis.toolkit.tasks.types.Lines`."""
        return title

    def split_typed(self, text: str, run: Run) -> tuple[list[int], str]:
        """Return the encoded complete symbols of a typed text, and the text of the incomplete last symbol."""
        return run.tgt_vocab.split_typed(self.normalized(text, run))

    def count_unknown(self, source: Sequence[int] | NDArray[Any]) -> int:
        """Return the number of unknown symbols in a source."""
        return sum(int(symbol) == UNK for symbol in source)

    def unknown_symbols(self, run: Run, source: Sequence[int], title: str) -> list[str]:
        """Return the unknown symbols of a source, spelled as in the input line.

        Args:
            run: Run with the vocabulary.
            source: Encoded symbols.
            title: Title of the line, see :class:`~tsallis.toolkit.tasks.types.Lines`.
        """
        vocabulary: Any = run.src_vocab
        subwords = hasattr(vocabulary, "pieces")
        symbols = vocabulary.pieces(title) if subwords else self.attention_symbols(run, source, (), title)["source"]
        return [symbol for symbol, number in zip(symbols, source, strict=False) if number == UNK]

    def utility(self, text: str, reference: str) -> float:
        """Return the quality of an output given a reference, from 0 to 1, for minimum Bayes risk decoding."""
        return float(text == reference)

    @abstractmethod
    def attention(self, run: Run, batch: Batch) -> dict[str, Attention]:
        """Return the attention to the source of a batch, by name. `tsallis look --weights` prints this attention."""

    def attention_symbols(self, run: Run, source: Sequence[int], target: Sequence[int], title: str) -> dict[str, Any]:
        """Return lists of symbols that label the rows and columns of attention, such as "source" and "target".

        Args:
            run: Run with the vocabularies.
            source: Encoded symbols of the source.
            target: Encoded symbols of the output, without start and end.
            title: Title of the line.
        """
        return {
            "source": [run.src_vocab.name(int(symbol)) for symbol in source],
            "target": [run.tgt_vocab.name(int(symbol)) for symbol in target],
        }

    @property
    def limit(self) -> int | None:
        """Maximum number of symbols per side of a line; None if the task cuts long lines."""
        return None

    def facts(self) -> dict[str, Any]:
        """Return the content of `task.json`."""
        facts: dict[str, Any] = json.loads(json.dumps(asdict(self)))  # type: ignore[call-overload]
        return {"task": self.name, **facts}

    @classmethod
    def restore(cls, facts: Mapping[str, Any], path: Path | str = TASK) -> Task:
        """Create the task from the content of `task.json`, which `facts` returned. Errors contain `path`."""
        if facts.get("task", cls.name) != cls.name:
            raise InputError(f"{path}: expected the task {cls.name}, found {describe(facts['task'])}; restore the file")
        fields = json.dumps({key: value for key, value in facts.items() if key != "task"})
        try:
            task: Task = TypeAdapter(cls).validate_json(fields)
        except ValidationError as error:
            raise InputError(f"{path}: {explain(error)}") from error
        return task

    @classmethod
    def config_facts(cls, config: Any) -> dict[str, Any]:
        """Return the part of `task.json` that the section `data` determines without reading data files."""
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        return {name: getattr(config, name) for name in names if hasattr(config, name)}

    @classmethod
    def check_facts(cls, facts: Mapping[str, Any], config: Any, path: Path | str = TASK) -> None:
        """Raise if `task.json` does not match the configuration; errors name `path`.

        Args:
            facts: Content of the file; files of earlier versions lack some fields.
            config: Section `data`.
            path: Path of the file.

        Raises:
            InputError: If the task or a setting differs.
        """
        name = facts.get("task", config.task)
        expected = {"task": config.task, **(cls.config_facts(config) if name == config.task else {})}
        for key, value in json.loads(json.dumps(expected)).items():
            if key in facts and facts[key] != value:
                difference = f"{key} is {describe(facts[key])}, but {CONFIG} sets {describe(value)}"
                raise InputError(f"{path}: {difference}: restore the file of this run")

    def check_run(self, run: Run) -> None:
        """Raise if the `task.json` of a run does not match its model.

        Raises:
            InputError: If the task does not support the class of the model.
        """
        known = {MODELS[name] for name in self.models}
        if type(run.model) not in known:
            raise InputError(
                f"{run.folder / TASK}: the task {self.name} does not support {type(run.model).__name__}, the model "
                f"class in {MODEL}: restore the file of this run"
            )

    def vocabularies(self, run: Run) -> Vocabularies:
        """Return the vocabularies of a run."""
        return Vocabularies(run.src_vocab, run.tgt_vocab)

    def read(self, lines: Sequence[str], name: str, run: Run, gold: bool, first: int = 0, **options: Any) -> Lines:
        """Parse and encode lines of input.

        Args:
            lines: Lines of a file, without line ends. Blank lines are skipped.
            name: Name of the file.
            run: Run with the vocabularies.
            gold: Whether lines also contain the reference output.
            first: Number of the first line in the file, from 0.
            options: Options of the task.

        Raises:
            InputError: If a line is malformed or longer than `limit`. The message names file and line.
        """
        if not first:
            self._check_header(self._first_cells(lines), name)
        ignored = Ignored()
        numbered = self.number_lines(lines, gold, ignored, first)
        examples = self.parse_lines(numbered, name, run, gold, first, **options)
        if not gold:
            examples = [(number, example) for number, example in examples if self.holds_symbols(example)]
        encoded = self.encode([example for _, example in examples], self.vocabularies(run))
        numbers = [examples[number][0] for number in encoded.numbers]
        refuse_long(encoded.corpus, self.limit, lambda row, _: f"{name}:{first + numbers[row] + 1}")
        return replace(encoded, numbers=numbers, count=len(lines), ignored=ignored)

    @classmethod
    def read_split(cls, config: Any, split: str, **options: Any) -> list[Any]:
        """Check the name of a split, then return its examples; see `examples`.

        Raises:
            InputError: If the split is not train, dev or test, or can't be read.
        """
        check_split(split)
        return cls.examples(config, split, **options)

    def split(self, run: Run, config: Any, split: str, **options: Any) -> Lines:
        """Read and encode a split of a run's data. Options that are None are ignored.

        Raises:
            InputError: If the task doesn't have an option, or the split can't be read.
        """
        values = self.check_options(run, options)
        return self.encode(self.read_split(config, split, **values), self.vocabularies(run))

    def sentences(self, run: Run, config: Any, split: str, **options: Any) -> Lines:
        """Read and encode a split of a run's data for reports, with one sentence per example."""
        return self.split(run, config, split, **options)

    def check_options(self, run: Run, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that are not None.

        Raises:
            InputError: If the task doesn't have an option.
        """
        values = {option: value for option, value in options.items() if value is not None}
        if refused := [option for option in values if option not in self.options]:
            text = describe(str(values[refused[0]]))
            raise OptionError(
                lambda spell: f"{spell(refused[0])} can't be used with a run of the task {self.name}, got {text}",
                run.folder,
            )
        return values


def _split_cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.split("\t"))


def check_split(split: str) -> None:
    """Raise unless `split` is the name of a split.

    Raises:
        InputError: If the split is not train, dev or test.
    """
    if split not in SPLITS:
        raise InputError(f"split must be train, dev or test, got {split!r}")


def split_name(config: Any, split: str) -> str:
    """Return the file name of a split from the section `data`.

    Raises:
        InputError: If the configuration does not name a file for the split.
    """
    name: str | None = getattr(config, split)
    if name is None:
        raise InputError(f"data.{split} is not set: it must name the {split} file")
    return name


def find_file(folder: Path | str, name: str, endings: Sequence[str] = PACKED_ENDINGS) -> Path:
    """Find the file in a folder whose name is `name` plus one of the endings.

    Raises:
        InputError: If there is no such file.
    """
    path = Path(folder) / name
    if file := find_packed(path, endings):
        return file
    *other_endings, last = (ending for ending in endings if ending.count(".") == 1)
    added = f"{', '.join(other_endings)} or {last}"
    raise InputError(f"{path}{current_folder(path)}: no such file, and none with {added} added to the name")


def split_columns(line: str, origin: str, expected: str, counts: Container[int]) -> list[str]:
    """Return the columns of a line.

    Raises:
        InputError: If the number of columns is not in `counts`.
    """
    fields = line.split("\t")
    if len(fields) not in counts:
        raise InputError(f"{origin}: expected {expected}, found {count_columns(line)}: {shorten(line)}")
    return fields


def count_columns(line: str) -> str:
    """Return the number of columns of a line, for a message."""
    count = line.count("\t") + 1
    return f"{count} column{'s' * (count > 1)}"


def refuse_long(corpus: Corpus, limit: int | None, origin: Callable[[int, int], str], setting: str = "") -> None:
    """Raise an InputError if a line has too many symbols on a side. The error names the first such line.

    Args:
        corpus: Encoded lines.
        limit: Maximum number of symbols per side; None: no limit.
        origin: Function that returns file and line of a row, given the row and the side (source: 0, target: 1).
        setting: Name of the setting with the limit.
    """
    named = f" ({setting})" if setting else ""
    rows = corpus.lengths().tolist() if len(corpus) and limit is not None else []
    for row, lengths in enumerate(rows):
        if limit is not None and (length := max(lengths)) > limit:
            raise InputError(
                f"{origin(row, lengths.index(length))}: expected at most {limit} symbols{named}, found {length}"
            )
