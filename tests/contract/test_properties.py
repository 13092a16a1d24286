"""Properties that hold for any shape, dtype, mask and alpha on every backend, tested with hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import tsallis
from backends import backends_for, unusable
from contract.operations import attention_formula
from tsallis.ops import reference
from tsallis.ops.registry import BACKENDS

HALF = (torch.bfloat16, torch.float16)
DTYPES = (torch.float64, torch.float32, *HALF)


def _counts() -> Iterator[Any]:
    """Yield a backend and its number of cases: few in `make test`, many in `make test-slow`."""
    for name in BACKENDS:
        few, many = (10, 200) if name in backends_for("maps") else (3, 40)
        reason = unusable(name)
        missing = pytest.mark.skipif(reason is not None, reason=reason or "")
        yield pytest.param(name, few, marks=missing)
        yield pytest.param(name, many, marks=[missing, pytest.mark.slow])


COUNTS = list(_counts())
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # from NumPy, which the interpreter uses
Property = Callable[[str, Any], None]
Test = Callable[[str, int], None]


def holds_for(cases: st.SearchStrategy[Any]) -> Callable[[Property], Test]:
    """Turn a property of a backend and a case into a test on every backend."""

    def decorate(holds: Property) -> Test:
        @pytest.mark.parametrize(("backend", "count"), COUNTS)
        def test(backend: str, count: int) -> None:
            @settings(max_examples=count, deadline=None, derandomize=True, suppress_health_check=[*HealthCheck])
            @given(case=cases)
            def check(case: Any) -> None:
                holds(backend, case)

            check()

        return test

    return decorate


alphas = st.one_of(st.sampled_from([1.0, 1.5, 2.0]), st.floats(1.0, 2.0))


class Rows(NamedTuple):
    """Scores, a mask that keeps part of each row, an alpha that broadcasts to the scores, a dimension and a seed."""

    scores: Tensor
    mask: Tensor
    alpha: float | Tensor
    dim: int
    seed: int

    def last(self, x: Tensor) -> Tensor:
        """Reshape a tensor of the scores' shape to rows."""
        return x.movedim(self.dim, -1).reshape(-1, self.scores.shape[self.dim])

    def row_alphas(self) -> float | Tensor:
        """Return alpha in the form that the reference takes: a number, or one number per row."""
        if not isinstance(self.alpha, Tensor):
            return self.alpha
        sizes = list(self.scores.shape)
        sizes[self.dim] = 1
        return self.alpha.expand(sizes).movedim(self.dim, -1).reshape(-1, 1)


@st.composite
def rows(draw: st.DrawFn) -> Rows:
    outer, seed = draw(st.lists(st.integers(1, 4), max_size=2)), draw(st.integers(0, 2**31))
    dim = draw(st.integers(0, len(outer)))
    shape = (*outer[:dim], draw(st.integers(1, 70)), *outer[dim:])
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(shape, generator=generator, dtype=torch.float64) * draw(st.sampled_from([0.0, 0.3, 2.0, 30.0]))
    mask = torch.rand(shape, generator=generator) < draw(st.sampled_from([0.0, 0.4, 1.0]))
    mask.select(dim, draw(st.integers(0, shape[dim] - 1))).fill_(True)
    sizes = [1 if i == dim or draw(st.booleans()) else size for i, size in enumerate(shape)]
    tensor = torch.rand(sizes, generator=generator, dtype=torch.float64) + 1
    alpha = draw(st.one_of(alphas, st.just(tensor)))
    return Rows(
        scores.to(draw(st.sampled_from(DTYPES))), mask, alpha, draw(st.sampled_from([dim, dim - len(shape)])), seed
    )


def tolerance(dtype: torch.dtype) -> float:
    return 2 * torch.finfo(dtype).eps if dtype in HALF else 2e-6 if dtype == torch.float32 else 1e-8


@holds_for(rows())
def test_maps_match_reference(backend: str, case: Rows) -> None:
    scores, mask, alpha, dim, _ = case
    order = torch.randperm(scores.shape[dim])
    with tsallis.backend(backend):
        probs = tsallis.entmax(scores, alpha, dim, mask=mask)
        other = tsallis.entmax(scores.index_select(dim, order), alpha, dim, mask=mask.index_select(dim, order))
    assert probs.dtype == scores.dtype and probs.shape == scores.shape
    exact = reference.entmax(case.last(scores.double().masked_fill(~mask, -torch.inf)), case.row_alphas())
    limit = tolerance(scores.dtype)
    torch.testing.assert_close(case.last(probs.double()), exact, atol=limit, rtol=0)
    assert (probs >= 0).all() and (probs[~mask] == 0).all()
    torch.testing.assert_close(other.double(), probs.index_select(dim, order).double(), atol=limit, rtol=0)


@holds_for(rows())
def test_losses_and_gradients_match_reference(backend: str, case: Rows) -> None:
    scores, alpha = case.last(case.scores), case.row_alphas()
    target = torch.randint(scores.shape[-1], scores.shape[:1], generator=torch.Generator().manual_seed(case.seed))
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


