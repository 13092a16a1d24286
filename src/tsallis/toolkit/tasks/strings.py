"""Transduction of strings: inflection (lemma and tags to form, CoNLL-SIGMORPHON 2018), or words to phones."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from tsallis.errors import InputError, OptionError, describe, shorten
from tsallis.symbols import FIRST, UNK
from tsallis.toolkit.config import Count, FileName, Section
from tsallis.toolkit.data.corpus import Corpus, Counts
from tsallis.toolkit.data.io import read_examples
from tsallis.toolkit.data.vocabulary import Vocabulary, split_symbols
from tsallis.toolkit.datasets.embedded import read_embedded
from tsallis.toolkit.evaluation.text_scores import CorpusScore, form_scores, levenshtein
from tsallis.toolkit.tasks.base import LONGEST, Task, refuse_long, split_columns, split_name
from tsallis.toolkit.tasks.sequences import SequenceTask, check_source
from tsallis.toolkit.tasks.types import Data, Lines, Vocabularies
from tsallis.toolkit.training.file_names import TASK
from tsallis.toolkit.training.run_folder import Run

COLUMNS = {True: ("lemma<TAB>tags", "lemma<TAB>form<TAB>tags"), False: ("word", "word<TAB>form")}  # with tags, without
TAG_SEPARATOR = ";"
SEPARATORS = {"characters": "", "spaces": " "}  # separators between the symbols of a string
LANGUAGE = "<lang:"  # beginning of the symbols for languages
TAG = "<tag:"
MOST_NAMED = 5  # maximum number of tags in a message

Symbols = Literal["characters", "spaces"]


class StringsData(Section):
    """Pairs of strings, in files of one or several languages, or embedded data."""

    task: Literal["strings"] = "strings"
    embedded: Literal["english-verbs"] | None = None
    folder: FileName = "."
    train: FileName | None = None  # file name in the folder; {language} is replaced by each language
    dev: FileName | None = None
    test: FileName | None = None
    # One language, a list of languages, or "all" for every language with a training file.
    languages: Annotated[list[FileName], Field(min_length=1)] | Literal["all"] | None = None
    tags: bool = True  # whether the last column of a line contains tags
    src_symbols: Symbols = "characters"  # symbols of the source: characters, or separated by spaces (phones)
    tgt_symbols: Symbols = "characters"
    max_length: Count = 256  # maximum number of symbols per side; longer training examples are left out

    @field_validator("languages", mode="before")
    @classmethod
    def _wrap_language(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) and value != "all" else value

    @model_validator(mode="after")
    def _check_source(self) -> StringsData:
        check_source(self, ("train", "dev", "test", "languages"), "english-verbs")
        if self.embedded is not None and not self.tags:
            raise ValueError(f"embedded: {self.embedded} has tags, found tags: false")
        return self


@dataclass(frozen=True)
class Strings(SequenceTask):
    """Task of turning a lemma and tags, or a word without tags, into a form.

    Lines are `lemma<TAB>tags`, with references `lemma<TAB>form<TAB>tags`. Without tags, lines are `word`, with
    references `word<TAB>form`.
    """

    languages: list[str] | None = None
    max_length: Annotated[int, Field(ge=1)] | None = None
    tags: bool = True
    src_symbols: Symbols = "characters"
    tgt_symbols: Symbols = "characters"

    name = "strings"
    Config = StringsData
    noun = "form"
    scores = ("accuracy", "levenshtein")
    options = ("language",)
    empty_outputs = True

    @property
    def columns(self) -> tuple[str, str]:
        return COLUMNS[self.tags]

    @property
    def separators(self) -> str:
        return TAG_SEPARATOR if self.tags else ""

    @classmethod
    def load(cls, config: StringsData) -> tuple[Task, Data]:
        examples, dev_examples = cls.read_split(config, "train"), cls.read_split(config, "dev")
        dev = _in_turn(list(enumerate(dev_examples)))
        separators = [SEPARATORS[config.src_symbols], SEPARATORS[config.tgt_symbols]]
        sides = [(e.src_tokens(separators[0]), e.tgt_tokens(separators[1])) for e in examples]
        rows = [row for row, (src, tgt) in enumerate(sides) if max(len(src), len(tgt)) <= config.max_length]
        train = [examples[row] for row in rows]
        if not train:
            limit = f"{config.max_length} symbols (data.max_length)"
            name = "data.embedded" if config.train is None else Path(config.folder) / config.train
            raise InputError(f"{name}: none of {len(examples)} examples has at most {limit}")
        task = _task_of(config)
        src, tgt = (Vocabulary.build([sides[row][i] for row in rows], separator=separators[i]) for i in range(2))
        vocabularies = Vocabularies(src, tgt)
        lines = task.encode([example for _, example in dev], vocabularies)
        refuse_long(lines.corpus, config.max_length, lambda row, _: _dev_origin(config, dev[row][0]))
        counts = Counts(len(examples), len(train), 0, len(examples) - len(train))
        return task, Data(replace(encode_examples(train, src, tgt), counts=counts), lines, vocabularies)

    @classmethod
    def examples(cls, config: StringsData, split: str, language: str | None = None) -> list[StringsExample]:
        """Read the examples of a split, with `language` only those of that language."""
        if config.embedded is not None:
            return english_verbs()[split]
        if language is not None:
            config = config.model_copy(update={"languages": [language]})
        task = _task_of(config)
        languages: Sequence[str | None] = task.languages or [None]
        pairs = zip(cls.files(config, split), languages, strict=True)
        return [example for path, name in pairs for example in read_strings(path, name, task)]

    @classmethod
    def files(cls, config: StringsData, split: str) -> list[Path]:
        if config.embedded is not None:
            return []
        path, languages = Path(config.folder) / split_name(config, split), find_languages(config)
        if languages is None:
            return [path]
        if "{language}" not in str(path):
            raise InputError(f"{path}: a path for several languages must contain {{language}}")
        return [Path(str(path).replace("{language}", language)) for language in languages]

    @classmethod
    def config_facts(cls, config: StringsData) -> dict[str, Any]:
        facts = super().config_facts(config)
        return {key: value for key, value in facts.items() if value != "all"}  # "all" depends on the files

    def check_run(self, run: Run) -> None:
        super().check_run(run)
        symbols = map(run.src_vocab.name, range(FIRST, len(run.src_vocab)))
        known = {symbol[len(LANGUAGE) : -1] for symbol in symbols if symbol.startswith(LANGUAGE)}
        languages = self.languages or []
        if not known.issubset(languages) or (languages and not known):
            difference = f"languages is {describe(languages)}, the model's symbols are of {describe(sorted(known))}"
            raise InputError(f"{run.folder / TASK}: {difference}: not this run's file; restore it")

    @property
    def limit(self) -> int:
        return self.max_length or LONGEST

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
        for number, line in enumerate(() if gold or not self.tags else lines, first + 1):
            if line.strip() and "\t" not in line:
                raise InputError(
                    f"{name}:{number}: expected {' or '.join(self.columns)}, found 1 column: {shorten(line)}"
                    f"{self._example(run, line.strip())}"
                )
        return super().read(lines, name, run, gold, first, language=language, **options)

    def _example(self, run: Run, lemma: str) -> str:
        """Return an example line with the run's most frequent tags, for a message."""
        tags = [
            s[len(TAG) : -1] for s in map(run.src_vocab.name, range(FIRST, len(run.src_vocab))) if s.startswith(TAG)
        ]
        if not tags:
            return ""
        known = f"{', '.join(tags[:MOST_NAMED])}{', ...' if len(tags) > MOST_NAMED else ''}"
        return f"; for example {shorten(lemma)[1:-1]}<TAB>{tags[0]} (the run's tags, joined by semicolons: {known})"

    def unknown_symbols(self, run: Run, source: Sequence[int], title: str) -> list[str]:
        lemma, tags = title, []
        if self.tags:
            lemma, _, joined = title.rpartition(" + ")
            tags = joined.split(TAG_SEPARATOR)
        symbols = [*tags, *self._split(lemma, self.src_symbols)]
        return [s for s, n in zip(symbols, source[len(source) - len(symbols) :], strict=True) if n == UNK]

    def parse(
        self, line: str, origin: str, gold: bool, language: str | None = None, empty: bool = False
    ) -> StringsExample:
        expected = self.columns[True] if gold else " or ".join(self.columns)
        fields = split_columns(line, origin, expected, (1 + self.tags, 2 + self.tags)[gold:])
        lemma, tags = fields[0], tuple(fields[-1].split(TAG_SEPARATOR)) if self.tags else ()
        form = fields[1] if len(fields) == 2 + self.tags else None
        if not self._split(lemma, self.src_symbols):
            raise InputError(f"{origin}: expected {expected}, found an empty {self.columns[0].partition('<TAB>')[0]}")
        if form is not None and not empty and not self._split(form, self.tgt_symbols):
            raise InputError(f"{origin}: expected {expected}, found an empty form")
        if not all(tags):
            raise InputError(f"{origin}: expected tags separated by single semicolons, found {describe(fields[-1])}")
        return StringsExample(lemma, tags, form, language)

    @staticmethod
    def _split(text: str, symbols: Symbols) -> list[str]:
        return [*split_symbols(text, SEPARATORS[symbols])]

    def split(self, run: Run, config: StringsData, split: str, **options: Any) -> Lines:
        if options.get("language") is not None:
            self.check_language(run, options["language"])
        if config.languages == "all":  # the languages that existed when the run was started
            config = config.model_copy(update={"languages": self.languages})
        return super().split(run, config, split, **options)

    def check_language(self, run: Run, language: str | None) -> None:
        """Raise an InputError unless the language is one of the run's languages, or None if the run has none."""
        if self.languages and language not in self.languages:
            reason = "none was given" if language is None else f"{describe(language)} is not among them"
            known = ", ".join(self.languages)
            raise OptionError(
                lambda spell: f"the run knows the languages {known}; {reason} ({spell('language')})", where=run.folder
            )
        if not self.languages and language is not None:
            raise OptionError(lambda _: f"the run knows no languages, {describe(language)} was given", where=run.folder)

    def encode(self, examples: Sequence[StringsExample], vocabularies: Vocabularies) -> Lines:
        titles = [f"{e.lemma} + {TAG_SEPARATOR.join(e.tags)}" if self.tags else e.lemma for e in examples]
        separator, count = SEPARATORS[self.tgt_symbols], len(examples)
        forms = [separator.join(split_symbols(e.form or "", separator)) for e in examples]
        languages = [e.language for e in examples if e.language is not None]
        corpus = encode_examples(examples, vocabularies.src, vocabularies.tgt)
        known = languages if languages and len(languages) == count else None
        return Lines(corpus, forms, titles, list(range(count)), count, known)

    def utility(self, text: str, reference: str) -> float:
        """Return 1 minus the edit distance divided by the length of the longer form."""
        output, right = self._split(text, self.tgt_symbols), self._split(reference, self.tgt_symbols)
        return 1 - levenshtein(output, right) / max(len(output), len(right), 1)

    def score(self, texts: Sequence[str], references: Sequence[str], quick: bool = False) -> list[CorpusScore]:
        outputs, rights = ([self._split(text, self.tgt_symbols) for text in side] for side in (texts, references))
        return [CorpusScore(name, value, "") for name, value in form_scores(outputs, rights).items()]


