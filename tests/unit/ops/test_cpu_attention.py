"""Attention by the compiled kernels, on every instruction set this machine has, beside all weights in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import tsallis
from instruction_sets import in_pairs, instructions
from tsallis import entmax_attention
from tsallis.ops import cpu
from tsallis.ops.arguments import AttentionArgs
from tsallis.ops.autograd.attention import dense_attention
from tsallis.ops.cpu import attention

__all__ = ["instructions"]

pytestmark = pytest.mark.skipif(not cpu.status().available, reason=f"needs kernel: {cpu.status().reason}")

DTYPES = [torch.float32, torch.float64]
NEAR = {torch.float32: (4e-6, 1e-4), torch.float64: (1e-12, 1e-10)}  # outputs and gradients, of the largest entry


@dataclass(frozen=True, eq=False)
class Case:
    name: str
    queries: int
    keys: int
    alphas: tuple[float, ...] = (1.0, 1.05, 1.3, 1.5)  # of the heads
    size: int = 16
    value_size: int = 16
    key_heads: int = 2
    batch: int = 2
    causal: bool = False
    lengths: tuple[int, ...] | None = None
    mask: str = ""
    dropout: float = 0.0
    spread: float = 1.0  # of the scores: the wider, the fewer keys are attended to
    slopes: tuple[float, ...] = ()  # of the heads
    offset: int = 0

    def __str__(self) -> str:
        return self.name

    def tensors(self, dtype: torch.dtype) -> list[Tensor]:
        generator = torch.Generator().manual_seed(3)

        def noise(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(dtype)

        heads = len(self.alphas)
        query = noise(self.batch, heads, self.queries, self.size) * self.spread
        key = noise(self.batch, self.key_heads, self.keys, self.size)
        value = noise(self.batch, self.key_heads, self.keys, self.value_size)
        of_heads = [torch.tensor(numbers, dtype=dtype) for numbers in (self.alphas, self.slopes) if numbers]
        return [query, key, value, *of_heads]

    def of_mask(self, dtype: torch.dtype) -> Tensor | None:
        generator = torch.Generator().manual_seed(4)
        shapes = {
            "keys": (self.batch, 1, 1, self.keys),
            "all": (self.batch, len(self.alphas), self.queries, self.keys),
            "queries": (1, len(self.alphas), self.queries, 1),
            "turned": (1, 1, self.keys, self.queries),
        }
        if not self.mask:
            return None
        kind, name = self.mask.split()
        out = torch.rand(shapes[name], generator=generator)
        mask = out > 0.3 if kind == "boolean" else torch.where(out > 0.3, out, -torch.inf).to(dtype)
        return mask.mT if name == "turned" else mask

    def options(self, dtype: torch.dtype) -> dict[str, Any]:
        return {
            "attn_mask": self.of_mask(dtype),
            "key_lengths": self.lengths,
            "is_causal": self.causal,
            "dropout_p": self.dropout,
            "enable_gqa": True,
            "query_offset": self.offset,
        }


SLOPES = (0.0, 0.02, 0.5, 2.0)
MIXED = (1.0, 1.02, 1.1, 1.25, 4 / 3, 1.5, 1.75, 2.0)
CASES = [
    Case("one query and one key", 1, 1),
    Case("one query", 1, 300, MIXED),
    Case("a few queries", 3, 130, MIXED, 17, 5),
    Case("one more than a few", 4, 130, MIXED),
    Case("one key", 70, 1),
    Case("a tile", 64, 64, MIXED, 64, 64),
    Case("a tile and one query more", 65, 65, MIXED),
    Case("odd sizes", 67, 101, MIXED, 37, 23),
    Case("size 1", 40, 40, size=1, value_size=1),
    Case("wide", 20, 70, size=256, value_size=130),
    Case("values wider than keys", 33, 50, size=8, value_size=100),
    Case("sparse", 100, 400, (1.5, 1.6, 1.9, 2.0), spread=6),
    Case("long", 130, 700, (1.0, 1.2, 1.3, 1.5)),
    Case("so long that lists are divided", 70, 1500, (1.2, 1.3), 64, 64, key_heads=1, batch=1),
    Case("one head of one element", 200, 90, (1.4,), key_heads=1, batch=1),
    Case("causal", 150, 150, MIXED, causal=True),
    Case("causal with more keys", 40, 150, causal=True),
    Case("causal with more queries", 150, 40, causal=True),
    Case("causal with few queries", 2, 40, causal=True),
    Case("lengths", 70, 90, MIXED, lengths=(0, 37)),
    Case("lengths and causal", 90, 90, lengths=(13, 90), causal=True),
    Case("boolean", 40, 90, MIXED, mask="boolean all"),
    Case("boolean of keys", 70, 90, mask="boolean keys"),
    Case("boolean of queries", 70, 20, mask="boolean queries"),
    Case("boolean on its side", 30, 70, mask="boolean turned"),
    Case("added", 40, 90, MIXED, mask="added all"),
    Case("added on its side", 30, 70, mask="added turned", causal=True),
    Case("one head of keys", 40, 70, MIXED, key_heads=1),
    Case("dropout", 70, 100, MIXED, dropout=0.3),
    Case("dropout and causal", 70, 70, MIXED, dropout=0.1, causal=True),
    Case("dropout of all", 30, 30, dropout=1.0),
    Case("dropout of a few queries", 2, 200, MIXED, dropout=0.5),
    Case("slopes", 70, 90, slopes=SLOPES),
    Case("slopes of one query behind the keys", 1, 300, slopes=SLOPES, offset=299),
    Case("windows of slopes", 40, 400, slopes=SLOPES, offset=200),
    Case("windows of slopes, causal and lengths", 70, 400, causal=True, lengths=(270, 400), slopes=SLOPES, offset=330),
]


def results(call: Any, leaves: list[Tensor], upstream: Tensor) -> list[Tensor]:
    inputs = [x.clone().requires_grad_() for x in leaves]
    out = call(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, upstream.to(out.dtype))]


def exact(case: Case, seed: int, mask: Tensor | None) -> Any:
    """With all weights, by what PyTorch differentiates."""

    def call(query: Tensor, key: Tensor, value: Tensor, alpha: Tensor, slopes: Tensor | None = None) -> Tensor:
        lengths = None if case.lengths is None else torch.tensor(case.lengths)
        options = (torch.tensor(seed), None, None, case.size**-0.5, case.causal, case.dropout, case.offset)
        slopes = None if slopes is None else slopes.view(1, -1)
        args = AttentionArgs(query, key, value, alpha.view(1, -1), mask, slopes, lengths, *options)
        with tsallis.backend("eager"):
            return dense_attention(args, "cpu")[0]

    return call


def attend(case: Case, inputs: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    options = {"slopes": inputs[4]} if case.slopes else {}
    return entmax_attention(*inputs[:4], **case.options(dtype), **options)


def drawn() -> int:
    """The seed that attention will draw now."""
    state = torch.get_rng_state()
    seed = int(torch.randint(1 << 62, ()))
    torch.set_rng_state(state)
    return seed


def assert_near(result: list[Tensor], expected: list[Tensor], dtype: torch.dtype, last: str = "mask") -> None:
    names = ("output", "query", "key", "value", "alpha", last)[: len(result)]
    for name, one, other in zip(names, result, expected, strict=True):
        share = NEAR[dtype][name != "output"]
        near = share * max(other.abs().max().item(), 0.1)
        torch.testing.assert_close(one.double(), other, atol=near, rtol=0, msg=f"{name}: {{}}".format)


@in_pairs(case=CASES, dtype=DTYPES)
def test_output_and_gradients(case: Case, dtype: torch.dtype) -> None:
    inputs = case.tensors(dtype)
    wide = [x.double() for x in inputs]
    mask = case.of_mask(dtype)
    upstream = torch.randn(case.batch, len(case.alphas), case.queries, case.value_size)
    seed = drawn()
    whole = exact(case, seed, mask if mask is None or mask.dtype == torch.bool else mask.double())
    expected = results(whole, wide, upstream)
    result = results(lambda *x: attend(case, x, dtype), inputs, upstream)
    assert all(x.dtype == dtype for x in result)
    assert_near(result, expected, dtype, "slopes")
    # And as it is where nothing is learned.
    torch.random.manual_seed(0)
    with torch.no_grad():
        again = attend(case, inputs, dtype)
    if not case.dropout:
        torch.testing.assert_close(again, result[0], atol=0, rtol=0)


@pytest.mark.parametrize("keys", [3, 40])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tile_without_any_key_is_zero_without_gradients_too(dtype: torch.dtype, keys: int) -> None:
    """No lists are saved then, and an empty support fits into no list at all."""
    query, key, value, alpha = Case("", 70, keys, (1.3, 1.5)).tensors(dtype)
    mask = torch.ones(70, keys, dtype=torch.bool)
    mask[:64] = False  # the first tile
    output = entmax_attention(query, key, value, alpha, attn_mask=mask)
    assert not output[:, :, :64].any() and output[:, :, 64:].any()
    torch.testing.assert_close(output[:, :, 64:], entmax_attention(query[:, :, 64:], key, value, alpha))


@in_pairs(rows=[1, 5, 64], listed=[0, 2, 20, 1000])
def test_tiles_and_lists_of_any_length(rows: int, listed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "ROWS", rows)
    monkeypatch.setattr(attention, "MOST_LISTED", listed)
    for case in (
        Case("", 37, 90, MIXED),
        Case("", 37, 90, MIXED, spread=5, causal=True),
        Case("", 37, 40, MIXED, lengths=(40, 11), dropout=0.2),
    ):
        inputs = case.tensors(torch.float64)
        upstream = torch.randn(case.batch, len(case.alphas), case.queries, case.value_size)
        expected = results(exact(case, drawn(), None), inputs, upstream)
        result = results(lambda *x: entmax_attention(*x, **case.options(torch.float64)), inputs, upstream)  # noqa: B023
        assert_near(result, expected, torch.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nothing_is_written_behind_the_last_list(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a list is stored as a whole vector: of a tile in which there is no room for it, no list is saved."""
    around, memory, allocate = 64, [], attention.allocate

    def guarded(*arguments: Any) -> attention.SavedForBackward:
        saved = allocate(*arguments)
        assert saved.columns is not None and saved.weight is not None
        memory[:] = [x.new_full((x.numel() + 2 * around,), 77) for x in saved[2:]]
        columns, weight = (whole[around:-around].view(saved.columns.shape) for whole in memory)
        return saved._replace(columns=columns, weight=weight)

    monkeypatch.setattr(attention, "allocate", guarded)
    monkeypatch.setattr(attention, "MOST_LISTED", 6)
    query = torch.zeros(1, 1, 8, 4, dtype=dtype, requires_grad=True)  # all keys that take part have one weight
    key, value = torch.randn(2, 1, 1, 40, 4).to(dtype)
    for entries in range(24, 49):
        mask = torch.zeros(8, 40, dtype=torch.bool)
        mask[:, :6] = (torch.arange(48) < entries).view(8, 6)
        entmax_attention(query, key, value, alpha=1.5, attn_mask=mask)
        assert all((whole[:around] == 77).all() and (whole[-around:] == 77).all() for whole in memory)
        if entries <= 48 - 16:  # no vector is longer
            assert all((whole[around:][:entries] != 77).all() for whole in memory)


