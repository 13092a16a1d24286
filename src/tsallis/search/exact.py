"""The most probable outputs with a proof: a beam search, and where it leaves a doubt an exhaustive one."""

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
    r"""Find the `n_best` most probable outputs of every source, and prove that they are, whatever the output's map.

    A beam search comes first. Where its certificate proves less, prefixes are expanded in the order of their
    probability, those alone that could still beat what is finished (Stahlberg and Byrne 2019, in the order of Peters et
    al. 2019, sec. 4.1): for a normalised model the answer is

    .. math:: \hat y = \arg\max_y \, p(y \mid x)

    once no prefix is left that is more probable. A search that has had its `budget`, its `time_limit` or enough `mass`
    returns the best outputs so far, with the bound on what it may have missed and with the reason in
    :attr:`Result.stopped_by`.

    Args:
        model: anything with the decoder protocol of :mod:`tsallis.models.protocol`.
        src: [batch, src] symbols.
        src_lengths: [batch] their counts.
        n_best: outputs that are to be proved, and returned.
        beam_size: of the beam search, at least `n_best`.
        budget: prefixes that the second search expands a source, at most.
        time_limit: Seconds per source. The beam search counts towards it, but is not interrupted.
        mass: the probability that is enough, of all outputs together that nothing left can beat; above 0 and below 1.
        prefixes: the tokens that all outputs of a source begin with.
        text: Spells the tokens of an output, for vocabularies in which several sequences may spell one text. Results
            are then about texts: see :func:`tsallis.search.texts.merge_texts`.
        limits: `min_length`, `max_length` and `length_penalty`, see :func:`beam_search`.

    Returns:
        One :class:`Result` a source.

    Raises:
        ValueError: as :func:`beam_search` and :func:`exhaustive`.

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
    results: list[Result] = []
    width = len(src) if time_limit is None else 1  # each source has a clock of its own
    for first in range(0, len(src), max(width, 1)):
        began = time.monotonic()
        rows = slice(first, first + width)
        starts = None if prefixes is None else prefixes[rows]
        size = max(beam_size, n_best)
        part = beam_search(model, src[rows], src_lengths[rows], beam_size=size, prefixes=starts, text=text, **limits)
        open_rows = [i for i, result in enumerate(part) if not _is_proved(result, n_best)]
        if open_rows:
            index = torch.tensor(open_rows, device=src.device)
            left = None if time_limit is None else max(0.0, time_limit - (time.monotonic() - began))
            more = exhaustive(
                model,
                src[rows][index],
                src_lengths[rows][index],
                n_best=n_best,
                budget=budget,
                time_limit=left,
                mass=mass,
                known=[part[i] for i in open_rows],
                prefixes=None if starts is None else [starts[i] for i in open_rows],
                text=text,
                **limits,
            )
            for i, result in zip(open_rows, more, strict=True):
                part[i] = result
        results += [result.truncated(n_best) for result in part]
    return results


def _is_proved(result: Result, n_best: int) -> bool:
    return result.certificate.kind == "complete" or len(result.proven) >= n_best
