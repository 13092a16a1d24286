"""Figures of a run's attention: over words of a document, regions of an image, source words of a target."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tsallis.data.batching import Batch
from tsallis.data.classification import words
from tsallis.report import View, attention_matrix, image_panels, text_panels
from tsallis.search import Result, beam_search
from tsallis.tasks import Lines
from tsallis.training import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = 24  # words or more are set as a text to be read


def figures(run: Run, lines: Lines, beam_size: int = 1) -> Iterator[tuple[int, Figure]]:
    """Yield a figure of each line that has an output, with the line's number from 0.

    Args:
        run: a trained model.
        lines: what it reads.
        beam_size: of the search for outputs.

    Raises:
        InputError: if matplotlib is missing.
    """
    draw = {"classification": _document, "visual": _image}.get(run.task.get("task", ""), _pair)
    for row, offset in enumerate(lines.places):
        if not lines.titles[row].strip():
            continue  # an empty line holds nothing to look at
        batch = lines.corpus.batch([row])
        (result,) = beam_search(run.model, batch.src, batch.src_lengths, beam_size=beam_size)
        if result.best is not None:
            with torch.no_grad():
                yield offset, draw(run, batch, result, lines.titles[row])


def _document(run: Run, batch: Batch, result: Result, title: str) -> Figure:
    attention = run.model.classifier.attention(batch.src, batch.src_lengths)
    size = int(batch.src_lengths[0])
    tokens = words(title)[:size] or [""]
    view = View.of(attention, size=size, title=_answer(run, result))
    return text_panels(tokens, [view], layout="page" if size >= PAGE else "line")


def _image(run: Run, batch: Batch, result: Result, title: str) -> Figure:
    images = run.model.image_store(batch.src[:, 0])
    attention = run.model.classifier.answerer.attention(images, batch.src[:, 1:], batch.src_lengths - 1)
    views = [View("discrete weights", attention.weights[0])]
    if attention.density is not None:  # one over the other could not be told apart
        views.append(View("density", density=attention.density, index=0))
    question = title.partition(": ")[2]
    return image_panels(_shown(images[0]), views, question=f"{question}  {_answer(run, result)}")


def _shown(image: Tensor) -> Tensor:
    """Features can't be seen: nothing stands for them."""
    return torch.full((*image.shape[:2], 3), 255, dtype=torch.uint8) if image.is_floating_point() else image


def _pair(run: Run, batch: Batch, result: Result, title: str) -> Figure:
    assert result.best is not None
    tokens = [*result.best.tokens]
    tgt_in = torch.tensor([[1, *tokens]])
    arguments = batch.src, batch.src_lengths, tgt_in
    attention = run.model(*arguments, need_attention=True).attention[0]  # [tgt + 1, src]
    density = run.model.densities(*arguments) if hasattr(run.model, "densities") else None
    src, tgt = (
        [vocab.name(int(i)) for i in row] for vocab, row in ((run.src_vocab, batch.src[0]), (run.tgt_vocab, tokens))
    )
    index = () if density is None else (0, 0)  # of the sentences and heads
    title = run.model.attention_label
    axes = attention_matrix(attention, src, [*tgt, "(end)"], density=density, index=index, title=title)
    figure: Any = axes.figure
    return figure


def _answer(run: Run, result: Result) -> str:
    assert result.best is not None
    return f"{run.tgt_vocab.text(result.best.tokens)} ({result.best.prob:.2f})"
