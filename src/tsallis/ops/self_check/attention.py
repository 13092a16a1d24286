"""The family of attention: short rows, blocks with support, decoding, every gradient, and dropout."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tsallis.ops.arguments import AttentionArgs, AttentionGradients
from tsallis.ops.eager import attention as eager
from tsallis.ops.eager import maps
from tsallis.ops.self_check.trial import GRADIENT, VALUE, Trial

SHORT, LONG = 37, 1100  # keys: of a row on a GPU's chip, and so many that blocks of them are chosen, or decoded
HEAD, WIDE, WIDEST = 32, 128, 256  # numbers: what fits a small head need not fit a large one


class Case(NamedTuple):
    """A call of attention, and whether its gradients are compared."""

    name: str
    batch: int
    queries: int
    keys: int
    heads: int
    options: dict[str, Any]
    gradients: bool = True
    size: int = HEAD


def check_attention(trial: Trial) -> None:
    """Compare outputs, sizes of supports, and the gradients of everything that may have one."""
    alphas = torch.tensor([[1.0, 1.3, 1.5, 2.0]], dtype=torch.float64)
    lengths, half = torch.tensor([SHORT, 20]), torch.arange(LONG) % 2 == 0
    slopes = torch.tensor([[0.3, 0.01]], dtype=torch.float64)
    widest = int(min(WIDEST, trial.kernels.CAPABILITIES.largest_head))
    one_mask = {"alpha_value": 1.5, "mask": (1, 1, 1, LONG)}
    behind = {"slopes": slopes, "offset": LONG - 40}  # queries that stand among the last keys
    cases = (
        Case("attention of few keys", 2, 9, SHORT, 4, {"alphas": alphas, "mask": (1, 4, 9, SHORT), "lengths": lengths}),
        Case("attention of many keys", 1, 40, LONG, 2, {"alphas": alphas[:, 1:3], "causal": True}),
        Case("attention of wide heads with one alpha", 1, 40, LONG, 2, one_mask, size=WIDE),
        Case("attention of the widest heads", 1, 40, LONG, 2, {"alphas": alphas[:, 1:3]}, size=widest),
        Case("attention with slopes", 1, 40, LONG, 2, {"alpha_value": 1.5, "causal": True, **behind}),
        Case("decoding with slopes", 2, 1, LONG, 2, {"alpha_value": 1.5, **behind}, gradients=False),
        Case("decoding", 2, 1, LONG, 4, {"alphas": alphas, "mask": half[None, None, None]}, gradients=False, size=WIDE),
        Case("attention with dropout", 2, 9, SHORT, 4, {"alpha_value": 1.5, "dropout": 0.4}, gradients=False),
    )
    for case in cases:
        with trial.kernel(case.name):
            _check(trial, case)


def _check(trial: Trial, case: Case) -> None:
    none = dict.fromkeys(("alphas", "mask", "slopes", "key_norms", "lengths", "alpha_value"))
    size, options = case.size, {**none, **case.options}
    mask = options.pop("mask")
    mask = trial.normal(*mask) if isinstance(mask, tuple) else mask
    query = trial.normal(case.batch, case.heads, case.queries, size, scale=2.0)
    key, value = (trial.normal(case.batch, case.heads // 2, case.keys, size) for _ in range(2))
    rest = {"seed": torch.tensor(7), "scale": size**-0.5, "causal": False, "dropout": 0.0, **options}
    exact = AttentionArgs(query=query, key=key, value=value, mask=mask, **rest)
    args = _on_device(trial, exact)
    output, support, saved = trial.attention.attention(args, case.gradients)
    expected, sizes, own = eager.attention(exact._replace(dropout=0.0), True)
    if exact.dropout:
        expected = _dense(exact) * trial.attention.drop_factors(args).to("cpu", torch.float64)
        expected = expected @ value.repeat_interleave(exact.group, 1)
    trial.compare("output", output, expected, trial.sum_limit(VALUE))
    if not exact.dropout:  # rounding decides about a weight or two
        weights = _dense(exact)
        least = (weights > 1e-4).sum(-1)
        counts = support.cpu().double()
        outside = torch.maximum(least - counts, counts - sizes.double() - 2).clamp(min=0)
        trial.compare("sizes of supports", outside, torch.zeros_like(outside), 0.5)
    if case.gradients:
        _check_gradients(trial, exact, args, saved, own)


def _check_gradients(trial: Trial, exact: AttentionArgs, args: AttentionArgs, saved: Any, own: Any) -> None:
    grad = trial.normal(*exact.query.shape)
    needs = (True, True, True, *(x is not None for x in (exact.alphas, exact.mask, exact.slopes)))
    actual = trial.attention.attention_gradient(args, saved, trial.put(grad), needs)
    right = eager.attention_gradient(exact, own, grad, needs)
    for name, mine, theirs in zip(AttentionGradients._fields, actual, right, strict=True):
        if mine is not None and theirs is not None:
            trial.compare(f"gradient of {name}", mine, theirs, trial.sum_limit(GRADIENT))


def _on_device(trial: Trial, args: AttentionArgs) -> AttentionArgs:
    wide = torch.float64 if trial.dtype == torch.float64 else torch.float32
    query, key, value = (trial.put(x) for x in args[:3])
    alphas, slopes = (None if x is None else trial.put(x, wide) for x in (args.alphas, args.slopes))
    mask = args.mask
    if mask is not None:
        mask = mask.to(trial.device) if mask.dtype == torch.bool else trial.put(mask)
    return args._replace(query=query, key=key, value=value, alphas=alphas, mask=mask, slopes=slopes)


def _dense(args: AttentionArgs) -> Tensor:
    """Return all weights [batch, heads, queries, keys]."""
    query, key, _, _, mask, slopes, lengths, *_ = args
    scores = query @ key.repeat_interleave(args.group, 1).transpose(-1, -2) * args.scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    queries, keys = scores.shape[2:]
    if slopes is not None:
        scores = scores - slopes[..., None, None] * eager.distances(queries, keys, args.offset, scores)
    if args.causal:
        scores = scores.masked_fill(eager.future_mask(queries, keys, scores.device, args.offset), -torch.inf)
    if lengths is not None:
        inactive = ~eager.length_mask(lengths, scores.shape[-1], scores.device)
        scores = scores.masked_fill(inactive.unsqueeze(1), -torch.inf)
    alpha = args.alpha
    if isinstance(alpha, Tensor):
        alpha = alpha.expand(scores.shape[:2]).unsqueeze(-1).expand(scores.shape[:3]).reshape(-1, 1)
    return maps.entmax(scores.view(-1, scores.shape[-1]), alpha).view(scores.shape)
