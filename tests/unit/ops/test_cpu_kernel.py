"""Tests of all functions of the compiled CPU kernel, on every instruction set of this machine, against float64."""

from __future__ import annotations

import ctypes
import functools
import itertools
import mmap
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from instruction_sets import by_size, in_pairs, instructions
from tsallis.ops import cpu, eager, reference
from tsallis.ops.dtypes import compute_dtype
from tsallis.ops.eager.entropy import entropy_alpha_gradient
from tsallis.ops.eager.maps import pullback
from tsallis.ops.sparse_rows import CsrRows

__all__ = ["instructions"]

pytestmark = pytest.mark.skipif(not cpu.status().available, reason=f"needs kernel: {cpu.status().reason}")

SIZES = [1, 2, 3, 7, 15, 16, 17, 33, 63, 64, 65, 127, 129, 255, 257, 1000, 1023, 1025, 2049, 5000]
ALPHAS = (1.0, 1 + 1e-6, 1.001, 1.05, 1.1, 1.25, 4 / 3, 1.5, 1.75, 1.99, 2.0)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SUM, EACH = 1e-6, 1e-6  # float32 tolerances of a row's sum and of each probability
# Errors of storing and of computing a number of size 1.
ROUNDING = {torch.float32: 0.0, torch.float64: 0.0, torch.bfloat16: 2**-8, torch.float16: 2**-11}
COMPUTING = {torch.float32: 1e-6, torch.float64: 1e-11, torch.bfloat16: 1e-6, torch.float16: 1e-6}

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.fixture(autouse=True)
def fewer_bisections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run 70 bisections, enough for float64 accuracy here; the reference's default of 200 is for wider brackets."""
    monkeypatch.setattr(reference, "BISECTIONS", 70)


class Problem(NamedTuple):
    """Rows of scores with different alphas, and their exact results in float64."""

    scores: Tensor  # [rows, d], float64; exact in all dtypes that are tested with them
    alpha: Tensor  # [rows, 1], float64; exact in float32
    target: Tensor  # [rows]; some negative
    probs: Tensor
    loss: Tensor  # [rows], 0 where the target is negative
    alpha_grad: Tensor  # [rows, 1], gradient of the loss
    weights: Tensor  # [rows, d]

    def alphas(self, dtype: torch.dtype) -> Tensor:
        return self.alpha.to(compute_dtype(dtype))


def exact(scores: Tensor, alpha: float | Tensor) -> Tensor:
    """Return the reference's probabilities, divided by their sum, which is inexact for alphas near 1."""
    probs = reference.entmax(scores, alpha)
    return probs / probs.sum(-1, keepdim=True)


