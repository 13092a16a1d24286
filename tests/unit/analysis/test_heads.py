"""Statistics of heads equal numbers known by hand, and loops over dense weights."""

from __future__ import annotations

import json
import math
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from analysis_samples import corpus, encoder, recording_of, transformer
from tsallis.analysis import (
    AttentionLayer,
    Contrasts,
    Histogram,
    Recording,
    Sentence,
    SparseWeights,
    Text,
    compare_models,
    density,
    density_contrasts,
    diversity,
    head_cards,
    head_roles,
    to_pandas,
)
from tsallis.analysis.density import Density
from tsallis.analysis.tables import Bins
from tsallis.analysis.words import word_clusters
from tsallis.errors import InputError
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.data.vocabulary import Vocabulary
from tsallis.toolkit.run_analysis.summary import count_pieces

Array = NDArray[np.float64]


def shifted(size: int, offset: int) -> Array:
    """Return a head that attends to the key at an offset, or to itself if there is no such key."""
    weights = np.eye(size, k=offset)
    weights[weights.sum(1) == 0] = np.eye(size)[weights.sum(1) == 0]
    return weights


def uniform(size: int) -> Array:
    return np.full((size, size), 1 / size)


@pytest.fixture(scope="module")
def model_recording() -> Recording:
    """Return the recorded attention of a model, kept in memory."""
    active = recording_of(transformer(), corpus(12))
    return Recording(active.layers, list(active))


def dense(recording: Recording) -> Any:
    """Yield the weights [heads, queries, keys] of each layer and sentence, with the text and the layer."""
    for sentence in recording:
        for layer, weights in zip(recording.layers, sentence.weights, strict=True):
            yield sentence.text, layer, weights.dense()


# Density


def test_density_matches_loops(model_recording: Recording) -> None:
    sums: dict[Any, list[float]] = {}
    for _, layer, weights in dense(model_recording):
        for head in range(layer.heads):
            positive = visible = 0
            for i, row in enumerate(weights[head]):
                row_part = row[: i + 1] if layer.causal else row
                positive += int((row_part > 0).sum())
                visible += len(row_part)
            sums.setdefault((layer.kind, layer.layer, head), []).append(positive / visible)
    densities = density(model_recording)
    assert densities.sentences == 12 and len(densities.heads) == 12
    for head in densities.heads:
        values = sums[head.kind, head.layer, head.head]
        assert head.density == pytest.approx(np.mean(values), abs=1e-12)
        assert head.histogram == Histogram.of(values, 20)
    kinds = densities.by_kind()
    for kind, histogram in kinds.items():
        values = [value for key, densities_of_head in sums.items() if key[0] == kind for value in densities_of_head]
        assert histogram == Histogram.of(values, 20)
    layers = densities.by_layer()
    assert {kind: [len(heads) for heads in of_kind] for kind, of_kind in layers.items()} == {
        kind: [2, 2] for kind in kinds
    }
    assert all(heads == sorted(heads) for of_kind in layers.values() for heads in of_kind)


# Diversity


@pytest.mark.parametrize("heads", [2, 3, 4])
def test_divergence_matches_closed_form_for_equal_and_disjoint(heads: int) -> None:
    equal = np.stack([uniform(4)] * heads)
    assert diversity(encoder(equal)).layers[0].divergence == pytest.approx(0, abs=1e-12)
    disjoint = np.zeros((heads, 4, 4))
    for head in range(heads):
        disjoint[head, :, head] = 1
    result = diversity(encoder(disjoint)).layers[0]
    assert result.divergence == pytest.approx(math.log(heads) / math.log(4), abs=1e-12) and result.queries == 4


def test_divergence_is_at_most_one() -> None:
    many = np.eye(3)[np.arange(9) % 3][:, None, :].repeat(3, 1)  # nine heads on three keys
    assert diversity(encoder(many)).layers[0].divergence == pytest.approx(1, abs=1e-12)


def test_diversity_ignores_queries_with_one_key() -> None:
    assert diversity(encoder([[[1.0]], [[1.0]]])).layers[0].divergence is None
    layer = AttentionLayer("encoder", 0, (1.5, 1.5), causal=True)
    sentence = Sentence.of([[[1, 0], [1, 0]], [[1, 0], [0, 1]]])
    (result,) = diversity(Recording([layer], [sentence])).layers
    assert result.queries == 1 and result.divergence == pytest.approx(1)


