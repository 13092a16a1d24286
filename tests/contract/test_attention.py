"""Attention equals the float64 formula with all scores and weights, regardless of how its work is cut into tiles."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from contract.conftest import BACKENDS
from contract.operations import attention_formula as exact
from pairs import every_pair
from tsallis import backend, entmax_attention
from tsallis.ops.choice import choose_attention
from tsallis.ops.cpu import attention as compiled
from tsallis.ops.eager import attention as eager_attention

BATCH, HEADS, SIZE, VALUE_SIZE = 3, 4, 5, 3
HEAD_ALPHAS = torch.tensor([1.0, 1.25, 1.9, 2.0])
SLOPES = torch.tensor([2.0, 0.0, 0.125, 0.5])
ALPHAS = torch.tensor([[1.0, 1.001, 1.25, 1.5], [1.9, 2.0, 1.1, 1.75], [2.0, 1.5, 1.001, 1.9]])
Results = dict[str, Any]  # tensors by name
Way = Callable[[int, int], None]


def cut(monkeypatch: pytest.MonkeyPatch, tile: int, min_rows: int = 4, causal: int = 8) -> None:
    for name, size in (("TILE", tile), ("MIN_ROWS", min_rows), ("CAUSAL_ROWS", causal)):
        monkeypatch.setattr(eager_attention, name, size)
    # The compiled kernels have tiles of up to 64 rows, and lists of different lengths.
    monkeypatch.setattr(compiled, "ROWS", min(min_rows, 64))
    monkeypatch.setattr(compiled, "MAX_LISTED", {1: 0, 1 << 40: 128}.get(tile, 3))


WAYS = ("rows", "heads", "elements", "whole")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Way:
    """Cut queries and keys into tiles of some rows, of three of the four heads, or of two of the three elements.

    The case "whole" materialises all weights. In the compiled kernels, the cases keep no lists, short ones, or most.
    """

    def of(queries: int, keys: int) -> None:
        area, rows = queries * keys, 4 if queries < 100 else 48
        tile = {"rows": 1, "heads": 3 * area, "elements": 8 * area, "whole": 1 << 40}[request.param]
        cut(monkeypatch, tile, rows, 2 * rows)

    return of


@pytest.fixture(params=["rows", "whole"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use tiles of rows or materialise all weights, for tests that need no other tiles."""
    cut(monkeypatch, 1 if request.param == "rows" else 1 << 40)


@pytest.fixture
def tiled(monkeypatch: pytest.MonkeyPatch) -> None:
    cut(monkeypatch, 16, 2, 2)


@dataclass(frozen=True, eq=False)
class Case:
    name: str
    queries: int = 7
    keys: int = 7
    alpha: float | Tensor = 1.5
    mask: tuple[int, ...] | None = None  # shape of the mask
    boolean: bool = False
    lengths: Any = None
    causal: bool = False
    key_heads: int = HEADS
    scale: float | None = None
    slopes: Tensor | None = None
    offset: int = 0
    heads: int = HEADS
    size: int = SIZE
    value_size: int = VALUE_SIZE
    spread: float = 2.0  # scale of the scores: the larger it is, the fewer keys have a weight

    def __str__(self) -> str:
        return self.name

    @property
    def steep(self) -> bool:
        """Whether slopes are unbounded at the edge of the support, so that rounding the scores changes them."""
        return bool(torch.as_tensor(self.alpha).amax() > 2)

    def options(self) -> dict[str, Any]:
        options = {"key_lengths": self.lengths, "is_causal": self.causal, "scale": self.scale}
        options |= {"query_offset": self.offset} if self.offset else {}
        number = {} if isinstance(self.alpha, Tensor) else {"alpha": self.alpha}
        return {**options, **number, "enable_gqa": self.key_heads != self.heads}

    def tensors(self) -> Results:
        """Return all arguments that are tensors; float32 represents their values exactly."""
        generator = torch.Generator().manual_seed(11)

        def noise(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).double()

        result = {
            "query": noise(BATCH, self.heads, self.queries, self.size) * self.spread,
            "key": noise(BATCH, self.key_heads, self.keys, self.size),
            "value": noise(BATCH, self.key_heads, self.keys, self.value_size),
        }
        if isinstance(self.alpha, Tensor):
            result["alpha"] = self.alpha.double()
        if self.slopes is not None:
            result["slopes"] = self.slopes.double()
        if self.mask is not None:
            bias = noise(*self.mask)
            out = torch.rand(self.mask, generator=generator) < 0.25
            result["attn_mask"] = ~out if self.boolean else bias.masked_fill(out, -torch.inf)
        return result


