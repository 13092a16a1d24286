"""The attention of classifiers over words and images (Martins et al. 2020)."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tsallis.analysis.density_shapes import area_of, draw_density, length_of
from tsallis.analysis.shapes import numbers, one_of
from tsallis.analysis.summary_records import DensityExample, DensitySummary
from tsallis.analysis.tables import Histogram
from tsallis.continuous import Density
from tsallis.errors import InputError
from tsallis.models.classifier import AttentionMap
from tsallis.models.label_decoder import LabelDecoder
from tsallis.models.modes import eval_mode
from tsallis.models.protocol import device_of
from tsallis.models.spellings import ambiguous_text
from tsallis.models.vqa import GridAttention
from tsallis.search import beam_search
from tsallis.symbols import IGNORE_INDEX
from tsallis.toolkit.analysis_options import Options
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.training.run_folder import Run, describe_run

BATCH = 32  # number of examples in a batch
BINS = 20
WIDEST = 256  # maximum width and height of an image on the page, in pixels


class _DensityValues:
    """Values per example, from which a :class:`DensitySummary` is computed."""

    def __init__(self) -> None:
        self.zeros: list[float] = []
        self.zero_masses: list[float] = []
        self.means: list[list[float]] = []
        self.sizes: list[float] = []
        self.hits: list[float] = []

    def add(self, weights: Tensor | None, masses: Tensor | None, density: Density | None, row: int) -> None:
        """Add the attention of one example. Weights and masses must not include padding."""
        if weights is not None:
            self.zeros.append(float((weights == 0).double().mean()))
        if density is None or masses is None:
            return
        self.zero_masses.append(float((masses == 0).double().mean()))
        row_density = one_of(density, row, density.dims)
        self.means.append(numbers(row_density.mean).reshape(-1).tolist())
        self.sizes.append(area_of(row_density) if row_density.dims == 2 else length_of(row_density))

    def fields(self) -> dict[str, Any]:
        """Return the means and histograms for a :class:`DensitySummary`."""
        centres = np.clip(np.transpose(self.means), 0, 1) if self.means else ()
        return {
            "accuracy": _mean(self.hits),
            "zeros": _mean(self.zeros),
            "zero_masses": _mean(self.zero_masses),
            "size": _mean(self.sizes),
            "centres": tuple(Histogram.of(values, BINS) for values in centres),
            "sizes": Histogram.of(np.minimum(self.sizes, 1), BINS) if self.sizes else None,
        }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def is_label_run(run: Run) -> bool:
    """Return whether a run outputs labels, so that :func:`summarize_densities` supports it."""
    return isinstance(run.model, LabelDecoder)


def summarize_densities(
    run: Run,
    corpus: Corpus,
    name: str,
    titles: Sequence[str],
    options: Options | None = None,
    rows: Sequence[int] | None = None,
    advance: Callable[[int, str, int, int], None] = lambda run, stage, done, total: None,
) -> DensitySummary:
    r"""Summarise a classifier's attention over words or images: densities, supports and exact zeros.

    A document of any length is mapped to the interval [0, 1], and an image to the unit square (Martins et al. 2020,
    sec. 4 and fig. 2 and 3). The size of a support is its length in this interval or its area in this square. The
    support of a Gaussian has size 1.

    Args:
        run: Run of the classification or the visual task.
        corpus, name, titles: Encoded examples, the name of the corpus, and the text of each example.
        options: Options with the number of examples to read, and the number of examples to show with all weights.
        rows: Rows of the examples to show. Default: half are the first rows, half have the smallest supports.
        advance: Function called with 0, the current stage, the amount done, and the total.

    Returns:
        Means, histograms and examples.

    Raises:
        InputError: If the corpus is empty, or the run has another task.

    Example:
        >>> import json, tempfile
        >>> from pathlib import Path
        >>> from tsallis.toolkit.data.vocabulary import Vocabulary
        >>> folder, words = Path(tempfile.mkdtemp()), Vocabulary(["fine", "bad"])
        >>> sizes = {"src_vocab": 6, "tgt_vocab": 6, "d_model": 8, "num_basis": 8}
        >>> record = {"class": "classifier", "arguments": {**sizes, "kind": "documents"}}
        >>> _ = (folder / "model.json").write_text(json.dumps(record))
        >>> model, labels = LabelDecoder(**sizes).eval(), Vocabulary(["neg", "pos"])
        >>> run = Run(folder, model, words, labels, {"task": "classification"}, {})
        >>> summary = summarize_densities(run, Corpus([[4, 5, 4]], [[5]]), "a document", ["fine bad fine"])
        >>> summary.examples, summary.shown[0].gold, summary.shown[0].density.bounded
        (1, 'pos', True)
    """
    options = options or Options()
    count = min(options.limit, len(corpus))
    if count == 0:
        raise InputError(f"{name}: there are no examples to analyse")
    if not is_label_run(run):
        raise InputError(
            f"{run.folder}: expected a run with densities over words or images, found the task {run.task['task']}"
        )
    values, answers = _read_attention(run, corpus, count, advance)
    rows = _choose_examples(values.sizes, list(answers), count, options.sentences) if rows is None else rows
    return DensitySummary(
        **describe_run(run),
        corpus=name,
        examples=count,
        **values.fields(),
        shown=tuple(_examples(run, corpus, rows, titles, answers)),
    )


Answers = dict[int, tuple[str, float]]


def _read_attention(
    run: Run, corpus: Corpus, count: int, advance: Callable[[int, str, int, int], None]
) -> tuple[_DensityValues, Answers]:
    """Return the values of attention, and the answer to each example with its probability."""
    values, answers = _DensityValues(), Answers()
    for rows, attention, results in _batches(run, corpus, count):
        for row, index in enumerate(rows):
            values.add(*_row_attention(attention, row, len(corpus.src[index])), attention.density, row)
            answers[index] = results[row]
            if gold := _gold(run, corpus, index):
                values.hits.append(float(results[row][0] == gold))
        advance(0, "attention", len(answers), count)
    return values, answers


def _batches(run: Run, corpus: Corpus, count: int) -> Iterator[tuple[Sequence[int], Any, list[tuple[str, float]]]]:
    """Yield three values per batch: its rows, the attention, and the answers with their probabilities."""
    for batch in corpus.batches(BATCH, count):
        device = device_of(run.model)
        sources, text = (batch.src.to(device), batch.src_lengths.to(device)), ambiguous_text(run.tgt_vocab)
        best = [result.best for result in beam_search(run.model, *sources, beam_size=1, text=text)]
        texts = [
            (run.tgt_vocab.decode(hypothesis.tokens), hypothesis.prob) if hypothesis else ("", 0.0)
            for hypothesis in best
        ]
        yield batch.index, _attention(run, batch.src, batch.src_lengths), texts


@torch.no_grad()
def _attention(run: Run, src: Tensor, lengths: Tensor) -> AttentionMap | GridAttention:
    """Return the attention of a classifier to a batch."""
    with eval_mode(run.model):
        device = device_of(run.model)
        _, attention = run.model.classifier.read(src.to(device), lengths.to(device))
    return getattr(attention, "grid", attention)


def _row_attention(
    attention: AttentionMap | GridAttention, row: int, length: int
) -> tuple[Tensor | None, Tensor | None]:
    """Return weights and masses of one row, without padding."""
    count = None if isinstance(attention, GridAttention) else length  # grids have no padding
    masses = None if attention.density is None else numbers(attention.masses[row]).flatten()[:count]
    return None if attention.weights is None else numbers(attention.weights[row]).flatten()[:count], masses


def _choose_examples(sizes: Sequence[float], order: Sequence[int], count: int, shown: int) -> list[int]:
    """Choose the first examples, and the examples with the smallest supports."""
    smallest = [index for _, index in sorted(zip(sizes, order, strict=False))]
    rows = set(range(min(count, (shown + 1) // 2 if smallest else shown)))
    for index in smallest:
        if len(rows) >= min(shown, count):
            break
        rows.add(index)
    return sorted(rows)


def _gold(run: Run, corpus: Corpus, row: int) -> str:
    return str(run.tgt_vocab.decode([int(number) for number in corpus.tgt[row] if int(number) != IGNORE_INDEX]))


def _examples(
    run: Run, corpus: Corpus, rows: Sequence[int], titles: Sequence[str], answers: Answers
) -> Iterator[DensityExample]:
    for row in rows:
        batch = corpus.batch([row])
        attention = _attention(run, batch.src, batch.src_lengths)
        symbols = batch.src[0].tolist()
        is_image = isinstance(attention, GridAttention)
        weights, masses = _row_attention(attention, 0, len(symbols))
        grid_rows, grid_columns = attention.weights.shape[1:] if isinstance(attention, GridAttention) else (0, 0)
        yield DensityExample(
            index=row,
            title=titles[row],
            words=() if is_image else tuple(map(run.src_vocab.name, symbols)),
            gold=_gold(run, corpus, row),
            answer=answers[row][0],
            prob=answers[row][1],
            weights=() if weights is None else tuple(weights.tolist()),
            grid=(int(grid_rows), int(grid_columns)) if is_image else None,
            masses=() if masses is None else tuple(masses.tolist()),
            density=None if attention.density is None else draw_density(attention.density, 0),
            image=_picture(run.model.image_store(batch.src[:, 0])[0]) if is_image else None,
        )


def _picture(pixels: Tensor) -> str | None:
    """Return an image [height, width, 3] as the data URI of a PNG; None for features instead of pixels."""
    if pixels.is_floating_point() or pixels.shape[-1] != 3:
        return None
    step = max(1, -(-max(pixels.shape[:2]) // WIDEST))
    rgb = pixels[::step, ::step].contiguous().numpy().astype(np.uint8)
    height, width, _ = rgb.shape
    # Each row of a PNG begins with its filter type, which is 0.
    rows = np.concatenate([np.zeros((height, 1), np.uint8), rgb.reshape(height, -1)], 1)

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)), chunk(b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(parts)
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