def test_divergence_matches_loops(model_recording: Recording) -> None:
    def entropy(probs: Array, base: int) -> float:
        return -sum(p * math.log(p) / math.log(base) for p in probs if p > 0)

    sums: dict[Any, list[float]] = {}
    for _, layer, weights in dense(model_recording):
        for i in range(weights.shape[1]):
            base = min(i + 1, weights.shape[2]) if layer.causal else weights.shape[2]
            if base > 1:
                js = entropy(weights[:, i].mean(0), base) - np.mean([entropy(p, base) for p in weights[:, i]])
                sums.setdefault((layer.kind, layer.layer), []).append(js)
    for result in diversity(model_recording).layers:
        values = sums[result.kind, result.layer]
        assert result.queries == len(values)
        assert result.divergence == pytest.approx(np.mean(values), abs=1e-6)
        assert 0.05 < result.divergence < 1


# Words


SPLITS = [
    ("▁lam p s", [[0, 1, 2]]),
    ("▁a ▁lam p .", [[0], [1, 2], [3]]),
    ("▁« ▁we ll - know n » ▁.", [[0], [1, 2, 3, 4, 5], [6], [7]]),
    ("▁( what ? ! ▁ok", [[0], [1], [2], [3], [4]]),
    ("<s> ▁lam p </s>", [[0], [1, 2], [3]]),
    ("<s> lam p </s> ▁x", [[0], [1, 2], [3], [4]]),
    ("d r a w", [[0], [1], [2], [3]]),
    ("▁- -", [[0], [1]]),
    ("", []),
]


@pytest.mark.parametrize(("pieces", "clusters"), SPLITS)
def test_pieces_are_grouped_into_words(pieces: str, clusters: list[list[int]]) -> None:
    assert [list(cluster) for cluster in word_clusters(pieces.split())] == clusters


# Roles


@pytest.mark.parametrize(("role", "offset"), [("previous", -1), ("self", 0), ("next", 1)])
def test_a_perfect_positional_head_scores_one(role: str, offset: int) -> None:
    (head,) = head_roles(encoder([shifted(5, offset)], [shifted(3, offset)])).heads
    assert head.role == role and head.scores[role] == 1
    others = {"previous", "self", "next"} - {role}
    assert all(head.scores[other] <= 1 / 3 for other in others)  # type: ignore[operator]
    assert [example.text.index for example in head.examples] == [0, 1]  # the longer sentence shows more
    assert [example.score for example in head.examples] == [1, 1]


def test_a_uniform_head_has_no_role() -> None:
    (head,) = head_roles(encoder([uniform(6)])).heads
    assert head.role is None and head.examples == ()
    assert head.scores["previous"] == pytest.approx(1 / 6)


TENDENCIES = [(8, 0.41, None), (8, 0.43, "previous"), (8, 0.69, "previous"), (8, 0.71, None)]
TENDENCIES += [(3, 0.5, None), (4, 0.51, "previous")]


@pytest.mark.parametrize(("size", "weight", "tendency"), TENDENCIES)
def test_tendency_is_near_threshold_and_far_above_uniform(size: int, weight: float, tendency: str | None) -> None:
    weights = np.full((size, size), (1 - weight) / (size - 1))
    weights[np.eye(size, k=-1, dtype=bool)] = weight
    (head,) = head_roles(encoder([weights])).heads
    assert head.scores["previous"] == pytest.approx(weight)
    assert head.tendency == tendency and head.role == ("previous" if weight >= 0.7 else None)
    assert len(head.examples) == (weight >= 0.7 or tendency is not None)


def test_tendency_prefers_role_farther_above_uniform() -> None:
    """Half of the weight goes to the previous piece; in words of three pieces, merging is nearer to its threshold."""
    weights = np.full((9, 9), 0.5 / 8)
    weights[np.eye(9, k=-1, dtype=bool)] = 0.5
    pieces = [["▁a", "b", "c", "▁d", "e", "f", "▁g", "h", "i"]]
    (head,) = head_roles(encoder([weights], pieces=pieces)).heads
    merging, previous = head.scores["merging"], head.scores["previous"]
    assert merging is not None and previous is not None and merging > previous and head.tendency == "previous"


