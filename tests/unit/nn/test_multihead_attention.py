"""Tests of multi-head attention: equal to PyTorch's at alpha 1, alphas per head, statistics and caches."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tsallis
from pairs import every_pair
from tsallis.nn import Entmax, KeyValueCache, MultiheadAttention, PerHeadAlpha

BATCH, QUERIES, KEYS, EMBED, HEADS = 3, 4, 5, 8, 2
VARIANTS: list[dict[str, Any]] = [
    {},
    {"batch_first": True},
    {"bias": False},
    {"add_bias_kv": True},
    {"add_zero_attn": True, "batch_first": True},
    {"add_bias_kv": True, "add_zero_attn": True, "bias": False},
    {"kdim": 6, "vdim": 10},
    {"vdim": 3, "bias": False, "add_bias_kv": True, "batch_first": True},
]


def named(option: Any) -> str:
    """Return the part of a test ID for one option."""
    return ("-".join(option) or "plain") if isinstance(option, dict) else str(option)


every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=named)
ALPHAS = [1.0, 1.5, 2.0, 3.0, "learned", torch.tensor([1.0, 1.7])]
every_alpha = pytest.mark.parametrize("alpha", ALPHAS, ids=str)
mixed_masks = pytest.mark.filterwarnings("ignore:Support for mismatched")  # PyTorch's warning


def paddings(keys: int = KEYS) -> dict[str, Tensor | None]:
    """Return masks of keys, where True is padding as in PyTorch. The first key is never padding."""
    middle = torch.zeros(BATCH, keys, dtype=torch.bool)
    middle[0, 2], middle[1, 1 : keys - 1] = True, True
    return {
        "none": None,
        "end": torch.arange(keys) >= torch.tensor([[keys], [2], [1]]),
        "middle": middle,
        "float": torch.where(middle, -torch.inf, torch.randn(BATCH, keys, dtype=torch.float64)),
    }


def masks(queries: int = QUERIES, keys: int = KEYS) -> dict[str, Tensor | None]:
    """Return masks of queries and keys, where True hides a key as in PyTorch. All queries see the first key."""
    hidden = torch.rand(BATCH * HEADS, queries, keys) > 0.5
    hidden[..., 0] = False
    added = torch.randn(hidden.shape, dtype=torch.float64).masked_fill(hidden, -torch.inf)
    return {"none": None, "bool": hidden[0], "float": added[0], "bool of heads": hidden, "float of heads": added}


def pair(**options: Any) -> tuple[MultiheadAttention, nn.MultiheadAttention]:
    """Return our module at alpha 1 and PyTorch's, with the same parameters."""
    theirs = nn.MultiheadAttention(EMBED, HEADS, dtype=torch.float64, **options)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    ours = MultiheadAttention(EMBED, HEADS, dtype=torch.float64, alpha=1.0, **options)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def inputs(variant: dict[str, Any], queries: int = QUERIES, keys: int = KEYS) -> list[Tensor]:
    sizes = (EMBED, variant.get("kdim", EMBED), variant.get("vdim", EMBED))
    arguments = [
        torch.randn(BATCH, n, size, dtype=torch.float64) for n, size in zip((queries, keys, keys), sizes, strict=True)
    ]
    return arguments if variant.get("batch_first") else [x.transpose(0, 1) for x in arguments]


def results(module: nn.Module, arguments: Sequence[Tensor], **options: Any) -> dict[str, Tensor | None]:
    """Return the output, the weights, and gradients that depend on both. A single input is query, key and value."""
    leaves = [x.detach().clone().requires_grad_() for x in arguments]
    out, weights = module(*(leaves * 3 if len(leaves) == 1 else leaves), **options)
    number = out.square().sum() + (0 if weights is None else weights.square().sum())
    names, parameters = zip(*module.named_parameters(), strict=True)
    gradients = torch.autograd.grad(number, [*leaves, *parameters])
    names = (*(f"input {i}" for i in range(len(leaves))), *names)
    return {"output": out, "weights": weights} | dict(zip(names, gradients, strict=True))


def small(alpha: Any = 1.5, **options: Any) -> MultiheadAttention:
    """Return a float64 module, batch first, with scores far enough apart for zero weights."""
    attention = MultiheadAttention(EMBED, HEADS, batch_first=True, alpha=alpha, **options).double()
    for name, parameter in attention.named_parameters():
        if name != "alpha":
            nn.init.normal_(parameter)
    return attention


def steps(length: int = KEYS) -> Tensor:
    return torch.randn(BATCH, length, EMBED, dtype=torch.float64)


@mixed_masks
@every_pair(named, variant=VARIANTS, padding=paddings(), mask=masks())
def test_at_alpha_1_results_match_pytorch(variant: dict[str, Any], padding: str, mask: str) -> None:
    options = {"key_padding_mask": paddings()[padding], "attn_mask": masks()[mask]}
    ours, theirs = pair(**variant)
    arguments = inputs(variant)
    result = results(ours, arguments, average_attn_weights=False, **options)
    torch.testing.assert_close(result, results(theirs, arguments, average_attn_weights=False, **options))
    torch.testing.assert_close(ours(*arguments, **options)[1], theirs(*arguments, **options)[1])
    without = results(ours, arguments, need_weights=False, **options)
    assert without["weights"] is None
    torch.testing.assert_close(without, results(theirs, arguments, need_weights=False, **options))


