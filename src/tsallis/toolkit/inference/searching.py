"""Search and sample with a run: apply search options to its model and task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tsallis.errors import InputError, OptionError, shorten

if TYPE_CHECKING:
    from tsallis.models.batch import Batch
    from tsallis.search import Hypothesis, Result, RiskChoice, SearchOptions
    from tsallis.search.patterns import Pattern
    from tsallis.search.text_prefix import TextPrefix
    from tsallis.toolkit.inference.answers import Output
    from tsallis.toolkit.tasks.base import Task
    from tsallis.toolkit.training import Run

    Prefixes = Sequence[list[int] | TextPrefix | None]  # symbols, or texts if several sequences of symbols spell them


def check_for_run(options: SearchOptions, run: Run) -> None:
    """Raise if an option needs probabilities that sum to 1, but the run uses alpha-ReLU.

    Raises:
        OptionError: If a mass or temperature is given for a run with alpha-ReLU.
    """
    given = options.given
    name = "mass" if "mass" in given else "temperature"
    if name in given and given[name] != 1 and not run.model.output.normalized:
        raise OptionError(
            lambda spell: f"{spell(name)} needs probabilities that sum to 1; those of alpha-ReLU do not",
            where=run.folder,
        )


def search(
    run: Run, task: Task, batch: Batch, options: SearchOptions, prefixes: Prefixes | None = None
) -> list[Result]:
    """Search for the outputs of a batch.

    Args:
        run: Run with the model.
        task: Task of the run.
        batch: Batch of sources on the model's device.
        options: Options of the search, including those of the run's configuration.
        prefixes: Prefixes of each source's outputs, from :func:`spell_prefixes`.
    """
    from tsallis.search.patterns import RestrictedModel
    from tsallis.toolkit.evaluation.search_results import search_batch

    if options.returns == "best":
        options = replace(options, n_best=1)
    whole_model = restrict_model(run, task, run.model, options)
    results: dict[int, Result] = {}
    symbols = prefixes if prefixes and isinstance(prefixes[0], list) else None
    for prefix, rows in _rows_by_prefix(prefixes, len(batch.src)).items():
        model = whole_model if prefix is None else RestrictedModel(whole_model, prefix)
        sources = replace(batch, src=batch.src[rows], src_lengths=batch.src_lengths[rows])
        found = search_batch(model, sources, options, prefixes=symbols, text=task.ambiguous_text(run.tgt_vocab))
        results.update(zip(rows, found, strict=True))
    return [results[row] for row in range(len(batch.src))]


def _rows_by_prefix(prefixes: Prefixes | None, count: int) -> dict[TextPrefix | None, list[int]]:
    """Return the rows of each text prefix. All rows belong to None if prefixes are lists of symbols."""
    groups: dict[TextPrefix | None, list[int]] = {}
    for row in range(count):
        prefix = prefixes[row] if prefixes else None
        groups.setdefault(None if isinstance(prefix, list) else prefix, []).append(row)
    return groups


def run_pattern(run: Run, task: Task, pattern: str | Sequence[str], inverted: bool = False) -> Pattern:
    """Return a pattern over the symbols of a run.

    Raises:
        ValueError: If the pattern is invalid or too large, or contains text in a form that outputs never have.
    """
    from tsallis.search.patterns import pattern_of
    from tsallis.search.regex import literals

    if not isinstance(pattern, str):
        return pattern_of(tuple(task.normalized(text, run) for text in pattern), run.tgt_vocab, inverted)
    found = pattern_of(pattern, run.tgt_vocab, inverted)
    for text in literals(pattern):
        form = task.normalized(text, run)
        is_case = form.lower() == text.lower() and (len(text) == 1 or "(?i" in pattern)  # such as [A-Z]
        if form != text and not is_case:
            raise ValueError(f"outputs are normalised: write {form!a} instead of {text!a}")
    return found


def restrict_model(run: Run, task: Task, model: Any, options: SearchOptions) -> Any:
    """Return the model whose outputs match the pattern of the options; without a pattern, the model itself.

    Raises:
        OptionError: If the pattern is too large for the run's vocabulary.
    """
    from tsallis.search.patterns import restrict

    if options.pattern is None:
        return model
    try:
        return restrict(model, run_pattern(run, task, options.pattern))
    except ValueError as error:
        fault = str(error)
        raise OptionError(lambda spell: f"{spell('pattern')}: {fault}") from None


def draw(
    run: Run,
    task: Task,
    batch: Batch,
    options: SearchOptions,
    lines: Sequence[int],
    prefixes: Prefixes | None = None,
) -> list[list[Hypothesis | None]]:
    """Draw outputs of a batch, with the probabilities of their texts.

    Args:
        run: Run with the model.
        task: Task of the run.
        batch: Batch of sources on the model's device.
        options: Options of the draws, including those of the run's configuration.
        lines: Line numbers of the rows, from 1. The draws of a row depend only on its line number and the seed.
        prefixes: Prefixes of each source's outputs, from :func:`spell_prefixes`.
    """
    from tsallis.search import sample
    from tsallis.search.spelling import sample_after
    from tsallis.search.temperature import with_temperature
    from tsallis.toolkit.evaluation.text_probabilities import join_draws

    arguments = options.arguments
    model = restrict_model(run, task, with_temperature(run.model, arguments.pop("temperature", 1.0)), options)
    seeds = seeds_of(options, lines)
    draws: dict[int, list[Hypothesis | None]] = {}
    symbols: Any = prefixes if prefixes and isinstance(prefixes[0], list) else None
    for prefix, rows in _rows_by_prefix(prefixes, len(batch.src)).items():
        sources, part_seeds = (batch.src[rows], batch.src_lengths[rows]), [seeds[row] for row in rows]
        if prefix is None:
            drawn = sample(model, *sources, prefixes=symbols, seeds=part_seeds, **arguments)
        else:
            drawn = sample_after(model, *sources, prefix, part_seeds, **arguments)
        draws.update(zip(rows, drawn, strict=True))
    ordered = [draws[row] for row in range(len(batch.src))]
    return ordered if task.ambiguous_text(run.tgt_vocab) is None else join_draws(model, batch, ordered, run.tgt_vocab)


def seeds_of(options: SearchOptions, lines: Sequence[int]) -> list[int]:
    """Return the seed of each line's draws."""
    from tsallis.search.sampling import line_seed

    return [line_seed(options.seed or 0, line) for line in lines]


