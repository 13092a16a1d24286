"""Text interface of a run: commands such as `tsallis translate` as Python methods."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tsallis.errors import IgnoredInputWarning, InputError, describe
from tsallis.search.options import SearchOptions
from tsallis.toolkit.inference import continuations
from tsallis.toolkit.inference.alignment import Links, align, check_alignment
from tsallis.toolkit.inference.answers import Answer, Form, Output, TextScore
from tsallis.toolkit.inference.continuations import Continuations
from tsallis.toolkit.inference.proofs import AT_LEAST, Proof, Rule
from tsallis.toolkit.inference.searching import check_for_run, choose, draw, search, spell_prefixes
from tsallis.toolkit.inference.suggestions import LISTED, Completer, Suggestions

if TYPE_CHECKING:
    from pathlib import Path

    from tsallis.models.batch import Batch
    from tsallis.search import GeneratedText, Hypothesis, Result, TokenScores
    from tsallis.search.texts import TextProbability
    from tsallis.toolkit.data.corpus import Corpus
    from tsallis.toolkit.inference.searching import Prefixes
    from tsallis.toolkit.tasks.base import Task
    from tsallis.toolkit.tasks.types import Lines
    from tsallis.toolkit.training import Run

BLOCK = 64  # number of lines that are answered together
ROWS = 128  # number of outputs that are scored or aligned together
LIKE = {"prove": "translate"}  # commands that support the same tasks as another command


def open_run(
    folder: Path | str, checkpoint: str = "best", device: str = "auto", ensemble_with: Sequence[Path | str] = ()
) -> TextRun:
    """Open a run to translate and score lines of text.

    Args:
        folder: Folder of the run.
        checkpoint: Checkpoint of each run, "best", "last" or "average".
        device: Device "cpu" or "cuda", or "auto" for a GPU if available.
        ensemble_with: Folders of other runs, which form an ensemble with the first run.

    Returns:
        The run with its model on the device.

    Raises:
        InputError: If the folder is not a run, the device is missing, `ensemble_with` is a single folder, or the runs
            have different tasks, vocabularies or image grids.

    Example:
        >>> open_run("runs/nowhere")
        Traceback (most recent call last):
        tsallis.errors.InputError: runs/nowhere: not a run folder (it has no model.json)
    """
    from tsallis.search import Ensemble
    from tsallis.toolkit.tasks.copying import copies
    from tsallis.toolkit.tasks.registry import task_of_run
    from tsallis.toolkit.training.distributed import device_kind
    from tsallis.toolkit.training.run_folder import load_run

    if isinstance(ensemble_with, str | bytes | os.PathLike):
        raise InputError(f"ensemble_with must be a list of run folders, got a single one: {describe(ensemble_with)}")
    paths = [os.path.realpath(path) for path in (folder, *ensemble_with)]
    if (repeated := next((path for i, path in enumerate(paths) if path in paths[:i]), None)) is not None:
        warnings.warn(f"{repeated}: this run was given twice; it counts twice", IgnoredInputWarning, stacklevel=2)
    kind = device_kind(device)
    run = load_run(folder, checkpoint)
    task = task_of_run(run)
    models = [run.model.to(kind)]
    for other in ensemble_with:
        member = load_run(other, checkpoint)
        task_of_run(member)
        same = {
            "task": run.task["task"] == member.task["task"],
            "source vocabulary": run.src_vocab == member.src_vocab,
            "target vocabulary": run.tgt_vocab == member.tgt_vocab,
            "grid of images": _grid_arguments(run.model) == _grid_arguments(member.model),
            "setting of model.copy": copies(run.model) == copies(member.model),
        }
        if differing := [name for name, equal in same.items() if not equal]:
            raise InputError(f"{other}: can't be in an ensemble with {folder}, because their {differing[0]} differs")
        models.append(member.model.to(kind))
    return TextRun(replace(run, model=Ensemble(models)) if ensemble_with else run, task)


def _grid_arguments(model: Any) -> list[Any]:
    """Return the arguments that set a model's image grid. Equal grids let an ensemble average attention."""
    arguments = getattr(model, "arguments", {})
    return [arguments.get(name) for name in ("image", "stages")]


