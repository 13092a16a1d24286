"""Find the symbols that may follow a typed text, with their probabilities."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tsallis.models.modes import eval_mode
from tsallis.models.protocol import Decoder, join, unclear_rows
from tsallis.models.spellings import START, Place, Spellings
from tsallis.search.certificate import exp_above_zero, log_sum, total_mass
from tsallis.search.checks import check_at_least_one, check_sources
from tsallis.search.patterns import UNKNOWN, check_sums, check_unrestricted
from tsallis.search.spelling import spell_beginning
from tsallis.search.step import checked_log_probs
from tsallis.search.texts import Text
from tsallis.symbols import BOS, EOS, PAD, UNK


@dataclass(frozen=True)
class Choice:
    """Possible continuation of a typed text.

    Args:
        tokens: Tokens of the continuation, without the end. They may begin with the spelling of the typed text, and
            include the tokens that are certain after the choice.
        prob: Probability of the choice, given the typed text and the certain tokens; a lower bound if
            :attr:`Completions.missing` is not 0.
        ends: Whether the output ends after the tokens.

    Example:
        >>> Choice(tokens=(7, 8), prob=0.5, ends=False).ends
        False
    """

    tokens: tuple[int, ...]
    prob: float
    ends: bool


@dataclass(frozen=True)
class NextCharacters:
    """Characters that may follow a typed text.

    Args:
        probs: Probability of each possible character, given the typed text, most probable first. The empty string is
            the end of the output.
        missing: Upper bound on the probability that is missing from each of them, and from other characters; 0 if
            everything was followed, 1 if the scores are too large to be distinguished.

    Example:
        >>> NextCharacters({"a": 0.75, "": 0.25}, 0.0).probs["a"]
        0.75
    """

    probs: Mapping[str, float]
    missing: float


@dataclass(frozen=True)
class Completions:
    """Possible continuations of a partly typed output.

    Args:
        log_prob: Log-probability of the typed text, a lower bound if `missing` is not 0; -inf if no spelling was found.
        certain: Tokens that spell the typed text, and tokens that must follow it, without the end; empty if nothing is
            certain.
        choices: Continuations after the certain tokens, most probable first. A choice without tokens is the end.
        support: Number of all choices.
        mass: Probability of all choices, listed or not; 1 for a normalised model if nothing is missing.
        missing: Upper bound on the probability of choices that were not searched; 0 unless the typed text has too many
            spellings to follow; 1 if the scores are too large to be distinguished.
        characters: Result of :func:`next_characters`; None if every symbol is a single character, or if the
            probabilities don't sum to 1.

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
    characters: NextCharacters | None = None

    @property
    def possible(self) -> bool:
        """Return whether any output starts with the typed text; True if this is unknown."""
        return bool(self.choices or self.missing)


class _Node(NamedTuple):
    """Prefix of an output; nodes are ordered by their first two fields only."""

    cost: float  # negative log-probability, given the typed text and the certain tokens
    number: int
    tokens: tuple[int, ...]  # tokens after the last certain token
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
    """Find the possible continuations of a partly typed output, and the tokens that are certain.

    A sparse model often leaves a single continuation, which is then certain (Peters et al. 2019, fig. 2). Every choice
    includes the tokens that are certain after it. The search covers all spellings of the typed text, including
    spellings whose last token extends beyond the text. Probabilities are conditional on the typed text. Choices with
    the same text are merged.

    Args:
        model: Model with the decoder protocol, see :mod:`tsallis.models.protocol`.
        src, src_lengths: Symbols [1, src] and their count [1].
        typed: Beginning of the output's text.
        spellings: Spellings of the model's vocabulary.
        text: Function that spells tokens.
        place: Where the typed text begins: at the start, or after a prompt.
        n_best: Number of choices to list.
        longest: Maximum number of certain tokens.

    Returns:
        The completions. Their tokens include the tokens that spell the typed text.

    Raises:
        ValueError: If there are several sources, a size is below 1, the model is restricted, or a value is not finite.

    Example:
        >>> from tsallis.models import RNNSeq2Seq, spellings
        >>> class Letters(list):
        ...     def spellings(self, numbers):
        ...         letters = {number: self[number].encode() for number in numbers}
        ...         return letters, letters
        >>> letters = Letters(["<pad>", "<s>", "</s>", "<unk>", "a", "b"])
        >>> model = RNNSeq2Seq(20, 6, d_model=8, output="softmax", forbidden=(0, 1, 3))
        >>> spell = lambda tokens: "".join(letters[token] for token in tokens)
        >>> found = complete(model, torch.tensor([[4, 5]]), torch.tensor([2]), "a", spellings.Spellings(letters), spell)
        >>> found.support, round(found.mass, 6)  # a, b and the end
        (3, 1.0)
    """
    check_at_least_one(n_best=n_best, longest=longest)
    steps = _Steps(model, src, src_lengths)
    check_unrestricted("complete", model)
    with eval_mode(model):
        log_prob, nodes, missing = steps.open(typed, spellings, place)
        characters = None
        if model.output.normalized and not spellings.single:
            characters = steps.characters(nodes, missing, typed, spellings, place, longest)
        certain = () if missing else steps.run_ahead(nodes, longest)
        choices, support = steps.rank(nodes, certain, text, n_best, longest)
    mass = total_mass((math.exp(-node.cost) for node in nodes), model.output.normalized)
    return Completions(log_prob, certain, choices, support, mass, max(missing, float(steps.unclear)), characters)


