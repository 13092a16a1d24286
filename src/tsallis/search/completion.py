"""Find the symbols that may follow a typed text, with their probabilities."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tsallis.models.protocol import Decoder, join
from tsallis.models.spellings import START, Place, Spellings
from tsallis.search.certificate import LARGEST_LOG, total_mass
from tsallis.search.checks import check_at_least_one, check_sources
from tsallis.search.spelling import spell_beginning
from tsallis.search.step import advance, eval_mode
from tsallis.search.texts import Text
from tsallis.symbols import EOS


@dataclass(frozen=True)
class Choice:
    """Possible continuation of a typed text.

    Args:
        tokens: the symbol that is chosen, after those that spell what is typed, and those that then follow for certain;
            without the end.
        prob: the probability of the choice, given what is typed and certain.
        ends: whether the output is over after the tokens.

    Example:
        >>> Choice(tokens=(7, 8), prob=0.5, ends=False).ends
        False
    """

    tokens: tuple[int, ...]
    prob: float
    ends: bool


@dataclass(frozen=True)
class Completions:
    """The continuations of the beginning of an output.

    Args:
        log_prob: of the beginning; -inf where the model holds it impossible.
        certain: the tokens that spell the beginning, and those that follow because no others are possible, without the
            end; none where nothing is certain.
        choices: continuations after those, the most probable first; one alone that ends at once is the end.
        support: the number of all choices.
        mass: their probability, listed or not: 1 where the model is normalised.
        missing: at most, the probability of choices that were not looked for, because what is typed can be spelled in
            too many ways; 0 otherwise.

    Example:
        >>> completions = Completions(-0.5, (7,), (Choice((8,), 0.9, False), Choice((), 0.1, True)), 2, 1.0, 0.0)
        >>> completions.possible
        True
    """

    log_prob: float
    certain: tuple[int, ...]
    choices: tuple[Choice, ...]
    support: int
    mass: float
    missing: float

    @property
    def possible(self) -> bool:
        """Return whether any output starts with the typed text."""
        return bool(self.choices)


class _Node(NamedTuple):
    """Prefix; nodes are ordered by their first two fields only."""

    cost: float  # the negative log-probability, given what is typed and certain
    number: int
    tokens: tuple[int, ...]  # since the last certain one
    state: Any  # state before the last token is read
    last: int

    @property
    def ends(self) -> bool:
        return self.last == EOS

    @property
    def spelled(self) -> tuple[int, ...]:
        """Return the tokens without the end."""
        return self.tokens[: len(self.tokens) - self.ends]


@torch.no_grad()
def complete(
    model: Decoder,
    src: Tensor,
    src_lengths: Tensor,
    typed: str,
    spellings: Spellings,
    text: Text,
    *,
    place: Place = START,
    n_best: int = 10,
    longest: int = 100,
) -> Completions:
    """Find what may follow the beginning of an output, and run ahead while there is only one continuation.

    A sparse model often leaves a single one, which is then certain (Peters et al. 2019, fig. 2). Every choice is
    followed by what is certain after it. The function follows every spelling of what is typed, also by tokens that go
    on behind it. Choices have their probabilities given what is typed; choices with the same text are one.

    Args:
        model: Model with the decoder protocol, see :mod:`tsallis.models.protocol`.
        src, src_lengths: symbols [1, src] and their count [1].
        typed: the beginning of the output's text.
        spellings: of the model's vocabulary.
        text: function that spells tokens.
        place: where the text begins: behind a prompt it has begun.
        n_best: choices that are listed.
        longest: tokens that are certain, at most.

    Returns:
        The completions. Their tokens include those that spell what is typed.

    Raises:
        ValueError: several sources, numbers below 1, NaN probabilities.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> class Letters(list):
        ...     def spellings(self, numbers):
        ...         letters = {number: self[number].encode() for number in numbers}
        ...         return letters, letters
        >>> letters = Letters(["<pad>", "<s>", "</s>", "<unk>", "a", "b"])
        >>> model = RNNSeq2Seq(20, 6, d_model=8, output="softmax", forbidden=(0, 1, 3))
        >>> source = torch.tensor([[4, 5]]), torch.tensor([2])
        >>> spell = lambda tokens: "".join(letters[token] for token in tokens)
        >>> completions = complete(model, *source, "a", Spellings(letters), spell)
        >>> completions.support, round(completions.mass, 6)  # a, b and the end
        (3, 1.0)
    """
    check_at_least_one(n_best=n_best, longest=longest)
    check_sources(model, src, src_lengths)
    if len(src) != 1:
        raise ValueError(f"completions are of one source, got {len(src)}")
    steps = _Steps(model, src.device)
    with eval_mode(model):
        beginnings, missing = spell_beginning(model, src, src_lengths, typed, spellings, place=place)
        if not beginnings:
            return Completions(-math.inf, (), (), 0, 0.0, missing)
        most = max(beginning.prefix.log_prob for beginning in beginnings)
        log_prob = most + math.log(math.fsum(math.exp(b.prefix.log_prob - most) for b in beginnings))
        nodes: list[_Node] = []
        for prefix, state, row, exact in beginnings:
            tokens = tuple(node.token for node in prefix.chain())
            state = state.select(torch.tensor([row], device=src.device))
            node = _Node(log_prob - prefix.log_prob, next(steps.numbers), tokens, state, prefix.token)
            nodes += steps.choices(node) if exact else [node]
        certain = () if missing else steps.run_ahead(nodes, longest)
        groups: dict[tuple[str, bool], list[_Node]] = {}
        for node in nodes:
            groups.setdefault((text([*certain, *node.spelled]), node.ends), []).append(node)
        ranked = sorted(groups.values(), key=_total, reverse=True)[:n_best]
        # Tokens that are certain after one of several spellings need not follow the others.
        alone = iter(steps.follow([group[0] for group in ranked if len(group) == 1], longest))
    choices: dict[tuple[str, bool], Choice] = {}
    for group in ranked:
        best = min(group)
        choice = next(alone) if len(group) == 1 else Choice(best.spelled, 0.0, best.ends)
        key = text([*certain, *choice.tokens]), choice.ends
        before = choices.get(key, replace(choice, prob=0.0))
        choices[key] = replace(before, prob=before.prob + _total(group))
    listed = tuple(sorted(choices.values(), key=lambda choice: -choice.prob))
    mass = total_mass((math.exp(-node.cost) for node in nodes), model.output.normalized)
    missing *= math.exp(min(-log_prob, LARGEST_LOG))
    return Completions(log_prob, certain, listed, len(groups), mass, missing)


def _total(nodes: Sequence[_Node]) -> float:
    return math.fsum(math.exp(-node.cost) for node in nodes)


class _Steps:
    """Run steps of a model for prefixes of one source."""

    def __init__(self, model: Decoder, device: torch.device) -> None:
        self.model = model
        self.device = device
        self.numbers = itertools.count(1)

    def read(self, state: Any, last: Sequence[int]) -> tuple[Tensor, Any]:
        """Return log-probabilities [rows, d_vocab] after the last tokens, and the new state."""
        rows = torch.arange(len(last), device=self.device)
        tokens = torch.tensor(last, device=self.device)
        log_probs, _, state = advance(self.model, state.select(rows), tokens, [0] * len(last))
        return log_probs, state

    def choices(self, node: _Node) -> list[_Node]:
        """Return the beginnings that are a token longer."""
        log_probs, state = self.read(node.state, [node.last])
        row = log_probs[0]
        return [
            _Node(node.cost - float(row[token]), next(self.numbers), (*node.tokens, token), state, token)
            for token in (row > -torch.inf).nonzero().squeeze(-1).tolist()
        ]

    def run_ahead(self, nodes: list[_Node], longest: int) -> tuple[int, ...]:
        """Replace a single node, in place, by what follows it, while there is only one; return the tokens of those."""
        certain = tuple[int, ...]()
        while len(nodes) == 1 and not nodes[0].ends and len(certain) < longest:
            certain += nodes[0].tokens
            nodes[:] = self.choices(nodes[0]._replace(tokens=(), cost=0.0))
        return certain

    def follow(self, nodes: Sequence[_Node], longest: int) -> tuple[Choice, ...]:
        """Return choices with the tokens that are certain after each."""
        tokens = [list(node.tokens) for node in nodes]
        active = [i for i, node in enumerate(nodes) if not node.ends]
        state = join([nodes[i].state for i in active]) if active else None
        while active:
            log_probs, state = self.read(state, [tokens[i][-1] for i in active])
            possible = log_probs > -torch.inf  # [rows, d_vocab]
            single = (possible.sum(-1) == 1).tolist()
            only = possible.int().argmax(-1).tolist()
            rows = []
            for row, i in enumerate(active):
                if single[row]:
                    tokens[i].append(only[row])
                    if only[row] != EOS and len(tokens[i]) < longest:
                        rows.append(row)
            active = [active[row] for row in rows]
            state = state.select(torch.tensor(rows, dtype=torch.long, device=self.device))
        ends = [part[-1] == EOS for part in tokens]
        parts = zip(tokens, nodes, ends, strict=True)
        return tuple(Choice(tuple(part[: len(part) - end]), math.exp(-node.cost), end) for part, node, end in parts)
