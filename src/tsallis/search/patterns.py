"""Patterns of output texts, as automata over the tokens of a vocabulary, and searches restricted to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from tsallis.errors import check_integer, describe
from tsallis.models.protocol import Decoder, DerivedStep, unclear_rows
from tsallis.models.spellings import spellings_of
from tsallis.search.regex import compile_regex, compile_strings
from tsallis.search.text_prefix import TextPrefix
from tsallis.symbols import BOS, EOS, PAD, UNK

ENTRIES = 2**25  # maximum size of a table of states and tokens
UNKNOWN, UNDECODABLE = "\N{REPLACEMENT CHARACTER}", b"\xff"
SAME, UNSURE = 0, 1  # columns of tokens without a text, and of tokens whose bytes are only a part of a character


class Pattern:
    """Pattern that matches or does not match each whole output text of a vocabulary.

    Tokens that spell only a part of a character (byte fallback) are *unsure*: whether their texts match is unknown.
    :func:`match` counts them as open, and :func:`restrict` excludes them.

    Args:
        pattern: Regular expression that must match the whole text, as in `re.fullmatch`; or a list of strings, of which
            the text must contain at least one. Look-around, back-references, atomic groups and possessive repetitions
            are not supported.
        vocabulary: Vocabulary of the outputs: an object with a length and the method `spellings`, see
            :class:`tsallis.models.spellings.Spellings`; or the texts of all tokens in their order, each a string or
            UTF-8 bytes. A string with the replacement character U+FFFD stands for a part of a character. The texts of
            padding, start and end (0 to 2) are not used.
        complement: Whether to match the texts that the pattern does not match.
        begun: Whether outputs continue a prompt, so that a space before their first word counts.

    Raises:
        TypeError: The pattern is not a string or a list of strings.
        ValueError: The pattern is invalid, not supported or too large.

    Example:
        >>> pattern = Pattern("a+b?", ["", "", "", "<unk>", "a", "b", "ab"])
        >>> [pattern.matches(tokens) for tokens in ([4, 5], [4, 6], [6, 4])]
        [True, True, False]
    """

    def __init__(
        self, pattern: str | Sequence[str], vocabulary: Any, *, complement: bool = False, begun: bool = False
    ) -> None:
        if not isinstance(pattern, str | Sequence) or isinstance(pattern, bytes):
            raise TypeError(f"pattern must be a string or a list of strings, got {describe(pattern)}")
        first, later, drops_spaces, self.unique = _token_texts(vocabulary)
        pairs: dict[tuple[str, str], int] = {("", ""): SAME}
        numbers = []
        for spellings in zip(first, later, strict=True):
            try:
                key = spellings[0].decode(), spellings[1].decode()
                numbers.append(pairs.setdefault(key, len(pairs) + 1))
            except UnicodeDecodeError:
                numbers.append(UNSURE)
        self.column = torch.tensor(numbers)  # [d_vocab]: column of each token in the table
        texts = [("", ""), *pairs]  # the columns SAME and UNSURE have no text
        characters = sorted(set("".join(x + y for x, y in texts)))
        compile_pattern: Any = compile_regex if isinstance(pattern, str) else compile_strings
        automaton = compile_pattern(pattern if isinstance(pattern, str) else list(pattern), characters)
        states, unsure = len(automaton.next), len(automaton.next) + 1  # `states` is the one before the first text
        if (states + 2) * len(texts) > ENTRIES:
            raise ValueError(
                f"the pattern needs {states} states for {len(texts)} different tokens, which is too many: simplify it"
            )
        transitions = torch.tensor(automaton.next, dtype=torch.int32).reshape(states, -1)
        table = _states_after(
            transitions, torch.arange(states, dtype=torch.int32), [y for _, y in texts], automaton.classes
        )
        first_states = _states_after(
            transitions, torch.tensor([0], dtype=torch.int32), [x for x, _ in texts], automaton.classes
        )[0]
        starts_text = torch.tensor([bool(x or (y and not drops_spaces)) for x, y in texts])
        table = torch.cat(
            [table, torch.where(starts_text, first_states, states)[None], torch.full_like(table[:1], unsure)]
        )
        self.excludes_bytes = UNSURE in numbers  # whether `restrict` excludes spellings of matching texts
        if self.excludes_bytes:
            table[:, UNSURE] = unsure
        self.table = table.int()  # [states, columns]: next state
        accepts = torch.tensor(automaton.accepts) != complement
        self.accepts = torch.cat([accepts, accepts[0, None], torch.tensor([False])])
        self.unsure = torch.arange(len(self.table)) == unsure
        before = _predecessors(self.table)
        self.live = _can_reach(before, self.accepts)  # a match can follow
        self.dead = ~_can_reach(before, self.accepts | self.unsure)  # no match can follow
        self.full = ~_can_reach(before, ~self.accepts)  # only matches can follow
        self.start = 0 if begun else states

    def after(self, states: Tensor, d_vocab: int) -> Tensor:
        """Return the states [rows, d_vocab] after each token.

        Raises:
            ValueError: The vocabulary has another number of tokens than the model.
        """
        if d_vocab != len(self.column):
            raise ValueError(
                f"the vocabulary of the pattern must have {d_vocab} symbols, like the model, got {len(self.column)}"
            )
        return self.table[states][:, self.column]

    def allowed(self, states: Tensor, d_vocab: int) -> Tensor:
        """Return which tokens [rows, d_vocab] may follow if the output must match."""
        allowed = self.live[self.after(states, d_vocab)]
        allowed[:, EOS] = self.accepts[states]
        return allowed

    def read(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Return the states [rows] after one token per row."""
        return self.table[states, self.column[tokens]]

    def matches(self, tokens: Sequence[int]) -> bool:
        """Return whether the text of an output, without its end, matches; False if this is unsure."""
        state = torch.tensor([self.start])
        for token in tokens:
            check_integer("a token", token, 0, len(self.column) - 1)
            state = self.read(state, torch.tensor([token]))
        return bool(self.accepts[state])