def _total_prob(nodes: Sequence[_Node]) -> float:
    return math.fsum(math.exp(-node.cost) for node in nodes)


class _Steps:
    """Steps of a model for prefixes of one source."""

    def __init__(self, model: Decoder, src: Tensor, src_lengths: Tensor) -> None:
        check_sources(model, src, src_lengths)
        if len(src) != 1:
            raise ValueError(f"src must have exactly one source, got {len(src)}")
        self.model, self.source, self.device = model, (src, src_lengths), src.device
        self.numbers = itertools.count(1)
        self.unclear = False  # whether scores were too large to be distinguished

    def read(self, state: Any, last: Sequence[int]) -> tuple[Tensor, Any]:
        """Return log-probabilities [rows, d_vocab] after the last tokens, and the new state."""
        rows = torch.arange(len(last), device=self.device)
        step = self.model.step(state.select(rows), torch.tensor(last, device=self.device))
        self.unclear |= bool(unclear_rows(step).any())
        return checked_log_probs(self.model, step.scores, [0] * len(last)), step.state

    def open(self, typed: str, spellings: Spellings, place: Place) -> tuple[float, list[_Node], float]:
        """Return the log-probability of the typed text, the nodes that follow its spellings, and the missing share."""
        beginnings, log_missing = spell_beginning(self.model, *self.source, typed, spellings, place=place)
        log_prob = log_sum(beginning.prefix.log_prob for beginning in beginnings)
        # For a model that is not normalized, nothing bounds the missing values.
        total = log_prob if math.isinf(log_missing) else log_sum((log_prob, log_missing))
        nodes: list[_Node] = []
        for prefix, state, row, exact in beginnings:
            tokens = tuple(node.token for node in prefix.chain())
            state = state.select(torch.tensor([row], device=self.device))
            node = _Node(total - prefix.log_prob, next(self.numbers), tokens, state, prefix.token)
            nodes += self.choices(node) if exact else [node]
        return log_prob, nodes, exp_above_zero(log_missing if math.isinf(log_missing) else log_missing - total)

    def choices(self, node: _Node) -> list[_Node]:
        """Return the possible extensions of a prefix by one token."""
        log_probs, state = self.read(node.state, [node.last])
        row = log_probs[0]
        return [
            _Node(node.cost - float(row[token]), next(self.numbers), (*node.tokens, token), state, token)
            for token in (row > -torch.inf).nonzero().squeeze(-1).tolist()
        ]

    def characters(
        self, nodes: Sequence[_Node], missing: float, typed: str, spellings: Spellings, place: Place, longest: int
    ) -> NextCharacters:
        """Sum the probabilities of nodes by the character after the typed text, and follow nodes without one."""
        waiting, position, terms = list(nodes), len(typed.encode()), dict[str, list[float]]()
        for node in waiting:  # the list grows
            text, begun, special = b"", place.begun, node.last in (PAD, BOS, UNK)
            for token in () if special else node.spelled:
                added, begun = spellings.reached(token, begun)
                text += added
            if len(text) == position and longest and not (special or node.ends):
                longest -= 1
                waiting += self.choices(node)
                continue
            unknown = special or (len(text) == position and not node.ends)
            character = UNKNOWN if unknown else text[position:].decode(errors="replace")[:1]
            terms.setdefault(character, []).append(math.exp(-node.cost))
        unknown_mass = math.fsum([missing, *terms.pop(UNKNOWN, ())])
        joint = {character: math.fsum(parts) for character, parts in terms.items()}
        total = math.fsum([*joint.values(), unknown_mass]) or 1.0
        ranked = sorted(joint.items(), key=lambda pair: (-pair[1], pair[0]))
        missing = 1.0 if self.unclear else min(1.0, unknown_mass / total)
        return NextCharacters({character: prob / total for character, prob in ranked}, missing)

    def run_ahead(self, nodes: list[_Node], longest: int) -> tuple[int, ...]:
        """While there is only one node, replace it by its extensions in place; return the certain tokens."""
        certain = tuple[int, ...]()
        while len(nodes) == 1 and not (nodes[0].ends or self.unclear) and len(certain) < longest:
            certain += nodes[0].tokens
            nodes[:] = self.choices(nodes[0]._replace(tokens=(), cost=0.0))
        return certain

    def rank(
        self, nodes: Sequence[_Node], certain: Sequence[int], text: Text, n_best: int, longest: int
    ) -> tuple[tuple[Choice, ...], int]:
        """Merge nodes with the same text; return the `n_best` most probable choices, and the number of all."""
        groups: dict[tuple[str, bool], list[_Node]] = {}
        for node in nodes:
            groups.setdefault((text([*certain, *node.spelled]), node.ends), []).append(node)
        ranked = sorted(groups.values(), key=_total_prob, reverse=True)[:n_best]
        # Follow only choices with a single spelling: a token that is certain after one spelling may be uncertain after
        # another.
        single_choices = iter(self.follow([group[0] for group in ranked if len(group) == 1], longest))
        choices: dict[tuple[str, bool], Choice] = {}
        for group in ranked:
            best = min(group)
            choice = next(single_choices) if len(group) == 1 else Choice(best.spelled, 0.0, best.ends)
            key = text([*certain, *choice.tokens]), choice.ends
            previous = choices.get(key, replace(choice, prob=0.0))
            choices[key] = replace(previous, prob=previous.prob + _total_prob(group))
        return tuple(sorted(choices.values(), key=lambda choice: -choice.prob)), len(groups)

    def follow(self, nodes: Sequence[_Node], longest: int) -> tuple[Choice, ...]:
        """Return a choice for each node, extended by the tokens that are certain after it."""
        tokens = [list(node.tokens) for node in nodes]
        active = [i for i, node in enumerate(nodes) if not node.ends]
        state = join([nodes[i].state for i in active]) if active else None
        while active:
            log_probs, state = self.read(state, [tokens[i][-1] for i in active])
            possible = log_probs > -torch.inf  # [rows, d_vocab]
            single = [count == 1 and not self.unclear for count in possible.sum(-1).tolist()]
            only_token = possible.int().argmax(-1).tolist()
            rows = []
            for row, i in enumerate(active):
                if single[row]:
                    tokens[i].append(only_token[row])
                    if only_token[row] != EOS and len(tokens[i]) < longest:
                        rows.append(row)
            active = [active[row] for row in rows]
            state = state.select(torch.tensor(rows, dtype=torch.long, device=self.device))
        ends = [part[-1] == EOS for part in tokens]
        parts = zip(tokens, nodes, ends, strict=True)
        return tuple(Choice(tuple(part[: len(part) - end]), math.exp(-node.cost), end) for part, node, end in parts)


