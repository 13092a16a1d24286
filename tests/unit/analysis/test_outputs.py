"""Output steps, trees of hypotheses and masked heads, compared with computations of one step at a time."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from analysis_samples import TGT, corpus, lstm, sharp, transformer
from contract.tables import trie
from tsallis import alpha_relu, entmax
from tsallis.analysis import beam_tree, head_importance, output_statistics, teacher_forced_supports
from tsallis.analysis.importance import mask_head
from tsallis.analysis.outputs import output_steps
from tsallis.analysis.tables import Bins
from tsallis.errors import InputError
from tsallis.models.batch import has_loss
from tsallis.nn import MultiheadAttention, OutputLayer
from tsallis.ops import reference
from tsallis.search import Certificate, Hypothesis, Result, beam_search, exhaustive
from tsallis.symbols import EOS

OUTPUTS: list[dict[str, Any]] = [{"output": name} for name in ("softmax", "sparsemax", "entmax")]
OUTPUTS += [{"output": "entmax", "output_alpha": 1.3}, {"output": "alpha_relu", "tau": 0.2}]


# Steps of outputs


@pytest.mark.parametrize("alpha", [1.1, 1.5, 2.0, 3.0])
def test_threshold_reproduces_probabilities(alpha: float) -> None:
    layer = OutputLayer(4, 9, "entmax", alpha, forbidden=(0,)).double()
    scores = layer(4 * torch.randn(20, 4, dtype=torch.float64))
    steps = output_steps(layer, scores)
    probs = reference.entmax(scores, alpha)
    again = ((alpha - 1) * scores - steps.threshold[:, None]).clamp(min=0) ** (1 / (alpha - 1))
    torch.testing.assert_close(again, probs, atol=1e-6, rtol=0)
    assert steps.support.tolist() == (probs > 0).sum(-1).tolist() and steps.support.min() < 8
    torch.testing.assert_close(steps.total, torch.ones(20).double())
    torch.testing.assert_close(steps.norm, scores[:, 1:].norm(dim=-1))  # the forbidden symbol has no score


def test_softmax_has_no_threshold_and_alpha_relu_has_tau() -> None:
    scores = torch.randn(3, 5)
    assert output_steps(OutputLayer(2, 5, "softmax"), scores).threshold is None
    steps = output_steps(OutputLayer(2, 5, "alpha_relu", 1.5, tau=0.1), scores)
    assert steps.threshold is not None and steps.threshold.tolist() == [0.1] * 3
    torch.testing.assert_close(steps.total, alpha_relu(scores, 1.5, 0.1).double().sum(-1))


@pytest.mark.parametrize("make", [transformer, lstm])
@pytest.mark.parametrize("arguments", OUTPUTS)
def test_output_statistics_match_single_steps(make: Any, arguments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = sharp(make, **arguments), corpus(9)
    monkeypatch.setattr("tsallis.analysis.outputs.MAX_SCORES", 20)  # two or three steps at once
    statistics = output_statistics(model, data.batches(4))
    supports, totals, norms = [], [], []
    model.eval()
    for row in range(9):
        batch = data.batch([row])
        with torch.no_grad():
            scores = model.output.scores(model(batch.src, batch.src_lengths, batch.tgt_in).hidden[0])
        for step in scores:
            if arguments["output"] == "alpha_relu":
                values = alpha_relu(step, 1.5, 0.2)
            else:
                values = entmax(step, model.output.alpha)
            supports.append(int((values > 0).sum()))
            totals.append(float(values.sum()))
            norms.append(math.sqrt(sum(z**2 for z in step.tolist() if z > -math.inf)))
    assert statistics.steps == len(supports) and statistics.symbols == len(TGT) - 3
    assert statistics.support == pytest.approx(sum(supports) / len(supports), abs=1e-9)
    assert statistics.support_counts == tuple(supports.count(n) for n in range(max(supports) + 1))
    assert statistics.total.mean == pytest.approx(sum(totals) / len(totals), abs=1e-6)
    assert statistics.norm.mean == pytest.approx(sum(norms) / len(norms), abs=1e-6)
    assert sum(statistics.norm.histogram.counts) == sum(statistics.total.histogram.counts) == statistics.steps
    assert (statistics.threshold is None) == (arguments["output"] == "softmax")
    # Padding, the start and unknown symbols are not outputs.
    assert statistics.sparsity == 1 - statistics.support / (len(TGT) - 3)
    assert json.loads(json.dumps(statistics.to_dict())) == statistics.to_dict()


def test_sums_of_normalised_outputs_lie_in_one_bin() -> None:
    histogram = output_statistics(sharp(transformer), corpus(9).batches(4)).total.histogram
    assert len(histogram.counts) == 1 and histogram.edges[0] < 1 < histogram.edges[1]


def test_statistics_without_batches_raise() -> None:
    with pytest.raises(InputError, match="can't describe outputs"):
        output_statistics(transformer(), [])
    with pytest.raises(InputError, match="can't compute a loss"):
        head_importance(transformer(), [])


# Forced decoding


@pytest.mark.parametrize("make", [transformer, lstm])
def test_teacher_forced_supports_match_single_steps(make: Any) -> None:
    model, data = sharp(make), corpus(6)
    rows = dict(teacher_forced_supports(model, data.batches(4), TGT))
    assert sorted(rows) == list(range(6))
    model.eval()
    for row, steps in rows.items():
        gold = [*data.tgt[row], EOS]
        assert [step.gold for step in steps] == [TGT.name(symbol) for symbol in gold]
        batch = data.batch([row])
        with torch.no_grad():
            probs = model.output.probs(model.output.scores(model(batch.src, batch.src_lengths, batch.tgt_in).hidden[0]))
        for step, symbol, values in zip(steps, gold, probs, strict=True):
            possible = {TGT.name(i): p for i, p in enumerate(values.tolist()) if p > 0}
            assert step.prob == pytest.approx(float(values[symbol]), abs=1e-6)
            assert step.support == len(possible) and dict(step.words) == pytest.approx(possible, abs=1e-6)
            assert [p for _, p in step.words] == sorted((p for _, p in step.words), reverse=True)


def test_words_argument_limits_listed_words() -> None:
    model = sharp(transformer, output="softmax")
    for _, steps in teacher_forced_supports(model, corpus(2).batches(2), TGT, words=2):
        assert all(len(step.words) == 2 and step.support == len(TGT) - 3 for step in steps)


# Trees


def search(model: Any, src: Tensor, **options: Any) -> Result:
    (result,) = exhaustive(model, src, torch.tensor([src.shape[1]]), **options)
    return result


@pytest.mark.parametrize("make", [transformer, lstm])
def test_tree_paths_match_hypotheses(make: Any) -> None:
    model, src = sharp(make, output_alpha=1.1), torch.tensor([[4, 6, 5]])
    result = search(model, src, n_best=20, max_length=4)
    assert len({h.tokens[:2] for h in result.hypotheses if len(h.tokens) > 1}) > 2  # prefixes with continuations
    tree = beam_tree(model, src, result, TGT)
    assert tree.certificate == result.certificate.kind and tree.mass == result.mass
    parents = {edge.node: edge for edge in tree.edges}
    assert len(parents) == len(tree.edges)  # every prefix occurs once
    paths = {}
    for edge in tree.edges:
        path, node = [edge], edge.parent
        while node:
            assert node < path[-1].node and not parents[node].end
            path.append(parents[node])
            node = parents[node].parent
        if edge.end:
            paths[tuple(step.symbol for step in path[::-1])] = sum(step.log_prob for step in path)
            assert edge.total == pytest.approx(sum(step.log_prob for step in path), abs=1e-12)
    expected = {(*map(TGT.name, h.tokens), "</s>"): h.log_prob for h in result.hypotheses}
    assert paths == pytest.approx(expected, abs=1e-6)


def test_in_a_complete_tree_every_step_sums_to_one() -> None:
    for seed in range(50):
        torch.manual_seed(seed)
        model, src = sharp(lstm, output="sparsemax"), torch.tensor([[4, 6, 5]])
        result = search(model, src, max_length=8)
        if result.certificate.kind == "complete" and len(result.hypotheses) > 2:
            break
    tree = beam_tree(model, src, result, TGT)
    assert tree.certificate == "complete" and tree.bound is None and tree.mass == pytest.approx(1)
    for node in {edge.parent for edge in tree.edges}:
        assert sum(edge.prob for edge in tree.children(node)) == pytest.approx(1, abs=1e-9)


def test_beam_search_tree_keeps_the_search_bound() -> None:
    model, src = sharp(transformer, output="softmax"), torch.tensor([[4, 6, 5]])
    (result,) = beam_search(model, src, torch.tensor([3]), beam_size=3, n_best=3, max_length=5)
    tree = beam_tree(model, src[0], result, TGT)
    assert sum(edge.end for edge in tree.edges) == 3
    assert tree.bound == result.certificate.bound and tree.certificate in ("optimal", "bounded")
    assert json.loads(json.dumps(tree.to_dict())) == tree.to_dict()


# d r a w (ed | n) or d r e w, as in Peters et al. 2019, fig. 1
GRAMMAR = {
    (): {4: 1.0},
    (4,): {5: 0.664, 6: 0.336},
    (4, 5): {EOS: 0.25, 6: 0.75},
    (4, 6): {EOS: 1},
    (4, 5, 6): {EOS: 1},
}


def test_a_tree_has_the_certificate_of_its_search() -> None:
    model = trie(GRAMMAR)
    result = search(model, torch.tensor([[4]]))
    tree = beam_tree(model, torch.tensor([[4]]), result, TGT)
    chain, forks = tree.chain(*tree.children(0))
    assert [edge.symbol for edge in (*chain, *forks)] == ["▁x", "▁y", "z"]
    assert tree.certificate == "complete" and tree.mass == pytest.approx(1, abs=1e-6)


def test_segmentations_of_a_text_are_one_output() -> None:
    first, second = (Hypothesis((4, token), -1.0, (1, 1), (1, 1)) for token in (5, 6))
    result = Result((replace(first, segmentations=(first, second)),), Certificate("optimal", -2.0))
    tree = beam_tree(trie(GRAMMAR), torch.tensor([[4]]), result, TGT)
    assert tree.outputs == 1 and sum(edge.end for edge in tree.edges) == 2


def test_impossible_hypotheses_raise() -> None:
    model = trie(GRAMMAR)
    result = Result((Hypothesis((5,), -1.0, (1, 1), (1, 1)),), Certificate("complete", -math.inf))
    with pytest.raises(ValueError, match="the hypothesis is impossible for this model: '▁y' has"):
        beam_tree(model, torch.tensor([[4]]), result, TGT)


def test_search_without_hypotheses_gives_an_empty_tree() -> None:
    tree = beam_tree(lstm(), torch.tensor([[4]]), Result((), Certificate("none", -1.0)), TGT)
    assert tree.edges == () and tree.children(0) == [] and tree.mass == 0 and tree.bound == -1


# Importance


def test_mask_head_zeroes_one_head() -> None:
    attention = MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(2, 3, 8)
    before = attention(x, x, x)[0]
    value = attention.in_proj_weight.detach().clone()
    with mask_head(attention, 1):
        masked = attention(x, x, x)[0]
    torch.testing.assert_close(attention(x, x, x)[0], before)  # the head is restored
    with torch.no_grad():  # set the head's values to zero
        attention.in_proj_weight[20:24] = 0
    torch.testing.assert_close(masked, attention(x, x, x)[0])
    assert not torch.allclose(masked, before)
    attention.in_proj_weight.data = value
    for head in (-1, 2):
        with pytest.raises(ValueError, match=f"from 0 to 1, got {head}"), mask_head(attention, head):
            pass


def test_head_importance_matches_zeroed_values() -> None:
    model, data = sharp(transformer), corpus(6)
    importance = head_importance(model, data.batches(4))
    batch = data.batch(list(range(6)))
    counts = has_loss(batch.tgt_out)

    def loss() -> float:
        model.eval()
        with torch.no_grad():
            hidden = model(batch.src, batch.src_lengths, batch.tgt_in).hidden
            return float(model.output.loss(hidden[counts], batch.tgt_out[counts]))

    assert importance.symbols == int(counts.sum()) and len(importance.heads) == 12
    assert importance.loss == pytest.approx(loss(), abs=1e-6)
    for head in importance.heads:
        attention = model.attentions()[head.kind][head.layer]
        weight = attention.in_proj_weight.detach().clone()
        with torch.no_grad():
            attention.in_proj_weight[16 + 4 * head.head : 20 + 4 * head.head] = 0
            assert head.loss == pytest.approx(loss(), abs=1e-6)
            attention.in_proj_weight.copy_(weight)
        assert head.increase == head.loss - importance.loss
        assert head.alpha == pytest.approx(float(attention.alphas()[head.head].detach()))
    assert [x.increase for x in importance.heads] == sorted((x.increase for x in importance.heads), reverse=True)
    assert max(x.increase for x in importance.heads) > 1e-3
    again = head_importance(model, iter(list(data.batches(4))))
    assert again == importance


def test_bins_count_only_finite_values() -> None:
    bins = Bins(1.0)
    bins.add([1, math.nan, 2, math.inf, -math.inf])
    assert bins.histogram().counts == (1, 1)
