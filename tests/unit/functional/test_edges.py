"""Maps and losses where users rarely look: masks that are too large, nothing at all, infinities, saved results."""

from __future__ import annotations

import io

import pytest
import torch

import tsallis


def test_a_mask_does_not_enlarge_scores() -> None:
    for scores, mask in ((torch.zeros(3), torch.ones(5, 3)), (torch.zeros(4, 1), torch.ones(4, 5))):
        with pytest.raises(ValueError, match="can't be broadcast to scores"):
            tsallis.entmax(scores, mask=mask.bool())
    assert tsallis.entmax(torch.zeros(2, 5, 3), mask=torch.ones(5, 1, dtype=torch.bool)).shape == (2, 5, 3)


@pytest.mark.parametrize("classes", [200, 300])
def test_nothing_to_compute_a_loss_of(classes: int) -> None:
    scores, alpha = torch.zeros(0, classes, requires_grad=True), torch.tensor(1.5, requires_grad=True)
    loss = tsallis.entmax_loss(scores, torch.zeros(0, dtype=torch.long), alpha, reduction="sum")
    loss.backward()
    assert loss == 0 and scores.grad is not None and alpha.grad == 0


@pytest.mark.parametrize("requires_grad", [False, True])
def test_probabilities_are_a_plain_tensor(requires_grad: bool) -> None:
    """They are saved with whatever lies on them, and loaded where objects are refused."""
    scores = (3 * torch.randn(4, 3000)).requires_grad_(requires_grad)
    for name in ("auto", "eager"):
        with tsallis.backend(name):
            probs = tsallis.entmax(scores, 3.0)
        assert not vars(probs)
        with io.BytesIO() as file:
            torch.save(probs, file)
            file.seek(0)
            assert torch.load(file).equal(probs)


def test_smoothing_of_a_target_that_is_excluded() -> None:
    scores = torch.tensor([[0.0, -torch.inf, 1.0]], requires_grad=True)
    loss = tsallis.entmax_loss(scores, torch.tensor([1]), label_smoothing=0.1)
    assert loss == torch.inf == torch.nn.functional.cross_entropy(scores, torch.tensor([1]), label_smoothing=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast_leaves_float64_as_it_is(dtype: torch.dtype) -> None:
    hidden, weight, target = torch.randn(5, 4, dtype=dtype), torch.randn(7, 4, dtype=dtype), torch.arange(5)
    with torch.autocast("cpu", torch.bfloat16):
        loss = tsallis.linear_entmax_loss(hidden, weight, target)
        expected = tsallis.entmax_loss(torch.nn.functional.linear(hidden, weight), target)
        with pytest.raises(TypeError, match="one dtype"):
            tsallis.linear_entmax_loss(hidden.double(), weight.float(), target)
    torch.testing.assert_close(loss, expected, atol=1e-2 if dtype == torch.float32 else 1e-12, rtol=0)
    assert loss.dtype == expected.dtype
