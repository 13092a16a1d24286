"""Probabilities of texts that several symbol sequences can spell, for references and search results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from tsallis.models.protocol import Decoder
from tsallis.models.spellings import ambiguous_text, spellings_of
from tsallis.search import Hypothesis, Result, TokenScores, score_tokens
from tsallis.search.spelling import SPELLED, score_texts
from tsallis.search.texts import TextProbability, complete_texts, join_segmentations
from tsallis.symbols import UNK
from tsallis.toolkit.data.batching import IGNORE_INDEX, Batch
from tsallis.toolkit.data.packing import TextCorpus

LISTED = 16  # maximum number of texts per row whose segmentations are searched
MIN_BUDGET = 250  # minimum search budget per text, in expanded prefixes


def score_outputs(
    model: Decoder, batch: Batch, references: Sequence[str], vocabulary: Any
) -> list[tuple[TokenScores, TextProbability]]:
    """Return two values per row: the scores of the most probable segmentation, and the probability of the text.

    If no segmentation is possible, the scores are those of the usual segmentation, up to its impossible symbol. A text
    that the vocabulary can't spell is scored in its normalised form, for example in lower case.

    Args:
        model: Model with the decoder protocol.
        batch: Sources and targets, on the device of the model.
        references: Text of each target.
        vocabulary: Vocabulary of the targets.
    """
    token_scores = score_tokens(model, batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out)
    spellings, known_texts = spellings_of(vocabulary), dict[int, str]()
    targets = [[n for n in row if n != IGNORE_INDEX][:-1] for row in batch.tgt_out.tolist()]
    for row, (reference, target) in enumerate(zip(references, targets, strict=True)):
        if spellings.can_spell(reference):
            known_texts[row] = reference
        elif UNK not in target:
            known_texts[row] = vocabulary.decode(target)
    probabilities = dict.fromkeys(range(len(targets)), TextProbability())
    rows = torch.tensor([*known_texts], dtype=torch.long, device=batch.src.device)
    if known_texts:
        sources = batch.src[rows], batch.src_lengths[rows]
        probabilities.update(
            zip(known_texts, score_texts(model, *sources, [*known_texts.values()], spellings), strict=True)
        )
    for row, scores in enumerate(token_scores):
        if scores.exclusion is None and (row not in known_texts or vocabulary.decode(targets[row]) == known_texts[row]):
            sequence = Hypothesis(tuple(targets[row]), scores.log_prob, scores.support, ())
            probabilities[row] = probabilities[row].including(sequence)
    best_tokens = {row: text.segmentations[0].tokens for row, text in probabilities.items() if text.segmentations}
    rescored_rows = [row for row, tokens in best_tokens.items() if list(tokens) != targets[row]]
    if rescored_rows:
        rescored_sources = [batch.src[row, : int(batch.src_lengths[row])].tolist() for row in rescored_rows]
        corpus = TextCorpus(rescored_sources, [best_tokens[row] for row in rescored_rows])
        rescored_batch = corpus.batch(range(len(rescored_rows))).to(batch.src.device)
        rescored = score_tokens(
            model, rescored_batch.src, rescored_batch.src_lengths, rescored_batch.tgt_in, rescored_batch.tgt_out
        )
        for row, scores in zip(rescored_rows, rescored, strict=True):
            token_scores[row] = scores
    return [(scores, probabilities[row]) for row, scores in enumerate(token_scores)]


def text_probabilities(
    model: Decoder, batch: Batch, rows: Sequence[Sequence[str]], vocabulary: Any
) -> list[dict[str, TextProbability]]:
    """Return the probabilities of the first distinct texts of each row. These texts share one search budget."""
    texts = [list(dict.fromkeys(row))[:LISTED] for row in rows]
    probabilities: list[dict[str, TextProbability]] = [{} for _ in texts]
    for size in sorted({len(row) for row in texts} - {0}):
        pairs = [(number, text) for number, row in enumerate(texts) if len(row) == size for text in row]
        index = torch.tensor([number for number, _ in pairs], device=batch.src.device)
        sources, budget = (batch.src[index], batch.src_lengths[index]), max(SPELLED // size, MIN_BUDGET)
        scored = score_texts(model, *sources, [text for _, text in pairs], spellings_of(vocabulary), budget=budget)
        for (number, text), probability in zip(pairs, scored, strict=True):
            probabilities[number][text] = probability
    return probabilities


def complete_results(model: Decoder, batch: Batch, results: Sequence[Result], vocabulary: Any) -> list[Result]:
    """Search for all segmentations of the first listed texts, and return the completed results.

    Complete results do not change. If every text has a single spelling in the vocabulary, no result changes.
    """
    decode = ambiguous_text(vocabulary)
    if decode is None:
        return [*results]
    open_texts = [
        [] if result.certificate.kind == "complete" else [decode(h.tokens) for h in result.hypotheses]
        for result in results
    ]
    probabilities = text_probabilities(model, batch, open_texts, vocabulary)
    return [
        complete_texts(result, [*row_probs.values()]) if row_probs else result
        for result, row_probs in zip(results, probabilities, strict=True)
    ]


def join_draws(
    model: Decoder, batch: Batch, rows: Sequence[Sequence[Hypothesis | None]], vocabulary: Any
) -> list[list[Hypothesis | None]]:
    """Replace each sample's probability by the probability of its text, summed over all segmentations."""
    texts = [[vocabulary.decode(draw.tokens) for draw in row if draw is not None] for row in rows]
    probabilities = text_probabilities(model, batch, texts, vocabulary)
    joined: list[list[Hypothesis | None]] = []
    for row, row_probs in zip(rows, probabilities, strict=True):
        merged: dict[str, TextProbability] = {}
        for draw in row:
            if draw is not None:
                text = vocabulary.decode(draw.tokens)
                merged[text] = merged.get(text, row_probs.get(text, TextProbability())).including(draw)
        totals = {text: join_segmentations(probability.segmentations) for text, probability in merged.items()}
        joined.append([draw and _with_text_probability(draw, totals[vocabulary.decode(draw.tokens)]) for draw in row])
    return joined


def _with_text_probability(draw: Hypothesis, total: Hypothesis) -> Hypothesis:
    """Return a sample with the probability of its text; its symbols and supports stay the same."""
    return replace(draw, log_prob=total.log_prob, segmentations=total.segmentations)


def describe_segmentations(sequences: Sequence[Hypothesis], vocabulary: Any) -> list[dict[str, Any]]:
    """Return the sequences that spell a text as JSON values."""
    return [{"symbols": [vocabulary.name(t) for t in s.tokens], "log_prob": s.log_prob} for s in sequences]
