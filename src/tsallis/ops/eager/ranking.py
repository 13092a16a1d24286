"""Find the most probable symbols of rows of scores with PyTorch operations."""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from tsallis.ops.arguments import BestSymbols
from tsallis.ops.eager.log_probs import alpha_relu_log_probs, indistinct, log_probs
from tsallis.ops.eager.maps import entmax

SORT_LIMIT = 4096  # larger vocabularies are not sorted: the order of ties does not matter there


def best_symbols(
    scores: Tensor, alpha: float, tau: float | None, count: int, end: int, only: Tensor | None = None
) -> BestSymbols:
    """Return the most probable symbols of each row of scores [rows, symbols]."""
    wide, unclear = scores.double(), indistinct(scores)
    if tau is None:
        return best_of_log_probs(log_entmax(wide, alpha), count, end, only, unclear)
    logs = alpha_relu_log_probs(wide, alpha, tau)
    best = best_of_log_probs(logs, count, end, only, unclear)
    total = logs.exp().sum(-1).clamp(max=sys.float_info.max)
    return best._replace(mass=torch.where(best.mass == 1, total, best.mass))


def log_entmax(scores: Tensor, alpha: float) -> Tensor:
    """Return the log-probabilities of rows of scores [rows, symbols] in float64; -inf outside the support."""
    wide = scores.double()
    return log_probs(wide, entmax(wide, alpha), alpha)


def best_of_log_probs(
    log_probs: Tensor, count: int, end: int, only: Tensor | None = None, unclear: Tensor | None = None
) -> BestSymbols:
    """Return the most probable symbols of rows of normalized log-probabilities [rows, symbols] in float64.

    `unclear` [rows] marks rows whose scores were too large to be distinguished, see `BestSymbols`.
    """
    support = (log_probs > -torch.inf).sum(-1)
    mass = torch.ones_like(log_probs[:, 0])
    if unclear is not None:
        mass = mass.masked_fill(unclear & (support > 0), torch.inf)
    mass = mass.masked_fill(~(log_probs.amax(-1) < torch.inf), torch.nan)  # NaN or infinite
    ends = log_probs[:, end].clone()
    candidates = log_probs.index_fill(1, torch.tensor([end], device=log_probs.device), -torch.inf)
    if only is not None:
        excluded = torch.arange(candidates.shape[1], device=candidates.device) != only.unsqueeze(1)  # [rows, symbols]
        candidates = candidates.masked_fill(excluded & (only >= 0).unsqueeze(1), -torch.inf)
    best, symbols = _top(candidates, count)
    return BestSymbols(best, symbols, ends, support, mass)


def _top(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest values of each row and their columns; up to SORT_LIMIT, ties are in the order of columns."""
    width = values.shape[-1]
    if width > SORT_LIMIT:
        best, order = values.topk(min(count, width))
    else:
        best, order = (x[:, :count] for x in values.sort(descending=True, stable=True))
    return best, order