def _task_of(config: StringsData) -> Strings:
    options = {name: getattr(config, name) for name in ("max_length", "tags", "src_symbols", "tgt_symbols")}
    return Strings(find_languages(config), **options)


def find_languages(config: StringsData) -> list[str] | None:
    """Return the languages of a configuration; for "all", search the folder for training files."""
    if config.languages != "all":
        return config.languages
    assert config.train is not None
    if config.train.count("{language}") != 1:
        raise InputError(f"data.train: languages: all needs one {{language}} in the name, found {config.train!r}")
    before, after = Path(config.train).as_posix().split("{language}")
    pattern = re.compile(f"{re.escape(before)}([^/]+){re.escape(after)}")
    paths = glob.iglob(f"{glob.escape(before)}*{glob.escape(after)}", root_dir=config.folder)
    names = sorted(match[1] for path in paths if (match := pattern.fullmatch(Path(path).as_posix())))
    if not names:
        raise InputError(f"data.folder: no file {before}*{after} in {config.folder}")
    return names


def _dev_origin(config: StringsData, number: int) -> str:
    """Return the file and line of an example of the development set."""
    if config.embedded is not None:
        return f"data.embedded:{number + 1}"
    task, files = _task_of(config), Strings.files(config, "dev")
    examples = (read_examples(file, task.columns[True], 2 + task.tags, task.separators) for file in files)
    return [origin for lines in examples for origin, _ in lines][number]


