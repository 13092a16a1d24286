"""The maps in plain PyTorch: any device, any floating dtype, fast by algorithm.

Every function takes rows: `scores` is [rows, d], `alpha` a float or a [rows, 1] tensor. Scores that take no part are
-inf. A row is written as `p = exp_alpha(v - c)` with `v = scores - max(scores)` and
`exp_alpha(u) = [1 + eps u]_+^{1/eps}`, `eps = alpha - 1`, so that alpha = 1 is no special case of the threshold `c`.

Most of a long row can't be in the support. The threshold of any subset of a row is at most the row's own, so the
threshold of a few hundred lane maxima bounds it from below: what lies under the bound is never looked at again.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tsallis.ops.alphas import Alpha
from tsallis.ops.backend import Capabilities

CAPABILITIES = Capabilities((torch.float32, torch.float64, torch.bfloat16, torch.float16), math.inf)
SMALL = 8192  # fewer entries than this: sorting takes fewer operations than Newton steps, and operations are what costs
LONG = 256  # shorter rows are solved whole: compaction would cost more than it saves
DENSE_SHARE = 4  # rows are compacted when at most one entry in this many is a candidate
NEARLY_DENSE = 1.1  # below this alpha nearly every score has a probability
NEWTON_LIMIT = 60
TINY_EPS = 1e-10  # stands for alpha - 1 = 0: log1p(TINY_EPS u) / TINY_EPS is u up to rounding
SERIES_BELOW = 0.5  # |eps log p| below which second-order terms are summed as a series, of so many terms:
SERIES_TERMS = {torch.float64: 15, torch.float32: 9}


class Packed(NamedTuple):
    """The positions of the candidates of compacted rows: the rest of each row has probability zero."""

    position: Tensor  # [n] flat positions in [rows, d]
    slot: Tensor  # [n] flat positions in the table [rows, width]
    width: int

    def gather(self, rows: Tensor, fill: float = 0.0) -> Tensor:
        table = rows.new_full((rows.shape[0], self.width), fill)  # [rows, width]
        table.view(-1)[self.slot] = rows.reshape(-1)[self.position]
        return table

    def scatter(self, table: Tensor, like: Tensor) -> Tensor:
        rows = torch.zeros_like(like, memory_format=torch.contiguous_format)  # [rows, d]
        rows.view(-1)[self.position] = table.reshape(-1)[self.slot]
        return rows


class Status(NamedTuple):
    """PyTorch's operations are always there."""

    available: bool = True
    reason: str = "PyTorch's operations"


def status() -> Status:
    """Tell that PyTorch's operations can be used."""
    return Status()


def usable() -> bool:
    """Tell that PyTorch's operations can be used."""
    return True


def on_device(kind: str) -> bool:
    """Tell that they compute on all devices."""
    return True


def entmax(scores: Tensor, alpha: Alpha) -> tuple[Tensor, Packed | None]:
    """Return probabilities [rows, d], and where the candidates lie if the rows were compacted."""
    if isinstance(alpha, float) and alpha == 1.0:
        return torch.softmax(scores, -1).masked_fill_(scores.amax(-1, keepdim=True) == -torch.inf, 0), None
    if scores.dtype == torch.float32 and _steep(alpha):
        probs, packed = entmax(scores.double(), alpha)
        return probs.float(), packed
    values, top, packed, start = _candidates(scores, alpha)
    probs = _solve(values, alpha, start)[0]
    if packed is None:
        return _exactly_softmax_at_one(probs, scores, alpha), None
    probs = packed.scatter(probs, scores)
    broken = ~(top < torch.inf)
    return (probs.masked_fill_(broken, torch.nan) if broken.any() else probs), packed


