"""Log-probabilities of entmax and alpha-ReLU to 45 digits, as references for float32 and float64."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from decimal import Decimal, localcontext

DIGITS, BISECTIONS = 45, 130
EDGE = Decimal(2) ** -46  # scores closer to the threshold than this count as equal to it


def exact_logs(scores: Sequence[float], alpha: float, tau: float | None = None) -> list[float]:
    """Compute the log-probabilities of a row of scores by bisection for the threshold; -inf outside the support."""
    return list(_exact_logs(tuple(scores), alpha, tau))


@functools.cache
def _exact_logs(scores: tuple[float, ...], alpha: float, tau: float | None) -> list[float]:
    with localcontext() as context:
        context.prec = DIGITS
        eps = Decimal(alpha) - 1
        if tau is not None:
            bases = [eps * Decimal(z) - Decimal(tau) if z > -math.inf else Decimal(-1) for z in scores]
            return [float(u.ln() / eps) if u > 0 else -math.inf for u in bases]
        top = max(scores)
        if top == -math.inf:
            return [-math.inf] * len(scores)
        below = [Decimal(z) - Decimal(top) if z > -math.inf else None for z in scores]
        if eps == 0:
            total = sum(x.exp() for x in below if x is not None).ln()
            return [-math.inf if x is None else float(x - total) for x in below]
        low, high = Decimal(0), min(1 / eps, Decimal(len(scores)).ln() + 1)
        near = [x for x in below if x is not None and 1 + eps * x > 0]  # other scores are never in the support
        for _ in range(BISECTIONS):
            c = (low + high) / 2
            bases = [1 + eps * (x - c) for x in near]
            mass = sum((u.ln() / eps).exp() for u in bases if u > 0)
            low, high = (c, high) if mass >= 1 else (low, c)
        bases = [Decimal(0) if x is None else 1 + eps * (x - low) for x in below]
        return [float(u.ln() / eps) if u > EDGE else -math.inf for u in bases]
