"""Define maps such as entmax with gradients of every order, forward mode, vmap and operators.

A :class:`MapRule` describes a map; :func:`apply_map` applies it so that PyTorch can differentiate it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from tsallis.ops.alphas import Alpha, check_alpha
from tsallis.ops.choice import choose, choose_direct
from tsallis.ops.dtypes import contiguous, contiguous_alpha
from tsallis.ops.eager import graph
from tsallis.ops.eager import maps as eager
from tsallis.ops.protocol import Backend
from tsallis.ops.tracing import Operation, join_alpha, operator, save, saved, split_alpha, vmap_rows
from tsallis.ops.transforms import (
    compiling,
    differentiable,
    differentiated,
    exporting_to_onnx,
    functionalized,
    operators_only,
)

Gradients = tuple[Tensor | None, ...]


@dataclass(frozen=True)
class MapRule:
    """Rules that compute, differentiate and export a map of rows [rows, d].

    Parameters are numbers, or tensors whose first dimension is the rows. Maps without an alpha ignore `alpha`.

    Interface:
        solve(scores, alpha, *parameters): Return the probabilities [rows, d]; check alpha and the numbers first.
        pullback(probs, grad, needs, alpha, *parameters): Return the gradients of the scores, of alpha [rows, 1] and of
            each parameter; None where `needs` is False, and for numbers. A NaN in `probs` reaches the gradients.
        pushforward(probs, tangents, alpha, *parameters): Return the derivative along tangents of the same inputs; a
            tangent may be None.
        graph(scores, alpha, *parameters): Return the result of `solve`, with operations that do not depend on the
            values of tensors, for the ONNX exporters. Default: `solve` itself.

    `pullback` and `pushforward` consist of operations that can be differentiated again. They start from the
    probabilities, because nothing else is saved.
    """

    solve: Callable[..., Tensor]
    pullback: Callable[..., Gradients]
    pushforward: Callable[..., Tensor]
    operator: Callable[..., Tensor]
    graph: Callable[..., Tensor]


def map_rule(
    name: str,
    solve: Callable[..., Tensor],
    pullback: Callable[..., Gradients],
    pushforward: Callable[..., Tensor],
    parameters: str = "",
    graph: Callable[..., Tensor] | None = None,
) -> MapRule:
    """Create the rule of a map, and register the operator `tsallis::name` for tracers.

    `parameters` declares the parameters after scores and alpha, for example `"float budget, Tensor cap"`.
    """

    def compute(scores: Tensor, number: float, alphas: Tensor | None, *parameter_values: Any) -> Tensor:
        return solve(scores, join_alpha(number, alphas), *parameter_values).contiguous()

    def fake(scores: Tensor, *_: Any) -> Tensor:
        return torch.empty_like(scores, memory_format=torch.contiguous_format)

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, number, alphas, *parameter_values = inputs
        tensors = [x for x in (alphas, *parameter_values) if isinstance(x, Tensor)]
        ctx.values = [
            None if isinstance(x, Tensor) else x for x in (number if alphas is None else alphas, *parameter_values)
        ]
        ctx.save_for_backward(output, *tensors)

    def backward(ctx: Any, grad: Tensor) -> Gradients:
        probs, *tensors = ctx.saved_tensors
        saved_iter = iter(tensors)
        alpha, *parameter_values = [next(saved_iter) if value is None else value for value in ctx.values]
        scores_need, _, alpha_needs, *needs = ctx.needs_input_grad
        dz, da, *parameter_grads = pullback(probs, grad, (scores_need, alpha_needs, *needs), alpha, *parameter_values)
        return dz, None, da, *parameter_grads

    schema = f"(Tensor scores, float alpha, Tensor? alphas{', ' * bool(parameters)}{parameters}) -> Tensor"
    registered = operator(name, schema, compute, fake, setup, backward, rows=True)
    return MapRule(solve, pullback, pushforward, registered, graph or solve)


class Map(Operation):
    """Operation that applies a map to rows [rows, d]; with a backend, also to contiguous scores along any `dim`."""

    @staticmethod
    def forward(
        scores: Tensor, alpha: Alpha, dim: int, backend: Backend | None, rule: MapRule, *parameters: Any
    ) -> Tensor:
        if backend is not None:
            return backend.entmax(scores, contiguous_alpha(alpha), dim)
        if operators_only(scores):
            return rule.operator(scores, *split_alpha(alpha), *parameters)
        return rule.solve(scores, alpha, *parameters)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, alpha, ctx.dim, ctx.backend, ctx.rule = inputs[:5]
        ctx.packed = eager.take_index(output)  # autograd returns saved tensors without their attributes
        if type(alpha) is float and len(inputs) == 5:  # skip `save`: each extra call is measurable on small tensors
            ctx.alpha = alpha
            ctx.save_for_backward(output)
            ctx.save_for_forward(output)
            return
        # Save the original alpha: a contiguous copy has no history, and second derivatives would miss terms.
        ctx.alpha = None
        save(ctx, output, alpha, *inputs[5:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> Gradients:
        if grad is None:
            return (None,) * len(ctx.needs_input_grad)
        probs, alpha, *parameters = Map._saved_tensors(ctx)
        scores_need, alpha_needs, _, _, _, *needs = ctx.needs_input_grad
        if ctx.backend is None or differentiable(grad):
            p, g = eager.to_rows(probs, ctx.dim), eager.to_rows(grad, ctx.dim)
            dz, da, *parameter_grads = ctx.rule.pullback(p, g, (scores_need, alpha_needs, *needs), alpha, *parameters)
            return eager.from_rows(dz, probs, ctx.dim), da, None, None, None, *parameter_grads
        slopes = contiguous(grad if grad.dtype == probs.dtype else grad.to(probs.dtype))
        alphas = contiguous_alpha(alpha)
        if ctx.packed is not None:
            probs.packed = ctx.packed
        dz, da = ctx.backend.entmax_gradient(probs, slopes, alphas, alpha_needs, ctx.dim)
        return dz, da, None, None, None

    @staticmethod
    def jvp(
        ctx: Any,
        tangent: Tensor | None,
        alpha_tangent: Tensor | None,
        _: Any,
        __: Any,
        ___: Any,
        *parameter_tangents: Any,
    ) -> Tensor:
        probs, alpha, *parameters = Map._saved_tensors(ctx)
        rows = None if tangent is None else eager.to_rows(tangent, ctx.dim)
        p = eager.to_rows(probs, ctx.dim)
        return eager.from_rows(
            ctx.rule.pushforward(p, (rows, alpha_tangent, *parameter_tangents), alpha, *parameters), probs, ctx.dim
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> Any:
        return vmap_rows(Map.apply, info, in_dims, inputs)

    @staticmethod
    def _saved_tensors(ctx: Any) -> Sequence[Any]:
        return saved(ctx) if ctx.alpha is None else (*ctx.saved_tensors, ctx.alpha)


def apply_map(rule: MapRule, scores: Tensor, alpha: Alpha, *parameters: Any) -> Tensor:
    """Apply a map to rows [rows, d] differentiably; tracers get the map's operator or graph."""
    if exporting_to_onnx():
        return rule.graph(scores, alpha, *parameters)
    if compiling() or functionalized():
        return rule.operator(scores, *split_alpha(alpha), *parameters)
    return cast(Tensor, Map.apply(scores, alpha, -1, None, rule, *parameters))