def entmax_loss(scores: Tensor, target: Tensor, alpha: Alpha) -> tuple[Tensor, Tensor, Packed | None]:
    """Compute the Fenchel-Young loss of each row against a class [rows] (negative: none), and the probabilities.

    Where the rows were compacted the probabilities are the table [rows, width] that `Packed` places; a row with a NaN
    is all NaN in it.
    """
    if scores.dtype == torch.float32 and _steep(alpha):
        loss, probs, packed = entmax_loss(scores.double(), target, alpha)
        return loss.float(), probs.float(), packed
    if isinstance(alpha, float) and alpha == 1.0:
        top, packed = scores.amax(-1, keepdim=True), None
        values = scores - torch.where(top == -torch.inf, 0, top)
        probs, c = entmax(scores, alpha)[0], values.logsumexp(-1, keepdim=True)
    else:
        values, top, packed, start = _candidates(scores, alpha)
        probs, c = _solve(values, alpha, start)
    # L = sum p (z - z_y) + sum p (c - z) / alpha, both terms taken from the row's maximum: offsets cancel exactly.
    mean = (probs * values.clamp_(min=torch.finfo(values.dtype).min)).sum(-1, keepdim=True)  # 0 * -inf would be NaN
    gold = scores.gather(-1, target.clamp(min=0).unsqueeze(-1))
    loss = ((c - mean) / alpha + mean).clamp(min=0) + (top - gold)
    loss = torch.where((top == -torch.inf) | (target < 0).unsqueeze(-1), 0, loss)
    broken = ~(top < torch.inf)
    if packed is not None and broken.any():
        probs.masked_fill_(broken, torch.nan)
    return loss.masked_fill_(broken & (target >= 0).unsqueeze(-1), torch.nan).squeeze(-1), probs, packed


def pullback(
    probs: Tensor, grad: Tensor, alpha: Alpha, need_alpha: bool, saturates: bool = False
) -> tuple[Tensor, Tensor | None]:
    r"""Return gradients of the scores and of alpha [rows, 1]: `s (g - delta)` and `-sum p psi (g - delta)`.

    `s = p^{2-alpha}` on the support, `delta = (s.g) / sum s`. Made of differentiable operations: its own derivatives
    of every order are right. Under a budget an entry at 1 saturates: it stays there whatever its score does.
    """
    inside = _interior(probs, saturates)
    s = slope(probs, inside, alpha)
    total = s.sum(-1, keepdim=True)
    some = total > 0
    delta = (s * grad).sum(-1, keepdim=True) / torch.where(some, total, 1)
    centred = grad - delta
    if not need_alpha:
        return s * centred, None
    return s * centred, -(curvature(probs, inside, alpha) * centred).sum(-1, keepdim=True)


def pullback_in_place(probs: Tensor, grad: Tensor, alpha: Alpha) -> Tensor:
    """Return the gradient of the scores alone, for the common alphas, in fewer passes than `pullback`."""
    if isinstance(alpha, float) and alpha == 1.0:
        weighted = probs * grad
        return weighted.addcmul_(probs, weighted.sum(-1, keepdim=True), value=-1)
    if isinstance(alpha, float) and alpha in (1.5, 2.0):
        s = probs.sqrt() if alpha == 1.5 else probs.ceil()
        total = s.sum(-1, keepdim=True).clamp_(min=torch.finfo(s.dtype).tiny)
        return s.mul_(grad - (s * grad).sum(-1, keepdim=True).div_(total))
    return pullback(probs, grad, alpha, False)[0]


def pushforward(
    probs: Tensor, tangent: Tensor | None, alpha: Alpha, alpha_tangent: Tensor | None, saturates: bool = False
) -> Tensor:
    """Return the derivative of the probabilities along a tangent of the scores and one of alpha [rows, 1]."""
    inside = _interior(probs, saturates)
    s = slope(probs, inside, alpha)
    total = s.sum(-1, keepdim=True)
    share = s / torch.where(total > 0, total, 1)
    result = torch.zeros_like(probs)
    if tangent is not None:
        result = result + s * (tangent - (share * tangent).sum(-1, keepdim=True))
    if alpha_tangent is not None:
        bend = curvature(probs, inside, alpha)
        result = result + (share * bend.sum(-1, keepdim=True) - bend) * alpha_tangent
    return result


def _interior(probs: Tensor, saturates: bool) -> Tensor:
    """Return a mask of the probabilities that move with their scores; NaN is among them, to reach the gradients."""
    return (probs != 0) & (probs != 1) if saturates else probs != 0


