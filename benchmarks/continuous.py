"""Compare two-dimensional continuous attention with the polar loop of the paper, in one process.

    python benchmarks/continuous.py --out benchmarks/results/continuous-cpu.csv

Each query has a truncated paraboloid; the basis functions are Gaussians on a grid. Forward and backward are measured,
from canonical parameters to expectations. The loop visits 100 angles one by one, for all queries and functions at once,
with the inner integral in closed form (Martins et al. 2020, eq. 57 to 60). A second loop computes the Jacobians (eq. 61
to 81). The loop uses a recursion for moments, which is faster than the printed formulas, and the common circular
covariance of the functions. Errors are relative to the largest value of a basis function; the reference is a rule of
192 x 384 nodes in float64. Quote ratios, not milliseconds.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

import torch
from common import Candidate, Row, announce, interleave, machine, table, verdict, write
from torch import Tensor

from tsallis.continuous import GaussianBasis, TruncatedParaboloid, image_basis
from tsallis.continuous.bases import Basis, ProductBasis
from tsallis.continuous.quadrature import beta_disk

QUERIES = ["64x8"]  # batch x queries
VARIANCES = [0.01, 0.001]
COLUMNS = ("shape", "num_basis", "variance", "operation", "owner", "both_ms", "loop_ratio", "error", "grad_error")
ANGLES = 100


def ellipses(theta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the mean, the scale matrix, its Cholesky factor, and the squared radius -2 lambda of the support."""
    scale = torch.linalg.inv(-2 * theta[:, 2:].unflatten(-1, (2, 2)))
    mean = (scale @ theta[:, :2, None]).squeeze(-1)
    radius = 2 * (math.pi * torch.linalg.det(scale).sqrt()) ** -0.5  # eq. 55
    return mean, scale, torch.linalg.cholesky(scale), radius


class PolarLoop(torch.autograd.Function):
    """The expectations [queries, functions], computed as in the paper."""

    @staticmethod
    def moments(theta: Tensor, centres: Tensor, variance: float, angle: float, top: int) -> tuple[Tensor, list[Tensor]]:
        """Return an angle's direction, and the weighted integrals of r^0 to r^top times the normal densities."""
        mean, _, root, radius = ellipses(theta)
        factor = radius.sqrt()[:, None, None] * root
        a = torch.tensor([math.cos(angle), math.sin(angle)], dtype=theta.dtype)
        direction = factor @ a  # [queries, 2]
        apart = centres - mean[:, None]  # [queries, functions, 2]
        precision = direction.square().sum(-1, keepdim=True) / variance  # 1 / sigma^2
        std = precision.rsqrt()
        r0 = (apart @ direction[..., None]).squeeze(-1) / variance / precision
        rest = apart.square().sum(-1) / variance - r0.square() * precision
        weight = std / (math.sqrt(2 * math.pi) * variance) * torch.exp(-rest / 2)
        v, u = (1 - r0) / std, -r0 / std
        mass = (torch.erf(v / math.sqrt(2)) - torch.erf(u / math.sqrt(2))) / 2
        at_v, at_u = (torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi) for z in (v, u))
        result = [mass, r0 * mass + std * (at_u - at_v)]
        for k in range(2, top + 1):
            result.append(r0 * result[-1] + (k - 1) * std.square() * result[-2] - std * at_v)
        return direction, [weight * m for m in result]

    @staticmethod
    def forward(ctx: Any, theta: Tensor, centres: Tensor, variance: float) -> Tensor:
        ctx.save_for_backward(theta, centres)
        ctx.variance = variance
        total = theta.new_zeros(len(theta), len(centres))
        for k in range(ANGLES):
            _, m = PolarLoop.moments(theta, centres, variance, 2 * math.pi * k / ANGLES, 3)
            total += m[1] - m[3]
        # -lambda times the area of the unit disk's image is 2 / pi
        return total * (2 / math.pi * 2 * math.pi / ANGLES)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        theta, centres = ctx.saved_tensors
        (upstream,) = grads
        mean, scale, root, radius = ellipses(theta)
        det = radius * root.diagonal(dim1=-2, dim2=-1).prod(-1)
        mean = mean[:, None]  # [queries, 1, 2]
        outer = mean[..., :, None] * mean[..., None, :]
        uniform = outer + scale[:, None] * (radius / 4)[:, None, None, None]  # eq. 64
        first = theta.new_zeros(len(theta), len(centres), 2)  # eq. 61
        second = theta.new_zeros(len(theta), len(centres), 2, 2)  # eq. 62
        for k in range(ANGLES):
            direction, m = PolarLoop.moments(theta, centres, ctx.variance, 2 * math.pi * k / ANGLES, 3)
            d = direction[:, None]
            m1, m2, m3 = (x[..., None] for x in m[1:])
            first += d * m2  # eq. 69, less the mean times eq. 71
            cross = d[..., :, None] * mean[..., None, :]
            second += d[..., :, None] * d[..., None, :] * m3[..., None] + (cross + cross.mT) * m2[..., None]
            second += (outer - uniform) * m1[..., None]  # eq. 77, and eq. 64 times eq. 71
        jacobian = torch.cat([first, second.flatten(2)], -1) * (2 * math.pi / ANGLES * det)[:, None, None]
        return (upstream[:, None] @ jacobian).squeeze(1), None, None