def test_uniform_scores_match_a_uniform_head() -> None:
    heads = head_roles(encoder([uniform(6), shifted(6, -1)], pieces=[WORDS])).heads
    for head in heads:
        assert head.uniform == pytest.approx({name: score for name, score in heads[0].scores.items()})


def test_causal_heads_have_no_next_score() -> None:
    layer = AttentionLayer("encoder", 0, (1.5,), causal=True)
    (head,) = head_roles(Recording([layer], [Sentence.of([shifted(4, -1)])])).heads
    assert head.scores["next"] is None
    assert head.scores["previous"] == 1 and head.role == "previous"


WORDS = ["▁the", "▁lam", "p", "▁burn", "s", "."]


def within_words(merge: bool) -> Array:
    """Return a head that attends to the other piece of its word, or to itself."""
    weights = np.eye(6)
    if merge:
        for i, j in ((1, 2), (3, 4)):
            weights[[i, j]] = weights[[j, i]]
    return weights


def test_merging_scores_match_known_values() -> None:
    halves = np.eye(6)
    for i, j in ((1, 2), (3, 4)):
        halves[np.ix_([i, j], [i, j])] = 0.5
    both = [within_words(True), within_words(False), halves, uniform(6)]
    merges, stays, half, even = head_roles(encoder(both, pieces=[WORDS])).heads
    assert merges.scores["clusters"] == merges.scores["merging"] == merges.scores["within_word"] == 1
    assert merges.role == "merging"
    assert stays.scores["clusters"] == 0.5  # two words have one piece, two have several
    assert stays.scores["merging"] == 0 and stays.scores["within_word"] == 1
    assert stays.role == "self"
    assert half.scores["merging"] == 0.5 and half.scores["clusters"] == 0.75
    assert even.scores["clusters"] == pytest.approx(1 / 6)
    assert even.scores["within_word"] == pytest.approx((2 * 1 + 4 * 2) / 36)


def test_positional_role_takes_precedence_over_merging() -> None:
    """All words have two pieces, so the other piece is the previous one or its continuation."""
    weights = shifted(4, -1)
    weights[0] = [0, 1, 0, 0]
    weights[2] = [0, 0.2, 0, 0.8]
    (head,) = head_roles(encoder([weights], pieces=[["▁a", "b", "▁c", "d"]])).heads
    merging, previous = head.scores["merging"], head.scores["previous"]
    assert merging is not None and previous is not None and merging > previous >= 0.7 and head.role == "previous"


def test_merging_score_is_the_maximum_within_a_word() -> None:
    weights = np.eye(4)
    weights[0] = [0.1, 0.6, 0.3, 0]  # .9 to the other pieces of the word; the other pieces attend to themselves
    (head,) = head_roles(encoder([weights], pieces=[["▁a", "b", "c", "▁d"]])).heads
    assert head.scores["merging"] == pytest.approx(0.9)


def test_roles_met_by_uniform_weights_are_not_assigned() -> None:
    """A text without spaces is one long word and a punctuation mark, so every head merges pieces."""
    pieces = ["▁", *"今日は良い天気です", "▁."]
    cyclic = shifted(11, -1)
    even, last = head_roles(encoder([uniform(11), cyclic], pieces=[pieces])).heads
    assert even.scores["merging"] == pytest.approx(9 / 11) and even.role is None
    assert last.scores["merging"] is not None and last.scores["merging"] > 0.8 and last.role == "previous"
    short = ["▁a", "b", *(f"▁{i}" for i in range(9))]
    assert head_roles(encoder([uniform(11)], pieces=[short])).heads[0].role is None


def test_question_score_matches_known_value() -> None:
    pieces = ["▁What", "▁do", "▁you", "▁wh", "en", "?"]
    weights = np.eye(6)
    weights[[0, 3, 4]] = [[0, 0, 0, 0, 0, 1], [0.2, 0, 0, 0, 0, 0.8], [0.1, 0, 0, 0, 0, 0.9]]
    statement = ["▁what", "▁he", "▁said", "."]
    (head,) = head_roles(encoder([weights], [shifted(4, -1)], pieces=[pieces, statement])).heads
    assert head.scores["question"] == pytest.approx(0.9)
    assert head.role == "question"
    assert [example.text.source[-1] for example in head.examples] == ["?"]


