"""What a model is worth, and how sparse it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from tsallis.data.batching import IGNORED
from tsallis.data.corpus import Corpus
from tsallis.data.vocabulary import UNK, Vocabulary
from tsallis.models import RNNSeq2Seq
from tsallis.search import Result, beam_search
from tsallis.search.steps import evaluating

WHOLE = 1 - 1e-6  # a hypothesis with at least this much probability has all of it, up to rounding


def levenshtein(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Insertions, deletions and replacements that turn one sequence into the other.

    >>> levenshtein("drawed", "drew")
    3
    """
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]


@dataclass(frozen=True)
class Forced:
    """A model on given outputs, symbols that its vocabulary lacks left out."""

    loss: float  # the map's own loss, a symbol
    gold_in_support: float  # share of symbols with a probability
    symbol_accuracy: float  # share of symbols that are the most probable
    output_support: float  # symbols with a probability, mean over steps
    attention_support: float  # positions with a weight, mean over steps


@dataclass(frozen=True)
class Evaluation:
    """A model and a search on a test set."""

    samples: int
    accuracy: float  # share of samples whose best hypothesis is the gold form
    levenshtein: float  # mean distance to it
    loss: float
    gold_in_support: float
    gold_possible: float  # share of samples whose gold form has a probability, as far as the search knows
    single: float  # share of samples whose whole mass is on one hypothesis
    complete: float  # shares of certificates
    optimal: float
    bounded: float
    none: float
    output_support: float
    attention_support: float
    empty: int  # samples for which nothing was finished

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@torch.no_grad()
def forced(model: RNNSeq2Seq, corpus: Corpus, batch_size: int = 128) -> Forced:
    """Loss and sparsity with the outputs given."""
    totals = torch.zeros(5, dtype=torch.float64)
    symbols = 0
    with evaluating(model):
        for batch in corpus.batches(batch_size):
            decoded = model(batch.src, batch.src_lengths, batch.tgt_in)
            scores = model.output.scores(decoded.hidden)  # [batch, tgt, d_vocab]
            # A symbol unknown to the vocabulary is never predicted: its loss would be infinite whatever is learned.
            target = batch.tgt_out.masked_fill(batch.tgt_out == UNK, IGNORED)
            counted = target != IGNORED
            gold = target.clamp(min=0).unsqueeze(-1)
            probs = model.output.probs(scores)
            loss = model.output.loss_of_scores(scores, target, reduction="sum")
            hit = probs.argmax(-1) == gold.squeeze(-1)
            parts = [
                loss,
                (probs.gather(-1, gold).squeeze(-1) > 0)[counted].sum(),
                hit[counted].sum(),
                (probs > 0).sum(-1)[counted].sum(),
                (decoded.attention > 0).sum(-1)[counted].sum(),
            ]
            totals += torch.stack([p.double() for p in parts])
            symbols += int(counted.sum())
    return Forced(*(totals / max(symbols, 1)).tolist())


def search_corpus(
    model: RNNSeq2Seq, corpus: Corpus, beam_size: int, max_length: int | None = None, batch_size: int = 128
) -> list[Result]:
    """The results of a beam search in the corpus's order."""
    results: list[Result | None] = [None] * len(corpus)
    for batch in corpus.batches(batch_size):
        found = beam_search(model, batch.src, batch.src_lengths, beam_size=beam_size, max_length=max_length)
        for i, result in zip(batch.index, found, strict=True):
            results[i] = result
    return [r for r in results if r is not None]


def accuracy(results: Sequence[Result], corpus: Corpus) -> float:
    """Share of samples whose best hypothesis is the target."""
    right = sum(r.best is not None and list(r.best.tokens) == t for r, t in zip(results, corpus.tgt, strict=True))
    return right / max(len(corpus), 1)


def evaluate(
    model: RNNSeq2Seq, corpus: Corpus, forms: Sequence[str], tgt_vocab: Vocabulary, beam_size: int = 5
) -> Evaluation:
    """Accuracy, distance, loss, certificates and sparsity of a model on samples with known forms."""
    results = search_corpus(model, corpus, beam_size)
    given = forced(model, corpus)
    texts = ["".join(tgt_vocab.decode(r.best.tokens)) if r.best else "" for r in results]
    count = len(corpus)
    kinds = [r.certificate.kind for r in results]
    best = [r.best for r in results if r.best is not None]
    steps = [n for h in best for n in h.support]
    looks = [n for h in best for n in h.attended]
    single = sum(h.prob >= WHOLE for h in best) if model.output.normalized else 0
    known = sum(any(list(h.tokens) == t for h in r.hypotheses) for r, t in zip(results, corpus.tgt, strict=True))
    return Evaluation(
        samples=count,
        accuracy=sum(a == b for a, b in zip(texts, forms, strict=True)) / count,
        levenshtein=sum(levenshtein(a, b) for a, b in zip(texts, forms, strict=True)) / count,
        loss=given.loss,
        gold_in_support=given.gold_in_support,
        gold_possible=known / count,
        single=single / count,
        complete=kinds.count("complete") / count,
        optimal=kinds.count("optimal") / count,
        bounded=kinds.count("bounded") / count,
        none=kinds.count("none") / count,
        output_support=sum(steps) / max(len(steps), 1),
        attention_support=sum(looks) / max(len(looks), 1),
        empty=count - len(best),
    )