CASES = [
    Case("one query and one key", 1, 1, ALPHAS),
    Case("one query", 1, 129, HEAD_ALPHAS),
    Case("one key", 129, 1, HEAD_ALPHAS),
    Case("an alpha for each head of each element", alpha=ALPHAS),
    Case("an alpha for each head", 7, 129, HEAD_ALPHAS),
    Case("one alpha without dimensions", 7, 9, torch.tensor(1.3)),
    Case("one alpha in a row", 7, 9, torch.tensor([1.7])),
    *(Case(f"alpha {alpha}", 7, 33, alpha) for alpha in (1.0, 1.001, 1.25, 1.5, 1.9, 2.0, 2.5)),
    Case("alphas on both sides of 2", 7, 33, torch.tensor([1.0, 1.5, 2.2, 3.0])),
    Case("more queries", 129, 7, ALPHAS),
    Case("long", 129, 129, HEAD_ALPHAS),
    Case("a thousand keys", 7, 1000, ALPHAS),
    Case("scaled", 7, 9, ALPHAS, scale=-0.3),
    Case("boolean", 7, 9, ALPHAS, mask=(7, 9), boolean=True),
    Case("boolean of keys", 7, 9, mask=(9,), boolean=True),
    Case("boolean of heads", 9, 7, HEAD_ALPHAS, mask=(4, 9, 7), boolean=True),
    Case("boolean of elements", 7, 129, ALPHAS, mask=(3, 1, 1, 129), boolean=True),
    Case("boolean of all", 7, 9, 1.25, mask=(3, 4, 7, 9), boolean=True),
    Case("boolean of queries", 7, 9, 1.25, mask=(3, 1, 7, 1), boolean=True),
    Case("added", 7, 9, ALPHAS, mask=(7, 9)),
    Case("added to keys", 7, 9, mask=(9,)),
    Case("added by heads", 9, 7, HEAD_ALPHAS, mask=(4, 9, 7)),
    Case("added by elements", 7, 129, ALPHAS, mask=(3, 1, 1, 129)),
    Case("added by heads to keys", 7, 9, ALPHAS, mask=(1, 4, 1, 9)),
    Case("added to all", 7, 9, 1.25, mask=(3, 4, 7, 9)),
    Case("added to queries", 7, 9, ALPHAS, mask=(4, 7, 1)),
    Case("causal", alpha=ALPHAS, causal=True),
    Case("causal with two queries in the last tile", 10, 10, ALPHAS, causal=True),
    Case("causal and long", 129, 129, HEAD_ALPHAS, causal=True),
    Case("causal with more keys", 7, 129, ALPHAS, causal=True),
    Case("causal with more queries", 129, 7, HEAD_ALPHAS, causal=True),
    Case("causal and boolean", 33, 33, ALPHAS, mask=(3, 1, 33, 33), boolean=True, causal=True),
    Case("causal and added", 33, 33, ALPHAS, mask=(4, 33, 33), causal=True),
    Case("lengths", 7, 33, ALPHAS, lengths=[3, 33, 17]),
    Case("lengths in a tensor", 9, 7, lengths=torch.tensor([3, 7, 5], dtype=torch.int32)),
    Case("lengths of all keys", 7, 9, HEAD_ALPHAS, lengths=[9, 9, 9]),
    Case("a length of zero", 7, 9, ALPHAS, lengths=[4, 9, 0]),
    Case("lengths of zero", 7, 9, HEAD_ALPHAS, lengths=[0, 0, 0]),
    Case("lengths and boolean", 7, 33, ALPHAS, mask=(33,), boolean=True, lengths=[5, 1, 33]),
    Case("lengths and added", 7, 33, ALPHAS, mask=(3, 4, 7, 33), lengths=[5, 1, 33]),
    Case("lengths and causal", 33, 33, ALPHAS, lengths=[5, 12, 33], causal=True),
    Case("two heads of keys", 7, 9, ALPHAS, key_heads=2),
    Case("one head of keys", 7, 129, HEAD_ALPHAS, key_heads=1),
    Case("two heads of keys, causal", 33, 33, HEAD_ALPHAS, key_heads=2, causal=True),
    Case("one head of keys, added", 7, 9, ALPHAS, mask=(3, 4, 7, 9), key_heads=1),
    Case("slopes", 7, 9, ALPHAS, slopes=SLOPES),
    Case("slopes of elements, causal", 33, 33, ALPHAS, causal=True, slopes=SLOPES * torch.ones(BATCH, 1)),
    Case("slopes, boolean and lengths", 7, 33, ALPHAS, (3, 1, 7, 33), True, [5, 1, 33], slopes=SLOPES),
    Case("slopes below zero", 7, 9, 1.25, slopes=-SLOPES),
    Case("a slope in a row", 9, 7, slopes=torch.tensor([0.3])),
    Case("one query behind the keys", 1, 300, HEAD_ALPHAS, slopes=SLOPES, offset=299),
    Case("queries behind keys, causal", 7, 40, HEAD_ALPHAS, causal=True, slopes=SLOPES, offset=33),
    Case("queries behind keys, causal without slopes", 7, 9, ALPHAS, causal=True, offset=2),
    Case("windows", 40, 400, ALPHAS, slopes=SLOPES, offset=200),
    Case("windows, causal", 40, 400, HEAD_ALPHAS, causal=True, slopes=SLOPES, offset=360, key_heads=2),
    Case("windows, lengths", 7, 400, 1.5, lengths=[270, 400, 290], slopes=SLOPES, offset=280),
    Case("windows and boolean", 7, 300, 2.0, (4, 7, 300), True, slopes=SLOPES, offset=150),
    Case("everything", 33, 40, ALPHAS, (4, 33, 40), False, [5, 12, 40], True, 2, 0.7, SLOPES, 3),
]
NAMED = {case.name: case for case in CASES}
some_cases = pytest.mark.parametrize(
    "case",
    [NAMED[name] for name in ("a thousand keys", "causal and added", "lengths and boolean", "everything")],
    ids=str,
)


