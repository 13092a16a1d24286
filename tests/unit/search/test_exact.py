"""Exact search: the argmax with its proof, and results without a proof."""

from __future__ import annotations

import math
import random

import pytest

from contract.tables import EOS, TRAP, A, B, C, random_table, sources, trie
from tsallis.search import beam_search, exact_search

LONGEST = 4


@pytest.mark.parametrize("transform", ["softmax", "entmax", "sparsemax"])
def test_exact_search_finds_and_proves_the_best_outputs(transform: str) -> None:
    alpha = {"softmax": 1.0, "entmax": 1.5, "sparsemax": 2.0}[transform]
    src, lengths = sources(*range(4))
    for seed in range(6):
        table, n_best = random_table(transform, alpha, seed), random.Random(seed).choice((1, 2, 3))
        results = exact_search(table, src, lengths, n_best=n_best, beam_size=1, max_length=LONGEST)
        for source, result in enumerate(results):
            longer = table.enumerate(source, LONGEST + 1)
            ranks = sorted(longer.values(), reverse=True)
            for hypothesis, rank in zip(result.proven, ranks, strict=False):
                assert hypothesis.log_prob == pytest.approx(rank)
            assert len(result.hypotheses) <= n_best
            # Only the maximum length may prevent a proof.
            proved = len(result.proven) == n_best or result.certificate.kind == "complete"
            assert result.stopped_by == (None if proved else "length")


def test_exact_search_corrects_the_greedy_output() -> None:
    (greedy,) = beam_search(trie(TRAP), *sources(0), beam_size=1)
    (exact,) = exact_search(trie(TRAP), *sources(0), beam_size=1)
    assert greedy.best.tokens == (A,) and exact.best.tokens == (B,) and exact.certificate.kind == "optimal"
    assert exact.expanded > 0


@pytest.mark.parametrize(("n_best", "beam_size", "kind", "count"), [(1, 2, "optimal", 1), (5, 5, "complete", 3)])
def test_a_proved_beam_result_needs_no_second_search(n_best: int, beam_size: int, kind: str, count: int) -> None:
    model = trie(TRAP)
    (result,) = exact_search(model, *sources(0), n_best=n_best, beam_size=beam_size)
    assert result.best.tokens == (B,) and len(result.hypotheses) == count
    assert result.certificate.kind == kind and result.expanded == 0
    assert model.rows_a_step == [1, 2, 1]


def test_unproved_results_are_bounded() -> None:
    (result,) = exact_search(trie(TRAP), *sources(0), beam_size=1, budget=1)
    assert result.stopped_by == "budget" and result.certificate.kind == "bounded"
    assert result.best.tokens == (A,) and math.exp(result.certificate.bound) == pytest.approx(0.4)


def test_mass_stops_only_with_proved_outputs() -> None:
    (one,) = exact_search(trie(TRAP), *sources(0), beam_size=1, mass=0.1)
    assert one.best.tokens == (B,) and one.certificate.kind == "optimal" and one.stopped_by is None
    halves = {A: 0.5, B: 0.5}
    rows = {(): {A: 0.5, B: 0.26, C: 0.24}, (A,): {EOS: 1.0}, (B,): halves, (C,): {EOS: 1.0}}
    model = trie(rows | {(B, A): {EOS: 1.0}, (B, B): {EOS: 1.0}})
    two, some = (exact_search(model, *sources(0), n_best=2, beam_size=2, mass=mass)[0] for mass in (None, 0.4))
    assert [h.tokens for h in two.hypotheses] == [(A,), (C,)] and two.stopped_by is None
    assert some.stopped_by == "mass" and [h.tokens for h in some.proven] == [(A,)] and some.expanded == 0


def test_the_best_output_of_growing_values_is_proved() -> None:
    rows = {(): {A: 0.3, B: 0.1, EOS: 0.4}, (A,): {EOS: 0.2}, (B,): {EOS: 9.0}}
    (result,) = exact_search(trie(rows, normalized=False), *sources(0), beam_size=1)
    assert result.best.tokens == (B,) and result.certificate.proves_best


def test_prefixes_stay_with_their_sources_under_a_time_limit() -> None:
    prefixes = [(A,), (), (B,)]
    for seconds in (None, 60.0):
        results = exact_search(trie(TRAP), *sources(0, 0, 0), beam_size=1, prefixes=prefixes, time_limit=seconds)
        assert [r.best.tokens for r in results] == [(A,), (B,), (B,)]
        assert all(r.certificate.proves_best for r in results)
