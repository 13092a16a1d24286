"""Run beam search, which skips impossible prefixes and bounds the probability of dropped prefixes."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tsallis.errors import check_one_of
from tsallis.models.modes import eval_mode
from tsallis.models.protocol import BestStep, Decoder, best_of_step
from tsallis.ops.arguments import BeamLimits, BeamOptions, BeamOutcome, BestSymbols
from tsallis.ops.choice import choose_beams
from tsallis.search.certificate import Hypothesis, Result
from tsallis.search.checks import check_at_least_one, check_sources
from tsallis.search.options import END_RULES, EndRule
from tsallis.search.patterns import patterns_of, prefix_length
from tsallis.search.step import Search, make_limits, refuse_nan, refuse_rows
from tsallis.search.texts import Text
from tsallis.symbols import BOS, EOS


@torch.no_grad()
def beam_search(
    model: Decoder,
    src: Tensor,
    src_lengths: Tensor,
    *,
    beam_size: int = 5,
    n_best: int | None = None,
    prefixes: Sequence[Sequence[int]] | None = None,
    min_length: int = 0,
    max_length: int | None = None,
    length_penalty: float = 0.0,
    end_rule: EndRule = "every",
    keep_attention: bool = False,
    text: Text | None = None,
) -> list[Result]:
    r"""Find the most probable outputs of every source, with a certificate of what is proved about them.

    A beam holds the `beam_size` most probable unfinished prefixes of each source. Every finished output is kept, unless
    `end_rule` is "competing". `bound` is the largest log-probability of a dropped prefix. A prefix is at least as
    probable as its continuations, so an output at least as probable as `bound` is the exact argmax. If no prefix was
    dropped, the list is the whole distribution (Peters et al. 2019, sec. 4.1).

    If no prefix is dropped, the search continues until no prefix is left, and the result is complete. After the first
    dropped prefix, prefixes that can't beat the `n_best` (or `beam_size`) best outputs leave the beam. This rule also
    applies to values that are not normalized (alpha-ReLU), although continuations might then exceed these outputs.

    Args:
        model: Model with the decoder protocol, see :mod:`tsallis.models.protocol`.
        src, src_lengths: Symbols of the sources [batch, src], and number of symbols per source [batch].
        beam_size: Number of prefixes kept per source.
        n_best: Number of outputs returned per source; None returns all finished outputs.
        prefixes: Tokens that all outputs of a source start with.
        min_length: Minimum length of an output, without its end.
        max_length: Maximum length of an output, without its end; None: the prefix's length, plus twice the source's
            length, plus 20.
        length_penalty: Exponent a; outputs are ranked by log-probability / length**a, counting the end (Wu et al. 2016,
            eq. 14, simplified). 0 ranks by probability, 1 by the mean log-probability of a symbol.
        end_rule: "every" keeps all finished outputs. "competing" is the rule of other toolkits: it keeps an output only
            if its end is among the `beam_size` most probable continuations of the step, ends included. The certificate
            counts other outputs as dropped prefixes. With `beam_size` 1, this rule gives greedy search.
        keep_attention: Whether hypotheses contain their attention weights.
        text: Function that spells tokens, for vocabularies in which several sequences may spell one text. Hypotheses
            are then texts, see :func:`tsallis.search.texts.merge_texts`.

    Returns:
        One :class:`Result` per source. Its certificate is about the outputs that these options allow.

    Raises:
        ValueError: A size is below 1, the end rule is unknown, no output satisfies the limits, or probabilities are
            NaN or infinite.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> model = RNNSeq2Seq(20, 15, d_model=8, output="softmax")
        >>> src, lengths = torch.randint(4, 20, (2, 5)), torch.tensor([5, 3])
        >>> results = beam_search(model, src, lengths, beam_size=2, max_length=4)
        >>> [len(result.hypotheses) > 0 for result in results]
        [True, True]
        >>> results[0].certificate.kind in ("optimal", "bounded")  # softmax leaves no output impossible
        True
    """
    check_at_least_one(beam_size=beam_size, n_best=n_best)
    check_one_of("end_rule", end_rule, END_RULES)
    lengths = check_sources(model, src, src_lengths)
    limits = make_limits(lengths, prefixes, min_length, max_length, length_penalty, prefix_length(model))
    if src.shape[0] == 0:
        return []
    beam_size, n_best = int(beam_size), None if n_best is None else int(n_best)
    options = BeamOptions(
        size=beam_size,
        n_best=max(beam_size, n_best or 1) if text is not None else n_best or beam_size,
        # Record one more output than is returned, because this output bounds the discarded ones. Texts need all
        # segmentations.
        num_recorded=0 if n_best is None or text is not None else n_best + 1,
        length_penalty=float(length_penalty),
        competing_ends=end_rule == "competing",
    )
    beams = choose_beams(beam_size * len(lengths)).Beams(
        [BeamLimits(source_limits.steps, source_limits.free_from, source_limits.prefix) for source_limits in limits],
        options,
        BOS,
    )
    with eval_mode(model):
        attention = _search(model, model.start(model.encode(src, src_lengths)), beams, keep_attention, src.device)
    outcome = beams.outcome()
    results = []
    for source, (length, source_limits) in enumerate(zip(lengths, limits, strict=True)):
        ends = _best_ends(outcome.ends[source], None if text is not None else n_best, length_penalty)
        finished = [_hypothesis(outcome, end, attention, length) for end in ends]
        search = Search(src_length=length, limits=source_limits, finished=finished, patterns=patterns_of(model))
        search.bound, search.gave_up = outcome.bounds[source], outcome.gave_up[source]
        search.unclear = outcome.unclear[source]
        results.append(search.result(model.output.normalized, n_best, text))
    return results


def _search(model: Decoder, state: Any, beams: Any, keep_attention: bool, device: torch.device) -> Tensor | None:
    """Run steps until no beam has a prefix; return attention weights [rows of all steps, src] or None.

    Raises:
        ValueError: Probabilities are NaN or infinite. Treating them as zeros would make the proof wrong.
    """
    weights = model.run_beams(state, beams, EOS, keep_attention) if hasattr(model, "run_beams") else None
    if weights is None:
        weights, searching = [], True
        while searching:
            only = beams.forced()
            only = only if only is None else only.to(device)
            # Request one more symbol than the beam can hold, because this symbol bounds the probabilities of dropped
            # prefixes.
            tokens = beams.tokens()
            step = _advance(model, state, tokens.to(device), beams.size + 1, only, keep_attention)
            if keep_attention and step.attention is not None:
                weights.append(step.attention)
            searching = beams.follow(*_check_results(step, len(tokens)))
            state = step.state.select(beams.parents().to(device)) if searching else state
    if beams.nan_source is not None:
        refuse_nan(beams.nan_source)
    return torch.cat(weights) if keep_attention and weights else None


def _advance(model: Decoder, state: Any, token: Tensor, count: int, only: Tensor | None, keep: bool) -> BestStep:
    """Run one step, and return the `count` most probable symbols of each row.

    Args:
        model: Model; its method `step_best` is used if it exists, else `step`.
        state, token: Decoder state and last tokens of the rows.
        count: Number of symbols per row.
        only: Required symbol per row [rows]; negative numbers allow any symbol. None allows any symbol in every row.
        keep: Whether attention weights are needed.

    Raises:
        ValueError: A required symbol is not in the vocabulary.
    """
    if hasattr(model, "step_best"):
        result: BestStep = model.step_best(state, token, count, EOS, only, keep)
        return result
    return best_of_step(model.output, model.step(state, token), count, EOS, only)


def _check_results(step: BestStep, rows: int) -> tuple[BestSymbols, Tensor]:
    """Return the results of a step on the CPU, in the dtypes of the kernels.

    Raises:
        ValueError: The model did not return one row per token.
    """
    best, attended = step.best, step.num_attended
    sizes = [len(x) for x in (*best, attended)]
    wrong = [size for size in sizes if size != rows]
    if wrong or best.symbols.shape != best.log_probs.shape:
        refuse_rows((wrong or sizes)[0], rows)
    if best.log_probs.device.type != "cpu":
        return copy_to_cpu(best, attended)
    log_probs, symbols, ends, support, mass = best
    return BestSymbols(log_probs.double(), symbols.long(), ends.double(), support.long(), mass.double()), attended


def copy_to_cpu(best: BestSymbols, num_attended: Tensor) -> tuple[BestSymbols, Tensor]:
    """Copy the results of a step from another device in one transfer."""
    count = best.log_probs.shape[1]
    columns = [best.log_probs, best.symbols, *(x.unsqueeze(1) for x in (best.ends, best.support, best.mass))]
    numbers = torch.cat([x.double() for x in (*columns, num_attended.unsqueeze(1))], 1).cpu()
    log_probs, symbols, statistics = numbers.split([count, count, 4], 1)
    ends, support, mass, attended = statistics.unbind(1)
    return BestSymbols(log_probs, symbols.long(), ends, support.long(), mass), attended.long()


def _best_ends(ends: list[tuple[float, int]], n_best: int | None, length_penalty: float) -> list[tuple[float, int]]:
    """Return the `n_best` best outputs, then the next output and its ties, which bound all remaining outputs."""
    if n_best is None or length_penalty or len(ends) <= n_best + 1:
        return ends
    threshold = heapq.nlargest(n_best + 1, (log_prob for log_prob, _ in ends))[-1]
    return [end for end in ends if end[0] >= threshold]


def _hypothesis(outcome: BeamOutcome, end: tuple[float, int], attention: Tensor | None, src_length: int) -> Hypothesis:
    """Reconstruct an output from its last row."""
    log_prob, row = end
    rows = []
    while row >= 0:
        rows.append(row)
        row = outcome.parents[row]
    rows.reverse()
    return Hypothesis(
        tokens=tuple([outcome.tokens[row] for row in rows[1:]]),  # skip the start symbol
        log_prob=log_prob,
        support=tuple([outcome.support[row] for row in rows]),
        num_attended=tuple([outcome.num_attended[row] for row in rows]),
        attention=None if attention is None else attention[rows, :src_length],
    )
