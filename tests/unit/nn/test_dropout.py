"""Tests of dropout: its rate, its scale, its gradient and its seeds."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import tsallis
from tsallis.nn.dropout import Dropout, dropout_mask
from tsallis.ops import cpu
from tsallis.ops.autograd.dropout import SeededDropout

BACKENDS = ["auto", "eager"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dropout_scales_kept_entries_and_drops_at_its_rate(backend: str, dtype: torch.dtype) -> None:
    with tsallis.backend(backend):
        for result in (Dropout(0.3)(torch.ones(200, 500, dtype=dtype)), dropout_mask((200, 500), 0.3, torch.ones(1))):
            assert result.unique().tolist() == pytest.approx([0, 1 / 0.7])
            assert (result == 0).double().mean().item() == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize("backend", BACKENDS)
def test_seed_reproduces_dropout_and_gradient_matches_its_mask(backend: str) -> None:
    x = torch.randn(7, 5, 3).transpose(0, 1).requires_grad_()  # not contiguous
    runs = []
    with tsallis.backend(backend):
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            runs.append(Dropout(0.5)(x))
    assert runs[0].equal(runs[1]) and not runs[0].equal(runs[2])
    for y in runs:
        (grad,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        assert (grad * x).equal(y)
        (expanded,) = torch.autograd.grad(y, x, torch.ones(()).expand_as(y))
        assert expanded.equal(grad)


def test_dropout_passes_gradcheck_and_gradgradcheck() -> None:
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)

    def drop(x: torch.Tensor) -> torch.Tensor:
        return SeededDropout.apply(x, cpu, 0.6, 5) * x

    assert gradcheck(drop, x, check_batched_grad=True) and gradgradcheck(drop, x)


def test_dropout_handles_eval_mode_p_0_p_1_and_empty_inputs() -> None:
    x = torch.randn(50)
    assert Dropout(0.5).eval()(x) is x and Dropout(0.0)(x).equal(x) and (Dropout(1.0)(x) == 0).all()
    assert Dropout(0.5)(x[:0]).shape == (0,)
    assert dropout_mask((3, 0), 0.5, x).shape == (3, 0)


def test_dropout_supports_bfloat16_vmap_and_compile() -> None:
    x = torch.ones(100)
    assert Dropout(0.5)(x.bfloat16()).unique().tolist() == [0, 2]
    jacobian = torch.func.vmap(torch.func.grad(lambda x: Dropout(0.5)(x).sum()), randomness="different")(
        x.expand(3, -1)
    )
    assert jacobian.unique().tolist() == [0, 2]
    torch._dynamo.reset()
    compiled = torch.compile(Dropout(0.5), backend="aot_eager", fullgraph=True)
    assert compiled(x).unique().tolist() == [0, 2]
