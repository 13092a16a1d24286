"""Tests of visual question answering: image grids, masses of their cells, three kinds of attention."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from torch import nn

import tsallis
from contract import test_classifiers as classifiers
from tsallis.continuous import grid_centres, grid_masses, moments
from tsallis.models.vqa import ImageGrid, VisualAnswerer

every_kind = pytest.mark.parametrize(("attention", "transform", "density"), classifiers.QUESTIONS)


make, questions = (functools.partial(function, "questions") for function in (classifiers.make, classifiers.inputs))

# Values of Martins et al. 2020, table 5 and sec. 4; `ridge` and `positions` are from the authors' code.
PAPER: dict[str, Any] = {
    "d_model": 512,
    "heads": 8,
    "layers": 6,
    "d_ff": 2048,
    "dropout": 0.1,
    "d_embedding": 300,
    "d_flat": 512,
    "d_fused": 1024,
    "image": "features",
    "d_image": 2048,
    "positions": False,
    "num_basis": 100,
    "basis": "image-paper",
    "ridge": 0.01,
}


def test_picture_grid_adds_row_and_column_positions() -> None:
    layer = ImageGrid(16, stages=3)
    pictures = torch.randint(256, (2, 24, 40, 3), dtype=torch.uint8)
    grid = layer(pictures)
    assert grid.shape == (2, 3, 5, 16)
    torch.testing.assert_close(layer(pictures / 255), grid)
    assert [c.out_channels for c in layer.modules() if isinstance(c, nn.Conv2d)] == [4, 8, 16]
    plain = ImageGrid(16, stages=3, positions=False)
    plain.load_state_dict(layer.state_dict())
    places = (grid - plain(pictures))[0]
    torch.testing.assert_close(places, (grid - plain(pictures))[1])
    assert (places[:, :1, :8] - places[:, :, :8]).abs().max() < 1e-5  # one half encodes the row, the other the column
    assert (places[:1, :, 8:] - places[:, :, 8:]).abs().max() < 1e-5
    apart = torch.cdist(places.flatten(0, 1), places.flatten(0, 1)) + 9 * torch.eye(15)
    assert apart.min() > 0.5


def test_feature_grid_is_a_linear_layer() -> None:
    layer = ImageGrid(8, "features", d_image=5, positions=False)
    features = torch.randn(2, 3, 4, 5)
    torch.testing.assert_close(layer(features), features @ layer.layers.weight.T + layer.layers.bias)


@pytest.mark.parametrize(("transform", "alpha"), [("softmax", 1.0), ("sparsemax", 2.0), (1.5, 1.5)])
def test_discrete_attention_matches_formula(transform: Any, alpha: float) -> None:
    model = make("discrete", transform).eval()
    with torch.no_grad():
        model.image_flat.score.weight.mul_(4)
    images, src, lengths = questions()
    look = model.attention(images, src, lengths)
    words, _, grid = model._states(images, src, lengths)
    for i, length in enumerate(lengths.tolist()):
        parts = []
        for flat, states, own in (
            (model.question_flat, words[i, :length], 1.0),
            (model.image_flat, grid[i].flatten(0, 1), alpha),
        ):
            z = torch.relu(states @ flat.hidden.weight.T + flat.hidden.bias) @ flat.score.weight[0]
            p = tsallis.entmax(z, own)
            parts.append(flat.merge(p @ states))
        torch.testing.assert_close(look.weights[i].flatten(), p)
        fused = nn.functional.layer_norm(sum(parts), (16,), model.norm.weight, model.norm.bias)
        torch.testing.assert_close(model(images, src, lengths)[i], model.output.scores(fused))
    assert look.masses is look.weights and look.density is None


@pytest.mark.parametrize("attention", ["continuous", "combined"])
@pytest.mark.parametrize(("transform", "density"), [("softmax", None), ("softmax", 2.0), ("sparsemax", None)])
def test_continuous_attention_matches_discrete_moments(attention: str, transform: str, density: Any) -> None:
    model, discrete = make(attention, transform, density).eval(), make("discrete", transform).eval()
    shared = {name: value for name, value in model.state_dict().items() if not name.startswith("continuous.")}
    discrete.load_state_dict(shared)
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in discrete.parameters())
    images, src, lengths = questions()
    look, other = model.attention(images, src, lengths), discrete.attention(images, src, lengths)
    torch.testing.assert_close(look.weights, other.weights)
    mean, cov = moments(look.weights.flatten(1), grid_centres(3, 4), dims=2)
    torch.testing.assert_close(look.density.mean, mean)
    torch.testing.assert_close(look.density.covariance, cov + 1e-6 * torch.eye(2), atol=1e-6, rtol=1e-4)
    assert float(look.density.alpha) == (1.0 if density is None and transform == "softmax" else 2.0)
    grid = model._states(images, src, lengths)[2]
    signal = model.continuous.fit(grid.flatten(1, 2), grid=(3, 4))
    rows_alone = [type(look.density).from_factor(look.density.mean[i], look.density.factor[i],
            alpha=float(look.density.alpha), dims=2) for i in range(3)]  # fmt: skip
    context = torch.stack([density.expect(model.continuous.fit.basis) for density in rows_alone])
    context = (context.unsqueeze(1) @ signal.coefficients).squeeze(1)
    if attention == "combined":
        context = context + (look.weights.flatten(1).unsqueeze(1) @ grid.flatten(1, 2)).squeeze(1)
    torch.testing.assert_close(model._attend(grid)[0], context, atol=1e-5, rtol=1e-4)


@every_kind
def test_attention_masses_match_density(attention: str, transform: Any, density: Any) -> None:
    images, src, lengths = questions()
    model = make(attention, transform, density).eval()
    with torch.no_grad():
        model.image_flat.score.weight.mul_(8)
    hidden, look = model.read(images, src, lengths)
    torch.testing.assert_close(model.output(hidden), model(images, src, lengths))
    assert hidden.shape == (3, 16) and hidden.requires_grad
    assert look.masses.shape == look.weights.shape == (3, 3, 4)
    assert (look.masses >= 0).all() and not look.masses.requires_grad and not look.weights.requires_grad
    torch.testing.assert_close(look.weights.sum((1, 2)), torch.ones(3))
    if attention == "discrete":
        return
    assert look.density.batch_shape == (3,)
    torch.testing.assert_close(look.masses, grid_masses(look.density, 3, 4))
    assert (look.masses.sum((1, 2)) <= 1 + 1e-5).all()
    if float(look.density.alpha) > 1:
        assert look.density.support.boundary().shape == (3, 64, 2)


def test_features_can_replace_pictures() -> None:
    model = make("continuous", image="features", d_image=5, positions=False).eval()
    _, src, lengths = questions()
    features = torch.randn(3, 2, 5, 5)
    assert model.attention(features, src, lengths).masses.shape == (3, 2, 5)
    moved = model(features.half().float(), src, lengths)
    torch.testing.assert_close(model(features.half(), src, lengths), moved)
    assert model.double()(features, src, lengths).dtype == torch.float64


def test_paper_model_has_expected_parameter_count() -> None:
    """Check the size against modular co-attention without the bias of scores, which has no effect."""
    vocab, answers, d, ff, fused = 100, 31, 512, 2048, 1024
    attention, network, norm = 4 * (d * d + d), d * ff + ff + ff * d + d, 2 * d
    flat = d * 512 + 512 + 512 + d * fused + fused
    expected = vocab * 300 + 4 * d * (300 + d + 2) + 2048 * d + d + 6 * (attention + network + 2 * norm)
    expected += 6 * (2 * attention + network + 3 * norm) + 2 * flat + 2 * fused + fused * answers + answers
    with torch.device("meta"):
        for more in ({}, {"attention": "continuous"}, {"attention": "continuous", "density": 2.0}):
            model = VisualAnswerer(vocab, answers, **{**PAPER, **more})
            assert sum(p.numel() for p in model.parameters()) == expected, more
    assert model.arguments["d_flat"] == 512 and PAPER["d_fused"] == 1024
    basis = model.continuous.fit.basis
    assert basis.size == 100 and math.isclose(basis.width**2, 0.001, rel_tol=1e-5)


def test_invalid_inputs_raise() -> None:
    model = make()
    images, src, lengths = questions()
    with pytest.raises(ValueError, match=r"from 1 to 6, the width of src, got \[6, 0, 1\]"):
        model(images, src, torch.tensor([6, 0, 1]))
    with pytest.raises(ValueError, match=r"got \[7, 3, 1\]"):
        model(images, src, torch.tensor([7, 3, 1]))
    with pytest.raises(ValueError, match="one image per question, got 2 images for 3 questions"):
        model(images[:2], src, lengths)
