"""Tests of the Triton kernels of the sparse output layer against float64 results from all scores."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tsallis
from pairs import every_pair
from triton_interpreter import DEVICE, close, compile_for_a_gpu, watch_launches
from tsallis.ops import reference
from tsallis.ops import triton as gpu
from tsallis.ops.autograd import linear_chunks
from tsallis.ops.autograd.linear_chunks import Layer
from tsallis.ops.sparse_rows import CsrRows
from tsallis.ops.triton import alpha_relu as gpu_relu
from tsallis.ops.triton import sparse as gpu_lists

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # from NumPy, in Triton's interpreter
DTYPES = [torch.float32, torch.bfloat16]
TOKENS, D, CLASSES = 12, 7, 33


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use blocks so small that a tiny layer fills several, and pieces so short that some lists are split."""
    monkeypatch.setattr(gpu_lists, "PIECE", 16)
    monkeypatch.setattr(gpu_lists, "ENTRIES", 16)
    monkeypatch.setattr(gpu_lists, "COLUMNS", 16)
    monkeypatch.setattr(gpu_relu, "tiling", lambda _: gpu_relu.Tiling(16, 32, 16, 2, 4, 1))


def resize(monkeypatch: pytest.MonkeyPatch, **sizes: float | None) -> None:
    monkeypatch.setattr(linear_chunks, "GPU", linear_chunks.GPU._replace(**sizes))


CHUNKS = {"in chunks": {"chunk": 5 * CLASSES, "single_chunk": 0, "tokens": 1}, "all at once": {}}


