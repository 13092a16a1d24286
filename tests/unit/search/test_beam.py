"""Beam search: which prefixes it drops, when it stops, and what its result reports."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import tsallis
from contract.tables import EOS, TRAP, A, B, C, Nodes, TableModel, random_table, sources, trie
from tsallis.models.protocol import Step
from tsallis.ops.arguments import BestSymbols
from tsallis.search import Ensemble, beam_search, exact_search, exhaustive, sample
from tsallis.search.beam import copy_to_cpu


def search(model, **options):
    (result,) = beam_search(model, *sources(0), **options)
    return result


def test_a_trapped_greedy_search_is_only_bounded() -> None:
    result = search(trie(TRAP), beam_size=1)
    assert result.best.tokens == (A,) and result.best.prob == pytest.approx(0.3)
    assert result.certificate.kind == "bounded"
    assert math.exp(result.certificate.bound) == pytest.approx(0.4)
    assert not result.certificate.proves_best and result.proven == ()


def test_dropped_competing_ends_are_bounded() -> None:
    """With beam size 1, "A" ends only if no continuation is more probable, or at the maximum length."""
    rows = {(): {A: 0.9, EOS: 0.1}, (A,): {EOS: 0.4, B: 0.6}, (A, B): {EOS: 0.7, C: 0.3}, (A, B, C): {EOS: 1.0}}
    result = search(trie(rows), beam_size=1, end_rule="competing")
    assert [h.tokens for h in result.hypotheses] == [(A, B)] and result.best.prob == pytest.approx(0.378)
    assert result.certificate.kind == "optimal" and math.exp(result.certificate.bound) == pytest.approx(0.36)
    limited = search(trie(rows), beam_size=1, end_rule="competing", max_length=1)
    assert [h.tokens for h in limited.hypotheses] == [(A,)]
    assert [h.tokens for h in search(trie(rows), beam_size=1).hypotheses] == [(A, B), (A,), (A, B, C), ()]
    assert search(trie(rows), beam_size=2, end_rule="competing").certificate.kind == "complete"


def test_a_beam_that_holds_everything_is_complete() -> None:
    result = search(trie(TRAP), beam_size=2)
    assert result.certificate.kind == "complete" and result.certificate.bound == -math.inf
    assert {h.tokens: round(h.prob, 12) for h in result.hypotheses} == {(B,): 0.4, (A,): 0.3, (A, C): 0.3}
    assert result.mass == pytest.approx(1)
    assert result.proven == result.hypotheses


def test_a_list_cut_short_is_not_called_complete() -> None:
    result = search(trie(TRAP), beam_size=2, n_best=1)
    assert [h.tokens for h in result.hypotheses] == [(B,)]
    assert result.certificate.kind == "optimal"
    assert math.exp(result.certificate.bound) == pytest.approx(0.3)
    assert search(trie(TRAP), beam_size=2, n_best=3).certificate.kind == "complete"


def test_ties_are_broken_by_the_symbols() -> None:
    result = search(trie(TRAP), beam_size=2)
    assert [h.tokens for h in result.hypotheses] == [(B,), (A,), (A, C)]
    even = trie({(): {C: 0.25, B: 0.25, A: 0.25, EOS: 0.25}, **{(token,): {EOS: 1.0} for token in (A, B, C)}})
    assert [h.tokens for h in search(even, beam_size=2, n_best=3).hypotheses] == [(), (A,), (B,)]
    late = {(): {A: 0.5, B: 0.25, C: 0.25}, (A,): {EOS: 0.5, C: 0.5}, (A, C): {EOS: 1.0}}
    late |= {(token,): {EOS: 1.0} for token in (B, C)}
    assert [h.tokens for h in search(trie(late), beam_size=3, n_best=2).hypotheses] == [(A,), (A, C)]


def test_support_and_attention_are_counted_at_every_step() -> None:
    result = search(trie(TRAP), beam_size=2)
    supports = {h.tokens: h.support for h in result.hypotheses}
    assert supports == {(B,): (2, 1), (A,): (2, 2), (A, C): (2, 2, 1)}
    assert all(h.num_attended == (1,) * len(h.support) for h in result.hypotheses)


def test_the_batch_contains_only_open_prefixes() -> None:
    model = trie(TRAP)
    beam_search(model, *sources(0, 0, 0), beam_size=5)
    assert model.rows_a_step == [3, 6, 3]


def test_an_incomplete_beam_stops_when_nothing_can_win() -> None:
    # After the first step the best output has 0.9, but the search could extend the others forever.
    model = trie({(): {EOS: 0.9, A: 0.06, B: 0.04}, **{(A,) * n: {A: 0.5, EOS: 0.5} for n in range(1, 50)}})
    result = search(model, beam_size=1, max_length=40)
    assert result.certificate.kind == "optimal" and math.exp(result.certificate.bound) == pytest.approx(0.06)
    assert model.rows_a_step == [1]


def test_an_incomplete_beam_drops_prefixes_that_cannot_win() -> None:
    rows = {(): {EOS: 0.3, A: 0.5, B: 0.15, C: 0.05}, (A,): {B: 1.0}, (A, B): {EOS: 1.0}}
    rows |= {(B,) * n: {B: 0.5, EOS: 0.5} for n in range(1, 50)}
    model = trie(rows)
    result = search(model, beam_size=2, n_best=1, max_length=40)
    assert model.rows_a_step == [1, 1, 1]  # B was dropped together with C, because the end alone has 0.3
    assert result.best.tokens == (A, B) and result.certificate.kind == "optimal"


def test_prefixes_below_the_second_best_output_are_dropped() -> None:
    rows = {(): {EOS: 0.3, A: 0.4, B: 0.2, C: 0.1}, (A,): {A: 0.6, B: 0.4}, (B,): {A: 0.9, B: 0.1}}
    rows |= {(C,): {EOS: 1.0}, (A, A): {EOS: 1.0}, (A, B): {C: 1.0}, (B, A): {C: 1.0}}
    model = trie(rows)
    result = search(model, beam_size=3, n_best=2)
    assert [(h.tokens, round(h.prob, 12)) for h in result.hypotheses] == [((), 0.3), ((A, A), 0.24)]
    assert model.rows_a_step == [1, 3, 3]  # 0.24 replaces the 0.1 of C as the second best, and no prefix has more
    assert result.proven == result.hypotheses and math.exp(result.certificate.bound) == pytest.approx(0.18)


def test_a_beam_continues_while_it_can_be_complete() -> None:
    rows = {(A,) * n: {A: 0.1, EOS: 0.9} for n in range(6)} | {(A,) * 6: {EOS: 1.0}}
    result = search(trie(rows), beam_size=1, max_length=10)
    assert result.certificate.kind == "complete" and len(result.hypotheses) == 7
    cut = search(trie(rows), beam_size=1, max_length=3)
    assert cut.certificate.kind == "optimal" and len(cut.hypotheses) == 4
    assert math.exp(cut.certificate.bound) == pytest.approx(1e-4)


def test_growing_values_stop_once_n_best_outputs_are_better() -> None:
    rows = {(): {A: 0.3, B: 0.1, EOS: 0.4}, (A,): {A: 2.0, EOS: 0.2}, (A, A): {EOS: 3.0, A: 0.1}}
    for n_best, tokens, value in ((1, (), 0.4), (2, (A, A), 1.8)):
        result = search(trie(rows, normalized=False), beam_size=1, n_best=n_best, max_length=2)
        assert result.best.tokens == tokens and result.best.prob == pytest.approx(value)
        assert result.certificate.kind == "none" and result.proven == ()
    everything = search(trie({**rows, (B,): {}, (A, A): {EOS: 3.0}}, normalized=False), beam_size=5)
    assert everything.certificate.kind == "complete" and everything.best.tokens == (A, A)


def test_a_too_small_max_length_gives_no_hypothesis() -> None:
    rows = {(): {A: 1.0}, (A,): {B: 1.0}, (A, B): {EOS: 1.0}}
    short = search(trie(rows), max_length=1)
    assert short.best is None and short.mass == 0
    assert short.certificate.kind == "none" and short.certificate.bound == 0
    assert search(trie(rows), max_length=2).certificate.kind == "complete"


def test_the_default_length_limit_grows_with_the_source() -> None:
    model = trie({(A,) * n: {A: 1.0} for n in range(100)})
    src = torch.zeros(2, 4, dtype=torch.long)
    beam_search(model, src, torch.tensor([1, 4]))
    assert model.rows_a_step == [2] * 23 + [1] * 6  # 2 * length + 20 symbols and one step to end


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("backend", ["auto", "eager"])
@pytest.mark.parametrize("attends", [True, False])
def test_searches_accept_any_dtype_and_no_attention(dtype: torch.dtype, backend: str, attends: bool) -> None:
    """Every search accepts log-probabilities of any dtype, and models without attention."""

    class Own(TableModel):
        def step(self, state: Nodes, token: Tensor) -> Step:
            scores, attention, state = super().step(state, token)
            return Step(scores.to(dtype), attention if attends else None, state)

    model = Own(lambda source, prefix: {A: 0.25, B: 0.5, EOS: 0.25} if len(prefix) < 3 else {EOS: 1.0})
    src, lengths = torch.zeros(2, 1, dtype=torch.long), torch.tensor([1, 1])
    with tsallis.backend(backend):
        expected = exhaustive(model, src, lengths)[0].hypotheses
        for found in (
            beam_search(model, src, lengths, beam_size=30)[1],
            beam_search(Ensemble([model, model]), src, lengths, beam_size=30)[0],
            exact_search(model, src, lengths, beam_size=2, n_best=len(expected))[1],
        ):
            assert {h.tokens: h.log_prob for h in found.hypotheses} == pytest.approx(
                {h.tokens: h.log_prob for h in expected}, rel=1e-2
            )
            assert found.certificate.kind == "complete"
            assert [h.num_attended for h in found.hypotheses] == [h.num_attended for h in expected]
        (kept, _) = beam_search(model, src, lengths, keep_attention=True)
        assert (kept.best.attention is not None) == attends
        assert sample(model, src, lengths, num_samples=2, seeds=[1, 2])[0][0].log_prob > -math.inf
    assert expected[0].log_prob == pytest.approx(math.log(0.25), rel=1e-2) and len(expected) == 15


def test_a_step_with_a_wrong_number_of_rows_raises() -> None:
    class Wrong(TableModel):
        def step(self, state: Nodes, token: Tensor) -> Step:
            scores, attention, state = super().step(state, token)
            return Step(scores.repeat(3, 1), attention.repeat(3, 1), state)

    with pytest.raises(ValueError, match="one row per token, got 3 rows, not 1"):
        beam_search(Wrong(lambda source, prefix: {EOS: 1.0}), torch.zeros(1, 1, dtype=torch.long), torch.tensor([1]))


@pytest.mark.parametrize("size", [1, 3])
def test_nan_scores_raise(size: int) -> None:
    model = trie({(): {A: 0.5, EOS: 0.5}, (A,): {EOS: math.nan}})
    with pytest.raises(ValueError, match="NaN for source 0"):
        search(model, beam_size=size)


def test_huge_beam_sizes_give_the_same_result() -> None:
    result = search(trie(TRAP), beam_size=10**12)
    assert result.certificate.kind == "complete" and result == search(trie(TRAP), beam_size=2)


def test_vocabularies_too_large_to_sort_give_the_same_results(monkeypatch: pytest.MonkeyPatch) -> None:
    src, lengths = sources(*range(6))
    sorted_whole = beam_search(random_table("entmax", 1.5, 3), src, lengths, beam_size=2, max_length=4)
    monkeypatch.setattr("tsallis.ops.eager.ranking.SORT_LIMIT", 2)
    assert beam_search(random_table("entmax", 1.5, 3), src, lengths, beam_size=2, max_length=4) == sorted_whole


def test_the_example_of_the_certificates_page_is_correct() -> None:
    after_b = {(A,): {EOS: 1.0}, (B,): {EOS: 0.6, A: 0.4}, (B, A): {EOS: 1.0}}
    result = search(trie({(): {A: 0.5, B: 0.3, C: 0.2}, (C,): {EOS: 1.0}, **after_b}), beam_size=2)
    assert [(h.tokens, round(h.prob, 12)) for h in result.hypotheses] == [((A,), 0.5), ((B,), 0.18)]
    assert result.certificate.kind == "optimal" and math.exp(result.certificate.bound) == pytest.approx(0.2)
    assert [h.tokens for h in result.proven] == [(A,)]

    result = search(trie({(): {A: 0.7, B: 0.3}, **after_b}), beam_size=2)
    assert {h.tokens: round(h.prob, 12) for h in result.hypotheses} == {(A,): 0.7, (B,): 0.18, (B, A): 0.12}
    assert result.certificate.kind == "complete"


def test_copying_a_step_to_the_cpu_keeps_every_value() -> None:
    best = BestSymbols(
        torch.tensor([[-0.5, -math.inf], [-1.5, -2.0]], dtype=torch.float64),
        torch.tensor([[7, 3], [2**40 + 1, 5]]),
        torch.tensor([-math.inf, -0.25], dtype=torch.float64),
        torch.tensor([3, 9]),
        torch.tensor([1.0, math.nan], dtype=torch.float64),
    )
    copy, attended = copy_to_cpu(best, torch.tensor([4, 6]))
    torch.testing.assert_close((*copy, attended), (*best, torch.tensor([4, 6])), equal_nan=True, atol=0, rtol=0)
