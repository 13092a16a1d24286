"""The attention of a run's outputs as JSON: weights above zero, densities, and the symbols that they belong to."""

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

# The lists of symbols that rows and columns of each kind of attention stand for. A row of the decoder is the step that
# predicts a symbol of the target, and reads the one before.
LISTS = {"encoder": ("source", "source"), "decoder": ("target", "read"), "cross": ("target", "source")}
DIGITS = 6


def _heads_of_run(run: Run, names: str) -> list[Head]:
    """Return the heads of a run that are named, see :func:`tsallis.analysis.head_names.choose_heads`.

    Raises:
        InputError: a head that the model does not have, or a model without heads.
    """
    try:
        layers = read_model(run.model, run.src_vocab, run.tgt_vocab).layers
    except ValueError as error:
        raise InputError(
            f"{run.folder}: --heads is for encoder-decoders with discrete attention, this run has none"
        ) from error
    try:
        return choose_heads(layers, names)
    except InputError as error:
        raise InputError(f"{run.folder}: {error}") from error


def describe_attention(
    task: Task, run: Run, lines: Lines, heads: str | None = None, **search: Any
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the attention of each line's output as what JSON holds, with the line's number from 0.

    All lines are searched together, and then read together.

    Args:
        task: of the run.
        run: with a model that has outputs.
        lines: that it reads; of one without symbols, or without an output, nothing is yielded.
        heads: "all", or names such as "encoder.1.2,cross.3.1"; None for the task's attention to the source.
        search: of the beam search, its size and limits.

    Yields:
        The line's number, and the output; "source", "target" and, of encoder-decoders, "read": the symbols; and
        "attention", for each head or matrix its "name", the "rows" and "columns" that its weights belong to, and the
        "weights" above zero as [row, column, weight].

    Raises:
        InputError: heads that the model does not have.
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
    """Yield the heads of each row of a batch."""
    reader = read_model(run.model, run.src_vocab, run.tgt_vocab)
    for sentence in record(reader, [batch]):
        entries = []
        for layer, head in heads:
            weights = sentence.weights[reader.layers.index(layer)].head(head)
            entries.append(_entry(head_name(layer, head), layer.kind, weights, alpha=layer.alphas[head]))
        yield entries


def _entries_of_task(task: Task, run: Run, batch: Batch) -> Iterator[list[dict[str, Any]]]:
    """Yield the attention to the source of each row of a batch."""
    with torch.no_grad():
        by_name = task.attention(run, batch)
    for row, src in enumerate(batch.src_lengths.tolist()):
        symbols = int((batch.tgt_out[row] != IGNORE_INDEX).sum())
        yield [_entry_of_row(name, attention, row, symbols, src) for name, attention in by_name.items()]


def _entry_of_row(name: str, attention: Attention, row: int, tgt: int, src: int) -> dict[str, Any]:
    """Return one row of attention, which may have fewer steps than the target: one, of a label."""
    matrix = numbers(attention.weights[row, :tgt])  # [target, source]
    more: dict[str, Any] = {}
    if attention.grid is None:
        matrix = matrix[:, :src]
    else:
        more["grid"] = [*attention.grid]
    if (density := attention.density) is not None:
        steps = [(row, 0, step) for step in range(tgt)] if len(density.batch_shape) == 3 else [(row,)]
        more["densities"] = [describe_density(one_of(density, index, density.dims)) for index in steps]
    return _entry(name, "cross", SparseWeights.of(matrix[None].numpy()), **more)


def _entry(name: str, kind: str, weights: SparseWeights, **more: Any) -> dict[str, Any]:
    rows, columns = LISTS[kind]
    steps = np.repeat(np.arange(weights.shape[1]), np.diff(weights.offsets))
    triples = zip(steps.tolist(), weights.columns.tolist(), weights.values.tolist(), strict=True)
    cells = [[row, column, float(f"{weight:.{DIGITS}g}")] for row, column, weight in triples]
    return {"name": name, "rows": rows, "columns": columns, **more, "weights": cells}


def describe_density(density: Density) -> dict[str, Any]:
    """Return the moments of one density, and the ends of its support, as what JSON holds.

    Args:
        density: on the line, or in the plane.

    Returns:
        On the line "mean", "variance" and "support", the ends of each interval, None where it has no ends; in the plane
        "mean" and "covariance".

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
