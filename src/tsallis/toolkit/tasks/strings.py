"""Transduction of strings: inflection, grapheme-to-phoneme conversion, transliteration, normalisation."""

from __future__ import annotations

import glob
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, groupby, zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from tsallis.errors import IgnoredInputWarning, InputError, OptionError, describe, shorten
from tsallis.symbols import FIRST, UNK
from tsallis.toolkit.config import ON_RESUME, Count, FileName, Section
from tsallis.toolkit.data.corpus import Corpus, Counts
from tsallis.toolkit.data.io import current_folder
from tsallis.toolkit.data.splits import hold_out
from tsallis.toolkit.data.vocabulary import GRAPHEMES, Vocabulary, split_symbols
from tsallis.toolkit.datasets.embedded import read_embedded
from tsallis.toolkit.evaluation.text_scores import CorpusScore, levenshtein
from tsallis.toolkit.tasks.base import LONGEST, Task, check_split, count_columns, refuse_long, split_name
from tsallis.toolkit.tasks.copying import copies
from tsallis.toolkit.tasks.hallucination import hallucinate
from tsallis.toolkit.tasks.sequences import FEATURE, LANGUAGE, SequenceTask, check_source
from tsallis.toolkit.tasks.types import Data, Lines, Vocabularies
from tsallis.toolkit.training.file_names import TASK
from tsallis.toolkit.training.run_folder import Run

SEPARATORS = {"characters": "", "graphemes": GRAPHEMES, "spaces": " "}  # separators between the symbols of a string
MIN_EXAMPLES = 5  # with fewer examples than this, columns are not checked
MAX_NAMED = 5  # maximum number of features in a message
SIMILAR = 0.3  # similarity above which two texts look like forms of one word
SAMPLED = 1000  # maximum number of examples whose texts are compared in a check of columns
TAG_SEPARATORS = re.compile("[;,|+]")
NESTED = re.compile(r"([^()]+)\((.*)\)")  # a feature with features in brackets, such as NOM(3,SG)


def _check_symbols(symbols: str) -> str:
    """Raise unless `symbols` is a key of `SEPARATORS` or a valid separator."""
    if symbols not in SEPARATORS and (not symbols or len(symbols) > 10 or any(map(str.isalnum, symbols))):
        choices = ", ".join(SEPARATORS)
        raise ValueError(f"expected {choices}, or a separator without letters and digits, found {describe(symbols)}")
    return symbols


def separator_of(symbols: str) -> str:
    """Return the separator between symbols for a value of the setting `src_symbols` or `tgt_symbols`."""
    return SEPARATORS.get(symbols, symbols)


Symbols = Annotated[str, AfterValidator(_check_symbols)]
Separator = Annotated[str, Field(min_length=1, max_length=10)]
Normalization = Literal["NFC", "NFD", "NFKC", "NFKD"]


class ColumnsConfig(Section):
    """Numbers of the columns of a line, from 1. Other columns are ignored."""

    source: Count = 1
    target: Count = 2
    # One or several columns. "auto" means column 3, or none if the training data have no third column.
    features: Literal["auto"] | Count | list[Count] | None = "auto"

    @model_validator(mode="after")
    def _check_different(self) -> ColumnsConfig:
        numbers = [self.source, self.target, *(self.feature_numbers or ())]
        if len(set(numbers)) < len(numbers):
            raise ValueError(
                f"source, target and features must be different columns, found {', '.join(map(str, numbers))}"
            )
        return self

    @property
    def feature_numbers(self) -> list[int] | None:
        """Numbers of the columns with features; None if they depend on the data."""
        if self.features == "auto":
            return None if {self.source, self.target} == {1, 2} else []
        return [self.features] if isinstance(self.features, int) else self.features or []