def slope(probs: Tensor, inside: Tensor, alpha: Alpha) -> Tensor:
    r"""`p^{2-alpha}` on the support and 0 off it: the inverse curvature of the entropy."""
    if isinstance(alpha, float) and alpha == 2.0:
        return torch.where(inside, probs.ceil(), 0)
    safe = torch.where(inside, probs, 1)
    power = safe.sqrt() if isinstance(alpha, float) and alpha == 1.5 else safe ** (2 - alpha)
    return torch.where(inside, power, 0)


def curvature(probs: Tensor, inside: Tensor, alpha: Alpha) -> Tensor:
    r"""`p log^2 p phi(eps log p)` with `phi(x) = (e^-x - 1 + x) / x^2`: minus dp/d alpha at a fixed threshold."""
    eps = alpha - 1
    log_p = torch.where(inside, probs, 1).log()
    x = eps * log_p
    near_zero = x.abs() < SERIES_BELOW
    small = probs * log_p * log_p * _series(torch.where(near_zero, x, 0), lambda n: (-1) ** n / math.factorial(n + 2))
    # p phi(x) written with p e^-x = p^{2-alpha}, which doesn't overflow where p is tiny.
    large = (torch.exp(torch.where(near_zero, 0, log_p - x)) - probs + probs * x) / torch.where(near_zero, 1, eps * eps)
    return torch.where(inside, torch.where(near_zero, small, large), 0)


def entropy(probs: Tensor, alpha: Alpha) -> Tensor:
    r"""Compute Tsallis entropy [rows, 1], without a singularity at alpha = 1.

    `-(1/alpha) sum p log(p) (e^x - 1)/x` with `x = eps log p`.
    """
    inside = probs != 0
    log_p = torch.where(inside, probs, 1).log()
    return -(probs * log_p * _expm1_over((alpha - 1) * log_p)).sum(-1, keepdim=True) / alpha


def entropy_alpha_gradient(probs: Tensor, alpha: Alpha) -> Tensor:
    r"""`dH_alpha(p)/d alpha` at fixed p [rows, 1], without a singularity at alpha = 1."""
    inside = probs != 0
    log_p = torch.where(inside, probs, 1).log()
    x = (alpha - 1) * log_p
    near_zero = x.abs() < SERIES_BELOW
    far = torch.where(near_zero, 1, x)
    # ((x-1) e^x + 1) / x^2, the derivative of (e^x - 1)/x
    derivative = torch.where(
        near_zero,
        _series(torch.where(near_zero, x, 0), lambda n: (n + 1) / math.factorial(n + 2)),
        (far * far.exp() - torch.expm1(far)) / (far * far),
    )
    first = (probs * log_p * _expm1_over(x)).sum(-1, keepdim=True)
    second = (probs * log_p * log_p * derivative).sum(-1, keepdim=True)
    return first / (alpha * alpha) - second / alpha


def alpha_relu(scores: Tensor, eps: float, tau: float | Tensor) -> Tensor:
    """`[eps z - tau]_+^{1/eps}` of every score; NaN stays."""
    return _relu_power(_relu_margin(scores, eps, tau), eps)