@pytest.mark.parametrize("threads", [2, 5])
def test_a_head_is_divided_among_threads(threads: int) -> None:
    case = Case("", 330, 90, (1.3,), key_heads=1, batch=1)
    inputs = case.tensors(torch.float64)
    upstream = torch.randn(1, 1, 330, 16)
    expected = results(exact(case, 0, None), inputs, upstream)
    torch.set_num_threads(threads)
    try:
        result = results(lambda *x: entmax_attention(*x), inputs, upstream)
    finally:
        torch.set_num_threads(1)
    assert_near(result, expected, torch.float64)


def test_heads_side_by_side_stay_so() -> None:
    """A layer's projections have heads side by side; what comes back needs no copy to be projected again."""
    case = Case("", 70, 50, MIXED, key_heads=8)
    inputs = [x.transpose(1, 2).contiguous().transpose(1, 2) if x.dim() > 1 else x for x in case.tensors(torch.float64)]
    upstream = torch.randn(2, 70, 8, 16, dtype=torch.float64).transpose(1, 2)
    leaves = [x.requires_grad_() for x in inputs]
    out = entmax_attention(*leaves)
    grads = torch.autograd.grad(out, leaves, upstream)
    assert out.transpose(1, 2).is_contiguous() and all(x.transpose(1, 2).is_contiguous() for x in grads[:3])
    assert_near(
        [out.detach(), *grads], results(exact(case, 0, None), case.tensors(torch.float64), upstream), torch.float64
    )


