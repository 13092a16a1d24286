"""Beam search for every model: the beam holds no impossible hypothesis, may shrink, and bounds what it dropped."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tsallis.models.protocol import Decoder
from tsallis.search.certificate import Result
from tsallis.search.step import Expansion, Prefix, Search, advance, at_least_one, evaluating, make_limits
from tsallis.special_symbols import BOS

SORTED = 4096  # of more symbols only the largest are found: ties among vocabularies of words do not matter


@dataclass(kw_only=True)
class _Beam(Search):
    """The search of one source."""

    prefixes: list[Prefix] = field(default_factory=lambda: [Prefix()])  # best first


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
    keep_attention: bool = False,
) -> list[Result]:
    r"""Find the most probable outputs of every source, with a certificate of what is proved about them.

    A beam holds the `beam_size` most probable unfinished prefixes of each source; every output it finishes is kept.
    `bound` is the best log-probability of any prefix that had to be dropped. As a prefix is never less probable than
    what it grows into, an output at least as probable as `bound` is the exact argmax; and where no prefix was dropped,
    the list is the whole distribution (Peters et al. 2019, sec. 4.1).

    As long as nothing was dropped, the search goes on until no prefix is left, for that proves completeness. Once
    something was, prefixes that can't beat the `n_best` (or `beam_size`) best outputs leave the beam. Values that are
    not normalised (alpha-ReLU) may grow with length: none of their prefixes leaves before the length limit.

    Args:
        model: anything with the decoder protocol of :mod:`tsallis.models.protocol`.
        src: [batch, src] symbols.
        src_lengths: [batch] their counts.
        beam_size: prefixes kept a source.
        n_best: outputs returned a source; None: all that were finished.
        prefixes: the tokens that all outputs of a source begin with.
        min_length: of an output, without its end.
        max_length: of an output, without its end; None: twice the source's length and 20 after its prefix.
        length_penalty: outputs are ranked by their log-probabilities over this power of their lengths, the end counted
            (Wu et al. 2016, eq. 14, in its simplest form); 0: by their probabilities, 1: by the mean of a symbol's.
        keep_attention: whether hypotheses carry their attention weights.

    Returns:
        One :class:`Result` a source, whose certificate speaks of the outputs that begin so and are as long.

    Raises:
        ValueError: sizes below 1, limits that no output keeps; a model whose probabilities are NaN.

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
    at_least_one(beam_size=beam_size, n_best=n_best)
    lengths = src_lengths.tolist()
    limits = make_limits(lengths, prefixes, min_length, max_length, length_penalty)
    if src.shape[0] == 0:
        return []
    normalized = model.output.normalized
    with evaluating(model):
        state = model.start(model.encode(src, src_lengths))
        beams = [_Beam(src_length=n, limits=of_source) for n, of_source in zip(lengths, limits, strict=True)]
        owners = list(range(len(beams)))  # of the rows of the state; those of one source stand together
        tokens = torch.full((len(beams),), BOS, device=src.device)
        while owners:
            log_probs, attention, state = advance(model, state, tokens, owners)
            expansion = Expansion(attention, log_probs, keep_attention)
            parents = []
            for owner, row, candidates in _candidates(beams, owners, expansion, beam_size):
                beam = beams[owner]
                rows = _keep(beam, row, candidates, expansion, beam_size)
                parents += rows[: _shrink(beam, n_best or beam_size, normalized)]
            owners = [owners[row] for row in parents]
            following = [prefix.token for owner in dict.fromkeys(owners) for prefix in beams[owner].prefixes]
            if owners:
                state = state.select(torch.tensor(parents, device=src.device))
                tokens = torch.tensor(following, device=src.device)
    return [beam.result(normalized, n_best) for beam in beams]


Candidate = tuple[float, int, int]  # its log-probability's negative, its parent's place in the beam, its token


def _candidates(
    beams: list[_Beam], owners: list[int], expansion: Expansion, beam_size: int
) -> Iterator[tuple[int, int, list[Candidate]]]:
    """Finish what can end; then for every source its first row and its best prefixes of one token more, in order."""
    prefixes = [p for owner in dict.fromkeys(owners) for p in beams[owner].prefixes]
    totals, ends = expansion.totals(prefixes, [beams[owner].limits for owner in owners])
    best, order = _top(totals, beam_size + 1)  # one more than fits gives the bound on what is dropped
    values, tokens = best.tolist(), order.tolist()  # [rows, beam_size + 1]
    row = 0
    for owner, rows in itertools.groupby(owners):
        beam, count = beams[owner], len(list(rows))
        candidates: list[Candidate] = []
        for parent in range(count):
            if ends[row + parent] > -math.inf:
                hypothesis = expansion.finish(beam.prefixes[parent], row + parent, ends[row + parent], beam.src_length)
                beam.finished.append(hypothesis)
            pairs = zip(values[row + parent], tokens[row + parent], strict=True)
            candidates += [(-value, parent, token) for value, token in pairs if value > -math.inf]
        yield owner, row, sorted(candidates)[: beam_size + 1]
        row += count


def _top(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest values of each row and their columns; of equal ones the first, in every run."""
    width = values.shape[-1]
    if width > SORTED:
        best, order = values.topk(min(count, width))
    else:
        best, order = (x[:, :count] for x in values.sort(descending=True, stable=True))
    return best, order


def _keep(beam: _Beam, row: int, candidates: list[Candidate], expansion: Expansion, beam_size: int) -> list[int]:
    """Make the best candidates the beam, give up the others, and return the rows that those kept come from."""
    at_limit = beam.prefixes[0].length + 2 > beam.limits.steps  # a prefix one token longer could not even end
    selection = [] if at_limit else candidates[:beam_size]
    if len(candidates) > len(selection):
        beam.give_up(-candidates[len(selection)][0])
    beam.prefixes = [
        expansion.extend(beam.prefixes[parent], row + parent, token, -cost) for cost, parent, token in selection
    ]
    return [row + parent for _, parent, _ in selection]


def _shrink(beam: _Beam, n_best: int, normalized: bool) -> int:
    """Let prefixes go that can change neither the best outputs nor the certificate; return how many stay."""
    if beam.gave_up and normalized:
        worst = beam.nth_score(n_best)
        survivors = [p for p in beam.prefixes if beam.limits.ceiling(p.log_prob) > worst]
        if len(survivors) < len(beam.prefixes):
            beam.give_up(beam.prefixes[len(survivors)].log_prob)
            beam.prefixes = survivors
    return len(beam.prefixes)