def alpha_relu_loss(scores: Tensor, target: Tensor, eps: float, tau: float | Tensor) -> tuple[Tensor, Tensor]:
    """`sum r u / alpha + 1/(alpha eps) + tau/eps - z_y` [rows], without a difference of large numbers; and r."""
    u = _relu_margin(scores, eps, tau)
    values = _relu_power(u, eps)
    total = (values * u.clamp(min=0)).sum(-1) / (1 + eps) + 1 / ((1 + eps) * eps)
    shift = (tau.to(scores).squeeze() if isinstance(tau, Tensor) else tau) / eps
    gold = scores.gather(-1, target.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return torch.where(target >= 0, total + shift - gold, 0), values


def _relu_margin(scores: Tensor, eps: float, tau: float | Tensor) -> Tensor:
    return eps * scores - (tau.to(scores) if isinstance(tau, Tensor) else tau)


def _relu_power(u: Tensor, eps: float) -> Tensor:
    if eps == 0.5:
        return u.relu().square()
    if eps == 1.0:
        return u.relu()
    outside = u <= 0  # a NaN stays inside, and NaN
    return torch.where(outside, 0, torch.where(outside, 1, u) ** (1 / eps))


def budgeted_entmax(scores: Tensor, alpha: Alpha, budget: float) -> Tensor:
    r"""`min(1, exp_alpha(z - c))` with `c` such that each row sums to `budget`, or all 1 where fewer scores take part.

    The mass is not convex in the threshold. The k-th largest score, k = ceil(budget), brackets it: at
    `1 + eps (z_k - c) = 1` at least k entries are full, at `0` fewer than k are positive.
    """
    exact = scores.double()  # bisection on a steep function: float32 scores deserve float64 thresholds
    count = min(math.ceil(budget), scores.shape[-1])
    pivot = exact.topk(count, -1).values[..., -1:]
    filled = pivot == -torch.inf  # no more scores take part than the budget fills
    values = exact - torch.where(filled, 0, pivot)
    eps = torch.as_tensor(alpha, dtype=exact.dtype, device=exact.device).sub(1).clamp(min=TINY_EPS)
    # exp_alpha(u) <= exp(u): at log(d / (budget - k + 1)) the d - k + 1 entries below the k-th can't make up the rest.
    far = math.log(scores.shape[-1]) - math.log(budget - count + 1) if budget < scores.shape[-1] else 1.0
    low = torch.zeros_like(pivot)
    high = (1 / eps).clamp(max=far).expand_as(low)
    for _ in range(64):
        middle = (low + high) / 2
        above = _exp_alpha(values - middle, eps).clamp_(max=1).sum(-1, keepdim=True) > budget
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    probs = _exp_alpha(values - (low + high) / 2, eps).clamp_(max=1)
    probs = torch.where(filled, (scores > -torch.inf).to(probs.dtype), probs)
    return probs.masked_fill(scores.isnan().any(-1, keepdim=True), torch.nan).to(scores.dtype)


def _exp_alpha(u: Tensor, eps: Tensor) -> Tensor:
    return (u * eps).clamp_(min=-1).log1p_().div_(eps).exp_()


def _candidates(scores: Tensor, alpha: Alpha) -> tuple[Tensor, Tensor, Packed | None, Tensor | None]:
    """Scores less their row's maximum: of whole rows, or of the entries that may be in the support.

    With them the maxima, where the entries lie, and a lower bound of the threshold to start from.
    """
    rows, d = scores.shape
    least = alpha if isinstance(alpha, float) else (float(alpha.amin()) if d >= LONG else 1.0)
    if d < LONG or least < NEARLY_DENSE or rows == 0:
        return _whole(scores, scores.amax(-1, keepdim=True), None)
    lanes = 256 if d >= 8192 else 64
    blocks = d // lanes
    maxima = scores[:, : blocks * lanes].unflatten(-1, (blocks, lanes)).amax(1)  # [rows, lanes]
    if blocks * lanes < d:
        maxima = torch.cat([maxima, scores[:, blocks * lanes :].amax(-1, keepdim=True)], -1)
    top = maxima.amax(-1, keepdim=True)
    start = _solve(maxima - torch.where(top == -torch.inf, 0, top), alpha)[1]
    bound = start - 1 / (alpha - 1)
    # Rounding: of the bound itself, and of its sum with a maximum that may be large.
    slack = 1e-5 + 4 * torch.finfo(scores.dtype).eps * top.abs()
    keep = scores > top + bound - slack
    count = keep.view(torch.int8).sum(-1, dtype=torch.int32).long()
    width = max(int(count.amax()), 1)
    if width * DENSE_SHARE > d:
        return _whole(scores, top, start)
    position = keep.view(-1).nonzero().squeeze(-1)
    row = torch.arange(rows, device=scores.device).repeat_interleave(count, output_size=position.numel())
    first = count.cumsum(0) - count
    slot = row * width + torch.arange(position.numel(), device=scores.device) - first[row]
    packed = Packed(position, slot, width)
    return packed.gather(scores, -torch.inf) - torch.where(top == -torch.inf, 0, top), top, packed, start


def _whole(scores: Tensor, top: Tensor, start: Tensor | None) -> tuple[Tensor, Tensor, None, Tensor | None]:
    return scores - torch.where(top == -torch.inf, 0, top), top, None, start


def _steep(alpha: Alpha) -> bool:
    """Above 2 the map is so steep near zero probabilities that the rounding of float32 differences shows."""
    return alpha > 2 if isinstance(alpha, float) else bool((alpha > 2).any())


def _exactly_softmax_at_one(probs: Tensor, scores: Tensor, alpha: Alpha) -> Tensor:
    if isinstance(alpha, Tensor):
        ones = (alpha == 1).squeeze(-1)
        if ones.any():
            probs[ones] = entmax(scores[ones], 1.0)[0]
    return probs


def _solve(values: Tensor, alpha: Alpha, start: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return probabilities of scores whose maximum is 0, and the threshold c [rows, 1]. Rows of -inf give zeros.

    `start` is a lower bound of c, if one is known.
    """
    start = torch.zeros_like(values[:, :1]) if start is None else start
    if isinstance(alpha, float):
        if alpha == 2.0:
            return _solve_two(values, start)
        if alpha == 1.5:
            return _solve_three_halves(values, start)
        return _solve_convex(values, alpha, start) if alpha <= 2 else _solve_bracketed(values, alpha)
    steep = (alpha > 2).squeeze(-1)
    probs, c = _solve_convex(values, alpha.clamp(max=2), start)
    if steep.any():
        probs[steep], c[steep] = _solve_bracketed(values[steep], alpha[steep])
    return probs, c


def _tolerance(values: Tensor, quadratic: bool) -> float:
    """Return how far a row's sum may be from 1 before the last Newton step, which squares it where all is smooth."""
    eps = torch.finfo(values.dtype).eps
    return math.sqrt(eps) / 4 if quadratic else 8 * eps


def _normalised(probs: Tensor, mass: Tensor) -> Tensor:
    return probs.div_(mass.clamp_(min=0.5))  # a row that takes no part has mass 0 and stays 0


def _solve_two(x: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    if x.numel() < SMALL:
        # The thresholds of the largest k, k = 1, 2, ...: they rise up to the row's own and fall from there.
        best = x.clamp(min=-1).sort(-1, descending=True).values
        tau = best.cumsum(-1).sub_(1).div_(_counting(best)).amax(-1, keepdim=True)
        u = (x - tau).clamp_(min=0)
        return _normalised(u, u.sum(-1, keepdim=True)), 1 + tau
    tau = start - 1
    tolerance = _tolerance(x, quadratic=False)
    for _ in range(NEWTON_LIMIT):
        u = (x - tau).clamp_(min=0)
        size = (u > 0).to(x.dtype).sum(-1, keepdim=True).clamp_(min=1)
        excess = u.sum(-1, keepdim=True) - 1
        # The threshold of the current set, exactly; entries only leave it, so it ends.
        tau = tau + excess.clamp(min=-0.5) / size
        if not bool((excess > tolerance).any()):
            break
    u = (x - tau).clamp_(min=0)
    return _normalised(u, u.sum(-1, keepdim=True)), 1 + tau


def _solve_three_halves(values: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    x = values * 0.5
    if x.numel() < SMALL:
        return _solve_three_halves_sorted(x)
    tau = start / 2 - 1
    tolerance = _tolerance(x, quadratic=True)
    for _ in range(NEWTON_LIMIT):
        u = (x - tau).clamp_(min=0)
        total = u.sum(-1, keepdim=True)
        norm = u.square_().sum(-1, keepdim=True).sqrt_()
        # Newton on the 2-norm of u, which is convex and nearly linear in tau.
        tau = tau + norm * (norm - 1) / total.clamp(min=torch.finfo(x.dtype).tiny)
        if not bool((((norm - 1).abs() > tolerance) & (total > 0)).any()):
            break
    p = (x - tau).clamp_(min=0).square_()
    return _normalised(p, p.sum(-1, keepdim=True)), 2 * (1 + tau)


def _solve_three_halves_sorted(x: Tensor) -> tuple[Tensor, Tensor]:
    best = x.clamp(min=-1).sort(-1, descending=True).values
    k = _counting(best)
    mean = best.cumsum(-1).div_(k)
    spread = best.square().cumsum_(-1).addcmul_(k * mean, mean, value=-1)
    taus = mean.sub_(((1 - spread) / k).clamp_(min=0).sqrt_())
    size = (taus < best).sum(-1, keepdim=True).clamp_(min=1)
    tau = taus.gather(-1, size - 1)
    u = (x - tau).clamp_(min=0)
    norm = u.square().sum(-1, keepdim=True).sqrt_()
    # A spread is a difference of sums: one Newton step takes its rounding back.
    tau = tau + norm * (norm - 1) / u.sum(-1, keepdim=True).clamp_(min=torch.finfo(x.dtype).tiny)
    p = (x - tau).clamp_(min=0).square_()
    return _normalised(p, p.sum(-1, keepdim=True)), 2 * (1 + tau)


def _counting(rows: Tensor) -> Tensor:
    return torch.arange(1, rows.shape[-1] + 1, dtype=rows.dtype, device=rows.device)


def _solve_convex(values: Tensor, alpha: Alpha, start: Tensor) -> tuple[Tensor, Tensor]:
    eps: Alpha = max(alpha - 1, TINY_EPS) if isinstance(alpha, float) else (alpha - 1).clamp(min=TINY_EPS)
    smooth = alpha <= 1.5 if isinstance(alpha, float) else bool((alpha <= 1.5).all())
    tolerance = _tolerance(values, smooth)
    tiny = torch.finfo(values.dtype).tiny
    c = start
    for _ in range(NEWTON_LIMIT):
        u = ((values - c) * eps).clamp_(min=-1)
        p = u.log1p().div_(eps).exp_()
        mass = p.sum(-1, keepdim=True)
        weight = p.div_(u.add_(1).clamp_(min=tiny)).sum(-1, keepdim=True)
        log_mass = mass.clamp(min=tiny).log()
        # norm-Newton: F (1 - F^-eps) / (eps G), which is log F at alpha = 1
        c = c - mass * torch.expm1(-eps * log_mass) / (eps * weight.clamp(min=tiny))
        if not bool(((log_mass.abs() > tolerance) & (mass > 0)).any()):
            break
    p = ((values - c) * eps).clamp_(min=-1).log1p_().div_(eps).exp_()
    return _normalised(p, p.sum(-1, keepdim=True)), c


def _solve_bracketed(values: Tensor, alpha: Alpha) -> tuple[Tensor, Tensor]:
    """alpha > 2: the mass is not convex in the threshold, but falls with -log of the largest probability."""
    eps = alpha - 1
    low = torch.zeros_like(values[:, :1])
    high = torch.full_like(low, math.log(values.shape[-1]))
    scaled = values * eps
    for _ in range(60 if values.dtype == torch.float64 else 32):
        middle = (low + high) / 2
        mass = (scaled + torch.exp(-eps * middle)).clamp_(min=0).pow_(1 / eps).sum(-1, keepdim=True)
        above = mass > 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    p = (scaled + torch.exp(-eps * low)).clamp_(min=0).pow_(1 / eps)
    return _normalised(p, p.sum(-1, keepdim=True)), -torch.expm1(-eps * low) / eps


def _series(x: Tensor, coefficient: object) -> Tensor:
    total = torch.zeros_like(x)
    for n in reversed(range(SERIES_TERMS.get(x.dtype, 9))):
        total = total * x + coefficient(n)  # type: ignore[operator]
    return total


def _expm1_over(x: Tensor) -> Tensor:
    """`(e^x - 1) / x`, 1 at 0, differentiable there."""
    near_zero = x.abs() < SERIES_BELOW
    far = torch.where(near_zero, 1, x)
    return torch.where(
        near_zero, _series(torch.where(near_zero, x, 0), lambda n: 1 / math.factorial(n + 1)), torch.expm1(far) / far
    )
