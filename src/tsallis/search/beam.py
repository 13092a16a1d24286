"""Beam search for every model: the beam holds no impossible hypothesis, may shrink, and bounds what it dropped."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tsallis.errors import check_choice
from tsallis.models.protocol import BestStep, Decoder, best_of_step
from tsallis.ops.arguments import BeamLimits, BeamOptions, BeamOutcome, BestSymbols
from tsallis.ops.choice import choose_beams
from tsallis.search.certificate import Hypothesis, Result
from tsallis.search.checks import check_at_least_one, check_sources
from tsallis.search.options import END_RULES, EndRule
from tsallis.search.step import Search, eval_mode, make_limits, refuse_nan
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

    A beam holds the `beam_size` most probable unfinished prefixes of each source; every output it finishes is kept,
    unless endings compete, as they do in other toolkits.
    `bound` is the best log-probability of any prefix that had to be dropped. As a prefix is never less probable than
    what it grows into, an output at least as probable as `bound` is the exact argmax; and where no prefix was dropped,
    the list is the whole distribution (Peters et al. 2019, sec. 4.1).

    Until a prefix is dropped, the search continues until none is left, which proves completeness. Afterwards prefixes
    that can't beat the `n_best` (or `beam_size`) best outputs leave the beam. Those of values that are not normalised
    (alpha-ReLU) leave it too, although some might still grow above these outputs.

    Args:
        model: anything with the decoder protocol of :mod:`tsallis.models.protocol`.
        src, src_lengths: symbols [batch, src] and their counts [batch].
        beam_size: prefixes kept a source.
        n_best: outputs returned a source; None: all that were finished.
        prefixes: the tokens that all outputs of a source begin with.
        min_length: of an output, without its end.
        max_length: of an output, without its end; None: twice the source's length and 20 after its prefix.
        length_penalty: outputs are ranked by their log-probabilities over this power of their lengths, the end counted
            (Wu et al. 2016, eq. 14, in its simplest form); 0: by their probabilities, 1: by the mean of a symbol's.
        end_rule: "every": all outputs that the beam's prefixes finish count. "competing": an output must end by one of
            the `beam_size` most probable continuations of its step, endings included; the certificate counts all others
            as dropped prefixes. With a beam of 1 that is greedy search.
        keep_attention: whether hypotheses carry their attention weights.
        text: Spells the tokens of an output, for vocabularies in which several sequences may spell one text. Results
            are then about texts: see :func:`tsallis.search.texts.merge_texts`.

    Returns:
        One :class:`Result` a source, whose certificate speaks of the outputs that begin so and are as long.

    Raises:
        ValueError: sizes below 1, another end rule, limits that no output keeps; a model whose probabilities are NaN.

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
    check_choice("end_rule", end_rule, END_RULES)
    lengths = check_sources(model, src, src_lengths)
    limits = make_limits(lengths, prefixes, min_length, max_length, length_penalty)
    if src.shape[0] == 0:
        return []
    beam_size, n_best = int(beam_size), None if n_best is None else int(n_best)
    options = BeamOptions(
        size=beam_size,
        n_best=max(beam_size, n_best or 1) if text is not None else n_best or beam_size,
        # One more than is returned: it bounds a list cut short. Of texts every segmentation counts.
        num_recorded=0 if n_best is None or text is not None else n_best + 1,
        length_penalty=float(length_penalty),
        competing_ends=end_rule == "competing",
    )
    beams = choose_beams(beam_size * len(lengths)).Beams(
        [BeamLimits(own.steps, own.free_from, own.prefix) for own in limits], options, BOS
    )
    with eval_mode(model):
        attention = _search(model, model.start(model.encode(src, src_lengths)), beams, keep_attention, src.device)
    outcome = beams.outcome()
    results = []
    for source, (length, own) in enumerate(zip(lengths, limits, strict=True)):
        ends = _best_ends(outcome.ends[source], None if text is not None else n_best, length_penalty)
        finished = [_hypothesis(outcome, end, attention, length) for end in ends]
        search = Search(src_length=length, limits=own, finished=finished)
        search.bound, search.gave_up = outcome.bounds[source], outcome.gave_up[source]
        search.unclear = outcome.unclear[source]
        results.append(search.result(model.output.normalized, n_best, text))
    return results


def _search(model: Decoder, state: Any, beams: Any, keep_attention: bool, device: torch.device) -> Tensor | None:
    """Make steps until no beam has a prefix; return weights of attention [rows of all steps, src], if they are kept.

    Raises:
        ValueError: probabilities that are NaN. A search that took them for zeros would prove what is not so.
    """
    weights = model.run_beams(state, beams, EOS, keep_attention) if hasattr(model, "run_beams") else None
    if weights is None:
        weights, searching = [], True
        while searching:
            only = beams.forced()
            only = only if only is None else only.to(device)
            # One symbol more than fits: the bound on what is dropped.
            step = _advance(model, state, beams.tokens().to(device), beams.size + 1, only, keep_attention)
            if keep_attention and step.attention is not None:
                weights.append(step.attention)
            searching = beams.follow(*_on_cpu(step))
            state = step.state.select(beams.parents().to(device)) if searching else state
    if beams.nan_source is not None:
        refuse_nan(beams.nan_source)
    return torch.cat(weights) if keep_attention else None


def _advance(model: Decoder, state: Any, token: Tensor, count: int, only: Tensor | None, keep: bool) -> BestStep:
    """Make one step as far as a beam reads it: the `count` best symbols of each row, of some rows `only` one [rows].

    Args:
        model: one that has a method `step_best` makes the step by it, any other by `step`.
        state, token: of the rows.
        count: symbols a row.
        only: [rows]: the symbol that must come, negative where any may; None: any may everywhere.
        keep: whether weights of attention are asked for.

    Raises:
        ValueError: a symbol that must come and is none of the model's.
    """
    if hasattr(model, "step_best"):
        result: BestStep = model.step_best(state, token, count, EOS, only, keep)
        return result
    return best_of_step(model.output, model.step(state, token), count, EOS, only)


def _on_cpu(step: BestStep) -> tuple[BestSymbols, Tensor]:
    """Return what the bookkeeping reads of a step."""
    on_cpu = step.best.log_probs.device.type == "cpu"
    return (step.best, step.num_attended) if on_cpu else copy_to_cpu(step.best, step.num_attended)


def copy_to_cpu(best: BestSymbols, num_attended: Tensor) -> tuple[BestSymbols, Tensor]:
    """Copy the results of a step from another device in one piece, which is waited for once."""
    count = best.log_probs.shape[1]
    columns = [best.log_probs, best.symbols, *(x.unsqueeze(1) for x in (best.ends, best.support, best.mass))]
    numbers = torch.cat([x.double() for x in (*columns, num_attended.unsqueeze(1))], 1).cpu()
    log_probs, symbols, rest = numbers.split([count, count, 4], 1)
    ends, support, mass, attended = rest.unbind(1)
    return BestSymbols(log_probs, symbols.long(), ends, support.long(), mass), attended.long()


def _best_ends(ends: list[tuple[float, int]], n_best: int | None, length_penalty: float) -> list[tuple[float, int]]:
    """Return the outputs that are returned or bound the list: one more, and those that equal the last of them."""
    if n_best is None or length_penalty or len(ends) <= n_best + 1:
        return ends
    least = heapq.nlargest(n_best + 1, (log_prob for log_prob, _ in ends))[-1]
    return [end for end in ends if end[0] >= least]


def _hypothesis(outcome: BeamOutcome, end: tuple[float, int], attention: Tensor | None, src_length: int) -> Hypothesis:
    """Read an output back from its last row."""
    log_prob, row = end
    rows = []
    while row >= 0:
        rows.append(row)
        row = outcome.parents[row]
    rows.reverse()
    return Hypothesis(
        tokens=tuple([outcome.tokens[row] for row in rows[1:]]),  # without the start
        log_prob=log_prob,
        support=tuple([outcome.support[row] for row in rows]),
        num_attended=tuple([outcome.num_attended[row] for row in rows]),
        attention=None if attention is None else attention[rows, :src_length],
    )