def derivatives(call: Callable[..., Any], inputs: Results, *of: Tensor, **options: Any) -> Results:
    """Return the results, and each argument's gradient under its name; `of` are the upstream gradients."""
    leaves = {name: x.clone().requires_grad_(x.is_floating_point()) for name, x in inputs.items()}
    result = call(**leaves, **options)
    results = dict(zip(("output", "weights"), result if isinstance(result, tuple) else (result,), strict=False))
    variables = {name: x for name, x in leaves.items() if x.requires_grad}
    chosen = [results[name] for name, _ in zip(results, of, strict=False)]
    grads = torch.autograd.grad(chosen, [*variables.values()], of)
    return {**{name: x.detach() for name, x in results.items()}, **dict(zip(variables, grads, strict=True))}


def assert_near(result: Results, expected: Results, values: float, gradients: float) -> None:
    """Compare tensors with a tolerance relative to the largest entry."""
    for name, x in result.items():
        share = values if name in ("output", "weights") else gradients
        near = share * max(expected[name].abs().max().item(), 0.1)
        torch.testing.assert_close(x.double(), expected[name].double(), atol=near, rtol=0, msg=f"{name}: {{}}".format)


def to(inputs: Results, dtype: torch.dtype) -> Results:
    return {name: x.to(dtype) if x.is_floating_point() else x for name, x in inputs.items()}


@functools.cache
def answers(
    case: Case, of_weights: bool = False, dtype: torch.dtype = torch.float32
) -> tuple[Results, tuple[Tensor, ...], Results]:
    """Return arguments rounded to the dtype, upstream gradients and the expected results, cached for all tests."""
    inputs = to(to(case.tensors(), dtype), torch.float64)
    generator = torch.Generator().manual_seed(5)
    shapes = [(BATCH, case.heads, case.queries, size) for size in (case.value_size, case.keys)]
    of = tuple(torch.randn(shape, generator=generator).to(dtype).double() for shape in shapes[: 1 + of_weights])
    return inputs, of, derivatives(exact, inputs, *of, **case.options())


@every_pair(indirect=["way", "computed_by"], case=CASES, way=WAYS, computed_by=BACKENDS["test_attention"])
def test_output_and_gradients_match_formula(case: Case, way: Way) -> None:
    way(case.queries, case.keys)
    inputs, of, expected = answers(case)
    assert_near(derivatives(entmax_attention, inputs, *of, **case.options()), expected, 1e-12, 1e-10)
    if not case.steep:
        single = derivatives(entmax_attention, to(inputs, torch.float32), of[0].float(), **case.options())
        assert all(x.dtype == torch.float32 for x in single.values())
        assert_near(single, expected, 2e-6, 5e-5)


@some_cases
def test_weights_match_formula(case: Case) -> None:
    inputs, of, expected = answers(case, of_weights=True)
    result = derivatives(entmax_attention, inputs, *of, return_weights=True, **case.options())
    assert_near(result, expected, 1e-12, 1e-10)
    nonempty = expected["weights"].sum(-1) > 0
    torch.testing.assert_close(result["weights"].sum(-1), nonempty.double(), atol=1e-12, rtol=0)
    assert (result["weights"][expected["weights"] == 0] == 0).all()
    single = to(inputs, torch.float32)
    output, weights = entmax_attention(**single, return_weights=True, **case.options())
    torch.testing.assert_close(weights.sum(-1), nonempty.float(), atol=2e-6, rtol=0)
    without = entmax_attention(**single, **case.options())
    assert_near({"output": output}, {"output": without}, 4e-6, 0)


@some_cases
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_computed_in_float32(case: Case, dtype: torch.dtype, either: None) -> None:
    inputs, of, expected = answers(case, dtype=dtype)
    inputs = to(inputs, dtype)
    result = derivatives(entmax_attention, inputs, of[0].to(dtype), **case.options())
    for name, x in result.items():
        assert x.dtype == dtype
        # The result is rounded by half a unit in the last place; float32 adds a small error.
        near = (2e-6 if name == "output" else 1e-4) * expected[name].abs().max().item()
        torch.testing.assert_close(x.double(), expected[name], atol=near, rtol=torch.finfo(dtype).eps / 2)
    _, weights = entmax_attention(**inputs, return_weights=True, **case.options())
    assert weights.dtype == dtype


def test_mixed_dtypes_work_only_under_autocast(either: None) -> None:
    """Mixed dtypes follow `scaled_dot_product_attention`; they raise without autocast, and with float64 among them."""
    query, key, value = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4).bfloat16(), torch.randn(1, 2, 5, 4).half()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = entmax_attention(query, key, value, 1.0)
        expected = scaled_dot_product_attention(query, key, value)
        alike = entmax_attention(query, key.float(), value.float(), 1.0)
        with pytest.raises(TypeError, match=r"key must be torch\.float64 .* got torch\.bfloat16"):
            entmax_attention(query.double(), key, value)
    assert result.dtype == expected.dtype == torch.bfloat16 and alike.dtype == torch.float32
    torch.testing.assert_close(result, expected, atol=1e-2, rtol=1e-2)
    with pytest.raises(TypeError, match=r"key must be torch\.float32 .* got torch\.bfloat16"):
        entmax_attention(query, key, value)