@in_pairs(wide=[38, 40, 48], queries=[2, 40])
def test_parts_of_wider_tensors(queries: int, wide: int) -> None:
    """What lies between the rows is not read."""
    case = Case("", queries, 50, MIXED, 37, 37, key_heads=8)
    inputs = case.tensors(torch.float32)
    upstream = torch.randn(2, 8, queries, 37)
    parts = [torch.full((*x.shape[:-1], wide), torch.nan)[..., :37].copy_(x) for x in inputs[:3]]
    expected = results(entmax_attention, inputs, upstream)
    leaves = [x.requires_grad_() for x in (*parts, inputs[3])]
    out = entmax_attention(*leaves)
    result = [out.detach(), *torch.autograd.grad(out, leaves, upstream)]
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("head", [2, 7])  # whose supports are large, and small ones, which are lists
def test_what_is_not_finite_stays_where_it_is(head: int) -> None:
    query, key, value, alpha = Case("", 70, 90, MIXED, key_heads=8).tensors(torch.float32)
    expected = entmax_attention(query, key, value, alpha)
    query[1, head, 30] = torch.nan
    broken = entmax_attention(query.requires_grad_(), key, value, alpha)
    assert broken[1, head, 30].isnan().all()
    broken.sum().backward()
    assert query.grad is not None and query.grad[1, head, 30].isnan().all()
    lines = torch.ones(70, dtype=torch.bool)
    lines[30] = False
    assert torch.equal(broken[1, head, lines], expected[1, head, lines]) and query.grad[1, head, lines].isfinite().all()


