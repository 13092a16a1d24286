"""Compare the results of an installed wheel with plain formulas. `python tests/wheel.py [--pure]`.

It needs only the wheel and torch. The build runs it in an environment with the new wheel.
"""

from __future__ import annotations

import argparse
import platform
import sys
import warnings
from pathlib import Path

import torch
from torch import Tensor

import tsallis
from tsallis.ops import cpu


def bisected(scores: Tensor, alpha: float) -> Tensor:
    """Compute alpha-entmax of rows by a hundred bisections of the threshold, in float64."""
    scores = scores.double()
    if alpha == 1:
        return scores.softmax(-1)
    z = (alpha - 1) * (scores - scores.amax(-1, keepdim=True))
    low, high = torch.full_like(z[..., :1], -1.0), torch.zeros_like(z[..., :1])
    for _ in range(100):
        tau = (low + high) / 2
        large = (z - tau).clamp(min=0).pow(1 / (alpha - 1)).sum(-1, keepdim=True) >= 1
        low, high = torch.where(large, tau, low), torch.where(large, high, tau)
    return (z - low).clamp(min=0).pow(1 / (alpha - 1))


def check(name: str, result: Tensor, expected: Tensor, limit: float) -> None:
    error = float((result.double() - expected.double()).abs().max())
    if not error <= limit:
        sys.exit(f"{name}: off by {error:.2e}, and {limit:.0e} is allowed")
    print(f"{name}: off by {error:.1e}")


def attention(query: Tensor, key: Tensor, value: Tensor, alpha: float) -> Tensor:
    scores = query.double() @ key.double().mT / query.shape[-1] ** 0.5
    return bisected(scores, alpha) @ value.double()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pure", action="store_true", help="the wheel has no kernel")
    pure = parser.parse_args().pure
    source = Path(__file__).resolve().parents[1] / "src"
    if source in Path(tsallis.__file__).resolve().parents:
        sys.exit(f"tsallis comes from {source}, not from a wheel")
    status = cpu.status()
    print(f"tsallis {tsallis.__version__}, torch {torch.__version__}, Python {platform.python_version()}, {status}")
    if status.available == pure:
        sys.exit("there is a kernel in a pure wheel" if pure else f"no kernel: {status.reason}")
    if pure:
        warnings.simplefilter("ignore")
    torch.manual_seed(0)
    scores = 3 * torch.randn(7, 131)
    for alpha in (1, 1.2, 1.5, 2):
        check(f"entmax {alpha}", tsallis.entmax(scores, alpha), bisected(scores, alpha), 1e-6)
    own = scores.clone().requires_grad_()
    tsallis.entmax_loss(own, torch.arange(7), alpha=1.5, reduction="sum").backward()
    assert own.grad is not None
    target = torch.nn.functional.one_hot(torch.arange(7), 131)
    check("gradient of a loss", own.grad, bisected(scores, 1.5) - target, 1e-6)
    query, key, value = (torch.randn(2, 3, n, 16) for n in (33, 70, 70))
    for alpha in (1, 1.5, 2):
        out = tsallis.entmax_attention(query, key, value, alpha=alpha)
        check(f"attention {alpha}", out, attention(query, key, value, alpha), 1e-5)


if __name__ == "__main__":
    main()