@functools.cache
def problem(d: int, half: bool) -> Problem:
    generator = torch.Generator().manual_seed(d)
    rows = 35 if d <= 300 else 13  # not a multiple of the block size
    scores = torch.randn(rows, d, generator=generator).mul(2)
    # Numbers of 8 binary digits are exact in both half precisions.
    scores = (scores * 16).round().clamp(-255, 255).div(16).double() if half else scores.double()
    alpha = torch.tensor([ALPHAS[(5 * r + r // 11) % 11] for r in range(rows)]).double().unsqueeze(-1)
    target = torch.randint(d, (rows,), generator=generator)
    target[::6] = -1
    probs = exact(scores, alpha)
    gold = torch.nn.functional.one_hot(target.clamp(min=0), d)
    loss = ((probs - gold) * scores).sum(-1) + reference.tsallis_entropy(probs, alpha)
    counted = target >= 0
    slope = torch.where(counted.unsqueeze(-1), entropy_alpha_gradient(probs, alpha), 0)
    weights = torch.randn(rows, d, generator=generator).bfloat16().double()
    return Problem(scores, alpha, target, probs, torch.where(counted, loss, 0), slope, weights)


def close(result: Tensor, expected: Tensor, dtype: torch.dtype, times: float = 1.0) -> None:
    """Check equality up to the rounding of the dtype and `times` the error of computing in it."""
    rounding = ROUNDING[dtype]
    size = max(1.0, float(expected.abs().nan_to_num(0.0).amax()))
    torch.testing.assert_close(
        result.double(), expected, atol=times * COMPUTING[dtype] * size + rounding * 1e-3, rtol=rounding, equal_nan=True
    )


def same(a: Tensor, b: Tensor) -> bool:
    """Return whether tensors are equal bit for bit, including NaN."""
    return torch.equal(a.nan_to_num(nan=-7.0), b.nan_to_num(nan=-7.0))


@every_dtype
@by_size(SIZES)
def test_maps_match_float64_with_mixed_alphas(d: int, dtype: torch.dtype) -> None:
    x = problem(d, dtype.itemsize == 2)
    p = cpu.entmax(x.scores.to(dtype), x.alphas(dtype))
    assert p.dtype == dtype
    close(p, x.probs, dtype)
    if dtype.itemsize > 2:
        assert (p.double().sum(-1) - 1).abs().max() <= (SUM if dtype == torch.float32 else 1e-13)


@in_pairs(alpha=ALPHAS, dtype=DTYPES)
def test_scalar_alpha_matches_the_same_alpha_per_row(alpha: float, dtype: torch.dtype) -> None:
    for d in (5, 64, 700, 1300):
        x = problem(d, True)
        scores = x.scores.to(dtype)
        p = cpu.entmax(scores, alpha)
        close(p, eager.entmax(x.scores, alpha), dtype)
        many = torch.full((len(scores), 1), alpha, dtype=compute_dtype(dtype))
        close(cpu.entmax(scores, many), eager.entmax(x.scores, many.double()), dtype)
        results = (cpu.entmax_loss(scores, x.target, number, True) for number in (alpha, many))
        for one, each in zip(*results, strict=True):
            close(one, each.double(), one.dtype, 20)


@in_pairs(stays=[0.1, 0.5, 0.9, 1.0], dtype=[torch.float32, torch.float64])
def test_dropout_is_reproducible_and_independent_per_seed(stays: float, dtype: torch.dtype) -> None:
    x = torch.randn(300, 1001, generator=torch.Generator().manual_seed(0)).to(dtype) + 10
    saved = cpu.drop(x, stays, 2**63 + 5, torch.empty_like(x))
    over = x.clone()
    assert cpu.drop(over, stays, 2**63 + 5, over) is over and torch.equal(over, saved)
    stayed = saved != 0
    torch.testing.assert_close(saved[stayed], x[stayed] / stays)
    n, error = x.numel(), (stays * (1 - stays)) ** 0.5
    assert abs(stayed.double().mean() - stays) <= 5 * error / n**0.5
    other = cpu.drop(x, stays, 2**63 + 6, torch.empty_like(x)) != 0
    pairs = {"neighbours": (stayed[:, 1:], stayed[:, :-1]), "rows": (stayed[1:], stayed[:-1]), "seeds": (stayed, other)}
    for name, (one, two) in pairs.items():  # independent: joint frequency is the product of the frequencies
        both = (one & two).double().mean()
        assert abs(both - stays**2) <= 8 * error / n**0.5, name


@pytest.mark.parametrize("dtype", DTYPES[2:], ids=str)
def test_half_precision_rounds_to_nearest_even(dtype: torch.dtype) -> None:
    z = torch.full((64, 17), -1.0)
    z[:, 0], z[:, 1] = torch.arange(64) * ROUNDING[dtype], 0
    p = cpu.entmax(z, 2.0)
    assert torch.equal(p[:, 0], 0.5 + z[:, 0] / 2)  # every second value lies between two half-precision numbers
    assert torch.equal(cpu.entmax(z.to(dtype), 2.0), p.to(dtype))
    target = torch.zeros(64, dtype=torch.long)
    _, stats, _ = cpu.entmax_loss(z.to(dtype), target, 2.0, False)
    all_ones = torch.full((64,), -1, dtype=torch.int32).view(torch.float32)  # a NaN that must not round to zero
    assert cpu.entmax_loss_gradient(z.to(dtype), target, 2.0, stats, all_ones)[:, 0].isnan().all()
    large = torch.full((64,), 1e6)  # too large for float16
    gradient = cpu.entmax_loss_gradient(z, target, 2.0, stats, large)
    assert torch.equal(cpu.entmax_loss_gradient(z.to(dtype), target, 2.0, stats, large), gradient.to(dtype))


@every_dtype
@by_size(SIZES)
def test_map_gradients_match_float64(d: int, dtype: torch.dtype) -> None:
    x = problem(d, dtype.itemsize == 2)
    p, g, alpha = x.probs.to(dtype), x.weights.to(dtype), x.alphas(dtype)
    # Start from the same rounded probabilities: near the edge of the support the slope depends on every digit.
    expected, expected_alpha = pullback(p.double(), g.double(), alpha.double(), True)
    for need_alpha in (False, True):
        result, found_alpha = cpu.entmax_gradient(p, g, alpha, need_alpha)
        assert result.dtype == dtype
        close(result, expected, dtype, 4)
        assert (found_alpha is not None) is need_alpha
        if found_alpha is not None:
            close(found_alpha, expected_alpha, compute_dtype(dtype), 20)


@every_dtype
@by_size(SIZES)
def test_losses_and_gradients_match_float64(d: int, dtype: torch.dtype) -> None:
    x = problem(d, dtype.itemsize == 2)
    z, alpha, wide = x.scores.to(dtype), x.alphas(dtype), compute_dtype(dtype)
    loss, stats, slope = cpu.entmax_loss(z, x.target, alpha, True)
    assert loss.dtype == stats.dtype == wide and slope is not None
    close(loss, x.loss, wide, 3)
    close(slope, x.alpha_grad, wide, 20)
    counted = x.target >= 0
    assert (loss[~counted] == 0).all() and (loss[counted] >= 0).all()
    assert torch.equal(stats[counted, 0], x.scores.amax(-1).to(wide)[counted])
    assert cpu.entmax_loss(z, x.target, alpha, False)[2] is None
    upstream = torch.linspace(-1, 2, len(z), dtype=wide)
    grad = cpu.entmax_loss_gradient(z, x.target, alpha, stats, upstream)
    gold = torch.nn.functional.one_hot(x.target.clamp(min=0), d)
    expected = torch.where(counted.unsqueeze(-1), (x.probs - gold) * upstream.double().unsqueeze(-1), 0)
    close(grad, expected, dtype, 2)
    in_place = z.clone()
    cpu.entmax_loss_gradient(in_place, x.target, alpha, stats, upstream, out=in_place)
    assert torch.equal(in_place, grad)


@pytest.mark.parametrize("d", [16384, 16390])
def test_large_loss_gradients_match_those_of_row_chunks(d: int) -> None:
    # Writes of 19 MiB bypass the caches; writes of 5 MiB do not.
    z = torch.randn(300, d, generator=torch.Generator().manual_seed(d))
    target = torch.randint(d, (300,), generator=torch.Generator().manual_seed(0))
    weights = torch.linspace(-1, 1, 300)
    for alpha, save_support in itertools.product((1.0, 1.05, 1.06, 1.25, 1.5, 2.0), (False, True)):
        _, stats, _ = cpu.entmax_loss(z, target, alpha, False, save_support)
        whole = cpu.entmax_loss_gradient(z, target, alpha, stats, weights)
        parts = [
            cpu.entmax_loss_gradient(*(x[k : k + 75].clone() for x in (z, target)), alpha, stats[k : k + 75].clone(), w)
            for k, w in zip(range(0, 300, 75), weights.split(75), strict=True)
        ]
        assert same(whole, torch.cat(parts))


@in_pairs(d=[1024, 1300, 5000, 9001], dtype=DTYPES)
def test_gradients_of_saved_supports_do_not_read_scores(d: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(d)
    z = torch.randn(9, d, generator=generator).mul(torch.tensor([0.1, 1, 4]).repeat(3).unsqueeze(-1)).to(dtype)
    z[7, ::3], z[8] = -torch.inf, -torch.inf
    target = torch.randint(d, (9,), generator=generator)
    target[2] = -1
    weights = torch.linspace(-1, 2, 9, dtype=compute_dtype(dtype))
    for alpha in (1.0, 1.05, 1.25, 1.3, 1.5, 2.0):
        expected_loss, short, _ = cpu.entmax_loss(z, target, alpha, False)
        expected = cpu.entmax_loss_gradient(z, target, alpha, short, weights)
        loss, stats, _ = cpu.entmax_loss(z, target, alpha, False, save_support=True)
        assert torch.equal(loss, expected_loss) and torch.equal(stats[:, :4], short[:, :4])
        assert (stats[:, 4] >= short[:, 4]).all(), "what is in no list need not be counted"
        counts = stats[:, cpu.STATS]
        known = (counts >= 0) & (short[:, 3] > 0)  # only rows that have a loss
        assert torch.equal(counts[known], short[known, 4]) or (alpha == 1.3 and (counts <= short[:, 4])[known].all())
        assert known[5] or alpha <= 1.3, "a small support"
        assert not known[0] or alpha == 2.0, "a large one"
        gone = torch.where(known.unsqueeze(-1), torch.nan, z)
        result = cpu.entmax_loss_gradient(gone, target, alpha, stats, weights)
        if alpha == 1.3:  # the only alpha here whose powers are packed with the list
            close(result, expected.double(), dtype)
        else:
            assert torch.equal(result, expected)


LEVEL = (1.001, 1.05, 1.06, 1.1, 1.125, 1.2, 1.25, 1.3, 4 / 3)  # low alphas: large supports in long rows


@functools.cache
def level_rows(d: int) -> Tensor:
    generator = torch.Generator().manual_seed(d)
    z = torch.randn(10, d, generator=generator)
    z[0] *= 0.1
    z[2] *= 3
    z[3] = 7  # only ties
    z[4] = (z[4] * 3).round()
    z[5, d // 3] = 1e4  # a single dominating score
    z[6, ::2] = -torch.inf
    z[7] = torch.empty(d).exponential_(generator=generator) - 3 * torch.arange(d).add(1).log()
    z[8, -1] = 1e30
    z[9] = z[9] * 2 - torch.arange(d) / d * 20
    return z


@functools.cache
def level_truth(d: int, alpha: float) -> tuple[Tensor, Tensor]:
    z = level_rows(d).double()
    probs = exact(z, alpha)
    return probs, reference.tsallis_entropy(probs, alpha) + torch.where(probs > 0, probs * z, 0).sum(-1)


@in_pairs(d=[8192, 9001], alpha=LEVEL, dtype=[torch.float32, torch.bfloat16])
def test_losses_match_float64_for_low_alphas(d: int, alpha: float, dtype: torch.dtype) -> None:
    z = level_rows(d)
    if dtype == torch.bfloat16:
        z = z[[1, 3, 5]].to(dtype)  # rounded scores, for which level_truth is not exact
        probs = exact(z.double(), alpha)
        most = reference.tsallis_entropy(probs, alpha) + torch.where(probs > 0, probs * z.double(), 0).sum(-1)
    else:
        probs, most = level_truth(d, alpha)
    target = torch.arange(len(z)) * 7 + 1  # odd in row 6, whose even columns are -inf
    loss, stats, _ = cpu.entmax_loss(z, target, alpha, False)
    close(loss, most - z.double().gather(-1, target.unsqueeze(-1)).squeeze(-1), torch.float32, 3)
    gold = torch.nn.functional.one_hot(target, d)
    grad = cpu.entmax_loss_gradient(z, target, alpha, stats, torch.ones(len(z)))
    close(grad, probs - gold, dtype)
    lists, _ = lists_of(z, target, alpha)
    result = dense(lists, d)
    close(result, probs, torch.float32)
    assert (result.sum(-1) - 1).abs().max() <= SUM
    assert (stats[:, 4] >= (result > 0).sum(-1)).all() and (stats[:, 4] <= d).all()
    for r in range(len(z)):
        alone, its, _ = cpu.entmax_loss(z[r : r + 1], target[r : r + 1], alpha, False)
        assert torch.equal(alone[0], loss[r]) and torch.equal(its[0], stats[r])


@pytest.mark.parametrize("alpha", LEVEL)
def test_non_finite_rows_give_nan_losses_for_low_alphas(alpha: float) -> None:
    z = level_rows(8192)[:5].clone()
    z[0, 77], z[1, -1], z[2, 5], z[3] = torch.nan, torch.nan, torch.inf, -torch.inf
    loss, stats, _ = cpu.entmax_loss(z, torch.arange(5), alpha, False)
    assert loss[:3].isnan().all() and loss[3] == 0 and loss[4].isfinite()
    grad = cpu.entmax_loss_gradient(z, torch.arange(5), alpha, stats, torch.ones(5))
    assert grad[:3].isnan().all() and (grad[3] == 0).all() and grad[4].isfinite().all()


@in_pairs(alpha=ALPHAS[2:], dtype=DTYPES)
def test_alpha_relu_losses_match_the_reference(alpha: float, dtype: torch.dtype) -> None:
    for d, tau in ((1, 0.0), (7, 0.3), (64, -0.2), (257, 0.1), (1025, 0.5)):
        x = problem(d, dtype.itemsize == 2)
        z = (x.scores / 4).to(dtype)
        loss, stats = cpu.alpha_relu_loss(z, x.target, alpha, tau)
        expected = reference.alpha_relu_loss(z.double(), x.target.clamp(min=0), alpha, tau)
        close(loss, torch.where(x.target >= 0, expected, 0), compute_dtype(dtype), 5)
        r = reference.alpha_relu(z.double(), alpha, tau)
        off = (stats[:, -1] - (r > 0).sum(-1)).abs()
        assert (off <= (r < 1e-12).logical_and(r > 0).sum(-1)).all()  # tiny values may or may not be counted
        assert (loss[x.target < 0] == 0).all()


@pytest.mark.parametrize("alpha", [1.06, 1.15, 1.2, 1.3, 1.45, 1.6])
def test_alpha_relu_is_accurate_for_values_above_1(alpha: float) -> None:
    """Check that alpha-ReLU does not use the powers of entmax, which assume a base of at most 1."""
    scale = 1e4 ** (alpha - 1) / (alpha - 1)  # values of 1e4 and more
    for d in (40, 1025, 3000):
        z = torch.randn(6, d, generator=torch.Generator().manual_seed(d)) * scale
        z *= torch.linspace(0.1, 1, 6).unsqueeze(-1)
        target = torch.arange(6)
        loss, stats = cpu.alpha_relu_loss(z, target, alpha, 0.1)
        truth = reference.alpha_relu(z.double(), alpha, 0.1)
        assert truth.max() > 100
        assert (loss / reference.alpha_relu_loss(z.double(), target, alpha, 0.1) - 1).abs().max() <= 1e-5
        grad = cpu.alpha_relu_loss_gradient(z, target, alpha, stats, torch.ones(6))
        grad[range(6), target] += 1
        torch.testing.assert_close(grad.double(), truth, rtol=2e-5, atol=2e-5)
        offsets = torch.nn.functional.pad(stats[:, -1].long().cumsum(0), (1, 0))
        lists = CsrRows(offsets, *cpu.alpha_relu_support(z, alpha, stats, offsets))
        torch.testing.assert_close(dense(lists, d), truth, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("alpha", [1.05, 1.06, 1.1, 1.125, 1.15, 1.17, 1.2, 1.25, 4 / 3, 1.4, 1.5, 1.7, 2.0])
def test_listed_probabilities_sum_to_1_and_gradients_to_0(alpha: float) -> None:
    """Check sums of lists and gradients, also for equal scores, whose rounding errors add up."""
    for d, scale in itertools.product((40, 1024, 8192, 33_001), (0.01, 0.3, 1, 3, 10)):
        z = torch.randn(3, d, generator=torch.Generator().manual_seed(d)) * scale
        z[0], z[1] = 1, z[1].round()
        target = torch.tensor([1, d - 1, d // 2])
        lists, stats = lists_of(z, target, alpha)
        assert (dense(lists, d).sum(-1) - 1).abs().max() <= SUM
        grad = cpu.entmax_loss_gradient(z, target, alpha, stats, torch.ones(3)).double()
        assert grad.sum(-1).abs().max() <= SUM


def lists_of(z: Tensor, target: Tensor, alpha: float | Tensor) -> tuple[CsrRows, Tensor]:
    """Return the supports of rows, and the statistics of their losses."""
    _, stats, _ = cpu.entmax_loss(z, target, alpha, False)
    offsets = torch.nn.functional.pad(stats[:, -1].long().cumsum(0), (1, 0))
    return CsrRows(offsets, *cpu.support(z, alpha, stats, offsets)), stats


def dense(lists: CsrRows, columns: int) -> Tensor:
    """Convert lists to dense float64 rows; entries of the same column add up."""
    count = lists.offsets.diff()
    row = torch.arange(len(count)).repeat_interleave(count)
    table = torch.zeros(len(count), columns, dtype=torch.float64)
    return table.index_put((row, lists.column.long()), lists.value.double(), accumulate=True)


@every_dtype
@by_size(SIZES)
def test_lists_hold_the_support(d: int, dtype: torch.dtype) -> None:
    x = problem(d, dtype.itemsize == 2)
    lists, stats = lists_of(x.scores.to(dtype), x.target, x.alphas(dtype))
    counted = (x.target >= 0).unsqueeze(-1)
    close(dense(lists, d), torch.where(counted, x.probs, 0), compute_dtype(dtype))
    for r in range(len(x.target)):
        column = lists.column[lists.offsets[r] : lists.offsets[r + 1]].long()
        assert (column.diff() > 0).all() and (len(column) == 0) == (x.target[r] < 0)
    assert (lists.value >= 0).all() and (stats[:, -1] <= d).all()


@in_pairs(d=[1, 7, 64, 257, 1025], dtype=[torch.float32, torch.float64])
def test_transposed_lists_match_dense_minus_targets(d: int, dtype: torch.dtype) -> None:
    x = problem(d, False)
    lists, _ = lists_of(x.scores.to(dtype), x.target, x.alphas(dtype))
    weight = torch.linspace(-1, 2, len(x.target), dtype=dtype)
    by_class = cpu.transpose(lists, d, weight, x.target)
    assert len(by_class.offsets) == d + 1 and by_class.offsets[-1] == len(by_class.column)
    counted = x.target >= 0
    expected = dense(lists, d)
    expected[counted, x.target[counted]] -= 1
    expected = torch.where(counted.unsqueeze(-1), expected * weight.double().unsqueeze(-1), 0)
    close(dense(by_class, len(x.target)), expected.T, dtype)


@in_pairs(m=[1, 3, 7, 16, 63, 64, 65, 129, 300], dtype=DTYPES)
def test_spmm_matches_dense_product(m: int, dtype: torch.dtype) -> None:
    x = problem(65, dtype.itemsize == 2)
    lists, _ = lists_of(x.scores.to(dtype), x.target, x.alphas(dtype))
    wide, rows = compute_dtype(dtype), len(x.target)
    table = torch.randn(65, m, generator=torch.Generator().manual_seed(m)).to(dtype)
    scale = torch.linspace(-1, 2, rows, dtype=wide)
    for minus in (None, x.target):
        for factor in (None, scale):
            out, total = cpu.spmm(lists, table, scale=factor, minus=minus, need_total=True)
            expected = dense(lists, 65)
            if minus is not None:
                expected[minus >= 0, minus[minus >= 0]] -= 1
            expected = expected if factor is None else expected * factor.double().unsqueeze(-1)
            assert out.dtype == dtype and total is not None
            close(out, expected @ table.double(), dtype, 4)
            close(total, expected.sum(-1), wide, 2)
            assert same(cpu.spmm(lists, table, scale=factor, minus=minus)[0], out)


@in_pairs(d=[1, 7, 33, 129, 1025], inner=[1, 2, 3, 17], dtype=DTYPES)
def test_middle_dimension_matches_flattened_rows(d: int, inner: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(d)
    x, g = (torch.randn(3, d, inner, generator=generator).to(dtype) for _ in range(2))
    rows = 3 * inner
    alpha = torch.tensor([ALPHAS[(7 * r) % 11] for r in range(rows)], dtype=compute_dtype(dtype)).unsqueeze(-1)

    def flat(y: Tensor) -> Tensor:
        return y.transpose(1, 2).reshape(rows, d).contiguous()

    p = cpu.entmax(x, alpha, 1)
    assert p.shape == x.shape and torch.equal(flat(p), cpu.entmax(flat(x), alpha))
    assert torch.equal(flat(cpu.entmax(x, 1.5, 1)), cpu.entmax(flat(x), 1.5))
    for need_alpha in (False, True):
        result, found_alpha = cpu.entmax_gradient(p, g, alpha, need_alpha, 1)
        expected, expected_alpha = cpu.entmax_gradient(flat(p), flat(g), alpha, need_alpha)
        assert torch.equal(flat(result), expected)
        if found_alpha is not None and expected_alpha is not None:
            assert torch.equal(found_alpha, expected_alpha)


@pytest.mark.parametrize("d", [1, 3, 16, 37, 129, 300, 512, 1000, 1025, 4096])
def test_single_rows_match_batched_rows_bit_for_bit(d: int) -> None:
    x = problem(d, False)
    z, g, alpha = x.scores.float(), x.weights.float(), x.alphas(torch.float32)
    p = cpu.entmax(z, alpha)
    loss, stats, slope = cpu.entmax_loss(z, x.target, alpha, True)
    dz, da = cpu.entmax_gradient(p, g, alpha, True)
    broken = z.clone()
    broken[1::3] = torch.nan
    among_broken = cpu.entmax(broken, alpha)
    for r in range(len(z)):
        one = slice(r, r + 1)
        assert torch.equal(cpu.entmax(z[one], alpha[one]), p[one])
        alone = cpu.entmax_loss(z[one], x.target[one], alpha[one], True)
        assert torch.equal(alone[0], loss[one]) and torch.equal(alone[1], stats[one])
        assert alone[2] is not None and torch.equal(alone[2], slope[one])
        dz_alone, da_alone = cpu.entmax_gradient(p[one], g[one], alpha[one], True)
        assert torch.equal(dz_alone, dz[one]) and da_alone is not None and torch.equal(da_alone, da[one])
        assert among_broken[r].isnan().all() if r % 3 == 1 else torch.equal(among_broken[r], p[r])


@in_pairs(shape=[(70, 1000), (2500, 37), (3, 129, 200)], own_threads=[False, True])
def test_results_are_bitwise_equal_for_any_thread_count(shape: tuple[int, ...], own_threads: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    z, g = (torch.randn(shape, generator=generator) for _ in range(2))
    rows, d = z.numel() // shape[1], shape[1]
    assert z.numel() > 2 * 16384  # smaller inputs use a single thread
    alpha = torch.tensor(ALPHAS).repeat(rows // 11 + 1)[:rows].unsqueeze(-1)
    target = torch.randint(-1, d, (rows,), generator=generator)
    upstream = torch.randn(rows, generator=generator)

    def everything() -> list[Tensor | None]:
        p = cpu.entmax(z, alpha, 1)
        results = [p, *cpu.entmax_gradient(p, g, alpha, True, 1), cpu.drop(z, 0.7, 5, torch.empty_like(z))]
        if z.dim() == 2:
            result = cpu.entmax_loss(z, target, alpha, True)
            lists, stats = lists_of(z, target, alpha)
            results += [*result, cpu.entmax_loss_gradient(z, target, alpha, stats, upstream)]
            results += [*cpu.alpha_relu_loss(z, target, 1.3, 0.1), *lists, *cpu.spmm(lists, z.T.contiguous()[:, :33])]
        return results

    library = cpu._load()[0]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = everything()
    try:
        if own_threads:  # as if PyTorch's OpenMP runtime was not found
            library.tsallis_set_parallel(None, None)
        torch.set_num_threads(2)
        whole = everything()
    finally:
        torch.set_num_threads(before)
        cpu._share_threads(library)
    for one, two in zip(alone, whole, strict=True):
        assert (one is None and two is None) or (one is not None and two is not None and same(one, two))


@in_pairs(d=[1, 5, 64, 300, 2049], dtype=DTYPES, strided=[False, True])
def test_non_finite_rows_give_nan_and_empty_rows_give_zero(d: int, dtype: torch.dtype, strided: bool) -> None:
    kinds = ("whole", "nan", "inf", "empty", "nan and inf", "masked", "all inf", "nan at the end")
    every = (torch.arange(len(kinds) * len(ALPHAS)) % len(kinds)).tolist()
    z = torch.randn(len(every), d, generator=torch.Generator().manual_seed(d)).to(dtype)
    alpha = torch.tensor([ALPHAS[r // len(kinds)] for r in range(len(every))]).unsqueeze(-1)
    alpha = alpha.to(compute_dtype(dtype))
    state = torch.tensor(every)
    z[(state == 1) | (state == 4), 0] = torch.nan
    z[state == 2, d // 2] = torch.inf
    z[state == 4, -1] = torch.inf
    if d > 2:
        z[state == 4, 1] = -torch.inf
    z[state == 3], z[state == 6] = -torch.inf, torch.inf
    z[state == 5, 1::2] = -torch.inf
    z[state == 7, -1] = torch.nan
    broken, empty = (state != 0) & (state != 3) & (state != 5), state == 3
    good = ~(broken | empty)
    g = torch.randn(z.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    if strided:
        p = cpu.entmax(z.T.contiguous(), alpha, 0)
        dz, da = cpu.entmax_gradient(p, g.T.contiguous(), alpha, True, 0)
        p, dz = p.T, dz.T
    else:
        p = cpu.entmax(z, alpha)
        dz, da = cpu.entmax_gradient(p, g, alpha, True)
    assert p[broken].isnan().all() and dz[broken].isnan().all() and da[broken].isnan().all()
    assert (p[empty] == 0).all() and (dz[empty] == 0).all() and (da[empty] == 0).all()
    close(p[good], exact(z[good], alpha[good]), dtype)
    assert dz[good].isfinite().all() and da[good].isfinite().all() and (dz[good][z[good] == -torch.inf] == 0).all()
    if strided:
        return
    target = torch.zeros(len(z), dtype=torch.long)
    target[state == 4] = -1
    loss, stats, slope = cpu.entmax_loss(z, target, alpha, True)
    upstream = torch.ones(len(z), dtype=loss.dtype)
    grad = cpu.entmax_loss_gradient(z, target, alpha, stats, upstream)
    ignored = empty | (target < 0)
    assert (loss[ignored] == 0).all() and (grad[ignored] == 0).all() and (slope[ignored] == 0).all()
    assert loss[broken & ~ignored].isnan().all() and grad[broken & ~ignored].isnan().all()
    assert loss[good].isfinite().all() and grad[good].isfinite().all() and slope[good].isfinite().all()
    offsets = torch.nn.functional.pad(torch.where(good, stats[:, -1], 0).long().cumsum(0), (1, 0))
    lists = CsrRows(offsets, *cpu.support(z, alpha, stats, offsets))
    close(dense(lists, d)[good], exact(z[good], alpha[good]), compute_dtype(dtype))


def test_target_with_score_minus_inf_has_infinite_loss() -> None:
    z = torch.randn(len(ALPHAS), 40)
    z[:, 3] = -torch.inf
    alpha = torch.tensor(ALPHAS).unsqueeze(-1)
    loss, stats, _ = cpu.entmax_loss(z, torch.full((len(z),), 3), alpha, False)
    assert (loss == torch.inf).all()
    grad = cpu.entmax_loss_gradient(z, torch.full((len(z),), 3), alpha, stats, torch.ones(len(z)))
    assert (grad[:, 3] == -1).all() and grad.isfinite().all()


class Fenced:
    """Memory that ends at a protected page, so that any access beyond the end crashes."""

    def __init__(self, size: int) -> None:
        page = mmap.PAGESIZE
        self.usable = -(-size // page) * page
        self.memory = mmap.mmap(-1, self.usable + page)
        self.fence = ctypes.addressof(ctypes.c_char.from_buffer(self.memory)) + self.usable
        self.libc = ctypes.CDLL(None)
        self._protect(0)

    def _protect(self, allowed: int) -> None:
        assert self.libc.mprotect(ctypes.c_void_p(self.fence), ctypes.c_size_t(mmap.PAGESIZE), allowed) == 0

    def at_the_end(self, like: Tensor) -> Tensor:
        """Return a copy whose last number ends at the protected page."""
        start = self.usable - like.numel() * like.element_size()
        tensor = torch.frombuffer(self.memory, dtype=like.dtype, count=like.numel(), offset=start).view(like.shape)
        return tensor.copy_(like)


@in_pairs(d=[1, 7, 17, 65, 257, 1025], dtype=DTYPES)
def test_no_memory_beyond_the_end_is_accessed(d: int, dtype: torch.dtype) -> None:
    x = problem(d, True)
    wide = compute_dtype(dtype)

    def fenced(like: Tensor) -> Tensor:
        return Fenced(like.numel() * like.element_size()).at_the_end(like)

    def call(name: str, alpha: Tensor, first: Tensor, *others: Tensor | float) -> None:
        inputs = [o if isinstance(o, float) else o.data_ptr() for o in others]
        cpu.run(name, cpu._layout(first, alpha, 1), first.data_ptr(), *inputs)

    z, g = fenced(x.scores.to(dtype)), fenced(x.weights.to(dtype))
    alpha, target = fenced(x.alphas(dtype)), fenced(x.target)
    p, dz = fenced(torch.full_like(z, torch.nan)), fenced(torch.full_like(z, torch.nan))
    numbers = torch.full((len(z),), torch.nan, dtype=wide)
    da, loss, stats = fenced(numbers), fenced(numbers), fenced(numbers.repeat(cpu.STATS))
    call("map", alpha, z, p)
    assert same(p, cpu.entmax(x.scores.to(dtype), x.alphas(dtype)))
    call("map_gradient", alpha, p, g, dz, da)
    assert dz.isfinite().all() and da.isfinite().all()
    call("map", alpha, z, p, stats)
    assert p.isfinite().all() and stats.isfinite().all()
    call("loss", alpha, z, target, loss, stats, da)
    assert loss.isfinite().all()
    call("loss_gradient", alpha, z, target, stats, fenced(torch.ones_like(loss)), dz)
    assert dz.isfinite().all()
    offsets = torch.nn.functional.pad(stats.view(-1, cpu.STATS)[:, -1].long().cumsum(0), (1, 0))
    size = int(offsets[-1])
    index, value = fenced(torch.full((size,), -1, dtype=torch.int32)), fenced(torch.full((size,), -1.0, dtype=wide))
    call("support", alpha, z, stats, fenced(offsets), index, value)
    assert (index >= 0).all() and (value >= 0).all()
    relu = cpu._layout(z, 1.5)
    cpu.run("relu_loss", relu, z.data_ptr(), target.data_ptr(), 0.1, loss.data_ptr(), stats.data_ptr())
    assert loss.isfinite().all()
    table = fenced(torch.randn(d, 33).to(dtype))
    out, total = fenced(torch.full((len(z), 33), torch.nan, dtype=dtype)), fenced(numbers)
    scale = fenced(torch.ones_like(loss))
    pointers = (fenced(offsets), index, value, scale, target, table, out, total)
    cpu.run("gather", cpu.STORAGE[dtype], len(z), 33, *(t.data_ptr() for t in pointers))
    assert out.isfinite().all() and total.isfinite().all()
    strided = fenced(torch.randn(3, d, 5).to(dtype))
    moved = fenced(torch.full_like(strided, torch.nan))
    call("map", fenced(torch.full((15, 1), 1.3, dtype=wide)), strided, moved)
    assert moved.isfinite().all()


ADVERSARIES = {
    "ties": lambda noise: noise.round(),
    "two values": lambda noise: (noise > 0).float() * 0.5,
    "one huge": lambda noise: noise.index_fill(1, torch.tensor([noise.shape[1] // 2]), 1e30),
    "one lower": lambda noise: (noise * 0).index_fill(1, torch.tensor([noise.shape[1] // 2]), -0.3),
    "ranges of 1e30": lambda noise: noise * 1e30,
    "denormal": lambda noise: noise * 1e-40,
    "offset": lambda noise: noise + 1e6,
    "negative offset": lambda noise: noise - 1e6,
    "support of one": lambda noise: (noise - 3).index_fill(1, torch.tensor([0]), 3e6),
    "support of all": lambda noise: noise * 1e-4,
    "steps": lambda noise: -torch.arange(noise.shape[1], dtype=torch.float32).expand_as(noise) * 0.01,
    "geometric": lambda noise: -(1.05 ** torch.arange(noise.shape[1]).clamp(max=1500).expand_as(noise).float()),
    "largest numbers": lambda noise: noise.sign() * 3.4e38,
    "exponential": lambda noise: -noise.abs() * 30,
}


@functools.cache
def adversary(kind: str, d: int, alpha: float) -> tuple[Tensor, Tensor]:
    """Return scores [5, d] in float32 and their probabilities in float64."""
    noise = torch.randn(5, d, generator=torch.Generator().manual_seed(d)) * 2
    z = ADVERSARIES[kind](noise).contiguous()
    return z, exact(z, alpha)


def accurate(z: Tensor, alpha: float | Tensor, truth: Tensor) -> None:
    p = cpu.entmax(z, alpha)
    assert (p.double() - truth).abs().max() <= EACH
    assert (p.double().sum(-1) - 1).abs().max() <= SUM


@pytest.mark.parametrize("alpha", [1.2, 1.4, 1.457, 1.6])
@pytest.mark.parametrize("d", [12, 40, 600])
def test_entries_clearly_below_the_threshold_get_no_weight(d: int, alpha: float) -> None:
    """Check that entries still leave the support when the last, small step raises the threshold."""
    z = 1.5 * torch.randn(240_000 // d, d, generator=torch.Generator().manual_seed(0))
    truth = eager.entmax(z.double(), alpha)
    top, most = z.double().amax(-1, keepdim=True), truth.amax(-1, keepdim=True)
    below = (alpha - 1) * (z.double() - top) + most ** (alpha - 1) < -2e-6
    assert int(below.sum()) > 1000 and not (cpu.entmax(z, alpha)[below] > 0).any()


@in_pairs(kind=ADVERSARIES, alpha=ALPHAS)
def test_float32_is_accurate_on_adversarial_rows(kind: str, alpha: float) -> None:
    for d in (2, 50, 777):
        z, truth = adversary(kind, d, alpha)
        accurate(z, alpha, truth)
        # The loss must be finite if float32 can represent it.
        if z.abs().max() < 1e7:
            loss, _, slope = cpu.entmax_loss(z, torch.zeros(5, dtype=torch.long), alpha, True)
            assert loss.isfinite().all() and (loss >= 0).all() and slope is not None and slope.isfinite().all()


@pytest.mark.parametrize("threads", [1, 2])
def test_kernels_flush_subnormals_without_changing_pytorch(instructions: str, threads: int) -> None:
    """Check that kernels flush slow subnormal numbers to zero, without changing PyTorch's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        z = torch.linspace(-84, -104, 16).index_fill(0, torch.tensor([0]), 0.0).expand(8192, 16).contiguous()
        p = cpu.entmax(z, 1.0)
        product = torch.full((1_000_000,), 2e-38) * 0.25
    finally:
        torch.set_num_threads(before)
    assert ((p == 0) | (p >= torch.finfo(p.dtype).tiny)).all()
    assert (p[:, 1] > 0).all() and (p[:, -1] == 0).all()
    assert (product > 0).all()


@in_pairs(d=[1, 100, 300, 511, 1023, 4097, 60_000], alpha=ALPHAS)
def test_float32_is_accurate_on_constant_rows(d: int, alpha: float) -> None:
    for value in (0.0, 1e6, -3.7):
        z = torch.full((3, d), value)
        p = cpu.entmax(z, alpha)
        assert (p.double().sum(-1) - 1).abs().max() <= SUM
        torch.testing.assert_close(p.double(), torch.full_like(z, 1 / d, dtype=torch.float64), atol=0, rtol=1e-5)


@pytest.mark.parametrize(("d", "scale"), [(50_000, 0.01), (100_000, 0.008), (250_000, 0.006)])
def test_thresholds_of_many_close_scores_converge(d: int, scale: float) -> None:
    """The steps for alpha 1.5 must not alternate between two thresholds."""
    z = torch.randn(1, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * scale
    for dtype in (torch.float32, torch.float64):
        p, truth = cpu.entmax(z.to(dtype), 1.5).double(), eager.entmax(z.to(dtype).double(), 1.5)
        assert (p.sum(-1) - 1).abs() <= SUM
        torch.testing.assert_close(p, truth, atol=EACH * float(truth.max()), rtol=0)


@pytest.mark.parametrize("alpha", [1.5, 1.75, 1.97, 2.0])
def test_float32_is_accurate_with_one_dominant_entry(alpha: float) -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(160, 3000, generator=generator) * 1e-3
    z[:, 0] += 1
    z *= 0.2 + torch.rand(160, 1, generator=generator)
    accurate(z, alpha, eager.entmax(z.double(), alpha))


@functools.cache
def sweep(alpha: float) -> tuple[Tensor, Tensor]:
    """Return many short rows of different scales, and their probabilities in float64."""
    generator = torch.Generator().manual_seed(5)
    z = torch.randn(20_000, 37, generator=generator) * 10 ** (torch.rand(20_000, 1, generator=generator) * 4 - 2)
    return z, eager.entmax(z.double(), alpha)  # the contract tests compare eager with the reference


@pytest.mark.parametrize("alpha", ALPHAS)
def test_float32_is_accurate_on_many_short_rows(alpha: float) -> None:
    accurate(sweep(alpha)[0], alpha, sweep(alpha)[1])


@in_pairs(alpha=[1.001, 1.03, 1.5, 1.7])
def test_alpha_relu_overflows_to_infinity(alpha: float) -> None:
    base = torch.tensor([2.0**126, 2.0**127.5, 2.0**128.5, 2.0**140, 2.0**400], dtype=torch.float64) ** (alpha - 1)
    z = torch.zeros(5, 20)
    z[:, 3] = (base / (alpha - 1)).float()
    loss, stats = cpu.alpha_relu_loss(z, torch.zeros(5, dtype=torch.long), alpha, 0.0)
    assert (loss[2:] == torch.inf).all(), loss
    grad = cpu.alpha_relu_loss_gradient(z, torch.zeros(5, dtype=torch.long), alpha, stats, torch.ones(5))
    expected = reference.alpha_relu(z.double(), alpha, 0.0)[:, 3].float()
    torch.testing.assert_close(grad[:, 3], expected, rtol=2e-3, atol=0)  # a power of a rounded base


@in_pairs(alpha=[1.0, 1.1, 1.5])
def test_alpha_gradients_of_long_constant_rows_are_accurate(alpha: float) -> None:
    z = torch.zeros(1, 200_003)
    slope = cpu.entmax_loss(z, torch.zeros(1, dtype=torch.long), torch.tensor([[alpha]]), True)[2]
    expected = entropy_alpha_gradient(torch.full((1, 200_003), 1 / 200_003, dtype=torch.float64), alpha)
    torch.testing.assert_close(slope.double().flatten(), expected.flatten(), rtol=2e-5, atol=0)