@pytest.fixture(params=list(CHUNKS))
def small_chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use chunks of five rows, of which the last is shorter, or one chunk of all rows, whose scores may be kept."""
    resize(monkeypatch, **CHUNKS[request.param])


def some_lists(rows: int, columns: int, counts: list[int], seed: int = 0) -> tuple[CsrRows, Tensor]:
    """Return random lists of given lengths, without repeated columns, and the same as a float64 matrix."""
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.zeros(rows, columns, dtype=torch.float64)
    order = torch.rand(rows, columns, generator=generator).argsort(-1)
    values = torch.randn(rows, columns, generator=generator)
    column = torch.cat([order[r, :n] for r, n in enumerate(counts)])
    value = torch.cat([values[r, :n] for r, n in enumerate(counts)])
    row = torch.arange(rows).repeat_interleave(torch.tensor(counts))
    matrix[row, column] = value.double()
    offsets = F.pad(torch.tensor(counts).cumsum(0), (1, 0))
    return CsrRows(offsets.to(DEVICE), column.int().to(DEVICE), value.to(DEVICE)), matrix


COUNTS = [0, 3, 40, 8, 9, 1, 0, 17, 33]  # a piece has 16 entries here


def tolerance_of(dtype: torch.dtype) -> float:
    return 1e-2 if dtype == torch.bfloat16 else 2e-6  # the interpreter truncates bfloat16, a GPU rounds it


@every_pair(size=[1, 7, 33], dtype=DTYPES, counts=[COUNTS, [0] * 9, [41] * 9, [1] * 9])
def test_spmm_matches_dense_product(size: int, dtype: torch.dtype, counts: list[int]) -> None:
    lists, matrix = some_lists(9, 41, counts)
    table = torch.randn(41, size).to(DEVICE, dtype)
    result, total = gpu_lists.spmm(lists, table, need_total=True)
    assert result.dtype == dtype and total is not None
    close(result, matrix @ table.double().cpu(), tolerance_of(dtype))
    close(total, matrix.sum(-1), 2e-6)
    scale, minus = torch.rand(9).to(DEVICE), torch.tensor([3, -1, 2, 5, -1, 0, -1, 7, 40]).to(DEVICE)
    result, total = gpu_lists.spmm(lists, table, scale=scale, minus=minus, need_total=True)
    gold = F.one_hot(minus.cpu().clamp(min=0), 41) * (minus.cpu() >= 0)[:, None]
    expected = (matrix - gold) * scale.double().cpu()[:, None]
    close(result, expected @ table.double().cpu(), tolerance_of(dtype))
    close(total, expected.sum(-1), 2e-6)


def test_spmm_accumulates_onto_a_tensor() -> None:
    lists, matrix = some_lists(9, 41, COUNTS)
    table, there, factor = torch.randn(41, 19).to(DEVICE), torch.randn(9, 19).to(DEVICE), torch.rand(3).to(DEVICE)
    expected = factor[0].double().cpu() * there.double().cpu() + matrix @ table.double().cpu()
    result, total = gpu_lists.spmm(lists, table, onto=there, factor=factor)
    assert result is there and total is None
    close(result, expected, 2e-6)


@pytest.mark.parametrize("pieces", [1, 4, 1024])
def test_only_long_lists_are_split(monkeypatch: pytest.MonkeyPatch, pieces: int) -> None:
    monkeypatch.setattr(gpu_lists, "PIECES", pieces)
    launched: list[tuple[int, ...]] = []
    watch_launches(monkeypatch, gpu_lists, lambda _, grid, inputs: launched.append((*grid, inputs["piece"])))
    lists, matrix = some_lists(3, 300, [3, 300, 2])
    table = torch.randn(300, 5).to(DEVICE)
    close(gpu_lists.spmm(lists, table)[0], matrix @ table.double().cpu(), 2e-6)
    piece = max(16, 305 // pieces)
    assert launched == ([(610 // piece, 1, piece)] if piece < 305 else []) + [(3, 1, piece)]


def test_transposed_lists_match_dense_minus_targets() -> None:
    lists, matrix = some_lists(9, 41, COUNTS)
    weight, target = torch.rand(9).to(DEVICE), torch.tensor([3, -1, 2, 5, -1, 0, -1, 40, 40]).to(DEVICE)
    turned = gpu_lists.transpose(lists, 41, weight, target)
    assert turned.offsets.dtype == torch.int64 and turned.column.dtype == torch.int32
    result = torch.zeros(41, 9, dtype=torch.float64)
    for c in range(41):
        here = slice(int(turned.offsets[c]), int(turned.offsets[c + 1]))
        result[c].index_add_(0, turned.column[here].long().cpu(), turned.value[here].double().cpu())
    gold = F.one_hot(target.cpu().clamp(min=0), 41) * (target.cpu() >= 0)[:, None]
    torch.testing.assert_close(result, ((matrix - gold) * weight.double().cpu()[:, None]).T, rtol=1e-6, atol=1e-7)
    assert int(turned.offsets[-1]) == sum(COUNTS) + 6


def layer(
    dtype: torch.dtype = torch.float32, scale: float = 1.0, tokens: int = TOKENS, d: int = D, classes: int = CLASSES
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return hidden states, a weight, a bias, and targets, two of them ignored."""
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(tokens, d, generator=generator) * scale
    weight, bias = (torch.randn(*s, generator=generator) for s in ((classes, d), (classes,)))
    target = torch.randint(classes, (tokens,), generator=generator)
    target[tokens // 6] = target[-1] = -100
    return hidden.to(DEVICE, dtype), weight.to(DEVICE, dtype), bias.to(DEVICE, dtype), target.to(DEVICE)


def mixed(dtype: torch.dtype = torch.float32, peak: float = 200.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return a layer whose first five rows are peaked and whose other rows are flat."""
    hidden, weight, bias, target = layer(dtype, 0.1)
    hidden[:5] *= peak
    return hidden, weight, bias, target


def exact(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, alpha: float | Tensor, tau: float | None = None
) -> Tensor:
    """Return the losses of the float64 reference, 0 for ignored targets."""
    scores = F.linear(hidden.double(), weight.double(), None if bias is None else bias.double())
    if tau is None:
        loss = reference.entmax_loss(scores, target.clamp(min=0), alpha)
    else:
        loss = reference.alpha_relu_loss(scores, target.clamp(min=0), alpha, tau)
    return torch.where(target >= 0, loss, 0)


def check(
    inputs: tuple[Tensor, ...],
    alpha: float | Tensor,
    reduction: str,
    tau: float | None = None,
    tolerance: float = 2e-5,
    biased: bool = True,
) -> None:
    """Compare the loss and gradients with float64; errors are relative to the largest value or to 1."""
    *leaves, target = inputs
    leaves = [x.detach().requires_grad_() for x in leaves]
    arguments = [*leaves, alpha.requires_grad_()] if isinstance(alpha, Tensor) else leaves
    hidden, weight, bias = leaves
    added = bias if biased else None
    if tau is None:
        loss = tsallis.linear_entmax_loss(hidden, weight, target, alpha, bias=added, reduction=reduction)
    else:
        loss = tsallis.linear_alpha_relu_loss(hidden, weight, target, alpha, tau, bias=added, reduction=reduction)
    expected = exact(hidden, weight, added, target, alpha, tau)
    if reduction != "none":
        expected = expected.sum() / (1 if reduction == "sum" else (target >= 0).sum())
    close(loss.detach(), expected.detach(), tolerance)
    upstream = torch.linspace(0.5, 1.5, loss.numel()).reshape(loss.shape).to(loss) + 0.5
    arguments = [x for x in arguments if biased or x is not bias]
    result = torch.autograd.grad(loss, arguments, upstream)
    wanted = torch.autograd.grad(expected, arguments, upstream.double())
    for x, grad, right in zip(arguments, result, wanted, strict=True):
        assert grad.dtype == x.dtype and grad.shape == x.shape
        close(grad, right, 4 * tolerance)


@pytest.mark.usefixtures("triton")
@every_pair(
    indirect=["small_chunks"],
    small_chunks=CHUNKS,
    alpha=[1.0, 1.25, 1.5, 2.0],
    scale=[0.1, 20.0],
    reduction=["mean", "none"],
)
def test_losses_and_gradients_match_float64(alpha: float, scale: float, reduction: str, small_chunks: None) -> None:
    check(layer(scale=scale), alpha, reduction, tolerance=2e-6 * max(10, scale))


@pytest.mark.usefixtures("triton")
@every_pair(indirect=["small_chunks"], small_chunks=CHUNKS, share=[0.0, 0.2, 1.0], reduction=["mean", "sum", "none"])
def test_lists_and_dense_chunks_match_float64(
    monkeypatch: pytest.MonkeyPatch, share: float, reduction: str, small_chunks: None
) -> None:
    resize(monkeypatch, share=share)
    check(mixed(), 1.5, reduction)


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_per_row_alphas_match_float64(monkeypatch: pytest.MonkeyPatch, reduction: str) -> None:
    resize(monkeypatch, **CHUNKS["in chunks"], share=0.2)
    alpha = torch.tensor([[1.01], [1.25], [1.5], [2.0]], device=DEVICE).repeat(TOKENS // 4, 1)
    check(mixed(), alpha, reduction)


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize(("alpha", "tau"), [(1.25, 0.5), (1.5, 0.5), (2.0, 1.5), (1.5, 6.0)])
def test_alpha_relu_in_one_pass_matches_float64(alpha: float, tau: float) -> None:
    """Check several thresholds; with the highest, most rows have an empty support."""
    check(layer(), alpha, "none", tau)


@pytest.mark.usefixtures("triton", "small_chunks")
@pytest.mark.parametrize(("alpha", "tau", "share"), [(1.25, 0.5, 1.0), (1.5, 0.5, 0.0), (2.0, 6.0, 1.0)])
def test_alpha_relu_in_chunks_matches_float64(
    monkeypatch: pytest.MonkeyPatch, alpha: float, tau: float, share: float
) -> None:
    """Check computation in chunks; with share 0, one pass is tried first and finds too many values."""
    monkeypatch.setattr(gpu_relu, "MIN_CAPACITY", 0)
    monkeypatch.setattr(linear_chunks, "ONE_PASS", share == 0)
    resize(monkeypatch, share=share)
    check(layer(), alpha, "sum", tau)


@pytest.mark.usefixtures("triton")
def test_losses_without_a_bias_match_float64() -> None:
    check(layer(scale=20.0), 1.5, "mean", tolerance=4e-5, biased=False)
    check(layer(), 1.5, "mean", 0.5, biased=False)


@pytest.mark.usefixtures("triton")
@every_pair(indirect=["small_chunks"], small_chunks=CHUNKS, tau=[None, 0.5], reduction=["mean", "none"])
def test_bfloat16_losses_match_float64(
    monkeypatch: pytest.MonkeyPatch, tau: float | None, reduction: str, small_chunks: None
) -> None:
    resize(monkeypatch, share=0.2)
    hidden, weight, bias, target = (x.mul_(0.5) if x.is_floating_point() else x for x in mixed(torch.bfloat16))
    # Scores of about 10 are rounded to two digits, as in a linear layer.
    check((hidden, weight, bias, target), 1.5, reduction, tau, tolerance=4e-2)


@pytest.mark.parametrize(("tokens", "alpha"), [(1, 1.5), (15, 1.25), (17, 2.0), (33, 1.5)])
def test_one_pass_alpha_relu_loss_and_support_match_float64(
    monkeypatch: pytest.MonkeyPatch, tokens: int, alpha: float
) -> None:
    monkeypatch.setattr(gpu_relu, "tiling", lambda _: gpu_relu.Tiling(16, 16, 16, 2, 4, 1))
    hidden, weight, bias, target = layer(tokens=tokens, d=33, classes=45)
    bias[3] = -torch.inf
    target = torch.where(target == 3, 4, target)
    loss, lists = gpu_relu.alpha_relu_one_pass(hidden, weight, bias, target, alpha, 0.7, 1.0)
    close(loss, exact(hidden, weight, bias, target, alpha, 0.7), 2e-6)
    scores = F.linear(hidden.double(), weight.double(), bias.double())
    values = ((alpha - 1) * scores - 0.7).clamp(min=0) ** (1 / (alpha - 1))
    values = torch.where((target < 0)[:, None], 0, values)
    row, column = values.nonzero(as_tuple=True)
    assert torch.equal(lists.offsets.diff(), (values > 0).sum(-1))
    assert torch.equal(lists.column, column.int())  # in ascending order
    close(lists.value, values[row, column], 2e-6)


def test_one_pass_returns_none_if_full_or_non_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_relu, "MIN_CAPACITY", 0)
    hidden, weight, bias, target = layer()
    count = int((F.linear(hidden, weight, bias)[target >= 0] * 0.5 > 0.7).sum())
    for room, fits in ((count, True), (count - 1, False), (0, False)):
        share = room / (TOKENS * CLASSES)
        assert (gpu_relu.alpha_relu_one_pass(hidden, weight, bias, target, 1.5, 0.7, share) is not None) == fits
    for bad in (torch.nan, torch.inf):
        broken = bias.clone()
        broken[4] = bad
        assert gpu_relu.alpha_relu_one_pass(hidden, weight, broken, target, 1.5, 0.7, 1.0) is None


@pytest.mark.usefixtures("triton", "small_chunks")
@pytest.mark.parametrize("tau", [None, 0.5])
def test_masked_classes_and_nan_rows_match_the_reference(tau: float | None) -> None:
    hidden, weight, bias, target = mixed()
    bias[5] = -torch.inf
    target = torch.where(target == 5, 6, target)
    clean = torch.where(bias == -torch.inf, -1e30, bias)
    hidden[8] = torch.nan
    leaves = [x.requires_grad_() for x in (hidden, weight, bias)]

    def loss(*x: Tensor) -> Tensor:
        if tau is None:
            return tsallis.linear_entmax_loss(x[0], x[1], target, bias=x[2], reduction="none")
        return tsallis.linear_alpha_relu_loss(x[0], x[1], target, tau=tau, bias=x[2], reduction="none")

    result = loss(*leaves)
    others = torch.arange(TOKENS, device=DEVICE) != 8
    expected = exact(hidden, weight, clean, target, 1.5, tau)
    assert result[8].isnan()
    close(result[others].detach(), expected[others].detach(), 2e-5)
    (grad,) = torch.autograd.grad(result.sum(), hidden)
    (right,) = torch.autograd.grad(expected[others].sum(), hidden)
    assert grad[8].isnan().all()
    close(grad[others], right[others], 1e-4)


@pytest.mark.usefixtures("triton", "small_chunks")
def test_all_classes_at_minus_inf_give_zero_loss() -> None:
    hidden, weight, bias, target = layer()
    leaves = [x.requires_grad_() for x in (hidden, weight, bias.fill_(-torch.inf))]
    loss = tsallis.linear_entmax_loss(hidden, weight, target, bias=bias, reduction="sum")
    assert loss == 0
    assert all((x == 0).all() for x in torch.autograd.grad(loss, leaves))


@pytest.mark.usefixtures("triton", "small_chunks")
@pytest.mark.parametrize("alpha", [1.0, 1.5])
@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_repeated_and_double_backward_match_float64(alpha: float, reduction: str) -> None:
    """Check repeated backward passes: the first one consumes the buffers of the forward pass."""
    hidden, weight, bias, target = mixed(peak=30.0)
    leaves = [x.requires_grad_() for x in (hidden, weight, bias)]
    loss = tsallis.linear_entmax_loss(hidden, weight, target, alpha, bias=bias, reduction=reduction).sum() * 0.5
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    again = torch.autograd.grad(loss, leaves, retain_graph=True)
    graphed = torch.autograd.grad(loss, leaves, create_graph=True)
    for one, other, third in zip(first, again, graphed, strict=True):
        close(other, one, 1e-6)
        close(third.detach(), one, 2e-5)
    second = torch.autograd.grad(sum(x.square().sum() for x in graphed), leaves)
    expected = torch.autograd.grad(exact(hidden, weight, bias, target, alpha).sum() * 0.5, leaves, create_graph=True)
    right = torch.autograd.grad(sum(x.square().sum() for x in expected), leaves)
    for one, other in zip(second, right, strict=True):
        close(one, other, 2e-4)


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_weight_gradient_of_chunks_has_small_rounding_error(monkeypatch: pytest.MonkeyPatch, reduction: str) -> None:
    """Check that, even with the most chunks, the error is a few times that of rounding once to bfloat16."""
    resize(monkeypatch, chunk=CLASSES, single_chunk=0, tokens=1)
    hidden, weight, bias, target = layer(torch.bfloat16, 0.1, tokens=128)
    hidden += 0.5  # nonzero mean, so that sums grow
    leaves = [x.requires_grad_() for x in (hidden, weight, bias)]
    assert len(linear_chunks.make_plan(Layer(*leaves, target, 1.5, None)).chunks) == 16
    loss = tsallis.linear_entmax_loss(hidden, weight, target, bias=bias, reduction=reduction).sum()
    (result,) = torch.autograd.grad(loss, weight)
    wide = weight.detach().double().requires_grad_()
    (right,) = torch.autograd.grad(exact(hidden, wide, bias, target, 1.5).sum(), wide)
    error, once = ((x.double() - right).square().mean().sqrt() for x in (result, right.to(torch.bfloat16)))
    assert error < 5 * once


def test_chunks_fit_the_buffer_and_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_chunks, "choose", lambda *_: SimpleNamespace(CAPABILITIES=gpu.CAPABILITIES))
    weight = torch.empty(128_000, 0)
    for tokens, rows in ((8192, 1024), (16_384, 1024), (65_536, 4096), (1025, 1024), (512, 512), (17_000, 1152)):
        made = linear_chunks.make_plan(Layer(torch.empty(tokens, 0), weight, None, torch.empty(0), 1.5, None))
        assert made.chunks[0] == slice(0, rows) and made.chunks[-1].stop == tokens
        assert len(made.chunks) <= 16 and made.keeps_scores == (tokens == 512)


needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs gpu: the interpreter is too slow")


@needs_gpu
@pytest.mark.parametrize("scale", [0.1, 20.0])
@pytest.mark.parametrize("tau", [None, 0.5])
def test_memory_stays_bounded(scale: float, tau: float | None) -> None:
    """Check that the loss needs less than an eighth of the memory of a linear layer with cross-entropy."""
    tokens, d, classes = 16_384, 64, 64_000
    generator = torch.Generator(DEVICE).manual_seed(0)
    inputs: dict[str, Any] = {"generator": generator, "device": DEVICE, "dtype": torch.bfloat16}
    hidden = torch.randn(tokens, d, **inputs).mul_(scale).requires_grad_()
    weight = torch.randn(classes, d, **inputs).requires_grad_()
    target = torch.randint(classes, (tokens,), generator=generator, device=DEVICE)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    if tau is None:
        tsallis.linear_entmax_loss(hidden, weight, target).backward()
    else:
        tsallis.linear_alpha_relu_loss(hidden, weight, target, tau=tau).backward()
    assert torch.cuda.max_memory_allocated() - before < 3 * 2 * tokens * classes / 8


@needs_gpu
def test_list_kernels_do_not_synchronize() -> None:
    lists, _ = some_lists(9, 41, COUNTS)
    table, hidden = torch.randn(41, 19).to(DEVICE), torch.randn(9, 19).to(DEVICE)
    weight, target = torch.rand(9).to(DEVICE), torch.arange(9).to(DEVICE)
    before = torch.cuda.get_sync_debug_mode()
    for mode in ("default", "error"):  # the kernels are compiled the first time
        torch.cuda.set_sync_debug_mode(mode)
        try:
            gpu_lists.spmm(lists, table, scale=weight, minus=target, need_total=True)
            gpu_lists.spmm(gpu_lists.transpose(lists, 41, weight, target), hidden)
        finally:
            torch.cuda.set_sync_debug_mode(before)


COMPILE = """
from tsallis.ops.triton import sparse as lists, alpha_relu as relu

lists.run = relu.run = run
for dtype in (torch.bfloat16, torch.float32):
    for tokens, classes, entries in ((256, 1024, 4096), (1, 1000, 3001), (33, 1001, 2000)):
        hidden, weight = torch.zeros(tokens, 64, dtype=dtype), torch.zeros(classes, 64, dtype=dtype)
        target, scale = torch.zeros(tokens, dtype=torch.long), torch.zeros(tokens)
        relu.alpha_relu_one_pass(hidden, weight, weight[:, 0].contiguous(), target, 1.25, 0.5, 1 / 128)
        zeros = torch.zeros(tokens + 1, dtype=torch.long), torch.zeros(entries).int(), torch.zeros(entries)
        some = lists.CsrRows(*zeros)
        lists.spmm(some, weight, scale=scale, minus=target, need_total=True, onto=hidden, factor=scale)
    print(dtype, {name: len(found) for name, found in compiled.items()})
    assert set(compiled) == {"_append_positive", "_losses", "_gather_pieces", "_gather_rows"}
    assert {len(found) for found in compiled.values()} == {1}, compiled  # not once more for another length
    compiled.clear()
"""


@pytest.mark.slow
def test_kernels_compile_for_a_gpu_once_for_all_lengths() -> None:
    """Check that the kernels compile: the interpreter accepts code that the compiler rejects."""
    compile_for_a_gpu(COMPILE)
