"""The maps that the contract tests cover, each with its float64 reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import tsallis
from tsallis.ops import reference


@dataclass(frozen=True)
class Map:
    """A map with its parameters and its reference.

    The tests of values, derivatives, half precision, `torch.compile`, ONNX, first calls of a process, default devices
    and `tsallis.nn` all use this table.
    """

    name: str  # the public function, then a hyphen and a suffix if it has several cases
    ours: Callable[..., Tensor]  # (scores, dim=-1)
    reference: Callable[[Tensor], Tensor]
    total: float = 1.0  # the sum of each row
    single: float = 1.0  # the probability of a row's only entry
    tolerance: float = 2e-6  # in float32
    distinct: bool = True  # uses a formula that no other case uses: compiled, exported and differentiated twice

    def __str__(self) -> str:
        return self.name

    @property
    def function(self) -> str:
        """The name of the public function."""
        return self.name.split("-")[0]


# Alphas with a special formula; 1.25 stands for all others.
FORMULAS = (0.25, 1.0, 1.25, 1.5, 2.0, 2.5, 10.0)
ALPHAS = (0.25, 0.9, 1.0, 1.000001, 1.001, 1.05, 1.25, 4 / 3, 1.5, 1.75, 1.99, 2.0, 2.5, 10.0)


def _map(name: str, alpha: float, distinct: bool) -> Map:
    ours, exact = getattr(tsallis, name), getattr(reference, name)
    return Map(f"{name}-{alpha}", lambda z, dim=-1: ours(z, alpha, dim), lambda z: exact(z, alpha), distinct=distinct)


MAPS = [
    *(_map("entmax", alpha, alpha in FORMULAS) for alpha in ALPHAS),
    Map("sparsemax", lambda z, dim=-1: tsallis.sparsemax(z, dim), lambda z: reference.entmax(z, 2.0), distinct=False),
    Map("entmax15", lambda z, dim=-1: tsallis.entmax15(z, dim), lambda z: reference.entmax(z, 1.5), distinct=False),
    _map("normmax", 2.0, True),
    _map("normmax", 1.5, False),
    Map(
        "budgeted_entmax-2",
        lambda z, dim=-1: tsallis.budgeted_entmax(z, 1.5, 2, dim),
        lambda z: reference.budgeted_entmax(z, 1.5, 2),
        total=2.0,
    ),
]
SMOOTH = [m for m in MAPS if m.distinct]
# One case per public function.
FUNCTIONS = {m.function: m for m in reversed(MAPS)}


def rows(name: str, dtype: torch.dtype = torch.float64, d: int = 9) -> Tensor:
    """Return scores of one kind, of shape [5, d]."""
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