@dataclass(frozen=True)
class TextRun:
    """Run with text as input and output: inflected forms, translations, labels or answers.

    Args:
        run: Run with the model and its vocabularies.
        task: Task of the run, which defines how lines are read.

    Example:
        >>> from tsallis.search import SearchOptions
        >>> run = open_run("runs/de-en")  # doctest: +SKIP
        >>> for answer in run.translate(["ein Hund rennt ."], SearchOptions(beam_size=5)):  # doctest: +SKIP
        ...     print(answer.text, answer.score, answer.certificate, answer.tokens)
    """

    run: Run
    task: Task

    @cached_property
    def search_options(self) -> SearchOptions:
        """Return the search options that the run's configuration sets.

        Raises:
            InputError: If the configuration can't be read.
        """
        from tsallis.toolkit.tasks.registry import run_config

        return run_config(self.run.folder).search.options

    @cached_property
    def text(self) -> Any:
        """Return the function that spells outputs; None if every text has a single segmentation."""
        return self.task.ambiguous_text(self.run.tgt_vocab)

    def check_command(self, command: str) -> None:
        """Raise if the run's task doesn't support a command.

        Args:
            command: Name of the command, such as "translate".

        Raises:
            InputError: If the command is not supported.
        """
        if (reason := self.task.refusals.get(LIKE.get(command, command))) is not None:
            raise InputError(
                f"{self.run.folder}: the command {command} does not support runs of the task {self.task.name}: {reason}"
            )

    def translate(
        self,
        lines: Iterable[str],
        options: SearchOptions | None = None,
        *,
        prefixes: Sequence[str] | None = None,
        tokens: bool = False,
        alignment: Links | None = None,
        language: str | None = None,
        images: Path | str | None = None,
    ) -> list[Answer]:
        """Find the outputs of lines, with the options, defaults and results of `tsallis translate`.

        Args:
            lines: Lines of input, such as sentences, or `source<TAB>features`.
            options: Options of the search, see :class:`tsallis.search.SearchOptions` (default: those of the run).
            prefixes: Prefix of each line's output, in place of the option `prefix`. An empty prefix allows any output.
            tokens: Whether to return the log-probability of each symbol.
            alignment: Kind of alignment to return: "largest" links each symbol to the position with the largest
                attention weight, "support" links it to all positions with a weight above zero.
            language: Language of the lines, for a multilingual run.
            images: Images that the lines refer to (default: those of the configuration's test split).

        Returns:
            One answer per line; a blank line has no output.

        Raises:
            InputError: If the command would reject a line or an option.
        """
        texts = _check_lines(lines, "lines")
        options = _check_options(options, SearchOptions())
        if options.prefix is not None and prefixes is not None:
            raise InputError(f"use either prefix or prefixes, not both: got prefix {describe(options.prefix)}")
        starts = _beginnings(prefixes, len(texts))
        self.check_translation(options, alignment)
        answers = []
        for first, run, encoded in self._blocks(texts, "lines", False, language=language, images=images):
            row_prefixes = [starts[first + number] for number in encoded.numbers]
            answers += run.answer(encoded, options, first, row_prefixes, "prefixes", tokens, alignment)
        return answers

    def check_translation(self, options: SearchOptions, alignment: str | None = None) -> None:
        """Raise if the run can't translate with these options.

        Args:
            options: Options of the search.
            alignment: Kind of alignment to return.

        Raises:
            InputError: If an option is not supported, or the run can't translate.
        """
        self.check_command("translate")
        check_for_run(options, self.run)
        options.with_defaults(self.search_options)
        check_alignment(self.task, self.run, alignment)

    def answer(
        self,
        lines: Lines,
        options: SearchOptions,
        first: int = 0,
        beginnings: Sequence[str] = (),
        name: str = "lines",
        tokens: bool = False,
        alignment: Links | None = None,
        probabilities: bool = True,
    ) -> list[Answer]:
        """Return the answers to encoded lines, including blank lines.

        Args:
            lines: Encoded lines.
            options: Options of the search.
            first: Number of the first line, from 0; draws depend on it.
            beginnings: Prefix of each row's output; an empty sequence if there are no prefixes.
            name: Name of the prefixes' file in error messages.
            tokens: Whether to return the log-probability of each symbol.
            alignment: Kind of alignment to return.
            probabilities: Whether to search for all segmentations of texts. Otherwise, probabilities of texts are lower
                bounds.

        Raises:
            InputError: If the run can't output a prefix.
        """
        from tsallis.toolkit.evaluation.text_probabilities import complete_results

        prefixes = self.spell(lines, options, first, beginnings, name)
        options = options.with_defaults(self.search_options)
        numbers = [first + number + 1 for number in lines.numbers]
        row_prefixes = list(beginnings) or [""] * len(numbers)
        form = Form(self.run.tgt_vocab, options)
        answers = {first + line: Answer(first + line, _form=form) for line in range(1, lines.count + 1)}
        if not len(lines.corpus):
            return list(answers.values())
        batch = batch_corpus(lines.corpus, self.run.model)
        results: list[Result | None] = [None] * len(numbers)
        rows: list[list[Hypothesis | None]]
        if options.mode == "sample":
            rows = draw(self.run, self.task, batch, options, numbers, prefixes)
        else:
            searched = search(self.run, self.task, batch, options, prefixes)
            if probabilities and self.text is not None:
                searched = complete_results(self.run.model, batch, searched, self.run.tgt_vocab)
            results, rows = [*searched], [[*result.hypotheses] for result in searched]
        outputs = self._outputs(lines.corpus, rows, options, tokens, alignment)
        for row, (number, row_outputs, result) in enumerate(zip(numbers, outputs, results, strict=True)):
            source = None if alignment is None else self._source(lines, row)
            choice = choose(self.run, self.task, options, row_outputs, result)
            unknown = self.task.count_unknown(lines.corpus.src[row])
            answers[number] = Answer(
                number, row_outputs, result, choice, unknown, source, replace(form, beginning=row_prefixes[row])
            )
        return list(answers.values())

    def spell(
        self, lines: Lines, options: SearchOptions, first: int, beginnings: Sequence[str], name: str
    ) -> Prefixes | None:
        """Return each row's prefix, or None if there are no prefixes; see :meth:`answer`.

        Raises:
            InputError: If the run can't output a prefix.
        """
        texts = list(beginnings) or [""] * len(lines.numbers)
        origins = [f"{name}:{first + number + 1}" for number in lines.numbers]
        return spell_prefixes(self.run, self.task, options.with_defaults(self.search_options), texts, origins)

    def _source(self, lines: Lines, row: int) -> tuple[str, ...]:
        symbols = [int(symbol) for symbol in lines.corpus.src[row]]
        return tuple(self.task.attention_symbols(self.run, symbols, (), lines.titles[row])["source"])

    def _outputs(
        self,
        corpus: Corpus,
        rows: Sequence[Sequence[Hypothesis | None]],
        options: SearchOptions,
        tokens: bool,
        alignment: Links | None,
    ) -> list[tuple[Output | None, ...]]:
        """Return the outputs of each row with their texts and requested details."""
        from tsallis.toolkit.data.corpus import Corpus

        penalty = options.length_penalty or 0.0
        flat = [(corpus.src[row], output) for row, part in enumerate(rows) for output in part if output is not None]
        pairs = [([int(symbol) for symbol in source], output.tokens) for source, output in flat]
        scores: list[Any] = [None] * len(flat)
        links: list[Any] = [None] * len(flat)
        for first in range(0, len(flat), ROWS) if tokens or alignment is not None else ():
            block, block_pairs = slice(first, first + ROWS), pairs[first : first + ROWS]
            corpus = Corpus([source for source, _ in block_pairs], [output for _, output in block_pairs])
            batch = batch_corpus(corpus, self.run.model)
            if tokens:
                scores[block] = self._score(batch, options)
            if alignment is not None:
                links[block] = align(self.task, self.run, batch, block_pairs, alignment)
        vocabulary: Any = self.run.tgt_vocab
        outputs = iter(
            [
                Output.of(output, vocabulary, penalty, scores=score, alignment=link)
                for (_, output), score, link in zip(flat, scores, links, strict=True)
            ]
        )
        return [tuple(None if output is None else next(outputs) for output in part) for part in rows]

    def _score(self, batch: Batch, options: SearchOptions) -> Any:
        """Return the log-probability of each symbol of outputs, at the temperature of the search or of the draws."""
        from tsallis.search import score_tokens
        from tsallis.search.temperature import with_temperature

        model = with_temperature(self.run.model, 1.0 if options.temperature is None else options.temperature)
        return score_tokens(model, batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out)

    def generate(self, prompts: Iterable[str] = ("",), options: SearchOptions | None = None) -> list[Continuations]:
        """Write texts after prompts, with the options, defaults and results of `tsallis generate`.

        Args:
            prompts: Beginnings of the texts; an empty string writes a text from its start.
            options: Options of the draws (mode "sample") or of a search for the most probable text (mode "beam"), see
                :class:`tsallis.search.SearchOptions` (default: draw one text).

        Returns:
            The texts of each prompt, with the certificate of a beam.

        Raises:
            InputError: If the command would reject a line or an option.
        """
        texts = _check_lines(prompts, "prompts")
        options = _check_options(options, SearchOptions(mode="sample"))
        self.check_generation(options)
        blocks = self._blocks(texts, "prompts", False)
        return [answer for first, run, encoded in blocks for answer in run.continue_lines(encoded, options, first)]

    def check_generation(self, options: SearchOptions) -> None:
        """Raise if the run can't generate texts with these options.

        Args:
            options: Options of draws or of a search.

        Raises:
            InputError: If an option is not supported, or the run is not a language model.
        """
        self.check_command("generate")
        continuations.check_generation(options)
        check_for_run(options, self.run)

    def continue_lines(self, lines: Lines, options: SearchOptions, first: int = 0) -> list[Continuations]:
        """Return the continuations of encoded prompts.

        Args:
            lines: Encoded prompts.
            options: Options of the draws or of the search.
            first: Number of the first prompt, from 0; draws depend on it.
        """
        if not len(lines.corpus):
            return []
        options = replace(
            options, max_length=options.max_length or self.search_options.max_length or continuations.TOKENS
        )
        batch = batch_corpus(lines.corpus, self.run.model)
        numbers = [first + number + 1 for number in lines.numbers]
        results: list[Result | None] = [None] * len(numbers)
        rows: Sequence[Sequence[GeneratedText | Hypothesis]]
        if options.mode == "sample":
            rows = continuations.draw_texts(self.run, batch, options, numbers)
        else:
            searched = continuations.search_texts(self.run, self.task, batch, options, self.search_options)
            results, rows = [*searched], [result.hypotheses[:1] for result in searched]
        answers = []
        for row, (number, generated, result) in enumerate(zip(numbers, rows, results, strict=True)):
            prompt, symbols = lines.titles[row], [int(symbol) for symbol in lines.corpus.src[row]]
            texts = tuple(continuations.continue_prompt(self.run, prompt, symbols, text) for text in generated)
            answers.append(Continuations(number, prompt, texts, result))
        return answers

    def suggest(
        self,
        lines: Iterable[str],
        typed: Sequence[str] | None = None,
        *,
        n_best: int = LISTED,
        language: str | None = None,
        images: Path | str | None = None,
    ) -> list[Suggestions]:
        """List the possible next symbols of partly typed outputs, like `tsallis suggest`.

        Args:
            lines: Lines of input, as for `translate`.
            typed: Beginning of each line's output (default: empty).
            n_best: Number of continuations to list.
            language: Language of the lines, for a multilingual run.
            images: Images that the lines refer to (default: those of the configuration's test split).

        Returns:
            One answer per line; a blank line has no continuations.

        Raises:
            InputError: If the command would reject a line or an option.
        """
        texts = _check_lines(lines, "lines")
        starts = _beginnings(typed, len(texts), "typed")
        num_listed = SearchOptions(n_best=n_best).n_best or LISTED
        answers = []
        for first, run, encoded in self._blocks(texts, "lines", False, language=language, images=images):
            completer = Completer(run.run, self.task, num_listed)
            rows = {number: row for row, number in enumerate(encoded.numbers)}
            for number in range(encoded.count):
                row, line = rows.get(number), first + number
                source = None if row is None else encoded.corpus.batch([row])
                answers.append(completer.suggest(source, starts[line], line + 1))
        return answers

    def prove(
        self,
        lines: Iterable[str],
        *,
        never: str | Sequence[str] | None = None,
        always: str | Sequence[str] | None = None,
        at_least: float = AT_LEAST,
        options: SearchOptions | None = None,
        language: str | None = None,
        images: Path | str | None = None,
    ) -> list[Proof]:
        """Prove for each line that no output matches a pattern, or that all do, like `tsallis prove`.

        Args:
            lines: Lines of input, as for `translate`.
            never: Pattern that no output may match: a regular expression, or a list of strings, of which an output must
                contain none.
            always: Pattern that every output must match, in place of `never`.
            at_least: Probability below which outputs are ignored.
            options: `budget`, `time_limit` and `max_length` of the search, in mode "all".
            language: Language of the lines, for a multilingual run.
            images: Images that the lines refer to (default: those of the configuration's test split).

        Returns:
            One proof per line that is not blank.

        Raises:
            InputError: If the command would reject a line or an option.
        """
        texts = _check_lines(lines, "lines")
        rule = Rule.of(never, always, at_least, _check_options(options, SearchOptions(mode="all")))
        blocks = self._blocks(texts, "lines", False, language=language, images=images)
        return [proof for first, run, encoded in blocks for proof in run.prove_lines(encoded, rule, first)]

    def prove_lines(self, lines: Lines, rule: Rule, first: int = 0) -> list[Proof]:
        """Return the proofs for encoded lines; blank lines have none.

        Args:
            lines: Encoded lines.
            rule: Rule that outputs must follow.
            first: Number of the first line, from 0.

        Raises:
            InputError: If the run does not support proofs, or its outputs don't sum to 1.
        """
        self.check_command("prove")
        if not self.run.model.output.normalized:
            raise InputError(f"{self.run.folder}: proofs need probabilities that sum to 1; those of alpha-ReLU do not")
        if not len(lines.corpus):
            return []
        numbers = [first + number + 1 for number in lines.numbers]
        return rule.prove(self.run, self.task, batch_corpus(lines.corpus, self.run.model), numbers, self.search_options)

    def score(
        self,
        sources: Iterable[str],
        targets: Iterable[str] | None = None,
        *,
        language: str | None = None,
        images: Path | str | None = None,
    ) -> list[TextScore]:
        """Score known outputs, like `tsallis score`.

        Args:
            sources: Lines of input; without targets, lines in the format of the command, such as
                `source<TAB>target`.
            targets: Output of each line.
            language: Language of the lines, for a multilingual run.
            images: Images that the lines refer to (default: those of the configuration's test split).

        Returns:
            One score per line: the log-probability, and whether the output is possible.

        Raises:
            InputError: If the command would reject a line or an option.
        """
        lines = _check_lines(sources, "sources")
        if targets is not None:
            lines = join_columns(self.task, lines, _check_lines(targets, "targets"))
        scores = []
        for first, run, encoded in self._blocks(lines, "sources", True, language=language, images=images):
            scores += run.score_lines(encoded, first)
        return scores

    def score_lines(self, lines: Lines, first: int = 0) -> list[TextScore]:
        """Return the scores of encoded lines with outputs; the `scores` of a blank line are None.

        Args:
            lines: Encoded lines.
            first: Number of the first line, from 0.
        """
        from tsallis.search import score_tokens
        from tsallis.toolkit.evaluation.text_probabilities import score_outputs

        vocabulary = self.run.tgt_vocab
        answers = [TextScore(first + line, (), None, _vocabulary=vocabulary) for line in range(1, lines.count + 1)]
        if not len(lines.corpus):
            return answers
        batch = batch_corpus(lines.corpus, self.run.model)
        scored: Sequence[tuple[TokenScores, TextProbability | None]]
        if self.text is not None:
            scored = score_outputs(self.run.model, batch, lines.references, vocabulary)
        else:
            token_scores = score_tokens(self.run.model, batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out)
            scored = [(score, None) for score in token_scores]
        for number, (score, text) in zip(lines.numbers, scored, strict=True):
            names = tuple(map(vocabulary.name, score.tokens))
            answers[number] = replace(answers[number], tokens=names, scores=score, text=text)
        return answers

    def for_run(self, run: Run) -> TextRun:
        """Return the same object for a run with an extended vocabulary, which copies unknown symbols of some lines."""
        return self if run is self.run else replace(self, run=run)

    def _blocks(
        self, lines: Sequence[str], name: str, gold: bool, **options: Any
    ) -> Iterator[tuple[int, TextRun, Lines]]:
        """Yield each block of encoded lines, with the number of its first line and the run that answers it."""
        from pathlib import Path

        from tsallis.toolkit.tasks.copying import copy_unknown

        if options.get("images") is not None:
            options["images"] = Path(options["images"])
        values = self.task.check_options(self.run, options)
        if gold and self.task.empty_outputs:
            values["empty"] = True
        for first in range(0, len(lines), BLOCK):
            encoded = self.task.read(lines[first : first + BLOCK], name, self.run, gold, first, **values)
            run, encoded = copy_unknown(self.task, self.run, encoded)
            yield first, self.for_run(run), encoded


