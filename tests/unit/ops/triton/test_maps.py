"""Tests of the Triton kernels for softmax and entmax: results and gradients of every path against float64."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

import tsallis
from sweep import ALPHAS, LISTS, PATHS, PATHS_AND_ALPHAS, tiling
from triton_interpreter import DEVICE, close, compile_for_a_gpu, gpu, losses, maps
from tsallis.ops import reference

ERROR = 1e-6  # absolute tolerance of probabilities and sums
GRADIENT = 5e-6  # tolerance relative to the largest gradient or to 1


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Split small rows in the same way as long ones."""
    monkeypatch.setattr(maps, "tiling", tiling(request.param))
    monkeypatch.setattr(maps, "gradient_tiling", tiling(request.param))
    return str(request.param)


def check(scores: Tensor, alpha: float | Tensor, error: float = ERROR, gradient: float = GRADIENT) -> Tensor:
    """Compare probabilities and the gradients of scores and alpha with float64; return the probabilities."""
    scores = scores.to(DEVICE)
    rows = len(scores)
    exact = scores.double().requires_grad_()
    inputs = alpha.to(DEVICE) if isinstance(alpha, Tensor) else alpha
    alphas = torch.as_tensor(alpha, dtype=torch.float64, device=DEVICE).expand(rows, 1).clone().requires_grad_()
    expected = reference.entmax(exact, alphas)
    result = gpu.entmax(scores, inputs)
    assert (result.double() - expected).abs().max() <= error
    assert (result.double().sum(-1) - expected.sum(-1)).abs().max() <= error
    direction = torch.randn(scores.shape, device=DEVICE)
    target = torch.autograd.grad(expected, (exact, alphas), direction.double())
    # Gradients are compared only where the kernel finds the same support as the reference.
    certain = ((result > 0) == (expected > 0)).all(-1)
    dz, da = gpu.entmax_gradient(result, direction, inputs, True)
    assert da is not None and da.shape == (rows, 1) and da.dtype == torch.float32
    for ours, right in ((dz, target[0]), (da, target[1])):
        close(ours[certain], right[certain], gradient)
    alone, none = gpu.entmax_gradient(result.clone(), direction, inputs, False)
    assert none is None
    torch.testing.assert_close(alone, dz, atol=1e-6, rtol=1e-6)
    return result


@pytest.mark.parametrize("alpha", [1.0, 1.25, 1.5, 2.0])
def test_every_size_and_path_matches_float64(path: str, alpha: float) -> None:
    sizes = [1, 7, 33, 129, 300] if path == "short" else [1, 33, 129] if alpha == 1.5 else [100]
    for d in sizes:
        check(torch.randn(3 if d < 100 else 1, d) * 2, alpha)


def test_parts_exceeding_their_room_match_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "tiling", lambda *_: LISTS._replace(lanes=16, width=16, parts=3, depth=1, room=16))
    check(torch.randn(2, 129), 1.05)


def test_per_row_alphas_match_float64(path: str) -> None:
    check(torch.randn(len(ALPHAS), 65), torch.tensor(ALPHAS).unsqueeze(-1))
    check(torch.randn(3, 7), torch.tensor([[1.2], [1.5], [2.0]], dtype=torch.float64))


KINDS = ["constant", "ties", "one", "huge", "tiny", "rising"]
# Short and long rows of every kind; the kinds take turns with the ways to split long rows.
PATHS_AND_KINDS = [("short", kind) for kind in KINDS] + list(zip(["lists", "full", "parts"] * 2, KINDS, strict=True))


def rows_of(kind: str, d: int = 65) -> Tensor:
    z = torch.randn(2, d)
    if kind == "constant":
        return torch.full((2, d), 3.0)
    if kind == "ties":
        return z.round()
    if kind == "one":
        z[:, 5] = 1000.0
    if kind == "huge":
        z *= 1e30
    if kind == "tiny":
        z *= 1e-41
    if kind == "rising":
        z = torch.linspace(-40, 0, d).repeat(2, 1)
    return z


@pytest.mark.parametrize(("path", "kind"), PATHS_AND_KINDS, indirect=["path"])
def test_extreme_rows_match_float64(path: str, kind: str) -> None:
    alphas = torch.tensor([[1.0], [1.3], [1.5], [2.0]])
    check(rows_of(kind).repeat(2, 1), alphas)
    if path in ("short", "lists"):  # a single alpha; the other paths share the code of lists
        check(rows_of(kind)[:1], 1.5)