def _token_texts(vocabulary: Any) -> tuple[list[bytes], list[bytes], bool, bool]:
    """Return the bytes of tokens at the start of a text and later, and two properties of the vocabulary.

    The properties are whether spaces at the start are dropped, and whether every text has a single spelling.
    """
    size = len(vocabulary)
    if hasattr(vocabulary, "spellings"):
        numbers = [number for number in range(size) if number not in (PAD, BOS, EOS)]
        spellings = vocabulary.spellings(numbers)
        first, later = ([spelled.get(number, b"") for number in range(size)] for spelled in spellings)
        return first, later, getattr(vocabulary, "drops_leading_spaces", False), spellings_of(vocabulary).unique
    if not isinstance(vocabulary, Sequence):
        hint = "; of a dictionary, pass sorted(vocabulary, key=vocabulary.get)" if isinstance(vocabulary, dict) else ""
        kind = "the texts of all tokens in their order"
        raise TypeError(f"vocabulary must be {kind}, got {describe(vocabulary)}{hint}")
    texts = [b""] * UNK
    for text in list(vocabulary)[UNK:]:
        if not isinstance(text, str | bytes):
            raise TypeError(f"the texts of a vocabulary must be strings or bytes, got {describe(text)}")
        # Tokenizers decode a part of a character as U+FFFD.
        texts.append(text if isinstance(text, bytes) else text.encode() if UNKNOWN not in text else UNDECODABLE)
    decoded = {text.decode(errors="replace") for text in texts[UNK:]}
    unique = len(decoded) == len(texts[UNK:]) and UNDECODABLE not in texts and all(len(text) == 1 for text in decoded)
    return texts, texts, False, unique


def _states_after(transitions: Tensor, starts: Tensor, texts: Sequence[str], classes: dict[str, int]) -> Tensor:
    """Return the states [starts, texts] after each text, given the next state per class [states, classes]."""
    by_class = transitions.T.contiguous()  # [classes, states]
    after = {"": starts}  # states after each beginning of a text
    for text in texts:
        for end, letter in enumerate(text, 1):
            if text[:end] not in after:
                after[text[:end]] = by_class[classes[letter]][after[text[: end - 1]]]
    return torch.stack([after[text] for text in texts], 1)


def _predecessors(table: Tensor) -> list[list[int]]:
    """Return, for each state, the states from which one token leads to it."""
    before: list[list[int]] = [[] for _ in table]
    for state, row in enumerate(table):
        for reached in row.unique().tolist():
            before[reached].append(state)
    return before


def _can_reach(before: Sequence[Sequence[int]], goal: Tensor) -> Tensor:
    """Return the states [states] from which any number of tokens leads to the goal."""
    reached, waiting = goal.tolist(), goal.nonzero().squeeze(1).tolist()
    while waiting:
        for state in before[waiting.pop()]:
            if not reached[state]:
                reached[state] = True
                waiting.append(state)
    return torch.tensor(reached)


@dataclass(frozen=True)
class _PatternState:
    """Memory or state of a model, with the state of the pattern per row."""

    inner: Any
    places: Tensor

    def select(self, index: Tensor) -> _PatternState:
        return _PatternState(self.inner.select(index), self.places[index])


