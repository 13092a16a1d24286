"""Drop-in replacements for softmax whose outputs contain exact zeros, with losses and attention.

`import tsallis` provides every name in `__all__`, including the modules `compat`, `continuous`, `distributions` and
`nn`. Import the other parts by name, for example `import tsallis.search`: `analysis`, `huggingface`, `models`, `report`
and `search`. `tsallis.toolkit` contains the commands, and needs the extra `toolkit`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tsallis import compat, continuous, distributions, nn
    from tsallis.functional import (
        SparseRows,
        alpha_relu,
        alpha_relu_loss,
        backend,
        budgeted_entmax,
        entmax,
        entmax15,
        entmax_attention,
        entmax_loss,
        escort,
        estimate_tau,
        estimate_tau_from_scores,
        linear_alpha_relu_loss,
        linear_entmax_loss,
        normmax,
        sparsemax,
        tsallis_entropy,
    )

__all__ = [
    "SparseRows",
    "alpha_relu",
    "alpha_relu_loss",
    "backend",
    "budgeted_entmax",
    "compat",
    "continuous",
    "distributions",
    "entmax",
    "entmax15",
    "entmax_attention",
    "entmax_loss",
    "escort",
    "estimate_tau",
    "estimate_tau_from_scores",
    "linear_alpha_relu_loss",
    "linear_entmax_loss",
    "nn",
    "normmax",
    "sparsemax",
    "tsallis_entropy",
]


def __getattr__(name: str) -> object:
    """Load public names and torch on first use, so that `tsallis --help` starts quickly."""
    if name not in __all__:
        raise AttributeError(f"module 'tsallis' has no attribute {name!r}")
    import importlib

    functional = importlib.import_module("tsallis.functional")
    for public in __all__:
        value = getattr(functional, public, None)
        globals()[public] = importlib.import_module(f"tsallis.{public}") if value is None else value
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
