"""Scores of texts, compared with those of sacrebleu."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from tsallis.errors import IgnoredInputWarning
from tsallis.toolkit.evaluation.text_scores import LineScore, length_ratio, sentence_chrf, translation_scores


def test_line_score_interval_contains_the_value() -> None:
    assert LineScore([]).value == 0 and LineScore([]).interval() == (0, 0)
    edits = LineScore([0, 3, 1, 0] * 50, [4, 6, 5, 5] * 50)
    low, high = edits.interval()
    assert edits.value == 0.2 and 0.12 < low < 0.2 < high < 0.28
    # Equal scores differ by 0 in every resample. Half the edits on each line give half the error rate.
    assert edits.interval(edits) == (0, 0)
    half = LineScore([value / 2 for value in edits.values], edits.weights)
    assert half.interval(edits) == pytest.approx((-high / 2, -low / 2))


def test_translation_scores_match_sacrebleu() -> None:
    texts, references = ["the cat sat on the mat", "a dog"], ["the cat sat on a mat", "the dog"]
    scores = {s.name: s for s in translation_scores(texts, references)}
    from sacrebleu import corpus_bleu, corpus_chrf, corpus_ter

    assert list(scores) == ["bleu", "chrf", "ter"]
    assert scores["bleu"].value == corpus_bleu(texts, [references]).score
    assert scores["chrf"].value == corpus_chrf(texts, [references]).score
    assert scores["ter"].value == corpus_ter(texts, [references]).score
    assert "tok:13a" in scores["bleu"].signature and "version:" in scores["ter"].signature


@pytest.mark.parametrize("code", ["zh", "zho_Hans", "zh-CN", "zh_TW", "cmn", "yue", "chi"])
def test_characters_of_chinese_are_compared(code: str) -> None:
    bleu, ter = translation_scores(["今天天气很好。"], ["今天的天气很好。"], code, ("bleu", "ter"))
    assert "tok:zh" in bleu.signature and "norm:yes" in ter.signature and "asian:yes" in ter.signature
    assert ter.value == 12.5 and length_ratio(["今天天气很好。"], ["今天的天气很好。"], code) == 7 / 8
    bleu, ter = translation_scores(["今天 天气"], ["今天 天气"], code, ("bleu", "ter"), tokenized=True)
    assert "tok:none" in bleu.signature and "asian:no" in ter.signature


def test_a_language_without_spaces_is_reported() -> None:
    with pytest.warns(IgnoredInputWarning, match="tha_Thai has no spaces between words, .*: use chrF"):
        translation_scores(["แอปเปิล"], ["แอปเปิล"], "tha_Thai")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        translation_scores(["แอป เปิล"], ["แอปเปิล"], "th", tokenized=True)
        translation_scores(["walk"], ["walk"], "thx")


def test_translation_intervals_match_sacrebleu() -> None:
    """The intervals agree only approximately because both sides resample lines at random."""
    from sacrebleu.metrics import BLEU, CHRF, TER

    references = [f"the {a} sees the {b} near a {c}" for a in "abcdef" for b in "ghijkl" for c in "mnopqr"]
    texts = [text if row % 3 else text.replace("sees the", "saw a") for row, text in enumerate(references)]
    for score, metric in zip(translation_scores(texts, references), (BLEU(), CHRF(), TER()), strict=True):
        assert score.lines is not None
        assert score.lines.of(np.ones(len(texts), int)) == score.value
        expected = metric.corpus_score(texts, [references], n_bootstrap=2000)
        low, high = score.lines.interval()
        assert (low + high) / 2 == pytest.approx(expected._mean, rel=0.03)
        assert (high - low) / 2 == pytest.approx(expected._ci, rel=0.15)
        assert score.lines.interval(score.lines) == (0, 0)


def test_interval_of_a_clear_difference_excludes_zero() -> None:
    references = [f"{a} {b} c d e" for a in "abcdefgh" for b in "ijklmnop"]
    worse = [text if row % 2 else text.replace(" c d", "") for row, text in enumerate(references)]
    for first, second in zip(*(translation_scores(texts, references) for texts in (worse, references)), strict=True):
        assert first.lines is not None and second.lines is not None
        low, high = second.lines.interval(first.lines)
        assert low < second.value - first.value < high and low * high > 0  # every resample has worse lines


def test_length_ratio_matches_the_brevity_penalty_of_bleu() -> None:
    """BLEU computes its brevity penalty from these lengths and counts the full stop as a word."""
    from sacrebleu import corpus_bleu

    texts, references = ["the cat sat.", ""], ["the cat sat there.", "a dog, too"]
    ratio = length_ratio(texts, references)
    assert ratio == 4 / 9 and corpus_bleu(texts, [references]).bp == pytest.approx(math.exp(1 - 1 / ratio))
    assert length_ratio(["a b"], ["a b."], tokenized=True) == 1 and length_ratio(["a"], [""]) == 0


def test_sentence_chrf_ranges_from_0_to_1() -> None:
    assert sentence_chrf("", "") == sentence_chrf("a b", "a b") == 1.0
    assert 0 <= sentence_chrf("walk", "talk") < 1 and sentence_chrf("x", "talk") == 0.0