class _RestrictedOutput:
    """Output of a restricted model, whose scores are log-probabilities."""

    def __init__(self, normalized: bool) -> None:
        self.normalized = normalized

    def log_probs(self, scores: Tensor) -> Tensor:
        return scores


class RestrictedModel(nn.Module):
    """Model whose outputs match a pattern, see :func:`restrict`."""

    def __init__(self, model: Any, pattern: Pattern | TextPrefix) -> None:
        super().__init__()
        self.model, self.pattern = model, pattern
        self.models = getattr(model, "models", (model,))
        self.output = _RestrictedOutput(model.output.normalized)

    def parameters(self, recurse: bool = True) -> Any:
        return self.model.parameters(recurse) if hasattr(self.model, "parameters") else iter(())

    def encode(self, src: Tensor, src_lengths: Tensor) -> _PatternState:
        return _PatternState(
            self.model.encode(src, src_lengths), torch.full_like(src_lengths, self.pattern.start, dtype=torch.long)
        )

    def start(self, memory: _PatternState) -> _PatternState:
        return _PatternState(self.model.start(memory.inner), memory.places)

    def step(self, state: _PatternState, token: Tensor) -> DerivedStep:
        step, pattern = self.model.step(state.inner, token), self.pattern
        log_probs = self.model.output.log_probs(step.scores)
        places = pattern.read(state.places.cpu(), token.cpu())
        allowed = pattern.allowed(places, log_probs.shape[1]).to(log_probs.device)
        log_probs = log_probs.masked_fill(~allowed, -torch.inf)
        result = DerivedStep(log_probs, step.attention, _PatternState(step.state, places.to(state.places)))
        result.unclear = unclear_rows(step)
        return result


def prefix_length(model: Any) -> int:
    """Return the number of symbols that the prefix of a restricted model adds to its default maximum length."""
    return max((x.length for x in patterns_of(model) if isinstance(x, TextPrefix)), default=0)


def patterns_of(model: Any) -> list[Pattern | TextPrefix]:
    """Return the patterns to which a model, or a model that it wraps, is restricted."""
    inner = [*getattr(model, "models", ()), getattr(model, "model", None)]
    patterns = [model.pattern] if isinstance(model, RestrictedModel) else []
    return patterns + [pattern for x in inner if x is not None for pattern in patterns_of(x)]


def check_sums(use: str, model: Any) -> None:
    """Raise unless the probabilities of all outputs sum to 1; `use` is the reason, such as "match"."""
    check_unrestricted(use, model)
    if not model.output.normalized:
        raise ValueError(f"{use} needs a model whose probabilities sum to 1; those of alpha-ReLU do not")


def check_unrestricted(use: str, model: Any) -> None:
    """Raise if a model is restricted; `use` is the reason, such as "complete"."""
    if patterns_of(model):
        raise ValueError(f"{use} needs a model whose probabilities sum to 1; those of a restricted model do not")


@lru_cache(maxsize=16)
def pattern_of(pattern: str | tuple[str, ...], vocabulary: Any, complement: bool = False) -> Pattern:
    """Return a pattern for a vocabulary, compiled once."""
    return Pattern(pattern, vocabulary, complement=complement)


def restrict(model: Decoder, pattern: Pattern) -> RestrictedModel:
    """Return a model for searches and samples whose outputs all match a pattern.

    Probabilities are those of the model and are not rescaled, so they sum to the probability of a match. A token from
    which no match can be reached gets probability zero; supports count the other tokens. Certificates are about the
    matching outputs. A draw that leaves the pattern is None, so frequencies of the other draws match the model.

    Args:
        model: Model with the decoder protocol, see :mod:`tsallis.models.protocol`.
        pattern: Pattern for the vocabulary of the model.

    Returns:
        The restricted model, with the decoder protocol.

    Raises:
        TypeError: The pattern is not a :class:`Pattern`.
        ValueError: Its first step raises it if the vocabulary of the pattern has another number of symbols.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> from tsallis.search import exhaustive
        >>> model = RNNSeq2Seq(20, 6, d_model=8, output="softmax")
        >>> pattern = Pattern("a{2,3}", ["", "", "", "", "a", "b"])
        >>> (result,) = exhaustive(restrict(model, pattern), torch.tensor([[4, 5]]), torch.tensor([2]))
        >>> sorted(h.tokens for h in result.hypotheses), result.certificate.kind
        ([(4, 4), (4, 4, 4)], 'complete')
    """
    check_pattern("pattern", pattern)
    return RestrictedModel(model, pattern)


def check_pattern(name: str, pattern: Any) -> None:
    """Raise unless an argument is a pattern."""
    if not isinstance(pattern, Pattern):
        raise TypeError(f"{name} must be a tsallis.search.Pattern, got {describe(pattern)}")
