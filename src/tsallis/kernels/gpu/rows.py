"""The maps on GPUs: a row's scores are read once and its probabilities written once, as far as it goes.

A short row stays on the chip while Newton's steps are taken. Of a long row one sweep keeps, lane by lane, the largest
score (a subset of the row, whose threshold bounds the row's own from below) and aside the scores above the newest
bound, usually a few hundred; it writes zeros on its way. The steps then read those scores alone, and what is in the
support is written over the zeros. A row with more of them than there is room for is swept again in each step.

A row of a backward pass is treated alike: it is read once, and what was in the support is put aside.
"""

from __future__ import annotations

from typing import Any

from tsallis.kernels.gpu.language import ANY_ALPHA, THREE_HALVES, TWO, advance, bend_at, constant, kernel, tl, weigh

NEWTON_LIMIT = 40
STEPS = constant(3)  # Newton steps on the lanes' maxima each time the bound is renewed
GROWTH = constant(4)  # how much longer a stretch of the sweep is than all before it
CLOSE = constant(1e-6)  # |sum of the weights - 1| after the last step
STILL = constant(3e-7)  # a threshold that moves less than this is where it will be
ROUGHLY = constant(1e-2)  # the same while powers are rough
ROUNDING = constant(1e-5)  # how much lower a bound is taken, and how much more for large scores:
ROUNDING_RELATIVE = constant(5e-7)

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
    """How far from 1 a row may sum before its last step, which squares the error where the weights are smooth."""
    return tl.where(eps <= 0.5, 7e-5 / tl.sqrt(eps), CLOSE)


@_kernel
def unsettled(F: tl.tensor, before: tl.tensor, after: tl.tensor, eps: tl.tensor) -> Any:
    """Whether a row needs another step; a row with a NaN doesn't."""
    return (F > 0.0) & (tl.abs(F - 1.0) > near(eps)) & (tl.abs(after - before) > (1.0 + tl.abs(after)) * STILL)


@_kernel
def roughly(x: tl.tensor, eps: tl.tensor, MODE: tl.constexpr) -> Any:
    """As `weigh`, but with powers to some six digits: enough for bounds and for first steps."""
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


@_kernel
def renew(largest: tl.tensor, low: tl.tensor, eps: tl.tensor, MODE: tl.constexpr) -> Any:
    """A newer bound of the row's threshold (with the largest score, not relative to it), from the lanes' maxima."""
    low = tl.maximum(low, tl.max(largest))
    base = tl.where(low == float("-inf"), 0.0, low)
    for _ in tl.static_range(STEPS):
        p, w = roughly(largest - base, eps, MODE)
        F, G = tl.sum(p), tl.sum(w)
        base = tl.where(F > 1.0, advance(base, F, G, eps, MODE), base)
    return tl.where(low == float("-inf"), low, base)


@_kernel
def cut_of(low: tl.tensor, eps: tl.tensor) -> Any:
    """Scores up to this have weight 0 at every threshold from `low` on."""
    return low - tl.abs(low) * ROUNDING_RELATIVE - ROUNDING - 1.0 / eps


@_kernel
def put_aside(
    source: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    d: tl.tensor,
    cut: tl.tensor,
    largest: tl.tensor,
    count: tl.tensor,
    slots: tl.tensor,  # [DEPTH, LANES]
    places: tl.tensor,  # [DEPTH, LANES]
    zeros: tl.tensor,
    LANES: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    ZEROS: tl.constexpr,
) -> Any:
    """Of the tiles from `first` to `last` what is above the cut, each lane's own in order; with it the lanes' maxima.

    `count` goes on counting where a lane has no room left.
    """
    lanes = tl.arange(0, LANES)
    for tile in tl.range(first, last, num_stages=STAGES):
        column = tile * LANES + lanes
        x = tl.load(source + column, mask=column < d, other=float("-inf")).to(tl.float32)
        if ZEROS:
            tl.store(zeros + column, tl.zeros((LANES,), zeros.dtype.element_ty), mask=column < d)
        largest = tl.maximum(largest, x, propagate_nan=tl.PropagateNan.ALL)
        keep = x > cut
        room = keep & (count < DEPTH)
        at = count * LANES + lanes
        tl.store(slots + at, x, mask=room)
        tl.store(places + at, column, mask=room)
        count += keep.to(tl.int32)
    return largest, count


