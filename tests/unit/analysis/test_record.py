"""Recorded weights are those of the model: compared with recomputed weights, in batches and in files."""

from __future__ import annotations

import gc
import re
import tracemalloc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from analysis_samples import LAYERS, SRC, TGT, corpus, lstm, random_sentences, recording_of, transformer
from tsallis.analysis import (
    AttentionLayer,
    Density,
    Diversity,
    Recording,
    Roles,
    Sentence,
    SparseWeights,
    Text,
    capture_weights,
    collect,
    read_model,
    record,
)
from tsallis.analysis.contrasts import Contrasts
from tsallis.analysis.statistics import Statistic
from tsallis.errors import InputError
from tsallis.models import TransformerSeq2Seq
from tsallis.nn import MultiheadAttention
from tsallis.ops import reference
from tsallis.toolkit.data.corpus import Corpus


def weights_by_hand(attention: MultiheadAttention, query: Tensor, key: Tensor, causal: bool) -> Tensor:
    """Compute the weights [heads, queries, keys] of one sentence from the inputs of its heads, in float64."""
    weight_q, weight_k, _ = attention.in_proj_weight.chunk(3)
    bias_q, bias_k, _ = attention.in_proj_bias.chunk(3)
    q = (query @ weight_q.T + bias_q).unflatten(-1, (attention.num_heads, -1)).transpose(0, 1)
    k = (key @ weight_k.T + bias_k).unflatten(-1, (attention.num_heads, -1)).transpose(0, 1)
    scores = q @ k.mT / attention.head_dim**0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), -torch.inf)
    return reference.entmax(scores, attention.alphas()[:, None, None])


@torch.no_grad()
def compute_weights(model: TransformerSeq2Seq, data: Corpus, row: int) -> list[Tensor]:
    """Compute the weights of every attention for a single sentence."""
    model.eval()
    by_module: dict[nn.Module, Tensor] = {}
    attentions = model.attentions()

    def keep(module: nn.Module, args: Any) -> None:
        causal = module in attentions["decoder"]
        by_module[module] = weights_by_hand(module, args[0][0], args[1][0], causal)  # type: ignore[arg-type]

    modules = [module for kind in attentions.values() for module in kind]
    handles = [module.register_forward_pre_hook(keep) for module in modules]
    batch = data.batch([row])
    model(batch.src, batch.src_lengths, batch.tgt_in)
    for handle in handles:
        handle.remove()
    return [by_module[module] for module in modules]


def test_recorded_weights_match_recomputed_weights() -> None:
    data = corpus(3)
    model = transformer(encoder_layers=3)
    recording = recording_of(model, data)
    kinds = ["encoder"] * 3 + ["decoder"] * 2 + ["cross"] * 2
    names = [f"{kind} layer {number}" for kind, number in zip(kinds, (1, 2, 3, 1, 2, 1, 2), strict=True)]
    assert [layer.name for layer in recording.layers] == names
    alphas = [alpha for layer in recording.layers for alpha in layer.alphas]
    assert alphas == torch.cat([a.flatten() for a in model.alphas().values()]).tolist()
    assert [layer.causal for layer in recording.layers] == [False] * 3 + [True] * 2 + [False] * 2
    zeros = 0
    rows = set()
    for sentence in recording:
        row = sentence.text.index
        rows.add(row)
        assert sentence.text.source == tuple(map(SRC.name, data.src[row]))
        assert sentence.text.target == ("<s>", *map(TGT.name, data.tgt[row]))
        for weights, by_hand in zip(sentence.weights, compute_weights(model, data, row), strict=True):
            np.testing.assert_allclose(weights.dense(), by_hand.numpy(), atol=1e-6)
            assert (weights.support == (by_hand > 0).sum(-1).numpy()).all()
            zeros += int((by_hand == 0).sum())
    assert rows == set(range(len(data)))
    assert zeros > 30  # the recording has zeros to omit


