"""Tests of models that read features separately, against an explicit computation with two encoders and a gate."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tsallis.functional import entmax
from tsallis.models import RNNSeq2Seq, TransformerSeq2Seq
from tsallis.models.copying import with_unknown
from tsallis.models.features import FeatureTypes

FEATURES = [4, 5, 6]
SRC, TGT = 11, 9
TOKENS = torch.tensor([[1, 4, 5, 8]])


def rnn(**options: Any) -> RNNSeq2Seq:
    torch.manual_seed(0)
    model = RNNSeq2Seq(SRC, TGT, 8, **{"dropout": 0.0, "features": FEATURES, **options}).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8)
    return model


def transformer(**options: Any) -> TransformerSeq2Seq:
    torch.manual_seed(0)
    return TransformerSeq2Seq(SRC, TGT, 8, 2, 2, 8, 0.0, features=FEATURES, **options).double().eval()


def run(model: Any, *src: int) -> Any:
    return model(torch.tensor([src]), torch.tensor([len(src)]), TOKENS, need_attention=True)


def read(encoder: Any, embedding: Any, symbols: list[int]) -> tuple[Tensor, Any]:
    """Return the states [1, symbols, d_model] of an encoder that reads only these symbols, and its last states."""
    return encoder(embedding(torch.tensor([symbols])))


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_symbols_and_features_are_encoded_separately(cell: str) -> None:
    model = rnn(cell=cell)
    memory = model.encode(torch.tensor([[5, 7, 4, 9, 8]]), torch.tensor([5]))
    symbols, last = read(model.encoder, model.src_embedding, [7, 9, 8])
    features, _ = read(model.feature_encoder, model.src_embedding, [5, 4])
    torch.testing.assert_close(memory.states[:, [1, 3, 4]], symbols)
    torch.testing.assert_close(memory.states[:, [0, 2]], features)
    assert memory.features is not None and memory.features.tolist() == [[True, False, True, False, False]]
    first = last[0] if cell == "lstm" else last
    torch.testing.assert_close(memory.summary[0], torch.cat([first[0], first[1]], -1))


@pytest.mark.parametrize("attention", ["softmax", "entmax", "sparsemax"])
def test_step_matches_formula(attention: str) -> None:
    model = rnn(attention=attention, layers=1, output="softmax")
    memory = model.encode(torch.tensor([[5, 7, 4, 9, 8]]), torch.tensor([5]))
    step = model.step(model.start(memory), torch.tensor([1]))
    embedded = torch.cat([model.tgt_embedding(torch.tensor([1])), torch.zeros(1, 8)], -1)
    _, (state, _) = model.decoder(embedded.unsqueeze(0), tuple(x.unsqueeze(0) for x in memory.summary))
    state, places, contexts, hidden = state[0, 0], ([1, 3, 4], [0, 2]), [], []
    weights = torch.zeros(2, 5, dtype=torch.float64)
    alpha = model.attention.alpha
    parts = (model.attention, model.combine), (model.features.attention, model.features.combine)
    for part, (attend, combine), own in zip(weights, parts, places, strict=True):
        part[own] = entmax(attend.bilinear(memory.states[0, own]) @ state, alpha).detach()
        contexts.append(part @ memory.states[0])
        hidden.append(torch.tanh(combine(torch.cat([contexts[-1], state]))))
    gate = entmax(model.features.gate(torch.cat([*contexts, state])), alpha)
    torch.testing.assert_close(step.attention[0], gate @ weights)
    torch.testing.assert_close(step.scores[0], model.output(gate[0] * hidden[0] + gate[1] * hidden[1]))


def test_lstm_ignores_feature_positions_but_not_their_order() -> None:
    model = rnn()
    expected = run(model, 5, 4, 7, 9, 8)
    moved = run(model, 7, 5, 9, 8, 4)
    torch.testing.assert_close(moved.hidden, expected.hidden)
    torch.testing.assert_close(moved.attention[..., [1, 4, 0, 2, 3]], expected.attention)
    assert not torch.allclose(run(model, 4, 5, 7, 9, 8).hidden, expected.hidden)


@pytest.mark.parametrize("src", [(7, 9, 8), (5, 4)], ids=["no features", "features alone"])
def test_sources_may_lack_symbols_or_features(src: tuple[int, ...]) -> None:
    model = rnn()
    alone = run(model, *src)
    torch.testing.assert_close(alone.attention.sum(-1), torch.ones(1, 4, dtype=torch.float64))
    both = torch.tensor([[*src, 0, 0, 0][:5], [5, 7, 9, 8, 8]])
    decoded = model(both, torch.tensor([len(src), 5]), TOKENS.repeat(2, 1))
    torch.testing.assert_close(decoded.hidden[:1], alone.hidden)


def test_the_order_of_features_has_no_effect_on_a_transformer() -> None:
    model = transformer()
    expected = run(model, 5, 4, 7, 9, 8)
    moved = run(model, 4, 7, 9, 5, 8)
    torch.testing.assert_close(moved.hidden, expected.hidden)
    torch.testing.assert_close(moved.attention[..., [3, 0, 1, 2, 4]], expected.attention)
    assert not torch.allclose(run(model, 5, 4, 9, 7, 8).hidden, expected.hidden)


def test_features_have_position_0_and_symbols_start_at_1() -> None:
    """Check positions: features have position 0 and symbols count from 1, even without features."""
    types = FeatureTypes(SRC, FEATURES, 8)
    assert types(torch.tensor([[7, 8, 0]]))[0].tolist() == [[1, 2, 3]]
    positions, embedded = types(torch.tensor([[4, 7, 5]]))
    assert positions.tolist() == [[0, 1, 0]] and embedded[0].equal(types.weight[[1, 0, 1]])


def test_unknown_symbols_are_not_features() -> None:
    model = with_unknown(rnn(copy=[-1] * 7 + [4, 5, 6, 7]), (TGT,))
    memory = model.encode(torch.tensor([[5, 3, SRC, 8]]), torch.tensor([4]))
    assert memory.features.tolist() == [[True, False, False, False]]


INCOMPATIBLE = [
    (rnn, {"features": [3]}, "source symbols from 4 to 10, got 3"),
    (rnn, {"features": [4, SRC]}, "source symbols from 4 to 10, got 11"),
    (rnn, {"density": "gaussian"}, "density must be None with features, got 'gaussian'"),
    (transformer, {"positions": "rope"}, "positions must be 'sinusoids' with features, got 'rope'"),
]


@pytest.mark.parametrize(("make", "options", "message"), INCOMPATIBLE)
def test_incompatible_arguments_raise(make: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**options)