@mixed_masks
@pytest.mark.parametrize("variant", VARIANTS[:6], ids=named)
@pytest.mark.parametrize("padding", paddings())
def test_self_attention_with_is_causal_matches_pytorch(variant: dict[str, Any], padding: str) -> None:
    ours, theirs = pair(**variant)
    arguments, pad = inputs(variant, KEYS)[:1], paddings()[padding]
    torch.testing.assert_close(
        results(ours, arguments, key_padding_mask=pad), results(theirs, arguments, key_padding_mask=pad)
    )
    ahead = torch.ones(KEYS, KEYS, dtype=torch.bool).triu(1)
    expected = results(theirs, arguments, key_padding_mask=pad, attn_mask=ahead)
    for options in ({}, {"attn_mask": ahead}, {"attn_mask": torch.zeros(KEYS, KEYS).masked_fill(ahead, -torch.inf)}):
        torch.testing.assert_close(results(ours, arguments, key_padding_mask=pad, is_causal=True, **options), expected)


@every_variant
def test_unbatched_inputs_match_pytorch(variant: dict[str, Any]) -> None:
    ours, theirs = pair(**variant)
    arguments = [x[0] if variant.get("batch_first") else x[:, 0] for x in inputs(variant)]
    pad, of_heads = paddings()["end"][1], masks()["float of heads"][:HEADS]
    every = {}, {"key_padding_mask": pad, "average_attn_weights": False}, {"attn_mask": of_heads, "need_weights": False}
    for options in every:
        result = results(ours, arguments, **options)
        assert result["output"].shape == (QUERIES, EMBED)
        torch.testing.assert_close(result, results(theirs, arguments, **options))


@every_variant
def test_state_dicts_match_pytorch(variant: dict[str, Any]) -> None:
    ours, theirs = pair(**variant)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    fresh = MultiheadAttention(EMBED, HEADS, dtype=torch.float64, **variant)
    theirs.load_state_dict(fresh.state_dict(), strict=True)
    learned = MultiheadAttention(EMBED, HEADS, dtype=torch.float64, alpha="learned", **variant)
    before = learned.alphas()
    learned.load_state_dict(ours.state_dict(), strict=True)
    assert learned.alphas().equal(before) and learned.out_proj.weight.equal(ours.out_proj.weight)
    with pytest.raises(RuntimeError, match=r"out_proj\.weight"):
        learned.load_state_dict({k: v for k, v in ours.state_dict().items() if k != "out_proj.weight"})


def test_initial_parameters_match_pytorch_for_a_seed() -> None:
    for variant in VARIANTS:
        torch.manual_seed(3)
        ours = MultiheadAttention(EMBED, HEADS, **variant).state_dict()
        torch.manual_seed(3)
        theirs = nn.MultiheadAttention(EMBED, HEADS, **variant).state_dict()
        assert all(ours[name].equal(theirs[name]) for name in theirs)


def test_dropout_is_applied_only_in_training() -> None:
    attention, x = small(dropout=0.5), steps()
    once, weights = attention(x, x, x)
    assert not attention(x, x, x)[0].equal(once) and attention(x, x, x)[1].equal(weights)
    torch.manual_seed(1)
    again = attention(x, x, x)[0]
    torch.manual_seed(1)
    assert attention(x, x, x)[0].equal(again)
    saved = copy.deepcopy(attention)
    saved.dropout = 0.0
    assert attention.eval()(x, x, x)[0].equal(saved(x, x, x)[0])
    attention.train().dropout = 1.0
    torch.testing.assert_close(attention(x, x, x)[0], attention.out_proj.bias.expand_as(x))


@every_alpha
@pytest.mark.parametrize("causal", [False, True])
def test_attention_matches_the_formula_per_head(alpha: Any, causal: bool) -> None:
    attention, x = small(alpha), steps()
    out, weights = attention(x, x, x, average_attn_weights=False, is_causal=causal)
    projected = nn.functional.linear(x, attention.in_proj_weight, attention.in_proj_bias).unflatten(-1, (3, HEADS, -1))
    visible = torch.ones(KEYS, KEYS, dtype=torch.bool).tril() if causal else None
    heads = []
    for head, number in enumerate(attention.alphas().tolist()):
        q, k, v = projected[:, :, :, head].unbind(2)
        probs = tsallis.entmax(q @ k.transpose(1, 2) / math.sqrt(EMBED / HEADS), number, mask=visible)
        torch.testing.assert_close(weights[:, head], probs)
        heads.append(probs @ v)
    torch.testing.assert_close(out, attention.out_proj(torch.cat(heads, -1)))


class Fixed(nn.Module):
    def forward(self) -> Tensor:
        return torch.tensor([1.2, 1.8])


def test_alpha_may_be_tensor_parameter_module_or_learned() -> None:
    x, names = steps(), set(small().state_dict())
    own = nn.Parameter(torch.tensor([1.2, 1.8]))
    forms = [torch.tensor([1.2, 1.8]), own, Fixed()]
    expected = None
    for form in forms:
        torch.manual_seed(4)
        attention = MultiheadAttention(EMBED, HEADS, batch_first=True, alpha=form).double()
        assert set(attention.state_dict()) - names == ({"alpha"} if isinstance(form, Tensor) else set())
        out, _ = attention(x, x, x)
        expected = out if expected is None else expected
        torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-5)  # the alphas are rounded to float32
        torch.testing.assert_close(attention.stats().alpha, torch.tensor([1.2, 1.8]), check_dtype=False)
        assert "alpha=" not in repr(attention).splitlines()[0]
    saved = small(torch.tensor([1.2, 1.8]))
    assert saved.alpha.dtype == torch.float64 and "alpha" not in dict(saved.named_parameters())
    learned = small("learned")
    assert set(learned.state_dict()) - names == {"alpha.bias"} and isinstance(learned.alpha, PerHeadAlpha)
    for attention, alpha in ((learned, learned.alpha.bias), (small(own), own)):
        attention(x, x, x)[0].square().sum().backward()
        assert alpha.grad is not None and (alpha.grad != 0).all()
    assert small(1.0).alphas().tolist() == [1, 1] and "alpha=1.5" in repr(small())


