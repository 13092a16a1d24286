"""The families of operations on rows: maps, losses and alpha-ReLU, by every way that kernels have for them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tsallis.ops import eager
from tsallis.ops.alphas import Alpha
from tsallis.ops.dtypes import compute_dtype
from tsallis.ops.eager.alpha_relu import alpha_relu
from tsallis.ops.self_check.trial import GRADIENT, VALUE, Trial

SHORT, LONG = (65, 1000), 8200  # columns: rows that stay on a GPU's chip, and rows that do not
ALPHAS = (1.0, 1.25, 1.5, 1.75, 2.0)


def _inputs(trial: Trial) -> list[tuple[str, Tensor, Alpha]]:
    """Return names, scores and alphas: short rows, long ones, and long ones so few that programs share them."""
    alphas = torch.tensor(ALPHAS, dtype=torch.float64).unsqueeze(-1)
    many = trial.processors // 2 + 1
    inputs: list[tuple[str, Tensor, Alpha]] = [
        ("short rows with an alpha each", trial.normal(len(ALPHAS), SHORT[0], scale=2), alphas),
        ("short rows", trial.normal(3, SHORT[1], scale=2), 1.5),
        ("long rows", trial.normal(many, LONG, scale=2), 2.0),
        ("parts of long rows", trial.normal(1, LONG, scale=2), 1.3),
    ]
    for _, scores, _ in inputs:
        scores[:, 3] = -torch.inf
    inputs[1][1][0] = -torch.inf  # a row in which nothing takes part
    return inputs


def _on_device(trial: Trial, alpha: Alpha) -> Alpha:
    if not isinstance(alpha, Tensor):
        return alpha
    return trial.put(alpha, compute_dtype(trial.dtype))


def check_maps(trial: Trial) -> None:
    """Compare probabilities, and the gradients that follow from them."""
    for name, scores, alpha in _inputs(trial):
        with trial.kernel(f"entmax of {name}"):
            alphas = _on_device(trial, alpha)
            probs = trial.kernels.entmax(trial.put(scores), alphas)
            trial.compare("probabilities", probs, eager.entmax(scores, alpha), VALUE)
            grad, exact = trial.normal(*scores.shape), probs.to("cpu", torch.float64)
            dz, da = trial.kernels.entmax_gradient(probs, trial.put(grad), alphas, True)
            expected, slope = eager.entmax_gradient(exact, grad, alpha, True)
            trial.compare("gradient of the scores", dz, expected, GRADIENT)
            if da is not None and slope is not None:
                trial.compare("gradient of alpha", da, slope, GRADIENT, rounding=0)


def check_losses(trial: Trial) -> None:
    """Compare losses, their gradients, and the supports that an output layer makes lists of."""
    for name, scores, alpha in _inputs(trial):
        with trial.kernel(f"entmax_loss of {name}"):
            target, grad = trial.integers(3, len(scores)), trial.normal(len(scores)).float()
            target[1:2] = -1
            z, y, alphas = trial.put(scores), trial.put(target, torch.int64), _on_device(trial, alpha)
            many = isinstance(alpha, Tensor)
            loss, stats, slope = trial.kernels.entmax_loss(z, y, alphas, many)
            expected, exact, exact_slope = eager.entmax_loss(scores, target, alpha, many)
            trial.compare("losses", loss, expected, VALUE, rounding=0)
            if slope is not None and exact_slope is not None:
                trial.compare("gradient of alpha", slope, exact_slope, GRADIENT, rounding=0)
            dz = trial.kernels.entmax_loss_gradient(z, y, alphas, stats, trial.put(grad, loss.dtype))
            right = eager.entmax_loss_gradient(scores, target, alpha, exact, grad.double())
            trial.compare("gradient of the scores", dz, right, GRADIENT)
            offsets = _offsets(trial.kernels.support_sizes(z, alphas, stats, y))
            right = exact.rows(scores).masked_fill((target < 0).unsqueeze(-1), 0)
            _compare_support(trial, trial.kernels.support(z, alphas, stats, offsets), offsets, right)


def check_alpha_relu(trial: Trial) -> None:
    """Compare losses of alpha-ReLU with a constant threshold, their gradients and supports."""
    tau = 0.75
    for alpha in (1.3, 1.5):
        with trial.kernel(f"alpha_relu_loss with alpha {alpha:g}"):
            scores, target = trial.normal(5, 3000), trial.integers(3000, 5)
            grad = trial.normal(5).float()
            target[-1] = -1
            z, y = trial.put(scores), trial.put(target, torch.int64)
            loss, stats = trial.kernels.alpha_relu_loss(z, y, alpha, tau)
            expected, exact = eager.alpha_relu_loss(scores, target, alpha, tau)
            trial.compare("losses", loss, expected, VALUE, rounding=0)
            dz = trial.kernels.alpha_relu_loss_gradient(z, y, alpha, stats, trial.put(grad, loss.dtype))
            right = eager.alpha_relu_loss_gradient(scores, target, alpha, exact, grad.double())
            trial.compare("gradient of the scores", dz, right, GRADIENT)
            offsets = _offsets(trial.kernels.support_sizes(z, alpha, stats, y))
            right = torch.where((target < 0).unsqueeze(-1), 0, alpha_relu(scores, alpha - 1, tau))
            _compare_support(trial, trial.kernels.alpha_relu_support(z, alpha, stats, offsets), offsets, right)


def _offsets(sizes: Tensor) -> Tensor:
    """Return where the list of each row begins, and where the last one ends."""
    return F.pad(sizes.cumsum(0), (1, 0))


def _compare_support(trial: Trial, lists: tuple[Tensor, Tensor], offsets: Tensor, right: Tensor) -> None:
    """Compare lists of columns and values with rows of numbers."""
    column, value = (x.cpu() for x in lists)
    row = torch.arange(len(right)).repeat_interleave(offsets.diff().cpu())
    values = torch.zeros_like(right).index_put_((row, column.long()), value.double(), accumulate=True)
    trial.compare("support", values, right, VALUE, rounding=0)
