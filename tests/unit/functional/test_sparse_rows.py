"""Tests of sparse rows: checks, conversions and selections."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from tsallis import SparseRows, alpha_relu_loss, entmax, entmax_loss

PROBS = torch.tensor([[0.75, 0.0, 0.25], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])


def some() -> SparseRows:
    return SparseRows(torch.tensor([2, 0, 1]), torch.tensor([0.25, 0.75, 1.0]), torch.tensor([0, 2, 2, 3]))


def test_dense_conversion_round_trips() -> None:
    rows = SparseRows.from_dense(PROBS.reshape(3, 1, 3))
    assert (rows.indices.dtype, rows.probs.dtype) == (torch.int32, torch.float32)
    assert rows.indices.tolist() == [0, 2, 1]
    for one in (rows, some(), rows.to("cpu"), pickle.loads(pickle.dumps(rows))):
        assert torch.equal(one.dense(3), PROBS)
    assert rows.dense(5).shape == (3, 5)
    assert len(SparseRows.from_dense(torch.zeros(0, 3))) == 0
    with pytest.raises(ValueError, match="got 2"):
        rows.dense(2)


def test_top_k_keeps_the_largest_entries() -> None:
    """Check that rows with fewer entries are unchanged, and that rows of zeros stay empty."""
    rows = SparseRows.from_dense(torch.cat([PROBS, torch.tensor([[0.5, 0.375, 0.125]])]), top_k=2)
    assert torch.equal(rows.dense(3), torch.cat([PROBS, torch.tensor([[0.5, 0.375, 0.0]])]))
    assert rows.tail is not None and rows.tail.tolist() == [0, 0, 0, 0.125]
    assert SparseRows.from_dense(PROBS, top_k=9).offsets.tolist() == [0, 2, 2, 3]
    with pytest.raises(ValueError, match="top_k must be at least 1, got 0"):
        SparseRows.from_dense(PROBS, top_k=0)


NUMBERS = [torch.tensor([2, -1, 0, 2]), torch.tensor([2, 0, 1], dtype=torch.uint8)]


@pytest.mark.parametrize("rows", [slice(1, 3), slice(None, None, 2), slice(0, 0), *NUMBERS])
def test_slices_and_indices_select_rows(rows: slice | Tensor) -> None:
    expected = PROBS[rows.long() if isinstance(rows, Tensor) else rows]
    if isinstance(rows, Tensor):
        expected = torch.where((rows < 0).unsqueeze(-1), 0, expected)
    tail = torch.tensor([0.0, 0.0005, 0.0])
    chosen = SparseRows(some().indices, some().probs, some().offsets, tail)[rows]
    assert torch.equal(chosen.dense(3), expected)
    assert len(chosen.tail) == len(chosen) == len(expected)


INVALID = [
    ({"indices": [2, -1, 1]}, "got -1"),
    ({"indices": [2, 2**31, 1]}, f"got {2**31}"),
    ({"indices": [1, 1, 0]}, "got 1 twice in row 0"),
    ({"probs": [0.25, 0.75, -1.0]}, "at least 0, got -1"),
    ({"probs": [0.25, 0.75, float("nan")]}, "got nan"),
    ({"probs": [0.25, 0.752, 1.0]}, "got 1.002 in row 0; .* pass their mass as tail"),
    ({"probs": [0.25, 0.75]}, r"got \(3,\) and \(2,\)"),
    ({"offsets": [0, 2, 2, 4]}, "from 0 to 3"),
    ({"offsets": [1, 2, 2, 3]}, "from 0 to 3"),
    ({"offsets": [0, 2, 1, 3]}, "from 0 to 3"),
    ({"offsets": [[0, 3]]}, r"got \(1, 2\)"),
    ({"tail": [0.1, 0.0, 0.0]}, "got 1.1 in row 0 with its tail"),
    ({"tail": [1.0, 0.0, 0.0]}, "below 1, got 1.0"),
    ({"tail": [0.1]}, r"\(3,\), got \(1,\)"),
    ({"probs": [0.25, 0.75, 0.0], "tail": [0.0, 0.0, 0.9995]}, "got only 0 in row 2"),
]


@pytest.mark.parametrize(("change", "message"), INVALID)
def test_invalid_values_raise(change: dict[str, list[float]], message: str) -> None:
    values = {"indices": some().indices, "probs": some().probs, "offsets": some().offsets}
    with pytest.raises(ValueError, match=message):
        SparseRows(**values | {name: torch.tensor(value) for name, value in change.items()})


def test_invalid_types_raise() -> None:
    with pytest.raises(TypeError, match="indices must contain integers"):
        SparseRows(some().probs, some().probs, some().offsets)
    with pytest.raises(TypeError, match="probs must be floating point"):
        SparseRows(some().indices, some().indices, some().offsets)
    with pytest.raises(ValueError, match="without dimensions"):
        SparseRows.from_dense(torch.tensor(1.0))


def test_sums_within_the_tolerance_and_tails_are_accepted() -> None:
    SparseRows(some().indices, torch.tensor([0.25, 0.7505, 1.0]), some().offsets)
    tail = torch.tensor([0.25, 0.0, 0.0])
    assert SparseRows(some().indices, torch.tensor([0.25, 0.5, 1.0]), some().offsets, tail).tail is not None


@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_bfloat16_probabilities_are_normalized(alpha: float) -> None:
    probs = entmax(torch.randn(200, 1000, generator=torch.Generator().manual_seed(0)) * 3, alpha).bfloat16()
    assert ((probs.float().sum(-1) - 1).abs() > 1e-3).any()
    expected = probs.float() / probs.float().sum(-1, keepdim=True)
    torch.testing.assert_close(SparseRows.from_dense(probs).dense(1000), expected)
    cut = SparseRows.from_dense(probs, top_k=4)
    torch.testing.assert_close(cut.dense(1000).sum(-1) + cut.tail, torch.ones(200))
    with pytest.raises(ValueError, match=r"within 0\.001 in each row"):
        SparseRows.from_dense(probs.float())
    with pytest.raises(ValueError, match=r"within 0\.008 in each row, got 0\.75"):
        SparseRows.from_dense(torch.tensor([[0.5, 0.25]], dtype=torch.bfloat16))


@pytest.mark.parametrize("rows", [0, [0, 1], torch.tensor([0.0])])
def test_invalid_selection_types_raise(rows: Any) -> None:
    with pytest.raises(TypeError, match="rows must"):
        some()[rows]


def test_selected_rows_need_only_their_own_classes() -> None:
    assert torch.equal(some()[1:].dense(2), PROBS[1:, :2])
    with pytest.raises(ValueError, match="classes from 0 to 0, got 1"):
        some()[1:].dense(1)


def test_a_mask_selects_rows() -> None:
    rows = SparseRows.from_dense(torch.eye(3))
    chosen = rows.to("cpu", non_blocking=True)[torch.tensor([True, False, True])]
    assert chosen.indices.tolist() == [0, 2] and len(chosen) == 2


@pytest.mark.parametrize("rows", [torch.tensor(1), torch.tensor([[0, 1]])])
def test_selections_of_wrong_shape_raise(rows: Tensor) -> None:
    with pytest.raises(ValueError, match="rows must have the shape"):
        some()[rows]


def test_to_rejects_dtypes_and_zero_classes_are_accepted() -> None:
    with pytest.raises(TypeError, match="device must be a device"):
        some().to(torch.float64)  # type: ignore[arg-type]
    assert len(SparseRows.from_dense(torch.zeros(3, 0))) == 3
    unsigned = SparseRows(some().indices.to(torch.uint16), some().probs, some().offsets)
    assert torch.equal(unsigned.dense(3), PROBS)


@pytest.mark.parametrize("loss", [entmax_loss, alpha_relu_loss])
def test_rows_made_in_inference_mode_work_as_targets(loss: Any) -> None:
    with torch.inference_mode():
        rows = SparseRows.from_dense(PROBS)
    scores = torch.randn(3, 3, requires_grad=True)
    loss(scores, rows).backward()
    expected = scores.detach().clone().requires_grad_()
    loss(expected, some()).backward()
    torch.testing.assert_close(scores.grad, expected.grad)


def test_mask_of_wrong_length_raises() -> None:
    rows = SparseRows.from_dense(torch.eye(3))
    with pytest.raises(ValueError, match=r"a mask of rows must have the shape \[3\], got \[2\]"):
        rows[torch.tensor([True, False])]
