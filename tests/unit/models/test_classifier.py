"""Tests of the document classifier: both directions, three kinds of attention, and its attention weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import tsallis
from tsallis.continuous import Gaussian, TruncatedParabola, cell_centres, moments
from tsallis.models import BiLSTMClassifier
from tsallis.models.classifier import BidirectionalLayer


def make(attention: str = "combined", transform: Any = "softmax", **more: Any) -> BiLSTMClassifier:
    torch.manual_seed(3)
    options = {"d_model": 8, "dropout": 0.0, "num_basis": 8, **more}
    return BiLSTMClassifier(30, 3, attention=attention, transform=transform, **options)


def documents(width: int = 7) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([7, 4, 1])
    src = torch.randint(4, 30, (3, width))
    return src.masked_fill(torch.arange(width) >= lengths.unsqueeze(1), 0), lengths


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_both_directions_match_packed_sequence(cell: str) -> None:
    layer = BidirectionalLayer(5, 8, cell).double()
    module = {"lstm": nn.LSTM, "gru": nn.GRU}[cell]
    packed = module(5, 4, batch_first=True, bidirectional=True).double()
    names = {f"{name}_l0{end}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh") for end in ("", "_reverse")}
    with torch.no_grad():
        for name in names:
            own = layer.backwards if name.endswith("_reverse") else layer.forwards
            getattr(own, name.removesuffix("_reverse")).copy_(getattr(packed, name))
    x, lengths = torch.randn(3, 7, 5, dtype=torch.float64), torch.tensor([4, 7, 1])
    mask = torch.arange(7) < lengths.unsqueeze(1)
    states, last = layer(x.masked_fill(~mask.unsqueeze(-1), 99.0), lengths)
    expected, hidden = packed(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    expected, _ = pad_packed_sequence(expected, batch_first=True)
    hidden = hidden[0] if cell == "lstm" else hidden
    torch.testing.assert_close(states[mask], expected[mask])
    torch.testing.assert_close(last, torch.cat([hidden[0], hidden[1]], -1))


@pytest.mark.parametrize(("transform", "alpha"), [("softmax", 1.0), ("sparsemax", 2.0), (1.5, 1.5)])
def test_discrete_attention_matches_formula(transform: Any, alpha: float) -> None:
    model = make("discrete", transform).eval()
    with torch.no_grad():
        model.score.weight.mul_(40)
    src, lengths = documents()
    attention = model.attention(src, lengths)
    states, last, _ = model._states(src, lengths)
    for row, length in enumerate(lengths.tolist()):
        own = states[row, :length]
        z = torch.tanh(own @ model.keys.weight.T + model.keys.bias + model.query.weight @ last[row])
        p = tsallis.entmax(z @ model.score.weight[0], alpha)
        torch.testing.assert_close(attention.weights[row, :length], p)
        torch.testing.assert_close(model(src, lengths)[row], model.output.scores(p @ own))
    assert attention.masses is attention.weights and attention.density is None
    assert (attention.weights[torch.arange(7) >= lengths.unsqueeze(1)] == 0).all()


@pytest.mark.parametrize(("transform", "kind"), [("softmax", Gaussian), ("sparsemax", TruncatedParabola)])
def test_combined_attention_matches_discrete_moments(transform: str, kind: Any) -> None:
    model = make("combined", transform).eval()
    src, lengths = documents()
    attention = model.attention(src, lengths)
    discrete = make("discrete", transform).eval()
    shared = {name: value for name, value in model.state_dict().items() if not name.startswith("continuous.")}
    discrete.load_state_dict(shared)
    torch.testing.assert_close(attention.weights, discrete.attention(src, lengths).weights)
    parameters = [sum(p.numel() for p in m.parameters()) for m in (model, discrete)]
    assert parameters[0] == parameters[1]
    for row, length in enumerate(lengths.tolist()):
        mean, variance = moments(attention.weights[row, :length], cell_centres(length))
        density = kind.from_scale(mean, variance + 1e-6)  # as in the paper: the variance is used as the scale
        torch.testing.assert_close(attention.density.mean[row], density.mean)
        torch.testing.assert_close(attention.density.variance[row], density.variance, atol=1e-7, rtol=1e-4)
    matched = make("combined", transform, matching="covariance").eval()
    matched.load_state_dict(model.state_dict())
    other = matched.attention(src, lengths)
    variance = moments(other.weights[0], cell_centres(7))[1] + 1e-6
    torch.testing.assert_close(other.density.variance[0], variance)


@pytest.mark.parametrize("attention", ["continuous", "combined"])
def test_attention_masses_match_density_support(attention: str) -> None:
    src, lengths = documents()
    attention_map = make(attention, "sparsemax").eval().attention(src, lengths)
    assert attention_map.density.batch_shape == (3,) and (attention_map.weights is None) == (attention == "continuous")
    cells = torch.arange(8) / lengths.unsqueeze(1)
    support = attention_map.density.support
    touched = (cells[:, 1:] > support.lower.unsqueeze(1)) & (cells[:, :-1] < support.upper.unsqueeze(1))
    there = torch.arange(7) < lengths.unsqueeze(1)
    assert ((attention_map.masses > 0) == (touched & there)).all()
    assert (attention_map.masses.sum(-1) <= 1 + 1e-6).all() and not attention_map.masses.requires_grad
    wide = make(attention, "softmax").eval().attention(src, lengths)
    assert (wide.masses[there] > 0).all()
    for density in ("laplace", "triangular", 1.25):
        other = make(attention, "softmax", density=density).eval().attention(src, lengths)
        assert other.masses.shape == (3, 7) and (other.masses >= 0).all()


def test_invalid_lengths_raise() -> None:
    model = make()
    for lengths in ([7, 4, 0], [7, 8, 1]):
        with pytest.raises(ValueError, match="src_lengths must be from 1 to 7"):
            model(documents()[0], torch.tensor(lengths))