def choose(
    run: Run, task: Task, options: SearchOptions, outputs: Sequence[Output | None], result: Result | None = None
) -> RiskChoice | None:
    """Return the minimum-risk choice among the outputs of a search or draws, or None if not requested.

    Args:
        run: Run of the outputs.
        task: Task of the run, which defines the utility of an output.
        options: Options of the search or of the draws.
        outputs: Outputs, in the order of the search or of the draws.
        result: Result of the search; None for draws.
    """
    from tsallis.search import minimum_risk
    from tsallis.search.certificate import LARGEST_LOG
    from tsallis.search.texts import missing_probability

    if options.returns != "choice":
        return None
    candidates = [output for output in outputs if output is not None]
    weights, missing = [1.0] * len(candidates), math.inf if result is None else 0.0
    if result is not None and candidates:
        # Divide by the largest probability, because probabilities of long outputs can underflow.
        largest = max(output.log_prob for output in candidates)
        weights = [math.exp(output.log_prob - largest) for output in candidates]
        # If the certificate has a reason why it proves nothing, the sum of the probabilities proves nothing either.
        bounded = run.model.output.normalized and result.certificate.reason is None
        complete = result.certificate.kind == "complete"
        missing = 0.0 if complete else missing_probability(result.mass) if bounded else math.inf
        if missing < math.inf:
            missing *= math.exp(min(-largest, LARGEST_LOG))
    return minimum_risk([output.text for output in candidates], weights, task.utility, missing)


def spell_prefixes(
    run: Run, task: Task, options: SearchOptions, beginnings: Sequence[str], origins: Sequence[str]
) -> Prefixes | None:
    """Return each row's prefix, or None if there are no prefixes.

    A prefix is its symbols, or its text if several sequences of symbols can spell it.

    Args:
        run: Run with the vocabulary.
        task: Task of the run, which encodes the prefixes.
        options: Options, possibly with a common prefix of all rows.
        beginnings: Prefix of each row; not used if there is a common prefix.
        origins: Location of each row's prefix for error messages.

    Raises:
        OptionError: If the common prefix has a symbol that the run can't output, or exceeds the maximum length.
        InputError: If the prefix of a row has such a symbol or exceeds the maximum length.
    """
    rows: list[tuple[str, str | None]] = [*zip(beginnings, origins, strict=True)]
    if options.prefix is not None:
        rows = [(options.prefix, None)] * len(rows)
    elif not any(beginnings):
        return None
    symbols = [_spell_prefix(run, task, options, *row) for row in rows]
    if task.ambiguous_text(run.tgt_vocab) is None:
        return symbols
    from tsallis.models.spellings import spellings_of
    from tsallis.search.text_prefix import TextPrefix

    spellings = spellings_of(run.tgt_vocab)
    known: dict[str, TextPrefix | None] = {"": None}
    for (text, _), part in zip(rows, symbols, strict=True):
        if text not in known:
            known[text] = TextPrefix(typed_text(run, task, text)[1], spellings, len(part))
    return [known[text] for text, _ in rows]


def typed_text(run: Run, task: Task, typed: str, prompt: Sequence[int] = ()) -> tuple[list[int], str]:
    """Return the complete symbols of a typed text, and the normalized text, as it follows a prompt."""
    from tsallis.toolkit.data.subwords import SPACE

    vocabulary: Any = run.tgt_vocab
    tokens, incomplete = task.split_typed(typed, run)
    text = decode_after(vocabulary, tokens, prompt) + incomplete.replace(SPACE, " ")
    if not (tokens or prompt):  # the first word has no visible space before it
        text = text.removeprefix(getattr(vocabulary, "separator", "") or " ")
    return tokens, text


def decode_after(vocabulary: Any, tokens: Sequence[int], prompt: Sequence[int] = ()) -> str:
    """Return the text that tokens add to a prompt."""
    return str(vocabulary.decode([*prompt, *tokens]))[len(vocabulary.decode(prompt)) :]


def _spell_prefix(run: Run, task: Task, options: SearchOptions, text: str, origin: str | None) -> list[int]:
    """Return the symbols of a prefix; `origin` is its location in the input, or None for the option `prefix`."""
    from tsallis.symbols import UNK

    symbols = task.spell(text, run) if text else []
    fault = ""
    if UNK in symbols:
        fault = f"the text {shorten(text)} contains symbols that the run never outputs"
    elif options.max_length is not None and len(symbols) > options.max_length:
        fault = (
            f"the text {shorten(text)} must have at most max_length {options.max_length} symbols, got {len(symbols)}"
        )
    if fault and origin is None:
        raise OptionError(lambda spell: f"{spell('prefix')}: {fault}")
    if fault:
        raise InputError(f"{origin}: {fault}")
    return symbols