def _check_options(options: SearchOptions | None, default: SearchOptions) -> SearchOptions:
    """Return the options, or the default if they are None.

    Raises:
        TypeError: If the argument is not search options.
    """
    if options is not None and not isinstance(options, SearchOptions):
        raise TypeError(f"options must be tsallis.search.SearchOptions, got {describe(options)}")
    return default if options is None else options


def batch_corpus(corpus: Corpus, model: Any) -> Batch:
    """Return all rows of a corpus as a batch on the model's device."""
    from tsallis.models.protocol import device_of

    return corpus.batch(range(len(corpus))).to(device_of(model))


def join_columns(task: Task, sources: Sequence[str], targets: Sequence[str]) -> list[str]:
    r"""Insert outputs into lines, in the column for reference outputs.

    Args:
        task: Task that defines the columns.
        sources: Lines without outputs.
        targets: Outputs.

    Raises:
        InputError: If the number of outputs is wrong, or the task's lines have no such column.

    >>> from tsallis.toolkit.tasks.strings import Strings
    >>> join_columns(Strings(None), ["draw\tV;PST"], ["drew"])
    ['draw\tdrew\tV;PST']
    """
    plain, gold = (columns.split("<TAB>") for columns in task.formats)
    if len(sources) != len(targets):
        raise InputError(
            f"targets must have one target per source, got {len(targets)} targets for {len(sources)} sources"
        )
    if len(gold) != len(plain) + 1:
        raise InputError(f"targets can't be used with the task {task.name}: each line is one {gold[-1]}")
    # Lines with outputs may rename source columns, too. The output is therefore the last column with a new name.
    column = max(number for number, name in enumerate(gold) if name not in plain)
    lines = []
    for number, (source, target) in enumerate(zip(sources, targets, strict=True), start=1):
        if "\t" in target:
            raise InputError(f"targets:{number}: expected one column, found {target.count(chr(9)) + 1}")
        fields = source.removesuffix("\r").split("\t")
        lines.append("\t".join([*fields[:column], target, *fields[column:]]))
    return lines


def _check_lines(lines: Iterable[str], name: str) -> list[str]:
    """Return lines as a list, without byte order marks at their starts.

    Raises:
        InputError: If the argument is a single string, or an item is not a string or has several lines.
    """
    if isinstance(lines, str | bytes):
        raise InputError(f"{name} must be a list of texts, got a single text: {describe(lines)}")
    texts = []
    for number, text in enumerate(lines, start=1):
        if not isinstance(text, str):
            raise InputError(f"{name}:{number}: expected a text, found {describe(text)}")
        if "\n" in text:
            raise InputError(f"{name}:{number}: expected one line, found a line break")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise InputError(f"{name}:{number}: expected text, found a lone surrogate")
        texts.append(text.removeprefix("\ufeff"))
    return texts


def _beginnings(prefixes: Sequence[str] | None, count: int, name: str = "prefixes") -> list[str]:
    """Return the prefix of each line's output; without `prefixes`, all prefixes are empty.

    Raises:
        InputError: If there is not one prefix per line.
    """
    if prefixes is None:
        return [""] * count
    texts = _check_lines(prefixes, name)
    if len(texts) != count:
        raise InputError(f"{name} must have one text per line, got {len(texts)} texts for {count} lines")
    return texts