@pytest.mark.parametrize("make", [transformer, lstm])
def test_recording_does_not_depend_on_batch_size(make: Any) -> None:
    model, data = make(), corpus(9)
    alone = {s.text.index: s for s in recording_of(model, data, 1)}
    whole = {s.text.index: s for s in recording_of(model, data, 9)}
    assert alone.keys() == whole.keys() == set(range(9))
    for index, sentence in alone.items():
        assert sentence.text == whole[index].text
        for one, other in zip(sentence.weights, whole[index].weights, strict=True):
            np.testing.assert_allclose(one.dense(), other.dense(), atol=1e-6)
            assert (one.support == other.support).all()


def test_lstm_attention_is_recorded_as_one_head() -> None:
    model, data = lstm(attention="sparsemax"), corpus()
    recording = recording_of(model, data)
    assert recording.layers == (AttentionLayer("cross", 0, (2.0,)),)
    model.eval()
    for sentence in recording:
        batch = data.batch([sentence.text.index])
        decoded = model(batch.src, batch.src_lengths, batch.tgt_in)
        np.testing.assert_allclose(sentence.weights[0].dense(), decoded.attention.detach().numpy(), atol=1e-6)


@pytest.mark.parametrize(("density", "alpha"), [("gaussian", 1.0), ("truncated_parabola", 2.0), (1.5, 1.5)])
def test_continuous_attention_records_masses(density: Any, alpha: float) -> None:
    model, data = lstm(density=density, num_basis=6), corpus()
    recording = recording_of(model, data)
    assert recording.layers == (AttentionLayer("cross", 0, (alpha,)),)
    for sentence in recording:
        batch = data.batch([sentence.text.index])
        decoded = model.eval()(batch.src, batch.src_lengths, batch.tgt_in)
        np.testing.assert_allclose(sentence.weights[0].dense()[0], decoded.attention[0].detach().numpy(), atol=1e-6)


def test_recording_restores_modes_and_removes_hooks() -> None:
    model, data = transformer(), corpus()
    model.decoder.layers[1].train(False)
    before = [module.training for module in model.modules()]
    recording = iter(recording_of(model, data))
    next(recording)  # the other sentences are never requested
    assert [module.training for module in model.modules()] == before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("module", [MultiheadAttention, nn.MultiheadAttention])
def test_capture_weights_keeps_module_outputs(module: Any, batch_first: bool) -> None:
    attention = module(8, 2, batch_first=batch_first).eval()
    x = torch.randn(3, 4, 8)
    captured: list[Tensor] = []
    calls: list[tuple[Any, Any]] = [((x, x, x), {"need_weights": False}), ((x, x, x), {})]
    calls += [((x, x, x, None, True), {"average_attn_weights": False})]
    with capture_weights([attention], lambda number, weights: captured.append(weights)):
        inside = [attention(*args, **kwargs) for args, kwargs in calls]
    outside = [attention(*args, **kwargs) for args, kwargs in calls]
    for (out, weights), (same, as_before) in zip(inside, outside, strict=True):
        torch.testing.assert_close(out, same)
        assert (weights is None) == (as_before is None)
        torch.testing.assert_close(weights, as_before)
    assert outside[0][1] is None and len(captured) == 3
    for weights in captured:
        torch.testing.assert_close(weights, outside[2][1])


def test_capture_weights_removes_hooks_after_errors() -> None:
    attention = MultiheadAttention(8, 2)
    with pytest.raises(ValueError, match="size 8"), capture_weights([attention], lambda number, weights: None):
        attention(torch.randn(1, 3), torch.randn(1, 3), torch.randn(1, 3))
    assert not attention._forward_hooks and not attention._forward_pre_hooks


class Described:
    """An adapter without a model that passes given weights."""

    def __init__(self, weights: dict[int, Tensor], layers: tuple[AttentionLayer, ...]) -> None:
        self.weights, self.layers = weights, layers

    def texts(self, batch: Any) -> list[Text]:
        return [Text(0, ("▁a", "▁b"), ()), Text(1, ("▁a",), ())]

    def run(self, batch: Any, receive: Any) -> None:
        for number, weights in self.weights.items():
            receive(number, weights)


LAYER = AttentionLayer("encoder", 0, (1.5,))