@in_pairs(
    case=[
        Case("lists and all weights", 70, 90, MIXED, lengths=(90, 40)),
        Case("short", 30, 40, MIXED, key_heads=8, dropout=0.2),
        Case("made again", 40, 300, MIXED, key_heads=1, causal=True),
        Case("few queries", 2, 70, MIXED),
        Case("one query", 1, 70, MIXED),
    ],
    shape=["bhqk", "hqk", "b1qk", "qk", "b11k", "k", "bh1k", "hq1", "b1q1"],
    dtype=DTYPES,
)
def test_an_added_mask_that_learns_gets_its_gradient(case: Case, shape: str, dtype: torch.dtype) -> None:
    inputs = case.tensors(dtype)
    sizes = {"b": case.batch, "h": len(case.alphas), "q": case.queries, "k": case.keys, "1": 1}
    mask = torch.randn([sizes[name] for name in shape]).to(dtype)
    upstream = torch.randn(case.batch, len(case.alphas), case.queries, case.value_size)
    seed, state = drawn(), torch.get_rng_state()
    expected = results(
        lambda *x: exact(case, seed, x[4].reshape((1,) * (4 - mask.dim()) + mask.shape))(*x[:4]),
        [x.double() for x in (*inputs, mask)],
        upstream,
    )
    options = case.options(dtype)
    del options["attn_mask"]
    for threads in (1, 3):
        torch.set_num_threads(threads)
        torch.set_rng_state(state)
        try:
            result = results(lambda *x: entmax_attention(*x[:4], attn_mask=x[4], **options), [*inputs, mask], upstream)
        finally:
            torch.set_num_threads(1)
        assert_near(result, expected, dtype)
