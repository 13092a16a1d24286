"""Models whose probabilities are all written down, so that tests can enumerate the outputs without any search."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tsallis.functional import alpha_relu, entmax
from tsallis.models.protocol import Step
from tsallis.symbols import EOS

A, B, C = SYMBOLS = (4, 5, 6)
VOCAB = 7
Tokens = tuple[int, ...]
Row = Mapping[int, float]


@dataclass(frozen=True)
class Nodes:
    source: Tensor  # [rows]
    node: Tensor  # [rows]: index of the prefix
    width: Tensor  # [rows]: width of the padded source

    def select(self, index: Tensor) -> Nodes:
        return Nodes(self.source[index], self.node[index], self.width[index])


class GivenLogProbs:
    """An output layer whose scores are log-probabilities."""

    def __init__(self, normalized: bool) -> None:
        self.normalized = normalized

    def log_probs(self, scores: Tensor) -> Tensor:
        return scores


class TableModel:
    """A decoder whose next-token probabilities are a function of the source and the prefix."""

    def __init__(self, row: Callable[[int, Tokens], Row], normalized: bool = True) -> None:
        self.row, self.output = row, GivenLogProbs(normalized)
        self.prefixes: list[Tokens] = [()]
        self.numbers: dict[Tokens, int] = {(): 0}
        self.rows_a_step: list[int] = []

    def encode(self, src: Tensor, src_lengths: Tensor) -> Nodes:
        return Nodes(src[:, 0], torch.zeros_like(src_lengths), torch.full_like(src_lengths, src.shape[1]))

    def start(self, memory: Nodes) -> Nodes:
        return memory

    def step(self, state: Nodes, token: Tensor) -> Step:
        self.rows_a_step.append(len(token))
        nodes, scores = [], torch.full((len(token), VOCAB), -torch.inf, dtype=torch.float64)
        for i, (source, node, symbol) in enumerate(
            zip(state.source.tolist(), state.node.tolist(), token.tolist(), strict=True)
        ):
            prefix = self.prefixes[node] + ((symbol,) if symbol in SYMBOLS else ())
            if prefix not in self.numbers:
                self.numbers[prefix] = len(self.prefixes)
                self.prefixes.append(prefix)
            nodes.append(self.numbers[prefix])
            for following, prob in self.row(source, prefix).items():
                scores[i, following] = -torch.inf if prob == 0 else math.log(prob)
        attention = torch.zeros(len(token), int(state.width[0]))
        attention[:, 0] = 1
        return Step(scores, attention, Nodes(state.source, torch.tensor(nodes), state.width))

    def enumerate(self, source: int, longest: int) -> dict[Tokens, float]:
        """Return every possible output of at most `longest` tokens with its log-probability."""
        result: dict[Tokens, float] = {}
        open_prefixes: list[tuple[Tokens, float]] = [((), 0.0)]
        for prefix, total in open_prefixes:
            for token, prob in self.row(source, prefix).items():
                if prob > 0 and token == EOS:
                    result[prefix] = total + math.log(prob)
                elif prob > 0 and len(prefix) < longest:
                    open_prefixes.append(((*prefix, token), total + math.log(prob)))
        return result


def trie(rows: Mapping[Tokens, Row], normalized: bool = True) -> TableModel:
    """Create a model from the rows of its possible prefixes, the same for every source."""
    return TableModel(lambda source, prefix: rows.get(prefix, {}), normalized)


def random_table(transform: str, alpha: float, seed: int, sharpness: float = 3.0) -> TableModel:
    """Create a model with random scores for every source and prefix; a map turns them into probabilities."""
    known: dict[Any, Row] = {}

    def row(source: int, prefix: Tokens) -> Row:
        if (source, prefix) not in known:
            code = sum((token - 3) * 4**i for i, token in enumerate(prefix))
            generator = torch.Generator().manual_seed(seed * 1_000_003 + source * 65_537 + code)
            scores = torch.randn(4, generator=generator, dtype=torch.float64) * sharpness
            probs = alpha_relu(scores, alpha, 0.5) if transform == "alpha_relu" else entmax(scores, alpha)
            known[source, prefix] = dict(zip((EOS, *SYMBOLS), probs.tolist(), strict=True))
        return known[source, prefix]

    return TableModel(row, transform != "alpha_relu")


def sources(*first: int) -> tuple[Tensor, Tensor]:
    """Return sources of one symbol each."""
    return torch.tensor(first).unsqueeze(1), torch.ones(len(first), dtype=torch.long)


# The more probable first symbol leads to two equal halves: a beam of size 1 misses the best output.
TRAP = {(): {A: 0.6, B: 0.4}, (A,): {EOS: 0.5, C: 0.5}, (A, C): {EOS: 1.0}, (B,): {EOS: 1.0}}