def test_custom_adapters_can_be_recorded() -> None:
    weights = torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]], [[[1.0, 0.0], [0.5, 0.5]]]])
    one, other = record(Described({0: weights}, (LAYER,)), [None])
    assert one.weights[0].dense().tolist() == [[[1, 0], [0, 1]]]
    assert other.weights[0].dense().tolist() == [[[1]]]


@pytest.mark.parametrize("shape", [(2, 1, 2), (2, 2, 2, 2), (2, 1, 1, 2), (2, 1, 2, 1), (1, 1, 2, 2)])
def test_weights_of_wrong_shape_raise(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"encoder layer 1 must have shape \(2, 1, 2, 2\)"):
        list(record(Described({0: torch.ones(shape)}, (LAYER,)), [None]))


def test_missing_layer_weights_raise() -> None:
    layers = (LAYER, AttentionLayer("encoder", 1, (1.5,)))
    with pytest.raises(ValueError, match="got none for encoder layer 2"):
        list(record(Described({0: torch.ones(2, 1, 2, 2)}, layers), [None]))


def test_models_without_supported_attention_raise() -> None:
    with pytest.raises(ValueError, match="got Linear"):
        read_model(nn.Linear(1, 1), SRC, TGT)


INVALID_LAYERS = [
    (("self", 0, (1.5,)), "encoder, decoder, cross, got 'self'"),
    (("encoder", -1, (1.5,)), "layer must be at least 0"),
    (("encoder", 0, ()), "alphas must not be empty"),
    (("cross", 0, (1.5,), True), "causal must be False"),
]


@pytest.mark.parametrize(("arguments", "message"), INVALID_LAYERS)
def test_invalid_attention_layers_raise(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AttentionLayer(*arguments)


def test_sparse_weights_round_trip_to_dense() -> None:
    dense = next(iter(random_sentences(1, LAYERS, seed=3))).weights[1].dense()
    weights = SparseWeights.of(dense)
    np.testing.assert_array_equal(weights.dense(), dense)
    for head in range(3):
        np.testing.assert_array_equal(weights.head(head).dense(), dense[head : head + 1])
    empty = SparseWeights.of(np.zeros((2, 0, 3)))
    assert empty.dense().shape == (2, 0, 3) and empty.support.shape == (2, 0)


def statistics() -> list[Statistic[Any]]:
    return [Density(LAYERS), Diversity(LAYERS), Roles(LAYERS), Contrasts(LAYERS)]


def test_empty_and_exhausted_recordings_raise() -> None:
    for statistic in statistics():
        with pytest.raises(InputError, match="it has no sentences"):
            collect(Recording(LAYERS, []), statistic)
    once = iter(list(random_sentences(2, LAYERS)))
    collect(Recording(LAYERS, once), *statistics())
    with pytest.raises(InputError, match="already used"):
        collect(Recording(LAYERS, once), *statistics())


def held(count: int) -> int:
    """Return the memory in use while the last of `count` sentences is processed."""
    layers = LAYERS[:1]
    held = 0

    def sentences() -> Iterator[Sentence]:
        nonlocal held
        for sentence in random_sentences(count, layers):
            if sentence.text.index == count - 1:
                gc.collect()  # also frees the tuples that Python keeps for reuse, whose number grows
                held = tracemalloc.get_traced_memory()[0]
            yield sentence

    tracemalloc.start()
    all_four = (Density(layers), Diversity(layers), Roles(layers), Contrasts(layers))
    collect(Recording(layers, sentences()), *all_four)
    tracemalloc.stop()
    return held


def test_memory_does_not_grow_with_the_corpus() -> None:
    held(20)  # create everything that is made only once
    few, many = held(60), held(480)
    assert many < 2 * few


def test_recording_keeps_at_most_two_batches() -> None:
    references = []
    for sentence in recording_of(transformer(), corpus(20), size=2):
        references.append(weakref.ref(sentence))
        assert sum(one() is not None for one in references) <= 2 + 2  # sentences of this batch and of the previous one
    assert len(references) == 20


def test_documentation_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "analysis.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    for block in blocks:
        exec(block, {})
    assert blocks and len(capsys.readouterr().out.splitlines()) == 12  # one card per head