@_kernel
def append(
    x: tl.tensor,
    place: tl.tensor,
    keep: tl.tensor,
    size: tl.tensor,
    listed: tl.tensor,
    listed_at: tl.tensor,
    ROOM: tl.constexpr,
) -> Any:
    """Scores and their places at the end of a list, as far as there is room; and the size that makes."""
    number = keep.to(tl.int32)
    slot = size + tl.cumsum(number, 0) - 1
    room = keep & (slot < ROOM)
    tl.store(listed + slot, x, mask=room)
    tl.store(listed_at + slot, place, mask=room)
    return size + tl.sum(number)


@_kernel
def squeeze(
    slots: tl.tensor,
    places: tl.tensor,
    count: tl.tensor,
    cut: tl.tensor,
    listed: tl.tensor,
    listed_at: tl.tensor,
    LANES: tl.constexpr,
    ROOM: tl.constexpr,
) -> Any:
    """What lies in the lanes, and above the cut, in one list; its size."""
    lanes = tl.arange(0, LANES)
    size = 0
    for depth in range(0, tl.max(count)):
        at = depth * LANES + lanes
        x = tl.load(slots + at, mask=depth < count, other=float("-inf"))
        place = tl.load(places + at, mask=depth < count, other=0)
        size = append(x, place, x > cut, size, listed, listed_at, ROOM)
    return size


@_kernel
def scan(
    source: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    d: tl.tensor,
    eps: tl.tensor,
    slots: tl.tensor,
    places: tl.tensor,
    listed: tl.tensor,
    listed_at: tl.tensor,
    zeros: tl.tensor,
    LANES: tl.constexpr,
    DEPTH: tl.constexpr,
    ROOM: tl.constexpr,
    STAGES: tl.constexpr,
    ZEROS: tl.constexpr,
    MODE: tl.constexpr,
) -> Any:
    """Lists what may be in the support of the tiles from `first` to `last`.

    Largest score, bound of the threshold, and the list's size: more than ROOM where it isn't all there. The largest
    score is NaN where there is a NaN or an infinite score.
    """
    lanes = tl.arange(0, LANES)
    column = first * LANES + lanes
    x = tl.load(source + column, mask=column < d, other=float("-inf")).to(tl.float32)
    largest = x
    low = renew(largest, float("-inf"), eps, MODE)
    keep = x > cut_of(low, eps)
    count = keep.to(tl.int32)
    tl.store(slots + lanes, x, mask=keep)
    tl.store(places + lanes, column, mask=keep)
    if ZEROS:
        tl.store(zeros + column, tl.zeros((LANES,), zeros.dtype.element_ty), mask=column < d)
    start = first + 1
    while start < last:
        stop = tl.minimum(last, first + (start - first) * GROWTH)
        cut = cut_of(low, eps)
        largest, count = put_aside(
            source, start, stop, d, cut, largest, count, slots, places, zeros, LANES, DEPTH, STAGES, ZEROS
        )
        low = renew(largest, low, eps, MODE)
        start = stop
    cut = cut_of(low, eps)
    if tl.max(count) > DEPTH:  # once more, against the newest bound from the start
        tl.debug_barrier()
        count = tl.zeros((LANES,), tl.int32)
        largest, count = put_aside(
            source, first, last, d, cut, largest, count, slots, places, zeros, LANES, DEPTH, STAGES, False
        )
    tl.debug_barrier()  # one thread writes a list, others read it
    size = ROOM + 1
    if tl.max(count) <= DEPTH:
        size = squeeze(slots, places, count, cut, listed, listed_at, LANES, ROOM)
    tl.debug_barrier()
    broken = tl.max(tl.where(largest < float("inf"), 0, 1)) > 0
    return tl.where(broken, float("nan"), tl.max(largest)), low, size


