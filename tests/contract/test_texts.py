"""Search results per text equal an enumeration of all token sequences, grouped by the text that they spell."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import pytest

from contract.tables import EOS, SYMBOLS, A, B, C, TableModel, random_table
from contract.tables import sources as table_sources
from tsallis.models.spellings import Spellings, ambiguous_text
from tsallis.search import Certificate, Hypothesis, Result, beam_search, exact_search, exhaustive
from tsallis.search.completion import complete
from tsallis.search.spelling import score_texts
from tsallis.search.texts import complete_texts, merge_texts
from tsallis.toolkit.data import Vocabulary

VOCABULARY = Vocabulary(["a", "b", "ab"])
TEXT = VOCABULARY.decode
TRANSFORMS = [("softmax", 1.0), ("entmax", 1.5), ("sparsemax", 2.0)]
LONGEST = 4  # tokens: longer sequences are impossible, so an enumeration covers the whole distribution


def finite_table(transform: str, alpha: float, seed: int, sharpness: float = 3.0) -> TableModel:
    table = random_table("entmax" if transform == "sparsemax" else transform, alpha, seed, sharpness)
    return TableModel(lambda source, prefix: {EOS: 1.0} if len(prefix) == LONGEST else table.row(source, prefix))


def texts_of(table: TableModel, source: int) -> dict[str, float]:
    """Return the probability of every possible text."""
    probs: dict[str, float] = defaultdict(float)
    for tokens, log_prob in table.enumerate(source, LONGEST).items():
        probs[TEXT(tokens)] += math.exp(log_prob)
    return dict(probs)


def check(result: Result, truth: dict[str, float]) -> None:
    texts, probs = [TEXT(h.tokens) for h in result.hypotheses], [h.prob for h in result.hypotheses]
    kind, most = result.certificate.kind, math.exp(result.certificate.bound)
    assert len(set(texts)) == len(texts)
    for text, prob in zip(texts, probs, strict=True):
        assert prob <= truth[text] + 1e-9 and truth[text] <= prob + result.missing + 1e-9
    if not result.length_penalty:
        assert probs == sorted(probs, reverse=True)
    for hypothesis in result.hypotheses:
        assert hypothesis.segmentations[0].tokens == hypothesis.tokens
        assert {TEXT(s.tokens) for s in hypothesis.segmentations} == {TEXT(hypothesis.tokens)}
        assert hypothesis.prob == pytest.approx(math.fsum(s.prob for s in hypothesis.segmentations))
    best = max(truth.values())
    if kind == "complete":
        assert dict(zip(texts, probs, strict=True)) == pytest.approx(truth)
    elif result.length_penalty:
        assert kind == "none" or (kind == "optimal" and not result.missing)  # a complete list that was truncated
    elif kind == "optimal":
        assert truth[texts[0]] == pytest.approx(best)
    elif kind == "bounded":
        assert probs[0] < most and best <= most + 1e-9
    if not result.length_penalty:
        assert max((p for t, p in truth.items() if t not in texts), default=0.0) <= most + 1e-9
        for rank, _ in enumerate(result.proven):
            others = [p for t, p in truth.items() if t not in texts[: rank + 1]]
            assert truth[texts[rank]] >= max(others, default=0.0) - 1e-9


@pytest.mark.parametrize(("transform", "alpha"), TRANSFORMS)
@pytest.mark.parametrize("seed", range(3))
def test_text_certificates_agree_with_enumeration(transform: str, alpha: float, seed: int) -> None:
    sources, table = table_sources(0, 1, 2), finite_table(transform, alpha, seed)
    truth = [texts_of(table, source) for source in range(3)]
    results: list[list[Result]] = []
    for size, n_best, competing in itertools.product((1, 2, 6), (None, 1, 3), (False, True)):
        options = {"beam_size": size, "n_best": n_best, "end_rule": "competing" if competing else "every"}
        results.append(beam_search(table, *sources, **options, text=TEXT))
    for limits in ({"max_length": 2}, {"min_length": 2}, {"prefixes": [[A]] * 3}, {"length_penalty": 0.7}):
        results.append(beam_search(table, *sources, beam_size=3, text=TEXT, **limits))
        results.append(exhaustive(table, *sources, budget=60, text=TEXT, **limits))
        results.append(exact_search(table, *sources, beam_size=2, n_best=2, text=TEXT, **limits))
    for budget, n_best in ((5, None), (25, 2), (10_000, None), (10_000, 2)):
        results.append(exhaustive(table, *sources, budget=budget, n_best=n_best, text=TEXT))
        results.append(exact_search(table, *sources, budget=budget, n_best=n_best or 1, text=TEXT))
    results.append(exhaustive(table, *sources, mass=0.8, text=TEXT))
    for result, known in ((r, k) for of_search in results for r, k in zip(of_search, truth, strict=True)):
        check(result, known)
        if not result.length_penalty and len(result.hypotheses) < 4:
            listed = [TEXT(h.tokens) for h in result.hypotheses]
            rows = table_sources(*[truth.index(known)] * len(listed))
            check(complete_texts(result, score_texts(table, *rows, listed, Spellings(VOCABULARY))), known)


def test_exact_and_exhaustive_text_searches_give_full_proofs() -> None:
    kinds = set()
    for (transform, alpha), seed in itertools.product(TRANSFORMS, range(4)):
        table, sources = finite_table(transform, alpha, seed), table_sources(0, 1, 2)
        for result in exact_search(table, *sources, text=TEXT):
            assert result.certificate.proves_best and result.stopped_by is None
        for result in exhaustive(table, *sources, text=TEXT):
            assert result.certificate.kind == "complete" and result.mass == pytest.approx(1) and not result.missing
        kinds |= {r.certificate.kind for r in beam_search(table, *sources, beam_size=2, text=TEXT)}
    assert kinds >= {"optimal", "bounded"}


def test_the_best_sequence_need_not_spell_the_best_text() -> None:
    """`b` is the best sequence, but two sequences spell `ab`, which is the best text."""
    rows = {(): {5: 0.4, 4: 0.3, 6: 0.3}, (5,): {EOS: 1.0}, (4,): {5: 1.0}, (4, 5): {EOS: 1.0}, (6,): {EOS: 1.0}}
    table = TableModel(lambda source, prefix: rows[prefix])
    for beam_size in (1, 2):
        options = {"beam_size": beam_size, "n_best": 1}
        (sequence,) = beam_search(table, *table_sources(0), **options)
        assert TEXT(sequence.best.tokens) == "b" and sequence.certificate.kind == "optimal"
        (found,) = beam_search(table, *table_sources(0), **options, text=TEXT)
        assert TEXT(found.best.tokens) == "b" and found.certificate.kind == "bounded"
    for search, options in ((beam_search, {"beam_size": 3}), (exact_search, {}), (exhaustive, {})):
        (found,) = search(table, *table_sources(0), n_best=1, text=TEXT, **options)
        assert TEXT(found.best.tokens) == "ab" and found.best.prob == pytest.approx(0.6)
        assert found.certificate.proves_best and found.best.tokens == (4, 5) and len(found.best.segmentations) == 2


@pytest.mark.parametrize(("transform", "alpha"), TRANSFORMS)
def test_the_score_of_a_text_is_the_sum_over_its_segmentations(transform: str, alpha: float) -> None:
    for seed in range(4):
        table = finite_table(transform, alpha, seed)
        known = {(source, text): p for source in range(3) for text, p in texts_of(table, source).items()}
        asked = [*known, (0, "bbbbb"), (1, "aba" * 5), (2, "c"), (0, "")]
        sources, texts = table_sources(*(source for source, _ in asked)), [text for _, text in asked]
        scored = score_texts(table, *sources, texts, Spellings(VOCABULARY))
        for key, text in zip(asked, scored, strict=True):
            assert math.exp(text.log_prob) == pytest.approx(known.get(key, 0.0))
            assert text.possible is (key in known) and text.exact
            assert {TEXT(s.tokens) for s in text.segmentations} <= {key[1]}


def test_small_budgets_give_inexact_lower_bounds() -> None:
    table, text = finite_table("softmax", 1.0, 1), "abab"
    truth = texts_of(table, 0)[text]
    spellings, inexact = Spellings(VOCABULARY), 0
    for budget in range(1, 12):
        (scored,) = score_texts(table, *table_sources(0), [text], spellings, budget=budget)
        found = math.exp(scored.log_prob)
        assert scored.possible and found <= truth + 1e-12 and truth <= found + scored.missing + 1e-12
        assert scored.exact == (found == pytest.approx(truth, rel=1e-6))
        inexact += not scored.exact
    assert inexact


def test_nan_scores_raise_with_the_source_number() -> None:
    count = 20  # more sources than one scoring batch
    table = TableModel(
        lambda source, prefix: {A: math.nan if source == count - 1 else 1.0} if not prefix else {EOS: 1.0}
    )
    score_texts(table, *table_sources(*range(count - 1)), ["a"] * (count - 1), Spellings(VOCABULARY))
    with pytest.raises(ValueError, match=f"NaN for source {count - 1} "):
        score_texts(table, *table_sources(*range(count)), ["a"] * count, Spellings(VOCABULARY))


def test_text_bounds_are_at_most_probability_1() -> None:
    listed = Result((Hypothesis((A,), math.log(0.4), (2,), (1,)),), Certificate("bounded", math.log(0.5)))
    assert merge_texts(listed, TEXT, normalized=True).certificate == Certificate("bounded", 0.0)


def test_cut_scores_of_unnormalized_texts_may_miss_anything() -> None:
    def row(_: int, prefix: tuple[int, ...]) -> dict[int, float]:
        return {EOS: 1.0} if len(prefix) == LONGEST else {A: 0.5, B: 0.5, C: 0.25, EOS: 0.25}

    model = TableModel(row, normalized=False)
    (cut,) = score_texts(model, *table_sources(0), ["abab"], Spellings(VOCABULARY), budget=1)
    assert cut.possible and not cut.exact and cut.missing == math.inf
    (whole,) = score_texts(model, *table_sources(0), ["abab"], Spellings(VOCABULARY))
    assert whole.exact and whole.missing == 0 and math.exp(whole.log_prob) == pytest.approx(0.109375)
    (found,) = beam_search(model, *table_sources(0), beam_size=1, text=TEXT, max_length=2)
    assert found.certificate.kind == "none"


@pytest.mark.parametrize("penalty", [0.0, 2.0])
@pytest.mark.parametrize("transform", ["softmax", "alpha_relu"])
def test_segmentations_do_not_change_certificates_of_shortened_complete_lists(transform: str, penalty: float) -> None:
    for seed, n_best in itertools.product(range(5), (1, 2)):
        table = TableModel(finite_table(transform, 1.5, seed).row, normalized=transform != "alpha_relu")
        for source, complete_list in enumerate(
            exhaustive(table, *table_sources(0, 1, 2), text=TEXT, length_penalty=penalty)
        ):
            result = complete_list.truncated(n_best)
            texts = [TEXT(h.tokens) for h in result.hypotheses]
            scored = score_texts(table, *table_sources(*[source] * len(texts)), texts, Spellings(VOCABULARY))
            completed = complete_texts(result, scored).certificate
            assert completed == result.certificate
    tiny = tuple(Hypothesis((A,) * n, -1000.0 - n, (1,), (1,)) for n in (1, 2))
    shortened = Result(tiny, Certificate("complete", -math.inf)).truncated(1)
    assert complete_texts(shortened, []).certificate == Certificate("optimal", -1002.0)


@pytest.mark.parametrize(("transform", "alpha"), TRANSFORMS)
@pytest.mark.parametrize("typed", ["", "a", "b", "ab", "aba", "abb"])
def test_completions_sum_over_all_spellings_of_the_prefix(transform: str, alpha: float, typed: str) -> None:
    spellings = Spellings(VOCABULARY)
    for seed in range(4):
        table = finite_table(transform, alpha, seed)
        truth = texts_of(table, 0)
        total = math.fsum(p for text, p in truth.items() if text.startswith(typed))
        result = complete(table, *table_sources(0), typed, spellings, TEXT, n_best=100)
        assert math.exp(result.log_prob) == pytest.approx(total) and result.possible == (total > 0)
        assert not result.missing
        listed = [(TEXT([*result.certain, *choice.tokens]), choice.ends) for choice in result.choices]
        assert len(set(listed)) == len(listed)
        if total:
            assert math.fsum(choice.prob for choice in result.choices) == pytest.approx(1) == pytest.approx(result.mass)
        for (text, ends), choice in zip(listed, result.choices, strict=True):
            most = truth.get(text, 0.0) if ends else math.fsum(p for t, p in truth.items() if t.startswith(text))
            assert text.startswith(typed) and choice.prob <= most / total + 1e-9
            if ends and text == typed:
                assert choice.prob == pytest.approx(truth[text] / total)


def test_merge_texts_keeps_distinct_texts_with_a_bound() -> None:
    assert ambiguous_text(Vocabulary(["a", "b"])) is None and ambiguous_text(VOCABULARY) is not None
    sequences = tuple(Hypothesis((token,), math.log(0.25), (3, 1), (1, 1)) for token in SYMBOLS)
    result = Result(sequences, Certificate("optimal", math.log(0.25)))
    merged = merge_texts(result, TEXT, normalized=True)
    assert [h.tokens for h in merged.hypotheses] == [(4,), (5,), (C,)]
    assert merged.certificate.kind == "bounded"  # the missing quarter of the mass may spell any of them
    assert merged.certificate.bound == pytest.approx(math.log(0.5), abs=1e-5)