def test_start_punctuation_rare_and_end_roles_are_detected() -> None:
    pieces = ["<s>", "▁the", ",", "▁quixotic", "</s>"]
    counts = {"source": {"▁the": 3, ",": 3, "▁quixotic": 1}}
    to = {name: np.eye(5)[np.full(5, i)] for name, i in (("start", 0), ("punctuation", 2), ("rare", 3), ("end", 4))}
    heads = head_roles(encoder(list(to.values()), pieces=[pieces]), counts).heads
    assert [head.role for head in heads] == list(to)
    for head, name in zip(heads, to, strict=True):
        assert {other: head.scores[other] for other in to} == {other: float(other == name) for other in to}
        assert {other: head.counts[other] for other in to} == dict.fromkeys(to, 5)
    assert head_roles(encoder(list(to.values()), pieces=[pieces])).heads[2].scores["rare"] is None


def test_rare_tokens_are_counted_on_the_attended_side() -> None:
    layers = [AttentionLayer("decoder", 0, (1.5,)), AttentionLayer("cross", 0, (1.5,))]
    text = Text(0, ("▁a", "▁b"), ("<s>", "▁a", "▁b"))
    to_last = [np.eye(3)[[2, 2, 2]][None], np.eye(2)[[1, 1, 1]][None]]
    sentence = Sentence(text, tuple(map(SparseWeights.of, to_last)))
    counts = count_pieces(Corpus([[4, 5, 5]], [[5, 4, 4]]), *[Vocabulary(["▁a", "▁b"])] * 2)
    decoder, context = head_roles(Recording(layers, [sentence]), counts).heads
    assert (decoder.scores["rare"], context.scores["rare"]) == (1, 0)  # in the source, the other piece is rare


def test_example_counts_below_1_raise() -> None:
    recording = encoder([uniform(2)])
    for call in (
        lambda: head_roles(recording, examples=0),
        lambda: density_contrasts(recording, 0),
        lambda: compare_models(recording, recording, "encoder", -1),
    ):
        with pytest.raises(ValueError, match="must be at least 1, got"):
            call()


def test_roles_ignore_queries_without_a_choice() -> None:
    (head,) = head_roles(encoder([[[1.0]]], pieces=[["."]])).heads
    assert set(head.scores.values()) == {None}
    (head,) = head_roles(encoder([shifted(2, 0)], pieces=[["▁.", "!"]])).heads
    assert head.scores["punctuation"] is None and head.scores["self"] == 1


def test_role_scores_match_loops(model_recording: Recording) -> None:
    sums: dict[Any, list[float]] = {}
    for text, layer, weights in dense(model_recording):
        queries, keys = text.sides(layer.kind)
        for head in range(layer.heads):
            for i in range(len(queries)):
                visible = range(i + 1 if layer.causal else len(keys))
                targets = {"punctuation": [j for j in visible if keys[j] in ".?"]}
                if layer.kind != "cross":
                    targets |= {
                        name: [j for j in visible if j == i + offset]
                        for name, offset in (("previous", -1), ("self", 0), ("next", 1))
                    }
                for name, columns in targets.items():
                    if 0 < len(columns) < len(visible):
                        mass = sum(weights[head, i, j] for j in columns)
                        sums.setdefault((layer.kind, layer.layer, head, name), []).append(mass)
    for result in head_roles(model_recording).heads:
        for name in ("punctuation", "previous", "self", "next"):
            values = sums.get((result.kind, result.layer, result.head, name))
            expected = None if values is None else pytest.approx(np.mean(values), abs=1e-6)
            assert result.scores[name] == expected


def test_examples_have_the_highest_scores() -> None:
    def to_previous(weight: float, size: int) -> list[Array]:
        return [weight * shifted(size, -1) + (1 - weight) * np.eye(size)]

    recording = encoder(*(to_previous(weight, 9) for weight in (0.7, 0.9, 0.75, 1.0, 0.8)))
    (head,) = head_roles(recording, examples=2).heads
    assert [example.text.index for example in head.examples] == [3, 1]
    assert [example.score for example in head.examples] == pytest.approx([1, 0.9])


# Contrasts