@_kernel
def gather_parts(
    row: tl.tensor,
    eps: tl.tensor,
    tops: tl.tensor,  # [rows, PARTS]
    lows: tl.tensor,  # [rows, PARTS]
    sizes: tl.tensor,  # [rows, PARTS]
    part_lists: tl.tensor,  # [rows, PARTS, PART_ROOM]
    part_places: tl.tensor,
    listed: tl.tensor,
    listed_at: tl.tensor,
    PARTS: tl.constexpr,
    LANES: tl.constexpr,
    PART_ROOM: tl.constexpr,
    ROOM: tl.constexpr,
) -> Any:
    """The lists of a row's parts in one, against the best bound of any of them; else as `scan`."""
    lanes = tl.arange(0, LANES)
    top = float("-inf")
    low = float("-inf")
    fits = True
    for part in range(0, PARTS):
        at = row * PARTS + part
        top = tl.maximum(top, tl.load(tops + at), propagate_nan=tl.PropagateNan.ALL)
        low = tl.maximum(low, tl.load(lows + at))
        fits = fits & (tl.load(sizes + at) <= PART_ROOM)
    low = tl.maximum(low, top)
    cut = cut_of(low, eps)
    size = ROOM + 1
    if fits:
        size = 0
        for part in range(0, PARTS):
            at = row * PARTS + part
            many = tl.load(sizes + at)
            for start in range(0, many, LANES):
                entry = at * PART_ROOM + start + lanes
                x = tl.load(part_lists + entry, mask=start + lanes < many, other=float("-inf"))
                place = tl.load(part_places + entry, mask=start + lanes < many, other=0)
                size = append(x, place, x > cut, size, listed, listed_at, ROOM)
    tl.debug_barrier()
    return top, low, size


@_kernel
def sums(
    source: tl.tensor,
    size: tl.tensor,
    top: tl.tensor,
    c: tl.tensor,
    eps: tl.tensor,
    WIDTH: tl.constexpr,
    MODE: tl.constexpr,
) -> Any:
    """Sums of `p` and `p^(2 - alpha)` over scores."""
    lanes = tl.arange(0, WIDTH)
    F = tl.zeros((WIDTH,), tl.float32)
    G = tl.zeros((WIDTH,), tl.float32)
    for start in range(0, size, WIDTH):
        x = tl.load(source + start + lanes, mask=start + lanes < size, other=float("-inf")).to(tl.float32)
        p, w = weigh(x - top - c, eps, MODE)
        F += p
        G += w
    return tl.sum(F), tl.sum(G)


@_kernel
def solve(
    source: tl.tensor,
    size: tl.tensor,
    top: tl.tensor,
    c: tl.tensor,
    eps: tl.tensor,
    WIDTH: tl.constexpr,
    MODE: tl.constexpr,
    LIMIT: tl.constexpr,
) -> Any:
    """The threshold, relative to the largest score, from a list or from all of a row."""
    taken = 0
    going = True
    while going:
        F, G = sums(source, size, top, c, eps, WIDTH, MODE)
        further = advance(c, F, G, eps, MODE)
        taken += 1
        going = unsettled(F, c, further, eps) & (taken < LIMIT)
        c = further
    return c


@_kernel
def start_of(top: tl.tensor, low: tl.tensor) -> Any:
    """What is subtracted from a row's scores, and its threshold's bound relative to that."""
    top = tl.where(top == float("-inf"), 0.0, top)
    return top, tl.where(low > top, low - top, 0.0)


@_kernel
def write_listed(
    listed: tl.tensor,
    listed_at: tl.tensor,
    size: tl.tensor,
    top: tl.tensor,
    c: tl.tensor,
    eps: tl.tensor,
    target: tl.tensor,
    WIDTH: tl.constexpr,
    MODE: tl.constexpr,
) -> None:
    """A list's probabilities, in their places among zeros."""
    lanes = tl.arange(0, WIDTH)
    F, _unused = sums(listed, size, top, c, eps, WIDTH, MODE)
    scale = 1.0 / tl.where(F == 0.0, 1.0, F)
    for start in range(0, size, WIDTH):
        inside = start + lanes < size
        x = tl.load(listed + start + lanes, mask=inside, other=float("-inf"))
        place = tl.load(listed_at + start + lanes, mask=inside, other=0)
        p, _w = weigh(x - top - c, eps, MODE)
        tl.store(target + place, (p * scale).to(target.dtype.element_ty), mask=inside & (p > 0.0))


