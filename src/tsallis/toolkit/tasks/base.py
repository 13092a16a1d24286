"""The base class of tasks, which define a run's examples, how they become numbers, and what outputs score.

Each task is a class in a file of this folder, with a line in :mod:`tsallis.toolkit.tasks.registry`. Functions above the
tasks prepare a run (`prepared`), evaluate it (`scoring`), and describe it
(`attention_weights`, `manifest`).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter, ValidationError

from tsallis.errors import InputError, OptionError, describe, shorten
from tsallis.models.batch import Batch
from tsallis.models.registry import MODELS
from tsallis.models.spellings import ambiguous_text
from tsallis.search import SearchOptions
from tsallis.symbols import UNK
from tsallis.toolkit.config import Section
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.data.io import PACKED_ENDINGS, Ignored, find_packed, number_lines
from tsallis.toolkit.evaluation.text_scores import CorpusScore
from tsallis.toolkit.tasks.types import SPLITS, Attention, Data, Lines, ModelSection, Vocabularies
from tsallis.toolkit.training.file_names import CONFIG, MODEL, TASK
from tsallis.toolkit.training.run_folder import Run
from tsallis.toolkit.training.schema import explain

LONGEST = 1024  # symbols of a line on which a search ends in seconds, where the run was trained on shorter ones


class Task(ABC):
    """One kind of run: what its examples are, and how they become numbers and text.

    A subclass is a frozen dataclass. `task.json` in a run folder stores its fields, which are needed to read lines
    after training. A field that is also a setting of `Config` has the same name and value.

    Interface:
        A new task defines these. `SequenceTask` and `LabelTask` define `models`, `attention` and, for labels, `score`.

        - `name`, `Config`, `models`, `noun`, `scores` and `columns`: see below.
        - `load`: read the training data, and build the vocabularies. The vocabularies decide how outputs become text:
          a :class:`~tsallis.toolkit.data.vocabulary.Vocabulary` joins its symbols by its separator, and
          :class:`~tsallis.toolkit.data.subwords.Subwords` join pieces to words. Their `decode` reverses their `encode`.
        - `examples`: read the examples of a split from its file.
        - `parse`: read the example on one line.
        - `encode`: turn examples into numbers.
        - `score`: score outputs beside references.
        - `attention`: return what the model attends to in the source.

        Everything else has a default.

    Attributes:
        name: The key `task` of a configuration's section `data`.
        Config: The section `data`.
        models: The sections that `model` may be, by their `architecture`; the first is the default.
        noun: What an output is called.
        scores: The names of what `score` returns. The first one selects the best checkpoint.
        costly_scores: The scores that `score` leaves out if `quick` is true.
        options: Names of options beside the lines, such as `language`: keywords of `read` and `examples`.
        searched: Whether examples have outputs to search for. If not, the texts themselves are scored.
        search_defaults: Options of searches that differ from the defaults of :mod:`tsallis.search`.
        empty_outputs: Whether a known output may be empty if `read` gets the keyword `empty`.
        refusals: Why some commands can't run this task, by the names of the commands.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid")  # of `restore`

    name: ClassVar[str]
    Config: ClassVar[type[Section]]
    models: ClassVar[Mapping[str, type[ModelSection]]]
    noun: ClassVar[str]
    scores: ClassVar[tuple[str, ...]]
    costly_scores: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[tuple[str, ...]] = ()
    searched: ClassVar[bool] = True
    search_defaults: ClassVar[SearchOptions] = SearchOptions()
    empty_outputs: ClassVar[bool] = False
    refusals: ClassVar[Mapping[str, str]] = {"generate": "tsallis generate is for language models"}

    @property
    @abstractmethod
    def columns(self) -> tuple[str, str]:
        """The columns of a line of input: without the right output, and with it."""

    @property
    def separators(self) -> str:
        """Characters that separate the parts of the last column. They are ignored at the end of a line."""
        return ""

    @classmethod
    @abstractmethod
    def load(cls, config: Any) -> tuple[Task, Data]:
        """Read and encode the training data that a section `data` describes.

        Raises:
            InputError: Data can't be read or used; the message names file and line.
        """

    @classmethod
    @abstractmethod
    def examples(cls, config: Any, split: str) -> list[Any]:
        """Read the examples of a split, "train", "dev" or "test"; subclasses may take some of `options`, too.

        Raises:
            InputError: A line can't be read; the message names file and line.
        """

    @classmethod
    def files(cls, config: Any, split: str) -> list[Path]:
        """Return the files that `examples` reads for a split; none of data that comes with the package.

        Raises:
            InputError: a split that the configuration does not name.
        """
        path = find_packed(Path(config.folder) / split_name(config, split))
        return [] if path is None else [path]

    @abstractmethod
    def parse(self, line: str, origin: str, gold: bool) -> Any:
        """Return the example on a line of input; with `gold` the line holds the right output, too.

        Raises:
            InputError: a malformed line; the message begins with `origin`, its file and number.
        """

    def holds_symbols(self, example: Any) -> bool:
        """Return whether an example without its right output holds anything to read."""
        return True

    def number_lines(self, lines: Sequence[str], gold: bool, ignored: Ignored) -> Iterator[tuple[int, str]]:
        """Yield the lines of input that are read, as :func:`tsallis.toolkit.data.io.number_lines`."""
        return number_lines(lines, ignored, self.columns[gold].count("<TAB>") + 1, self.separators)

    def parse_lines(
        self, lines: Iterable[tuple[int, str]], name: str, run: Run, gold: bool, first: int, **options: Any
    ) -> list[tuple[int, Any]]:
        """Return the examples on numbered lines of the input `name`, with their lines' numbers."""
        return [(number, self.parse(line, f"{name}:{first + number + 1}", gold, **options)) for number, line in lines]

    @abstractmethod
    def encode(self, examples: Sequence[Any], vocabularies: Vocabularies) -> Lines:
        """Encode examples as numbers; examples without symbols are skipped."""

    @abstractmethod
    def score(self, texts: Sequence[str], references: Sequence[str], quick: bool = False) -> list[CorpusScore]:
        """Score outputs; the first score selects the best model. With `quick`, the costly ones are left out."""

    def measure_outputs(self, texts: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Return what an evaluation also says of outputs, no scores, by name."""
        return {}

    def spell(self, text: str, run: Run) -> list[int]:
        """Return the numbers of the symbols of an output, or of the beginning of one."""
        return run.tgt_vocab.encode(text)

    def ambiguous_text(self, vocabulary: Any) -> Callable[[Sequence[int]], str] | None:
        """Return the function that spells outputs, if several sequences of symbols may spell one text; else None.

        Args:
            vocabulary: Of the outputs.
        """
        return ambiguous_text(vocabulary)

    def split_typed(self, text: str, run: Run) -> tuple[list[int], str]:
        """Return the complete symbols of a typed text, and the rest: the start of the next symbol."""
        return run.tgt_vocab.split_typed(text)

    def count_unknown(self, source: Sequence[int] | NDArray[Any]) -> int:
        """Return how many symbols of a source the run doesn't know."""
        return sum(int(symbol) == UNK for symbol in source)

    def unknown_symbols(self, run: Run, source: Sequence[int], title: str) -> list[str]:
        """Return the symbols of a source that the run doesn't know, as its line has them.

        Args:
            run: whose vocabulary counts.
            source: numbers of the symbols.
            title: of the line, see :class:`Lines`.
        """
        vocabulary: Any = run.src_vocab
        subwords = hasattr(vocabulary, "pieces")
        symbols = vocabulary.pieces(title) if subwords else self.attention_symbols(run, source, (), title)["source"]
        return [symbol for symbol, number in zip(symbols, source, strict=False) if number == UNK]

    def utility(self, text: str, reference: str) -> float:
        """Return how good an output is if another one is right, from 0 to 1. Choices of least risk maximise it."""
        return float(text == reference)

    @abstractmethod
    def attention(self, run: Run, batch: Batch) -> dict[str, Attention]:
        """Return by name the attention to the source in a batch, which `tsallis look --weights` prints."""

    def attention_symbols(self, run: Run, source: Sequence[int], target: Sequence[int], title: str) -> dict[str, Any]:
        """Return the symbols that rows and columns of attention belong to, "source" and "target" among them.

        Args:
            run: that has read the line.
            source: its symbols.
            target: those of its output, without start and end.
            title: of the line.
        """
        return {
            "source": [run.src_vocab.name(int(symbol)) for symbol in source],
            "target": [run.tgt_vocab.name(int(symbol)) for symbol in target],
        }

    @property
    def limit(self) -> int | None:
        """Most symbols a side of a line that is searched; None where long lines are cut."""
        return None

    def facts(self) -> dict[str, Any]:
        """Return what `task.json` holds."""
        return {"task": self.name, **asdict(self)}  # type: ignore[call-overload]

    @classmethod
    def restore(cls, facts: Mapping[str, Any], path: Path | str = TASK) -> Task:
        """Return the task that a run folder's `task.json` describes, the reverse of `facts`; errors name `path`."""
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
        """Return what `task.json` holds as a section `data` has it, as far as the files of the data don't decide it."""
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        return {name: getattr(config, name) for name in names if hasattr(config, name)}

    @classmethod
    def check_facts(cls, facts: Mapping[str, Any], config: Any, path: Path | str = TASK) -> None:
        """Raise if `task.json` does not match the configuration; errors name `path`.

        Args:
            facts: Content of the file; earlier versions lack some fields.
            config: the section `data`.
            path: of the file.

        Raises:
            InputError: another task, or another value of a setting.
        """
        name = facts.get("task", config.task)
        expected = {"task": config.task, **(cls.config_facts(config) if name == config.task else {})}
        for key, value in json.loads(json.dumps(expected)).items():
            if key in facts and facts[key] != value:
                difference = f"{key} is {describe(facts[key])}, {describe(value)} by {CONFIG}"
                raise InputError(f"{path}: {difference}: not this run's file; restore it")

    def check_run(self, run: Run) -> None:
        """Refuse a run whose `task.json` is not of its model.

        Raises:
            InputError: such a run.
        """
        known = {MODELS[name] for name in self.models}
        if type(run.model) not in known:
            raise InputError(
                f"{run.folder / TASK}: the task {self.name} has no model of the class in {MODEL}: not this run's file; "
                "restore it"
            )

    def vocabularies(self, run: Run) -> Vocabularies:
        """Return the symbols that a run knows."""
        return Vocabularies(run.src_vocab, run.tgt_vocab)

    def read(self, lines: Sequence[str], name: str, run: Run, gold: bool, first: int = 0, **options: Any) -> Lines:
        """Turn lines of input into numbers.

        Args:
            lines: some lines of a file, without their ends. Blank lines are skipped.
            name: of the file.
            run: whose vocabularies count.
            gold: whether lines hold the right output, too.
            first: the number of the first of them, from 0.
            options: of the task.

        Raises:
            InputError: a malformed line, or one with more symbols than a search takes, with its file and number.
        """
        ignored = Ignored()
        numbered = self.number_lines(lines, gold, ignored)
        examples = self.parse_lines(numbered, name, run, gold, first, **options)
        if not gold:
            examples = [(number, example) for number, example in examples if self.holds_symbols(example)]
        encoded = self.encode([example for _, example in examples], self.vocabularies(run))
        numbers = [examples[number][0] for number in encoded.numbers]
        refuse_long(encoded.corpus, self.limit, lambda row, _: f"{name}:{first + numbers[row] + 1}")
        return replace(encoded, numbers=numbers, count=len(lines), ignored=ignored)

    @classmethod
    def read_split(cls, config: Any, split: str, **options: Any) -> list[Any]:
        """Return the examples of one split of a configuration's data, see `examples`.

        Raises:
            InputError: another split than train, dev or test, and what reading finds.
        """
        if split not in SPLITS:
            raise InputError(f"split must be train, dev or test, got {split!r}")
        return cls.examples(config, split, **options)

    def split(self, run: Run, config: Any, split: str, **options: Any) -> Lines:
        """Return one split of a run's own data, its section `data`; options that are None are not set.

        Raises:
            InputError: an option that the task doesn't take, and what reading finds.
        """
        values = self.check_options(run, options)
        return self.encode(self.read_split(config, split, **values), self.vocabularies(run))

    def sentences(self, run: Run, config: Any, split: str, **options: Any) -> Corpus:
        """Return one split of a run's own data as a report reads it: an example is a sentence."""
        return self.split(run, config, split, **options).corpus

    def check_options(self, run: Run, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that are not None.

        Raises:
            InputError: one that the task doesn't take.
        """
        values = {option: value for option, value in options.items() if value is not None}
        if refused := [option for option in values if option not in self.options]:
            article = "an" if self.name[0] in "aeiou" else "a"
            text = describe(str(values[refused[0]]))
            raise OptionError(
                lambda spell: f"{article} {self.name} run takes no {spell(refused[0])}, {text} was given", run.folder
            )
        return values


def split_name(config: Any, split: str) -> str:
    """Return the name of a split's file in a section `data`.

    Raises:
        InputError: none is named.
    """
    name: str | None = getattr(config, split)
    if name is None:
        raise InputError(f"the configuration names no {split} file (data.{split})")
    return name


def find_file(folder: Path | str, name: str, endings: Sequence[str] = PACKED_ENDINGS) -> Path:
    """Return the file of that name in a folder, with one of the endings behind it.

    Raises:
        InputError: If there is none.
    """
    path = Path(folder) / name
    if file := find_packed(path, endings):
        return file
    *others, last = (ending for ending in endings if ending.count(".") == 1)
    raise InputError(f"{path}: there is no such file (nor one that ends in {', '.join(others)} or {last})")


def split_columns(line: str, origin: str, expected: str, counts: Container[int]) -> list[str]:
    """Return the columns of a line.

    Raises:
        InputError: If there are more or fewer of them than `counts` allows.
    """
    fields = line.split("\t")
    if len(fields) not in counts:
        found = f"{len(fields)} column" + ("s" if len(fields) != 1 else "")
        raise InputError(f"{origin}: expected {expected}, found {found}: {shorten(line)}")
    return fields


def refuse_long(corpus: Corpus, limit: int | None, origin: Callable[[int, int], str]) -> None:
    """Raise an InputError that names the first line with more symbols on a side than a search takes.

    Args:
        corpus: the lines' symbols.
        limit: maximum number of symbols per side; None: no limit.
        origin: returns the file and line of a row's source (0) or target (1).
    """
    rows = corpus.lengths().tolist() if len(corpus) and limit is not None else []
    for row, lengths in enumerate(rows):
        if limit is not None and (length := max(lengths)) > limit:
            raise InputError(f"{origin(row, lengths.index(length))}: {length} symbols, at most {limit} are read")
