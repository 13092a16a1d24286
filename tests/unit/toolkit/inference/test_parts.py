"""Alignments from attention matrices, columns of several tasks, and answers without outputs."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tsallis.errors import InputError
from tsallis.search import Certificate, Hypothesis, Result, SearchOptions
from tsallis.toolkit.inference.alignment import links_of, pharaoh
from tsallis.toolkit.inference.answers import Answer, Output
from tsallis.toolkit.inference.run import join_columns
from tsallis.toolkit.inference.searching import choose
from tsallis.toolkit.tasks.classification import Classification
from tsallis.toolkit.tasks.language import Language
from tsallis.toolkit.tasks.strings import Strings
from tsallis.toolkit.tasks.translation import Translation
from tsallis.toolkit.tasks.vqa import Visual


def test_links_match_argmax_or_nonzero_weights() -> None:
    torch.manual_seed(0)
    weights = torch.rand(40, 12).mul(4).round().sub(2).clamp(min=0)  # many zeros and ties
    largest, support = links_of(weights, "largest"), links_of(weights, "support")
    rows = [row for row in range(40) if weights[row].any()]
    assert 0 < len(rows) < 40 or weights.any(-1).all()
    assert [(int(weights[row].numpy().argmax()), row) for row in rows] == [*largest]
    assert {*largest} <= {*support} == {(int(s), int(t)) for t, s in weights.nonzero()}
    assert links_of(torch.zeros(2, 3), "largest") == () and pharaoh(()) == ""
    assert links_of(torch.zeros(0, 3), "support") == ()


@pytest.mark.parametrize(
    ("task", "source", "target", "line"),
    [
        (Translation(), "ein Hund", "a dog", "ein Hund\ta dog"),
        (Strings(None), "draw\tV;PST", "", "draw\t\tV;PST"),
        (Classification(), "a lovely film", "pos", "pos\ta lovely film"),
        (Visual(), "1\twhat?", "red", "1\twhat?\tred"),
    ],
)
def test_join_columns_puts_the_output_in_its_column(task, source: str, target: str, line: str) -> None:
    assert join_columns(task, [source], [target]) == [line]


def test_join_columns_rejects_targets_for_language_models() -> None:
    with pytest.raises(InputError, match="targets can't be used with the task language"):
        join_columns(Language(), ["a"], ["b"])


def test_answers_without_outputs_have_default_fields() -> None:
    assert (Answer(1).text, Answer(1).score, Answer(1).tokens, Answer(1).certificate) == ("", None, (), "none")


@pytest.mark.parametrize("kind", ["complete", "optimal"])
def test_a_tie_of_risks_is_proved_only_by_a_complete_list(kind: Any) -> None:
    """The probabilities add up to 1 in float64, but the search dropped a prefix of probability e-50."""
    hypotheses = [Hypothesis((token,), math.log(0.5), (2, 1), (1, 1)) for token in (4, 5)]
    outputs = [Output(text, (text,), math.log(0.5), h) for text, h in zip("ab", hypotheses, strict=True)]
    result = Result(tuple(hypotheses), Certificate(kind, -50.0 if kind == "optimal" else -math.inf))
    assert result.mass == 1
    run: Any = SimpleNamespace(model=SimpleNamespace(output=SimpleNamespace(normalized=True)))
    choice = choose(run, Strings(None), SearchOptions(min_risk=True), outputs, result)
    assert choice is not None and choice.proved == (kind == "complete")


def test_the_least_risk_of_improbable_outputs_is_found() -> None:
    """The middle output has the least risk, although all probabilities underflow to 0."""
    log_probs = {"walk": -1000.36, "tall": -1000.3, "talk": -1000.34}
    hypotheses = [Hypothesis((4 + i,), log_prob, (2, 1), (1, 1)) for i, log_prob in enumerate(log_probs.values())]
    outputs = [Output(text, (text,), h.log_prob, h) for text, h in zip(log_probs, hypotheses, strict=True)]
    run: Any = SimpleNamespace(model=SimpleNamespace(output=SimpleNamespace(normalized=True)))
    result = Result(tuple(hypotheses), Certificate("bounded", -1.0))
    choice = choose(run, Strings(None), SearchOptions(min_risk=True), outputs, result)
    assert choice is not None and outputs[choice.index].text == "talk" and not choice.proved
    assert choose(run, Strings(None), SearchOptions(min_risk=True), [], Result((), result.certificate)) is None
    drawn = choose(run, Strings(None), SearchOptions(mode="sample", min_risk=True), outputs[:1] * 30, None)
    assert drawn is not None and not drawn.proved  # other outputs exist, although no draw shows them