class StringsData(Section):
    """Pairs of strings, in files of one or several languages, or embedded data."""

    task: Literal["strings"] = "strings"
    embedded: Literal["english-verbs"] | None = None
    folder: Annotated[FileName, ON_RESUME] = "."
    # File name in the folder; {language} is replaced by each language.
    train: Annotated[FileName | None, ON_RESUME] = None
    dev: Annotated[FileName | None, ON_RESUME] = None
    test: Annotated[FileName | None, ON_RESUME] = None
    held_out: float = Field(0.1, gt=0, lt=1)  # share of the training sources to hold out as dev, if dev is not set
    # One language, a list of languages, or "all" for every language with a training file.
    languages: Annotated[list[FileName], Field(min_length=1)] | Literal["all"] | None = None
    columns: ColumnsConfig = ColumnsConfig()
    header: bool = False  # whether train begins with a header, after comments; the same line is ignored in other files
    comment: Separator | None = None  # prefix of lines to ignore, such as "#"
    src_symbols: Symbols = "characters"  # "characters", "graphemes", "spaces", or another separator
    tgt_symbols: Symbols = "characters"
    feature_separator: Separator = ";"
    answer_separator: Separator | None = None  # separator of several right answers in the target column
    src_normalization: Normalization | None = None  # Unicode normalisation
    tgt_normalization: Normalization | None = None
    max_length: Count = 256  # maximum number of symbols per side; longer training examples are left out
    # Number of training examples to invent for inflection: random symbols replace the stems of real examples.
    hallucinate: Annotated[int, Field(ge=0, lt=2**31)] = 0

    @field_validator("languages", mode="before")
    @classmethod
    def _wrap_language(cls, value: Any) -> Any:
        if isinstance(value, list) and (repeated := [x for position, x in enumerate(value) if x in value[:position]]):
            raise ValueError(f"a language must not be repeated, found {describe(repeated[0])}")
        return [value] if isinstance(value, str) and value != "all" else value

    @model_validator(mode="after")
    def _check_source(self) -> StringsData:
        check_source(self, ("train", "dev", "test", "languages"), "english-verbs", needed=("train",))
        if self.answer_separator == (separator := separator_of(self.tgt_symbols)):
            raise ValueError(
                f"answer_separator must differ from the separator of tgt_symbols, found {describe(separator)} for both"
            )
        if " + " in self.feature_separator:  # titles of examples separate source and features by it
            raise ValueError(f"feature_separator must not contain ' + ', found {self.feature_separator!r}")
        if self.embedded is not None:
            names = ("header", "comment", "feature_separator", "answer_separator")
            extra = [name for name in names if getattr(self, name) != type(self).model_fields[name].default]
            columns = self.columns
            if columns.feature_numbers not in (None, [3]) or (columns.source, columns.target) != (1, 2):
                extra.append("columns")
            if extra:
                raise ValueError(
                    f"{', '.join(extra)} can't be used with embedded data: use either files or embedded data, not both"
                )
        return self


@dataclass(frozen=True)
class Columns:
    """Numbers of the columns of a line, from 1.

    Args:
        source: Column of the source.
        target: Column of the target, which input lines may lack.
        features: Columns of features.
    """

    source: Annotated[int, Field(ge=1)] = 1
    target: Annotated[int, Field(ge=1)] = 2
    features: tuple[Annotated[int, Field(ge=1)], ...] = (3,)

    @property
    def width(self) -> int:
        """Minimum number of columns of a line with a target."""
        return max(self.source, self.target, *self.features)

    @property
    def plain_width(self) -> int:
        """Minimum number of columns of a line without a target."""
        return max(column - (column > self.target) for column in (self.source, *self.features))

    def names(self, header: Sequence[str] = ()) -> list[str]:
        """Return the names of the columns of a line with a target, from the header if there is one."""
        if len(header) >= self.width:
            return [*header[: self.width]]
        known = {self.source: "source", self.target: "target", **dict.fromkeys(self.features, "features")}
        return [known.get(column, "...") for column in range(1, self.width + 1)]

    def as_setting(self) -> str:
        """Return the numbers as an override of the configuration."""
        features = [*self.features] if len(self.features) > 1 else self.features[0] if self.features else "null"
        return f"data.columns='{{source: {self.source}, target: {self.target}, features: {features}}}'"


