"""Tests of the compiled attention kernels, on every instruction set of this machine, against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tsallis
from contract.test_attention import BATCH, CASES, Case, Results, assert_near, derivatives, to
from instruction_sets import in_pairs, instructions
from tsallis import entmax_attention
from tsallis.ops import cpu
from tsallis.ops.cpu import attention

__all__ = ["instructions"]

pytestmark = pytest.mark.skipif(not cpu.status().available, reason=f"needs kernel: {cpu.status().reason}")

DTYPES = [torch.float32, torch.float64]
NEAR = {torch.float32: (4e-6, 1e-4), torch.float64: (1e-12, 1e-10)}  # relative tolerances: outputs, gradients
MIXED = torch.tensor([1.0, 1.02, 1.1, 1.25, 4 / 3, 1.5, 1.75, 2.0])


def make_case(name: str, queries: int, keys: int, alpha: float | Tensor = MIXED, **options: Any) -> Case:
    """Return a case of the contract with eight heads, one alpha per head; pairs of heads share keys and values."""
    sizes = {"heads": 8, "key_heads": 4, "size": 16, "value_size": 16, "spread": 1.0}
    return Case(name, queries, keys, alpha, **{**sizes, **options})


# Sizes just below and above those of tiles and vectors.
KERNEL_CASES = [
    make_case("a few queries", 3, 130, size=17, value_size=5),
    make_case("one more than a few", 4, 130),
    make_case("one key", 70, 1),
    make_case("a tile", 64, 64, size=64, value_size=64),
    make_case("a tile and one query more", 65, 65),
    make_case("odd sizes", 67, 101, size=37, value_size=23),
    make_case("size 1", 40, 40, size=1, value_size=1),
    make_case("wide", 20, 70, size=256, value_size=130),
    make_case("values wider than keys", 33, 50, size=8, value_size=100),
    make_case("sparse", 100, 400, torch.tensor([1.5, 1.6, 1.9, 2.0]).repeat(2), spread=6.0),
    make_case("long", 130, 700),
    make_case("so long that lists are divided", 70, 1500, 1.3, heads=2, key_heads=1, size=64, value_size=64),
    make_case("one head", 200, 90, 1.4, heads=1, key_heads=1),
    make_case("causal and long", 150, 150, causal=True),
    make_case("causal with few queries", 2, 40, causal=True),
    make_case("lengths of tiles", 70, 90, lengths=[0, 37, 90]),
    make_case("boolean of many queries", 70, 20, mask=(1, 8, 70, 1), boolean=True),
    make_case("added and causal", 70, 70, mask=(1, 1, 70, 70), causal=True),
]


def upstream(case: Case) -> Tensor:
    return torch.randn(BATCH, case.heads, case.queries, case.value_size, dtype=torch.float64)


def dense_attention(case: Case, inputs: Results, of: Tensor, dropout: float = 0.0) -> Results:
    """Compute attention from all weights in float64. With dropout, it drops the same entries as the kernels."""
    options = {**case.options(), "dropout_p": dropout, "return_weights": True}
    with tsallis.backend("auto" if dropout else "eager"):
        result = derivatives(entmax_attention, to(inputs, torch.float64), of, **options)
    result.pop("weights")
    return result


def check(case: Case, inputs: Results, of: Tensor, dtype: torch.dtype = torch.float64, dropout: float = 0.0) -> Results:
    """Compare the kernels with :func:`dense_attention`, with the same dropout seed, and return the kernels' results."""
    state = torch.get_rng_state()
    expected = dense_attention(case, inputs, of, dropout)
    torch.set_rng_state(state)
    result = derivatives(entmax_attention, to(inputs, dtype), of.to(dtype), **case.options(), dropout_p=dropout)
    assert all(x.dtype == dtype for x in result.values())
    assert_near(result, expected, *NEAR[dtype])
    return result


