"""Functions for sparse probabilities and their losses, differentiable to every order."""

from tsallis.functional.alpha_relu import alpha_relu, alpha_relu_loss, estimate_tau, estimate_tau_from_scores
from tsallis.functional.attention import entmax_attention
from tsallis.functional.linear import linear_alpha_relu_loss, linear_entmax_loss
from tsallis.functional.losses import entmax_loss
from tsallis.functional.maps import (
    budgeted_entmax,
    entmax,
    entmax15,
    escort,
    normmax,
    sparsemax,
    tsallis_entropy,
)
from tsallis.functional.sparse_rows import SparseRows
from tsallis.ops.choice import backend

__all__ = [
    "SparseRows",
    "alpha_relu",
    "alpha_relu_loss",
    "backend",
    "budgeted_entmax",
    "entmax",
    "entmax15",
    "entmax_attention",
    "entmax_loss",
    "escort",
    "estimate_tau",
    "estimate_tau_from_scores",
    "linear_alpha_relu_loss",
    "linear_entmax_loss",
    "normmax",
    "sparsemax",
    "tsallis_entropy",
]
