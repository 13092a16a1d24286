"""Compare results and gradients of the GPU kernels with float64: calls of functions, and their references."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import tsallis
from tsallis.ops import reference

LOSS_CLASSES = 5000
LEARNED = (1.1, 1.5, 1.9, 2.0)


class Case(NamedTuple):
    """A call of a public function and its float64 reference, which take the same tensors in the same order."""

    name: str
    inputs: Sequence[tuple[int, ...]]  # shapes of the input tensors, which need gradients
    ours: Callable[..., object]
    exact: Callable[..., object]
    alphas: tuple[float, ...] = ()  # values of a further input, the last one, which needs a gradient
    gradients: bool = True


def cases(group: str, tiny: bool) -> list[Case]:
    """Return the cases of a group, the most used functions first."""
    return {"maps": _maps, "losses": _losses, "attention": _attention, "layer": _layer}[group](tiny)


GROUPS = ("maps", "losses", "attention", "layer")


def _maps(tiny: bool) -> list[Case]:
    # A GPU splits long rows into parts if there are few of them. From 65,536 scores, the tiles of a row are larger.
    sizes = [(4, 40), (6, 70)] if tiny else [(4, 1000), (4, 8200), (140, 8200), (140, 70000)]
    result = []
    for rows, width in sizes:
        result += [
            _map_case(rows, width, "entmax15", tsallis.entmax15, reference.entmax),
            _map_case(rows, width, "sparsemax", tsallis.sparsemax, partial(reference.entmax, alpha=2.0)),
            _map_case(
                rows, width, "entmax 1.25", partial(tsallis.entmax, alpha=1.25), partial(reference.entmax, alpha=1.25)
            ),
            _map_case(
                rows,
                width,
                "learned alphas",
                lambda x, a: tsallis.entmax(x, a.view(-1, 1)),
                lambda x, a: reference.entmax(x, a.view(-1, 1)),
                alphas=tuple(LEARNED[row % len(LEARNED)] for row in range(rows)),
            ),
            _map_case(rows, width, "a NaN", _entmax_with_nan, _expected_with_nan, gradients=False),
        ]
    return result


def _map_case(
    rows: int, width: int, name: str, ours: Callable[..., object], exact: Callable[..., object], **options: Any
) -> Case:
    return Case(f"{name} {rows}x{width}", [(rows, width)], ours, exact, **options)


def _entmax_with_nan(scores: Tensor) -> Tensor:
    """Compute probabilities with a NaN in row 1, and replace all NaN by 2, so that results can be compared."""
    scores = scores.clone()
    scores[1, 3] = torch.nan
    return tsallis.entmax15(scores).nan_to_num(nan=2.0)


def _expected_with_nan(scores: Tensor) -> Tensor:
    """Return what `_entmax_with_nan` must return: all probabilities of row 1 are NaN."""
    probs = reference.entmax(scores)
    probs[1] = 2.0
    return probs


def _losses(tiny: bool) -> list[Case]:
    classes = 60 if tiny else LOSS_CLASSES
    target = torch.arange(6) * 7 % classes

    def ours(alpha: float) -> Callable[..., object]:
        return lambda x: tsallis.entmax_loss(x, target.to(x.device), alpha, reduction="none")

    def exact(alpha: float) -> Callable[..., object]:
        return lambda x: reference.entmax_loss(x, target.to(x.device), alpha)

    shape = [(6, classes)]
    return [
        *(Case(f"entmax_loss {alpha}", shape, ours(alpha), exact(alpha)) for alpha in (1.5, 2.0, 1.25, 1.0)),
        Case(
            "alpha_relu_loss 1.5",
            shape,
            lambda x: tsallis.alpha_relu_loss(x, target.to(x.device), 1.5, 0.75, reduction="none"),
            lambda x: reference.alpha_relu_loss(x, target.to(x.device), 1.5, 0.75),
        ),
    ]


def _dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: float | Tensor = 1.5,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    lengths: Tensor | None = None,
    slopes: Tensor | None = None,
    offset: int = 0,
) -> Tensor:
    """Compute attention with the full matrix of weights."""
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).mT * q.shape[-1] ** -0.5
    rows, columns = (torch.arange(n, device=q.device) for n in scores.shape[-2:])
    rows = rows.unsqueeze(-1) + offset
    if slopes is not None:
        scores = scores - slopes.view(-1, 1, 1) * (rows - columns).abs()
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    if causal:
        scores = scores.masked_fill(columns > rows, -math.inf)
    if lengths is not None:
        scores = scores.masked_fill(columns >= lengths.view(-1, 1, 1, 1), -math.inf)
    if isinstance(alpha, Tensor):
        alpha = alpha.view(1, -1, 1, 1)
    return reference.entmax(scores, alpha) @ v.repeat_interleave(group, 1)


def _attention(tiny: bool) -> list[Case]:
    keys, queries, size = (24, 8, 16) if tiny else (1100, 130, 64)
    device = "cpu" if tiny else "cuda"
    mask = torch.arange(queries * keys, device=device).view(queries, keys) % 7 != 3
    lengths = torch.tensor([keys, keys // 2], device=device)
    alphas, ours, back = (1.1, 1.5, 1.8, 2.0), tsallis.entmax_attention, keys - queries

    def shapes(queries: int = queries, keys: int = keys, key_heads: int = 4, size: int = size) -> list[tuple[int, ...]]:
        return [(2, 4, queries, size), (2, key_heads, keys, size), (2, key_heads, keys, size)]

    full, grouped, decode = shapes(), shapes(key_heads=2), shapes(1, key_heads=2)
    causal, dense_causal = partial(ours, is_causal=True), partial(_dense, causal=True)
    gqa = partial(ours, enable_gqa=True)
    return [
        Case("attention 1.5", full, ours, _dense),
        Case("learned alphas", full, ours, _dense, alphas),
        Case("causal", full, causal, dense_causal),
        Case("causal learned alphas", full, causal, dense_causal, alphas),
        Case("grouped queries", grouped, gqa, _dense),
        Case("mask", full, partial(ours, attn_mask=mask), partial(_dense, mask=mask)),
        Case(
            "additive mask",
            [*full, (queries, keys)],
            lambda q, k, v, m: ours(q, k, v, attn_mask=m),
            lambda q, k, v, m: _dense(q, k, v, bias=m),
        ),
        Case("key lengths", full, partial(ours, key_lengths=lengths), partial(_dense, lengths=lengths)),
        Case(
            "slopes",
            [*full, (4,)],
            lambda q, k, v, s: ours(q, k, v, slopes=s.abs() / 8, is_causal=True, query_offset=back),
            lambda q, k, v, s: _dense(q, k, v, slopes=s.abs() / 8, causal=True, offset=back),
        ),
        Case("softmax", full, partial(ours, alpha=1.0), partial(_dense, alpha=1.0)),
        Case("sparsemax", full, partial(ours, alpha=2.0), partial(_dense, alpha=2.0)),
        Case("decode", decode, gqa, _dense, gradients=False),
        Case("decode learned alphas", decode, gqa, _dense, alphas, gradients=False),
        Case("heads of 128", shapes(size=128), causal, dense_causal),
        Case("few keys", shapes(9, 20), ours, _dense, alphas),
    ]


def _layer(tiny: bool) -> list[Case]:
    tokens, size, classes = (12, 16, 60) if tiny else (300, 128, LOSS_CLASSES)
    target = torch.arange(tokens) * 7 % classes
    shape = [(tokens, size), (classes, size)]

    small = 2**-4  # keeps scores near 1: the rounding errors of larger ones would be too large in half precision

    def ours(function: Callable[..., object], *options: float) -> Callable[..., object]:
        return lambda h, w: function(small * h, w, target.to(h.device), *options, reduction="sum")

    return [
        *(
            Case(
                f"linear_entmax_loss {alpha}",
                shape,
                ours(tsallis.linear_entmax_loss, alpha),
                lambda h, w, alpha=alpha: reference.entmax_loss(small * h @ w.mT, target.to(h.device), alpha).sum(),
            )
            for alpha in (1.5, 2.0, 1.25)
        ),
        Case(
            "linear_alpha_relu_loss 1.5",
            shape,
            ours(tsallis.linear_alpha_relu_loss, 1.5, 0.75),
            lambda h, w: reference.alpha_relu_loss(small * h @ w.mT, target.to(h.device), 1.5, 0.75).sum(),
        ),
    ]


def compare(case: Case, device: str, dtype: str) -> dict[str, float]:
    """Return the largest error of the result and of each gradient, relative to the largest expected number."""
    generator = torch.Generator().manual_seed(0)
    numbers = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in case.inputs]
    kind = getattr(torch, dtype)
    ours = [x.to(device, kind).requires_grad_(case.gradients) for x in numbers]
    exact = [x.detach().double().requires_grad_(case.gradients) for x in ours]
    names = ["result", *(f"gradient {i}" for i in range(len(ours)))]
    if case.alphas:
        ours.append(torch.tensor(case.alphas, device=device, requires_grad=case.gradients))
        exact.append(ours[-1].detach().double().requires_grad_(case.gradients))
        names.append("gradient of alpha")
    result, expected = case.ours(*ours), case.exact(*exact)
    assert isinstance(result, torch.Tensor) and isinstance(expected, torch.Tensor)
    pairs = [(result.detach(), expected.detach())]
    if case.gradients:
        upstream = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
        rounded = upstream.to(device, result.dtype)
        mine = torch.autograd.grad(result, ours, rounded)
        pairs += zip(mine, torch.autograd.grad(expected, exact, rounded.double()), strict=True)
    errors = {}
    for name, (x, y) in zip(names, pairs, strict=False):
        error = (x.double() - y).abs().max() / y.abs().max().clamp(min=1)
        errors[name] = float(error) if bool(x.isfinite().all()) else math.inf
    return errors