@_kernel
def write_all(
    source: tl.tensor,
    d: tl.tensor,
    top: tl.tensor,
    c: tl.tensor,
    eps: tl.tensor,
    target: tl.tensor,
    LANES: tl.constexpr,
    MODE: tl.constexpr,
) -> None:
    """All of a row's probabilities."""
    lanes = tl.arange(0, LANES)
    F, _unused = sums(source, d, top, c, eps, LANES, MODE)
    scale = 1.0 / tl.where(F == 0.0, 1.0, F)
    for tile in range(0, tl.cdiv(d, LANES)):
        column = tile * LANES + lanes
        x = tl.load(source + column, mask=column < d, other=float("-inf")).to(tl.float32)
        p, _w = weigh(x - top - c, eps, MODE)
        tl.store(target + column, (p * scale).to(target.dtype.element_ty), mask=column < d)


@_kernel
def long_map(
    scores: tl.tensor,  # [rows, d]
    probs: tl.tensor,  # [rows, d]
    alpha: tl.tensor,
    number: tl.tensor,
    slots: tl.tensor,  # [programs, DEPTH, LANES]
    places: tl.tensor,
    listed: tl.tensor,  # [programs, ROOM]
    listed_at: tl.tensor,
    tops: tl.tensor,
    lows: tl.tensor,
    sizes: tl.tensor,
    part_lists: tl.tensor,
    part_places: tl.tensor,
    rows: tl.tensor,
    d: tl.tensor,
    PARTS: tl.constexpr,  # programs that have listed the row's scores; 0: it is done here
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    ROOM: tl.constexpr,
    PART_ROOM: tl.constexpr,
    STAGES: tl.constexpr,
    MODE: tl.constexpr,
    ALPHAS: tl.constexpr,
    TINY: tl.constexpr,
    LIMIT: tl.constexpr,
) -> None:
    program = tl.program_id(0)
    slots += program.to(tl.int64) * DEPTH * LANES
    places += program.to(tl.int64) * DEPTH * LANES
    listed += program.to(tl.int64) * ROOM
    listed_at += program.to(tl.int64) * ROOM
    tiles = tl.cdiv(d, LANES)
    row = program.to(tl.int64)
    while row < rows:
        source = scores + row * d
        target = probs + row * d
        eps = eps_of(alpha, number, row, ALPHAS, TINY)
        if PARTS > 0:
            top, low, size = gather_parts(
                row, eps, tops, lows, sizes, part_lists, part_places, listed, listed_at, PARTS, LANES, PART_ROOM, ROOM
            )
        else:
            top, low, size = scan(
                source,
                0,
                tiles,
                d,
                eps,
                slots,
                places,
                listed,
                listed_at,
                target,
                LANES,
                DEPTH,
                ROOM,
                STAGES,
                True,
                MODE,
            )
        top, c = start_of(top, low)
        if (size <= ROOM) & (top == top):
            c = solve(listed, size, top, c, eps, WIDTH, MODE, LIMIT)
            write_listed(listed, listed_at, size, top, c, eps, target, WIDTH, MODE)
        else:
            c = solve(source, d, top, c, eps, LANES, MODE, LIMIT)
            write_all(source, d, top, c, eps, target, LANES, MODE)
        row += tl.num_programs(0)
        tl.debug_barrier()  # the lists are those of the next row now


@_kernel
def part_scan(
    scores: tl.tensor,
    probs: tl.tensor,
    alpha: tl.tensor,
    number: tl.tensor,
    slots: tl.tensor,  # [rows, parts, DEPTH, LANES]
    places: tl.tensor,
    tops: tl.tensor,
    lows: tl.tensor,
    sizes: tl.tensor,
    part_lists: tl.tensor,
    part_places: tl.tensor,
    d: tl.tensor,
    apart: tl.tensor,  # tiles of each part
    LANES: tl.constexpr,
    DEPTH: tl.constexpr,
    PART_ROOM: tl.constexpr,
    STAGES: tl.constexpr,
    ZEROS: tl.constexpr,
    MODE: tl.constexpr,
    ALPHAS: tl.constexpr,
    TINY: tl.constexpr,
) -> None:
    """A program lists what may be in the support of a part of a row: what a part excludes, the row does."""
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    place = row * tl.num_programs(0) + part
    top, low, size = scan(
        scores + row * d,
        part * apart,
        tl.minimum((part + 1) * apart, tl.cdiv(d, LANES)),
        d,
        eps_of(alpha, number, row, ALPHAS, TINY),
        slots + place * DEPTH * LANES,
        places + place * DEPTH * LANES,
        part_lists + place * PART_ROOM,
        part_places + place * PART_ROOM,
        probs + row * d,
        LANES,
        DEPTH,
        PART_ROOM,
        STAGES,
        ZEROS,
        MODE,
    )
    tl.store(tops + place, top)
    tl.store(lows + place, low)
    tl.store(sizes + place, size)