@torch.no_grad()
def next_characters(
    model: Decoder,
    src: Tensor,
    src_lengths: Tensor,
    typed: str,
    spellings: Spellings,
    *,
    place: Place = START,
    longest: int = 100,
) -> NextCharacters:
    r"""Compute the probabilities of the characters that may follow a typed text.

    .. math:: p(c \mid t, x) = \frac{\sum_{y: \mathrm{text}(y) \text{ starts with } tc} p(y \mid x)}
        {\sum_{y: \mathrm{text}(y) \text{ starts with } t} p(y \mid x)}

    The sum covers all token sequences that spell the typed text, and those whose last token extends beyond it. The
    probabilities are therefore exact for subwords too, unless there are too many sequences: see `missing`.

    Args:
        model: Model with the decoder protocol whose probabilities sum to 1, see :mod:`tsallis.models.protocol`.
        src, src_lengths: Symbols [1, src] and their count [1].
        typed: Beginning of the output's text.
        spellings: Spellings of the model's vocabulary.
        place: Where the typed text begins: at the start, or after a prompt.
        longest: Maximum number of tokens without a text to follow after the typed text.

    Returns:
        The probabilities, and an upper bound on the missing probability.

    Raises:
        ValueError: If there are several sources, the outputs don't sum to 1, or a probability is NaN or infinite.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> from tsallis.models.spellings import Spellings
        >>> class Pieces(list):
        ...     def spellings(self, numbers):
        ...         pieces = {number: self[number].encode() for number in numbers}
        ...         return pieces, pieces
        >>> spellings = Spellings(Pieces(["<pad>", "<s>", "</s>", "<unk>", "a", "b", "ab"]))
        >>> model = RNNSeq2Seq(20, 7, d_model=8, output="softmax", forbidden=(0, 1, 3))
        >>> found = next_characters(model, torch.tensor([[4, 5]]), torch.tensor([2]), "a", spellings)
        >>> sorted(found.probs), round(sum(found.probs.values()), 6), found.missing
        (['', 'a', 'b'], 1.0, 0.0)
    """
    check_at_least_one(longest=longest)
    steps = _Steps(model, src, src_lengths)
    check_sums("next_characters", model)
    with eval_mode(model):
        _, nodes, missing = steps.open(typed, spellings, place)
        return steps.characters(nodes, missing, typed, spellings, place, longest)
