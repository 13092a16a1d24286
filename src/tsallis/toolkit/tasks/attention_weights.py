"""Attention of a run's outputs as JSON: non-zero weights, densities, and the symbols of rows and columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from tsallis.analysis import SparseWeights, read_model, record
from tsallis.analysis.head_names import Head, choose_heads, head_name
from tsallis.analysis.shapes import intervals, numbers, one_of
from tsallis.continuous import Density
from tsallis.errors import InputError
from tsallis.models.batch import Batch
from tsallis.models.protocol import device_of
from tsallis.search import beam_search
from tsallis.symbols import IGNORE_INDEX
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.tasks.base import Task
from tsallis.toolkit.tasks.types import Attention, Lines
from tsallis.toolkit.training.run_folder import Run

# Names of the symbol lists for the rows and the columns of each kind of attention. In a decoder, a step predicts one
# symbol of the target and reads the previous symbol.
LISTS = {"encoder": ("source", "source"), "decoder": ("target", "read"), "cross": ("target", "source")}
DIGITS = 6


def _heads_of_run(run: Run, names: str) -> list[Head]:
    """Return the named heads of a run, see :func:`tsallis.analysis.head_names.choose_heads`.

    Raises:
        InputError: If the model has no heads, or lacks a named head.
    """
    try:
        return choose_heads(read_model(run.model, run.src_vocab, run.tgt_vocab).layers, names)
    except ValueError as error:
        raise InputError(f"{run.folder}: --heads: {error}") from error


def describe_attention(
    task: Task, run: Run, lines: Lines, heads: str | None = None, **search: Any
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each line's number, counted from 0, and the attention of its best output as JSON values.

    All lines are searched in one batch and then read in one batch.

    Args:
        task: Task of the run.
        run: Run whose model has outputs to search for.
        lines: Lines of input. Lines without symbols or without an output are skipped.
        heads: "all", or names such as "encoder.1.2,cross.3.1"; None for the task's attention to the source.
        search: Arguments of :func:`tsallis.search.beam_search`.

    Yields:
        The number of the line, and a dictionary. It contains the output as "text", the symbols "source", "target" and,
        for encoder-decoders, "read", and the "attention". Each head or matrix of "attention" has a "name", the names of
        the symbol lists for its "rows" and "columns", and the non-zero "weights" as [row, column, weight].

    Raises:
        InputError: If the model does not have the heads.
    """
    chosen = None if heads is None else _heads_of_run(run, heads)
    rows = [row for row, title in enumerate(lines.titles) if title.strip()]
    if not rows:
        return
    batch = lines.corpus.batch(rows).to(device_of(run.model))
    text = task.ambiguous_text(run.tgt_vocab)
    results = beam_search(run.model, batch.src, batch.src_lengths, text=text, **search)
    best = [(row, result.best) for row, result in zip(rows, results, strict=True) if result.best is not None]
    if not best:
        return
    sources = [[int(symbol) for symbol in lines.corpus.src[row]] for row, _ in best]
    pairs = Corpus(sources, [hypothesis.tokens for _, hypothesis in best])
    batch = pairs.batch(range(len(best))).to(batch.src.device)
    entries = _entries_of_task(task, run, batch) if chosen is None else _entries_of_heads(run, batch, chosen)
    for (row, hypothesis), source, attention in zip(best, sources, entries, strict=True):
        output = {"text": run.tgt_vocab.decode(hypothesis.tokens)}
        symbols = task.attention_symbols(run, source, hypothesis.tokens, lines.titles[row])
        yield lines.numbers[row], {**output, **symbols, "attention": attention}


def _entries_of_heads(run: Run, batch: Batch, heads: Sequence[Head]) -> Iterator[list[dict[str, Any]]]:
    """Yield the attention of the heads for each row of a batch."""
    reader = read_model(run.model, run.src_vocab, run.tgt_vocab)
    for sentence in record(reader, [batch]):
        entries = []
        for layer, head in heads:
            weights = sentence.weights[reader.layers.index(layer)].head(head)
            entries.append(_entry(head_name(layer, head), layer.kind, weights, alpha=layer.alphas[head]))
        yield entries


def _entries_of_task(task: Task, run: Run, batch: Batch) -> Iterator[list[dict[str, Any]]]:
    """Yield the attention to the source for each row of a batch."""
    with torch.no_grad():
        by_name = task.attention(run, batch)
    for row, src in enumerate(batch.src_lengths.tolist()):
        symbols = int((batch.tgt_out[row] != IGNORE_INDEX).sum())
        yield [_entry_of_row(name, attention, row, symbols, src) for name, attention in by_name.items()]


def _entry_of_row(name: str, attention: Attention, row: int, tgt: int, src: int) -> dict[str, Any]:
    """Return the attention of one row. The attention of a label has a single step."""
    matrix = numbers(attention.weights[row, :tgt])  # [target, source]
    details: dict[str, Any] = {}
    if attention.grid is None:
        matrix = matrix[:, :src]
    else:
        details["grid"] = [*attention.grid]
    if (density := attention.density) is not None:
        steps = [(row, 0, step) for step in range(tgt)] if len(density.batch_shape) == 3 else [(row,)]
        details["densities"] = [describe_density(one_of(density, index, density.dims)) for index in steps]
    return _entry(name, "cross", SparseWeights.of(matrix[None].numpy()), **details)


def _entry(name: str, kind: str, weights: SparseWeights, **details: Any) -> dict[str, Any]:
    rows, columns = LISTS[kind]
    steps = np.repeat(np.arange(weights.shape[1]), np.diff(weights.offsets))
    triples = zip(steps.tolist(), weights.columns.tolist(), weights.values.tolist(), strict=True)
    cells = [[row, column, float(f"{weight:.{DIGITS}g}")] for row, column, weight in triples]
    return {"name": name, "rows": rows, "columns": columns, **details, "weights": cells}


def describe_density(density: Density) -> dict[str, Any]:
    """Return the moments and the support of one density as JSON values.

    Args:
        density: One-dimensional or two-dimensional density.

    Returns:
        In one dimension: "mean", "variance" and "support" (a list of intervals; None if the support is unbounded). In
        two dimensions: "mean" and "covariance".

    Example:
        >>> from tsallis.continuous import Gaussian
        >>> describe_density(Gaussian(torch.tensor(0.5), torch.tensor(0.25)))
        {'mean': 0.5, 'variance': 0.25, 'support': None}
    """
    if density.dims == 2:
        return {"mean": numbers(density.mean).tolist(), "covariance": numbers(density.covariance).tolist()}
    ends = intervals(density)
    support = None if ends is None else [[*end] for end in ends]
    return {"mean": float(density.mean), "variance": float(density.variance), "support": support}
