"""Outputs compared with references, and the empty output compared with all other outputs."""

from __future__ import annotations

import math
from typing import Any

import pytest

from contract.tables import EOS, A, B, random_table, sources, trie
from tsallis.search import SearchOptions, beam_search, exact_search
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.data.vocabulary import Vocabulary
from tsallis.toolkit.evaluation.empty_output import compare_empty
from tsallis.toolkit.evaluation.outputs import output_records
from tsallis.toolkit.evaluation.search_results import search_corpus

NAMES = Vocabulary(["a", "b", "c"])
LONGEST = 4


@pytest.mark.parametrize(("transform", "alpha"), [("softmax", 1.0), ("entmax", 1.5), ("alpha_relu", 1.5)])
def test_compare_empty_agrees_with_enumeration(transform: str, alpha: float) -> None:
    verdicts = set()
    for seed in range(60):
        table = random_table(transform, alpha, seed, sharpness=2.0)
        truth = table.enumerate(0, LONGEST)
        empty = truth.get((), -math.inf)
        most = max(truth.values(), default=-math.inf)
        for size in (1, 2, 5):
            (result,) = beam_search(table, *sources(0), beam_size=size, max_length=LONGEST)
            more, best = compare_empty(empty, result)
            least = result.best.log_prob if result.best else -math.inf
            assert more == (empty > least)
            if best != "unknown":
                assert (best == "yes") == (empty == most and empty > -math.inf)
            verdicts.add(best)
    assert {"yes", "no"} <= verdicts


@pytest.mark.parametrize("limits", [{"min_length": 1}, {"min_length": 2}, {"prefixes": [(A,)]}])
def test_compare_empty_is_correct_after_limited_searches(limits: dict[str, Any]) -> None:
    verdicts = set()
    for seed in range(150):
        table = random_table("entmax", 1.5, seed, sharpness=2.0)
        truth = table.enumerate(0, LONGEST)
        empty = truth.get((), -math.inf)
        (result,) = beam_search(table, *sources(0), beam_size=40, max_length=LONGEST, **limits)
        _, best = compare_empty(empty, result)
        if best != "unknown":
            assert (best == "yes") == (empty == max(truth.values(), default=-math.inf) and empty > -math.inf)
        verdicts.add(best)
    assert ("yes" in verdicts) == (limits == {"min_length": 1}) and {"no", "unknown"} <= verdicts


def test_compare_empty_returns_unknown_for_a_small_beam() -> None:
    rows = {(): {A: 0.4, B: 0.35, EOS: 0.25}, (A,): {A: 0.5, EOS: 0.5}, (A, A): {EOS: 1.0}, (B,): {EOS: 1.0}}
    (result,) = beam_search(trie(rows), *sources(0), beam_size=1)
    assert compare_empty(math.log(0.25), result) == (False, "unknown")
    (result,) = exact_search(trie(rows), *sources(0), beam_size=1)
    assert compare_empty(math.log(0.25), result) == (False, "no")


def test_a_record_holds_reference_output_and_certificate() -> None:
    rows = {(): {A: 0.7, EOS: 0.3}, (A,): {EOS: 1.0}}
    model, corpus = trie(rows), Corpus([[0], [0]], [[A], [B, A]])
    results = search_corpus(model, corpus, SearchOptions(beam_size=2))
    right, impossible = output_records(model, NAMES, corpus, [["a"], ["ba"]], results)
    assert right["output"] == {
        **{"text": "a", "right": True, "log_prob": pytest.approx(math.log(0.7)), "support": (2, 1)},
        **{"num_attended": (1, 1), "certificate": "complete", "bound": None, "hypotheses": 2},
        **{"mass": pytest.approx(1), "stopped_by": None},
    }
    assert right["reference"]["log_prob"] == pytest.approx(math.log(0.7)) and right["reference"]["impossible"] is None
    assert [t["symbol"] for t in right["reference"]["tokens"]] == ["a", "</s>"]
    assert right["empty"] == {"log_prob": pytest.approx(math.log(0.3)), "more_probable": False, "best_of_all": "no"}
    assert not impossible["output"]["right"] and not impossible["reference"]["possible"]
    assert impossible["reference"]["tokens"] == [{"symbol": "b", "log_prob": None, "support": 2}]
    excluded = impossible["reference"]["impossible"]
    assert (excluded["step"], excluded["symbol"], excluded["gap"], excluded["support"]) == (1, "b", None, 2)
    assert [x["symbol"] for x in excluded["instead"]] == ["a", "</s>"]
