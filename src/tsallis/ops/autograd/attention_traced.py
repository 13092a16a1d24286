"""Attention by the compiled kernels under `torch.compile`, `torch.export` and dispatch modes: opaque operators."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tsallis.ops import backend
from tsallis.ops.alphas import Alpha
from tsallis.ops.autograd.attention import Problem, materialised
from tsallis.ops.autograd.rows import split
from tsallis.ops.cpu import STATS
from tsallis.ops.cpu import attention as compiled
from tsallis.ops.transforms import recomputed_gradients

# What these operators, and those for a GPU, take first: a tracer knows tensors and numbers only.
GIVEN = (
    "Tensor query, Tensor key, Tensor value, float alpha, Tensor? alphas, Tensor? mask, Tensor? lengths, "
    "float scale, bool causal, float dropout"
)
Found = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


class Asked(NamedTuple):
    """The arguments of the attention operators, in the order of `GIVEN`."""

    query: Tensor
    key: Tensor
    value: Tensor
    number: float
    alphas: Tensor | None
    mask: Tensor | None
    lengths: Tensor | None
    scale: float
    causal: bool
    dropout: float

    @property
    def alpha(self) -> Alpha:
        return self.number if self.alphas is None else self.alphas


def traced_attention(
    query: Tensor, key: Tensor, value: Tensor, alpha: Alpha, mask: Tensor | None, problem: Problem, learns: bool
) -> tuple[Tensor, Tensor]:
    """Return the output, and how many keys each query attends to, for a tracer; gradients only if it `learns`."""
    output, support, *_ = _attention_op(*arguments(query, key, value, alpha, mask, problem), learns)
    return output, support


def arguments(query: Tensor, key: Tensor, value: Tensor, alpha: Alpha, mask: Tensor | None, problem: Problem) -> Asked:
    lengths = None if problem.lengths is None else torch.as_tensor(problem.lengths)
    scale, causal, dropout = problem.scale, problem.causal, problem.dropout
    number, alphas = split(alpha)
    return Asked(query, key, value, number, alphas, mask, lengths, scale, causal, dropout)


def draw_seed(dropout: float) -> Tensor:
    """Draw the seed of one pass's dropout, on the CPU."""
    return torch.randint(1 << 62, ()) if dropout else torch.zeros((), dtype=torch.int64)


def _checked(args: Asked, seed: Tensor) -> compiled.Given:
    """Return the kernels' arguments; check the numbers that a tracer could not look at."""
    query, key, value, alpha, keys = *args[:3], args.alpha, args.key.shape[2]
    if not backend.compiled(alpha, query):
        raise NotImplementedError(
            "compiled attention needs the CPU's kernels and alphas from 1 to 2, "
            f"got {alpha.tolist() if isinstance(alpha, Tensor) else alpha}: use tsallis.backend('eager')"
        )
    numbers = None if args.lengths is None else tuple(int(n) for n in args.lengths)
    out_of_range = [n for n in numbers or () if not 0 <= n <= keys]
    if out_of_range:
        raise ValueError(f"key_lengths must lie between 0 and the {keys} keys, got {out_of_range[0]}")
    setting = compiled.Setting(args.scale, args.causal, numbers, args.dropout, int(seed))
    return compiled.Given(query, key, value, alpha, args.mask, setting)


@torch.library.custom_op(
    "tsallis::cpu_attention",
    mutates_args=(),
    schema=f"({GIVEN}, bool learns) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _attention_op(*inputs: Any) -> Found:
    """Return the output, support, what backward needs of the pass, and the seed of its dropout."""
    *first, learns = inputs
    args = Asked(*first)
    seed = draw_seed(args.dropout)
    output, saved = compiled.attend(_checked(args, seed), learns, compiled.MOST_LISTED)
    columns, weight = (output.new_empty(0) if x is None else x for x in (saved.columns, saved.weight))
    return output.contiguous(), saved.counts, saved.stats, columns, weight, seed


@_attention_op.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Found:
    rows = query.shape[:-1]
    room = (*rows, compiled.MOST_LISTED) if rest[-1] else (0,)
    return (
        query.new_empty(*rows, value.shape[-1]),
        query.new_empty(rows, dtype=torch.int32),
        query.new_empty(*rows, STATS),
        query.new_empty(room, dtype=torch.int32 if rest[-1] else query.dtype),
        query.new_empty(room),
        torch.empty((), dtype=torch.int64),
    )


@torch.library.custom_op(
    "tsallis::cpu_attention_backward",
    mutates_args=(),
    schema=f"({GIVEN}, Tensor counts, Tensor stats, Tensor columns, Tensor weight, Tensor seed, Tensor grad, "
    "bool need_alpha, bool need_mask) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _backward_op(*inputs: Any) -> tuple[Tensor, ...]:
    """Gradients; empty ones of alphas and of a mask where none are needed."""
    *first, counts, stats, columns, weight, seed, grad, need_alpha, need_mask = inputs
    args, saved = Asked(*first), compiled.Kept(counts, stats, columns, weight)
    *grads, da, dm = compiled.attention_gradient(_checked(args, seed), saved, grad, need_alpha, need_mask)
    dq, dk, dv = (x.contiguous() for x in grads)
    da = dq.new_empty(0) if da is None or args.alphas is None else da.sum(-1).sum_to_size(args.alphas.shape)
    return dq, dk, dv, da, dq.new_empty(0) if dm is None else dm


@_backward_op.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, alpha: float, alphas: Tensor | None, mask: Tensor | None, *rest: Any
) -> tuple[Tensor, ...]:
    *_, need_alpha, need_mask = rest
    dq, dk, dv = (x.new_empty(x.shape) for x in (query, key, value))
    parameters = (x if need else None for x, need in ((alphas, need_alpha), (mask, need_mask)))
    return dq, dk, dv, *(query.new_empty(0 if x is None else x.shape) for x in parameters)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Found) -> None:
    query, key, value, ctx.alpha, alphas, mask, lengths, *ctx.rest, _ = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(query, key, value, alphas, mask, lengths, *output[1:])


def _pull(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    nothing = (None,) * 5  # lengths, scale, causal, dropout, learns
    if grad is None:
        return (None,) * 6 + nothing
    query, key, value, alphas, mask, lengths, *saved = ctx.saved_tensors
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        scale, causal, dropout = ctx.rest
        seed = int(saved[-1]) if dropout else 0
        problem = Problem(scale, causal, lengths, threads=1, dropout=dropout, seed=seed, kernels=True)

        def compute(query: Tensor, key: Tensor, value: Tensor, alpha: float, alphas: Any, mask: Any) -> Tensor:
            return materialised(query, key, value, alpha if alphas is None else alphas, mask, problem)[0]

        return *recomputed_gradients(ctx, compute, (query, key, value, ctx.alpha, alphas, mask), grad), *nothing
    inputs = (query, key, value, ctx.alpha, alphas, mask, lengths, *ctx.rest)
    _, _, _, _, *needs = ctx.needs_input_grad[:6]  # of alphas and mask
    dq, dk, dv, *rest = _backward_op(*inputs, *saved, grad, *needs)
    return dq, dk, dv, None, *(x if need else None for x, need in zip(rest, needs, strict=True)), *nothing


_attention_op.register_autograd(_pull, setup_context=_keep)
