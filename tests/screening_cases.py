"""Compare attention that scans keys in 8 bits with exact scores in float64, on random cases.

python tests/screening_cases.py [--cases 100000] [--seed 0]
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from typing import NamedTuple

import torch
from torch import Tensor

import tsallis
from tsallis.ops.arguments import AttentionArgs
from tsallis.ops.cpu import screening

KINDS = (
    *("plain", "norms", "outliers", "ties", "mean", "tiny", "huge"),
    *("zero query", "sparse", "near a key", "bfloat16", "clusters"),
)
ALPHAS = (1.5, 1.5, 2.0, 1.05, 1.1, 1.25, 4 / 3, 1.75)
SIZES = (1, 2, 3, 8, 17, 32, 64, 100, 128)
UNIT = 2.0**-24
NEGLIGIBLE = 2e-7  # the kernels for entmax of float32 may round smaller weights to zero


class Case(NamedTuple):
    """One query over the keys of one head."""

    kind: str
    query: Tensor  # [size]
    key: Tensor  # [keys, size]
    value: Tensor  # [keys, value size]
    alpha: float
    scale: float
    split: int  # number of keys that are encoded first


class Outcome(NamedTuple):
    """The result of checking one case."""

    problem: str  # empty if there is none
    dense: bool  # whether the scan left the case to the dense kernel
    errors: tuple[float, float]  # errors of the output: by the scan, by the dense kernel


def draw(number: int, seed: int = 0) -> Case:
    """Draw a random case with 1 to 65,536 keys, usually few, and scores of any spread."""
    random = torch.Generator().manual_seed(seed * 1_000_003 + number)

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=random, dtype=torch.float64))

    def choice(options: tuple[float, ...]) -> float:
        return options[int(torch.randint(len(options), (), generator=random))]

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random)

    kind = KINDS[number % len(KINDS)]
    most = 200 if kind == "clusters" else 65_536 if number // len(KINDS) % 16 == 0 else 2048
    keys = round(math.exp(uniform(0, math.log(most))))
    size = int(choice(SIZES if keys < 4096 else SIZES[:5]))
    key, query = normal(keys, size), normal(size)
    some = max(1, size // 20)
    if kind == "norms":
        key *= torch.exp(1.5 * normal(keys, 1))
    elif kind == "outliers":
        key[:, :some] *= choice((30.0, 300.0))
        query[:some] *= choice((1.0, 0.01))
    elif kind == "ties":
        key = key[: -(-keys // 4)].repeat_interleave(4, 0)[:keys]
    elif kind == "mean":
        key += normal(size) * choice((5.0, 100.0))
    elif kind == "tiny":
        key *= 1e-30
    elif kind == "huge":
        key, query = key * 1e12, query * 1e5
    elif kind == "zero query":
        query.zero_()
    elif kind == "sparse":
        key *= torch.rand(keys, size, generator=random) < 0.05
    elif kind == "near a key":
        query = key[-1] + 0.1 * query
    elif kind == "bfloat16":
        key, query = key.bfloat16().float(), query.bfloat16().float()
    elif kind == "clusters":
        # Rounding errors are as large as the differences between scores.
        key, query = key * 0.004, query * 0.1
        key[::2, 0] += 1
        key[1::2, 0] -= 1
        query[0] = 1
    scores = key.double() @ query.double()
    spread = float(scores.std()) if keys > 1 else 0.0
    target = 10 ** uniform(-1, 2) if kind != "clusters" else uniform(50, 800)
    scale = target / spread if spread > 1e-37 and target / spread < 1e37 else 1.0
    alpha = choice(ALPHAS) if number % 3 else uniform(1.02, 2)
    return Case(kind, query, key, normal(keys, 4), alpha, scale, int(uniform(0, keys + 1)))


def arguments(case: Case) -> AttentionArgs:
    """Return the arguments of the kernels."""
    query, key, value = case.query[None, None, None], case.key[None, None], case.value[None, None]
    return AttentionArgs(query, key, value, None, None, None, None, None, None, case.alpha, case.scale, False, 0.0)


def check(case: Case) -> Outcome:
    r"""Compare a scan with exact scores in float64.

    A float32 score has an error of at most `(size + 4) u |scale q| |k|` with `u = 2^{-24}`. The threshold has at most
    the largest such error among the keys near it plus a few rounding errors. Keys whose score is farther than this
    from the threshold must be on the correct side, unless their weight is negligible.
    """
    args = arguments(case)
    rows = screening.ScreenedRows()
    if case.split:
        rows.update(args.key[:, :, : case.split])
    counts, index, _ = rows.lists(args)
    count = int(counts[0])
    exact = case.key.double() @ case.query.double() * case.scale
    probs = tsallis.entmax(exact, case.alpha)
    width = 1 / (case.alpha - 1)
    top = float(exact.max())
    threshold = top - width * float(probs.max()) ** (case.alpha - 1)
    near = case.key[exact >= min(threshold - 1, top)].double()
    norms = float(near.norm(dim=-1).max() * case.query.double().norm()) * case.scale
    margin = 2 * (case.query.numel() + 4) * UNIT * norms + 8 * UNIT * (abs(top) + width)
    output = rows.attend(args)[0].flatten()
    wanted = probs @ case.value.double()
    dense = tsallis.entmax_attention(*args[:3], case.alpha, scale=case.scale).flatten()
    errors = (float((output - wanted).abs().max()), float((dense - wanted).abs().max()))
    # The derivative of the weights with respect to the scores is at most twice the sum of p^(2 - alpha).
    slope = float((probs[probs > 0] ** (2 - case.alpha)).sum())
    tolerance = (2 * margin * slope + 1e-5) * float(case.value.abs().max())
    if errors[0] > tolerance:
        return Outcome(f"output: error {errors[0]:.1e}, dense {errors[1]:.1e}, allowed {tolerance:.1e}", False, errors)
    if count < 0:
        return Outcome("", True, errors)
    found = torch.zeros(len(exact), dtype=torch.bool)
    found[index[0, :count].long()] = True
    if lost := int(((exact > threshold + margin) & (probs > NEGLIGIBLE) & ~found).sum()):
        return Outcome(f"{lost} keys lost", False, errors)
    if wrong := int(((exact < threshold - margin) & found).sum()):
        return Outcome(f"{wrong} keys too many", False, errors)
    if not torch.equal(index[0, :count], index[0, :count].sort().values):
        return Outcome("keys out of order", False, errors)
    return Outcome("", False, errors)


def problems(numbers: range, seed: int = 0) -> tuple[list[str], int]:
    """Return the problems found in some cases, and the number of cases left to the dense kernel."""
    found, dense, worse = [], 0, Counter[bool]()
    for number in numbers:
        case = draw(number, seed)
        outcome = check(case)
        dense += outcome.dense
        worse[outcome.errors[0] > outcome.errors[1]] += 1
        if outcome.problem:
            shape = tuple(case.key.shape)
            found.append(f"case {number} ({case.kind}, keys {shape}, alpha {case.alpha:.3f}): {outcome.problem}")
    if worse[True] > worse[False] + 3 * math.sqrt(len(numbers)):
        found.append(f"outputs are less exact than the dense kernel's in {worse[True]} of {len(numbers)} cases")
    return found, dense


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    messages, left = problems(range(options.cases), options.seed)
    print(*messages, f"{options.cases} cases, {left} left to the dense kernel, {len(messages)} problems", sep="\n")
    raise SystemExit(bool(messages))
