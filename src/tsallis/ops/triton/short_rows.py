"""Compute entmax of rows that are short enough to stay in registers, and define helpers for all rows."""

from __future__ import annotations

from typing import Any

from tsallis.ops.triton.language import (
    ANY_ALPHA,
    THREE_HALVES,
    TWO,
    alpha_curvature_at,
    constant,
    entmax_weights,
    kernel,
    newton_step,
    tl,
)

NEWTON_LIMIT = 40
STEPS = constant(3)  # Newton steps that compute a bound from the lanes' maxima
MASS_TOLERANCE = constant(1e-6)  # maximum of |sum of the weights - 1| after the last step
STEP_TOLERANCE = constant(3e-7)  # a threshold that moves by less than this has converged
APPROX_TOLERANCE = constant(1e-2)  # replaces both tolerances while powers are approximate

_kernel = kernel("rows", "tiles", "tiles_per_part")


@_kernel
def row_eps(alpha: tl.tensor, eps_scalar: tl.tensor, row: tl.tensor, ALPHAS: tl.constexpr, TINY: tl.constexpr) -> Any:
    """Return a row's `alpha - 1`, from `alpha` [rows] or else from `eps_scalar`."""
    eps = eps_scalar
    if ALPHAS:
        eps = tl.maximum(tl.load(alpha + row).to(tl.float32) - 1.0, TINY)
    return eps


@_kernel
def mass_tolerance(eps: tl.tensor) -> Any:
    """Return the tolerance of |sum - 1| before the last step; for smooth weights, that step squares the error."""
    return tl.where(eps <= 0.5, 7e-5 / tl.sqrt(eps), MASS_TOLERANCE)


@_kernel
def needs_step(F: tl.tensor, before: tl.tensor, after: tl.tensor, eps: tl.tensor) -> Any:
    """Return whether a row needs another step; rows with a NaN need none."""
    return (
        (F > 0.0)
        & (tl.abs(F - 1.0) > mass_tolerance(eps))
        & (tl.abs(after - before) > (1.0 + tl.abs(after)) * STEP_TOLERANCE)
    )


@_kernel
def approximate_weights(x: tl.tensor, eps: tl.tensor, MODE: tl.constexpr) -> Any:
    """Return `entmax_weights` with about six correct digits, which suffice for bounds and first steps."""
    if MODE == ANY_ALPHA:
        u = 1.0 + eps * x
        outside = u <= 0.0
        u = tl.where(outside, 1.0, u)
        power = tl.where(eps < 1e-3, x * 1.4426950408889634, tl.log2(u) / eps)  # nearly softmax: u loses digits
        p = tl.where(outside, 0.0, tl.exp2(power))
        w = p / u
    else:
        p, w = entmax_weights(x, eps, MODE)
    return p, w


@_kernel
def block_eps(
    row: tl.tensor,
    alpha: tl.tensor,
    eps_scalar: tl.tensor,
    rows: tl.tensor,
    ROWS: tl.constexpr,
    ALPHAS: tl.constexpr,
    TINY: tl.constexpr,
) -> Any:
    """Return alpha - 1 of each row of a block."""
    eps = tl.zeros((ROWS,), tl.float32) + eps_scalar
    if ALPHAS:
        eps = tl.maximum(tl.load(alpha + row, mask=row < rows, other=1.5).to(tl.float32) - 1.0, TINY)
    return eps