@in_pairs(case=[*(x for x in CASES if not x.steep), *KERNEL_CASES], dtype=DTYPES)
def test_output_and_gradients_match_float64(case: Case, dtype: torch.dtype) -> None:
    inputs = case.tensors()
    result = check(case, inputs, upstream(case), dtype)
    # The output is the same without gradients and with a transposed mask.
    inputs = to(inputs, dtype)
    turned = {n: x.mT.contiguous().mT if n == "attn_mask" and x.dim() > 1 else x for n, x in inputs.items()}
    with torch.no_grad():
        torch.testing.assert_close(entmax_attention(**turned, **case.options()), result["output"], atol=0, rtol=0)


@in_pairs(
    case=[make_case("tiles", 70, 100), make_case("causal", 70, 70, causal=True), make_case("a few queries", 2, 200)],
    dropout=[0.1, 0.5, 1.0],
    dtype=DTYPES,
)
def test_dropout_matches_dense_float64(case: Case, dropout: float, dtype: torch.dtype) -> None:
    check(case, case.tensors(), upstream(case), dtype, dropout)


@pytest.mark.parametrize("keys", [3, 40])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tiles_without_visible_keys_give_zeros(dtype: torch.dtype, keys: int) -> None:
    """Check a tile for which no lists are saved, because no list can hold an empty support."""
    inputs = to(make_case("", 70, keys).tensors(), dtype)
    mask = torch.ones(70, keys, dtype=torch.bool)
    mask[:64] = False  # queries of the first tile see no key
    output = entmax_attention(**inputs, attn_mask=mask, enable_gqa=True)
    assert not output[:, :, :64].any() and output[:, :, 64:].any()
    rest = entmax_attention(**{**inputs, "query": inputs["query"][:, :, 64:]}, enable_gqa=True)
    torch.testing.assert_close(output[:, :, 64:], rest)