@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_zero_size_features_give_uniform_weights(alpha: float, either: None) -> None:
    """All scores are 0, so the keys that a query sees share the weight equally."""
    query, key = torch.randn(2, 4, 3, 0, requires_grad=True), torch.randn(2, 2, 5, 0, requires_grad=True)
    value = torch.randn(2, 2, 5, 3, requires_grad=True)
    options = {"enable_gqa": True, "is_causal": True}
    output, weights, support = entmax_attention(
        query, key, value, alpha, return_weights=True, return_support=True, **options
    )
    torch.testing.assert_close(weights, torch.tril(torch.ones(3, 5) / torch.tensor([[1], [2], [3]])).expand(2, 4, 3, 5))
    dense = scaled_dot_product_attention(query, key, value, **options)
    torch.testing.assert_close(output, dense)
    torch.testing.assert_close(entmax_attention(query, key, value, alpha, **options), output)
    assert support.tolist() == [[[1, 2, 3]] * 4] * 2
    gradients = torch.autograd.grad(output.sum(), (query, key, value))
    (expected,) = torch.autograd.grad(dense.sum(), value)
    torch.testing.assert_close(gradients[2], expected)
    assert [x.shape for x in gradients[:2]] == [query.shape, key.shape]
    empty, support = entmax_attention(*torch.randn(2, 2, 4, 5), value[0, :, :4, :0], alpha, return_support=True)
    assert empty.shape == (2, 4, 0) and (support > 0).all()


def test_a_learned_alpha_keeps_its_dtype(either: None) -> None:
    inputs, of, expected = answers(NAMED["an alpha for each head of each element"])
    alpha = inputs["alpha"].clone().requires_grad_()
    out = entmax_attention(**{**to(inputs, torch.float32), "alpha": alpha})
    (result,) = torch.autograd.grad(out, alpha, of[0].float())
    assert out.dtype == torch.float32 and result.dtype == torch.float64
    assert_near({"alpha": result}, expected, 0, 5e-5)
    whole = entmax_attention(**{**inputs, "alpha": torch.tensor(2.0)})
    torch.testing.assert_close(whole, entmax_attention(**{**inputs, "alpha": 2}))


DENSE_CASES = [
    Case("plain", 7, 9),
    Case("scaled", 7, 9, scale=0.3),
    Case("causal with more keys", 7, 9, causal=True),
    Case("causal with more queries", 9, 7, causal=True),
    Case("boolean", 7, 33, mask=(3, 1, 7, 33), boolean=True),
    Case("added", 7, 33, mask=(4, 7, 33)),
    Case("grouped", 7, 9, key_heads=2),
    Case("grouped and causal", 9, 9, key_heads=1, causal=True),
]


@pytest.mark.parametrize("case", DENSE_CASES, ids=str)
def test_alpha_one_is_scaled_dot_product_attention(case: Case, either: None) -> None:
    inputs, of, _ = answers(case)
    options = {name: x for name, x in case.options().items() if name not in ("key_lengths", "alpha")}
    expected = derivatives(scaled_dot_product_attention, inputs, *of, **options)
    for alpha in (1.0, torch.ones(HEADS)):
        result = derivatives(entmax_attention, inputs, *of, alpha=alpha, **options)
        assert_near(result, expected, 1e-12, 1e-11)


@every_pair(
    indirect=["way", "computed_by"],
    alpha=[HEAD_ALPHAS, torch.full((HEADS,), 2.5)],
    boolean=[True, False],
    way=WAYS,
    computed_by=BACKENDS["test_attention"],
)
def test_fully_masked_queries_give_zeros(alpha: Tensor, boolean: bool, way: Way) -> None:
    way(9, 9)
    inputs = Case("", 9, 9, alpha, (HEADS, 9, 9), boolean).tensors()
    of = torch.randn(BATCH, HEADS, 9, VALUE_SIZE, dtype=torch.float64)
    blind = torch.zeros(HEADS, 9, dtype=torch.bool)
    blind[:, 2:7] = blind[2] = True
    out: Any = False if boolean else -torch.inf
    inputs["attn_mask"] = inputs["attn_mask"].masked_fill(blind.unsqueeze(-1), out)
    for causal in (False, True):
        result = derivatives(entmax_attention, inputs, of, is_causal=causal)
        assert (result["output"][:, blind] == 0).all() and (result["query"][:, blind] == 0).all()
        assert all((result[name][:, 2] == 0).all() for name in ("key", "value")) and result["alpha"][2] == 0
        assert all(x.isfinite().all() for x in result.values())
        assert boolean or (result["attn_mask"][blind] == 0).all()
    inputs["attn_mask"] = torch.full_like(inputs["attn_mask"], out)
    assert all((x == 0).all() for x in derivatives(entmax_attention, inputs, of).values())


@pytest.mark.parametrize("causal", [False, True])
def test_nan_query_does_not_affect_other_queries(causal: bool, way: Way) -> None:
    way(7, 7)
    inputs = NAMED["an alpha for each head of each element"].tensors()
    expected = entmax_attention(**inputs, is_causal=causal)
    inputs["query"][1, 2, 3, 0] = torch.nan
    result = entmax_attention(**inputs, is_causal=causal)
    assert result[1, 2, 3].isnan().all()
    result[1, 2, 3] = expected[1, 2, 3]
    torch.testing.assert_close(result, expected, atol=1e-12, rtol=0)


@every_pair(
    indirect=["way", "computed_by"],
    filler=[1e30, torch.inf, -torch.inf, torch.nan],
    case=[
        Case("causal" * causal, 7, 9, ALPHAS, (4, 7, 9), lengths=[2, 9, 5], causal=causal) for causal in (False, True)
    ],
    way=WAYS,
    computed_by=BACKENDS["test_attention"],
)
def test_keys_beyond_key_lengths_are_ignored(filler: float, case: Case, way: Way) -> None:
    way(case.queries, case.keys)
    inputs, of, expected = answers(case)
    padding = (torch.arange(9) >= torch.tensor(case.lengths).unsqueeze(-1)).view(BATCH, 1, 9, 1)
    padded = {n: x.masked_fill(padding, filler) if n in ("key", "value") else x for n, x in inputs.items()}
    result = derivatives(entmax_attention, padded, *of, **case.options())
    assert_near(result, expected, 1e-12, 1e-10)
    for name in ("key", "value"):
        assert (result[name].masked_select(padding) == 0).all()


