"""The best symbols of rows of scores, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tsallis.ops.arguments import BestSymbols
from tsallis.ops.dtypes import upcast
from tsallis.ops.eager.alpha_relu import alpha_relu
from tsallis.ops.eager.maps import entmax

SORT_LIMIT = 4096  # of more symbols only the largest are looked for: ties among vocabularies of words do not matter


def best_symbols(
    scores: Tensor, alpha: float, tau: float | None, count: int, end: int, only: Tensor | None = None
) -> BestSymbols:
    """Return the best of each row of scores [rows, symbols] by entmax, or by alpha-ReLU with a threshold."""
    return best_by_map(scores, alpha, tau, count, end, only, entmax)


def best_by_map(
    scores: Tensor,
    alpha: float,
    tau: float | None,
    count: int,
    end: int,
    only: Tensor | None,
    entmax: Callable[[Tensor, float], Tensor],
) -> BestSymbols:
    """Return the best of each row, by a backend's own entmax."""
    if tau is not None:
        values = alpha_relu(upcast(scores), alpha - 1, tau).double()
        return best_of_log_probs(values.log(), count, end, only)._replace(mass=values.sum(-1))
    log_probs = scores.double().log_softmax(-1) if alpha == 1 else entmax(upcast(scores), alpha).double().log()
    return best_of_log_probs(log_probs, count, end, only)


def best_of_log_probs(log_probs: Tensor, count: int, end: int, only: Tensor | None = None) -> BestSymbols:
    """Return the best of each row of log-probabilities [rows, symbols] in float64, whose sum is taken for 1."""
    mass = torch.where(log_probs.isnan().any(-1), torch.nan, 1.0).to(torch.float64)
    support = (log_probs > -torch.inf).sum(-1)
    ends = log_probs[:, end].clone()
    others = log_probs.index_fill(1, torch.tensor([end], device=log_probs.device), -torch.inf)
    if only is not None:
        outside = torch.arange(others.shape[1], device=others.device) != only.unsqueeze(1)  # [rows, symbols]
        others = others.masked_fill(outside & (only >= 0).unsqueeze(1), -torch.inf)
    best, symbols = _top(others, count)
    return BestSymbols(best, symbols, ends, support, mass)


def _top(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest values of each row and their columns; of equal ones the first, in every run."""
    width = values.shape[-1]
    if width > SORT_LIMIT:
        best, order = values.topk(min(count, width))
    else:
        best, order = (x[:, :count] for x in values.sort(descending=True, stable=True))
    return best, order