def entmax(
    scores: Tensor, alpha: Alpha, dim: int = -1, backend: Backend | None = None, rule: MapRule | None = None
) -> Tensor:
    """Return probabilities of scores [..., d] with alpha as a float or a tensor [..., 1].

    The default rule accepts any positive alpha; `ATTENTION_WEIGHTS` requires an alpha of at least 1. Under a tracer,
    dimensions are not merged to rows, because merging would add guards on equal lengths that the tracer can't prove.
    """
    rule = ENTMAX if rule is None else rule
    if backend is None:
        if exporting_to_onnx():
            return rule.graph(scores, alpha)
        if compiling() or functionalized():
            return rule.operator(scores, *split_alpha(alpha))
        if scores.dim() != 2:
            return entmax(*_merge_rows(scores, alpha), rule=rule).reshape(scores.shape)
        backend = choose_direct("maps", alpha, scores)
        scores = scores if backend is None else contiguous(scores)
    if backend is not None and not differentiated(scores, alpha):  # without autograd, small tensors take half the time
        probs = backend.entmax(scores, contiguous_alpha(alpha), dim)
        eager.take_index(probs)
        return probs
    return cast(Tensor, Map.apply(scores, alpha, dim, backend, rule))


def _merge_rows(scores: Tensor, alpha: Alpha) -> tuple[Tensor, Alpha]:
    """Return scores [..., d] as rows [rows, d], and alphas [..., 1] as [rows, 1]."""
    return scores.reshape(-1, scores.shape[-1]), alpha.reshape(-1, 1) if isinstance(alpha, Tensor) else alpha


def _solve_entmax(scores: Tensor, alpha: Alpha, positive: bool = True) -> Tensor:
    rows, alphas = contiguous(scores), contiguous_alpha(alpha)
    if rows.dim() != 2:
        rows, alphas = _merge_rows(rows, alphas)
    return choose("maps", alphas, rows, positive=positive).entmax(rows, alphas).reshape(scores.shape)


def _pull_entmax(probs: Tensor, grad: Tensor, needs: Sequence[bool], alpha: Alpha) -> Gradients:
    return eager.pullback(probs, grad, alpha, needs[1])


def _push_entmax(probs: Tensor, tangents: Sequence[Tensor | None], alpha: Alpha) -> Tensor:
    return eager.pushforward(probs, tangents[0], alpha, tangents[1])


ENTMAX = map_rule("entmax", _solve_entmax, _pull_entmax, _push_entmax, graph=graph.entmax)
# Tracers can't read alphas, so the operator checks when it runs that each alpha is at least 1.
_solve_weights = functools.partial(_solve_entmax, positive=False)
ATTENTION_WEIGHTS = map_rule("attention_weights", _solve_weights, _pull_entmax, _push_entmax, graph=graph.entmax)


def budgeted_entmax(scores: Tensor, alpha: Alpha, budget: float) -> Tensor:
    """Return marginals of rows [rows, d]; each is at most 1, and each row sums to the budget."""
    return apply_map(BUDGETED_ENTMAX, scores, alpha, budget)


def _solve_budgeted(scores: Tensor, alpha: Alpha, budget: float) -> Tensor:
    check_alpha(alpha)
    return eager.budgeted_entmax(scores, alpha, budget)


def _unsaturated(probs: Tensor) -> Tensor:
    """Return a mask of the entries that change with their scores: neither 0 nor 1."""
    return (probs != 0) & (probs != 1)


def _pull_budgeted(probs: Tensor, grad: Tensor, needs: Sequence[bool], alpha: Alpha, budget: float) -> Gradients:
    return *eager.pullback(probs, grad, alpha, needs[1], _unsaturated(probs)), None


def _push_budgeted(probs: Tensor, tangents: Sequence[Tensor | None], alpha: Alpha, budget: float) -> Tensor:
    return eager.pushforward(probs, tangents[0], alpha, tangents[1], _unsaturated(probs))


BUDGETED_ENTMAX = map_rule(
    "budgeted_entmax", _solve_budgeted, _pull_budgeted, _push_budgeted, "float budget", graph.budgeted_entmax
)