def test_invalid_alpha_of_one_head_raises_in_forward() -> None:
    attention, x = small(torch.tensor([1.5, 2.0])), steps()
    attention.alpha[1] = 0.5
    with pytest.raises(ValueError, match=r"alpha must be finite and at least 1, got a tensor with 0\.5"):
        attention(x, x, x)


INVALID_SHAPES = [
    (((8,), (8,), (8,)), {}, r"query must have 2 or 3 dimensions, got shape \(8,\)"),
    (((3, 4, 7), (3, 5, 8), (3, 5, 8)), {}, "query must have last size 8, got 7"),
    (((3, 4, 8), (3, 5, 7), (3, 5, 8)), {}, "key must have last size 8, got 7"),
    (((3, 4, 8), (3, 5, 8), (3, 5, 4)), {}, "value must have last size 8, got 4"),
    (((3, 4, 8),), {}, "key and value must both be given"),
    (((3, 4, 8), (3, 5, 8)), {}, "key and value must both be given"),
    (((3, 4, 8),) * 3, {"attn_mask": torch.zeros(5, 4, 4)}, r"attn_mask must .*\(6, 4, 4\), got \(5, 4, 4\)"),
    *(
        (((3, 4, 8),) * 3, {"attn_mask": torch.zeros(shape)}, rf"attn_mask must .*\({', '.join(map(str, shape))}")
        for shape in ((4, 5), (1, 4), (4,), (), (3, 3, 4, 4), (3, 1, 2, 4))
    ),
    *(
        (shapes, {}, "query, key and value must all have a batch, or none of them")
        for shapes in (((4, 8), (1, 4, 8), (1, 4, 8)), ((1, 4, 8), (4, 8), (4, 8)), ((1, 4, 8), (1, 4, 8), (4, 8)))
    ),
    (((3, 4, 8),) * 3, {"key_padding_mask": torch.zeros(3, 5)}, r"must have shape \(3, 4\), got \(3, 5\)"),
    (((3, 4, 8),) * 3, {"key_padding_mask": torch.zeros(4)}, r"must have shape \[batch, keys\], got \(4,\)"),
    (((4, 8),) * 3, {"key_padding_mask": torch.zeros(1, 4)}, r"must have shape \[keys\] without a batch"),
]


