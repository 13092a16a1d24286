"""Rows on GPUs: what all share, and the maps of short rows, which stay on the chip while Newton's steps are taken."""

from __future__ import annotations

from typing import Any

from tsallis.ops.triton.language import ANY_ALPHA, THREE_HALVES, TWO, advance, bend_at, constant, kernel, tl, weigh

NEWTON_LIMIT = 40
STEPS = constant(3)  # Newton steps on the lanes' maxima each time a bound is renewed
CLOSE = constant(1e-6)  # |sum of the weights - 1| after the last step
STILL = constant(3e-7)  # a threshold that moves less than this is where it will be
ROUGHLY = constant(1e-2)  # the same while powers are rough

_kernel = kernel("rows", "tiles", "apart")


@_kernel
def eps_of(alpha: tl.tensor, number: tl.tensor, row: tl.tensor, ALPHAS: tl.constexpr, TINY: tl.constexpr) -> Any:
    """alpha - 1 of a row: a number for all, or one of `alpha` [rows]."""
    eps = number
    if ALPHAS:
        eps = tl.maximum(tl.load(alpha + row).to(tl.float32) - 1.0, TINY)
    return eps


@_kernel
def near(eps: tl.tensor) -> Any:
    """Return how far from 1 a row's sum may be before the last step, which squares the error of smooth weights."""
    return tl.where(eps <= 0.5, 7e-5 / tl.sqrt(eps), CLOSE)


@_kernel
def unsettled(F: tl.tensor, before: tl.tensor, after: tl.tensor, eps: tl.tensor) -> Any:
    """Tell whether a row needs another step; a row with a NaN doesn't."""
    return (F > 0.0) & (tl.abs(F - 1.0) > near(eps)) & (tl.abs(after - before) > (1.0 + tl.abs(after)) * STILL)


@_kernel
def roughly(x: tl.tensor, eps: tl.tensor, MODE: tl.constexpr) -> Any:
    """Compute `weigh` with powers to some six digits: enough for bounds and for first steps."""
    if MODE == ANY_ALPHA:
        u = 1.0 + eps * x
        off = u <= 0.0
        u = tl.where(off, 1.0, u)
        power = tl.where(eps < 1e-3, x * 1.4426950408889634, tl.log2(u) / eps)  # nearly softmax: u says too little
        p = tl.where(off, 0.0, tl.exp2(power))
        w = p / u
    else:
        p, w = weigh(x, eps, MODE)
    return p, w


# Short rows


