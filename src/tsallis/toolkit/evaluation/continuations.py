"""Texts that a language model draws behind the beginnings of others, beside how those go on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch

from tsallis.errors import InputError
from tsallis.models.protocol import Decoder, device_of
from tsallis.search import generate
from tsallis.search.sampling import line_seed
from tsallis.symbols import BOS, PAD
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.evaluation.language import distinct_ngrams, repetition

WINDOWS = (16, 128)  # tokens before a token among which it may be repeated
NGRAMS = (1, 2, 4)
SHORTEST = 8  # tokens of a text that is continued
BEGINNING = 4  # a text's first fourth is the prompt
TOGETHER = 64  # texts drawn together


def compare_continuations(model: Decoder, corpus: Corpus, count: int, seed: int = 0) -> dict[str, Any]:
    """Draw what follows the beginnings of texts, and return how much is repeated there and in the texts themselves.

    Of each of the longest texts in the corpus's rows, or parts of texts where rows cut them, the first fourth is the
    prompt. What is drawn behind it, from the whole support, is as long as the rest of the text unless it ends before.

    Args:
        model: a language model.
        corpus: rows of texts.
        count: of texts.
        seed: of the draws.

    Returns:
        "samples", and of what is drawn and of the texts ("drawn", "text") the means of :func:`repetition_rates`.

    Raises:
        InputError: no text of eight tokens.

    Example:
        >>> from tsallis.models import LanguageModel
        >>> from tsallis.toolkit.data.packing import pack
        >>> model = LanguageModel(20, d_model=8, heads=2, layers=1, d_ff=16)
        >>> compare_continuations(model, pack([[7, 8] * 6], 16, 20), 1)["text"]["distinct_1"]
        0.2222222222222222
    """
    texts = sorted(split_texts(corpus), key=len, reverse=True)[:count]
    texts = [text for text in texts if len(text) >= SHORTEST]
    if not texts:
        raise InputError(f"continuations need a text of at least {SHORTEST} tokens in one row")
    prompts = [text[: len(text) // BEGINNING] for text in texts]
    rest = [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]
    draws: list[Sequence[int]] = []
    for first in range(0, len(texts), TOGETHER):
        part = slice(first, first + TOGETHER)
        seeds = [line_seed(seed, line) for line in range(len(texts))[part]]
        draws += _draw(model, prompts[part], [len(text) for text in rest[part]], seeds)
    return {"samples": len(texts), "drawn": repetition_rates(draws), "text": repetition_rates(rest)}


def split_texts(corpus: Corpus) -> list[list[int]]:
    """Return the texts of a corpus, or their parts where rows cut them, without starts.

    Example:
        >>> split_texts(Corpus([[], []], [[1, 7, 8, 1, 9], [5]]))
        [[7, 8], [9], [5]]
    """
    texts: list[list[int]] = []
    for row in corpus.tgt:
        texts.append([])
        for token in map(int, row):
            if token == BOS:
                texts.append([])
            else:
                texts[-1].append(token)
    return [text for text in texts if text]


def repetition_rates(texts: Sequence[Sequence[int]]) -> dict[str, float]:
    """Return the means over texts of their "tokens", of repeated tokens and of distinct n-grams.

    "repetition_16" is the share of tokens that already stand among the 16 before them, "distinct_2" that of different
    ones among the 2-grams. Texts that are too short for a number don't count in its mean.

    Example:
        >>> rates = repetition_rates([[7, 8, 7, 8], []])
        >>> rates["tokens"], rates["repetition_16"], rates["distinct_1"], rates["distinct_2"]
        (2.0, 0.5, 0.5, 0.6666666666666666)
    """
    tensors = [torch.tensor(text) for text in texts if len(text)]
    measures = {f"repetition_{window}": [repetition(text, window) for text in tensors] for window in WINDOWS}
    for n in NGRAMS:
        measures[f"distinct_{n}"] = [distinct_ngrams(text, n) for text in tensors if len(text) >= n]
    tokens = sum(map(len, texts)) / max(len(texts), 1)
    return {"tokens": tokens, **{name: sum(each) / max(len(each), 1) for name, each in measures.items()}}


def _draw(
    model: Decoder, prompts: Sequence[Sequence[int]], lengths: Sequence[int], seeds: Sequence[int]
) -> list[Sequence[int]]:
    """Return what is drawn behind each prompt, at most as many tokens as `lengths` say."""
    device, counts = device_of(model), torch.tensor([len(prompt) for prompt in prompts])
    padded = torch.full((len(prompts), int(counts.max())), PAD)  # [batch, src]
    padded[torch.arange(padded.shape[1]) < counts.unsqueeze(1)] = torch.tensor([*chain(*prompts)])
    draws = generate(model, padded.to(device), counts.to(device), max_length=max(lengths), seeds=seeds)
    return [text.tokens[:length] for (text,), length in zip(draws, lengths, strict=True)]