class Layer(NamedTuple):
    """Hidden states [rows, d], an output layer, targets (some are ignored), and one alpha or one per row."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    target: Tensor
    alpha: float | Tensor


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    n, d, classes = (draw(st.integers(1, most)) for most in (9, 6, 80))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    scale, dtype = draw(st.sampled_from([0.1, 1.0, 10.0])), draw(st.sampled_from([torch.float64, torch.float32]))
    hidden, weight, bias = (torch.randn(*s, generator=generator) for s in ((n, d), (classes, d), (classes,)))
    target = torch.randint(classes, (n,), generator=generator)
    target[torch.rand(n, generator=generator) < draw(st.sampled_from([0.0, 0.3, 1.0]))] = -100
    alpha = draw(st.one_of(alphas, st.just(torch.rand(n, 1, generator=generator, dtype=torch.float64) + 1)))
    used = bias.to(dtype) if draw(st.booleans()) else None
    return Layer((hidden * scale).to(dtype), weight.to(dtype), used, target, alpha)


@holds_for(layers())
def test_layer_losses_and_gradients_match_reference(backend: str, case: Layer) -> None:
    leaves = [x.clone().requires_grad_() for x in case[:3] if x is not None]
    doubles = [x.detach().double().requires_grad_() for x in leaves]
    factors = torch.linspace(0.5, 1.5, len(case.target), dtype=torch.float64)
    with tsallis.backend(backend):
        bias = leaves[2] if len(leaves) == 3 else None
        loss = tsallis.linear_entmax_loss(*leaves[:2], case.target, case.alpha, bias=bias, reduction="none")
        results = torch.autograd.grad((loss * factors.to(loss.dtype)).sum(), leaves)
    each = reference.entmax_loss(F.linear(*doubles), case.target.clamp(min=0), case.alpha)  # type: ignore[arg-type]
    expected = torch.where(case.target >= 0, each, 0)
    exact = torch.autograd.grad((expected * factors).sum(), doubles)
    # The gradients of the weights multiply the rounding errors of the scores with hidden states.
    limit = 1e-8 if loss.dtype == torch.float64 else 3e-5 * max(1.0, float(case.hidden.abs().amax()))
    torch.testing.assert_close(loss.double(), expected, atol=limit, rtol=1e-6)
    for result, right in zip(results, exact, strict=True):
        torch.testing.assert_close(result.double(), right, atol=10 * limit, rtol=1e-5)


class Attention(NamedTuple):
    """Arguments and options of attention."""

    tensors: dict[str, Tensor]
    alpha: float
    options: dict[str, Any]


@st.composite
def attentions(draw: st.DrawFn) -> Attention:
    batch, key_heads, group, queries, keys = (draw(st.integers(1, most)) for most in (2, 2, 2, 9, 40))
    size, value_size, heads = draw(st.integers(1, 9)), draw(st.integers(1, 9)), key_heads * group
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    scale = draw(st.sampled_from([0.0, 0.5, 3.0]))
    tensors = {"query": noise(batch, heads, queries, size) * scale, "key": noise(batch, key_heads, keys, size)}
    tensors["value"] = noise(batch, key_heads, keys, value_size)
    if draw(st.booleans()):
        shape = draw(st.sampled_from([(heads,), (batch, heads)]))
        tensors["alpha"] = torch.rand(shape, generator=generator) + 1
    if draw(st.booleans()):
        tensors["slopes"] = torch.rand(heads, generator=generator)
    options: dict[str, Any] = {"is_causal": draw(st.booleans()), "enable_gqa": group > 1}
    if draw(st.booleans()):
        options["key_lengths"] = draw(st.lists(st.integers(0, keys), min_size=batch, max_size=batch))
    shape = draw(st.sampled_from([(keys,), (queries, keys), (batch, 1, 1, keys), (batch, heads, queries, keys)]))
    kind = draw(st.sampled_from(["none", "boolean", "added"]))
    if kind == "boolean":
        options["attn_mask"] = torch.rand(shape, generator=generator) < 0.7
    elif kind == "added":
        tensors["attn_mask"] = noise(*shape)
    dtype = draw(st.sampled_from([torch.float64, torch.float32]))
    return Attention({name: x.to(dtype) for name, x in tensors.items()}, draw(alphas), options)


@holds_for(attentions())
def test_attention_and_gradients_match_reference(backend: str, case: Attention) -> None:
    leaves = {name: x.clone().requires_grad_() for name, x in case.tensors.items()}
    doubles = {name: x.detach().double().requires_grad_() for name, x in leaves.items()}
    with tsallis.backend(backend):
        out = tsallis.entmax_attention(**{"alpha": case.alpha, **leaves}, **case.options)
        factors = torch.linspace(0.5, 1.5, out.numel(), dtype=torch.float64).view(out.shape)
        results = torch.autograd.grad((out * factors.to(out.dtype)).sum(), list(leaves.values()))
    expected, _ = attention_formula(**{"alpha": case.alpha, **doubles}, **case.options)
    exact = torch.autograd.grad((expected * factors).sum(), list(doubles.values()), materialize_grads=True)
    limit = 1e-8 if out.dtype == torch.float64 else 2e-5
    torch.testing.assert_close(out.double(), expected, atol=limit, rtol=limit)
    for name, result, right in zip(leaves, results, exact, strict=True):
        scale = max(1.0, float(right.abs().amax()))
        torch.testing.assert_close(
            result.double(), right, atol=20 * limit * scale, rtol=0, msg=lambda m, n=name: f"{n}: {m}"
        )
