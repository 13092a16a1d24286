"""The gap of a beam search: smaller changes of the scores never change the outputs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from contract.tables import EOS, A, B, TableModel, random_table, sources
from tsallis.models import RNNSeq2Seq
from tsallis.models.copying import CopyOutput
from tsallis.models.protocol import Step
from tsallis.nn import OutputLayer
from tsallis.search import Stability, beam_search, stability

LONGEST = 4


class Scores(TableModel):
    """A model with random scores, each changed by at most `error`."""

    def __init__(self, alpha: float, seed: int, error: float = 0.0, noise: int = 0) -> None:
        super().__init__(lambda source, prefix: {})
        self.output: Any = OutputLayer(1, 7, "entmax", alpha) if alpha > 1 else OutputLayer(1, 7, "softmax")
        self.seed, self.error, self.noise = seed, error, noise

    def step(self, state: Any, token: Tensor) -> Step:
        step = super().step(state, token)
        scores = torch.full((len(token), 7), -torch.inf, dtype=torch.float64)
        for row, node in enumerate(step.state.node.tolist()):
            prefix = self.prefixes[node]
            code = sum((symbol - 3) * 4**i for i, symbol in enumerate(prefix)) + 4**9 * self.seed
            scores[row, [EOS, 4, 5, 6]] = 2 * torch.randn(4, generator=generator(code), dtype=torch.float64)
            signs = torch.randint(0, 2, (4,), generator=generator(code + 7919 * self.noise)) * 2 - 1
            scores[row, [EOS, 4, 5, 6]] += self.error * signs
        return Step(scores, step.attention, step.state)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def listed(model: Any, **options: Any) -> list[tuple[int, ...]]:
    (result,) = beam_search(model, *sources(0), max_length=LONGEST, **options)
    return [hypothesis.tokens for hypothesis in result.hypotheses]


@pytest.mark.parametrize("alpha", [1.0, 1.25, 1.5, 2.0])
@pytest.mark.parametrize(("beam_size", "n_best"), [(1, 1), (2, 1), (3, 3), (2, 9)])
def test_score_changes_below_the_gap_keep_the_outputs(alpha: float, beam_size: int, n_best: int) -> None:
    changed = 0
    for seed in range(6):
        options: Any = {"beam_size": beam_size, "n_best": n_best}
        (found,) = stability(Scores(alpha, seed), *sources(0), max_length=LONGEST, **options)
        assert 0 < found.gap < math.inf and found.rounding < 1e-12 and found.stable
        expected = listed(Scores(alpha, seed), **options)
        for noise in range(5):
            assert listed(Scores(alpha, seed, 0.999 * found.gap, noise), **options) == expected
            changed += listed(Scores(alpha, seed, 20 * found.gap, noise), **options) != expected
    assert changed  # the gap is not far too small


def test_the_gap_of_a_single_step_matches_the_formula() -> None:
    """A single step has two outputs, whose log-probabilities differ by 1."""
    model = Scores(1.0, 0)
    table = torch.full((1, 7), -torch.inf, dtype=torch.float64)
    table[0, [EOS, A]] = torch.tensor([1.0, 0.0], dtype=torch.float64)
    start = model.step

    def step(state: Any, token: Tensor) -> Step:
        found = start(state, token)
        ends = torch.where(torch.arange(7) == EOS, 0.0, -torch.inf).double().expand(len(token), 7)
        return Step(table if not found.state.node.any() else ends, found.attention, found.state)

    model.step = step  # type: ignore[method-assign]
    (found,) = stability(model, *sources(0), beam_size=1)
    assert found.gap == pytest.approx(1 / (4 * math.log(2) * 2))  # `a` is dropped below the listed empty output
    (found,) = stability(model, *sources(0), beam_size=1, n_best=2)
    assert found.gap == pytest.approx(1 / (4 * math.log(2) * 3))  # the second output has two steps
    table[0, B] = 0.0
    (found,) = stability(model, *sources(0), beam_size=1, n_best=2)
    assert found.gap == 0 and not found.stable  # which of two equal prefixes is kept depends on rounding


def test_stable_needs_a_gap_above_the_rounding_error() -> None:
    assert Stability(2e-6, 1e-6).stable and not Stability(1e-6, 1e-6).stable


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="needs a model with an OutputLayer, got GivenLogProbs"):
        stability(random_table("softmax", 1.0, 0), *sources(0))
    copying = Scores(1.5, 0)
    copying.output = CopyOutput(1, 7, [-1] * 7)  # a mixture, whose scores are not scores of entmax
    with pytest.raises(ValueError, match="got CopyOutput"):
        stability(copying, *sources(0))
    with pytest.raises(ValueError, match="those of alpha-ReLU do not"):
        stability(RNNSeq2Seq(20, 6, d_model=8, output="alpha_relu"), *sources(0))
    with pytest.raises(ValueError, match="n_best must be at least 1, got 0"):
        stability(Scores(1.5, 0), *sources(0), n_best=0)
    assert stability(Scores(1.5, 0), torch.empty(0, 1, dtype=torch.long), torch.empty(0, dtype=torch.long)) == []


def test_a_dead_end_has_an_infinite_gap() -> None:
    model = RNNSeq2Seq(20, 6, d_model=8, output="sparsemax")
    with torch.no_grad():
        model.output.projection.bias.fill_(-math.inf)
    assert stability(model, *sources(0)) == [Stability(math.inf, 0.0)]
