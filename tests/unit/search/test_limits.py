"""Limits of searches: prefixes, lengths and penalties, and their effect on certificates."""

from __future__ import annotations

import math
from typing import Any

import pytest

from contract.tables import EOS, A, B, C, TableModel, sources, trie
from tsallis.search import beam_search, exact_search, exhaustive
from tsallis.search.checks import LARGEST_SIZE
from tsallis.search.options import PENALTY
from tsallis.search.step import make_limits

ROWS = {
    (): {A: 0.6, B: 0.3, EOS: 0.1},
    (A,): {EOS: 0.5, B: 0.5},
    (A, B): {EOS: 1.0},
    (B,): {C: 1.0},
    (B, C): {EOS: 1.0},
}
SEARCHES = [beam_search, exhaustive]


def outputs(result) -> dict[tuple[int, ...], float]:
    return {h.tokens: round(h.prob, 12) for h in result.hypotheses}


@pytest.mark.parametrize("search", SEARCHES)
def test_prefixes_are_forced_and_scored(search) -> None:
    results = search(trie(ROWS), *sources(0, 0, 0), prefixes=[(A,), (B, C), ()])
    of_a, of_b = {(A,): 0.3, (A, B): 0.3}, {(B, C): 0.3}
    assert [outputs(r) for r in results] == [of_a, of_b, {**of_a, **of_b, (): 0.1}]
    assert [r.certificate.kind for r in results] == ["complete"] * 3
    assert results[0].best.support == (3, 2)  # supports of the model, regardless of forced symbols


@pytest.mark.parametrize("search", SEARCHES)
def test_an_impossible_prefix_gives_a_complete_empty_result(search) -> None:
    (result,) = search(trie(ROWS), *sources(0), prefixes=[(C,)])
    assert result.hypotheses == () and result.certificate.kind == "complete"


@pytest.mark.parametrize("search", SEARCHES)
def test_outputs_below_min_length_are_excluded(search) -> None:
    (result,) = search(trie(ROWS), *sources(0), min_length=2)
    assert outputs(result) == {(A, B): 0.3, (B, C): 0.3} and result.certificate.kind == "complete"


@pytest.mark.parametrize("search", SEARCHES)
def test_a_length_penalty_prefers_a_higher_mean_per_symbol(search) -> None:
    rows = {(): {A: 0.5, EOS: 0.5}, (A,): {A: 0.7, EOS: 0.3}, (A, A): {EOS: 1.0}}
    by_probability, by_mean = (search(trie(rows), *sources(0), length_penalty=a)[0] for a in (0.0, 1.0))
    assert [h.tokens for h in by_probability.hypotheses] == [(), (A, A), (A,)]
    assert [h.tokens for h in by_mean.hypotheses] == [(A, A), (), (A,)]
    assert by_mean.best.score(1.0) == pytest.approx(math.log(0.35) / 3)
    assert by_mean.certificate.kind == "complete"


def test_a_length_penalty_keeps_prefixes_that_could_win() -> None:
    """B scores below the finished output but is kept, because a longer output could score higher."""
    rows = {(): {EOS: 0.5, B: 0.4, C: 0.1}, (C,): {EOS: 1.0}}
    rows |= {(B,) * n: {B: 1.0} if n < 4 else {EOS: 1.0} for n in range(1, 5)}
    model = trie(rows)
    (plain,) = beam_search(model, *sources(0), beam_size=1, max_length=4)
    assert plain.best.tokens == () and plain.certificate.kind == "optimal" and model.rows_a_step == [1]
    (by_mean,) = beam_search(trie(rows), *sources(0), beam_size=1, max_length=4, length_penalty=1.0)
    assert by_mean.best.tokens == (B,) * 4
    # C has 0.1 and could reach a mean of 0.1 ** (1 / 5) per symbol, which is less than the best mean.
    assert by_mean.certificate.kind == "optimal" and by_mean.certificate.bound == pytest.approx(math.log(0.1) / 5)
    assert len(by_mean.proven) == 1 and by_mean.truncated(1).proven == by_mean.proven


def test_a_truncated_list_is_bounded_by_the_next_score() -> None:
    (result,) = exhaustive(trie(ROWS), *sources(0), length_penalty=1.0)
    cut = result.truncated(2)
    assert cut.certificate.kind == "optimal" and cut.certificate.bound == result.hypotheses[2].score(1.0)
    assert cut.length_penalty == 1.0


def test_the_default_length_counts_from_the_end_of_the_prefix() -> None:
    free, forced = make_limits([3, 3], [(), (A,) * 40])
    assert free.steps == 27 and forced.steps == 67
    assert make_limits([3], min_length=100)[0].steps == 101


IMPOSSIBLE = [
    ({"min_length": 3, "max_length": 2}, "min_length must be at most max_length 2, got 3"),
    ({"prefixes": [(A,), (B,)]}, "one prefix per source, got 2 prefixes for 1 sources"),
    ({"prefixes": [(A, B)], "max_length": 1}, "prefix of source 0 must have at most max_length 1 tokens, got 2"),
    ({"prefixes": [(A, EOS)]}, r"the prefix of source 0 must not contain .*, got \[4, 2\]"),
]