@pytest.mark.parametrize("offset", [1e4, 1e6])
def test_constant_offset_has_no_effect(path: str, offset: float) -> None:
    z = (torch.randn(1, 65) * 2 + offset) - offset  # exact in float32 after the offset
    for alpha in (1.25, 2.0):
        torch.testing.assert_close(check(z + offset, alpha), check(z, alpha), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("path", "alpha"), PATHS_AND_ALPHAS, indirect=["path"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # from NumPy, in Triton's interpreter
def test_masked_scores_give_zero_and_non_finite_rows_nan(path: str, alpha: float) -> None:
    z = torch.randn(6, 65, device=DEVICE)
    z[0] = -torch.inf
    z[1, ::2] = -torch.inf
    z[2, 7] = torch.nan
    z[3, 9] = torch.inf
    z[4, :] = -torch.inf
    z[4, 64] = -3.0
    p = gpu.entmax(z, alpha)
    assert (p[0] == 0).all() and (p[1, ::2] == 0).all() and p[2].isnan().all() and p[3].isnan().all()
    assert p[4, 64] == 1 and (p[4, :64] == 0).all()
    fine = [1, 5]
    close(p[fine], reference.entmax(z[fine], alpha), ERROR)
    dz, da = gpu.entmax_gradient(p, torch.randn_like(z), alpha, True)
    assert (dz[0] == 0).all() and da is not None and da[0] == 0
    assert dz[2].isnan().all() and da[2].isnan() and dz[fine].isfinite().all()
    nan = torch.full((1, 65), torch.nan, device=DEVICE)
    assert gpu.entmax(nan, alpha).isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_matches_float64(path: str, dtype: torch.dtype) -> None:
    ulp = torch.finfo(dtype).eps
    for alpha in (1.25, 1.5, 2.0):
        z = (torch.randn(2, 65, device=DEVICE) * 2).to(dtype)
        exact = reference.entmax(z, alpha)
        p = gpu.entmax(z, alpha)
        assert p.dtype == dtype
        assert ((p.double() - exact).abs() <= ulp * exact + 1e-6).all()  # the interpreter truncates, a GPU rounds
        g = torch.randn(2, 65, device=DEVICE).to(dtype)
        dz, _ = gpu.entmax_gradient(p, g, alpha, False)
        inside = p.double()
        s = torch.where(inside > 0, inside ** (2 - alpha), 0)
        right = s * (g.double() - (s * g.double()).sum(-1, keepdim=True) / s.sum(-1, keepdim=True))
        close(dz, right, 2 * ulp)


def test_gradients_outside_the_support_are_ignored(path: str) -> None:
    z = torch.randn(2, 65, device=DEVICE) * 3
    p = gpu.entmax(z, 1.5)
    g = torch.where(p > 0, torch.randn_like(z), torch.nan)
    dz, _ = gpu.entmax_gradient(p, g, 1.5, False)
    assert dz.isfinite().all()


def test_other_dimensions_match_the_last_one() -> None:
    z, g = torch.randn(3, 7, 5, device=DEVICE), torch.randn(3, 7, 5, device=DEVICE)
    moved = z.movedim(1, -1).contiguous()
    p = gpu.entmax(z, 1.5, 1)
    assert torch.equal(p, gpu.entmax(moved, 1.5).movedim(-1, 1))
    dz, _ = gpu.entmax_gradient(p.contiguous(), g, 1.5, False, 1)
    right, _ = gpu.entmax_gradient(gpu.entmax(moved, 1.5), g.movedim(1, -1).contiguous(), 1.5, False)
    torch.testing.assert_close(dz.movedim(1, -1), right)


def test_tilings_fit_rows_and_split_only_few_long_ones() -> None:
    """Check that every row fits its tiling, and that only few long rows are split among programs."""
    for d in (1, 31, 1024, 1025, 8192, 8193, 131072):
        for powers in range(3):
            for rows in (1, 5, 1000):
                cut = maps.tiling(rows, d, powers, 132)
                if isinstance(cut, maps.Short):
                    assert d <= cut.width and cut.rows * cut.width <= 8192
                else:
                    assert cut.width <= cut.lanes and cut.room % cut.width == 0
                    assert (cut.parts > 1) == (rows < 66 and d >= 8192)


# Public functions, forward and backward, with these kernels


def test_vmap_jvp_and_alphas_above_2_are_supported() -> None:
    z = torch.randn(2, 9, device=DEVICE)
    with tsallis.backend("triton"):
        batched = torch.func.vmap(lambda x: tsallis.entmax(x, 1.5))(z)
        _, moved = torch.func.jvp(lambda x: tsallis.entmax(x, 1.5), (z,), (torch.ones_like(z),))
        above = tsallis.entmax(z, 2.5)
    close(batched, reference.entmax(z.double(), 1.5), ERROR)
    assert moved.abs().max() < 1e-6  # a shift of all scores has no effect
    close(above, reference.entmax(z.double(), 2.5), ERROR)


def test_number_of_parts_does_not_cause_recompilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check for recompilation, which new constants or a new divisibility of arguments by 16 would cause."""
    variants: dict[str, set[Any]] = {}
    parts = set()

    def watched(kernel: Any, grid: tuple[int, ...], where: Tensor, **arguments: Any) -> None:
        types = kernel.fn.__annotations__
        constants = {name: x for name, x in arguments.items() if types.get(name) == "tl.constexpr"}
        rooms = [name for name, x in arguments.items() if name in ("room", "part_room") and x % 16]
        variants.setdefault(kernel.fn.__name__, set()).add((tuple(sorted(constants.items())), *rooms))
        parts.add(arguments.get("parts"))

    for module in (maps, losses):
        monkeypatch.setattr(module, "run", watched)
        monkeypatch.setattr(module, "processors", lambda _: 132)
    for rows in range(1, 67):
        x, y = torch.empty(rows, 50257, device=DEVICE), torch.zeros(rows, dtype=torch.long, device=DEVICE)
        maps.entmax_gradient(maps.entmax(x, 1.5), x, 1.5, False)
        losses.entmax_loss(x, y, 1.5, False)
    assert len(parts - {None}) > 6
    sizes = {name: len(each) for name, each in variants.items()}
    assert sizes == {"part_scan": 2, "long_map": 1, "part_gradient": 2, "_long_loss": 1}, sizes


COMPILE = """
from tsallis.ops.triton import losses, maps

maps.run = losses.run = run
maps.processors = losses.processors = lambda x: 132
for dtype, lengths, alpha in CASES:
    for d in lengths:
        for rows in (500, 523):
            x = torch.empty(rows, d, dtype=dtype)
            a = torch.full((rows, 1), 1.3) if alpha is None else alpha
            maps.entmax_gradient(maps.entmax(x, a), x, a, alpha is None)
            y = torch.zeros(rows, dtype=torch.long)
            _, stats, _ = losses.entmax_loss(x, y, a, alpha is None)
            losses.entmax_loss_gradient(x, y, a, stats, torch.empty(rows))
            losses.support(x, a, stats, torch.zeros(rows + 1, dtype=torch.long))
            if alpha is not None:
                losses.alpha_relu_loss(x, y, a, 0.5)
    assert {len(found) for found in compiled.values()} == {1}, compiled  # not once more for another number
    print(dtype, lengths, alpha, sorted(compiled))
    compiled.clear()
for rows in (1, 5, 33, 66):  # few, of 64, 53, 8 and 4 parts
    x = torch.empty(rows, 50257, dtype=torch.bfloat16)
    maps.entmax_gradient(maps.entmax(x, 1.5), x, 1.5, False)
sizes = {name: len(found) for name, found in compiled.items()}
assert sizes == {"part_scan": 1, "long_map": 1, "part_gradient": 2}, sizes  # of gradients the sums and what they make
"""
ONE = "[(torch.bfloat16, (8208, 16000), None)]"
ALL = (
    "[(d, n, a) for d in (torch.bfloat16, torch.float32) for a in (1.25, 1.5, 2.0, None)"
    " for n in ((1,), (513, 1023), (528, 1008), (4112, 8176), (8208, 16000), (65552, 128000))]"
)


@pytest.mark.slow
@pytest.mark.parametrize("cases", [ONE] + [ALL] * bool(os.environ.get("TSALLIS_COMPILE_ALL")))
def test_kernels_compile_for_a_gpu_once_for_all_sizes(cases: str) -> None:
    """Check that the kernels compile: the interpreter accepts code that the compiler rejects."""
    compile_for_a_gpu(COMPILE.replace("CASES", cases))