@_kernel
def short_solve(
    x: tl.tensor,
    eps: tl.tensor,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
    MODE: tl.constexpr,
    LIMIT: tl.constexpr,
) -> Any:
    """Return the thresholds of rows [ROWS, WIDTH] whose largest score is 0. A NaN score makes later sums NaN."""
    c = tl.zeros((ROWS,), tl.float32)
    if LANES < WIDTH:
        lane_maxima = tl.max(tl.reshape(x, [ROWS, WIDTH // LANES, LANES]), 1)  # [ROWS, LANES]
        for _ in tl.static_range(STEPS):
            lane_p, lane_w = approximate_weights(lane_maxima - c[:, None], eps[:, None], MODE)
            c = newton_step(c, tl.sum(lane_p, 1), tl.sum(lane_w, 1), eps, MODE)
        c = tl.maximum(c, 0.0)
    steps = 0
    running = True
    if MODE == ANY_ALPHA:  # start with approximate powers: exact powers take three times as long
        while running:
            p, w = approximate_weights(x - c[:, None], eps[:, None], MODE)
            F = tl.sum(p, 1)
            next_c = newton_step(c, F, tl.sum(w, 1), eps, MODE)
            steps += 1
            unconverged = (tl.abs(F - 1.0) > APPROX_TOLERANCE) & (
                tl.abs(next_c - c) > (1.0 + tl.abs(next_c)) * APPROX_TOLERANCE
            )
            running = (tl.max((unconverged & (F > 0.0)).to(tl.int32)) > 0) & (steps < LIMIT)
            c = next_c
        steps = 0
        running = True
    while running:
        p, w = entmax_weights(x - c[:, None], eps[:, None], MODE)
        F = tl.sum(p, 1)
        next_c = newton_step(c, F, tl.sum(w, 1), eps, MODE)
        steps += 1
        running = (tl.max(needs_step(F, c, next_c, eps).to(tl.int32)) > 0) & (steps < LIMIT)
        c = next_c
    return c


@_kernel
def short_map(
    scores: tl.tensor,  # [rows, d]
    probs: tl.tensor,  # [rows, d]
    alpha: tl.tensor,
    eps_scalar: tl.tensor,
    rows: tl.tensor,
    d: tl.tensor,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
    MODE: tl.constexpr,
    ALPHAS: tl.constexpr,
    TINY: tl.constexpr,
    LIMIT: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    inside = (row < rows)[:, None] & (column < d)[None, :]
    offsets = row[:, None] * d + column[None, :]
    eps = block_eps(row, alpha, eps_scalar, rows, ROWS, ALPHAS, TINY)
    x = tl.load(scores + offsets, mask=inside, other=float("-inf")).to(tl.float32)
    top = tl.max(x, 1)
    x -= tl.where(top == float("-inf"), 0.0, top)[:, None]
    c = short_solve(x, eps, ROWS, WIDTH, LANES, MODE, LIMIT)
    p, _w = entmax_weights(x - c[:, None], eps[:, None], MODE)
    F = tl.sum(p, 1)
    p *= (1.0 / tl.where(F == 0.0, 1.0, F))[:, None]
    tl.store(probs + offsets, p.to(probs.dtype.element_ty), mask=inside)


@_kernel
def probability_slope(p: tl.tensor, eps: tl.tensor, MODE: tl.constexpr) -> Any:
    """Return `p^(2 - alpha)` and `eps log p`; both are 0 outside the support; NaN stays NaN."""
    outside = p == 0.0
    t = tl.where(outside, 0.0, eps * tl.log(tl.where(outside, 1.0, p)))
    if MODE == TWO:
        w = tl.where(outside, 0.0, p / p)  # keeps NaN
    elif MODE == THREE_HALVES:
        w = tl.sqrt(p)
    else:
        w = tl.where(outside, 0.0, p * tl.exp(-t))
    return w, t


@_kernel
def short_gradient(
    probs: tl.tensor,  # [rows, d]
    grad: tl.tensor,  # [rows, d]
    scores_grad: tl.tensor,  # [rows, d]
    alpha_grad: tl.tensor,  # [rows]
    alpha: tl.tensor,
    eps_scalar: tl.tensor,
    rows: tl.tensor,
    d: tl.tensor,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    MODE: tl.constexpr,
    ALPHAS: tl.constexpr,
    TINY: tl.constexpr,
    NEED_ALPHA: tl.constexpr,
    SKIP: tl.constexpr,  # read the gradient only where the probability is not 0
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    inside = (row < rows)[:, None] & (column < d)[None, :]
    offsets = row[:, None] * d + column[None, :]
    eps = block_eps(row, alpha, eps_scalar, rows, ROWS, ALPHAS, TINY)[:, None]
    p = tl.load(probs + offsets, mask=inside, other=0.0).to(tl.float32)
    needed = inside
    if SKIP:
        needed = inside & (p != 0.0)
    g = tl.load(grad + offsets, mask=needed, other=0.0).to(tl.float32)
    g = tl.where(p == 0.0, 0.0, g)  # outside the support, even an infinite gradient must have no effect
    w, t = probability_slope(p, eps, MODE)
    S = tl.sum(w, 1)
    g -= (tl.sum(w * g, 1) / tl.where(S == 0.0, 1.0, S))[:, None]
    tl.store(scores_grad + offsets, (w * g).to(scores_grad.dtype.element_ty), mask=inside)
    if NEED_ALPHA:
        da = -tl.sum(alpha_curvature_at(t, p, w, eps) * g, 1)
        tl.store(alpha_grad + row, da, mask=row < rows)
