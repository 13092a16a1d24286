"""Best-first search: its order, its budget, and its certificate when the budget is used up."""

from __future__ import annotations

import heapq
import importlib
import itertools
import math
from typing import Any

import pytest
import torch

from contract.tables import EOS, A, B, C, TableModel, random_table, sources, trie
from tsallis.models.protocol import Step, join
from tsallis.search import Ensemble, beam_search, exhaustive, sample

LONG = 5


def logs(result) -> list[float]:
    return [h.log_prob for h in result.hypotheses]


@pytest.mark.parametrize("budget", [1, 5, 16, 17, 60, 200])
def test_no_more_prefixes_than_the_budget_are_expanded(budget: int) -> None:
    model = random_table("softmax", 1.0, 1)
    (result,) = exhaustive(model, *sources(0), budget=budget, max_length=LONG)
    assert sum(model.rows_a_step) == result.expanded == budget
    assert result.stopped_by == "budget"
    assert result.certificate.kind in ("optimal", "bounded")
    assert model.enumerate(0, LONG).keys() - {h.tokens for h in result.hypotheses}


def test_stopped_by_is_budget_if_prefixes_stay_in_the_queue() -> None:
    """The budget drops no prefix: the last expanded prefixes only end, and others stay in the queue."""

    def row(source: int, prefix: tuple[int, ...]) -> dict[int, float]:
        if len(prefix) < 3:
            return {A: 1 / 3, B: 1 / 3, C: 1 / 3}
        goes_on = len(prefix) == 3 and (prefix[0] == A or prefix in ((B, A, A), (B, A, B)))
        return {A: 1.0} if goes_on else {EOS: 1.0}

    # 11 of the 27 prefixes of three symbols have a fourth: 1 + 3 + 9 + 16 + 11 are expanded, 11 are left.
    (result,) = exhaustive(TableModel(row), *sources(0), budget=40)
    assert (result.expanded, result.stopped_by, len(result.hypotheses)) == (40, "budget", 16)
    assert result.certificate.kind == "optimal" and result.certificate.bound == pytest.approx(-3 * math.log(3))


def test_prefixes_at_the_length_limit_may_still_end() -> None:
    (result,) = exhaustive(trie({(): {A: 1.0}, (A,): {EOS: 1.0}}), *sources(0), max_length=1)
    assert result.certificate.kind == "complete" and result.best.tokens == (A,)


@pytest.mark.parametrize(("seconds", "encoded"), [(None, [16, 4]), (60.0, [1] * 20)])
def test_a_time_limit_searches_sources_one_by_one(
    monkeypatch: pytest.MonkeyPatch, seconds: float | None, encoded: list[int]
) -> None:
    model, sizes = trie({(): {EOS: 1.0}}), []
    encode = model.encode
    monkeypatch.setattr(model, "encode", lambda src, lengths: sizes.append(len(src)) or encode(src, lengths))
    assert len(exhaustive(model, *sources(*range(20)), time_limit=seconds)) == 20
    assert sizes == encoded


def test_a_larger_budget_proves_more_and_lowers_the_bound() -> None:
    results = [exhaustive(random_table("softmax", 1.0, 2), *sources(0), budget=b)[0] for b in (10, 100, 1000)]
    bounds = [r.certificate.bound for r in results]
    assert bounds == sorted(bounds, reverse=True) and len(set(bounds)) == 3
    assert [r.mass for r in results] == sorted(r.mass for r in results)
    proven = [[h.tokens for h in r.proven] for r in results]
    assert proven[1] == proven[2][: len(proven[1])] and len(proven[0]) < len(proven[1]) < len(proven[2])


def test_budgeted_results_do_not_depend_on_other_sources() -> None:
    src, lengths = sources(*range(20))
    whole = exhaustive(random_table("softmax", 1.0, 4), src, lengths, budget=50, max_length=LONG)
    for i, result in enumerate(whole):
        (alone,) = exhaustive(random_table("softmax", 1.0, 4), *sources(i), budget=50, max_length=LONG)
        assert alone == result


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # The function has the name of its module and hides it, so import the module by name.
    monkeypatch.setattr(importlib.import_module("tsallis.search.best_first"), "CHUNK", 1)


@pytest.mark.usefixtures("one_at_a_time")
def test_certificates_bound_prefixes_dropped_from_the_queue() -> None:
    rows = {
        prefix: {A: 0.5, B: 0.3, C: 0.2} if n < 4 else {EOS: 1.0}
        for n in range(5)
        for prefix in itertools.product((A, B, C), repeat=n)
    }
    model = trie(rows)
    # The 40 inner prefixes leave 20 expansions for the 81 outputs, and the queue is empty.
    (result,) = exhaustive(model, *sources(0), budget=60)
    inner_first = sorted(model.enumerate(0, 4).values(), reverse=True)
    assert len(result.hypotheses) >= 20 and logs(result)[:20] == pytest.approx(inner_first[:20])
    assert result.certificate.kind == "optimal"
    assert result.certificate.bound == pytest.approx(inner_first[len(result.hypotheses)])


