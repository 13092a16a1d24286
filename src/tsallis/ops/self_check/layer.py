"""The family of an output layer: sums over sparse rows, the same entries by class, and alpha-ReLU in one pass."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tsallis.ops import eager
from tsallis.ops.dtypes import compute_dtype
from tsallis.ops.eager.alpha_relu import alpha_relu
from tsallis.ops.self_check.trial import GRADIENT, VALUE, Trial
from tsallis.ops.sparse_rows import CsrRows

COUNTS = (300, 5, 0, 40, 17, 1, 60)  # entries a row; the longest is cut by kernels
CLASSES, SIZE = 700, 48
TOKENS, TAU, SHARE = 70, 1.5, 0.125  # of alpha-ReLU: scores of deviation 1.5, and few of them above 2 tau


def check_output_layer(trial: Trial) -> None:
    """Compare the sums, the transposition, and losses with their supports."""
    rows = len(COUNTS)
    offsets = F.pad(torch.tensor(COUNTS).cumsum(0), (1, 0))
    keys = trial.normal(rows, CLASSES).argsort(-1)
    column = torch.cat([keys[r, :count].sort()[0] for r, count in enumerate(COUNTS)]).to(torch.int32)
    value = trial.normal(len(column)).abs()
    target, scale = trial.integers(CLASSES, rows), trial.normal(rows).float().double()
    target[2] = -1
    exact = CsrRows(offsets, column, value)
    lists = CsrRows(offsets.to(trial.device), column.to(trial.device), trial.put(value, compute_dtype(trial.dtype)))
    y, weight = target.to(trial.device), trial.put(scale, compute_dtype(trial.dtype))
    table = trial.normal(CLASSES, SIZE)
    with trial.kernel("sums over sparse rows"):
        out, total = trial.kernels.spmm(lists, trial.put(table), scale=weight, minus=y, need_total=True)
        expected, numbers = eager.spmm(exact, table, scale=scale, minus=target, need_total=True)
        trial.compare("sums", out, expected, VALUE)
        if total is not None and numbers is not None:
            trial.compare("sums of the values", total, numbers, VALUE, rounding=0)
        start = trial.normal(rows, SIZE)
        out, _ = trial.kernels.spmm(lists, trial.put(table), onto=trial.put(start), factor=weight)
        expected, _ = eager.spmm(exact, table, onto=start.clone(), factor=scale)
        trial.compare("sums added to others", out, expected, trial.sum_limit(VALUE))
    with trial.kernel("transposition of sparse rows"):
        actual = trial.kernels.transpose(lists, CLASSES, weight, y)
        right = eager.transpose(exact, CLASSES, scale, target)
        trial.compare("values by class", _dense(actual, rows), _dense(right, rows), VALUE, rounding=0)
    if "one pass" in trial.kernels.CAPABILITIES.operations:
        _check_one_pass(trial)


def _check_one_pass(trial: Trial) -> None:
    alpha = 1.5
    hidden, weight = trial.normal(TOKENS, SIZE), trial.normal(CLASSES, SIZE, scale=1.5 / SIZE**0.5)
    bias, target = trial.normal(CLASSES, scale=0.1), trial.integers(CLASSES, TOKENS)
    target[1] = -1
    with trial.kernel("alpha-ReLU's output layer in one pass"):
        inputs = (trial.put(hidden), trial.put(weight), trial.put(bias), target.to(trial.device))
        result = trial.kernels.alpha_relu_one_pass(*inputs, alpha, TAU, SHARE)
        if result is None:  # it may say so: then the scores are computed
            return
        scores = F.linear(hidden, weight, bias)
        losses, _ = eager.alpha_relu_loss(scores, target, alpha, TAU)
        values = torch.where((target < 0).unsqueeze(-1), 0, alpha_relu(scores, alpha - 1, TAU))
        trial.compare("losses", result[0], losses, trial.sum_limit(GRADIENT))
        trial.compare("support", _dense(result[1], CLASSES), values, trial.sum_limit(GRADIENT))


def _dense(lists: CsrRows, columns: int) -> Tensor:
    """Return rows of numbers from sparse rows; what lies behind the last row is not read."""
    offsets, column, value = (x.cpu() for x in lists)
    count = int(offsets[-1])
    row = torch.arange(len(offsets) - 1).repeat_interleave(offsets.diff())
    dense = torch.zeros(len(offsets) - 1, columns, dtype=torch.float64)
    return dense.index_put_((row, column[:count].long()), value[:count].double(), accumulate=True)
