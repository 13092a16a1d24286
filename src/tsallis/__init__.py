"""Sparse probability in PyTorch: alpha-entmax maps, their losses, and what is built on them."""

from tsallis import distributions, nn
from tsallis.functional import (
    alpha_relu,
    alpha_relu_loss,
    budgeted_entmax,
    entmax,
    entmax15,
    entmax_loss,
    escort,
    estimate_tau,
    estimate_tau_from_scores,
    normmax,
    sparsemax,
    tsallis_entropy,
)

__version__ = "0.1.0"

__all__ = [
    "alpha_relu",
    "alpha_relu_loss",
    "budgeted_entmax",
    "distributions",
    "entmax",
    "entmax15",
    "entmax_loss",
    "escort",
    "estimate_tau",
    "estimate_tau_from_scores",
    "nn",
    "normmax",
    "sparsemax",
    "tsallis_entropy",
]