def best_first(model, source: int, budget: int) -> tuple[dict[tuple[int, ...], float], float]:
    """Run the same search in its simplest form; return its outputs and the best score of a prefix cut or left open."""
    queue: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished, bound = {}, -math.inf
    while queue and budget:
        cost, prefix = heapq.heappop(queue)
        budget -= 1
        for token, prob in model.row(source, prefix).items():
            total = math.log(prob) - cost
            if token == EOS:
                finished[prefix] = total
            elif len(prefix) == LONG:
                bound = max(bound, total)
            else:
                heapq.heappush(queue, (-total, (*prefix, token)))
    return finished, max(bound, -queue[0][0] if queue else -math.inf)


@pytest.mark.usefixtures("one_at_a_time")
@pytest.mark.parametrize("budget", [5, 60, 150, 300])
def test_a_pruned_queue_matches_plain_best_first_search(budget: int) -> None:
    model = random_table("softmax", 1.0, 5, sharpness=0.5)
    for source, result in enumerate(exhaustive(model, *sources(0, 1, 2), budget=budget, max_length=LONG)):
        finished, bound = best_first(model, source, budget)
        assert {h.tokens: h.log_prob for h in result.hypotheses} == pytest.approx(finished)
        assert result.certificate.bound == pytest.approx(bound)


def test_the_search_stops_when_n_best_outputs_are_proved() -> None:
    model = random_table("softmax", 1.0, 10)
    (result,) = exhaustive(model, *sources(0), n_best=2, max_length=LONG)
    truth = sorted(model.enumerate(0, LONG).values(), reverse=True)
    assert logs(result) == pytest.approx(truth[:2]) and result.certificate.kind == "optimal"
    assert sum(model.rows_a_step) < 40
    # The bound of a truncated list covers the most probable output that is not on it.
    assert result.certificate.bound >= truth[2] - 1e-12


def test_infinite_output_sets_stop_at_max_length() -> None:
    forever = trie({(A,) * n: {A: 0.5, EOS: 0.5} for n in range(100)})
    (result,) = exhaustive(forever, *sources(0), max_length=9)
    assert len(result.hypotheses) == 10 and result.certificate.kind == "optimal"
    assert math.exp(result.certificate.bound) == pytest.approx(0.5**10)


@pytest.mark.usefixtures("one_at_a_time")
def test_unnormalized_values_need_a_complete_search() -> None:
    rows = {(): {A: 0.5, B: 0.2}, (A,): {EOS: 0.5}, (B,): {A: 4.0}, (B, A): {EOS: 2.0}}
    (result,) = exhaustive(trie(rows, normalized=False), *sources(0))
    assert result.certificate.kind == "complete" and [h.tokens for h in result.hypotheses] == [(B, A), (A,)]
    (short,) = exhaustive(trie(rows, normalized=False), *sources(0), budget=2, n_best=1)
    assert short.certificate.kind == "none" and short.best.tokens == (A,)
    (first,) = exhaustive(trie(rows, normalized=False), *sources(0), n_best=1)
    assert first.best.tokens == (B, A) and first.certificate.proves_best


def test_a_dead_end_gives_a_complete_empty_result() -> None:
    (dead,) = exhaustive(trie({(): {A: 1.0}}, normalized=False), *sources(0))
    assert dead.best is None and dead.certificate.kind == "complete" and dead.mass == 0


def test_nan_raises_and_names_its_source() -> None:
    model = random_table("softmax", 1.0, 0)
    plain = model.row
    model.row = lambda source, prefix: {A: math.nan} if source == 17 and prefix else plain(source, prefix)
    with pytest.raises(ValueError, match="NaN for source 17"):
        exhaustive(model, *sources(*range(20)), max_length=LONG, budget=10)


def test_a_text_mass_equal_to_the_limit_stops_the_search() -> None:
    model = trie(
        {(): {A: 0.5, B: 0.25, C: 0.25}, (A,): {EOS: 1.0}, (B,): {EOS: 1.0}, (C,): {A: 1.0}, (C, A): {EOS: 1.0}}
    )
    (found,) = exhaustive(model, *sources(0), mass=0.5, text=str)
    assert found.stopped_by == "mass" and [h.tokens for h in found.hypotheses] == [(A,), (B,)]


class PlainState:
    """State that is not a dataclass."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def select(self, index: torch.Tensor) -> PlainState:
        return PlainState(self.rows[index])


class WithoutRows(TableModel):
    """Model that returns no rows of scores."""

    def step(self, state: Any, token: torch.Tensor) -> Step:
        step = super().step(state, token)
        return step._replace(scores=step.scores[:0])


def test_wrong_models_and_results_raise() -> None:
    with pytest.raises(TypeError, match=r"method join\(states\), got PlainState"):
        join([PlainState(torch.zeros(1)), PlainState(torch.zeros(1))])
    for search in (exhaustive, sample, beam_search):
        with pytest.raises(ValueError, match="one row per token, got 0 rows, not 1"):
            search(WithoutRows(random_table("softmax", 1.0, 1).row), *sources(0))
    with pytest.raises(TypeError, match="known must contain results of a search, got 1"):
        exhaustive(trie({(): {EOS: 1.0}}), *sources(0), known=[1])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="models with the decoder protocol, got 3"):
        Ensemble([3])  # type: ignore[list-item]