@pytest.mark.parametrize(("shapes", "options", "message"), INVALID_SHAPES)
def test_invalid_shapes_raise(shapes: Sequence[tuple[int, ...]], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiheadAttention(EMBED, HEADS, batch_first=True)(*(torch.randn(s) for s in shapes), **options)


@pytest.mark.parametrize("padding", ["none", "middle"])
def test_integer_masks_are_rejected(padding: str) -> None:
    attention, x = small(), steps()
    with pytest.raises(TypeError, match=r"torch\.uint8"):
        attention(x, x, x, attn_mask=torch.ones(KEYS, KEYS, dtype=torch.uint8), key_padding_mask=paddings()[padding])


@pytest.mark.parametrize(("low", "high"), [(1.0, 2.0), (1.3, 2.0), (1.2, 1.8), (1.0, 4.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_learned_alphas_stay_between_their_bounds(low: float, high: float, dtype: torch.dtype) -> None:
    alpha = PerHeadAlpha(4, low, high, dtype=dtype)
    assert alpha().dtype == dtype and ((low < alpha()) & (alpha() < high)).all()
    with torch.no_grad():
        alpha.bias.copy_(torch.tensor([-1e30, -20.0, 20.0, 1e30]))
    bounds = torch.tensor([low, high], dtype=dtype)
    assert alpha().min() >= bounds[0] and alpha().max() <= bounds[1]
    alpha().sum().backward()
    assert alpha.bias.grad.isfinite().all()


def test_learned_alphas_start_at_initial_or_at_random() -> None:
    for initial in (1.001, 1.5, 1.9):
        torch.testing.assert_close(PerHeadAlpha(3, initial=initial)(), torch.full((3,), initial))
    torch.testing.assert_close(PerHeadAlpha(2, 1.2, 3.0, initial=2.9)(), torch.full((2,), 2.9))
    torch.manual_seed(7)
    one = PerHeadAlpha(50)
    torch.manual_seed(7)
    other = PerHeadAlpha(50)
    assert one.bias.equal(other.bias) and one().unique().numel() == 50
    other.reset_parameters()
    assert not one.bias.equal(other.bias)
    message = PerHeadAlpha(3, initial=1.5)
    nn.init.normal_(message.bias)
    message.reset_parameters()
    assert message().tolist() == [1.5] * 3
    assert repr(PerHeadAlpha(3, 1.0, 2.5)) == "PerHeadAlpha(3, low=1, high=2.5)"


@pytest.mark.parametrize("cast", [torch.float16, torch.bfloat16, torch.float64])
def test_casting_a_model_keeps_learned_alpha_precision(cast: torch.dtype) -> None:
    attention = small("learned").to(cast)
    alpha = attention.alpha.bias
    assert alpha.dtype == torch.promote_types(cast, torch.float32) and attention.out_proj.weight.dtype == cast
    before, x = alpha.detach().clone(), steps().to(cast)
    optimizer = torch.optim.SGD([alpha], lr=1e-4)
    for _ in range(5):
        optimizer.zero_grad()
        attention(x, x, x)[0].float().square().sum().backward()
        optimizer.step()
    assert (alpha != before).all()
    half = MultiheadAttention(EMBED, HEADS, alpha="learned", dtype=torch.bfloat16)
    assert half.alpha.bias.dtype == torch.float32 and half.in_proj_weight.dtype == torch.bfloat16


@pytest.mark.parametrize("start", [1.5, "learned", torch.tensor([1.2, 1.8]), nn.Parameter(torch.tensor([1.2, 1.8]))])
def test_set_alpha_replaces_any_alpha(start: Any) -> None:
    attention, x = small(start), steps()
    for alpha in (2.0, "learned", torch.tensor([1.0, 2.0]), nn.Parameter(torch.tensor([1.3, 1.4])), Fixed(), 1.0):
        attention.set_alpha(alpha)
        expected = small(alpha)
        expected.load_state_dict(attention.state_dict())
        assert expected.state_dict().keys() == attention.state_dict().keys()
        torch.testing.assert_close(attention(x, x, x)[0], expected(x, x, x)[0])
    with pytest.raises(ValueError, match="at least 1"):
        attention.set_alpha(0.5)
    assert attention.alpha == 1.0


@pytest.fixture
def tiny_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make tiles so small that attention without weights is computed in tiles of a few queries."""
    for name, size in (("TILE", 6), ("MIN_ROWS", 2), ("CAUSAL_ROWS", 2)):
        monkeypatch.setattr(f"tsallis.ops.eager.attention.{name}", size)


def blocked(queries: int, keys: int, padding: Tensor | None, mask: Tensor | None, causal: bool) -> Tensor:
    """Return whether a key is hidden from a query, [batch, heads, queries, keys]."""
    hidden = torch.zeros(BATCH, HEADS, queries, keys, dtype=torch.bool)
    if padding is not None:
        hidden |= (padding if padding.dtype == torch.bool else padding == -torch.inf).view(BATCH, 1, 1, keys)
    if mask is not None:
        result = mask if mask.dtype == torch.bool else mask == -torch.inf
        hidden |= result.view(BATCH, HEADS, queries, keys) if mask.dim() == 3 else result
    return hidden | torch.ones(queries, keys, dtype=torch.bool).triu(1) if causal else hidden


@every_pair(tiled=[False, True], padding=paddings(), mask=masks(), causal=[False, True])
def test_statistics_match_the_weights(
    tiled: bool, padding: str, mask: str, causal: bool, request: pytest.FixtureRequest
) -> None:
    attention, x = small(torch.tensor([1.0, 2.0])), steps()
    pad, attn_mask = paddings()[padding], masks(KEYS)[mask]
    if attn_mask is not None:  # a query without keys is not counted
        attn_mask[..., 1, :] = True if attn_mask.dtype == torch.bool else -torch.inf
    options = {"key_padding_mask": pad, "attn_mask": attn_mask, "is_causal": causal}
    with pytest.raises(RuntimeError, match="no attention weights are recorded"):
        attention.stats()
    _, weights = attention(x, x, x, average_attn_weights=False, **options)
    hidden = blocked(KEYS, KEYS, pad, attn_mask, causal)
    assert (weights[hidden] == 0).all()
    if tiled:
        request.getfixturevalue("tiny_tiles")
    attention(x, x, x, need_weights=False, **options)
    density, support, alpha = attention.stats()
    chosen, visible = weights > 0, ~hidden
    if pad is not None:  # padding is not counted among the queries either
        padded = pad if pad.dtype == torch.bool else pad == -torch.inf
        chosen, visible = (x & ~padded.view(BATCH, 1, KEYS, 1) for x in (chosen, visible))
    chosen = chosen.sum((0, 2, 3))
    torch.testing.assert_close(density, chosen / visible.sum((0, 2, 3)))
    torch.testing.assert_close(support, chosen / visible.any(-1).sum((0, 2)))
    assert density[0] == 1 and density[1] < 1 and alpha.tolist() == [1, 2]


def test_statistics_count_the_added_keys() -> None:
    attention, x = small(1.0, add_bias_kv=True, add_zero_attn=True), steps()
    attention(x, x, x, is_causal=True)
    assert attention.stats().density.tolist() == [1, 1] and attention.stats().support.tolist() == [5, 5]


def test_statistics_report_the_alphas_of_the_pass() -> None:
    own, x = nn.Parameter(torch.tensor([1.25, 1.75])), steps()
    attention = small(own)
    attention(x, x, x)
    with torch.no_grad():
        own.fill_(2.0)
    assert attention.stats().alpha.tolist() == [1.25, 1.75]


def test_attention_stats_match_those_of_each_attention() -> None:
    module, x = nn.ModuleDict({"one": small(1.5), "other": small(2.0), "linear": nn.Linear(2, 2)}), steps()
    module["one"](x, x, x)
    stats = tsallis.nn.attention_stats(module)
    assert list(stats) == ["one"] and stats["one"].density.equal(module["one"].stats().density)


def test_attention_stats_without_data_raise_or_warn() -> None:
    with pytest.raises(ValueError, match=r"TransformerEncoderLayer has no tsallis\.nn\.MultiheadAttention"):
        tsallis.nn.attention_stats(nn.TransformerEncoderLayer(8, 2))
    with pytest.warns(UserWarning, match="no attention of ModuleDict has run: call the model first"):
        assert tsallis.nn.attention_stats(nn.ModuleDict({"one": small(1.5)})) == {}


def test_alpha_module_is_called_once_per_pass() -> None:
    attention, x, called = small(Fixed()), steps(), []
    attention.alpha.register_forward_hook(lambda *_: called.append(1))
    attention(x, x, x)
    assert len(called) == 1


@every_alpha
@pytest.mark.parametrize("tiled", [False, True])
def test_fully_masked_queries_return_the_output_bias(alpha: Any, tiled: bool, request: pytest.FixtureRequest) -> None:
    if tiled:
        request.getfixturevalue("tiny_tiles")
    attention, x = small(alpha), steps().requires_grad_()
    nothing = torch.zeros(BATCH, KEYS, dtype=torch.bool)
    nothing[1] = True
    blind = torch.zeros(KEYS, KEYS, dtype=torch.bool)
    blind[2] = True
    for need in (False, True):
        for added in (False, True):
            one, other = (torch.zeros(m.shape).masked_fill(m, -torch.inf) if added else m for m in (nothing, blind))
            out, weights = attention(x, x, x, key_padding_mask=one, attn_mask=other, need_weights=need)
            dark = nothing.any(1).view(BATCH, 1) | blind.any(1)
            assert (out[dark] == attention.out_proj.bias).all() and out.isfinite().all()
            assert weights is None or (weights[dark] == 0).all()
            grads = torch.autograd.grad(out.square().sum(), [x, *attention.parameters()], allow_unused=True)
            assert all(g.isfinite().all() for g in grads if g is not None)


CHUNKS = [(1,) * 7, (3, 1, 2, 1), (1, 4, 2), (7,)]
POSITIONS: list[dict[str, Any]] = [
    {"positions": "rope", "length_scale": "ssmax"},
    {"positions": "alibi", "length_scale": "head"},
    {"positions": "nape", "length_scale": "input"},
]


@every_pair(named, alpha=ALPHAS, chunks=CHUNKS, options=VARIANTS[2:6] + POSITIONS)
def test_cached_steps_match_the_causal_pass(alpha: Any, chunks: Sequence[int], options: dict[str, Any]) -> None:
    attention, x = small(alpha, **{k: v for k, v in options.items() if k != "batch_first"}), steps(7)
    full, full_weights = attention(x, x, x, is_causal=True)
    cache, extra = KeyValueCache(), full_weights.shape[-1] - 7
    with torch.no_grad():
        done = 0
        for some in x.split(chunks, 1):
            out, weights = attention(some, some, some, is_causal=True, cache=cache)
            first, done = done, done + some.shape[1]
            assert len(cache) == done
            torch.testing.assert_close(out, full[:, first:done])
            expected_weights = torch.cat(
                [full_weights[:, first:done, :done], full_weights[:, first:done, 7 : 7 + extra]], -1
            )
            torch.testing.assert_close(weights, expected_weights)


@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.parametrize("left", [False, True])
def test_padding_with_a_cache_matches_the_full_pass(chunks: Sequence[int], left: bool) -> None:
    attention, x = small("learned"), steps(7)
    pad = torch.arange(7) >= torch.tensor([[7], [4], [2]])
    pad = pad.flip(1) if left else pad
    full, _ = attention(x, x, x, key_padding_mask=pad, is_causal=True)
    cache, result = KeyValueCache(), []
    with torch.no_grad():
        for some in x.split(chunks, 1):
            known = len(cache) + some.shape[1]
            result.append(attention(some, some, some, pad[:, :known], False, is_causal=True, cache=cache)[0])
    torch.testing.assert_close(torch.cat(result, 1), full)


@every_alpha
@pytest.mark.parametrize(
    "variant", [v for v in VARIANTS if "batch_first" not in v], ids=lambda v: "-".join(v) or "plain"
)
def test_cached_memory_is_reused_in_later_steps(alpha: Any, variant: dict[str, Any]) -> None:
    attention = small(alpha, **variant)
    query, key, value = inputs({**variant, "batch_first": True}, 7)
    pad = paddings()["middle"]
    full, weights = attention(query, key, value, pad)
    cache, result = KeyValueCache(), []
    with torch.no_grad():
        for number, step in enumerate(query.split(1, 1)):
            memory = () if number else (key, value)
            result.append(attention(step, *memory, key_padding_mask=pad, cache=cache))
            assert len(cache) == KEYS
    torch.testing.assert_close(torch.cat([out for out, _ in result], 1), full)
    torch.testing.assert_close(torch.cat([w for _, w in result], 1), weights)


def test_the_last_query_is_aligned_with_the_last_cached_key() -> None:
    attention, x, memory, cache = small(1.0), steps(1), steps(), KeyValueCache()
    out, _ = attention(x, memory, memory, cache=cache)
    torch.testing.assert_close(attention(x, cache=cache, is_causal=True)[0], out)


def test_reordered_cache_matches_the_full_pass() -> None:
    attention, x = small(), steps(6)
    cache, index = KeyValueCache(), torch.tensor([2, 0, 0, 1])
    with torch.no_grad():
        for step in x[:, :3].split(1, 1):
            attention(step, step, step, cache=cache)
        cache.reorder(index)
        chosen = torch.cat([x[index, :3], torch.randn(4, 3, EMBED, dtype=torch.float64)], 1)
        full, _ = attention(chosen, chosen, chosen, is_causal=True)
        for t in range(3, 6):
            step = chosen[:, t : t + 1]
            torch.testing.assert_close(attention(step, step, step, cache=cache)[0], full[:, t : t + 1])
    KeyValueCache().reorder(index)


@torch.no_grad()
def test_cache_grows_in_place_and_keeps_its_contents() -> None:
    cache, keys, values = KeyValueCache(), torch.randn(2, 3, 20, 4), torch.randn(2, 3, 20, 6)
    before, places = keys.clone(), set()
    for i0, i1 in ((0, 2), (2, 3), (3, 4), (4, 10), *((i, i + 1) for i in range(10, 20))):
        result = cache.append(keys[:, :, i0:i1], values[:, :, i0:i1])
        assert len(cache) == i1 and result[0].equal(keys[:, :, :i1]) and result[1].equal(values[:, :, :i1])
        assert all(a.equal(b) for a, b in zip(cache.read(), result, strict=True))
        places.add(result[0].data_ptr())
    assert len(places) == 4 and keys.equal(before)


def test_gradients_through_a_cache_match_the_full_pass() -> None:
    attention, x = small("learned"), steps(6).requires_grad_()
    leaves = [x, *attention.parameters()]
    full, _ = attention(x, x, x, is_causal=True)
    expected = torch.autograd.grad(full.square().sum(), leaves)
    cache = KeyValueCache()
    outs = [attention(s, s, s, is_causal=True, cache=cache, need_weights=False)[0] for s in x.split((1, 2, 1, 2), 1)]
    result = torch.autograd.grad(torch.cat(outs, 1).square().sum(), leaves)
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("gradients", [False, True])
def test_cache_filled_in_inference_mode_works_outside_it(gradients: bool) -> None:
    attention, x, cache = small(), steps(6), KeyValueCache()
    expected = attention(x, x, x, is_causal=True)[0][:, 3:]
    with torch.inference_mode():
        for step in x[:, :3].split(1, 1):  # after three steps, the buffer has room for a fourth
            attention(step, step, step, cache=cache)
    with torch.set_grad_enabled(gradients):
        outs = torch.cat([attention(s, s, s, cache=cache)[0] for s in x[:, 3:].split(1, 1)], 1)
    torch.testing.assert_close(outs, expected)
    if gradients:
        outs.sum().backward()
        assert attention.in_proj_weight.grad.isfinite().all()


def test_alpha_gradients_through_a_cache_match_the_full_pass() -> None:
    attention, x, cache = small("learned").requires_grad_(False), steps(6), KeyValueCache()
    bias = attention.alpha.bias.requires_grad_()
    expected = torch.autograd.grad(attention(x, x, x, is_causal=True)[0].square().sum(), bias)
    outs = [attention(s, s, s, cache=cache, need_weights=False)[0] for s in x.split(1, 1)]
    torch.testing.assert_close(torch.autograd.grad(torch.cat(outs, 1).square().sum(), bias), expected)


OTHER_SHAPES = [
    ((3, 3, 1, 4), (3, 3, 1, 4)),
    ((2, 1, 1, 4), (2, 1, 1, 4)),
    ((2, 3, 1, 5), (2, 3, 1, 4)),
    ((2, 3, 1, 4), (2, 3, 1, 5)),
    ((2, 3, 1, 4), (1, 3, 1, 4)),
    ((2, 3, 1, 4), (2, 3, 2, 4)),
]


@pytest.mark.parametrize(("keys", "values"), OTHER_SHAPES, ids=str)
def test_cache_rejects_other_shapes(keys: tuple[int, ...], values: tuple[int, ...]) -> None:
    cache = KeyValueCache()
    cache.append(torch.randn(2, 3, 1, 4), torch.randn(2, 3, 1, 4))
    with pytest.raises(ValueError, match=r"cache|equal batch, heads and steps"):
        cache.append(torch.randn(keys), torch.randn(values))
    assert len(cache) == 1


def test_empty_cache_without_a_key_raises() -> None:
    with pytest.raises(ValueError, match="the cache is empty: pass a key and a value"):
        small()(steps(), cache=KeyValueCache())
    assert len(KeyValueCache()) == 0


@pytest.mark.parametrize(
    "variant",
    [{"add_bias_kv": True}, {"alpha": "learned"}, *({"length_scale": kind} for kind in ("input", "head", "ssmax"))],
    ids=str,
)
def test_compiled_attention_matches_eager(variant: dict[str, Any]) -> None:
    attention, arguments = small(**variant), [steps()]
    options = {"is_causal": True, "need_weights": False}
    if "add_bias_kv" in variant:
        options = {"key_padding_mask": paddings()["end"], "attn_mask": masks(KEYS)["bool"]}
    torch._dynamo.reset()
    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    result = {name.removeprefix("_orig_mod."): x for name, x in results(compiled, arguments, **options).items()}
    torch.testing.assert_close(result, results(attention, arguments, **options))


def test_vmapped_attention_matches_separate_calls() -> None:
    attention, x = small("learned"), torch.randn(2, BATCH, KEYS, EMBED, dtype=torch.float64)
    pad = paddings()["end"].repeat(2, 1, 1)
    result = torch.func.vmap(lambda x, pad: attention(x, x, x, pad, False)[0])(x, pad)
    torch.testing.assert_close(result, torch.stack([attention(y, y, y, pad[0], False)[0] for y in x]))


def test_deepcopy_works_after_a_pass_with_a_learned_mask() -> None:
    attention, x, distances = small(), steps(), torch.randn(KEYS, KEYS, dtype=torch.float64, requires_grad=True)
    expected, _ = attention(x, x, x, attn_mask=2 * distances)
    assert copy.deepcopy(attention)(x, x, x, attn_mask=2 * distances)[0].equal(expected)


@pytest.mark.parametrize("variant", [{}, {"add_zero_attn": True}, {"add_bias_kv": True}, {"alpha": "learned"}], ids=str)
def test_autocast_computes_in_half_precision(variant: dict[str, Any]) -> None:
    attention, x = MultiheadAttention(EMBED, HEADS, batch_first=True, **variant), steps().float()
    with torch.autocast("cpu", torch.bfloat16):
        out, _ = attention(x, x, x)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), attention(x, x, x)[0], atol=0.05, rtol=0.05)


LENGTHS = torch.tensor([KEYS, 2, 1])


@every_pair(named, variant=VARIANTS[:6], alpha=[1.0, 1.5, "learned"], causal=[False, True], tiled=[False, True])
def test_key_lengths_match_padding_masks(
    variant: dict[str, Any], alpha: Any, causal: bool, tiled: bool, request: pytest.FixtureRequest
) -> None:
    attention, x = small(alpha, **{k: v for k, v in variant.items() if k != "batch_first"}), steps()
    expected = results(attention, [x], key_padding_mask=paddings()["end"], is_causal=causal)
    stats = attention.stats()
    assert stats.density.isfinite().all()
    if tiled:
        request.getfixturevalue("tiny_tiles")
    for lengths in (LENGTHS, LENGTHS.int()):
        torch.testing.assert_close(results(attention, [x], key_lengths=lengths, is_causal=causal), expected)
    attention(x, x, x, key_lengths=LENGTHS, is_causal=causal, need_weights=False)
    torch.testing.assert_close(attention.stats(), stats)
    whole = results(attention, [x], key_lengths=torch.full((BATCH,), KEYS), is_causal=causal, need_weights=False)
    torch.testing.assert_close(whole, results(attention, [x], is_causal=causal, need_weights=False))
    none = attention(x, x, x, key_lengths=torch.zeros(BATCH).long(), need_weights=False)[0]
    assert none.isfinite().all()


INVALID_LENGTHS = [
    (torch.tensor([1, 2]), r"key_lengths must be 3 integers, .* got torch.int64 of shape \(2,\)"),
    (torch.ones(3), r"key_lengths must be 3 integers, .* got torch.float32"),
    (torch.tensor([1, 6, 2]), "key_lengths must be from 0 to the number of keys, 5, got 6"),
    (torch.tensor([1, -1, 2]), "key_lengths must be from 0 to .* 5, got -1"),
]


@pytest.mark.parametrize(("lengths", "message"), INVALID_LENGTHS, ids=str)
def test_invalid_key_lengths_raise(lengths: Tensor, message: str) -> None:
    attention, x = small(), steps()
    with pytest.raises(ValueError, match=message):
        attention(x, x, x, key_lengths=lengths, need_weights=False)
    with pytest.raises(ValueError, match="either key_lengths or key_padding_mask"):
        attention(x, x, x, paddings()["end"], key_lengths=LENGTHS)


def test_one_learned_alpha_is_shared_by_all_heads() -> None:
    one, x = PerHeadAlpha(1), steps()
    attention = small(one)
    out = attention(x, x, x)[0]
    assert attention.alphas().shape == (HEADS,) and attention.stats().alpha.shape == (HEADS,)
    plain = small(float(one().detach()))
    plain.load_state_dict({k: v for k, v in attention.state_dict().items() if "alpha" not in k})
    torch.testing.assert_close(plain(x, x, x)[0], out)
    out.square().sum().backward()
    assert (one.bias.grad != 0).all()


@pytest.mark.parametrize("variant", [*VARIANTS, {"num_kv_heads": 1}], ids=named)
def test_keys_and_values_projects_a_memory_for_a_cache(variant: dict[str, Any]) -> None:
    attention = small(**{k: v for k, v in variant.items() if k not in ("batch_first", "kdim", "vdim")})
    query, memory, cache = steps(QUERIES), steps(), KeyValueCache()
    cache.append(*attention.keys_and_values(memory))
    torch.testing.assert_close(attention(query, cache=cache), attention(query, memory, memory))


def test_statistics_of_a_compiled_module_need_an_eager_pass() -> None:
    attention, x = MultiheadAttention(8, 2, batch_first=True, alpha=1.5), torch.randn(3, 5, 8)
    attention(x, x, x)
    expected = attention.stats()
    compiled = torch.compile(attention, backend="aot_eager")
    compiled(x, x, x)
    with pytest.raises(RuntimeError, match="force_eager"):
        attention.stats()
    with torch.compiler.set_stance("force_eager"):
        compiled(x, x, x)
    for ours, theirs in zip(attention.stats(), expected, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_quantised_attention_supports_set_alpha() -> None:
    attention, x = tsallis.nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(2, 3, 8)
    quantised = torch.ao.quantization.quantize_dynamic(attention, {torch.nn.Linear}, dtype=torch.qint8)
    for module in (attention, quantised):
        module.set_alpha(2.0)
    torch.testing.assert_close(quantised(x, x, x)[1], attention(x, x, x)[1])
    quantised.set_alpha("learned")
    assert quantised.alpha.bias.dtype == torch.float32


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 4, 4), (3, 0, 4), (3, 4, 0), (3, 0, 0)])
@pytest.mark.parametrize("need_weights", [False, True])
def test_empty_inputs_give_empty_results(
    batch_first: bool, batch: int, queries: int, keys: int, need_weights: bool
) -> None:
    module, reference = MultiheadAttention(8, 2, batch_first=batch_first), nn.MultiheadAttention(8, 2)
    reference.batch_first = batch_first
    shapes = [(batch, n, 8) if batch_first else (n, batch, 8) for n in (queries, keys)]
    query, key = torch.randn(shapes[0], requires_grad=True), torch.randn(shapes[1])
    out, weights = module(query, key, key, need_weights=need_weights)
    expected = reference(query, key, key, need_weights=need_weights)[1]
    out.sum().backward()
    assert out.shape == query.shape and out.isfinite().all() and query.grad is not None
    assert (weights is None) == (expected is None) and (expected is None or weights.shape == expected.shape)


def test_boolean_alpha_tensors_are_rejected() -> None:
    with pytest.raises(TypeError, match="bool"):
        MultiheadAttention(8, 2, alpha=torch.tensor([True, True]))


def test_stored_modules_contain_no_data_of_the_last_pass() -> None:
    module, x = MultiheadAttention(8, 2, batch_first=True), torch.randn(2, 50, 8)
    before = len(pickle.dumps(module))
    module(x, x, x, attn_mask=torch.zeros(50, 50))
    assert len(pickle.dumps(module)) == before and module.stats() is not None


@pytest.mark.parametrize("need_weights", [False, True])
def test_record_of_the_last_pass_omits_weights(need_weights: bool) -> None:
    attention, x = small(), steps()
    _, weights = attention(x, x, x, need_weights=True, average_attn_weights=False)
    attention(x, x, x, need_weights=need_weights)
    assert attention._last.support.shape == weights.shape[:3]
    assert torch.equal(attention.support(), (weights > 0).sum(-1))


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_modules_keep_float32_alphas(dtype: torch.dtype, learned: bool) -> None:
    """Check that alphas stay in float32: in bfloat16, 1.001 would be 1, and small updates would be lost."""
    alpha = torch.tensor([1.001, 1.5])
    attention = small(nn.Parameter(alpha) if learned else alpha)
    if learned:
        attention.alpha.grad = torch.ones_like(attention.alpha)
    attention.to(dtype)
    assert attention.alpha.dtype == torch.float32 and attention.out_proj.weight.dtype == dtype
    assert not learned or attention.alpha.grad.dtype == torch.float32
    assert attention.alphas().tolist() == alpha.tolist()
    x = steps().to(dtype)
    assert attention(x, x, x)[0].dtype == dtype
    entmax = Entmax(nn.Parameter(torch.tensor(1.001)) if learned else torch.tensor(1.001)).to(dtype)
    assert entmax.alpha.dtype == torch.float32 and entmax(x).dtype == dtype


@pytest.mark.parametrize("options", [{}, {"dropout": 0.2}])
def test_meta_tensors_with_padding_keep_shape_and_device(options: Any) -> None:
    x, padding = torch.randn(2, 6, 8, device="meta"), torch.zeros(2, 6, dtype=torch.bool, device="meta")
    attention = MultiheadAttention(8, 2, batch_first=True, device="meta", **options)
    out, _ = attention(x, x, x, key_padding_mask=padding, need_weights=False)
    assert (out.shape, out.device.type) == (x.shape, "meta")


@pytest.mark.parametrize("value", ["no", None, 1])
def test_non_boolean_flags_are_rejected(value: Any) -> None:
    x = steps()
    with pytest.raises(TypeError, match="is_causal must be True or False"):
        small()(x, x, x, is_causal=value)
    for name in ("is_causal", "enable_gqa"):
        with pytest.raises(TypeError, match=f"{name} must be True or False"):
            tsallis.entmax_attention(x, x, x, **{name: value})
    with pytest.raises(TypeError, match=r"did you mean attn_mask=None\?"):
        tsallis.entmax_attention(x, x, x, None)


def test_cache_copies_appended_keys_and_values() -> None:
    cache, keys, values = KeyValueCache(), torch.empty(1, 1, 1, 4), torch.empty(1, 1, 1, 4)
    with torch.no_grad():
        for i in range(4):
            cache.append(keys.fill_(i), values.fill_(-i))
    assert cache.read()[0][0, 0, :, 0].tolist() == [0, 1, 2, 3]
    assert cache.read()[1][0, 0, :, 0].tolist() == [0, -1, -2, -3]


def test_no_grad_append_keeps_tensors_saved_for_backward() -> None:
    cache = KeyValueCache()
    cache.append(torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4))
    with torch.no_grad():
        for _ in range(2):
            cache.append(torch.randn(1, 1, 1, 4), torch.randn(1, 1, 1, 4))
    query = torch.randn(1, 1, 1, 4, requires_grad=True)
    out = tsallis.entmax_attention(query, *cache.read())
    expected = torch.autograd.grad(out.sum(), query, retain_graph=True)[0]
    with torch.no_grad():
        cache.append(torch.randn(1, 1, 1, 4), torch.randn(1, 1, 1, 4))
    assert torch.equal(torch.autograd.grad(out.sum(), query)[0], expected) and len(cache) == 6


def test_compiled_decoding_has_no_graph_break() -> None:
    attention, cache, expected = small().eval(), KeyValueCache(), KeyValueCache()
    compiled = torch.compile(attention, backend="eager", fullgraph=True)
    with torch.no_grad():
        for step in torch.randn(4, 2, 1, EMBED, dtype=torch.float64):
            out, _ = compiled(step, step, step, cache=cache, need_weights=False)
            torch.testing.assert_close(out, attention(step, step, step, cache=expected, need_weights=False)[0])