@_kernel
def gradient_listed(
    listed: tl.tensor,
    listed_at: tl.tensor,
    size: tl.tensor,
    upstream: tl.tensor,
    target: tl.tensor,
    eps: tl.tensor,
    WIDTH: tl.constexpr,
    MODE: tl.constexpr,
    NEED_ALPHA: tl.constexpr,
) -> Any:
    """Gradients of what has a probability, in their places among zeros; and alpha's."""
    lanes = tl.arange(0, WIDTH)
    S = tl.zeros((WIDTH,), tl.float32)
    N = tl.zeros((WIDTH,), tl.float32)
    for start in range(0, size, WIDTH):
        inside = start + lanes < size
        p = tl.load(listed + start + lanes, mask=inside, other=0.0)
        place = tl.load(listed_at + start + lanes, mask=inside, other=0)
        g = tl.load(upstream + place, mask=inside, other=0.0).to(tl.float32)
        w, t = slope_of(p, eps, MODE)
        S += w
        N += w * g
    total = tl.sum(S)
    delta = tl.sum(N) / tl.where(total == 0.0, 1.0, total)
    da = tl.zeros((WIDTH,), tl.float32)
    for start in range(0, size, WIDTH):
        inside = start + lanes < size
        p = tl.load(listed + start + lanes, mask=inside, other=0.0)
        place = tl.load(listed_at + start + lanes, mask=inside, other=0)
        g = tl.load(upstream + place, mask=inside, other=0.0).to(tl.float32) - delta
        w, t = slope_of(p, eps, MODE)
        tl.store(target + place, (w * g).to(target.dtype.element_ty), mask=inside)
        if NEED_ALPHA:
            da -= bend_at(t, p, w, eps) * g
    return tl.sum(da)


@_kernel
def gradient_sums(
    source: tl.tensor,
    upstream: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    d: tl.tensor,
    eps: tl.tensor,
    LANES: tl.constexpr,
    MODE: tl.constexpr,
) -> Any:
    """Sums of `p^(2 - alpha)` and its products with the gradient, over tiles."""
    lanes = tl.arange(0, LANES)
    S = tl.zeros((LANES,), tl.float32)
    N = tl.zeros((LANES,), tl.float32)
    for tile in range(first, last):
        column = tile * LANES + lanes
        p = tl.load(source + column, mask=column < d, other=0.0).to(tl.float32)
        g = tl.load(upstream + column, mask=(column < d) & (p != 0.0), other=0.0).to(tl.float32)
        w, _t = slope_of(p, eps, MODE)
        S += w
        N += w * g
    return tl.sum(S), tl.sum(N)


@_kernel
def gradient_all(
    source: tl.tensor,
    upstream: tl.tensor,
    target: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    d: tl.tensor,
    S: tl.tensor,
    N: tl.tensor,
    eps: tl.tensor,
    LANES: tl.constexpr,
    MODE: tl.constexpr,
    NEED_ALPHA: tl.constexpr,
) -> Any:
    """Gradients of all of some tiles, by the sums of the whole row; and alpha's, as far as it is theirs."""
    lanes = tl.arange(0, LANES)
    delta = N / tl.where(S == 0.0, 1.0, S)
    da = tl.zeros((LANES,), tl.float32)
    for tile in range(first, last):
        column = tile * LANES + lanes
        p = tl.load(source + column, mask=column < d, other=0.0).to(tl.float32)
        g = tl.load(upstream + column, mask=(column < d) & (p != 0.0), other=0.0).to(tl.float32) - delta
        w, t = slope_of(p, eps, MODE)
        tl.store(target + column, (w * g).to(target.dtype.element_ty), mask=column < d)
        if NEED_ALPHA:
            da -= bend_at(t, p, w, eps) * g
    return tl.sum(da)