@pytest.mark.parametrize(("options", "message"), IMPOSSIBLE)
@pytest.mark.parametrize("search", SEARCHES)
def test_impossible_limits_raise(search, options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        search(trie(ROWS), *sources(0), **options)


def test_time_mass_and_length_limits_stop_a_search() -> None:
    model = trie({(A,) * n: {A: 0.5, EOS: 0.5} for n in range(60)})
    (result,) = exhaustive(model, *sources(0), mass=0.9, max_length=50)
    assert 0.9 <= result.mass < 1 - 1e-6 and result.stopped_by == "mass" and result.certificate.kind == "optimal"
    (late,) = exhaustive(model, *sources(0), time_limit=0.0)
    assert late.stopped_by == "time" and late.hypotheses == () and late.certificate.bound == 0 and late.expanded == 0
    (cut,) = exhaustive(model, *sources(0), max_length=3)
    assert cut.stopped_by == "length" and cut.expanded == 4
    with pytest.raises(ValueError, match=r"mass .* needs a model whose probabilities sum to 1"):
        exhaustive(trie(ROWS, normalized=False), *sources(0), mass=0.5)


def test_mass_does_not_stop_before_more_probable_open_prefixes() -> None:
    """B ends first and has enough mass, but A, which still needs a symbol, is more probable."""
    rows = {(): {A: 0.7, B: 0.3}, (A,): {A: 1.0}, (A, A): {EOS: 0.9, B: 0.1}, (B,): {EOS: 1.0}, (A, A, B): {EOS: 1.0}}
    (result,) = exhaustive(trie(rows), *sources(0), mass=0.2)
    assert [h.tokens for h in result.hypotheses] == [(A, A), (B,)]
    assert result.stopped_by == "mass" and result.certificate.kind == "optimal"
    assert len(result.proven) == 2


@pytest.mark.parametrize("penalty", [0.5, 1.0])
def test_penalized_scores_compare_outputs_up_to_max_length(penalty: float) -> None:
    """Scores are not compared with outputs beyond the maximum length, and the list is not complete."""
    rows = {(A,) * n: {A: 0.9, EOS: 0.1} for n in range(9)}
    (plain,) = exhaustive(trie(rows), *sources(0), max_length=3)
    assert plain.certificate.kind == "bounded" and len(plain.hypotheses) == 4
    for n_best in (None, 1):
        options = {"max_length": 3, "length_penalty": penalty, "n_best": n_best}
        (result,) = exhaustive(trie(rows), *sources(0), **options)
        assert result.certificate.kind == "optimal" and result.best.tokens == (A,) * 3
        assert result.stopped_by == (None if n_best else "length")
    (exact,) = exact_search(trie(rows), *sources(0), max_length=3, length_penalty=penalty)
    assert exact.certificate.kind == "optimal" and exact.best.tokens == (A,) * 3 and exact.stopped_by is None


@pytest.mark.parametrize("penalty", [1.0, 6.0, PENALTY])
def test_tiny_penalized_scores_are_told_apart(penalty: float) -> None:
    """The beam drops `b`; its output is less probable but longer, so a large penalty ranks it first."""
    last = {A: 25, B: 29}

    def row(_: int, prefix: tuple[int, ...]) -> dict[int, float]:
        if not prefix:
            return {A: 0.6, B: 0.4}
        return {EOS if len(prefix) == last[prefix[0]] else prefix[0]: 1.0}

    options: dict[str, Any] = {"max_length": 30, "length_penalty": penalty}
    best = max((math.log(p) / (last[token] + 1) ** penalty, token) for token, p in ((A, 0.6), (B, 0.4)))[1]
    (beam,) = beam_search(TableModel(row), *sources(0), beam_size=1, **options)
    assert beam.certificate.proves_best == (best == A) and len(beam.proven) == (best == A)
    (exact,) = exact_search(TableModel(row), *sources(0), beam_size=1, **options)
    assert exact.best.tokens[0] == best and exact.certificate.proves_best


def test_the_largest_penalty_does_not_overflow() -> None:
    (result,) = beam_search(trie(ROWS), *sources(0), length_penalty=PENALTY, max_length=LARGEST_SIZE)
    assert result.certificate.kind == "complete" and result.best.score(PENALTY) < 0
    limits = make_limits([1], max_length=LARGEST_SIZE, length_penalty=PENALTY)
    assert -math.inf < limits[0].score_bound(-1.0) < 0


def test_known_outputs_need_not_be_found_again() -> None:
    rows = {(): {A: 0.5, B: 0.3, C: 0.2}, (A,): {EOS: 0.9, A: 0.1}, (B,): {EOS: 1.0}, (C,): {EOS: 1.0}}
    (beam,) = beam_search(trie(rows), *sources(0), beam_size=1)
    model = trie(rows)
    (result,) = exhaustive(model, *sources(0), n_best=1, known=[beam])
    assert result.best.tokens == (A,) and result.certificate.kind == "optimal" and result.stopped_by is None
    assert sum(model.rows_a_step) == 2  # the start and A: neither B nor C could beat .45
    (every,) = exhaustive(trie(rows | {(A, A): {EOS: 1.0}}), *sources(0), known=[beam])
    assert len(every.hypotheses) == 4 and every.certificate.kind == "complete" and every.mass == pytest.approx(1)
