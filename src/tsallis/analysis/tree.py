"""Arrange the hypotheses of a search in a tree of prefixes, whose edges have the probabilities of steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tsallis.analysis.record import Symbols
from tsallis.analysis.tables import Record
from tsallis.models.modes import eval_mode
from tsallis.models.protocol import Decoder
from tsallis.search import Result
from tsallis.search.certificate import Kind
from tsallis.search.step import advance
from tsallis.symbols import BOS, EOS


@dataclass(frozen=True)
class Edge(Record):
    """Edge from a prefix to the same prefix with one more symbol. Node 0 is the empty prefix.

    Args:
        parent: Node of the shorter prefix.
        node: Node of the longer prefix.
        symbol: Symbol that is added.
        log_prob: Log-probability of the symbol after the shorter prefix.
        total: Log-probability of the longer prefix.
        end: Whether an output ends here.

    Example:
        >>> edge = Edge(parent=0, node=1, symbol="a", log_prob=math.log(0.25), total=math.log(0.25), end=False)
        >>> round(edge.prob, 6)
        0.25
    """

    parent: int
    node: int
    symbol: str
    log_prob: float
    total: float
    end: bool

    @property
    def prob(self) -> float:
        """Return the probability of the symbol after the shorter prefix."""
        return math.exp(self.log_prob)


@dataclass(frozen=True)
class BeamTree(Record):
    """Hypotheses of one source as a tree, and the certificate of the search.

    Args:
        edges: Edges, parents before their children.
        mass: Total probability of the hypotheses.
        certificate: Kind of the certificate.
        bound: Bound of the certificate; None if no prefix was dropped.
        outputs: Number of hypotheses, whose texts can have several paths in the tree; None if unknown.

    Example:
        >>> likely, unlikely = math.log(0.75), math.log(0.25)
        >>> edges = Edge(0, 1, "a", likely, likely, True), Edge(0, 2, "b", unlikely, unlikely, True)
        >>> [edge.symbol for edge in BeamTree(edges, 1.0, "complete", None).children(0)]
        ['a', 'b']
    """

    edges: tuple[Edge, ...]
    mass: float
    certificate: Kind
    bound: float | None
    outputs: int | None = None

    def children(self, node: int) -> list[Edge]:
        """Return the edges that start at a node, most probable first."""
        return sorted((edge for edge in self.edges if edge.parent == node), key=lambda edge: -edge.log_prob)

    def chain(self, edge: Edge) -> tuple[list[Edge], list[Edge]]:
        """Return an edge with its successors up to the next branch, and the edges of that branch."""
        chain, following = [edge], self.children(edge.node)
        while len(following) == 1:
            chain += following
            following = self.children(following[0].node)
        return chain, following


@dataclass
class _Level:
    """Prefixes of one length, with their rows in the decoder state, nodes and log-probabilities."""

    prefixes: list[tuple[int, ...]]
    rows: list[int]
    nodes: list[int]
    totals: list[float]


@torch.no_grad()
def beam_tree(model: Decoder, src: Tensor, result: Result, tgt_vocab: Symbols) -> BeamTree:
    """Compute the tree of a result's hypotheses (Peters et al. 2019, fig. 1).

    The model runs again on every prefix, in one batch per length. The log-probabilities along a path sum to that of
    the hypothesis. With the certificate `complete` the tree contains every possible output.

    Args:
        model: Model that was searched.
        src: Symbols of the source [src] or [1, src].
        result: Result of `beam_search` or `exhaustive`.
        tgt_vocab: Vocabulary of the hypotheses.

    Returns:
        The tree. Node 0 is the empty prefix.

    Raises:
        ValueError: A hypothesis is impossible, because it comes from another model or source.

    Example:
        >>> from types import SimpleNamespace
        >>> from tsallis.models import RNNSeq2Seq
        >>> from tsallis.search import beam_search
        >>> model = RNNSeq2Seq(6, 6, d_model=8, output="softmax")
        >>> src = torch.tensor([[4, 5]])
        >>> (result,) = beam_search(model, src, torch.tensor([2]), n_best=2, max_length=2)
        >>> symbols = SimpleNamespace(name=["<pad>", "<s>", "</s>", "<unk>", "▁a", "▁b"].__getitem__)
        >>> tree = beam_tree(model, src, result, symbols)
        >>> ends = sorted((edge.total for edge in tree.edges if edge.end), reverse=True)
        >>> all(abs(end - hypothesis.log_prob) < 1e-5 for end, hypothesis in zip(ends, result.hypotheses))
        True
    """
    src = src.reshape(1, -1)
    sequences = [s for hypothesis in result.hypotheses for s in hypothesis.segmentations or (hypothesis,)]
    outputs = [(*sequence.tokens, EOS) for sequence in sequences]
    edges: list[Edge] = []
    with eval_mode(model):
        state: Any = model.start(model.encode(src, torch.tensor([src.shape[1]], device=src.device)))
        level = _Level([()], [0], [0], [0.0])
        while outputs:
            state = state.select(torch.tensor(level.rows, device=src.device))
            tokens = torch.tensor([prefix[-1] if prefix else BOS for prefix in level.prefixes], device=src.device)
            log_probs, _, state = advance(model, state, tokens, [0] * len(tokens))
            level, outputs = _grow(level, outputs, log_probs, edges, tgt_vocab)
    certificate = result.certificate
    bound = None if certificate.bound == -float("inf") else certificate.bound
    return BeamTree(tuple(edges), result.mass, certificate.kind, bound, len(result.hypotheses))


def _grow(
    level: _Level, outputs: Sequence[tuple[int, ...]], log_probs: Tensor, edges: list[Edge], vocab: Symbols
) -> tuple[_Level, list[tuple[int, ...]]]:
    """Add edges to prefixes with one more symbol. Return these prefixes, and the outputs that continue after them."""
    next_level = _Level([], [], [], [])
    length = len(level.prefixes[0])
    rows = {prefix: row for row, prefix in enumerate(level.prefixes)}
    for prefix in dict.fromkeys(output[: length + 1] for output in outputs):
        row, token = rows[prefix[:-1]], prefix[-1]
        step = float(log_probs[row, token])
        if step == -float("inf"):
            raise ValueError(f"the hypothesis is impossible for this model: {vocab.name(token)!r} has probability zero")
        node, total = len(edges) + 1, level.totals[row] + step
        edges.append(Edge(level.nodes[row], node, vocab.name(token), step, total, token == EOS))
        if token != EOS:
            next_level.prefixes.append(prefix)
            next_level.rows.append(row)
            next_level.nodes.append(node)
            next_level.totals.append(total)
    return next_level, [output for output in outputs if len(output) > length + 1]
