"""Measure how much the scores of a model may change before a beam search returns other outputs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tsallis.models.modes import eval_mode
from tsallis.models.protocol import Decoder
from tsallis.nn.output import OutputLayer
from tsallis.search.checks import check_at_least_one, check_sources
from tsallis.search.patterns import check_sums
from tsallis.search.step import checked_log_probs, make_limits
from tsallis.symbols import BOS, EOS

SLOPE = 4 * math.log(2)
ROUNDING = 64  # rounding error of scores, in units of the dtype's epsilon times the largest score of the search


@dataclass(frozen=True)
class Stability:
    """Distance of the decisions of a beam search from rounding errors.

    Args:
        gap: The outputs and their order stay the same if every score changes by less.
        rounding: Estimate of the rounding error of a score: 64 times the epsilon of the scores' dtype, times the
            largest score of the search. Errors between batch sizes, numbers of threads, instruction sets and backends
            were below a third of this estimate in `benchmarks/stability.py`, with small recurrent models.

    Example:
        >>> Stability(gap=1e-3, rounding=1e-5).stable
        True
    """

    gap: float
    rounding: float

    @property
    def stable(self) -> bool:
        """Return whether the gap exceeds the rounding error."""
        return self.gap > self.rounding


@torch.no_grad()
def stability(
    model: Decoder,
    src: Tensor,
    src_lengths: Tensor,
    *,
    beam_size: int = 5,
    n_best: int = 1,
    max_length: int | None = None,
) -> list[Stability]:
    r"""Measure how much the scores of a model may change before beam search returns another list.

    If every score :math:`z_i` changes by at most :math:`\epsilon`, then the threshold of entmax does, too. Each
    :math:`z_i - \tau` changes by at most :math:`2 \epsilon`. The log-probability of a possible token then changes by at
    most :math:`4 \log(2) \, \epsilon \, p_i^{1 - \alpha}` if :math:`4 \epsilon` is at most every
    :math:`|z_i - \tau|`, and the support stays the same. The errors of tokens add up to an error
    :math:`\epsilon c(y)` of a prefix. A decision between two prefixes or outputs is certain if

    .. math:: \epsilon < \frac{\log p(y \mid x) - \log p(y' \mid x)}{c(y) + c(y')}

    The gap is the minimum over all decisions: between neighbors in the list, between the list and other outputs, and
    between each dropped prefix and either all prefixes that were kept at its step or the last listed output. A dropped
    prefix below that output can't lead to a listed one. For softmax, :math:`\alpha` is 1 and there is no threshold.

    The search runs the model's modules for one source at a time, so it is slower than :func:`beam_search`.

    Args:
        model: Model with the decoder protocol whose output is a normalized :class:`tsallis.nn.OutputLayer`.
        src, src_lengths: Symbols of the sources [batch, src], and number of symbols per source [batch].
        beam_size, n_best, max_length: Options of :func:`beam_search`, whose other options have their defaults.

    Returns:
        One :class:`Stability` per source.

    Raises:
        ValueError: The output layer is of another kind, a size is below 1, or probabilities are NaN or infinite.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> _ = torch.manual_seed(0)
        >>> model = RNNSeq2Seq(20, 15, d_model=8, output="sparsemax").double()
        >>> (found,) = stability(model, torch.tensor([[4, 5]]), torch.tensor([2]), n_best=2)
        >>> found.stable
        True
    """
    check_at_least_one(beam_size=beam_size, n_best=n_best)
    if type(model.output) is not OutputLayer:  # subclasses compute mixtures
        raise ValueError(f"stability needs a model with an OutputLayer, got {type(model.output).__name__}")
    check_sums("stability", model)
    results = []
    limits = make_limits(check_sources(model, src, src_lengths), max_length=max_length)
    with eval_mode(model):
        for row, source_limits in enumerate(limits):
            state = model.start(model.encode(src[row : row + 1], src_lengths[row : row + 1]))
            search = _Search(model, model.output.alpha, row, beam_size, n_best)
            search.run(state, source_limits.steps, src.device)
            results.append(Stability(min(search.margins(), default=math.inf), search.rounding))
    return results


class _Search:
    """Beam search of one source. Tensors [2, rows] hold log-probabilities and their errors per error of a score."""

    def __init__(self, model: Decoder, alpha: float, source: int, beam_size: int, n_best: int) -> None:
        self.model, self.alpha, self.source, self.beam_size, self.n_best = model, alpha, source, beam_size, n_best
        self.ended = torch.empty(2, 0, dtype=torch.float64)  # outputs, best first
        self.dropped: list[tuple[Tensor, Tensor]] = []  # prefixes [2, rows], and their margins [rows] below kept ones
        self.threshold_margin, self.rounding = math.inf, 0.0

    def run(self, state: Any, steps: int, device: torch.device) -> None:
        tokens, prefixes = torch.tensor([BOS]), torch.zeros(2, 1, dtype=torch.float64)
        for length in range(steps):
            values = self._step(step := self.model.step(state, tokens.to(device)), prefixes)
            ended = torch.cat([self.ended, values[:, :, EOS]], 1)
            order = ended[0].argsort(descending=True)[: int(ended[0].isfinite().sum())]
            self.ended = ended[:, order]
            if length + 2 > steps:  # a longer prefix could not end
                return
            values[0, :, EOS] = -torch.inf
            order = values[0].flatten().argsort(descending=True, stable=True)[: int(values[0].isfinite().sum())]
            ranked = values.flatten(1)[:, order]
            prefixes, discarded = ranked[:, : self.beam_size], ranked[:, self.beam_size :]
            self.dropped.append(
                (discarded, _margins(prefixes, discarded).amin(0) if discarded.shape[1] else discarded[0])
            )
            worst = self.ended[0, self.n_best - 1] if self.ended.shape[1] >= self.n_best else -math.inf
            promising = prefixes[0] > worst
            self.dropped.append((prefixes[:, ~promising], torch.zeros(int((~promising).sum()), dtype=torch.float64)))
            rows, order = order[: self.beam_size][promising], order[: self.beam_size][promising]
            if not len(order):
                return
            prefixes, tokens = prefixes[:, promising], order % values.shape[2]
            state = step.state.select((rows // values.shape[2]).to(device))

    def _step(self, step: Any, prefixes: Tensor) -> Tensor:
        """Return the values [2, rows, d_vocab] of all continuations, and record the scores' distance from zero."""
        log_probs = checked_log_probs(self.model, step.scores, [self.source] * len(step.scores)).cpu()
        scores = step.scores.double().cpu()
        largest = float(scores[scores.isfinite()].abs().amax()) if scores.isfinite().any() else 0.0
        self.rounding = max(self.rounding, ROUNDING * torch.finfo(step.scores.dtype).eps * largest)
        if self.alpha > 1:
            top, best = log_probs.max(-1, keepdim=True)
            threshold = scores.gather(-1, best) - torch.exp((self.alpha - 1) * top) / (self.alpha - 1)
            self.threshold_margin = min(self.threshold_margin, float((scores - threshold).abs().min()) / 4)
        return prefixes.unsqueeze(-1) + torch.stack([log_probs, SLOPE * torch.exp((1 - self.alpha) * log_probs)])

    def margins(self) -> Iterator[float]:
        """Yield the largest error of a score at which each decision stays the same."""
        yield self.threshold_margin
        listed, unlisted = self.ended[:, : self.n_best], self.ended[:, self.n_best :]
        yield from _margins(listed[:, :-1], listed[:, 1:]).diagonal().tolist()
        last = listed[:, self.n_best - 1 :]  # empty if the list is not full
        yield from _margins(last, unlisted).flatten().tolist()
        for prefixes, margins in self.dropped:
            yield from torch.cat([margins.unsqueeze(0), _margins(last, prefixes)]).amax(0).tolist()


def _margins(better: Tensor, worse: Tensor) -> Tensor:
    """Return the error of scores that makes each pair of prefixes [2, rows] and [2, others] equal [rows, others]."""
    return (better[0].unsqueeze(1) - worse[0]) / (better[1].unsqueeze(1) + worse[1])