def test_contrasts_pair_the_sparsest_and_the_densest_of_one_length() -> None:
    sentences = [[shifted(4, -1)], [uniform(4)], [0.5 * shifted(4, -1) + 0.5 * shifted(4, 1)], [uniform(7)]]
    (pair,) = density_contrasts(encoder(*sentences), shortest=4)
    assert (pair.sparse.text.index, pair.dense.text.index) == (0, 1)
    assert (pair.sparse.score, pair.dense.score, pair.difference) == (0.25, 1, 0.75)


def test_contrasts_break_ties_by_sentence_index() -> None:
    sentences = [[uniform(3)], [shifted(3, 0)], [uniform(3)], [shifted(3, 1)]]
    recording = encoder(*sentences)
    for order in ((0, 1, 2, 3), (3, 2, 1, 0)):
        contrasts = Contrasts(recording.layers, shortest=3)
        for number in order:
            contrasts.update(list(recording)[number])
        (pair,) = contrasts.result()
        assert (pair.sparse.text.index, pair.dense.text.index) == (1, 0)


def test_models_are_compared_word_by_word() -> None:
    turned = shifted(3, -1)
    turned[2] = [1, 0, 0]
    first, second = encoder([shifted(3, -1)] * 2), encoder([turned])
    contrast = compare_models(first, second, "encoder", count=2)
    assert contrast.words == 3 and [word.position for word in contrast.agree] == [0, 1]
    assert contrast.differ[0].piece == "▁3"
    assert contrast.differ[0].between == pytest.approx(math.log(2) / math.log(3))
    assert (contrast.differ[0].first, contrast.differ[0].second) == (0, 0)
    assert contrast.mean == pytest.approx(math.log(2) / math.log(3) / 3)
    assert (contrast.differ[0].first_keys, contrast.differ[0].second_keys) == ((("▁2", 1.0),), (("▁1", 1.0),))
    same = compare_models(first, first, "encoder")
    assert all(word.between == 0 for word in same.differ) and same.mean == 0


def test_model_comparison_matches_loops() -> None:
    """Compare the extreme divergences of mean heads with a loop over words, on dense weights of two models."""
    data = corpus(12)
    recordings = [recording_of(transformer(), data, 4) for _ in range(2)]
    divergences = []
    for one, other in zip(*recordings, strict=True):
        first, second = (s.weights[2].dense() for s in (one, other))
        rows = enumerate(zip(first.mean(0), second.mean(0), strict=True), 1)
        for visible, pair in rows:
            if visible > 1:
                p = [part[:visible] for part in (sum(pair) / 2, *pair)]  # type: ignore[arg-type]
                nats = [-sum(x * math.log(x) for x in part.tolist() if x > 0) for part in p]
                divergences.append((nats[0] - (nats[1] + nats[2]) / 2) / math.log(visible))
    assert recordings[0].layers[2].kind == "decoder"
    pairs = [Recording(r.layers[2:3], [Sentence(s.text, s.weights[2:3]) for s in r]) for r in recordings]
    contrast = compare_models(pairs[0], pairs[1], "decoder", count=5)
    assert contrast.words == len(divergences) and contrast.mean == pytest.approx(np.mean(divergences), abs=1e-6)
    assert [word.between for word in contrast.differ] == pytest.approx(sorted(divergences)[::-1][:5], abs=1e-6)
    assert [word.between for word in contrast.agree] == pytest.approx(sorted(divergences)[:5], abs=1e-6)


def test_contrasts_skip_short_sentences_and_keep_best_pair() -> None:
    lengths = [4, 4, 7, 7]
    sentences = [[uniform(n) if i % 2 else shifted(n, 0), shifted(n, 0)] for i, n in enumerate(lengths)]
    (pair,) = density_contrasts(encoder(*sentences), shortest=4)
    assert (pair.head, pair.sparse.text.index, pair.difference) == (0, 2, 1 - 1 / 7)  # and not 1 - 1 / 4
    assert density_contrasts(encoder(*sentences[:2])) == ()