def scores(queries: int, seed: int) -> Tensor:
    """Return canonical parameters [queries, 6] of random ellipses in the unit square, with .15 to .7 long supports."""
    g = torch.Generator().manual_seed(seed)
    mean = torch.rand(queries, 2, generator=g, dtype=torch.float64)
    std = torch.rand(queries, 2, generator=g, dtype=torch.float64) * 0.22 + 0.06
    angle = torch.rand(queries, generator=g, dtype=torch.float64) * math.pi
    c, s = angle.cos(), angle.sin()
    turn = torch.stack([torch.stack([c, -s], -1), torch.stack([s, c], -1)], -2)
    cov = turn @ torch.diag_embed(std.square()) @ turn.mT
    return TruncatedParaboloid(mean, cov).theta.float()


def ours(basis: Basis) -> Any:
    def expect(theta: Tensor) -> Tensor:
        return TruncatedParaboloid.from_scores(theta, validate_args=False).expect(basis)

    return expect


def exact(theta: Tensor, basis: ProductBasis, upstream: Tensor) -> tuple[Tensor, Tensor]:
    """Compute expectations and gradients in float64, in small batches of queries."""
    rule = beta_disk(192, 384, 2.0)
    values, grads = [], []
    for some, up in zip(theta.double().split(16), upstream.double().split(16), strict=True):
        leaf = some.clone().requires_grad_()
        density = TruncatedParaboloid.from_scores(leaf)
        t = density.mean[:, None] + rule.nodes @ density.factor.mT
        value = basis.weighted_sum(rule.weights, *t.unbind(-1))
        grads.append(torch.autograd.grad(value, leaf, up)[0])
        values.append(value.detach())
    return torch.cat(values), torch.cat(grads)


def measure(shape: str, variance: float, arguments: Any) -> list[Row]:
    queries = math.prod(int(n) for n in shape.split("x"))
    theta = scores(queries, arguments.seed)
    grid = image_basis(variance=variance)
    gaussians = grid.gaussians(theta)
    assert gaussians is not None
    centres = gaussians[0]
    scattered = GaussianBasis(centres, variance)  # same functions, without the grid structure
    upstream = torch.randn(queries, len(centres), generator=torch.Generator().manual_seed(arguments.seed))

    def loop(theta: Tensor) -> Tensor:
        result: Tensor = PolarLoop.apply(theta, centres, variance)
        return result

    inputs: dict[str, Any] = {"leaves": (theta,), "upstream": upstream, "alpha": 2.0}
    candidates = [
        Candidate("polar loop", "paper", loop, few=True, **inputs),
        Candidate("grid", "tsallis", ours(grid), **inputs),
        Candidate("scattered", "tsallis", ours(scattered), **inputs),
    ]
    interleave(candidates, arguments.rounds, min(arguments.few, arguments.rounds), arguments.seed)
    value, grad = exact(theta, grid, upstream)
    peak = 1 / (2 * math.pi * variance)
    rows = []
    for candidate in candidates:
        leaf = theta.clone().requires_grad_()
        result = candidate.call(leaf)
        (to_theta,) = torch.autograd.grad(result, leaf, upstream)
        forward, both = candidate.medians()
        rows.append(
            {
                "shape": shape,
                "num_basis": len(centres),
                "variance": variance,
                "operation": candidate.operation,
                "owner": candidate.owner,
                "forward_ms": forward * 1e3,
                "both_ms": both * 1e3,
                "loop_ratio": candidates[0].medians()[1] / both,
                "error": float((result.detach() - value).abs().max()) / peak,
                "grad_error": float((to_theta - grad).abs().max() / grad.abs().max()),
                "rounds": len(candidate.both),
                "backend": "torch" if candidate.owner == "tsallis" else "",
                **machine(),
            }
        )
    return rows


def verdicts(measured: list[Row]) -> list[str]:
    def pick(column: str, operation: str) -> dict[str, float]:
        return {f"{r['shape']} variance={r['variance']}": r[column] for r in measured if r["operation"] == operation}

    lines = []
    for operation in ("grid", "scattered"):
        lines += verdict(f"the polar loop's time / ours, {operation}", 20, pick("loop_ratio", operation), True)
        lines += verdict(f"error times 1e6, {operation}", 10, {k: 1e6 * v for k, v in pick("error", operation).items()})
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", nargs="+", default=QUERIES, metavar="SHAPE", help="shapes (default: %(default)s)")
    parser.add_argument(
        "--variances", nargs="+", type=float, default=VARIANCES, help="basis function variances (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=15, help="number of rounds (default: %(default)s)")
    parser.add_argument("--few", type=int, default=5, help="number of rounds of the loop (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="output file (CSV)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    announce()
    measured: list[Row] = []
    for shape in arguments.queries:
        for variance in arguments.variances:
            print(shape, f"variance={variance}", file=sys.stderr)
            measured += measure(shape, variance, arguments)
            write(arguments.out, measured)
    print(table(measured, COLUMNS))
    print("", *verdicts(measured), sep="\n")


if __name__ == "__main__":
    main()
