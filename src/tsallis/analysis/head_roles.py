"""Compute the roles of heads: which keys each head attends to, and with how much weight."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tsallis.analysis.record import Recording
from tsallis.analysis.statistics import Statistic, collect
from tsallis.analysis.tables import Record
from tsallis.analysis.weights import SIDES, AttentionLayer, Bools, Floats, Sentence, Text
from tsallis.analysis.words import (
    ENDS,
    INTERROGATIVES,
    STARTS,
    PieceCounts,
    is_punctuation,
    is_question_mark,
    is_special,
    word_clusters,
    word_of,
)
from tsallis.search.checks import check_at_least_one

EXAMPLES = 3


class Role(NamedTuple):
    """Role of a head."""

    threshold: float  # minimum score of a head with this role
    phrase: str


# Roles and their thresholds are defined only here.
ROLES = {
    "previous": Role(0.7, "attends to the previous token"),
    "self": Role(0.7, "attends to the token itself"),
    "next": Role(0.7, "attends to the next token"),
    "merging": Role(0.7, "merges the subwords of a word"),
    "question": Role(0.7, "finds the question mark of an interrogative word"),
    "punctuation": Role(0.6, "attends to punctuation"),
    "rare": Role(0.6, "attends to the rarest token"),
    "start": Role(0.6, "attends to the start of the sentence"),
    "end": Role(0.6, "attends to the end of the sentence"),
}
# TENDENCY: minimum score of a head that tends to a role, as a share of the role's threshold.
# LIFT: minimum score of a head that has a role or tends to it, as a multiple of the score of equal weights.
TENDENCY, LIFT = 0.6, 2.0
OFFSETS = {"previous": -1, "self": 0, "next": 1}
# Scores that do not belong to a role.
MEASURES = ("clusters", "within_word")


@dataclass(frozen=True)
class Example(Record):
    """Sentence that shows a property of a head.

    Record the sentence again to get its weights.

    Args:
        text: Text of the sentence.
        score: Value of the property on this sentence, such as a density or the score of a role.
    """

    text: Text
    score: float


@dataclass(frozen=True)
class HeadRole(Record):
    """Role and scores of one head; layers and heads count from 0.

    Args:
        kind: Kind of attention: "encoder", "decoder" or "cross".
        layer: Number of the layer.
        head: Number of the head.
        alpha: Alpha of the head.
        role: Name of the role, or None. The score must reach the role's threshold and twice the score of equal weights.
            Among several roles, the score with the largest ratio to its threshold decides. A head with a positional
            role is not "merging".
        tendency: Closest role of a head that has no role; None if no role is close.
        scores: Scores by name: the names in `ROLES`, "clusters" and "within_word"; None if no query or word counts.
        uniform: Scores of a head with equal weights on all keys.
        counts: Number of queries per score; number of words for "merging" and "clusters".
        examples: Sentences that show the role or the tendency, best first.
    """

    kind: str
    layer: int
    head: int
    alpha: float
    role: str | None
    tendency: str | None
    scores: dict[str, float | None]
    uniform: dict[str, float | None]
    counts: dict[str, int]
    examples: tuple[Example, ...]


@dataclass(frozen=True)
class HeadRoles(Record):
    """Roles of all heads.

    Args:
        sentences: Number of sentences.
        heads: One record per head.

    Example:
        >>> head = HeadRole("encoder", 0, 0, 1.5, "next", None, {"next": 0.9}, {"next": 0.2}, {"next": 7}, ())
        >>> [role.role for role in HeadRoles(1, (head,)).heads]
        ['next']
    """

    sentences: int
    heads: tuple[HeadRole, ...]


class _Total:
    """Sums of one score per head, and the sentences with the best scores."""

    def __init__(self, heads: int, examples: int) -> None:
        self.sums, self.uniform, self.count, self.size = np.zeros(heads), 0.0, 0, examples
        self.best: list[list[tuple[float, Example]]] = [[] for _ in range(heads)]

    def add(self, masses: Floats, uniform: Floats, text: Text) -> None:
        """Add a sentence: the weights on its targets [heads, counted], and those of equal weights [1, counted]."""
        count = masses.shape[1]
        if count == 0:
            return
        sums = masses.sum(1)
        self.sums += sums
        self.uniform += float(uniform.sum())
        self.count += count
        for head, total in enumerate(sums.tolist()):
            rank = total / (count + 1)  # among sentences with the same mean, prefer longer ones
            if len(self.best[head]) < self.size or rank > self.best[head][-1][0]:
                self._keep_best(head, [(rank, Example(text, total / count))])

    def _keep_best(self, head: int, examples: list[tuple[float, Example]]) -> None:
        ranked = sorted(self.best[head] + examples, key=lambda item: (-item[0], item[1].text.index))
        self.best[head] = ranked[: self.size]


class _Targets:
    """Target keys of each query by role, and the queries that have a choice.

    Args:
        targets: Booleans [queries, keys] by role: True for target keys.
        visible: Booleans [queries, keys]: True for keys that the query can attend to.
        clusters: Words of the text in self-attention; None in cross-attention.
    """

    def __init__(self, targets: Mapping[str, Bools], visible: Bools, clusters: Sequence[range] | None) -> None:
        self.names, self.clusters = tuple(targets), clusters
        self.keys = np.stack(tuple(targets.values())) & visible  # [roles, queries, keys]
        counts = self.keys.sum(2)
        self.has_choice = (counts > 0) & (counts < visible.sum(1))  # [roles, queries]
        self.uniform = self.masses((visible / np.maximum(visible.sum(1, keepdims=True), 1))[None])

    def masses(self, weights: Floats) -> dict[str, Floats]:
        """Return the weights on targets [heads, counted] by name, for each query with a choice or for each word."""
        masses = np.einsum("hqk,rqk->rhq", weights, self.keys)
        rows = zip(self.names, masses, self.has_choice, strict=True)
        result = {name: mass[:, choice] for name, mass, choice in rows}
        if self.clusters is not None:
            single, several = merging_masses(weights, self.clusters)
            result |= {"merging": several, "clusters": np.concatenate([single, several], 1)}
        return result


class Roles(Statistic[HeadRoles]):
    """Statistic for :func:`head_roles`: scores of all heads over sentences.

    Args:
        layers: Attention modules of the recording.
        counts, examples: See :func:`head_roles`.

    Raises:
        ValueError: `examples` is below 1.

    Example:
        >>> statistic = Roles([AttentionLayer("encoder", 0, (1.5,))])
        >>> statistic.update(Sentence.of([[[1, 0, 0], [1, 0, 0], [0, 1, 0]]], pieces=["▁a", "▁b", "▁c"]))
        >>> statistic.result().heads[0].role
        'previous'
    """

    def __init__(
        self,
        layers: Sequence[AttentionLayer],
        counts: PieceCounts | None = None,
        examples: int = EXAMPLES,
    ) -> None:
        super().__init__(layers)
        check_at_least_one(examples=examples)
        self._piece_counts = counts
        names = (*ROLES, *MEASURES)
        self._totals = [{name: _Total(layer.heads, examples) for name in names} for layer in self.layers]

    def _update(self, sentence: Sentence) -> None:
        targets: dict[tuple[str, bool], _Targets] = {}  # shared by all layers of one kind and causality
        for layer, weights, totals in zip(self.layers, sentence.weights, self._totals, strict=True):
            key = (layer.kind, layer.causal)
            if key not in targets:
                targets[key] = self._targets(layer, sentence.text)
            for name, masses in targets[key].masses(weights.dense()).items():
                totals[name].add(masses, targets[key].uniform[name], sentence.text)

    def _targets(self, layer: AttentionLayer, text: Text) -> _Targets:
        queries, keys = text.sides(layer.kind)
        key_flags = {
            "punctuation": [is_punctuation(piece) for piece in keys],
            "start": [piece in STARTS for piece in keys],
            "end": [piece in ENDS for piece in keys],
        }
        if self._piece_counts is not None:
            key_flags["rare"] = rarest(keys, self._piece_counts[SIDES[layer.kind][1]])
        targets = {name: np.tile(np.array(cells, bool), (len(queries), 1)) for name, cells in key_flags.items()}
        clusters = word_clusters(keys) if layer.to_itself else None
        if clusters is not None:
            targets |= self._self_attention_targets(keys, clusters)
        visible = np.arange(len(keys)) < layer.visible(len(queries), len(keys))[:, None]
        return _Targets(targets, visible, clusters)

    def _self_attention_targets(self, pieces: Sequence[str], clusters: Sequence[range]) -> dict[str, Bools]:
        """Return the targets of roles that exist only in self-attention."""
        size = len(pieces)
        targets = {name: np.eye(size, k=offset, dtype=bool) for name, offset in OFFSETS.items()}
        within_word, question = np.zeros((size, size), bool), np.zeros((size, size), bool)
        marks = np.array([is_question_mark(piece) for piece in pieces], bool)
        for cluster in clusters:
            within_word[cluster.start : cluster.stop, cluster.start : cluster.stop] = True
            if word_of(pieces, cluster).lower() in INTERROGATIVES:
                question[cluster.start : cluster.stop] = marks
        return {**targets, "within_word": within_word, "question": question}

    def _result(self) -> HeadRoles:
        heads = [
            _head_role(layer, totals, head)
            for layer, totals in zip(self.layers, self._totals, strict=True)
            for head in range(layer.heads)
        ]
        return HeadRoles(self.sentences, tuple(heads))


def head_roles(
    recording: Recording,
    counts: PieceCounts | None = None,
    examples: int = EXAMPLES,
) -> HeadRoles:
    r"""Compute which keys each head attends to, and its role if it has one.

    .. math:: \mathrm{score}_h = \frac{1}{|Q|} \sum_{i \in Q} \sum_{j \in T_i} p^h_{ij}

    The score is the mean weight that queries :math:`Q` give to target keys :math:`T_i`. A query counts only if it can
    attend to a target and to another key. Compare a score with the score of equal weights in `uniform`.

    - `previous`, `self`, `next`: the target is the key at -1, 0 or +1 (the confidence of positional heads in Correia et
      al. 2019, sec. 5.2 and fig. 7).
    - `clusters`: the merging score of the same paper (fig. 8), a mean over words. The score of a word is the largest
      weight that one of its pieces gives to the *other* pieces. A word of one piece has the piece's weight on itself.
    - `merging`: the same score without words of one piece, because a head that attends to the token itself merges
      nothing. The role depends on this score.
    - `within_word`: targets are the keys in the word of the query, see :func:`~tsallis.analysis.words.word_clusters`.
    - `question`: the target is the question mark, and queries are English interrogatives (fig. 9).
    - `punctuation`, `start`, `end`: targets are punctuation, or the start or the end of the sentence.
    - `rare`: targets are the keys of the sentence that are rarest in `counts`, except its start and end (Voita et al.
      2019, sec. 5).

    Args:
        recording: Recording of a model.
        counts: Frequencies of pieces in the sources and targets of a corpus; None: no score `rare`.
        examples: Number of example sentences per head.

    Returns:
        One record per head.

    Raises:
        ValueError: `examples` is below 1.
        InputError: The recording has no sentences.

    Example:
        >>> sentence = Sentence.of([[[1, 0, 0], [0.9, 0.1, 0], [0, 1, 0]]], pieces=["▁a", "▁b", "▁c"])
        >>> (head,) = head_roles(Recording([AttentionLayer("encoder", 0, (1.5,))], [sentence])).heads
        >>> head.role, round(head.scores["previous"], 2), head.scores["question"]
        ('previous', 0.95, None)
    """
    (roles,) = collect(recording, Roles(recording.layers, counts, examples))
    return roles


def rarest(pieces: Sequence[str], counts: Mapping[str, int]) -> list[bool]:
    """Return for each piece whether it is the rarest piece of the sentence. The start and the end never count.

    >>> rarest(["<s>", "▁the", "▁lamp", "▁of"], {"▁the": 9, "▁of": 5, "▁lamp": 1})
    [False, False, True, False]
    """
    numbers = [math.inf if is_special(piece) else counts.get(piece, 0) for piece in pieces]
    return [number == min(numbers) < math.inf for number in numbers]


def merging_masses(weights: Floats, clusters: Sequence[range]) -> tuple[Floats, Floats]:
    """Return two merging scores [heads, words]: for words of one piece, and for words of several pieces.

    Args:
        weights: Weights [heads, pieces, pieces].
        clusters: Pieces of each word. A word that is the whole sentence does not count.
    """
    size = weights.shape[2]
    parts = [cluster for cluster in clusters if len(cluster) < size]
    single_pieces = [cluster.start for cluster in parts if len(cluster) == 1]
    single = weights[:, single_pieces, single_pieces]
    several = np.zeros((len(weights), len(parts) - len(single_pieces)))
    for number, cluster in enumerate(c for c in parts if len(c) > 1):
        word_weights = weights[:, cluster.start : cluster.stop, cluster.start : cluster.stop]
        other_weights = word_weights.sum(2) - word_weights.diagonal(0, 1, 2)  # [heads, pieces]
        several[:, number] = other_weights.max(1)
    return single, several


def _head_role(layer: AttentionLayer, totals: Mapping[str, _Total], head: int) -> HeadRole:
    scores = {name: float(t.sums[head] / t.count) if t.count else None for name, t in totals.items()}
    uniform = {name: t.uniform / t.count if t.count else None for name, t in totals.items()}
    shares = {name: score / role.threshold for name, role in ROLES.items() if (score := scores[name]) is not None}
    # If equal weights nearly reach a score, the score describes the text, not the head. For example, without spaces all
    # pieces belong to one word.
    lifts = {name: (scores[name] or 0.0) / (uniform[name] or 1.0) for name in shares}
    candidates = {name: share for name, share in shares.items() if share >= 1 and lifts[name] >= LIFT}
    if candidates.keys() & OFFSETS.keys():
        candidates.pop("merging", None)  # in words of two pieces, positional heads also merge
    role = max(candidates, key=lambda name: candidates[name], default=None)
    tendency = None if role else _tendency(shares, lifts)
    example_role = role or tendency
    examples = tuple(example for _, example in totals[example_role].best[head]) if example_role else ()
    counts = {name: total.count for name, total in totals.items()}
    identity = (layer.kind, layer.layer, head, layer.alphas[head])
    return HeadRole(*identity, role, tendency, scores, uniform, counts, examples)


def _tendency(shares: Mapping[str, float], lifts: Mapping[str, float]) -> str | None:
    """Return the role with nearly enough weight whose score exceeds equal weights most, or None."""
    near = [name for name, share in shares.items() if share >= TENDENCY]
    best = max(near, key=lambda name: lifts[name], default=None)
    return best if best and lifts[best] >= LIFT else None
