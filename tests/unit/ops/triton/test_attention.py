"""Tests of the Triton attention kernels for long and short rows, against dense float64 attention."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from triton_attention import (
    attend,
    check,
    close,
    dense,
    drop_factors,
    gpu_attention,
    in_place,  # noqa: F401
    launching,
    small_blocks,
    tensors,
)
from triton_interpreter import DEVICE, language, watch_launches

ShortTiling = launching.ShortTiling
EVERY_ALPHA = [1.0, 1.001, 1.25, 1.5, 1.9, 2.0]


@pytest.fixture(autouse=True)
def _sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the kernels for long rows at every length."""
    small_blocks(monkeypatch)
    monkeypatch.setattr(launching, "short_tiling", lambda *_: None)


@pytest.fixture(params=["long", "short"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test rows of up to 48 keys with the kernels for long rows, or with those that keep all scores in three parts."""
    if request.param == "short":
        monkeypatch.setattr(launching, "short_tiling", lambda *n: ShortTiling(16, 16, 3, 4) if n[3] <= 48 else None)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, 1.2])
def test_scalar_alphas_match_float64(alpha: float, either: None) -> None:
    check(tensors(1, 1, 33, 40), alpha)


def test_short_rows_launch_one_forward_and_two_backward_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "short_tiling", lambda *_: ShortTiling(16, 16, 3, 4))
    launched: list[str] = []
    watch_launches(monkeypatch, launching, lambda name, *_: launched.append(name))
    check(tensors(1, 1, 17, 40), 1.3)
    assert launched == ["forward_short", "backward_query", "backward_key"]


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_equal_alphas_of_heads_get_gradients(alpha: float) -> None:
    check(tensors(2, 2, 7, 33), torch.full((1, 2), alpha))


def test_per_head_alphas_and_grouped_keys_match_float64(either: None) -> None:
    check(tensors(1, 6, 7, 33, key_heads=2), torch.tensor([EVERY_ALPHA]))
    check(tensors(2, 2, 7, 20, key_heads=1), torch.tensor([[1.3, 2.0], [1.0, 1.7]], dtype=torch.float64))


@pytest.mark.parametrize(
    ("queries", "keys", "causal"),
    [(1, 1, True), (1, 129, False), (129, 1, False), (33, 1, True), (7, 48, True), (33, 7, True), (65, 33, False)],
)
def test_every_length_matches_float64(queries: int, keys: int, causal: bool, either: None) -> None:
    check(tensors(1, 1, queries, keys), 1.5, causal=causal)


@pytest.mark.parametrize(("size", "value_size"), [(20, 24), (64, 16), (16, 33)])
def test_sizes_not_powers_of_two_match_float64(size: int, value_size: int, either: None) -> None:
    check(tensors(1, 2, 17, 33, size=size, value_size=value_size), torch.tensor([[1.3, 1.5]]))


@pytest.mark.parametrize("causal", [False, True])
def test_key_lengths_including_0_match_float64(causal: bool, either: None) -> None:
    check(tensors(3, 1, 20, 33), torch.tensor([[1.4]]), lengths=(0, 33, 18), causal=causal)


def test_tensor_key_lengths_are_clamped(either: None) -> None:
    inputs = tensors(3, 1, 7, 33)
    expected, _ = attend(*inputs, 1.5, None, lengths=(0, 33, 18))
    for dtype in (torch.int32, torch.int64):
        actual, _ = attend(*inputs, 1.5, None, lengths=torch.tensor([-4, 50, 18], dtype=dtype))
        assert torch.equal(actual, expected)


SLOPES = torch.tensor([[2.0, 0.0], [-0.1, 0.02]])


@pytest.mark.parametrize(("short", "causal"), [(False, True), (True, False)])
def test_slopes_get_a_gradient(short: bool, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if short:
        monkeypatch.setattr(launching, "short_tiling", lambda *_: ShortTiling(32, 64, 2, 4))
    alpha = torch.tensor([[1.0, 1.3]])
    check(tensors(2, 2, 17, 48, key_heads=1), alpha, slopes=SLOPES, causal=causal, offset=20, lengths=(40, 33))


@pytest.mark.parametrize("causal", [False, True])
def test_steep_slopes_match_float64(causal: bool) -> None:
    slopes = torch.tensor([[4.0, 1.0]])
    check(tensors(1, 2, 17, 130), torch.tensor([[1.0, 1.5]]), slopes=slopes, causal=causal, offset=90, lengths=(120,))


def test_causal_offset_matches_float64() -> None:
    check(tensors(1, 2, 17, 80), 1.5, causal=True, offset=40)


BROADCAST = [(2, 2, 15, 33), (1, 2, 15, 33), (2, 1, 1, 33), (1, 1, 15, 1), (1, 1, 1, 1), (1, 2, 1, 33)]


@pytest.mark.parametrize("shape", BROADCAST)
def test_masks_and_their_gradients_match_float64(shape: tuple[int, ...]) -> None:
    for mask in (torch.randn(shape), torch.rand(shape) > 0.3):
        check(tensors(2, 2, 15, 33), 1.5, mask)


@pytest.mark.parametrize("boolean", [False, True])
def test_combined_masks_match_float64(boolean: bool, either: None) -> None:
    mask = torch.rand(2, 1, 15, 33) > 0.3
    if not boolean:
        mask = torch.where(mask, torch.randn(mask.shape), -torch.inf)
    check(tensors(2, 4, 15, 33, key_heads=2), torch.tensor([[1.0, 1.2, 1.5, 2.0]]), mask, causal=True, lengths=(21, 3))


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_fully_masked_queries_give_zeros_and_no_gradient(alpha: float, either: None) -> None:
    query, key, value = (x.requires_grad_() for x in tensors(1, 1, 20, 33))
    mask = torch.ones(1, 1, 20, 33, dtype=torch.bool)
    mask[..., 3, :] = False
    output, counts = attend(query, key, value, alpha, mask)
    assert (output[..., 3, :] == 0).all() and counts[0, 0, 3] == 0 and (counts[0, 0, :3] > 0).all()
    output.sum().backward()
    assert (query.grad[..., 3, :] == 0).all()
    assert all(x.grad.isfinite().all() for x in (query, key, value))
    hidden = torch.zeros(1, 1, 20, 33, dtype=torch.bool)
    output, counts = attend(query, key, value, alpha, hidden)
    gradients = torch.autograd.grad(output.sum(), (query, key, value))
    assert all((x == 0).all() for x in (output, counts, *gradients))


def test_keys_beyond_the_length_are_never_read(either: None) -> None:
    query, key, value = tensors(1, 1, 20, 33)
    expected, _ = attend(query, key, value, 1.5, None, lengths=(21,))
    key[..., 21:, :] = value[..., 21:, :] = torch.nan
    key.requires_grad_()
    output, _ = attend(query, key, value, 1.5, None, lengths=(21,))
    output.sum().backward()
    assert torch.equal(output, expected)
    assert key.grad.isfinite().all() and (key.grad[..., 21:, :] == 0).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # from NumPy, in Triton's interpreter
@pytest.mark.parametrize(("alpha", "bad"), [(1.2, torch.nan), (1.5, torch.inf), (1.5, torch.nan), (2.0, torch.inf)])
def test_non_finite_queries_affect_only_their_row(alpha: float, bad: float, either: None) -> None:
    query, key, value = tensors(1, 1, 20, 33)
    expected, _ = attend(query, key, value, alpha, None)
    query[..., 4, 0] = bad
    query.requires_grad_()
    output, _ = attend(query, key, value, alpha, None)
    others = [n for n in range(20) if n != 4]
    assert output[..., 4, :].isnan().all()
    assert torch.equal(output[..., others, :], expected[..., others, :])
    output.sum().backward()
    assert query.grad[..., 4, :].isnan().all() and query.grad[..., others, :].isfinite().all()


def test_any_strides_match_float64(either: None) -> None:
    inputs = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors(2, 2, 15, 33)]
    inputs[2] = inputs[2].mT.contiguous().mT  # not even a single row is contiguous
    mask = torch.randn(33, 15).T[None, None]
    check(tuple(inputs), torch.tensor([[1.4, 1.6]]).expand(2, 2), mask)


@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0])
def test_large_and_distant_scores_match_float64(alpha: float, either: None) -> None:
    query, key, value = tensors(1, 1, 15, 48)
    key[..., 0] += 100  # shifts all scores of a query by hundreds
    check((query, key, value), torch.tensor([[alpha]]), output=2e-4, gradient=2e-3)
    query, key, value = tensors(1, 1, 15, 48)
    check((query * 30, key, value), torch.tensor([[alpha]]), output=2e-4, gradient=2e-3)


def test_equal_scores_match_float64(either: None) -> None:
    query, key, value = tensors(1, 6, 5, 33)
    check((query * 0, key, value), torch.tensor([EVERY_ALPHA]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_matches_float64(dtype: torch.dtype, either: None) -> None:
    # The interpreter truncates float32 to bfloat16, a GPU rounds it.
    tolerance = 1e-2 if dtype == torch.bfloat16 else 2e-3
    inputs = tuple(x.to(dtype) for x in tensors(1, 4, 15, 33, key_heads=2))
    alpha = torch.tensor([[1.0, 1.3, 1.5, 2.0]])
    check(inputs, alpha, torch.randn(1, 1, 15, 33), output=tolerance, gradient=2 * tolerance, causal=True)


def test_dropout_drops_weights_and_their_gradients(either: None) -> None:
    share, seed = 0.3, (5 << 40) + 7
    query, key, _ = tensors(1, 2, 15, 33)
    options = {"dropout": share, "seed": seed}
    # With the identity as values, the output is the attention weights after dropout.
    ones = torch.eye(33).expand(1, 2, 33, 33)
    alpha = torch.tensor([[1.0, 1.5]])
    whole, _ = attend(query, key, ones, alpha, None)
    dropped, _ = attend(query, key, ones, alpha, None, **options)
    factors = drop_factors(query, 33, **options)
    torch.testing.assert_close(dropped, whole * factors, rtol=1e-6, atol=1e-7)
    assert set(factors.flatten().tolist()) == {0.0, torch.tensor(1 / (1 - share)).item()}
    assert abs((factors == 0).float().mean() - share) < 0.04
    assert len({tuple(row.tolist()) for row in factors.flatten(0, 2)}) == 30  # every row has different draws
    other = drop_factors(query, 33, dropout=share, seed=seed + 1)
    assert not torch.equal(factors, other)
    check(tensors(1, 2, 15, 33), alpha, torch.randn(1, 1, 15, 33), factors=factors.double(), **options)
    gone, _ = attend(query, key, ones, 1.5, None, dropout=1.0)
    assert (gone == 0).all()


@pytest.mark.slow
def test_dropout_supports_more_heads_than_the_grid_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check more heads than the 65,535 programs that fit in the second or third dimension of a grid."""
    grids: list[tuple[int, ...]] = []
    watch_launches(monkeypatch, gpu_attention, lambda _, grid, __: grids.append(grid))
    query = torch.empty(16385, 4, 3, 1)
    factors = drop_factors(query, 2, dropout=0.3, seed=9)
    assert all(max(grid[1:], default=1) < 65536 for grid in grids)
    assert abs((factors == 0).float().mean() - 0.3) < 0.004
    few = drop_factors(query[:1], 2, dropout=0.3, seed=9)  # must not depend on the other heads
    assert torch.equal(few, factors[:1])
    assert factors[-1].unique().numel() == 2 and not torch.equal(factors[-1], factors[-2])


def test_dropout_raises_during_cuda_graph_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = tensors(1, 1, 3, 9)
    for name in ("is_initialized", "is_current_stream_capturing"):
        monkeypatch.setattr(torch.cuda, name, lambda: True)
    with pytest.raises(RuntimeError, match=r"dropout_p must be 0 .*CUDA graph.* got 0\.5"):
        attend(*inputs, 1.5, dropout=0.5)
    with pytest.raises(RuntimeError, match="CUDA graph"):
        drop_factors(inputs[0], 9, dropout=0.5)


@pytest.fixture
def in_reverse(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Enable deterministic algorithms; return a function that makes the interpreter run programs in reverse order."""

    def reverse() -> None:
        if DEVICE == "cpu":
            builder = importlib.import_module("triton.runtime.interpreter").interpreter_builder
            select = builder.set_grid_idx
            mirrored = lambda *at: select(*(n - 1 - i for n, i in zip(builder.grid_dim, at, strict=True)))  # noqa: E731
            monkeypatch.setattr(builder, "set_grid_idx", mirrored)

    torch.use_deterministic_algorithms(True)
    yield reverse
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("shape", [(1, 1, 17, 20), (1, 2, 1, 20), (2, 1, 17, 1), (1, 1, 1, 1)])
def test_mask_gradients_are_deterministic(shape: tuple[int, ...], in_reverse: Callable[[], None]) -> None:
    inputs, mask = tensors(2, 2, 17, 20), torch.randn(shape, requires_grad=True)
    check(inputs, 1.3, mask)
    direction = torch.randn(inputs[0].shape)
    (first,) = torch.autograd.grad(attend(*inputs, 1.3, mask)[0], mask, direction)
    in_reverse()
    (second,) = torch.autograd.grad(attend(*inputs, 1.3, mask)[0], mask, direction)
    assert first.shape == mask.shape and torch.equal(first, second)


def test_double_backward_matches_float64(either: None) -> None:
    inputs = tensors(1, 2, 7, 9, key_heads=1)
    alpha, mask = torch.tensor([[1.3, 2.0]]), torch.randn(1, 1, 7, 9)
    options = {"dropout": 0.2, "seed": 3}
    factors = drop_factors(inputs[0], 9, **options).double()
    direction = torch.randn(1, 2, 7, 16)

    def second(leaves: list[Tensor], output: Tensor) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(output, leaves, direction.to(output), create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in first), leaves)

    leaves = [x.detach().requires_grad_() for x in (*inputs, alpha, mask)]
    actual = second(leaves, attend(*leaves, **options)[0])
    exact = [x.detach().double().requires_grad_() for x in leaves]
    _, weights = dense(*exact)
    expected = second(exact, (weights * factors) @ exact[2])
    for x, right in zip(actual, expected, strict=True):
        close(x, right, 1e-4)


def test_blocks_without_support_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that, if queries attend only to near keys, little more than the diagonal is read after a dense sweep."""
    launched: dict[str, Tensor] = {}
    watch_launches(monkeypatch, launching, lambda _, __, arguments: launched.update(arguments))
    angle = torch.arange(128.0) / 128
    positions = torch.stack([angle.cos(), angle.sin()], -1)[None, None]
    query = torch.cat([positions, torch.zeros(1, 1, 128, 14)], -1) * 600
    value = torch.randn(1, 1, 128, 16)
    for alpha, limit in ((1.5, 1), (2.0, 2)):
        output, counts = attend(query, query / 600, value, alpha, None)
        needed, candidates, sweeps = launched["counts"].flatten(1)  # one entry per block of queries, 4 in all
        assert (counts < 40).all()
        assert (needed <= 5).all()  # out of 8 blocks of keys
        assert (candidates <= 8).all() and candidates.sum() < 32
        assert (sweeps <= limit + 2).all()
        assert launched["bits"].sum() == needed.sum()
        exact, _ = dense(query.double(), query.double() / 600, value.double(), alpha, None)
        close(output, exact, 3e-4)  # scores are as large as 600


def test_unsupported_alphas_and_dtypes_raise() -> None:
    inputs = tensors(1, 2, 4, 4)
    with pytest.raises(NotImplementedError, match=r"from 1 to 2, got 2\.5"):
        attend(*inputs, 2.5, None)
    with pytest.raises(NotImplementedError, match=r"from 1 to 2, got 3"):
        attend(*inputs, torch.tensor([[1.0, 3.0]]), None)
    with pytest.raises(TypeError, match="float64"):
        attend(*(x.double() for x in inputs), 1.5, None)


def test_available_returns_the_reason() -> None:
    able, why = language.available()
    assert able and ("interpreter" in why) == language.interpreted()
    program = (
        "import sys; sys.modules['triton'] = None\n"
        "from tsallis.ops.triton import language\nfrom tsallis.ops.triton.attention import calls\n"
        "able, why = language.available()\n"
        "assert not able and 'Triton' in why, why\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