def _in_turn(examples: list[tuple[int, StringsExample]]) -> list[tuple[int, StringsExample]]:
    """Return the examples with languages interleaved, so that the first n examples cover all languages evenly."""
    each: dict[str | None, list[tuple[int, StringsExample]]] = {}
    for number, example in examples:
        each.setdefault(example.language, []).append((number, example))
    return [example for turn in zip_longest(*each.values()) for example in turn if example is not None]


def encode_examples(examples: Sequence[StringsExample], src: Vocabulary, tgt: Vocabulary) -> Corpus:
    """Encode examples as numbers; the target is empty if the form is unknown."""
    sources = [src.encode(e.src_tokens(src.separator)) for e in examples]
    return Corpus(sources, [tgt.encode(e.form or "") for e in examples])


@dataclass(frozen=True)
class StringsExample:
    """Pair of input string and output form, such as one cell of a paradigm.

    Args:
        lemma: Input string, such as a citation form or a written word.
        tags: Morphological tags, if there are any.
        form: Output, such as an inflected form or phones; None if unknown.
        language: Name of the language; None if there is only one.

    Example:
        >>> example = StringsExample("draw", ("V", "PST"), "drew", "english")
        >>> example.src_tokens()
        ['<lang:english>', '<tag:V>', '<tag:PST>', 'd', 'r', 'a', 'w']
        >>> example.tgt_tokens()
        ['d', 'r', 'e', 'w']
    """

    lemma: str
    tags: tuple[str, ...]
    form: str | None = None
    language: str | None = None

    def src_tokens(self, separator: str = "") -> list[str]:
        """Return the source symbols: the language if there is one, the tags in their order, and the lemma."""
        language = [f"{LANGUAGE}{self.language}>"] if self.language is not None else []
        return [*language, *(f"{TAG}{tag}>" for tag in self.tags), *split_symbols(self.lemma, separator)]

    def tgt_tokens(self, separator: str = "") -> list[str]:
        """Return the symbols of the form.

        Raises:
            ValueError: If the example has no form.
        """
        if self.form is None:
            raise ValueError(f"the example {describe(self.lemma)} has no form")
        return [*split_symbols(self.form, separator)]


