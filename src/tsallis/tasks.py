"""The tasks of runs: each reads lines, writes outputs and scores them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tsallis.data.classification import EXPECTED, LabelledText, parse_labelled, words
from tsallis.data.corpus import Corpus
from tsallis.data.image_store import ImageQuestion, ImageStore
from tsallis.data.inflection import COLUMNS, InflectionExample, parse_line
from tsallis.data.ragged import Ragged, type_for
from tsallis.data.visual import parse_questions, question_words
from tsallis.data.vocabulary import Vocabulary
from tsallis.errors import InputError, describe
from tsallis.evaluation.metrics import (
    CorpusScore,
    evaluate,
    exact_match,
    form_scores,
    timed_search,
    translation_scores,
)
from tsallis.search import Result
from tsallis.training.run_folder import Run, Symbols

LONGEST = 1024  # symbols of a line on which a search ends in seconds, where the run was trained on shorter ones


@dataclass(frozen=True)
class Lines:
    """Lines of input as numbers, and the outputs that are right where they are known."""

    corpus: Corpus
    references: list[str]
    titles: list[str]  # what a line asks for, in few words
    places: list[int]  # which line each row of the corpus is, from 0; there may be lines without symbols between them
    count: int  # of all lines
    languages: list[str] | None = None  # of each row, where lines have one


class Task(Protocol):
    """One kind of run."""

    noun: str  # what an output is called

    @property
    def columns(self) -> tuple[str, str]:
        """Return the columns of a line: without the right output, and with it."""
        ...

    @property
    def takes(self) -> Sequence[str]:
        """Options of `read` that not every task has."""
        ...

    def read(self, lines: Sequence[str], name: str, run: Run, gold: bool, first: int = 0) -> Lines:
        """Lines of the file `name` from number `first` on; with `gold` they hold the right output too.

        Raises:
            InputError: a malformed line, with its place.
        """
        ...

    def encode(self, examples: Sequence[Any], run: Run) -> Lines:
        """Examples of the task's kind as the run's numbers; those without symbols to read are no rows."""
        ...

    def scores(self, texts: Sequence[str], references: Sequence[str], quick: bool = False) -> list[CorpusScore]:
        """Score outputs; the first score selects the best model. With `quick`, the costly ones are left out."""
        ...


def task_of(facts: dict[str, Any]) -> Task:
    """Return the task a run folder's task.json describes."""
    name = facts.get("task", "inflection")
    if name == "inflection":
        return Inflection(facts.get("languages"), facts.get("max_length"))
    if name == "translation":
        return Translation(facts.get("tgt") or "", facts.get("max_length"))
    if name == "classification":
        return Classification(facts.get("max_length"))
    if name == "visual":
        return Visual(facts.get("images"), facts.get("size"), facts.get("max_length"))
    raise InputError(
        f"task.json: unknown task {describe(name)}, known: inflection, translation, classification, visual"
    )


def read_lines(run: Run, lines: Sequence[str], name: str, gold: bool, **options: Any) -> Lines:
    """Lines of the file `name` as the run's task reads them, with what was said beside them; None was not said.

    Raises:
        InputError: an option the task doesn't take, and what the task's `read` finds.
    """
    return line_reader(run, name, gold, **options)(lines)


def line_reader(run: Run, name: str, gold: bool, **options: Any) -> Callable[..., Lines]:
    """Return :func:`read_lines` for a file that is read in parts: it takes lines, and the number of their first."""
    task: Any = task_of(run.task)
    return partial(task.read, name=name, run=run, gold=gold, **check_options(run, options))