@in_pairs(rows=[1, 5, 64], listed=[0, 2, 20, 1000])
def test_results_match_for_any_tile_and_list_length(rows: int, listed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "ROWS", rows)
    monkeypatch.setattr(attention, "MAX_LISTED", listed)
    for one, dropout in (
        (make_case("", 37, 90), 0.0),
        (make_case("", 37, 90, spread=5.0, causal=True), 0.0),
        (make_case("", 37, 40, lengths=[40, 11, 0]), 0.2),
    ):
        check(one, one.tensors(), upstream(one), dropout=dropout)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nothing_is_written_outside_the_lists(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that memory around the lists is unchanged: list ends are stored as whole vectors and need room."""
    around, memory, allocate = 64, [], attention.allocate

    def guarded(*arguments: Any) -> attention.SavedForBackward:
        saved = allocate(*arguments)
        memory[:] = [x.new_full((x.numel() + 2 * around,), 77) for x in saved[2:]]
        columns, weight = (whole[around:-around].view(saved.columns.shape) for whole in memory)
        return saved._replace(columns=columns, weight=weight)

    monkeypatch.setattr(attention, "allocate", guarded)
    monkeypatch.setattr(attention, "MAX_LISTED", 6)
    query = torch.zeros(1, 1, 8, 4, dtype=dtype, requires_grad=True)  # all visible keys get the same weight
    key, value = torch.randn(2, 1, 1, 40, 4).to(dtype)
    for entries in range(24, 49):
        mask = torch.zeros(8, 40, dtype=torch.bool)
        mask[:, :6] = (torch.arange(48) < entries).view(8, 6)
        entmax_attention(query, key, value, alpha=1.5, attn_mask=mask)
        assert all((whole[:around] == 77).all() and (whole[-around:] == 77).all() for whole in memory)
        if entries <= 48 - 16:  # vectors have at most 16 entries
            assert all((whole[around:][:entries] != 77).all() for whole in memory)


@pytest.mark.parametrize("threads", [2, 5])
def test_one_head_split_among_threads_matches_float64(threads: int) -> None:
    one = make_case("", 330, 90, 1.3, heads=1, key_heads=1)
    torch.set_num_threads(threads)
    try:
        check(one, one.tensors(), upstream(one))
    finally:
        torch.set_num_threads(1)


def test_results_keep_the_memory_layout_of_inputs() -> None:
    """Check that results keep heads side by side, as projections do, so that the next projection needs no copy."""
    one = make_case("", 70, 50, key_heads=8)
    inputs, of = one.tensors(), upstream(one)

    def beside(x: Tensor) -> Tensor:
        return x.transpose(1, 2).contiguous().transpose(1, 2) if x.dim() > 1 else x

    result = derivatives(entmax_attention, {name: beside(x) for name, x in inputs.items()}, beside(of))
    assert all(result[name].transpose(1, 2).is_contiguous() for name in ("output", "query", "key", "value"))
    assert_near(result, dense_attention(one, inputs, of), *NEAR[torch.float64])


@in_pairs(wide=[38, 40, 48], queries=[2, 40])
def test_slices_of_wider_tensors_match_float64(queries: int, wide: int) -> None:
    """Check that memory between the rows is never read."""
    one = make_case("", queries, 50, size=37, value_size=37, key_heads=8)
    inputs, of = to(one.tensors(), torch.float32), upstream(one)
    parts = {
        name: torch.full((*x.shape[:-1], wide), torch.nan)[..., :37].copy_(x) if name != "alpha" else x
        for name, x in inputs.items()
    }
    leaves = {name: x.requires_grad_() for name, x in parts.items()}
    out = entmax_attention(**leaves)
    gradients = torch.autograd.grad(out, [*leaves.values()], of.float())
    result = {"output": out.detach(), **dict(zip(leaves, gradients, strict=True))}
    assert_near(result, dense_attention(one, inputs, of), *NEAR[torch.float32])


@pytest.mark.parametrize("head", [2, 7])  # large supports, and small ones, stored as lists
def test_nan_query_affects_only_its_row(head: int) -> None:
    inputs = to(make_case("", 70, 90, key_heads=8).tensors(), torch.float32)
    query, expected = inputs["query"], entmax_attention(**inputs)
    query[1, head, 30] = torch.nan
    broken = entmax_attention(**{**inputs, "query": query.requires_grad_()})
    assert broken[1, head, 30].isnan().all()
    broken.sum().backward()
    assert query.grad is not None and query.grad[1, head, 30].isnan().all()
    lines = torch.ones(70, dtype=torch.bool)
    lines[30] = False
    assert torch.equal(broken[1, head, lines], expected[1, head, lines]) and query.grad[1, head, lines].isfinite().all()


@in_pairs(
    masked=[
        (make_case("lists and all weights", 70, 90, lengths=[90, 40, 0]), 0.0),
        (make_case("short", 30, 40, key_heads=8), 0.2),
        (make_case("made again", 40, 300, key_heads=1, causal=True), 0.0),
        (make_case("few queries", 2, 70), 0.0),
        (make_case("one query", 1, 70), 0.0),
    ],
    shape=["bhqk", "hqk", "b1qk", "qk", "b11k", "k", "bh1k", "hq1", "b1q1"],
    dtype=DTYPES,
)
def test_gradients_of_trainable_added_masks_match_float64(
    masked: tuple[Case, float], shape: str, dtype: torch.dtype
) -> None:
    one, dropout = masked
    sizes = {"b": BATCH, "h": one.heads, "q": one.queries, "k": one.keys, "1": 1}
    inputs = {**one.tensors(), "attn_mask": torch.randn([sizes[name] for name in shape]).double()}
    inputs = to(to(inputs, torch.float32), torch.float64)
    for threads in (1, 3):
        torch.set_num_threads(threads)
        try:
            check(one, inputs, upstream(one), dtype, dropout)
        finally:
            torch.set_num_threads(1)
