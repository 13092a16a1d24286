"""What holds for any shape, dtype, mask and alpha, on every backend: cases that hypothesis makes up and shrinks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import tsallis
from tsallis.ops import cpu, reference
from tsallis.ops.triton import language

HALF = (torch.bfloat16, torch.float16)
DTYPES = (torch.float64, torch.float32, *HALF)
BACKENDS = [
    "eager",
    pytest.param(
        "cpu", marks=pytest.mark.skipif(not cpu.status().available, reason=f"needs kernel: {cpu.status().reason}")
    ),
    pytest.param(
        "triton",
        marks=pytest.mark.skipif(
            torch.cuda.is_available() or not language.available()[0], reason="needs triton: and its interpreter"
        ),
    ),
]
every_backend = pytest.mark.parametrize("backend", BACKENDS)
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, which interprets
few = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
shapes = st.lists(st.integers(1, 4), min_size=0, max_size=2).flatmap(
    lambda outer: st.integers(1, 70).map(lambda d: (*outer, d))
)
alphas = st.one_of(st.sampled_from([1.0, 1.5, 2.0]), st.floats(1.0, 2.0))


@st.composite
def rows(draw: st.DrawFn) -> tuple[Tensor, Tensor, float]:
    """Return scores, a mask that leaves something in each row, and an alpha."""
    shape, seed = draw(shapes), draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(shape, generator=generator, dtype=torch.float64) * draw(st.sampled_from([0.0, 0.3, 2.0, 30.0]))
    mask = torch.rand(shape, generator=generator) < draw(st.sampled_from([0.0, 0.4, 1.0]))
    mask[..., draw(st.integers(0, shape[-1] - 1))] = True
    return scores.to(draw(st.sampled_from(DTYPES))), mask, draw(alphas)


def tolerance(dtype: torch.dtype) -> float:
    return 2 * torch.finfo(dtype).eps if dtype in HALF else 2e-6 if dtype == torch.float32 else 1e-8


@every_backend
@few
@given(case=rows())
def test_maps(backend: str, case: tuple[Tensor, Tensor, float]) -> None:
    scores, mask, alpha = case
    with tsallis.backend(backend):
        probs = tsallis.entmax(scores, alpha, mask=mask)
        order = torch.randperm(scores.shape[-1])
        other = tsallis.entmax(scores[..., order], alpha, mask=mask[..., order])
    assert probs.dtype == scores.dtype and probs.shape == scores.shape
    exact = reference.entmax(scores.double().masked_fill(~mask, -torch.inf).reshape(-1, scores.shape[-1]), alpha)
    limit = tolerance(scores.dtype)
    torch.testing.assert_close(probs.double().reshape(exact.shape), exact, atol=limit, rtol=0)
    assert (probs >= 0).all() and (probs[~mask] == 0).all()
    torch.testing.assert_close(other.double(), probs[..., order].double(), atol=limit, rtol=0)


@every_backend
@few
@given(case=rows(), seed=st.integers(0, 1000))
def test_losses_and_their_gradients(backend: str, case: tuple[Tensor, Tensor, float], seed: int) -> None:
    scores, _, alpha = case
    scores = scores.reshape(-1, scores.shape[-1])
    target = torch.randint(scores.shape[-1], scores.shape[:1], generator=torch.Generator().manual_seed(seed))
    leaf, exact = scores.clone().requires_grad_(), scores.double().requires_grad_()
    with tsallis.backend(backend):
        loss = tsallis.entmax_loss(leaf, target, alpha, reduction="none")
        (gradient,) = torch.autograd.grad(loss.sum(), leaf)
    expected = reference.entmax_loss(exact, target, alpha)
    (right,) = torch.autograd.grad(expected.sum(), exact)
    limit = tolerance(scores.dtype)
    assert (loss >= 0).all()
    torch.testing.assert_close(loss.double(), expected, atol=50 * limit, rtol=limit)
    torch.testing.assert_close(gradient.double(), right, atol=limit, rtol=0)
