"""Hard alignments, read from the weights of attention: which symbols of the source belong to each of an output.

Positions are those of the run's symbols (subwords, or characters and tags), counted from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from tsallis.errors import OptionError, choice_fault

if TYPE_CHECKING:
    from torch import Tensor

    from tsallis.models.batch import Batch
    from tsallis.toolkit.tasks.base import Task
    from tsallis.toolkit.training import Run

Links = Literal["largest", "support"]
Pairs = tuple[tuple[int, int], ...]  # source position, target position
LINKS: tuple[Links, ...] = ("largest", "support")


def check_alignment(task: Task, run: Run, links: str | None) -> None:
    """Raise if a run's outputs are not sequences, or the kind of alignment is unknown.

    Raises:
        InputError: such a run or kind.
    """
    from tsallis.toolkit.tasks.sequences import SequenceTask

    if links is None:
        return
    if links not in LINKS:
        raise OptionError(lambda spell: f"{spell('alignment')} {choice_fault(links, LINKS)}")
    if not isinstance(task, SequenceTask):
        raise OptionError(
            lambda spell: (
                f"{spell('alignment')} is for outputs of several symbols, a run of the task {task.name} has one"
            ),
            where=run.folder,
        )


def align(
    task: Task, run: Run, batch: Batch, rows: Sequence[tuple[Sequence[int], Sequence[int]]], links: Links
) -> list[Pairs]:
    """Return the pairs of each source and output: those of `tsallis look --weights`, without the output's end.

    Args:
        task: of the run.
        run: with the model.
        batch: of the rows, where the model is.
        rows: the symbols of a source, and those of an output.
        links: "largest": of each symbol of the output the position with the largest weight, the first of equal ones;
            "support": all positions with a weight above zero.
    """
    import torch

    with torch.no_grad():
        attention: Any = task.attention(run, batch)["source"]
    weights = attention.weights.detach().cpu()
    return [links_of(weights[row, : len(output), : len(source)], links) for row, (source, output) in enumerate(rows)]


def links_of(weights: Tensor, links: Links) -> Pairs:
    """Return the pairs of a matrix [target, source] of weights.

    >>> import torch
    >>> weights = torch.tensor([[0.6, 0.4, 0.0], [0.0, 0.0, 0.0], [0.0, 0.5, 0.5]])
    >>> links_of(weights, "largest"), links_of(weights, "support")
    (((0, 0), (1, 2)), ((0, 0), (1, 0), (1, 2), (2, 2)))
    """
    chosen = weights > 0
    if links == "largest":
        # A row without a weight has no largest one; of equal ones the first has the count 1.
        chosen &= weights == weights.amax(-1, keepdim=True)
        chosen &= chosen.cumsum(-1) == 1
    return tuple((source, target) for target, source in chosen.nonzero().tolist())


def pharaoh(pairs: Pairs) -> str:
    """Return pairs in Pharaoh format.

    >>> pharaoh(((0, 0), (2, 1)))
    '0-0 2-1'
    """
    return " ".join(f"{source}-{target}" for source, target in pairs)