def test_compare_models_rejects_mismatched_recordings(model_recording: Recording) -> None:
    with pytest.raises(InputError, match=r"kind must be one of encoder .*, got 'decoder'"):
        compare_models(encoder([uniform(2)]), model_recording, "decoder")
    with pytest.raises(InputError, match=r"same sentences .* sentence 1 differs"):
        compare_models(encoder([uniform(2)]), encoder([uniform(3)]), "encoder")
    with pytest.raises(InputError, match="only one read sentence 2"):
        compare_models(encoder([uniform(2)], [uniform(2)]), encoder([uniform(2)]), "encoder")
    with pytest.raises(InputError, match="can't compare the models"):
        compare_models(encoder([[[1.0]]]), encoder([[[1.0]]]), "encoder")


# Cards


def test_cards_say_what_heads_do() -> None:
    heads = [shifted(40, -1), uniform(40), shifted(40, 7), shifted(40, 1)]
    cards = head_cards(encoder(heads, alpha=1.714))
    assert [card.title for card in cards] == [
        "encoder layer 1 head 1 attends to the previous token with confidence 1.00, alpha 1.71, density 2 %",
        "encoder layer 1 head 4 attends to the next token with confidence 1.00, alpha 1.71, density 2 %",
        "encoder layer 1 head 3 attends sparsely, without a role, alpha 1.71, density 2 %",
        "encoder layer 1 head 2 attends to nearly everything, without a role, alpha 1.71, density 100 %",
    ]
    assert [card.head for card in cards] == [0, 3, 2, 1]
    assert cards[0].examples[0].text.index == 0 and cards[2].examples == ()
    assert cards[0].confidence == 1 and cards[3].confidence is None


def test_cards_of_tendencies_precede_cards_without_a_role() -> None:
    near = 0.41 * shifted(8, -1) + 0.59 * uniform(8)
    cards = head_cards(encoder([np.eye(8)[np.arange(8) // 4], near, shifted(8, -1)]))
    assert [card.head for card in cards] == [2, 1, 0]
    assert cards[1].title == (
        "encoder layer 1 head 2 has no role; the closest is a head that attends to the previous token (0.48 of 0.70), "
        "alpha 1.50, density 100 %"
    )


# Records


def test_results_round_trip_through_json(model_recording: Recording) -> None:
    for compute in (density, diversity, head_roles, lambda recording: density_contrasts(recording)[0]):
        as_dict = compute(model_recording).to_dict()  # type: ignore[operator]
        assert json.loads(json.dumps(as_dict)) == as_dict


def test_tables_need_pandas(monkeypatch: pytest.MonkeyPatch, model_recording: Recording) -> None:
    heads = density(model_recording).heads
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        to_pandas(heads)
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    assert to_pandas(heads)[0] == heads[0].to_dict()


def test_histograms_count_everything() -> None:
    values = np.linspace(0, 1, 101)
    assert sum(Histogram.of(values, 7).counts) == 101
    with pytest.raises(ValueError, match=r"from 0 to 1, got 1\.5"):
        Histogram.of([0.2, 1.5], 3)
    with pytest.raises(ValueError, match="got nan"):
        Histogram.of([math.nan], 3)
    parts, whole = Bins(0.1), Bins(0.1)
    parts.add(values[:50])
    parts.add(values[50:])
    whole.add(values)
    assert parts.histogram() == whole.histogram() and sum(whole.histogram().counts) == 101
    assert Bins(1).histogram() == Histogram((), ())


@pytest.mark.parametrize("bins", [1, 3, 7, 50, 100, 200])
def test_coarser_histograms_preserve_counts_and_range(bins: int) -> None:
    fine = Histogram.of(np.linspace(0, 1, 101) ** 2, 100)
    coarse = fine.coarser(bins)
    assert len(coarse.counts) <= bins and sum(coarse.counts) == 101
    assert (coarse.edges[0], coarse.edges[-1], len(coarse.edges)) == (0, 1, len(coarse.counts) + 1)
    for low, high, count in zip(coarse.edges, coarse.edges[1:], coarse.counts, strict=False):
        assert count == sum(c for edge, c in zip(fine.edges, fine.counts, strict=False) if low <= edge < high)


def test_a_sentence_without_keys_does_not_count_for_the_density() -> None:
    statistic = Density([AttentionLayer("cross", 0, (1.5,))])
    statistic.update(Sentence.of([[[1, 0], [0.5, 0.5]]]))
    statistic.update(Sentence.of(np.zeros((1, 2, 0))))
    (head,) = statistic.result().heads
    assert head.density == 0.75 and sum(head.histogram.counts) == 1
