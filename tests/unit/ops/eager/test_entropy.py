"""Tests of Tsallis entropy and its derivative in alpha against 50-digit formulas, with and without the series."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import pytest
import torch

from tsallis.ops.eager.entropy import SERIES_BELOW, entropy, entropy_alpha_gradient

PROB = 0.25
# Values of `x = (alpha - 1) log p`: 0, inside the range of the series, at its bound, just outside and far outside.
# For x of at least 1.39, alpha would be negative.
NEAR = [1e-9, 1e-3, 0.1, 0.3, 0.499, SERIES_BELOW, 0.501, 0.7, 1.0, 1.38]
EXPONENTS = [0.0, *NEAR, *(-x for x in NEAR), -3.0, -10.0]


def exact(alpha: float) -> tuple[float, float]:
    """Return the contribution of the probability `PROB` to the entropy, and its derivative in alpha."""
    with localcontext() as context:
        context.prec = 50
        p, a = Decimal(PROB), Decimal(alpha)
        log_p = p.ln()
        x = (a - 1) * log_p
        if x == 0:
            ratio, derivative = Decimal(1), Decimal(1) / 2
        else:
            ratio, derivative = (x.exp() - 1) / x, ((x - 1) * x.exp() + 1) / (x * x)
        value = -p * log_p * ratio / a
        slope = p * log_p * ratio / (a * a) - p * log_p * log_p * derivative / a
        return float(value), float(slope)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_entropy_and_its_alpha_gradient_have_full_precision(dtype: torch.dtype) -> None:
    probs = torch.tensor([PROB, 0.0], dtype=dtype).expand(len(EXPONENTS), 2)
    alphas = (1 + torch.tensor(EXPONENTS, dtype=torch.float64) / math.log(PROB)).to(dtype).unsqueeze(1)
    expected = torch.tensor([exact(float(alpha)) for alpha in alphas], dtype=torch.float64)
    few = 16 * torch.finfo(dtype).eps
    for ours, theirs, limit in (
        (entropy(probs, alphas), expected[:, 0], few),
        (entropy_alpha_gradient(probs, alphas), expected[:, 1], 4 * few),
    ):
        torch.testing.assert_close(ours.squeeze(1).double(), theirs, rtol=limit, atol=0)
