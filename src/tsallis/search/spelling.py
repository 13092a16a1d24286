"""Compute the probability of a text: the sum over the token sequences that spell it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tsallis.models.modes import eval_mode
from tsallis.models.protocol import Decoder, unclear_rows
from tsallis.models.spellings import START, Place, Spellings
from tsallis.search.best_first import join_rows
from tsallis.search.certificate import Hypothesis, log_sum
from tsallis.search.checks import check_at_least_one
from tsallis.search.patterns import RestrictedModel
from tsallis.search.sampling import draw_uniform, line_seed, make_generators, sample
from tsallis.search.step import Expansion, Prefix, checked_log_probs
from tsallis.search.text_prefix import TextPrefix
from tsallis.search.texts import ROUNDING, TextProbability, join_segmentations
from tsallis.symbols import EOS

SPELLED = 2_000  # maximum number of prefixes to follow for the segmentations of a text
ROWS = 64  # maximum number of prefixes of a text per step
WINDOW = 16  # number of texts per batch
# Minimum probabilities of prefixes, as shares of the best prefix's probability at the same position. Less probable
# prefixes are postponed; if they matter, they are followed later, with the next smaller share.
LOG_SHARES = tuple(math.log(part) for part in (1e-6, 1e-9, 1e-12, 1e-15))


class _Item(NamedTuple):
    """Prefix of a spelling with its row in a decoder state."""

    prefix: Prefix
    place: Place
    state: Any  # state before the prefix's last token is read
    row: int


class Beginning(NamedTuple):
    """Sequence of tokens that spells a text at the start of an output.

    Args:
        prefix: Tokens and log-probability.
        state: State before the last token is read.
        row: Row in the state.
        exact: Whether the tokens spell exactly the text, and no more.
    """

    prefix: Prefix
    state: Any
    row: int
    exact: bool


@dataclass
class _Lattice:
    """Prefixes that spell the beginning of one text, by their positions in the text."""

    source: int
    text: bytes
    spellings: Spellings
    complete: bool  # whether `spellings` contains every spelling of the text, and all scores can be distinguished
    budget: int
    beginnings: list[Beginning] | None = None  # found sequences; None if outputs must end after the text
    waiting: dict[int, list[_Item]] = field(default_factory=dict)  # prefixes by position
    best: dict[int, float] = field(default_factory=dict)  # largest log-probability at each position
    found: list[Hypothesis] = field(default_factory=list)
    dropped: list[_Item] = field(default_factory=list)  # prefixes that were not followed so far
    passes: int = 1

    def push(self, item: _Item) -> None:
        if self.beginnings is not None and self.is_spelled(item):
            self.beginnings.append(Beginning(item.prefix, item.state, item.row, True))
            return
        position, log_prob = item.place.position, item.prefix.log_prob
        self.best[position] = max(self.best.get(position, -math.inf), log_prob)
        self.waiting.setdefault(position, []).append(item)

    def pop(self) -> list[_Item]:
        """Remove and return the best prefixes at the first position. Drop prefixes beyond the budget."""
        popped: list[_Item] = []
        while not popped and (self.waiting or self._resume()):
            popped = self._pop(min(self.waiting))
        return popped

    def _resume(self) -> bool:
        """Restore dropped prefixes if they matter and the budget allows it."""
        log_probs = [
            *(h.log_prob for h in self.found),
            *(beginning.prefix.log_prob for beginning in self.beginnings or ()),
        ]
        matters = self.log_dropped() > math.log(ROUNDING) + log_sum(log_probs)
        if not matters or self.budget <= 0 or self.passes == len(LOG_SHARES):
            return False
        self.passes += 1
        for item in self.dropped:
            self.waiting.setdefault(item.place.position, []).append(item)
        self.dropped = []
        return True

    def _pop(self, position: int) -> list[_Item]:
        items = sorted(self.waiting.pop(position), key=lambda item: -item.prefix.log_prob)
        width = max(1, self.budget // (len(self.text) - position + 1)) if self.budget > 0 else 1
        threshold = self.best[position] + LOG_SHARES[self.passes - 1]
        kept = [item for item in items[:width] if item.prefix.log_prob >= threshold]
        if self.budget <= -len(self.text):  # stop here, because symbols that spell nothing could repeat forever
            kept = []
        self.dropped += items[len(kept) :]
        if kept[ROWS:]:
            self.waiting[position] = kept[ROWS:]
        self.budget -= len(kept[:ROWS])
        return kept[:ROWS]

    def follow(self, item: _Item) -> Iterator[tuple[int, Place]]:
        """Yield the symbols that may follow a prefix, and the places after them."""
        return self.spellings.following(self.text, item.place)

    def is_spelled(self, item: _Item) -> bool:
        return item.place.position == len(self.text)

    def log_dropped(self) -> float:
        return log_sum(item.prefix.log_prob for item in self.dropped)

    def log_missing(self, normalized: bool) -> float:
        """Return the logarithm of an upper bound on the probability of sequences that were not followed."""
        if not normalized:
            return math.inf if self.dropped or not self.complete else -math.inf
        return self.log_dropped() if self.complete else 0.0

    def result(self, normalized: bool) -> TextProbability:
        ranked = join_segmentations(self.found).segmentations if self.found else ()
        return TextProbability(ranked, self.log_missing(normalized))


@torch.no_grad()
def score_texts(
    model: Decoder,
    src: Tensor,
    src_lengths: Tensor,
    texts: Sequence[str],
    spellings: Spellings,
    *,
    budget: int = SPELLED,
) -> list[TextProbability]:
    r"""Compute the probability of given texts: the sum over all token sequences that spell them.

    .. math:: p(t \mid x) = \sum_{y: \mathrm{text}(y) = t} p(y \mid x)

    Prefixes are followed in the order of their length in the text. A sparse model excludes most prefixes, so all
    possible ones can be followed. Beyond the budget, only the most probable prefixes are followed, and `missing` bounds
    the probability of the remaining prefixes.

    Args:
        model: Model with the decoder protocol, see :mod:`tsallis.models.protocol`.
        src: Symbols of the sources [batch, src].
        src_lengths: Number of symbols per source [batch].
        texts: One text per source.
        spellings: Spellings of the model's vocabulary.
        budget: Maximum number of prefixes to follow per text.

    Returns:
        One :class:`TextProbability` per text.

    Raises:
        ValueError: The number of texts is wrong, the budget is below 1, or probabilities are NaN or infinite.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> from tsallis.models.spellings import Spellings
        >>> class Pieces(list):
        ...     def spellings(self, numbers):
        ...         pieces = {number: self[number].encode() for number in numbers}
        ...         return pieces, pieces
        >>> spellings = Spellings(Pieces(["<pad>", "<s>", "</s>", "<unk>", "a", "b", "ab"]))
        >>> model = RNNSeq2Seq(20, 7, d_model=8, output="softmax")
        >>> (scored,) = score_texts(model, torch.tensor([[4, 5]]), torch.tensor([2]), ["ab"], spellings)
        >>> sorted(sequence.tokens for sequence in scored.segmentations), scored.exact
        ([(4, 5), (6,)], True)
    """
    check_at_least_one(budget=budget)
    if len(texts) != len(src):
        raise ValueError(f"texts must have one text per source, got {len(texts)} texts for {len(src)} sources")
    lattices = list[_Lattice]()
    with eval_mode(model):
        for first in range(0, len(src), WINDOW):
            window = slice(first, first + WINDOW)
            start = model.start(model.encode(src[window], src_lengths[window]))
            window_lattices = []
            for row, text in enumerate(texts[window]):
                encoded, is_complete = text.encode(), spellings.are_all_of(text)
                window_lattices.append(_Lattice(first + row, encoded, spellings, is_complete, budget))
                window_lattices[-1].push(_Item(Prefix(), START, start, row))
            _follow(model, window_lattices, src.device)
            lattices += window_lattices
    return [lattice.result(model.output.normalized) for lattice in lattices]


@torch.no_grad()
def spell_beginning(
    model: Decoder,
    src: Tensor,
    src_lengths: Tensor,
    text: str,
    spellings: Spellings,
    *,
    place: Place = START,
) -> tuple[list[Beginning], float]:
    """Return the token sequences that spell a text at the start of outputs of one source.

    The last token of a sequence may extend beyond the text. `place` is where the text begins: at the start of an
    output, or after a prompt.

    Returns:
        The sequences, and the logarithm of an upper bound on the probability of sequences that were not followed.
    """
    state = model.start(model.encode(src, src_lengths))
    lattice = _Lattice(0, text.encode(), spellings, spellings.are_all_of(text), SPELLED, [])
    lattice.push(_Item(Prefix(), place, state, 0))
    _follow(model, [lattice], src.device)
    return lattice.beginnings or [], lattice.log_missing(model.output.normalized)


def sample_after(
    model: Decoder,
    src: Tensor,
    src_lengths: Tensor,
    prefix: TextPrefix,
    seeds: Sequence[int],
    num_samples: int = 1,
    max_length: int | None = None,
) -> list[list[Hypothesis | None]]:
    """Sample outputs whose text starts with a text: draw a spelling of the text, and then what follows it.

    Arguments and results are those of :func:`sample`. Values that don't sum to 1 are normalized at every step, over the
    tokens that may follow.
    """
    if not model.output.normalized:
        restricted = RestrictedModel(model, prefix)
        return sample(restricted, src, src_lengths, num_samples, max_length=max_length, seeds=seeds)
    draws: list[list[Hypothesis | None]] = [[None] * num_samples for _ in seeds]
    for row, seed in enumerate(seeds):
        source = src[row : row + 1], src_lengths[row : row + 1]
        with eval_mode(model):
            beginnings, _ = spell_beginning(model, *source, prefix.text.decode(), prefix.spellings)
        log_probs = torch.tensor([beginning.prefix.log_prob for beginning in beginnings], dtype=torch.float64)
        cumulative = log_probs.softmax(0).cumsum(0)
        uniform = draw_uniform(num_samples, make_generators(1, [seed]))
        chosen = torch.searchsorted(cumulative, uniform, right=True).clamp(max=len(beginnings) - 1).tolist()
        for number, beginning in enumerate(beginnings):
            tokens = [node.token for node in beginning.prefix.chain()]
            places = [place for place, choice in enumerate(chosen) if choice == number]
            if places and len(tokens) <= (max_length or len(tokens)):
                options: Any = {"max_length": max_length, "seeds": [line_seed(seed, number)]}
                (drawn,) = sample(model, *source, len(places), prefixes=[tokens], **options)
                for place, draw in zip(places, drawn, strict=True):
                    draws[row][place] = draw
    return draws


def _follow(model: Decoder, lattices: Sequence[_Lattice], device: torch.device) -> None:
    """Follow the prefixes of all texts together, until none is left."""
    while rows := [(lattice, item) for lattice in lattices for item in lattice.pop()]:
        rows.sort(key=lambda pair: id(pair[1].state))
        joined = join_rows([item for _, item in rows], device)
        tokens = torch.tensor([item.prefix.token for _, item in rows], device=device)
        step = model.step(joined, tokens)
        log_probs, state = checked_log_probs(model, step.scores, [lattice.source for lattice, _ in rows]), step.state
        for (lattice, _), unclear in zip(rows, unclear_rows(step).tolist(), strict=True):
            lattice.complete &= not unclear
        expansion = Expansion(step.attention, log_probs, keep=False)
        children = [(row, *child) for row, (lattice, item) in enumerate(rows) for child in lattice.follow(item)]
        numbers = torch.tensor([(row, token) for row, token, _ in children], device=device, dtype=torch.long)
        values = log_probs[numbers[:, 0], numbers[:, 1]].tolist() if children else []
        for (row, token, place), value in zip(children, values, strict=True):
            if value > -math.inf:
                lattice, item = rows[row]
                extended = expansion.extend(item.prefix, row, token, item.prefix.log_prob + value)
                lattice.push(_Item(extended, place, state, row))
        for row, (lattice, item) in enumerate(rows):
            if lattice.beginnings is not None:
                for token in lattice.spellings.crossing(lattice.text, item.place):
                    if (value := float(log_probs[row, token])) > -math.inf:
                        extended = expansion.extend(item.prefix, row, token, item.prefix.log_prob + value)
                        lattice.beginnings.append(Beginning(extended, state, row, False))
        for row, ((lattice, item), value) in enumerate(zip(rows, log_probs[:, EOS].tolist(), strict=True)):
            if lattice.is_spelled(item) and value > -math.inf:
                total = item.prefix.log_prob + value
                lattice.found.append(expansion.finish(item.prefix, row, total))