@dataclass(frozen=True)
class Strings(SequenceTask):
    """Task of turning a string and optional features into another string.

    Input lines have the columns of the training data; the target column may be missing.
    """

    languages: list[str] | None = None
    max_length: Annotated[int, Field(ge=1)] | None = None
    columns: Columns = Columns()
    header: tuple[str, ...] = ()  # header columns of the training data; empty if there is no header
    comment: str | None = None
    src_symbols: Symbols = "characters"
    tgt_symbols: Symbols = "characters"
    feature_separator: str = ";"
    answer_separator: str | None = None
    src_normalization: Normalization | None = None
    tgt_normalization: Normalization | None = None

    name = "strings"
    Config = StringsData
    noun = "output"
    scores = ("accuracy", "word_error_rate", "symbol_error_rate", "levenshtein")
    options = ("language",)
    empty_outputs = True

    @property
    def formats(self) -> tuple[str, str]:
        names = self.columns.names(self.header)
        plain = [name for column, name in enumerate(names, 1) if column != self.columns.target]
        return "<TAB>".join(plain[: self.columns.plain_width]), "<TAB>".join(names)

    @property
    def separators(self) -> str:
        return self.feature_separator if self.columns.width in self.columns.features else ""

    @classmethod
    def load(cls, config: StringsData) -> tuple[Task, Data]:
        task = cls.of_config(config)
        cls._warn_ignored_features(config, task)
        examples, dev_examples = task.examples_of(config, "train"), task.examples_of(config, "dev")
        task.check_columns(examples if config.dev is not None else [*examples, *dev_examples])
        if not examples or not dev_examples:
            count = len({example.source for example in (*examples, *dev_examples)})
            files = ", ".join(str(path) for path in task.files(config, "train"))
            hints = (
                f". {e.origin} is read as {task.describe_columns(e)}; if the source is another column, set data.columns"
                for e in (*examples, *dev_examples)
            )
            raise InputError(
                f"{files}: holding out {config.held_out:g} of the sources for validation leaves a part empty; found "
                f"{count} different source{'' if count == 1 else 's'}: add lines, or set data.dev to another file"
                f"{next(hints, '')}"
            )
        dev = _interleave_languages(dev_examples)
        examples = [replace(e, target=answer) for e in examples for answer in task.answers(e.target or "")]
        separators = [separator_of(symbols) for symbols in (config.src_symbols, config.tgt_symbols)]
        if config.hallucinate:
            examples += hallucinate(examples, config.hallucinate, separators)
        sides = [(e.src_tokens(separators[0]), e.tgt_tokens(separators[1])) for e in examples]
        rows = [row for row, (src, tgt) in enumerate(sides) if max(len(src), len(tgt)) <= config.max_length]
        train = [examples[row] for row in rows]
        if not train:
            limit = f"{config.max_length} symbols (data.max_length)"
            name = "data.embedded" if config.train is None else Path(config.folder) / config.train
            raise InputError(f"{name}: all {len(examples)} examples have a source or target of more than {limit}")
        src, tgt = (Vocabulary.build([sides[row][i] for row in rows], separator=separators[i]) for i in range(2))
        vocabularies = Vocabularies(src, tgt)
        task.check_known(dev_examples, vocabularies)
        lines = task.encode(dev, vocabularies)
        task.warn_variants(lines, "dev split")
        refuse_long(lines.corpus, config.max_length, lambda row, _: dev[row].origin, "data.max_length")
        counts = Counts(len(examples), len(train), 0, len(examples) - len(train))
        return task, Data(replace(task.encode(train, vocabularies).corpus, counts=counts), lines, vocabularies)

    @classmethod
    def of_config(cls, config: StringsData) -> Strings:
        """Return the task of a configuration; columns and header may depend on the training data."""
        facts = cls.config_facts(config)
        columns = Columns(config.columns.source, config.columns.target)
        columns = Columns(**facts.pop("columns")) if "columns" in facts else columns
        task = cls(**{**facts, "languages": find_languages(config)}, columns=columns)
        if config.embedded is None and (config.header or config.columns.feature_numbers is None):
            path = cls.files(config, "train")[0]
            if config.header:
                task = replace(task, header=task.read_header(path))
            if config.columns.feature_numbers is None:
                task = replace(task, columns=replace(columns, features=()))
                _, first = next(task.example_lines(path))
                task = replace(task, columns=replace(columns, features=(3,) if first.count("\t") > 1 else ()))
        return task

    @classmethod
    def _warn_ignored_features(cls, config: StringsData, task: Strings) -> None:
        """Warn if the first line has no features, so that the run has none, but other training lines have some."""
        if config.embedded is not None or config.columns.feature_numbers is not None or task.columns.features:
            return
        files = cls.files(config, "train")
        for path in files:
            origin = next((origin for origin, line in task.example_lines(path) if line.count("\t") > 1), None)
            if origin is not None:
                hint = f"ignored column 3, which the first example in {files[0]} lacks; data.columns chooses columns"
                warnings.warn(f"{origin}: {hint}", IgnoredInputWarning, stacklevel=2)

    @classmethod
    def examples(cls, config: StringsData, split: str, language: str | None = None) -> list[StringsExample]:
        """Read the examples of a split, or only its examples in `language`.

        Without a dev file, a share of the training sources is held out as dev.
        """
        return cls.of_config(config).examples_of(config, split, language)

    def examples_of(self, config: StringsData, split: str, language: str | None = None) -> list[StringsExample]:
        """Read the examples of a split from the columns that this task defines."""
        if config.embedded is not None:
            verbs = english_verbs()[split]
            return verbs if self.columns.features else [replace(verb, features=()) for verb in verbs]
        if language is not None or config.languages == "all":  # "all" means all languages when the run started
            config = config.model_copy(update={"languages": self.languages if language is None else [language]})
        languages: Sequence[str | None] = find_languages(config) or [None]
        examples: list[StringsExample] = []
        for path, name in zip(self.files(config, split), languages, strict=True):
            language_examples = read_strings(path, name, self)
            if config.dev is None and split != "test":
                train, dev = hold_out(language_examples, config.held_out, group=lambda example: example.source)
                # `load` leaves out long lines of train; leave those of dev out, too, because both are from one file.
                language_examples = train if split == "train" else [e for e in dev if self._fits(e, config)]
            examples += language_examples
        return examples

    def _fits(self, example: StringsExample, config: StringsData) -> bool:
        """Return whether the source and all answers have at most `max_length` symbols."""
        separator = separator_of(config.tgt_symbols)
        sides = [[*split_symbols(answer, separator)] for answer in self.answers(example.target or "")]
        sides.append(example.src_tokens(separator_of(config.src_symbols)))
        return max(map(len, sides)) <= config.max_length

    @classmethod
    def files(cls, config: StringsData, split: str) -> list[Path]:
        if config.embedded is not None:
            return []
        split = "train" if config.dev is None and split == "dev" else split
        path, languages = Path(config.folder) / split_name(config, split), find_languages(config)
        if languages is None:
            return [path]
        if "{language}" not in str(path):
            raise InputError(f"{path}: a path for several languages must contain {{language}}")
        return [Path(str(path).replace("{language}", language)) for language in languages]

    @classmethod
    def config_facts(cls, config: StringsData) -> dict[str, Any]:
        facts = super().config_facts(config)
        del facts["header"], facts["columns"]
        if config.languages == "all":  # the languages depend on the files
            del facts["languages"]
        if (features := config.columns.feature_numbers) is not None:
            facts["columns"] = asdict(Columns(config.columns.source, config.columns.target, tuple(features)))
        return facts

    def check_run(self, run: Run) -> None:
        super().check_run(run)
        symbols = map(run.src_vocab.name, range(FIRST, len(run.src_vocab)))
        known = {symbol[len(LANGUAGE) : -1] for symbol in symbols if symbol.startswith(LANGUAGE)}
        languages = self.languages or []
        if not known.issubset(languages) or (languages and not known):
            difference = f"languages is {describe(languages)}, but the vocabulary has {describe(sorted(known))}"
            raise InputError(f"{run.folder / TASK}: {difference}: restore the file of this run")

    def check_columns(self, examples: Sequence[StringsExample]) -> None:
        """Raise if the columns may have been swapped.

        Raises:
            InputError: If most examples share no feature with another example, or if the features of most examples
                resemble the source more than the target does, or the target if the sources are like features.
        """
        columns = self.columns
        if not columns.features or len(examples) < MIN_EXAMPLES:
            return
        counts = Counter(feature for example in examples for feature in example.features)
        unique = [e for e in examples if e.features and all(counts[feature] == 1 for feature in e.features)]
        sample = examples[:: -(-len(examples) // SAMPLED)]
        # A lemma may be a feature of a word and resemble the target. But if tags are the source, each has many lemmas.
        pairs = {(tag, e.features) for e in examples for tag in TAG_SEPARATORS.split(e.source)}
        lemmas = Counter(tag for tag, _ in pairs)
        texts = [(e.source, e.target or "", ";".join(e.features)) for e in sample]
        # Similarities of source and features, of target and features, and of source and target.
        alike = [(similarity(a, c), similarity(b, c), similarity(a, b)) for a, b, c in texts]
        wordlike = [
            e
            for e, (a, b, c) in zip(sample, alike, strict=True)
            if max(a, b if all(lemmas[tag] > 1 for tag in TAG_SEPARATORS.split(e.source)) else 0) > max(SIMILAR, c)
        ]
        for suspect, examined, fault in ((unique, examples, "occur once"), (wordlike, sample, "look like words")):
            if 2 * len(suspect) > len(examined):
                first, *others = columns.features
                swapped = replace(columns, target=first, features=(columns.target, *others))
                if sum(b - a for a, b, _ in alike) > 0:  # target and features are forms of a word
                    source, target = sorted((columns.target, first))
                    swapped = Columns(source, target, (columns.source, *others))
                raise InputError(
                    f"{suspect[0].origin}: the columns seem to be wrong: most features {fault}. This line is read as "
                    f"{self.describe_columns(suspect[0])}; to choose other columns, set data.columns, such as "
                    f"{swapped.as_setting()} (features: null if there are no features)"
                )

    def describe_columns(self, example: StringsExample) -> str:
        """Describe how the columns of an example were read, for a message."""
        target = "" if example.target is None else f", target {describe(example.target)}"
        features = (
            f", features {describe(self.feature_separator.join(example.features))}" if self.columns.features else ""
        )
        return f"source {describe(example.source)}{target}{features}"

    @property
    def limit(self) -> int:
        return self.max_length or LONGEST

    def fits_header(self, cells: Sequence[str]) -> bool:
        if len(self.header) < self.columns.width:
            return super().fits_header(cells)
        expected = self.formats[len(cells) >= self.columns.width].split("<TAB>")
        return [*cells[: len(expected)]] == expected

    def is_comment(self, line: str) -> bool:
        return self.comment is not None and line.startswith(self.comment)

    def read(
        self,
        lines: Sequence[str],
        name: str,
        run: Run,
        gold: bool,
        first: int = 0,
        language: str | None = None,
        **options: Any,
    ) -> Lines:
        if language is None and self.languages and len(self.languages) == 1:
            language = self.languages[0]
        self.check_language(run, language)
        return super().read(lines, name, run, gold, first, language=language, **options)

    def parse_lines(
        self, lines: Iterable[tuple[int, str]], name: str, run: Run, gold: bool, first: int, **options: Any
    ) -> list[tuple[int, StringsExample]]:
        """Return the examples on numbered lines.

        Raises:
            InputError: If a line is malformed, its features are unknown and another column looks like features, or most
                target symbols are unknown.
        """
        examples, vocabularies = [], self.vocabularies(run)
        for number, line in lines:
            origin = f"{name}:{first + number + 1}"
            if not gold and line.count("\t") + 1 < self.columns.plain_width:
                fault = f"expected {' or '.join(self.formats)}, found {count_columns(line)}: {shorten(line)}"
                raise InputError(f"{origin}: {fault}{self._example_hint(vocabularies.src, line.strip())}")
            examples.append((number, self.parse(line, origin, gold, **options)))
        rows = [example for _, example in examples]
        if wrong := next(filter(None, (self._fault_of_features(row, vocabularies.src) for row in rows)), ""):
            raise InputError(wrong)
        self._check_targets(rows, vocabularies, copies(run.model), gold)
        return examples

    def check_known(self, examples: Sequence[StringsExample], vocabularies: Vocabularies) -> None:
        """Raise if the columns of a file seem to differ from those of the training data.

        Raises:
            InputError: If the features of most examples of a language seem to be in another column, or most target
                symbols of a language are in neither the training data nor the source.
        """
        for _, group in groupby(examples, key=lambda e: e.language):
            faults = [self._fault_of_features(example, vocabularies.src) for example in group]
            suspect = [fault for fault in faults if fault]
            if len(faults) >= MIN_EXAMPLES and 2 * len(suspect) > len(faults):
                raise InputError(suspect[0])
        self._check_targets(examples, vocabularies, copied=True, gold=True)

    def _check_targets(
        self, examples: Sequence[StringsExample], vocabularies: Vocabularies, copied: bool, gold: bool
    ) -> None:
        """Raise if most target symbols of a language are unknown.

        Args:
            examples: Examples; those of a language are adjacent.
            vocabularies: Vocabularies of the training data.
            copied: Whether symbols of a source are known in its target.
            gold: Whether targets are needed. Otherwise, they are checked only if most sources have unknown symbols.
        """
        src, tgt = vocabularies.src, vocabularies.tgt
        for _, group in groupby(examples, key=lambda e: e.language):
            rows = [*group]
            targets = [self._symbols(self.first_answer(e.target or ""), self.tgt_symbols) for e in rows]
            unknown = [
                sum(s not in tgt and not (copied and s in e.source) for s in target)
                for e, target in zip(rows, targets, strict=True)
            ]
            if len(rows) < MIN_EXAMPLES or 2 * sum(unknown) <= sum(map(len, targets)):
                continue
            new_sources = sum(any(s not in src for s in self._symbols(e.source, self.src_symbols)) for e in rows)
            if gold or 2 * new_sources > len(rows):
                worst = rows[unknown.index(max(unknown))]
                raise InputError(
                    f"{worst.origin}: most target symbols do not occur in the training data. This line is read as "
                    f"{self.describe_columns(worst)}; expected lines {self.formats[True]}"
                )

    def _fault_of_features(self, example: StringsExample, src: Vocabulary) -> str:
        """Return an error if all features are unknown, and seem to be in another column or separated otherwise."""

        def are_known(features: Iterable[str]) -> list[bool]:
            return [f"{FEATURE}{feature}>" in src for feature in features]

        if not example.features or any(are_known(example.features)):
            return ""
        source, target = (split_features(x or "", self.feature_separator) for x in (example.source, example.target))
        parts = re.split(r"[\s,;|+]+", " ".join(example.features))  # as if the separator were different
        # A word may be spelled like a feature, so the features must also look like a source.
        word = self.feature_separator.join(example.features)
        is_swapped = all(are_known(source)) and all(symbol in src for symbol in self._symbols(word, self.src_symbols))
        looks_like_word = similarity(example.source, ";".join(example.features)) > SIMILAR
        if not (is_swapped or looks_like_word or any(are_known([*target, *parts]))):
            return ""
        return (
            f"{example.origin}: no feature of this line occurs in the training data: "
            f"{self.describe_columns(example)}; expected "
            f"{' or '.join(self.formats)}{self._example_hint(src, word if is_swapped else example.source)}"
        )

    def _example_hint(self, src: Vocabulary, source: str) -> str:
        """Return an example line and the most frequent features of the training data, for a message."""
        names = map(src.name, range(FIRST, len(src)))
        features = [name[len(FEATURE) : -1] for name in names if name.startswith(FEATURE)]
        if not features:
            return ""
        known = f"{', '.join(features[:MAX_NAMED])}{', ...' if len(features) > MAX_NAMED else ''}"
        columns = max(len(self.columns.features), 1)
        line = "<TAB>".join([shorten(source.split("\t")[0])[1:-1], *features[:columns]])
        separator_hint = f"write {describe(self.feature_separator)} between features; " if columns == 1 else ""
        return f"; for example {line} ({separator_hint}the training data contain the features {known})"

    def _title_parts(self, title: str) -> tuple[str, str]:
        """Return the source and the joined features of a title; a title without features is a source."""
        if not self.columns.features or " + " not in title:
            return title, ""
        source, _, features = title.rpartition(" + ")
        return source, features

    def text_symbols(self, title: str, vocabulary: Any) -> list[str]:
        return super().text_symbols(self._title_parts(title)[0], vocabulary)

    def unknown_symbols(self, run: Run, source: Sequence[int], title: str) -> list[str]:
        features = self._title_parts(title)[1]
        names = features.split(self.feature_separator) if features else []
        symbols = [*names, *self.text_symbols(title, run.src_vocab)]
        return [s for s, n in zip(symbols, source[len(source) - len(symbols) :], strict=True) if n == UNK]

    def parse(
        self, line: str, origin: str, gold: bool, language: str | None = None, empty: bool = False
    ) -> StringsExample:
        columns, fields = self.columns, line.split("\t")
        expected = self.formats[True] if gold else " or ".join(self.formats)
        if "\r" in line and all("\t" in part for part in line.split("\r") if part):
            raise InputError(f"{origin}: lines must end with LF or CRLF, found CR alone: {shorten(line)}")
        target = None
        if len(fields) >= columns.width:
            target = normalize(fields[columns.target - 1], self.tgt_normalization).strip(" ")
        elif gold or len(fields) < columns.plain_width:
            comment = self.comment is None and line.startswith("#")
            hint = "; if this line is a comment, set data.comment, such as data.comment=#" if comment else ""
            raise InputError(f"{origin}: expected {expected}, found {count_columns(line)}: {shorten(line)}{hint}")
        else:
            fields.insert(columns.target - 1, "")
        source = normalize(fields[columns.source - 1], self.src_normalization).strip(" ")
        texts = [fields[column - 1] for column in columns.features]
        features = tuple(feature for text in texts for feature in split_features(text, self.feature_separator))
        if not self._symbols(source, self.src_symbols):
            raise InputError(f"{origin}: expected {expected}, found an empty {self._column_name(columns.source)}")
        answers = self.answers(target or "")
        if target is not None and not (empty or any(self._symbols(text.strip(), self.tgt_symbols) for text in answers)):
            raise InputError(f"{origin}: expected {expected}, found an empty {self._column_name(columns.target)}")
        if texts and not features:
            raise InputError(f"{origin}: expected {expected}, found empty features")
        if not all(features):
            rule = f"features separated by a single {describe(self.feature_separator)}"
            raise InputError(f"{origin}: expected {rule}, found {describe(' '.join(texts))}")
        return StringsExample(source, features, target, language, origin)

    def _column_name(self, column: int) -> str:
        return self.columns.names(self.header)[column - 1]

    @staticmethod
    def _symbols(text: str, symbols: str) -> list[str]:
        return [*split_symbols(text, separator_of(symbols))]

    def answers(self, reference: str) -> list[str]:
        if self.answer_separator is None:
            return [reference]
        return [answer for part in reference.split(self.answer_separator) if (answer := part.strip(" "))]

    def split(self, run: Run, config: StringsData, split: str, **options: Any) -> Lines:
        if (config.languages is None) != (self.languages is None):
            first, second = ("no languages", "several") if self.languages is None else ("several languages", "none")
            raise InputError(f"{run.folder}: a run with {first} can't be used on the data of a run with {second}")
        if options.get("language") is not None:
            self.check_language(run, options["language"])
        check_split(split)
        values = self.check_options(run, options)
        examples = self.examples_of(config, split, **values)
        self.check_known(examples, self.vocabularies(run))
        lines = self.encode(examples, self.vocabularies(run))
        return replace(lines, numbers=[int(e.origin.rpartition(":")[2]) - 1 for e in examples])  # lines of the file

    def input_line(self, title: str) -> str:
        columns, fields = self.columns, [""] * self.columns.width
        fields[columns.source - 1], features = self._title_parts(title)
        if columns.features:
            fields[columns.features[0] - 1] = features
        del fields[columns.target - 1]
        return "\t".join(fields[: columns.plain_width])

    def check_language(self, run: Run, language: str | None) -> None:
        """Raise an InputError if the run lacks the language; a run without languages accepts only None."""
        if self.languages and language not in self.languages:
            found = "none" if language is None else describe(language)
            known = ", ".join(self.languages)
            raise OptionError(
                lambda spell: f"{spell('language')} must be one of {known}, got {found}", where=run.folder
            )
        if not self.languages and language is not None:
            raise OptionError(
                lambda spell: (
                    f"{spell('language')} can't be used with a run without languages, got {describe(language)}"
                ),
                where=run.folder,
            )

    def encode(self, examples: Sequence[StringsExample], vocabularies: Vocabularies) -> Lines:
        """Encode examples as numbers. If there are several right answers, the corpus contains the first answer."""
        joiner, count = self.feature_separator, len(examples)
        titles = [f"{e.source} + {joiner.join(e.features)}" if e.features else e.source for e in examples]
        references = [self._reference(e.target or "") for e in examples]
        languages = [e.language for e in examples if e.language is not None]
        with_first_answers = [replace(e, target=self.first_answer(e.target or "")) for e in examples]
        corpus = encode_examples(with_first_answers, vocabularies.src, vocabularies.tgt)
        row_languages = languages if languages and len(languages) == count else None
        return Lines(corpus, references, titles, list(range(count)), count, row_languages)

    def normalized(self, text: str, run: Run) -> str:
        return normalize(text, self.tgt_normalization)

    def warn_variants(self, lines: Lines, name: str) -> None:
        groups: dict[tuple[str, str | None], list[set[str]]] = {}
        languages: Sequence[str | None] = lines.languages or [None] * len(lines.titles)
        for title, language, reference in zip(lines.titles, languages, lines.references, strict=True):
            groups.setdefault((title, language), []).append({*self.answers(reference)} or {""})
        right = {key: max(Counter(chain(*answers)).values()) for key, answers in groups.items()}
        if variants := [key for key, count in right.items() if count < len(groups[key])]:
            hint = (
                f"sources with several targets on different lines: {len(variants)}, such as "
                f"{describe(variants[0][0])}; at most {sum(right.values())} of {len(lines.titles)} lines can be right. "
                "To count each target as right, write all targets in one column (data.answer_separator)"
            )
            warnings.warn(f"{name}: {hint}", IgnoredInputWarning, stacklevel=2)

    def _reference(self, target: str) -> str:
        """Return the text of a target column with exactly one separator between symbols."""
        separator = separator_of(self.tgt_symbols)
        if separator in ("", GRAPHEMES):
            return target
        answers = (separator.join(split_symbols(answer, separator)) for answer in self.answers(target))
        return (self.answer_separator or "").join(answers)

    def utility(self, text: str, reference: str) -> float:
        """Return 1 minus the edit distance divided by the length of the longer string."""
        output, expected = (self._symbols(side, self.tgt_symbols) for side in (text, reference))
        return 1 - levenshtein(output, expected) / max(len(output), len(expected), 1)

    def score(self, texts: Sequence[str], references: Sequence[str], quick: bool = False) -> list[CorpusScore]:
        comparisons = [self._compare(text, reference) for text, reference in zip(texts, references, strict=True)]
        edits, symbols = [distance for distance, _ in comparisons], [length for _, length in comparisons]
        correct = [float(not distance) for distance in edits]
        return [
            CorpusScore.mean("accuracy", correct),
            CorpusScore.mean("word_error_rate", [1 - value for value in correct]),
            CorpusScore.mean("symbol_error_rate", edits, symbols),
            CorpusScore.mean("levenshtein", edits, [1] * len(edits)),  # with weights: a line may have more than 1 edit
        ]

    def _compare(self, text: str, reference: str) -> tuple[int, int]:
        """Return the edit distance to the nearest right answer, and the length of that answer."""
        output = self._symbols(text, self.tgt_symbols)
        answers = [self._symbols(answer, self.tgt_symbols) for answer in self.answers(reference) or [""]]
        return min((levenshtein(output, answer), len(answer)) for answer in answers)


def find_languages(config: StringsData) -> list[str] | None:
    """Return the languages of a configuration; for "all", search the folder for training files."""
    if config.languages != "all":
        return config.languages
    assert config.train is not None
    if config.train.count("{language}") != 1:
        raise InputError(
            f"data.train: with languages: all, the name must contain {{language}} once, found {config.train!r}"
        )
    before, after = Path(config.train).as_posix().split("{language}")
    pattern = re.compile(f"{re.escape(before)}([^/]+){re.escape(after)}")
    paths = glob.iglob(f"{glob.escape(before)}*{glob.escape(after)}", root_dir=config.folder)
    names = sorted(match[1] for path in paths if (match := pattern.fullmatch(Path(path).as_posix())))
    if not names:
        raise InputError(f"data.folder: no file {before}*{after} in {config.folder}{current_folder(config.folder)}")
    return names


def _interleave_languages(examples: list[StringsExample]) -> list[StringsExample]:
    """Return the examples with languages interleaved, so that the first n examples cover all languages evenly."""
    by_language: dict[str | None, list[StringsExample]] = {}
    for example in examples:
        by_language.setdefault(example.language, []).append(example)
    return [example for group in zip_longest(*by_language.values()) for example in group if example is not None]


def encode_examples(examples: Sequence[StringsExample], src: Vocabulary, tgt: Vocabulary) -> Corpus:
    """Encode examples as numbers; a missing target is empty."""
    sources = [src.encode(e.src_tokens(src.separator)) for e in examples]
    return Corpus(sources, [tgt.encode(e.target or "") for e in examples])


def normalize(text: str, form: Normalization | None) -> str:
    """Return a text in a Unicode normalization form; with None, return the text unchanged."""
    return text if form is None else unicodedata.normalize(form, text)


def split_features(text: str, separator: str) -> list[str]:
    """Return the features in a column. Spaces around features and a separator at the end are ignored.

    Commas or semicolons separate features in brackets. Each of these features keeps the name before the brackets.

    >>> split_features("V; PST;", ";"), split_features("N;ACC(PL;PSS(1,PL))", ";")
    (['V', 'PST'], ['N', 'ACC(PL)', 'ACC(PSS(1))', 'ACC(PSS(PL))'])
    """
    text = text.strip()
    while text.endswith(separator) and text != separator:
        text = text.removesuffix(separator).rstrip()
    return [feature for part in _split_outside_brackets(text, separator) for feature in _flatten(part)] if text else []


def _flatten(feature: str) -> list[str]:
    feature = feature.strip(" ")
    nested = NESTED.fullmatch(feature)
    if nested is None:
        return [feature]
    parts = (part for piece in _split_outside_brackets(nested[2], ";") for part in _split_outside_brackets(piece, ","))
    return [f"{nested[1]}({inner})" for part in parts for inner in _flatten(part)]


def _split_outside_brackets(text: str, separator: str) -> list[str]:
    """Split a text at the separators outside brackets; if brackets don't match, split at every separator."""
    parts = [""]
    for part in text.split(separator):
        is_open = parts[-1].count("(") > parts[-1].count(")")
        parts[-1:] = [parts[-1] + separator + part] if is_open else [parts[-1], part]
    return parts[1:] if parts[-1].count("(") == parts[-1].count(")") else text.split(separator)


def similarity(a: str, b: str) -> float:
    """Return the number of distinct character pairs that two texts share, divided by the smaller number of pairs.

    >>> similarity("walk", "walked"), similarity("walk", "V;PST")
    (1.0, 0.0)
    """
    pairs = [{text[i : i + 2] for i in range(len(text) - 1)} for text in (a, b)]
    return len(pairs[0] & pairs[1]) / max(1, min(map(len, pairs)))


@dataclass(frozen=True)
class StringsExample:
    """Pair of a source and a target, such as one cell of a paradigm, or a word and its phones.

    Args:
        source: Input string, such as a lemma or a written word.
        features: Features, such as morphological tags; may be empty.
        target: Output, such as an inflected form or phones; None if unknown.
        language: Name of the language; None if there is only one.
        origin: File and line.

    Example:
        >>> example = StringsExample("draw", ("V", "PST"), "drew", "english")
        >>> example.src_tokens()
        ['<lang:english>', '<tag:V>', '<tag:PST>', 'd', 'r', 'a', 'w']
        >>> example.tgt_tokens()
        ['d', 'r', 'e', 'w']
    """

    source: str
    features: tuple[str, ...]
    target: str | None = None
    language: str | None = None
    origin: str = field(default="", compare=False, repr=False)

    def src_tokens(self, separator: str = "") -> list[str]:
        """Return the source symbols: first the language if there is one, then the features, then the source string."""
        language = [f"{LANGUAGE}{self.language}>"] if self.language is not None else []
        return [
            *language,
            *(f"{FEATURE}{feature}>" for feature in self.features),
            *split_symbols(self.source, separator),
        ]

    def tgt_tokens(self, separator: str = "") -> list[str]:
        """Return the symbols of the target.

        Raises:
            ValueError: If the example has no target.
        """
        if self.target is None:
            raise ValueError(f"the example {describe(self.source)} has no target")
        return [*split_symbols(self.target, separator)]


def read_strings(path: Path | str, language: str | None = None, task: Strings = Strings()) -> list[StringsExample]:
    r"""Read the examples of a file.

    By default, a line is `source<TAB>target<TAB>features`, and `;` separates features. Blank lines, spaces around
    fields, and separators at the end of a line are ignored.

    Args:
        path: Path of the UTF-8 file.
        language: Language of the examples.
        task: Task that parses the lines.

    Returns:
        The examples in the order of the file.

    Raises:
        InputError: If the file is missing, empty or not UTF-8, or a line is malformed.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "english.tsv"
        >>> _ = path.write_text("draw\tdrew\tV;PST\n")
        >>> read_strings(path)
        [StringsExample(source='draw', features=('V', 'PST'), target='drew', language=None)]
    """
    return [task.parse(line, origin, True, language) for origin, line in task.example_lines(path)]


def english_verbs() -> dict[str, list[StringsExample]]:
    """Read the embedded English verbs.

    Returns:
        The splits "train", "dev" and "test", which share no lemma. Verbs whose irregular forms can't be derived from
        another verb are in "train". Verbs with two correct spellings are also in "train", with one row per spelling.
        The verbs "model" and "travel", which `tsallis demo` uses, are in no split.

    Example:
        >>> verbs = english_verbs()
        >>> sorted(verbs), verbs["dev"][0].src_tokens()[0]
        (['dev', 'test', 'train'], '<tag:V>')
    """
    return {
        split: [
            StringsExample(lemma, tuple(tags.split(";")), form, origin=f"data.embedded:{number}")
            for number, (lemma, form, tags) in enumerate(rows, 1)
        ]
        for split, rows in read_embedded("english-verbs").items()
    }
