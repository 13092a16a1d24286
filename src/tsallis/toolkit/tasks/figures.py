"""Figures of what a run's outputs attend to."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tsallis.models.batch import Batch
from tsallis.models.protocol import device_of
from tsallis.report import View, attention_matrix, image_panels, text_panels
from tsallis.search import Hypothesis, beam_search
from tsallis.symbols import BOS
from tsallis.toolkit.tasks.base import Task
from tsallis.toolkit.tasks.types import Lines
from tsallis.toolkit.training.run_folder import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = 24  # words from which on a document is drawn as a page


def figures(task: Task, run: Run, lines: Lines, **search: Any) -> Iterator[tuple[int, Figure]]:
    """Yield a figure of each line that has an output, with the line's number from 0.

    Args:
        task: The task of the run.
        run: With the model.
        lines: That it reads.
        search: Arguments of the beam search.

    Raises:
        InputError: If matplotlib is missing.
    """
    on_cpu = run if device_of(run.model).type == "cpu" else replace(run, model=deepcopy(run.model).cpu())
    for row, batch, best in _answers(task, run, lines, **search):
        with torch.no_grad():
            yield lines.numbers[row], _draw(task, on_cpu, batch, best, lines.titles[row])


def _answers(task: Task, run: Run, lines: Lines, **search: Any) -> Iterator[tuple[int, Batch, Hypothesis]]:
    """Yield each row that has an output, as a batch, with its best output."""
    text = task.ambiguous_text(run.tgt_vocab)
    for row in range(len(lines.numbers)):
        batch = lines.corpus.batch([row])
        source = batch.to(device_of(run.model))
        (result,) = beam_search(run.model, source.src, source.src_lengths, text=text, **search)
        if result.best is not None:
            yield row, batch, result.best


def _draw(task: Task, run: Run, batch: Batch, best: Hypothesis, title: str) -> Figure:
    """Draw the attention to the source as a matrix, or that of one label over an image or a text."""
    size = int(batch.src_lengths[0])
    attention = task.attention(run, replace(batch, tgt_in=torch.tensor([[BOS, *best.tokens]])))
    symbols = task.attention_symbols(run, batch.src[0, :size].tolist(), best.tokens, title)
    if (matrix := attention.get("source")) is not None:
        index = () if matrix.density is None else (0, 0)  # of the sentences and heads
        rows = [*symbols["target"][:-1], "(end)"]
        label = run.model.attention_label
        axes = attention_matrix(
            matrix.weights[0], symbols["source"], rows, density=matrix.density, index=index, title=label
        )
        figure: Any = axes.figure
        return figure
    answer = f"{run.tgt_vocab.decode(best.tokens)} ({best.prob:.2f})"
    discrete, continuous = attention.get("discrete"), attention.get("continuous")
    weights = None if discrete is None else discrete.weights[0, 0]
    density = None if continuous is None else continuous.density
    grid = next(iter(attention.values())).grid
    if grid is None:
        view = View(answer, None if weights is None else weights[:size], density, () if density is None else 0)
        return text_panels(symbols["source"], [view], layout="page" if size >= PAGE else "line")
    views = [] if weights is None else [View("discrete weights", weights.unflatten(0, [*grid]))]
    if density is not None:  # beside the weights: one over the other could not be told apart
        views.append(View("density", density=density, index=0))
    question = title.removeprefix(f"{symbols['image']}: ")
    return image_panels(_visible(run.model.image_store(batch.src[:, 0])[0]), views, question=f"{question}  {answer}")


def _visible(image: Tensor) -> Tensor:
    """Return an image that can be drawn: a white one in the place of features."""
    return torch.full((*image.shape[:2], 3), 255, dtype=torch.uint8) if image.is_floating_point() else image
