"""Minimum-risk decoding, compared with all pairs of outputs."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import pytest

from tsallis.search import Certificate, Hypothesis, Result, SearchOptions, minimum_risk
from tsallis.toolkit.inference.searching import choose


def agreement(text: str, reference: str) -> float:
    """Return the share of positions of the longer text at which both texts have the same symbol."""
    return sum(a == b for a, b in zip(text, reference, strict=False)) / max(len(text), len(reference), 1)


def expected(texts: list[str], weights: list[float]) -> list[float]:
    total = math.fsum(weights)
    return [math.fsum(w * agreement(t, r) for r, w in zip(texts, weights, strict=True)) / total for t in texts]


def test_minimum_risk_matches_a_comparison_of_all_pairs() -> None:
    proofs = set()
    for seed in range(200):
        chance = random.Random(seed)
        count = chance.randrange(1, 12)
        texts = ["".join(chance.choices("ab", k=chance.randrange(5))) for _ in range(count)]
        weights = [chance.random() ** 4 for _ in texts]
        missing = chance.choice((0.0, 0.01, 0.3)) * math.fsum(weights)
        choice = minimum_risk(texts, weights, agreement, missing)
        truth = expected(texts, weights)
        assert choice is not None and truth[choice.index] == pytest.approx(max(truth))
        assert choice.expected_utility == pytest.approx(max(truth))
        others = [t for t, text in zip(truth, texts, strict=True) if text != texts[choice.index]]
        lead = (max(truth) - max(others, default=-math.inf)) * math.fsum(weights)
        if abs(lead - missing) > 1e-9:
            assert choice.proved == (not missing or (bool(others) and lead >= missing))
        proofs.add(choice.proved)
    assert proofs == {True, False}


def test_a_text_that_was_drawn_twice_counts_twice() -> None:
    choice = minimum_risk(["b", "a", "a"], [1.0] * 3, agreement)
    assert choice is not None and (choice.index, choice.expected_utility) == (1, pytest.approx(2 / 3))


def test_no_texts_give_none_and_invalid_weights_raise() -> None:
    assert minimum_risk([], [], agreement) is None and minimum_risk(["a"], [0.0], agreement) is None
    for weights in ([1.0], [1.0, -1.0], [1.0, math.nan]):
        with pytest.raises(ValueError, match="weights must"):
            minimum_risk(["a", "b"], weights, agreement)
    for missing in (-1.0, math.nan):
        with pytest.raises(ValueError, match="missing must be at least 0"):
            minimum_risk(["a", "b"], [0.6, 0.4], agreement, missing)


@pytest.mark.parametrize("score", [100.0, -0.5, math.nan])
def test_utilities_outside_their_range_are_refused(score: float) -> None:
    with pytest.raises(ValueError, match=f"from 0 to 1, got {score:g} for 'a' and 'a'"):
        minimum_risk(["a", "b"], [0.6, 0.4], lambda text, reference: score)


def test_hopeless_candidates_are_abandoned_early() -> None:
    calls: list[str] = []

    def count(text: str, reference: str) -> float:
        calls.append(text)
        return float(text == reference)

    texts = [str(i) for i in range(200)]
    choice = minimum_risk(texts, [0.9] + [0.1 / 199] * 199, count)
    assert choice is not None and choice.index == 0 and len(calls) == 200 + 199


def test_large_scores_do_not_prove_a_minimum_risk_choice() -> None:
    run: Any = SimpleNamespace(model=SimpleNamespace(output=SimpleNamespace(normalized=True)))
    task: Any = SimpleNamespace(utility=agreement)
    outputs: Any = [SimpleNamespace(text=x, log_prob=math.log(p)) for x, p in (("a", 0.9), ("b", 0.1))]
    found = tuple(Hypothesis((k,), math.log(p), (2,), (1,)) for k, p in ((4, 0.9), (5, 0.1)))
    for certificate, proved in ((Certificate("complete", -math.inf), True), (Certificate("none", 0.0, "large"), False)):
        choice = choose(run, task, SearchOptions(min_risk=True), outputs, Result(found, certificate))
        assert choice is not None and choice.index == 0 and choice.proved == proved


def test_ties_go_to_the_largest_weight_in_spite_of_rounding() -> None:
    utilities = {"a": (0, 0.5, 0.75), "b": (0.75, 0.25, 0.5), "c": (0, 0.25, 1)}  # a and b both sum to exactly 7/40
    choice = minimum_risk(["a", "b", "c"], [0.1, 0.2, 0.1], lambda text, other: utilities[text]["abc".index(other)])
    assert choice is not None and choice.index == 1 and choice.proved


def test_a_single_candidate_or_unknown_outputs_prove_nothing() -> None:
    for weights, missing in (([0.1], 0.9), ([0.1], math.inf), ([0.9, 0.1], math.inf)):
        choice = minimum_risk(["a", "b"][: len(weights)], weights, agreement, missing)
        assert choice is not None and not choice.proved
    alone = minimum_risk(["a"], [1.0], agreement)
    assert alone is not None and alone.proved
