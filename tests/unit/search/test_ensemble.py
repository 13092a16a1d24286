"""Ensembles average probabilities, losses and the numbers of positions with a weight."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tsallis.models import RNNSeq2Seq
from tsallis.models.protocol import Step
from tsallis.nn import OutputLayer
from tsallis.search import Ensemble, beam_search
from tsallis.search.ensemble import AveragedOutput


@pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 2, 3)])
def test_losses_and_probabilities_are_means(shape: tuple[int, ...]) -> None:
    outputs = [OutputLayer(5, 7, "entmax", alpha=1.5), OutputLayer(2, 7, "softmax")]
    both = AveragedOutput(outputs)
    each = [torch.randn(*shape, output.d_model) for output in outputs]
    hidden, target = torch.cat(each, -1), torch.randint(7, shape)
    losses = [output.loss(part, target) for output, part in zip(outputs, each, strict=True)]
    torch.testing.assert_close(both.loss(hidden, target), (losses[0] + losses[1]) / 2)
    probs = [output.probs(output.scores(part)) for output, part in zip(outputs, each, strict=True)]
    scores = both.scores(hidden)
    assert both.d_model == 7 and scores.shape == (*shape, 7)
    torch.testing.assert_close(both.probs(scores), ((probs[0] + probs[1]) / 2).double())


def test_attention_and_counts_of_positions_are_means_over_the_models() -> None:
    models = [RNNSeq2Seq(9, 8, d_model=size, output="sparsemax").eval() for size in (4, 6)]
    src, lengths, tgt = torch.randint(4, 9, (3, 5)), torch.tensor([5, 3, 1]), torch.randint(4, 8, (3, 4))
    both = Ensemble(models)
    parts = [model(src, lengths, tgt, need_attention=True) for model in models]
    each = [model.num_attended(part) for model, part in zip(models, parts, strict=True)]
    decoded = both(src, lengths, tgt, need_attention=True)
    torch.testing.assert_close(decoded.attention, (parts[0].attention + parts[1].attention) / 2)
    counts = both.num_attended(decoded)
    assert counts.tolist() == ((each[0] + each[1]) / 2).tolist() and counts.shape == (3, 4)


class Narrow(RNNSeq2Seq):
    def step(self, state: Any, token: Tensor) -> Step:
        made = super().step(state, token)
        return made._replace(attention=made.attention[:, :4])


def test_models_with_different_numbers_of_positions_raise() -> None:
    models = [kind(9, 8, 4, 1).eval() for kind in (RNNSeq2Seq, Narrow)]
    with pytest.raises(ValueError, match=r"attend to the same number of positions, got \[4, 9\]"):
        beam_search(Ensemble(models), torch.full((1, 9), 4), torch.tensor([9]))
