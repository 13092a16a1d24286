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
    """A role of heads."""

    threshold: float  # the mean weight from which on a head has it
    phrase: str


# The only definition of roles and their thresholds.
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
# The share of a threshold from which on a head tends to a role; the multiple of the score of equal weights from which
# on it has a role, or tends to one.
TENDENCY, LIFT = 0.6, 2.0
OFFSETS = {"previous": -1, "self": 0, "next": 1}
# Scores that are computed beside the roles.
MEASURES = ("clusters", "within_word")


@dataclass(frozen=True)
class Example(Record):
    """A sentence that shows a property of a head, and how much of it; recorded again, it has the weights.

    Args:
        text: of the sentence.
        score: how much of the property it shows, such as a density or the weight of a role.
    """

    text: Text
    score: float


@dataclass(frozen=True)
class HeadRole(Record):
    """The scores of one head; layers and heads count from 0.

    Args:
        kind: of attention: "encoder", "decoder" or "cross".
        layer: its number.
        head: its number.
        alpha: of the head.
        role: the best of those whose threshold is reached, by a score of twice that of equal weights; "merging" gives
            way to a position; None without one.
        tendency: the role that a head without one comes nearest to; None where it comes near none.
        scores: by the names of `ROLES`, "clusters" and "within_word"; None for what occurred nowhere.
        uniform: the scores of a head that attends to all keys alike.
        counts: the number of queries that each score is a mean of; of words, for "merging" and "clusters".
        examples: sentences that show the role or the tendency, the best first.
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
    """The roles of all heads.

    Args:
        sentences: their number.
        heads: One record per head.

    Example:
        >>> head = HeadRole("encoder", 0, 0, 1.5, "next", None, {"next": 0.9}, {"next": 0.2}, {"next": 7}, ())
        >>> [role.role for role in HeadRoles(1, (head,)).heads]
        ['next']
    """

    sentences: int
    heads: tuple[HeadRole, ...]


class _Total:
    """Sums of the scores per head, and the sentences that show them best."""

    def __init__(self, heads: int, examples: int) -> None:
        self.sums, self.uniform, self.count, self.size = np.zeros(heads), 0.0, 0, examples
        self.best: list[list[tuple[float, Example]]] = [[] for _ in range(heads)]

    def add(self, masses: Floats, uniform: Floats, text: Text) -> None:
        """Take in the masses of a sentence [heads, counted], and those of equal weights [counted]."""
        count = masses.shape[1]
        if count == 0:
            return
        sums = masses.sum(1)
        self.sums += sums
        self.uniform += float(uniform.sum())
        self.count += count
        for head, total in enumerate(sums.tolist()):
            rank = total / (count + 1)  # of equally good sentences the longer shows more
            if len(self.best[head]) < self.size or rank > self.best[head][-1][0]:
                self._keep(head, [(rank, Example(text, total / count))])

    def _keep(self, head: int, more: list[tuple[float, Example]]) -> None:
        ranked = sorted(self.best[head] + more, key=lambda item: (-item[0], item[1].text.index))
        self.best[head] = ranked[: self.size]


class _Targets:
    """The keys that count for each query, by role, and the queries that have a choice.

    Args:
        targets: by role, [queries, keys].
        visible: [queries, keys].
        clusters: words, where queries and keys are the same text; None elsewhere.
    """

    def __init__(self, targets: Mapping[str, Bools], visible: Bools, clusters: Sequence[range] | None) -> None:
        self.names, self.clusters = tuple(targets), clusters
        self.keys = np.stack(tuple(targets.values())) & visible  # [roles, queries, keys]
        counts = self.keys.sum(2)
        self.has_choice = (counts > 0) & (counts < visible.sum(1))  # [roles, queries]
        self.uniform = self.masses((visible / np.maximum(visible.sum(1, keepdims=True), 1))[None])

    def masses(self, weights: Floats) -> dict[str, Floats]:
        """Return by name the weights that count [heads, counted]: of each query with a choice, or of each word."""
        masses = np.einsum("hqk,rqk->rhq", weights, self.keys)
        rows = zip(self.names, masses, self.has_choice, strict=True)
        result = {name: mass[:, choice] for name, mass, choice in rows}
        if self.clusters is not None:
            single, several = merging_masses(weights, self.clusters)
            result |= {"merging": several, "clusters": np.concatenate([single, several], 1)}
        return result


class Roles(Statistic[HeadRoles]):
    """The statistic of :func:`head_roles`: the scores of all heads over sentences.

    Args:
        layers: of the recording.
        counts, examples: as of :func:`head_roles`.

    Raises:
        ValueError: `examples` below 1.

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
        targets: dict[tuple[str, bool], _Targets] = {}  # layers of a kind have the same
        for layer, weights, totals in zip(self.layers, sentence.weights, self._totals, strict=True):
            key = (layer.kind, layer.causal)
            if key not in targets:
                targets[key] = self._targets(layer, sentence.text)
            for name, masses in targets[key].masses(weights.dense()).items():
                totals[name].add(masses, targets[key].uniform[name], sentence.text)

    def _targets(self, layer: AttentionLayer, text: Text) -> _Targets:
        queries, keys = text.sides(layer.kind)
        everywhere = {
            "punctuation": [is_punctuation(piece) for piece in keys],
            "start": [piece in STARTS for piece in keys],
            "end": [piece in ENDS for piece in keys],
        }
        if self._piece_counts is not None:
            everywhere["rare"] = rarest(keys, self._piece_counts[SIDES[layer.kind][1]])
        targets = {name: np.tile(np.array(cells, bool), (len(queries), 1)) for name, cells in everywhere.items()}
        clusters = word_clusters(keys) if layer.to_itself else None
        if clusters is not None:
            targets |= self._own_targets(keys, clusters)
        visible = np.arange(len(keys)) < layer.visible(len(queries), len(keys))[:, None]
        return _Targets(targets, visible, clusters)

    def _own_targets(self, pieces: Sequence[str], clusters: Sequence[range]) -> dict[str, Bools]:
        """Return the targets that only self-attention has."""
        size = len(pieces)
        targets = {name: np.eye(size, k=offset, dtype=bool) for name, offset in OFFSETS.items()}
        within, question = np.zeros((size, size), bool), np.zeros((size, size), bool)
        marks = np.array([is_question_mark(piece) for piece in pieces], bool)
        for cluster in clusters:
            within[cluster.start : cluster.stop, cluster.start : cluster.stop] = True
            if word_of(pieces, cluster).lower() in INTERROGATIVES:
                question[cluster.start : cluster.stop] = marks
        return {**targets, "within_word": within, "question": question}

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
    r"""Compute what each head attends to, and its role if it has one.

    .. math:: \mathrm{score}_h = \frac{1}{|Q|} \sum_{i \in Q} \sum_{j \in T_i} p^h_{ij}

    the mean weight that queries :math:`Q` give to target keys :math:`T_i`. A query counts if it can attend to a target
    and to another key; otherwise it has no choice.

    - `previous`, `self`, `next`: the key at -1, 0 and +1, the confidence of positional heads (Correia et al. 2019, sec.
      5.2 and fig. 7).
    - `clusters`: the merging score of the paper (fig. 8): over the words of a sentence, the largest weight that a piece
      gives to the *other* pieces of its word; in a word of one piece, the weight that it gives to itself. A head that
      attends to the token itself scores well there, so the role depends on `merging`: the same score over words of
      several pieces alone. `within_word`: the weight inside the word of the query. Words are those of
      :func:`~tsallis.analysis.words.word_clusters`.
    - `question`: the question mark, where the query is an English interrogative (fig. 9).
    - `punctuation`, `start`, `end`: such keys; `rare`: the keys that are rarest in `counts` among those of the
      sentence, its start and end left out (Voita et al. 2019, sec. 5).

    Compare a score with that of equal weights, in `uniform`.

    Args:
        recording: of a model.
        counts: how often each piece occurs in the sources and targets of a corpus; without them there is no score for
            rare ones.
        examples: how many sentences that show its role a head has.

    Returns:
        One record per head.

    Raises:
        ValueError: `examples` below 1.
        InputError: a recording without sentences.

    Example:
        >>> sentence = Sentence.of([[[1, 0, 0], [0.9, 0.1, 0], [0, 1, 0]]], pieces=["▁a", "▁b", "▁c"])
        >>> (head,) = head_roles(Recording([AttentionLayer("encoder", 0, (1.5,))], [sentence])).heads
        >>> head.role, round(head.scores["previous"], 2), head.scores["question"]
        ('previous', 0.95, None)
    """
    (roles,) = collect(recording, Roles(recording.layers, counts, examples))
    return roles


