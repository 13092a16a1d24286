"""Texts that continue prompts are drawn with the model's probabilities, including truncated texts."""

from __future__ import annotations

import math
import sys

import pytest
import torch

from contract.tables import EOS, A, B, sources, trie
from tsallis.models import LanguageModel
from tsallis.search import GeneratedText, generate, score_tokens
from tsallis.symbols import BOS

ROWS = {(): {A: 0.75, B: 0.25}, (A,): {EOS: 1.0}, (B,): {A: 0.5, EOS: 0.5}, (B, A): {EOS: 1.0}}


def test_truncated_texts_have_the_frequency_of_their_prefix() -> None:
    (texts,) = generate(trie(ROWS), *sources(0), 2000, max_length=1, seeds=[0])
    share = {(tokens, ended): 0 for tokens in ((A,), (B,)) for ended in (False, True)}
    for text in texts:
        share[text.tokens, text.ended] += 1
    assert share[(A,), True] / 2000 == pytest.approx(0.75, abs=0.04) and share[(A,), False] == 0
    for ended in (False, True):
        assert share[(B,), ended] / 2000 == pytest.approx(0.125, abs=0.03)


def test_a_text_has_its_probability_and_supports() -> None:
    (texts,) = generate(trie(ROWS), *sources(0), 50, max_length=5, seeds=[0])
    by_tokens = {text.tokens: text for text in texts}
    assert by_tokens[B, A] == GeneratedText((B, A), pytest.approx(math.log(0.125)), (2, 2, 1), True)


def test_probabilities_are_clipped_to_the_largest_float() -> None:
    assert GeneratedText((A,), 2000.0, (1,), True).prob == pytest.approx(sys.float_info.max)


def test_a_dead_end_gives_a_text_with_ended_false() -> None:
    ((text,),) = generate(trie({(): {A: 1.0}, (A,): {}}), *sources(0), max_length=5, seeds=[0])
    assert text == GeneratedText((A,), 0.0, (1,), False)


def test_draws_do_not_depend_on_other_prompts() -> None:
    model = LanguageModel(12, d_model=8, heads=2, layers=2, d_ff=12, output="softmax")
    prompts, lengths = torch.randint(4, 12, (3, 4)), torch.tensor([0, 4, 2])
    drawn = generate(model, prompts, lengths, 2, max_length=12, seeds=[1, 2, 3])
    for row in range(3):
        prompt = prompts[row : row + 1, : lengths[row]], lengths[row : row + 1]
        (alone,) = generate(model, *prompt, 2, max_length=12, seeds=[1 + row])
        assert [text.tokens for text in alone] == [text.tokens for text in drawn[row]]
        for text in drawn[row]:
            tgt_in, tgt_out = torch.tensor([[BOS, *text.tokens]]), torch.tensor([[*text.tokens, EOS]])
            (scores,) = score_tokens(model, prompts[row : row + 1], lengths[row : row + 1], tgt_in, tgt_out)
            expected = scores.log_prob if text.ended else sum(scores.log_probs[: len(text.tokens)])
            assert text.log_prob == pytest.approx(expected, abs=1e-4)
