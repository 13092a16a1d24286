"""Test numbers that the papers print and properties that they prove."""

from __future__ import annotations

import pytest
import torch

import tsallis
from tsallis.models import TransformerSeq2Seq


def test_entmax_reaches_1_at_the_threshold_of_figure_3() -> None:
    """In two dimensions, entmax of [t, 0] reaches 1 at t = 1 / (alpha - 1); softmax never reaches 1."""
    for alpha, reaches in ((2.0, 1.0), (1.5, 2.0), (1.25, 4.0)):
        below, above = torch.tensor([reaches - 0.05, 0.0]), torch.tensor([reaches + 0.01, 0.0])
        assert tsallis.entmax(below, alpha)[1] > 0
        assert tsallis.entmax(above, alpha).tolist() == [1.0, 0.0]
    assert tsallis.entmax(torch.tensor([30.0, 0.0]), 1.0)[1] > 0


def test_sparsemax_jacobian_depends_only_on_the_support() -> None:
    """Sparse Sequence-to-Sequence Models, sec. 3.2: the Jacobian is the same at p = [.99, .01, 0] and [.5, .5, 0]."""
    first = torch.func.jacrev(tsallis.sparsemax)(torch.tensor([0.98, 0.0, -2.0]))
    second = torch.func.jacrev(tsallis.sparsemax)(torch.tensor([0.0, 0.0, -2.0]))
    torch.testing.assert_close(first, second)
    smooth = torch.func.jacrev(tsallis.entmax15)
    assert not torch.allclose(smooth(torch.tensor([0.98, 0.0, -2.0])), smooth(torch.tensor([0.0, 0.0, -2.0])))


@pytest.mark.parametrize("d_vocab", [10_000, 40_000, 60_000])
def test_estimated_thresholds_match_the_formula(d_vocab: int) -> None:
    """The formula must match the mean threshold of an untrained Transformer (Tezekbayev et al. 2022, sec. 3)."""
    model = TransformerSeq2Seq(100, d_vocab, layers=1, output="alpha_relu").eval()
    src, tgt = torch.randint(4, 100, (4, 20)), torch.randint(4, d_vocab, (4, 16))
    with torch.no_grad():
        hidden = model(src, torch.full((4,), 20), tgt).hidden
        result = tsallis.estimate_tau_from_scores(model.output.scores(hidden), 1.5)
    assert abs(result - tsallis.estimate_tau(512, d_vocab)) < 0.01
