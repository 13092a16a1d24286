"""Hard alignments from attention weights: pairs of source and output symbols.

Positions count the symbols of the run (such as subwords, or characters and tags) from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from tsallis.errors import OptionError, choice_error

if TYPE_CHECKING:
    from torch import Tensor

    from tsallis.models.batch import Batch
    from tsallis.toolkit.tasks.base import Task
    from tsallis.toolkit.training import Run

Links = Literal["largest", "support"]
Pairs = tuple[tuple[int, int], ...]  # pairs of a source position and a target position
LINKS: tuple[Links, ...] = ("largest", "support")


def check_alignment(task: Task, run: Run, links: str | None) -> None:
    """Raise if a run's outputs are not sequences, or the kind of alignment is unknown.

    Raises:
        InputError: If the run or the kind is not supported.
    """
    from tsallis.toolkit.tasks.sequences import SequenceTask

    if links is None:
        return
    if links not in LINKS:
        raise OptionError(lambda spell: f"{spell('alignment')} {choice_error(links, LINKS)}")
    if not isinstance(task, SequenceTask):
        raise OptionError(
            lambda spell: (
                f"{spell('alignment')} can't be used with a run of the task {task.name}, whose outputs are labels"
            ),
            where=run.folder,
        )


def align(
    task: Task, run: Run, batch: Batch, rows: Sequence[tuple[Sequence[int], Sequence[int]]], links: Links
) -> list[Pairs]:
    """Return the aligned pairs of each source and output, from the attention weights of `tsallis look --weights`.

    The end of the output is not aligned.

    Args:
        task: Task of the run.
        run: Run with the model.
        batch: Batch of the rows, on the model's device.
        rows: Symbols of each source and output.
        links: Kind of alignment: "largest" links each output symbol to the source position with the largest weight (the
            first position if several are equal), "support" links it to all positions with a weight above zero.
    """
    import torch

    from tsallis.models.modes import eval_mode

    with torch.no_grad(), eval_mode(run.model):
        attention: Any = task.attention(run, batch)["source"]
    weights = attention.weights.detach().cpu()
    return [links_of(weights[row, : len(output), : len(source)], links) for row, (source, output) in enumerate(rows)]


def links_of(weights: Tensor, links: Links) -> Pairs:
    """Return the aligned pairs for weights [target, source].

    >>> import torch
    >>> weights = torch.tensor([[0.6, 0.4, 0.0], [0.0, 0.0, 0.0], [0.0, 0.5, 0.5]])
    >>> links_of(weights, "largest"), links_of(weights, "support")
    (((0, 0), (1, 2)), ((0, 0), (1, 0), (1, 2), (2, 2)))
    """
    chosen = weights > 0
    if links == "largest":
        # A row of zeros has no link. Among several largest weights, keep the first, whose cumulative count is 1.
        chosen &= weights == weights.amax(-1, keepdim=True)
        chosen &= chosen.cumsum(-1) == 1
    return tuple((source, target) for target, source in chosen.nonzero().tolist())


def pharaoh(pairs: Pairs) -> str:
    """Return pairs in Pharaoh format.

    >>> pharaoh(((0, 0), (2, 1)))
    '0-0 2-1'
    """
    return " ".join(f"{source}-{target}" for source, target in pairs)