@pytest.mark.parametrize("queries", [1, 3, 9])
def test_results_with_key_norms_match_formula(queries: int) -> None:
    inputs = Case("", queries, 600, HEAD_ALPHAS, slopes=SLOPES, key_heads=2).tensors()
    norms = inputs["key"].norm(dim=-1).amax(-1)
    options: dict[str, Any] = {"query_offset": 600 - queries, "enable_gqa": True}
    of = torch.randn(BATCH, HEADS, queries, VALUE_SIZE, dtype=torch.float64)
    expected = derivatives(exact, inputs, of, **options)
    result = derivatives(lambda **x: entmax_attention(**x, key_norms=norms), inputs, of, **options)
    assert_near(result, expected, 1e-12, 1e-10)
    single = entmax_attention(**to(inputs, torch.float32), **options, key_norms=norms)
    assert_near({"output": single}, expected, 2e-6, 0)


@pytest.mark.parametrize("offset", [0, 500])
def test_windows_include_far_keys_with_large_norms(offset: int) -> None:
    inputs = Case("", 12, 700, HEAD_ALPHAS, slopes=SLOPES, key_heads=2).tensors()
    inputs["key"][:, :, 100::250] *= 300
    options: dict[str, Any] = {"query_offset": offset, "enable_gqa": True}
    of = torch.randn(BATCH, HEADS, 12, VALUE_SIZE, dtype=torch.float64)
    expected = derivatives(exact, inputs, of, **options)
    _, weights = exact(**inputs, **options)
    far = (offset + torch.arange(12).unsqueeze(-1) - torch.arange(700)).abs() > 200
    assert all((of_head * far).any() for of_head in weights.unbind(1))
    for dtype, near in ((torch.float64, 1e-10), (torch.float32, 1e-3)):
        result = derivatives(entmax_attention, to(inputs, dtype), of.to(dtype), **options)
        assert_near(result, {name: expected[name] for name in result}, near, near)


def test_the_kernels_do_not_read_keys_outside_a_window() -> None:
    compiled = choose_attention(*torch.ones(3, 1, 1, 300, 16), (1.5, 1.5)) == "cpu"
    query, key, value = torch.randn(3, 1, 1, 2000, 16, dtype=torch.float64)
    options: dict[str, Any] = {"slopes": torch.tensor([1.0]), "query_offset": 1999}
    norms = key.norm(dim=-1).amax(-1)
    expected = entmax_attention(query[:, :, -1:], key, value, **options, key_norms=norms)
    key[:, :, :1500], value[:, :, :1500] = torch.nan, torch.nan
    result = entmax_attention(query[:, :, -1:], key, value, **options, key_norms=norms)
    assert torch.equal(result, expected) if compiled else result.isnan().all()
    assert entmax_attention(query[:, :, -1:], key, value, **options).isnan().all()


def test_extra_batch_dimensions_match_single_calls(either: None) -> None:
    query, key, value = (torch.randn(2, 3, 4, n, 5, dtype=torch.float64) for n in (7, 9, 9))
    alpha = 1 + torch.rand(2, 3, 4, dtype=torch.float64)
    lengths = torch.tensor([[9, 3, 1], [5, 9, 8]])
    masks = [
        torch.randn(shape, dtype=torch.float64) for shape in ((9,), (7, 1), (4, 7, 9), (3, 1, 1, 9), (2, 1, 4, 7, 9))
    ]
    for mask in masks:
        result = entmax_attention(query, key, value, alpha, attn_mask=mask, key_lengths=lengths)
        for b, c in [(0, 1), (1, 2)]:
            of_one = mask.expand(2, 3, 4, 7, 9)[b, c]
            options: dict[str, Any] = {"attn_mask": of_one, "key_lengths": lengths[b, c]}
            three = entmax_attention(query[b, c], key[b, c], value[b, c], alpha[b, c], **options)
            expected, _ = exact(query[b, c], key[b, c], value[b, c], alpha[b, c], **options)
            torch.testing.assert_close(result[b, c], expected)
            torch.testing.assert_close(three, result[b, c])
            options["attn_mask"] = of_one[2]
            two = entmax_attention(query[b, c, 2], key[b, c, 2], value[b, c, 2], alpha[b, c, 2], **options)
            torch.testing.assert_close(two, result[b, c, 2])


@pytest.mark.parametrize(
    ("batch", "queries", "keys"), [(BATCH, 0, 5), (BATCH, 5, 0), (0, 5, 6), (BATCH, 0, 0)], ids=str
)
def test_empty_inputs_give_zero_outputs_and_gradients(batch: int, queries: int, keys: int) -> None:
    shapes = ((queries, SIZE), (keys, SIZE), (keys, VALUE_SIZE))
    inputs = [torch.randn(batch, HEADS, *shape, requires_grad=True) for shape in shapes]
    output, weights = entmax_attention(*inputs, is_causal=True, return_weights=True)
    assert weights.shape == (batch, HEADS, queries, keys)
    assert output.shape == (batch, HEADS, queries, VALUE_SIZE) and (output == 0).all()
    output = entmax_attention(*inputs, is_causal=True)
    assert output.shape == (batch, HEADS, queries, VALUE_SIZE) and (output == 0).all()
    output.sum().backward()
    assert all(x.grad is not None and x.grad.shape == x.shape and (x.grad == 0).all() for x in inputs)


