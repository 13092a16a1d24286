"""The output of an ensemble: probabilities are averaged, losses too, whatever the shape of the states."""

from __future__ import annotations

import pytest
import torch

from tsallis.nn import OutputLayer
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
