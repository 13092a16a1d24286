"""Tests of losses of mixtures with distributions as targets, for students that copy or align monotonically."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tsallis import SparseRows
from tsallis.functional import entmax_loss
from tsallis.models import RNNSeq2Seq

OUTPUTS = [("softmax", 1.0), ("entmax", 1.3), ("entmax", 1.5), ("sparsemax", 2.0), ("alpha_relu", 1.5)]
KINDS: list[dict[str, Any]] = [{"copy": [-1, -1, -1, -1, 5, 4, 7, 6]}, {"monotonic": 0}, {"monotonic": 1}]
SRC, LENGTHS = torch.tensor([[5, 7, 4, 6], [4, 6, 0, 0]]), torch.tensor([4, 2])
TOKENS = torch.tensor([[1, 4, 6, 5], [1, 7, 4, 4]])
SYMBOLS = torch.tensor([2, 4, 5, 6, 7])  # the symbols that are not forbidden
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind)))
every_output = pytest.mark.parametrize(("output", "alpha"), OUTPUTS)


def build(kind: dict[str, Any], output: str, alpha: float) -> RNNSeq2Seq:
    torch.manual_seed(0)
    options = {"dropout": 0.0, "input_feeding": False, "tau": -0.2, "forbidden": (0, 1, 3)}
    model = RNNSeq2Seq(8, 8, 6, output=output, output_alpha=alpha, **options, **kind).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
    return model


def teacher() -> Tensor:
    """Return distributions [batch * tgt, symbols]; one is certain and two are empty."""
    rows = torch.zeros(8, 8, dtype=torch.float64)
    rows[:, SYMBOLS] = torch.distributions.Dirichlet(torch.ones(5, dtype=torch.float64)).sample((8,)).round(decimals=1)
    rows[2] = torch.nn.functional.one_hot(torch.tensor(4), 8)
    rows /= rows.sum(1, keepdim=True)
    rows[[5, 7]] = 0
    return rows.float().double()


def entropy(rows: Tensor, alpha: float) -> Tensor:
    if alpha == 1:
        return -torch.special.xlogy(rows, rows).sum(-1)
    return (rows - rows**alpha).sum(-1) / (alpha * (alpha - 1))


@every_kind
@every_output
def test_loss_is_expected_symbol_loss_minus_entropy(kind: dict[str, Any], output: str, alpha: float) -> None:
    model, rows = build(kind, output, alpha), teacher()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    hidden = model(SRC, LENGTHS, TOKENS).hidden
    symbols = [model.output.loss(hidden, torch.full((2, 4), int(s)), reduction="none").flatten() for s in SYMBOLS]
    each = torch.where(rows[:, SYMBOLS] > 0, rows[:, SYMBOLS] * torch.stack(symbols, 1), 0).sum(1)
    expected = each - entropy(rows, model.output.alpha)
    sparse = SparseRows.from_dense(rows)
    losses = model.output.loss(hidden, sparse, reduction="none")
    torch.testing.assert_close(losses.flatten().double(), expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(model.output.loss(hidden, sparse).double(), expected.sum() / 6, atol=1e-6, rtol=1e-6)
    gradients = [
        torch.autograd.grad(x, parameters, retain_graph=True, allow_unused=True)
        for x in (expected.sum(), model.output.loss(hidden, sparse, reduction="sum"))
    ]
    for wanted, got in zip(*gradients, strict=True):
        assert (wanted is None) == (got is None)
        if wanted is not None and got is not None:
            torch.testing.assert_close(got, wanted, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("output", "alpha"), OUTPUTS[:-1])  # values of alpha-ReLU need not sum to 1
def test_single_part_mixture_loss_matches_entmax_loss(output: str, alpha: float) -> None:
    """Check a source of one symbol, with one position. Small parameters make all symbols possible."""
    model, rows = build({"monotonic": 0}, output, alpha), SparseRows.from_dense(teacher()[:4])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.04)
    source, length, tokens = SRC[:1, :1], LENGTHS[:1] - 3, TOKENS[:1]
    hidden = model(source, length, tokens).hidden
    scores = model.output.projection(hidden[..., : model.output.projection.in_features].double())
    scores = scores.index_fill(-1, torch.tensor([0, 1, 3]), -torch.inf)
    expected = entmax_loss(scores, rows, model.output.alpha, reduction="none")
    torch.testing.assert_close(
        model.output.loss(hidden, rows, reduction="none").double(), expected, atol=1e-6, rtol=1e-6
    )


@every_kind
def test_rows_without_a_target_have_no_gradient(kind: dict[str, Any]) -> None:
    model, rows = build(kind, "entmax", 1.5), SparseRows.from_dense(teacher())
    hidden = model(SRC, LENGTHS, TOKENS).hidden.detach().flatten(0, 1).clone()
    hidden[5] = torch.nan
    model.output.loss(hidden.requires_grad_(), rows).backward()
    assert hidden.grad is not None and (hidden.grad[[5, 7]] == 0).all() and hidden.grad.isfinite().all()


@every_kind
def test_wrong_targets_are_rejected(kind: dict[str, Any]) -> None:
    model, rows = build(kind, "entmax", 1.5), SparseRows.from_dense(teacher())
    hidden = model(SRC, LENGTHS, TOKENS).hidden
    with pytest.raises(ValueError, match="target must have 8 rows, one per hidden state, got 7"):
        model.output.loss(hidden, rows[:7])
    with pytest.raises(ValueError, match="label_smoothing must be 0"):
        model.output.loss(hidden, rows, label_smoothing=0.1)
    large = SparseRows(torch.tensor([8]), torch.ones(1), torch.tensor([0, *[1] * 8]))
    with pytest.raises(ValueError, match="indices must be classes from 0 to 7, got 8"):
        model.output.loss(hidden, large)
