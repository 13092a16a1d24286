"""Tests of the supports of an output layer, computed without all scores."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import tsallis
from tsallis import SparseRows
from tsallis.nn import OutputLayer
from tsallis.ops import cpu

needs_kernel = pytest.mark.skipif(not cpu.status().available, reason=f"needs kernel: {cpu.status().reason}")
SYMBOLS, SIZE = 3000, 16


def layer(transform: str = "entmax", alpha: float = 1.5, **options: object) -> OutputLayer:
    torch.manual_seed(0)
    one = OutputLayer(SIZE, SYMBOLS, transform, alpha, **options)
    nn.init.normal_(one.projection.weight)
    return one


def states(*shape: int) -> Tensor:
    return torch.randn(*shape, SIZE, generator=torch.Generator().manual_seed(1))


def assert_same(rows: SparseRows, one: OutputLayer, hidden: Tensor) -> None:
    exact = copy.deepcopy(one).double()
    wanted = exact.probs(exact.scores(hidden.double())).reshape(-1, SYMBOLS)
    torch.testing.assert_close(rows.dense(SYMBOLS).double(), wanted.detach(), rtol=2e-5, atol=2e-6)
    assert not rows.probs.requires_grad


@pytest.mark.parametrize("transform", ["softmax", "sparsemax", "entmax"])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"forbidden": (0, 7)}])
def test_supports_match_those_from_all_scores(transform: str, options: dict[str, object]) -> None:
    one, hidden = layer(transform, **options), states(2, 50)
    if one.projection.bias is not None:
        nn.init.normal_(one.projection.bias, std=2)
    assert_same(one.support(hidden), one, hidden)


@needs_kernel
def test_support_does_not_compute_all_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    one, hidden = layer(forbidden=(1,)), states(100)
    monkeypatch.setattr(OutputLayer, "scores", None)
    with tsallis.backend("cpu"):
        rows = one.support(hidden)
    monkeypatch.undo()
    assert_same(rows, one, hidden)


def test_flat_rows_match_all_scores() -> None:
    one, hidden = layer(bias=False), states(6)
    hidden[2] = 0
    hidden[4] *= 0.01
    rows = one.support(hidden)
    assert rows.offsets.diff()[2] == SYMBOLS
    assert_same(rows, one, hidden)


def test_empty_batch_and_single_state_are_supported() -> None:
    one = layer()
    assert len(one.support(states(0))) == 0
    assert_same(one.support(states()), one, states())


@pytest.mark.parametrize("change", ["in place", "load", "replace", "data", "copy"])
def test_a_changed_weight_is_encoded_again(change: str) -> None:
    one, hidden = layer(), states(5)
    one.support(hidden)
    other = torch.randn(SYMBOLS, SIZE)
    if change == "in place":
        with torch.no_grad():
            one.projection.weight.add_(other)
    elif change == "load":
        one.load_state_dict({**one.state_dict(), "projection.weight": other})
    elif change == "replace":
        one.projection.weight = nn.Parameter(other)
    elif change == "data":
        one.projection.weight.data = other
    else:
        one = copy.deepcopy(one)
        nn.init.normal_(one.projection.weight)
    assert_same(one.support(hidden), one, hidden)


def test_the_encoded_weight_is_not_saved() -> None:
    one, hidden = layer(), states(5)
    before = len(pickle.dumps(one))
    one.support(hidden)
    assert len(pickle.dumps(one)) == before


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_support_works_in_other_dtypes_and_inference_mode(dtype: torch.dtype) -> None:
    one, hidden = layer().to(dtype), states(5).to(dtype)
    with torch.no_grad():
        scores = one.scores(hidden)
        wanted = SparseRows.from_dense(one.probs(scores.double() if dtype == torch.float64 else scores.float()))
    assert torch.equal(one.support(hidden).indices, wanted.indices)
    with torch.inference_mode():
        one = layer()
        assert_same(one.support(states(5)), one, states(5))


def test_support_rejects_gradients_alpha_relu_and_bad_states() -> None:
    one, hidden = layer(), states(2)
    with pytest.raises(ValueError, match="gradient"):
        one.support(hidden.requires_grad_())
    with pytest.raises(ValueError, match="alpha_relu"):
        layer("alpha_relu").support(states(2))
    hidden = states(2)
    hidden[1, 3] = torch.nan
    with pytest.raises(ValueError, match="hidden must be finite, got NaN or infinity"):
        one.support(hidden)
    with pytest.raises(ValueError, match=r"hidden must have the shape \[..., \d+\], got \(2, \d+\)"):
        one.support(states(2).repeat(1, 2))


def test_support_of_one_state_matches_entmax() -> None:
    one, hidden = layer(), states(1)
    probs = tsallis.entmax(one.scores(hidden), 1.5)
    rows = one.support(hidden)
    assert rows.indices.tolist() == probs[0].nonzero().flatten().tolist()


def test_support_notices_the_steps_of_fused_optimizers() -> None:
    one, hidden = layer(), states(3)
    one.support(hidden)
    optimizer = torch.optim.AdamW(one.parameters(), lr=0.5, fused=True)
    one.loss(hidden, torch.tensor([1, 2, 3])).backward()
    optimizer.step()
    assert_same(one.support(hidden), one, hidden)
