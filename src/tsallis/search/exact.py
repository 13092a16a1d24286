"""Find the most probable outputs with a proof, by beam search and then exhaustive search if needed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tsallis.models.protocol import Decoder
from tsallis.search.beam import beam_search
from tsallis.search.best_first import exhaustive
from tsallis.search.certificate import Result
from tsallis.search.checks import check_at_least_one, check_goal, check_sources
from tsallis.search.options import EXPANSIONS
from tsallis.search.step import make_limits
from tsallis.search.texts import Text


@torch.no_grad()
def exact_search(
    model: Decoder,
    src: Tensor,
    src_lengths: Tensor,
    *,
    n_best: int = 1,
    beam_size: int = 5,
    budget: int = EXPANSIONS,
    time_limit: float | None = None,
    mass: float | None = None,
    prefixes: Sequence[Sequence[int]] | None = None,
    text: Text | None = None,
    **limits: Any,
) -> list[Result]:
    r"""Find the `n_best` most probable outputs of every source with a proof, also for softmax.

    A beam search runs first. If its certificate does not prove the outputs, the most probable prefixes that could beat
    them are expanded (Stahlberg and Byrne 2019, in the order of Peters et al. 2019, sec. 4.1), until no prefix of a
    normalized model is more probable than the answer

    .. math:: \hat y = \arg\max_y \, p(y \mid x)

    If the search ends early, it returns its best outputs, their bound, and the reason in :attr:`Result.stopped_by`.

    Args:
        model: Model with the decoder protocol, see :mod:`tsallis.models.protocol`.
        src, src_lengths: Symbols of the sources [batch, src] and their counts [batch].
        n_best: Number of outputs to prove and return.
        beam_size: Beam size of the beam search, at least `n_best`.
        budget, mass: Limits of the second search, see :func:`exhaustive`.
        time_limit: Seconds per source. It includes the beam search, which is not interrupted.
        prefixes, text: see :func:`beam_search`.
        limits: `min_length`, `max_length` and `length_penalty`, see :func:`beam_search`.

    Returns:
        One :class:`Result` per source.

    Raises:
        ValueError: See :func:`beam_search` and :func:`exhaustive`.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> model = RNNSeq2Seq(20, 15, d_model=8, output="softmax")
        >>> src, lengths = torch.randint(4, 20, (2, 5)), torch.tensor([5, 3])
        >>> [result.certificate.kind for result in exact_search(model, src, lengths, max_length=2)]
        ['optimal', 'optimal']
    """
    check_at_least_one(n_best=n_best, beam_size=beam_size, budget=budget)
    check_goal(mass, model.output.normalized, time_limit=time_limit)
    make_limits(check_sources(model, src, src_lengths), prefixes, **limits)
    beam_size, options = max(beam_size, n_best), {"text": text, **limits}
    results: list[Result] = []
    width = len(src) if time_limit is None else 1  # each source has its own clock
    for first in range(0, len(src), max(width, 1)):
        began, rows = time.monotonic(), slice(first, first + width)
        sources, starts = (src[rows], src_lengths[rows]), None if prefixes is None else prefixes[rows]
        part = beam_search(model, *sources, beam_size=beam_size, prefixes=starts, **options)
        left = None if time_limit is None else max(0.0, time_limit - (time.monotonic() - began))
        results += _prove(model, *sources, part, starts, n_best, budget=budget, time_limit=left, mass=mass, **options)
    return [result.truncated(n_best) for result in results]


def _prove(
    model: Decoder,
    src: Tensor,
    src_lengths: Tensor,
    results: list[Result],
    prefixes: Sequence[Sequence[int]] | None,
    n_best: int,
    **options: Any,
) -> list[Result]:
    """Replace results that don't prove `n_best` outputs by those of an exhaustive search."""
    doubtful = [i for i, x in enumerate(results) if x.certificate.kind != "complete" and len(x.proven) < n_best]
    if doubtful:
        index = torch.tensor(doubtful, device=src.device)
        known = [results[i] for i in doubtful]
        starts = None if prefixes is None else [prefixes[i] for i in doubtful]
        more = exhaustive(model, src[index], src_lengths[index], n_best=n_best, known=known, prefixes=starts, **options)
        for i, result in zip(doubtful, more, strict=True):
            results[i] = result
    return results