def test_inputs_are_not_modified_and_backward_runs_twice(way: Way) -> None:
    case = NAMED["everything"]
    way(case.queries, case.keys)
    inputs, of, _ = answers(case)
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    out = entmax_attention(**leaves, dropout_p=0.3, **case.options())
    saved, grad = out.detach().clone(), of[0].clone()
    first = torch.autograd.grad(out, [*leaves.values()], grad, retain_graph=True)
    second = torch.autograd.grad(out, [*leaves.values()], grad)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert torch.equal(out, saved) and torch.equal(grad, of[0])
    assert all(torch.equal(x, inputs[name]) for name, x in leaves.items())


@pytest.mark.parametrize("variable", ["query", "key", "value", "alpha", "attn_mask"])
def test_gradients_of_single_inputs_match_formula(variable: str, either: None) -> None:
    case = NAMED["everything"]
    inputs, of, expected = answers(case)
    x = inputs[variable].clone().requires_grad_()
    (result,) = torch.autograd.grad(entmax_attention(**{**inputs, variable: x}, **case.options()), x, of[0])
    assert_near({variable: result}, expected, 0, 1e-10)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize(("forward", "backward"), [(3, 3), (1, 3), (3, 1)])
def test_thread_count_may_change_before_backward(
    forward: int, backward: int, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(monkeypatch, 1)
    case = NAMED["two heads of keys, causal"]
    inputs, of, expected = answers(case)
    results = []
    for threads in (forward, backward):
        leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
        torch.manual_seed(3)
        monkeypatch.setattr(torch, "get_num_threads", lambda: forward)
        out = entmax_attention(**leaves, dropout_p=dropout, **case.options())
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        grads = torch.autograd.grad(out, [*leaves.values()], of[0])
        results.append({"output": out.detach(), **dict(zip(leaves, grads, strict=True))})
    assert_near(results[1], results[0] if dropout else expected, 1e-12, 1e-10)


@pytest.mark.parametrize(
    "case", [NAMED[name] for name in ("everything", "one head of keys", "two heads of keys, causal")], ids=str
)
def test_tiled_and_full_dropout_agree_for_one_seed(case: Case, way: Way) -> None:
    way(case.queries, case.keys)
    inputs, of, _ = answers(case)
    results = []
    for at_once in (False, True):
        torch.manual_seed(7)
        options = {**case.options(), "dropout_p": 0.4, "return_weights": at_once}
        result = derivatives(entmax_attention, inputs, *of, **options)
        if at_once:
            _, weights = exact(**inputs, **case.options())
            torch.testing.assert_close(result.pop("weights"), weights, atol=1e-12, rtol=0)  # weights before dropout
        results.append(result)
    assert_near(results[0], results[1], 1e-12, 1e-10)
    assert not torch.equal(results[0]["output"], derivatives(entmax_attention, inputs, *of, **case.options())["output"])


@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("tile", [3 * 33 * 33, 1 << 40])
def test_dropout_drops_independently_and_rescales_weights(
    dropout: float, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(monkeypatch, tile)
    query, key, value = *torch.randn(2, 40, HEADS, 33, SIZE), torch.eye(33).expand(40, HEADS, -1, -1)
    weights = (query.double() @ key.double().mT / math.sqrt(SIZE)).softmax(-1)
    dropped = entmax_attention(query, key, value, 1.0, dropout_p=dropout).double()
    stays = dropped != 0
    torch.testing.assert_close(dropped[stays], weights[stays] / (1 - dropout), atol=0, rtol=1e-5)
    variance = dropout * (1 - dropout)
    for dims in [(0, 1, 2, 3), (1, 2, 3), (0, 2, 3), (0, 1, 3), (0, 1, 2)]:  # overall, then per element, per head, ...
        share = stays.double().mean(dims)
        assert ((share - (1 - dropout)).abs() < 5 * math.sqrt(variance * share.numel() / stays.numel())).all()
    for dim in range(4):  # elements, heads, queries and keys have independent masks
        same = (stays == stays.roll(1, dim)).double().mean().item()
        assert abs(same - (1 - 2 * variance)) < 0.01
    assert not torch.equal(dropped, entmax_attention(query, key, value, 1.0, dropout_p=dropout))


def test_dropout_p_1_gives_zeros(way: Way) -> None:
    way(33, 33)
    inputs, of, _ = answers(NAMED["causal and added"])
    for result in (
        derivatives(entmax_attention, inputs, *of, dropout_p=1.0, is_causal=True),
        derivatives(entmax_attention, to(inputs, torch.float32), of[0].float(), dropout_p=1),
    ):
        assert all((x == 0).all() for x in result.values())


def small() -> list[Tensor]:
    """Return arguments for finite differences; no score lies at the edge of a support."""
    shapes = ((2, 2, 3, 2), (2, 1, 4, 2), (2, 1, 4, 1), (2, 3, 4))
    generator = torch.Generator().manual_seed(8)
    query, key, value, mask = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    alpha = torch.tensor([[1.2, 1.5], [1.75, 1.01]], dtype=torch.float64)
    slopes = torch.tensor([0.4, 0.05], dtype=torch.float64)
    return [x.requires_grad_() for x in (query, key, value, alpha, mask, slopes)]


def masked_and_grouped(*x: Tensor, **options: Any) -> Any:
    query, key, value, alpha, mask, slopes = x
    chosen = {"key_lengths": [4, 3], "is_causal": True, "scale": 0.7, "enable_gqa": True, "query_offset": 1, **options}
    return entmax_attention(query, key, value, alpha, attn_mask=mask, slopes=slopes, **chosen)


@pytest.mark.usefixtures("tiled")
def test_dropout_passes_gradcheck_and_gradgradcheck() -> None:
    def seeded(*x: Tensor) -> Any:
        torch.manual_seed(5)
        return masked_and_grouped(*x, dropout_p=0.3)

    assert gradcheck(seeded, small())
    assert gradgradcheck(seeded, small())


@pytest.mark.usefixtures("tiled")
@pytest.mark.parametrize("randomness", ["same", "different"])
def test_vmap_dropout_rescales_and_draws_as_asked(randomness: str) -> None:
    query, key = torch.randn(50, HEADS, 7, SIZE), torch.randn(50, HEADS, 9, SIZE)

    def dropped(query: Tensor, key: Tensor) -> Any:
        return entmax_attention(query, key, torch.eye(9).expand(HEADS, -1, -1), 1.0, dropout_p=0.5)

    result = torch.vmap(dropped, randomness=randomness)(query, key)
    weights = (query.double() @ key.double().mT / math.sqrt(SIZE)).softmax(-1)
    stays = result != 0
    torch.testing.assert_close(result.double()[stays], 2 * weights[stays], atol=0, rtol=1e-5)
    if randomness == "same":
        assert (stays == stays[0]).all() and 0 < stays[0].double().mean() < 1
    else:  # 12,600 draws: five standard deviations
        assert abs(stays.double().mean() - 0.5) < 0.0225
        assert abs((stays == stays.roll(1, 0)).double().mean() - 0.5) < 0.0225


COMPILED_OPTIONS = [
    {},
    {"is_causal": True, "scale": 0.3, "enable_gqa": True},
    {"attn_mask": torch.ones(7, 9).tril(4).bool(), "return_weights": True},
    {"attn_mask": torch.linspace(-1, 1, 9)},
    {"key_lengths": [3, 9, 5]},
    {"key_lengths": torch.tensor([3, 9, 5])},
    {"slopes": SLOPES, "query_offset": 2, "is_causal": True},
]


@pytest.mark.parametrize("options", COMPILED_OPTIONS, ids=lambda options: ",".join(options))
@pytest.mark.usefixtures("tiled")
def test_compiled_attention_matches_eager_in_one_graph(options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    inputs = to(Case("", 7, 9, HEAD_ALPHAS, key_heads=2 if "enable_gqa" in options else HEADS).tensors(), torch.float32)
    compiled = torch.compile(entmax_attention, fullgraph=True, backend="aot_eager")
    of = [torch.randn(BATCH, HEADS, 7, n) for n in (VALUE_SIZE, 9)][: 1 + ("return_weights" in options)]
    expected = derivatives(entmax_attention, inputs, *of, **options)
    assert_near(derivatives(compiled, inputs, *of, **options), expected, 1e-6, 1e-5)


class Allocated(TorchDispatchMode):
    """The size of the largest storage of any operation's result, in units of four bytes."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [x.untyped_storage().nbytes() // 4 for x in tree_leaves(result) if isinstance(x, Tensor)]
        self.largest = max(self.largest, *sizes, 0)
        return result


@pytest.mark.parametrize("alpha", [1.5, torch.tensor([1.3, 2.0])], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_memory_grows_linearly_with_length(
    alpha: float | Tensor, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(monkeypatch, 256)
    largest, saved = [], []
    for length in (32, 128):
        query, key, value = (torch.randn(2, 2, length, 4, requires_grad=True) for _ in range(3))
        bias = torch.randn(length, requires_grad=True)
        numbers = alpha.clone().requires_grad_() if isinstance(alpha, Tensor) else alpha
        sizes: list[int] = []

        def keep(x: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(x.untyped_storage().nbytes() // 4)
            return x

        with Allocated() as allocated, torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            options = {"attn_mask": bias, "is_causal": causal, "key_lengths": [length, length // 2], "dropout_p": 0.2}
            slopes = torch.tensor([0.5, 0.1], requires_grad=True)
            entmax_attention(query, key, value, numbers, **options, slopes=slopes).sum().backward()
        assert query.grad is not None and bias.grad is not None and slopes.grad is not None
        largest.append(allocated.largest)
        saved.append(sum(sizes))
    for before, after in (largest, saved):
        assert 0 < after <= 4.1 * before and after < 2 * 2 * 128 * 128 / 4


def make_arguments(**changes: Any) -> dict[str, Any]:
    return {**dict(zip(("query", "key", "value"), torch.randn(3, 2, 4, 6, 5), strict=True)), **changes}


WRONG = [
    ({"query": [1.0]}, TypeError, "query .* list"),
    ({"value": None}, TypeError, "value .* NoneType"),
    ({"query": torch.ones(2, 4, 6, 5).long()}, TypeError, "query .* torch.int64"),
    ({"key": torch.ones(2, 4, 6, 5).double()}, TypeError, "key .* torch.float64"),
    ({"key": torch.ones(2, 4, 6, 5, device="meta")}, TypeError, "key .* meta"),
    ({"query": torch.ones(5)}, ValueError, r"query .* \(5,\)"),
    ({"key": torch.ones(4, 6, 5)}, ValueError, r"key .* \(4, 6, 5\)"),
    ({"key": torch.ones(2, 4, 6, 7)}, ValueError, "key .* size 5, .* got 7"),
    ({"value": torch.ones(2, 4, 7, 5)}, ValueError, r"value .* \(2, 4, 7, 5\)"),
    ({"value": torch.ones(2, 2, 6, 5)}, ValueError, r"value .* \(2, 2, 6, 5\)"),
    ({"query": torch.ones(3, 4, 6, 5)}, ValueError, r"\(3, 4, 6, 5\)"),
    ({"query": torch.ones(2, 8, 6, 5)}, ValueError, "enable_gqa=True, got 8 and 4"),
    ({"query": torch.ones(2, 6, 6, 5), "enable_gqa": True}, ValueError, "key heads, got 6 and 4"),
    ({"query": torch.ones(2, 2, 6, 5), "enable_gqa": True}, ValueError, "key heads, got 2 and 4"),
    ({"alpha": 0.5}, ValueError, "alpha .* 0.5"),
    ({"alpha": float("inf")}, ValueError, "alpha .* inf"),
    ({"alpha": torch.tensor([1.5, 2.0, 0.25, 1.0])}, ValueError, "alpha .* 0.25"),
    ({"alpha": torch.tensor([1.5, 2.0, torch.nan, 1.0])}, ValueError, "alpha .* nan"),
    ({"alpha": torch.ones(3)}, ValueError, r"alpha .* \(3,\)$"),
    ({"alpha": torch.ones(6, 6)}, ValueError, r"alpha .* \(6, 6\); did you mean attn_mask=\?"),
    ({"alpha": torch.ones(6, 6).bool()}, TypeError, r"torch.bool; did you mean attn_mask=\?"),
    ({"alpha": torch.tensor(2j)}, TypeError, "alpha .* torch.complex64"),
    ({"alpha": "learned"}, TypeError, "alpha .* 'learned'"),
    ({"scale": "1"}, TypeError, "scale .* '1'"),
    ({"alpha": torch.ones(2, 4, 1)}, ValueError, r"alpha .* \(2, 4, 1\)"),
    ({"attn_mask": torch.ones(6, 6).long()}, TypeError, "attn_mask .* torch.int64"),
    ({"attn_mask": torch.ones(6, 5)}, ValueError, r"attn_mask .* \(6, 5\) .* \(2, 4, 6, 6\)"),
    ({"attn_mask": torch.ones(3, 1, 6, 6).bool()}, ValueError, r"attn_mask .* \(3, 1, 6, 6\)"),
    ({"attn_mask": torch.ones(1, 2, 4, 6, 6)}, ValueError, r"attn_mask .* \(1, 2, 4, 6, 6\)"),
    ({"key_lengths": [6, 7]}, ValueError, "key_lengths .* got 7"),
    ({"key_lengths": torch.tensor([-1, 2])}, ValueError, "key_lengths .* got -1"),
    ({"key_lengths": [1, 2, 3]}, ValueError, r"key_lengths .* \(3,\)"),
    ({"key_lengths": 3}, ValueError, r"key_lengths .* \(2,\), got \(\)"),
    ({"key_lengths": [1.0, 2.0]}, TypeError, "key_lengths .* torch.float32"),
    ({"key_lengths": torch.ones(2).bool()}, TypeError, "key_lengths .* torch.bool"),
    ({"slopes": torch.ones(3)}, ValueError, r"slopes .* \(3,\)$"),
    ({"key_norms": torch.ones(4)}, ValueError, r"key_norms .* \(2, 4\), got \(4,\)"),
    ({"slopes": [0.5]}, TypeError, "slopes .* list"),
    ({"query_offset": -1}, ValueError, "query_offset .* -1"),
    ({"dropout_p": -0.1}, ValueError, "dropout_p .* -0.1"),
    ({"dropout_p": 1.5}, ValueError, "dropout_p .* 1.5"),
    ({"dropout_p": float("nan")}, ValueError, "dropout_p .* nan"),
    # Wrong arguments raise even if there are no queries:
    ({"query": torch.ones(2, 4, 0, 5), "alpha": 0.5}, ValueError, "0.5"),
    ({"query": torch.ones(2, 4, 0, 5), "key_lengths": [6, 7]}, ValueError, "7"),
    ({"query": torch.ones(2, 4, 0, 5), "attn_mask": torch.ones(5)}, ValueError, "5"),
]


@pytest.mark.parametrize(("changes", "error", "words"), WRONG, ids=lambda x: "-".join(x) if isinstance(x, dict) else "")
def test_invalid_arguments_raise(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        entmax_attention(**make_arguments(**changes))


@pytest.mark.parametrize("name", ["auto", "eager"])
@pytest.mark.parametrize("shape", [(6, 8), (4, 6, 8), (2, 4, 200, 8)], ids=str)
def test_support_counts_nonzero_weights(shape: tuple[int, ...], name: str) -> None:
    q, k, v = torch.randn(3, *shape).unbind()
    with backend(name):
        output, weights, dense = entmax_attention(q, k, v, is_causal=True, return_weights=True, return_support=True)
        alone, support = entmax_attention(q, k, v, is_causal=True, return_support=True)
    assert support.dtype == dense.dtype == torch.int64 and support.shape == q.shape[:-1]
    assert torch.equal(support, (weights > 0).sum(-1)) and torch.equal(dense, support)
    torch.testing.assert_close(alone, output, rtol=1e-4, atol=1e-5)