@_kernel
def long_gradient(
    probs: tl.tensor,  # [rows, d]
    grad: tl.tensor,
    scores_grad: tl.tensor,
    alpha_grad: tl.tensor,  # [rows]
    alpha: tl.tensor,
    number: tl.tensor,
    slots: tl.tensor,
    places: tl.tensor,
    listed: tl.tensor,
    listed_at: tl.tensor,
    rows: tl.tensor,
    d: tl.tensor,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    ROOM: tl.constexpr,
    STAGES: tl.constexpr,
    MODE: tl.constexpr,
    ALPHAS: tl.constexpr,
    TINY: tl.constexpr,
    NEED_ALPHA: tl.constexpr,
    IN_PLACE: tl.constexpr,
) -> None:
    program = tl.program_id(0)
    slots += program.to(tl.int64) * DEPTH * LANES
    places += program.to(tl.int64) * DEPTH * LANES
    listed += program.to(tl.int64) * ROOM
    listed_at += program.to(tl.int64) * ROOM
    tiles = tl.cdiv(d, LANES)
    row = program.to(tl.int64)
    while row < rows:
        source = probs + row * d
        upstream = grad + row * d
        target = scores_grad + row * d
        eps = eps_of(alpha, number, row, ALPHAS, TINY)
        largest = tl.zeros((LANES,), tl.float32)
        count = tl.zeros((LANES,), tl.int32)
        largest, count = put_aside(
            source, 0, tiles, d, 0.0, largest, count, slots, places, target, LANES, DEPTH, STAGES, not IN_PLACE
        )
        tl.debug_barrier()
        size = ROOM + 1
        if (tl.max(count) <= DEPTH) & (tl.max(tl.where(largest < float("inf"), 0, 1)) == 0):
            size = squeeze(slots, places, count, 0.0, listed, listed_at, LANES, ROOM)
        tl.debug_barrier()
        da = 0.0
        if size <= ROOM:
            da = gradient_listed(listed, listed_at, size, upstream, target, eps, WIDTH, MODE, NEED_ALPHA)
        else:
            S, N = gradient_sums(source, upstream, 0, tiles, d, eps, LANES, MODE)
            da = gradient_all(source, upstream, target, 0, tiles, d, S, N, eps, LANES, MODE, NEED_ALPHA)
        if NEED_ALPHA:
            tl.store(alpha_grad + row, da)
        row += tl.num_programs(0)
        tl.debug_barrier()


@_kernel
def part_gradient(
    probs: tl.tensor,
    grad: tl.tensor,
    scores_grad: tl.tensor,
    alpha_grad: tl.tensor,  # [rows, parts]
    partial: tl.tensor,  # [2, rows, parts]: sums of w and of w g
    alpha: tl.tensor,
    number: tl.tensor,
    d: tl.tensor,
    apart: tl.tensor,
    PARTS: tl.constexpr,
    PADDED: tl.constexpr,
    LANES: tl.constexpr,
    MODE: tl.constexpr,
    ALPHAS: tl.constexpr,
    TINY: tl.constexpr,
    NEED_ALPHA: tl.constexpr,
    WRITE: tl.constexpr,
) -> None:
    """A part of a row: first its sums, then (WRITE) its gradients by the sums of all parts."""
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    eps = eps_of(alpha, number, row, ALPHAS, TINY)
    source, upstream, target = probs + row * d, grad + row * d, scores_grad + row * d
    first, last = part * apart, tl.minimum((part + 1) * apart, tl.cdiv(d, LANES))
    rest = tl.num_programs(1).to(tl.int64) * PARTS
    if WRITE:
        every = tl.arange(0, PADDED)
        at = partial + row * PARTS + every
        S = tl.sum(tl.load(at, mask=every < PARTS, other=0.0))
        N = tl.sum(tl.load(at + rest, mask=every < PARTS, other=0.0))
        da = gradient_all(source, upstream, target, first, last, d, S, N, eps, LANES, MODE, NEED_ALPHA)
        if NEED_ALPHA:
            tl.store(alpha_grad + row * PARTS + part, da)
    else:
        S, N = gradient_sums(source, upstream, first, last, d, eps, LANES, MODE)
        tl.store(partial + row * PARTS + part, S)
        tl.store(partial + rest + row * PARTS + part, N)
