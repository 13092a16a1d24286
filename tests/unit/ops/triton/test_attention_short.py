"""Attention by Triton's kernels where all scores of a block of queries are kept: as in float64, with its gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from triton_attention import (
    attend,
    check,
    close,
    dense,
    drop_factors,
    in_place,  # noqa: F401
    launching,
    small_blocks,
    tensors,
)

ShortTiling = launching.ShortTiling
MIXED = torch.tensor([[1.0, 1.001, 1.5, 2.0]])


@pytest.fixture(autouse=True)
def _in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 48 keys, in three parts."""
    small_blocks(monkeypatch)
    monkeypatch.setattr(launching, "short_tiling", lambda *_: ShortTiling(16, 16, 3, 4))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    run = launching.run

    def watched(kernel: Any, *arguments: Any, **options: Any) -> None:
        names.append(kernel.fn.__name__)
        run(kernel, *arguments, **options)

    monkeypatch.setattr(launching, "run", watched)
    return names


@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0])
def test_one_sweep_forward_and_two_backward(alpha: float, launched: list[str]) -> None:
    check(tensors(1, 1, 17, 40), alpha)
    assert launched == ["forward_short", "backward_query", "backward_key"]


@pytest.mark.parametrize(
    ("queries", "keys", "causal"), [(1, 1, True), (1, 33, False), (33, 1, True), (7, 48, True), (7, 48, False)]
)
def test_every_length(queries: int, keys: int, causal: bool) -> None:
    check(tensors(1, 1, queries, keys), 1.5, causal=causal)


def test_each_head_has_its_alpha_and_groups_of_heads_share_keys() -> None:
    check(tensors(1, 4, 7, 33, key_heads=2, size=20, value_size=24), MIXED)


@pytest.mark.parametrize(("boolean", "shape"), [(False, (2, 1, 17, 33)), (False, (1, 4, 1, 1)), (True, (2, 1, 17, 33))])
def test_all_masks_at_once(boolean: bool, shape: tuple[int, ...]) -> None:
    mask = torch.rand(shape) > 0.2
    if not boolean:
        mask = torch.where(mask, torch.randn(shape), -torch.inf)
    check(tensors(2, 4, 17, 33, key_heads=2), MIXED, mask, causal=True, lengths=(21, 0))


def test_lengths_may_be_a_tensor_and_out_of_range() -> None:
    inputs = tensors(3, 1, 7, 33)
    expected, _ = attend(*inputs, 1.5, None, lengths=(0, 33, 18))
    for dtype in (torch.int32, torch.int64):
        lengths = torch.tensor([-4, 50, 18], dtype=dtype)
        actual, _ = attend(*inputs, 1.5, None, lengths=lengths)
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    tolerance = 1e-2 if dtype == torch.bfloat16 else 2e-3  # the interpreter cuts where a GPU rounds
    inputs = tuple(x.to(dtype) for x in tensors(1, 4, 7, 33, key_heads=2))
    check(inputs, MIXED, torch.randn(1, 1, 7, 33), output=tolerance, gradient=2 * tolerance, causal=True)


def test_dropout_is_that_of_long_rows() -> None:
    options = {"dropout": 0.3, "seed": (5 << 40) + 7}
    inputs = tensors(1, 4, 7, 33)
    factors = drop_factors(inputs[0], 33, **options).double()
    check(inputs, MIXED, torch.randn(1, 1, 7, 33), factors=factors, **options)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, which interprets
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_broken_query_breaks_its_own_row_only(bad: float) -> None:
    query, key, value = tensors(1, 1, 7, 33)
    expected, _ = attend(query, key, value, 1.5, None)
    query[..., 4, 0] = bad
    output, counts = attend(query, key, value, 1.5, None)
    others = [n for n in range(7) if n != 4]
    assert output[..., 4, :].isnan().all()
    assert torch.equal(output[..., others, :], expected[..., others, :])
    assert (counts[..., others] > 0).all()


def test_a_query_that_sees_no_key_and_keys_that_none_sees() -> None:
    query, key, value = tensors(1, 1, 7, 33)
    key[..., 21:, :] = value[..., 21:, :] = torch.nan
    query, key, value = (x.requires_grad_() for x in (query, key, value))
    mask = torch.ones(1, 1, 7, 33, dtype=torch.bool)
    mask[..., 3, :] = False
    output, counts = attend(query, key, value, 1.5, mask, lengths=(21,))
    output.sum().backward()
    assert (output[..., 3, :] == 0).all() and counts[0, 0, 3] == 0 and output.isfinite().all()
    assert (query.grad[..., 3, :] == 0).all()
    assert all(x.grad.isfinite().all() for x in (query, key, value))
    assert (key.grad[..., 21:, :] == 0).all() and (value.grad[..., 21:, :] == 0).all()


def test_scores_far_from_zero_and_equal_ones() -> None:
    query, key, value = tensors(1, 4, 7, 33)
    check((query * 0, key, value), MIXED)
    key[..., 0] += 100
    check((query, key, value), MIXED, output=2e-4, gradient=2e-3)


def test_gradients_have_gradients() -> None:
    leaves = [x.requires_grad_() for x in tensors(1, 1, 3, 5)]
    output, _ = attend(*leaves, 1.5, None)
    (first,) = torch.autograd.grad(output.square().sum(), leaves[0], create_graph=True)
    actual = torch.autograd.grad(first.square().sum(), leaves)
    exact = [x.detach().double().requires_grad_() for x in leaves]
    expected, _ = dense(*exact, 1.5, None)
    (first,) = torch.autograd.grad(expected.square().sum(), exact[0], create_graph=True)
    for x, right in zip(actual, torch.autograd.grad(first.square().sum(), exact), strict=True):
        close(x, right, 1e-4)