def rarest(pieces: Sequence[str], counts: Mapping[str, int]) -> list[bool]:
    """Tell which pieces of a sentence occur least often in a corpus; its start and end are none of them.

    >>> rarest(["<s>", "▁the", "▁lamp", "▁of"], {"▁the": 9, "▁of": 5, "▁lamp": 1})
    [False, False, True, False]
    """
    numbers = [math.inf if is_special(piece) else counts.get(piece, 0) for piece in pieces]
    return [number == min(numbers) < math.inf for number in numbers]


def merging_masses(weights: Floats, clusters: Sequence[range]) -> tuple[Floats, Floats]:
    """Return the merging score of each word, apart for words of one piece and of several: each [heads, words].

    Args:
        weights: [heads, pieces, pieces].
        clusters: the pieces of each word; one that is the whole sentence does not count.
    """
    size = weights.shape[2]
    parts = [cluster for cluster in clusters if len(cluster) < size]
    ones = [cluster.start for cluster in parts if len(cluster) == 1]
    single = weights[:, ones, ones]
    several = np.zeros((len(weights), len(parts) - len(ones)))
    for number, cluster in enumerate(c for c in parts if len(c) > 1):
        inside = weights[:, cluster.start : cluster.stop, cluster.start : cluster.stop]
        others = inside.sum(2) - inside.diagonal(0, 1, 2)  # [heads, pieces]
        several[:, number] = others.max(1)
    return single, several


