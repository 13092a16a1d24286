"""Write the log for TensorBoard (extra `tensorboard`)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tsallis.errors import InputError
from tsallis.toolkit.training.lock import writing


def open_board(folder: Path, step: int) -> Any:
    """Return a writer of TensorBoard files. Existing events after `step` are hidden, because the run writes them again.

    Raises:
        InputError: If the package tensorboard is missing, or the folder can't be written.
    """
    require_tensorboard(folder)
    from torch.utils.tensorboard import SummaryWriter

    with writing(folder):
        return SummaryWriter(str(folder), purge_step=step + 1)


def write_scalars(board: Any, step: int, values: Mapping[str, Any]) -> None:
    """Write the values that are numbers or lists [layers][heads] of numbers. Skip other values."""
    for tag, value in scalars(values):
        board.add_scalar(tag, value, step)


def scalars(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numeric values of an event, with names that TensorBoard can group.

    >>> list(scalars({"loss": 1.5, "dev_loss": 2.0, "alpha_cross": [[1.25, 1.75]], "select": "loss"}))
    [('train/loss', 1.5), ('dev/loss', 2.0), ('alpha_cross/layer1_head1', 1.25), ('alpha_cross/layer1_head2', 1.75)]
    """
    for name, value in values.items():
        if isinstance(value, (int, float)):
            group, _, metric = name.partition("_")
            yield (f"{group}/{metric}" if group in ("dev", "batch") else f"train/{name}"), float(value)
        elif isinstance(value, list):
            for layer, heads in enumerate(value, start=1):
                yield from ((f"{name}/layer{layer}_head{head}", float(x)) for head, x in enumerate(heads, start=1))


def require_tensorboard(folder: Path | None = None) -> None:
    """Raise an InputError if the package tensorboard is missing or `folder` is not a folder."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        message = "training.tensorboard needs the package tensorboard: pip install 'tsallis[toolkit,tensorboard]'"
        raise InputError(message) from error
    if folder is not None and os.path.lexists(folder) and not folder.is_dir():
        raise InputError(f"{folder}: expected a folder, found a file or a broken link")