@_kernel
def short_start(
    row: tl.tensor,
    alpha: tl.tensor,
    number: tl.tensor,
    rows: tl.tensor,
    ROWS: tl.constexpr,
    ALPHAS: tl.constexpr,
    TINY: tl.constexpr,
) -> Any:
    """alpha - 1 of each of a block of rows."""
    eps = tl.zeros((ROWS,), tl.float32) + number
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
    """Thresholds of rows whose largest score is 0 [ROWS, WIDTH]. A NaN stays where it is: sums will find it."""
    c = tl.zeros((ROWS,), tl.float32)
    if LANES < WIDTH:
        largest = tl.max(tl.reshape(x, [ROWS, WIDTH // LANES, LANES]), 1)  # [ROWS, LANES]
        for _ in tl.static_range(STEPS):
            lane_p, lane_w = roughly(largest - c[:, None], eps[:, None], MODE)
            c = advance(c, tl.sum(lane_p, 1), tl.sum(lane_w, 1), eps, MODE)
        c = tl.maximum(c, 0.0)
    taken = 0
    going = True
    if MODE == ANY_ALPHA:  # exact powers take three times as long
        while going:
            p, w = roughly(x - c[:, None], eps[:, None], MODE)
            F = tl.sum(p, 1)
            further = advance(c, F, tl.sum(w, 1), eps, MODE)
            taken += 1
            far = (tl.abs(F - 1.0) > ROUGHLY) & (tl.abs(further - c) > (1.0 + tl.abs(further)) * ROUGHLY)
            going = (tl.max((far & (F > 0.0)).to(tl.int32)) > 0) & (taken < LIMIT)
            c = further
        taken = 0
        going = True
    while going:
        p, w = weigh(x - c[:, None], eps[:, None], MODE)
        F = tl.sum(p, 1)
        further = advance(c, F, tl.sum(w, 1), eps, MODE)
        taken += 1
        going = (tl.max(unsettled(F, c, further, eps).to(tl.int32)) > 0) & (taken < LIMIT)
        c = further
    return c


@_kernel
def short_map(
    scores: tl.tensor,  # [rows, d]
    probs: tl.tensor,  # [rows, d]
    alpha: tl.tensor,
    number: tl.tensor,
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
    at = row[:, None] * d + column[None, :]
    eps = short_start(row, alpha, number, rows, ROWS, ALPHAS, TINY)
    x = tl.load(scores + at, mask=inside, other=float("-inf")).to(tl.float32)
    top = tl.max(x, 1)
    x -= tl.where(top == float("-inf"), 0.0, top)[:, None]
    c = short_solve(x, eps, ROWS, WIDTH, LANES, MODE, LIMIT)
    p, _w = weigh(x - c[:, None], eps[:, None], MODE)
    F = tl.sum(p, 1)
    p *= (1.0 / tl.where(F == 0.0, 1.0, F))[:, None]
    tl.store(probs + at, p.to(probs.dtype.element_ty), mask=inside)


@_kernel
def slope_of(p: tl.tensor, eps: tl.tensor, MODE: tl.constexpr) -> Any:
    """`p^(2 - alpha)`, 0 off the support, and `eps log p` (0 there). NaN stays."""
    off = p == 0.0
    t = tl.where(off, 0.0, eps * tl.log(tl.where(off, 1.0, p)))
    if MODE == TWO:
        w = tl.where(off, 0.0, p / p)  # a NaN stays
    elif MODE == THREE_HALVES:
        w = tl.sqrt(p)
    else:
        w = tl.where(off, 0.0, p * tl.exp(-t))
    return w, t


@_kernel
def short_gradient(
    probs: tl.tensor,  # [rows, d]
    grad: tl.tensor,  # [rows, d]
    scores_grad: tl.tensor,  # [rows, d]
    alpha_grad: tl.tensor,  # [rows]
    alpha: tl.tensor,
    number: tl.tensor,
    rows: tl.tensor,
    d: tl.tensor,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    MODE: tl.constexpr,
    ALPHAS: tl.constexpr,
    TINY: tl.constexpr,
    NEED_ALPHA: tl.constexpr,
    SKIP: tl.constexpr,  # read of the gradient only what meets a probability
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    inside = (row < rows)[:, None] & (column < d)[None, :]
    at = row[:, None] * d + column[None, :]
    eps = short_start(row, alpha, number, rows, ROWS, ALPHAS, TINY)[:, None]
    p = tl.load(probs + at, mask=inside, other=0.0).to(tl.float32)
    wanted = inside
    if SKIP:
        wanted = inside & (p != 0.0)
    g = tl.load(grad + at, mask=wanted, other=0.0).to(tl.float32)
    g = tl.where(p == 0.0, 0.0, g)  # a gradient off the support, of any kind, is nobody's
    w, t = slope_of(p, eps, MODE)
    S = tl.sum(w, 1)
    g -= (tl.sum(w * g, 1) / tl.where(S == 0.0, 1.0, S))[:, None]
    tl.store(scores_grad + at, (w * g).to(scores_grad.dtype.element_ty), mask=inside)
    if NEED_ALPHA:
        da = -tl.sum(bend_at(t, p, w, eps) * g, 1)
        tl.store(alpha_grad + row, da, mask=row < rows)


# Long rows
