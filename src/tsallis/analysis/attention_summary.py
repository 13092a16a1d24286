"""Summarize the attention of any model for a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from tsallis.analysis.cards import describe_heads
from tsallis.analysis.contrasts import DensityContrast
from tsallis.analysis.density import Densities
from tsallis.analysis.head_roles import EXAMPLES, Example, HeadRoles
from tsallis.analysis.importance import HeadImportance
from tsallis.analysis.passes import AttentionPass, HeadKey, ReportWeights
from tsallis.analysis.record import AttentionReader
from tsallis.analysis.summary_records import (
    ContrastSummary,
    CorpusSummary,
    HeadExample,
    HeadSummary,
    RunSummary,
    SentenceSummary,
)
from tsallis.errors import InputError
from tsallis.search.checks import check_at_least_one

SENTENCES = 30  # number of sentences whose weights a summary stores for all heads


def summarize_attention(
    model: nn.Module,
    reader: AttentionReader,
    batches: Sequence[Any],
    *,
    name: str,
    corpus: str,
    sentences: int = SENTENCES,
    examples: int = EXAMPLES,
) -> RunSummary:
    """Summarize the attention heads of any model for a report.

    The summary contains neither outputs nor a training history.

    Args:
        model: Model, whose class and number of parameters the report shows.
        reader: Adapter of the model.
        batches: Batches for the adapter. Their sentences are numbered from 0, each number once, in any order.
        name: Name of the model in the report.
        corpus: Name of the corpus in the report.
        sentences: Number of sentences whose weights the summary stores for all heads.
        examples: Number of sentences that show the role of a head.

    Returns:
        Summary for `tsallis.report.build_page`.

    Raises:
        InputError: There are no sentences.
        ValueError: A sentence number is missing or repeated, or `sentences` or `examples` is below 1.

    Example:
        >>> from types import SimpleNamespace
        >>> from tsallis.analysis import read_model
        >>> from tsallis.models import Batch, TransformerSeq2Seq
        >>> symbols = SimpleNamespace(name=["<pad>", "<s>", "</s>", "<unk>", "▁a", "▁b"].__getitem__)
        >>> model = TransformerSeq2Seq(6, 6, d_model=8, heads=2, layers=1, d_ff=8, attention="sparsemax")
        >>> source, lengths = torch.tensor([[4, 5, 4], [5, 0, 0]]), torch.tensor([3, 1])
        >>> read, target = torch.tensor([[1, 5, 0], [1, 4, 4]]), torch.tensor([[5, 2, -100], [4, 4, 2]])
        >>> batch = Batch(source, lengths, read, target, (0, 1))
        >>> reader = read_model(model, symbols, symbols)
        >>> summary = summarize_attention(model, reader, [batch], name="a model", corpus="two sentences")
        >>> len(summary.heads), summary.corpus.sentences, summary.outputs
        (6, 2, None)
    """
    size = type(model).__name__, sum(parameter.numel() for parameter in model.parameters())
    return summarize_reader(reader, batches, size, name=name, corpus=corpus, sentences=sentences, examples=examples)


def summarize_reader(
    reader: AttentionReader,
    batches: Sequence[Any],
    model: tuple[str, int | None],
    *,
    name: str,
    corpus: str,
    sentences: int = SENTENCES,
    examples: int = EXAMPLES,
) -> RunSummary:
    """Summarize the heads that an adapter reads, see :func:`summarize_attention`.

    Args:
        reader, batches, name, corpus, sentences, examples: see :func:`summarize_attention`.
        model: Class name of the model, and its number of parameters or None.
    """
    check_at_least_one(sentences=sentences, examples=examples)
    attention_pass = AttentionPass(reader, batches, examples)
    texts = [sentence.text for batch in attention_pass for sentence in batch]
    if not texts:
        raise InputError(f"{corpus} must contain at least one sentence, got none")
    missing = set(range(len(texts))).difference(text.index for text in texts)
    if missing:
        raise ValueError(
            f"the {len(texts)} sentences must have the numbers from 0 to {len(texts) - 1}, "
            f"but number {min(missing)} is missing"
        )
    symbols = sum(len(text.source) for text in texts), sum(len(text.target) for text in texts)
    roles, contrasts = attention_pass.roles.result(), attention_pass.contrasts.result()
    rows, heads_by_row = attention_pass.choose(sentences), head_examples(roles, contrasts)
    report_weights = ReportWeights(
        reader, list(_batches_of(reader, batches, {*rows, *heads_by_row})), rows, heads_by_row
    )
    return RunSummary(
        name=name,
        model=model[0],
        parameters=model[1],
        corpus=CorpusSummary(corpus, len(texts), len(texts), *symbols, unknown=0),
        layers=tuple(reader.layers),
        heads=summarize_heads(roles, attention_pass.densities.result(), report_weights),
        diversity=attention_pass.diversity.result().layers,
        contrasts=summarize_contrasts(contrasts, report_weights),
        sentences=tuple(
            SentenceSummary(report_weights.sentences[row].text, report_weights.sentences[row].weights) for row in rows
        ),
    )


def _batches_of(reader: AttentionReader, batches: Sequence[Any], rows: set[int]) -> Iterator[Any]:
    """Yield the batches that contain any of these sentences."""
    for batch in batches:
        if any(text.index in rows for text in reader.texts(batch)):
            yield batch


def head_examples(roles: HeadRoles, contrasts: Sequence[DensityContrast]) -> dict[int, set[HeadKey]]:
    """Return, for each example sentence, the heads that it illustrates."""
    heads: dict[int, set[HeadKey]] = {}
    for head in roles.heads:
        for example in head.examples:
            heads.setdefault(example.text.index, set()).add((head.kind, head.layer, head.head))
    for contrast in contrasts:
        for example in (contrast.sparse, contrast.dense):
            heads.setdefault(example.text.index, set()).add((contrast.kind, contrast.layer, contrast.head))
    return heads


def summarize_heads(
    roles: HeadRoles, densities: Densities, report_weights: ReportWeights, importance: HeadImportance | None = None
) -> tuple[HeadSummary, ...]:
    """Return the summary of each head, with its weights on its example sentences."""
    cards = describe_heads(roles.heads, densities.heads)
    increases = {(h.kind, h.layer, h.head): h.increase for h in importance.heads} if importance else {}
    heads = []
    for card, role, density in zip(cards, roles.heads, densities.heads, strict=True):
        key = (card.kind, card.layer, card.head)
        examples = tuple(_example(example, key, report_weights) for example in card.examples)
        card_fields = {
            **vars(card),
            "examples": examples,
            "histogram": density.histogram,
            "increase": increases.get(key),
        }
        heads.append(HeadSummary(**card_fields, scores=role.scores, uniform=role.uniform, counts=role.counts))
    return tuple(heads)


def summarize_contrasts(
    contrasts: Sequence[DensityContrast], report_weights: ReportWeights
) -> tuple[ContrastSummary, ...]:
    """Return the contrasts, with the weights of the head on both sentences."""
    summaries = []
    for contrast in contrasts:
        key = (contrast.kind, contrast.layer, contrast.head)
        sparse, dense = (_example(example, key, report_weights) for example in (contrast.sparse, contrast.dense))
        summaries.append(ContrastSummary(*key, contrast.alpha, sparse, dense))
    return tuple(summaries)


def _example(example: Example, key: HeadKey, report_weights: ReportWeights) -> HeadExample:
    return HeadExample(example.text, example.score, report_weights.head(key, example.text.index))