def read_strings(path: Path | str, language: str | None = None, task: Strings = Strings()) -> list[StringsExample]:
    r"""Read the examples of a file with lines `lemma<TAB>form<TAB>tags`, tags separated by `;`.

    Fields are not stripped: a form may end in a space. Blank lines and separators at the end of a line are ignored.

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
        [StringsExample(lemma='draw', tags=('V', 'PST'), form='drew', language=None)]
    """
    lines = read_examples(path, task.columns[True], 2 + task.tags, task.separators)
    return [task.parse(line, origin, True, language) for origin, line in lines]


def english_verbs() -> dict[str, list[StringsExample]]:
    """Read the embedded English verbs.

    Returns:
        The splits "train", "dev" and "test", which share no lemma. Verbs whose irregular forms can't be derived from
        another verb are in "train". Verbs with two correct spellings are there as well, with one row per spelling. The
        verbs "model" and "travel", which `tsallis demo` uses, are in no split.

    Example:
        >>> verbs = english_verbs()
        >>> sorted(verbs), verbs["dev"][0].src_tokens()[0]
        (['dev', 'test', 'train'], '<tag:V>')
    """
    return {
        split: [StringsExample(lemma, tuple(tags.split(TAG_SEPARATOR)), form) for lemma, form, tags in rows]
        for split, rows in read_embedded("english-verbs").items()
    }
