"""The rate of empty outputs: compared exactly, and none after a complete search."""

from __future__ import annotations

import math

import pytest

from analysis_samples import corpus, lstm, sharp
from tsallis.errors import InputError
from tsallis.search import Certificate, Hypothesis, Result
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.evaluation.empty_output import empty_log_probs
from tsallis.toolkit.run_analysis import empty_rate


def test_empty_outputs_are_compared_exactly() -> None:
    model, data = sharp(lstm), corpus(4)
    empty = empty_log_probs(model, data).tolist()
    assert all(value > -math.inf for value in empty)

    def result(log_prob: float, tokens: tuple[int, ...] = (4,)) -> Result:
        return Result((Hypothesis(tokens, log_prob, (1, 1), (1, 1)),), Certificate("none", 0.0))

    less, more = math.nextafter(empty[0], -math.inf), math.nextafter(empty[1], 0)
    itself = math.nextafter(empty[2], -math.inf)  # its two sums may round differently
    nothing = Result((), Certificate("none", 0.0))
    empty_wins = empty_rate(model, data, [result(less), result(more), result(itself, ()), nothing])
    assert [output.index for output in empty_wins.outputs] == [0, 3] and empty_wins.rate == 0.5
    assert (empty_wins.outputs[0].empty, empty_wins.outputs[0].best) == (empty[0], less)
    assert empty_rate(model, data, [result(value) for value in empty]).rate == 0  # a tie is none


def test_empty_rates_of_nothing() -> None:
    with pytest.raises(InputError, match="corpus is empty"):
        empty_rate(lstm(), Corpus([], []), [])
    with pytest.raises(ValueError, match="got 0 for 4 sentences"):
        empty_rate(lstm(), corpus(4), [])