def check_options(run: Run, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that are not None.

    Raises:
        InputError: one that the run's task doesn't take.
    """
    values = {option: value for option, value in options.items() if value is not None}
    for option, value in values.items():
        if option not in task_of(run.task).takes:
            kind = run.task.get("task", "inflection")
            article = "an" if kind[0] in "aeiou" else "a"
            text = describe(str(value))
            raise InputError(f"{run.folder}: {article} {kind} run takes no --{option}, {text} was given")
    return values


def check_language(run: Run, language: str | None) -> None:
    """Raise an InputError unless the language is one that the run knows; None is for a run that knows none."""
    languages = run.task.get("languages")
    if languages and language not in languages:
        reason = "none was given" if language is None else f"{describe(language)} is not among them"
        raise InputError(f"{run.folder}: the run knows the languages {', '.join(languages)}; {reason} (--language)")
    if not languages and language is not None:
        raise InputError(f"{run.folder}: the run knows no languages, {describe(language)} was given")


@dataclass(frozen=True)
class Inflection:
    """A lemma and tags to a form: `lemma<TAB>tags`, with gold `lemma<TAB>form<TAB>tags`."""

    languages: list[str] | None = None
    max_length: int | None = None
    noun = "form"
    columns = ("lemma<TAB>tags", COLUMNS)
    takes = ("language",)

    def read(
        self, lines: Sequence[str], name: str, run: Run, gold: bool, first: int = 0, language: str | None = None
    ) -> Lines:
        if language is None and self.languages and len(self.languages) == 1:
            language = self.languages[0]
        check_language(run, language)
        examples = [parse_line(line, f"{name}:{i}", language, gold) for i, line in enumerate(lines, first + 1)]
        encoded = self.encode(examples, run)
        refuse_long(encoded.corpus, self.max_length or LONGEST, name, encoded.places, first)
        return encoded

    def encode(self, examples: Sequence[InflectionExample], run: Run) -> Lines:
        titles = [f"{e.lemma} + {';'.join(e.tags)}" for e in examples]
        symbols: Any = (run.src_vocab, run.tgt_vocab)
        forms, count = [e.form or "" for e in examples], len(examples)
        languages = [e.language for e in examples if e.language is not None]
        corpus = Corpus.encode(examples, *symbols)
        return Lines(corpus, forms, titles, list(range(count)), count, languages if len(languages) == count else None)

    def scores(self, texts: Sequence[str], references: Sequence[str], quick: bool = False) -> list[CorpusScore]:
        return [CorpusScore(name, value, "") for name, value in form_scores(texts, references).items()]


@dataclass(frozen=True)
class Translation:
    """A sentence to a sentence: one a line, with gold `source<TAB>target`. An empty line is nothing to translate."""

    tgt: str = ""  # the target language's code, for the tokeniser of BLEU
    max_length: int | None = None
    noun = "translation"
    columns = ("text", "source<TAB>target")
    takes = ()

    def read(self, lines: Sequence[str], name: str, run: Run, gold: bool, first: int = 0) -> Lines:
        encoded = self.encode([_pair(line, f"{name}:{i}", gold) for i, line in enumerate(lines, first + 1)], run)
        refuse_long(encoded.corpus, max(LONGEST, self.max_length or 0), name, encoded.places, first)
        missing = next((i for i, position in enumerate([*encoded.places, -1]) if i != position), 0)
        if gold and missing < encoded.count:
            raise InputError(f"{name}:{first + missing + 1}: the source holds nothing that can be read")
        return encoded

    def encode(self, examples: Sequence[tuple[str, str]], run: Run) -> Lines:
        """Pairs of sentences; a side that is not known is empty."""
        symbols: Any = (run.src_vocab, run.tgt_vocab)
        src, tgt = (vocab.encode_many([pair[i].strip() for pair in examples]) for i, vocab in enumerate(symbols))
        places = [i for i, row in enumerate(src) if row]
        corpus = Corpus([src[i] for i in places], [tgt[i] for i in places])
        titles, references = ([examples[i][side] for i in places] for side in range(2))
        return Lines(corpus, references, titles, places, len(examples))

    def scores(self, texts: Sequence[str], references: Sequence[str], quick: bool = False) -> list[CorpusScore]:
        names = ("bleu",) if quick else ("bleu", "chrf", "ter")
        return [
            *translation_scores(texts, references, self.tgt, names),
            CorpusScore("exact", exact_match(texts, references), ""),
        ]


@dataclass(frozen=True)
class Classification:
    """A document to its class: one a line, with gold `label<TAB>text`."""

    max_length: int | None = None
    noun = "label"
    columns = ("text", EXPECTED)
    takes = ()

    def read(self, lines: Sequence[str], name: str, run: Run, gold: bool, first: int = 0) -> Lines:
        if gold:
            return self.encode([parse_labelled(line, f"{name}:{i}") for i, line in enumerate(lines, first + 1)], run)
        return self.encode([LabelledText("", line) for line in lines], run)

    def encode(self, examples: Sequence[LabelledText], run: Run) -> Lines:
        src, tgt, count = run.src_vocab, run.tgt_vocab, len(examples)
        assert isinstance(src, Vocabulary) and isinstance(tgt, Vocabulary)
        titles, labels = [e.text for e in examples], [e.label for e in examples]
        return Lines(documents(examples, src, tgt, self.max_length), labels, titles, list(range(count)), count)

    def scores(self, texts: Sequence[str], references: Sequence[str], quick: bool = False) -> list[CorpusScore]:
        return [CorpusScore("accuracy", exact_match(texts, references), "")]


@dataclass(frozen=True)
class Visual:
    """A question about an image to its answer: `image<TAB>question`, with gold `image<TAB>question<TAB>answer`."""

    images: str | None = None  # where those are that lines name, if nothing else is said
    size: Sequence[int] | None = None  # height and width they are brought to
    max_length: int | None = None
    noun = "answer"
    columns = ("image<TAB>question", "image<TAB>question<TAB>answer")
    takes = ("images",)

    def read(
        self, lines: Sequence[str], name: str, run: Run, gold: bool, first: int = 0, images: Path | str | None = None
    ) -> Lines:
        source = images or self.images
        if source is None:
            raise InputError(f"{run.folder}: the run names no images, say where they are (--images)")
        if run.model.image_store is None:
            run.model.image_store = ImageStore()
        pictures = run.model.image_store.open(source, None if self.size is None else (self.size[0], self.size[1]))
        questions = parse_questions(lines, name, pictures, gold, first)
        encoded = self.encode([ImageQuestion(question, pictures) for _, question in questions], run)
        places = [number - first for number, _ in questions]
        return replace(encoded, places=places, count=len(lines))  # a header has no answer

    def encode(self, examples: Sequence[ImageQuestion], run: Run) -> Lines:
        src, tgt, count = run.src_vocab, run.tgt_vocab, len(examples)
        assert isinstance(src, Vocabulary) and isinstance(tgt, Vocabulary)
        if run.model.image_store is None:
            run.model.image_store = ImageStore()
        corpus = questions(examples, src, tgt, run.model.image_store, self.max_length)
        titles = [f"{e.question.image}: {e.question.question}" for e in examples]
        return Lines(corpus, [e.question.answer for e in examples], titles, list(range(count)), count)

    def scores(self, texts: Sequence[str], references: Sequence[str], quick: bool = False) -> list[CorpusScore]:
        return [CorpusScore("accuracy", exact_match(texts, references), "")]


def questions(
    examples: Sequence[ImageQuestion],
    src: Vocabulary,
    tgt: Vocabulary,
    image_store: ImageStore,
    max_length: int | None = None,
) -> Corpus:
    """Encode questions: rows of an image's number in the store, then symbols; targets as :func:`documents`."""
    numbers = image_store.add(examples)
    words = (src.encode(question_words(e.question.question)[:max_length] or [""]) for e in examples)
    rows = [[number, *row] for number, row in zip(numbers, words, strict=True)]
    answers = [tgt.encode([e.question.answer] if e.question.answer else []) for e in examples]
    return Corpus(Ragged.of(rows, type_for(max(len(src), len(image_store)))), answers)


def documents(
    examples: Sequence[LabelledText], src: Vocabulary, tgt: Vocabulary, max_length: int | None = None
) -> Corpus:
    """Documents and their labels as sequences, of which the targets are one symbol long, or none without a label."""
    rows = (src.encode(words(e.text)[:max_length] or [""]) for e in examples)
    return Corpus(Ragged.of(rows, type_for(len(src))), [tgt.encode([e.label] if e.label else []) for e in examples])


def refuse_long(corpus: Corpus, limit: int, name: str, places: Sequence[int] | None = None, first: int = 0) -> None:
    """Raise an InputError that names the first line with more symbols on a side than a search takes.

    Args:
        corpus: the lines' symbols.
        limit: symbols a side.
        name: of the file.
        places: which line each row is, counted from `first`; all of them by default.
        first: the number of the first line, from 0.
    """
    longest = corpus.lengths().amax(1).tolist() if len(corpus) else []
    for row, length in enumerate(longest):
        if length > limit:
            line = first + (row if places is None else places[row]) + 1
            raise InputError(f"{name}:{line}: {length} symbols, at most {limit} are read")


def _pair(line: str, where: str, gold: bool) -> tuple[str, str]:
    fields = line.split("\t")
    if not gold:
        return line, ""
    if len(fields) != 2 or not all(field.strip() for field in fields):
        raise InputError(f"{where}: expected source<TAB>target, found {len(fields)} columns or an empty one")
    return fields[0], fields[1]


def texts(results: Sequence[Result], vocab: Symbols) -> list[str]:
    """Return the best hypotheses as text; nothing where there is none."""
    return [vocab.text(r.best.tokens) if r.best else "" for r in results]


def score_values(pooled: Sequence[CorpusScore], each: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return scores by name; the first number says which model is best.

    With the scores of `each` language that is their mean, all languages counting the same ("macro").
    """
    values = {score.name: score.value for score in pooled}
    macro = {f"macro_{name}": sum(scores[name] for scores in each.values()) / len(each) for name in values if each}
    return {**macro, **values}


def language_scores(
    task: Task, texts: Sequence[str], references: Sequence[str], languages: Sequence[str] | None, quick: bool = False
) -> dict[str, dict[str, float]]:
    """Return the number of samples and the scores of each language, by its name; nothing where there is only one."""
    rows: dict[str, list[int]] = {}
    for row, language in enumerate(languages or ()):
        rows.setdefault(language, []).append(row)
    if len(rows) < 2:
        return {}
    by_language: dict[str, dict[str, float]] = {}
    for language in sorted(rows):
        own = rows[language]
        scores = task.scores([texts[i] for i in own], [references[i] for i in own], quick)
        by_language[language] = {"samples": len(own), **{score.name: score.value for score in scores}}
    return by_language


def evaluation(run: Run, lines: Lines, beam_size: int) -> dict[str, Any]:
    """Scores, loss, certificates, sparsity and speed on lines with known outputs, by name.

    Of several languages "languages" has the scores of each.
    """
    results, seconds = timed_search(run.model, lines.corpus, beam_size)
    task, outputs = task_of(run.task), texts(results, run.tgt_vocab)
    scores, each = (
        task.scores(outputs, lines.references),
        language_scores(task, outputs, lines.references, lines.languages),
    )
    report: dict[str, Any] = score_values(scores, each)
    signed = {score.name: score.signature for score in scores if score.signature}
    report.update({"signatures": signed} if signed else {})
    report.update({"languages": each} if each else {})
    return {**report, **evaluate(run.model, lines.corpus, results, seconds).as_dict()}
