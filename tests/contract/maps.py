"""The maps under contract: each with its float64 reference, in the scores alone or in the scores and alpha."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import tsallis
from tsallis.ops import reference


@dataclass(frozen=True)
class Map:
    name: str
    ours: Callable[..., Tensor]  # (scores, dim=-1)
    reference: Callable[[Tensor], Tensor]
    total: float = 1.0
    tolerance: float = 2e-6  # in float32

    def __str__(self) -> str:
        return self.name


def _entmax(alpha: float) -> Map:
    return Map(
        f"entmax-{alpha}",
        lambda z, dim=-1: tsallis.entmax(z, alpha, dim),
        lambda z: reference.entmax(z, alpha),
    )


ALPHAS = (0.25, 0.9, 1.0, 1.000001, 1.001, 1.05, 1.25, 4 / 3, 1.5, 1.75, 1.99, 2.0, 2.5, 10.0)
MAPS = [
    *(_entmax(alpha) for alpha in ALPHAS),
    Map("sparsemax", lambda z, dim=-1: tsallis.sparsemax(z, dim), lambda z: reference.entmax(z, 2.0)),
    Map("entmax15", lambda z, dim=-1: tsallis.entmax15(z, dim), lambda z: reference.entmax(z, 1.5)),
    Map("normmax-2", lambda z, dim=-1: tsallis.normmax(z, 2.0, dim), lambda z: reference.normmax(z, 2.0)),
    Map("normmax-1.5", lambda z, dim=-1: tsallis.normmax(z, 1.5, dim), lambda z: reference.normmax(z, 1.5)),
    Map(
        "budget-2",
        lambda z, dim=-1: tsallis.budgeted_entmax(z, 1.5, 2, dim),
        lambda z: reference.budgeted_entmax(z, 1.5, 2),
        total=2.0,
    ),
]
# One of each formula of gradients; the other alphas have that of 1.25.
FORMULAS = (
    "entmax-0.25",
    "entmax-1.0",
    "entmax-1.25",
    "entmax-1.5",
    "entmax-2.0",
    "entmax-2.5",
    "entmax-10.0",
    "normmax-2",
    "budget-2",
)
SMOOTH = [m for m in MAPS if m.name in FORMULAS]


def rows(name: str, dtype: torch.dtype = torch.float64, d: int = 9) -> Tensor:
    """Scores of one kind [5, d]."""
    generator = torch.Generator().manual_seed(7)
    noise = torch.randn(5, d, generator=generator, dtype=torch.float64)
    kinds = {
        "normal": noise,
        "peaked": noise * 10,
        "flat": noise * 0.01,
        "constant": torch.zeros_like(noise),
        "ties": noise.round(),
        "one huge": noise.index_fill(1, torch.tensor([d // 2]), 1e4),
        "offset": (noise.float() + 1e6).double(),
        "tiny": noise * 1e-30,
    }
    return kinds[name].to(dtype)


KINDS = ("normal", "peaked", "flat", "constant", "ties", "one huge", "offset", "tiny")