def _head_role(layer: AttentionLayer, totals: Mapping[str, _Total], head: int) -> HeadRole:
    scores = {name: float(t.sums[head] / t.count) if t.count else None for name, t in totals.items()}
    uniform = {name: t.uniform / t.count if t.count else None for name, t in totals.items()}
    shares = {name: score / role.threshold for name, role in ROLES.items() if (score := scores[name]) is not None}
    # What equal weights nearly reach, too, is a property of the text: one without spaces is one word of merged pieces.
    lifts = {name: (scores[name] or 0.0) / (uniform[name] or 1.0) for name in shares}
    candidates = {name: share for name, share in shares.items() if share >= 1 and lifts[name] >= LIFT}
    if candidates.keys() & OFFSETS.keys():
        candidates.pop("merging", None)  # in a word of two pieces, the other piece is the previous or the next one
    role = max(candidates, key=lambda name: candidates[name], default=None)
    tendency = None if role else _tendency(shares, lifts)
    example_of = role or tendency
    examples = tuple(example for _, example in totals[example_of].best[head]) if example_of else ()
    counts = {name: total.count for name, total in totals.items()}
    identity = (layer.kind, layer.layer, head, layer.alphas[head])
    return HeadRole(*identity, role, tendency, scores, uniform, counts, examples)


def _tendency(shares: Mapping[str, float], lifts: Mapping[str, float]) -> str | None:
    """Return the role that exceeds equal weights most, among those whose threshold is nearly reached."""
    near = [name for name, share in shares.items() if share >= TENDENCY]
    best = max(near, key=lambda name: lifts[name], default=None)
    return best if best and lifts[best] >= LIFT else None
