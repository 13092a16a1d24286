"""Define a batch of padded sequences for models and searches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tsallis.symbols import IGNORE_INDEX, UNK


@dataclass(frozen=True)
class Batch:
    """Padded sequences.

    Args:
        src: source symbols [batch, src], padded with 0.
        src_lengths: number of source symbols per row [batch].
        tgt_in: start symbol (1) and target symbols [batch, tgt], padded with 0.
        tgt_out: target symbols and end symbol (2) [batch, tgt], padded with -100.
        index: index of each row in the data.

    Example:
        >>> src, tgt_in = torch.tensor([[4, 5], [4, 0]]), torch.tensor([[1, 6, 0], [1, 6, 7]])
        >>> tgt_out = torch.tensor([[6, 2, -100], [6, 7, 2]])
        >>> batch = Batch(src, torch.tensor([2, 1]), tgt_in, tgt_out, (0, 1))
        >>> batch.src_tokens, batch.tokens  # padding does not count, ends do
        (3, 5)
    """

    src: Tensor
    src_lengths: Tensor
    tgt_in: Tensor
    tgt_out: Tensor
    index: tuple[int, ...]

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on a device."""
        src, src_lengths, tgt_in, tgt_out = (
            x.to(device) for x in (self.src, self.src_lengths, self.tgt_in, self.tgt_out)
        )
        return Batch(src, src_lengths, tgt_in, tgt_out, self.index)

    @property
    def tokens(self) -> int:
        """Return the number of target symbols with a loss, including ends."""
        return int((self.tgt_out != IGNORE_INDEX).sum())

    @property
    def src_tokens(self) -> int:
        """Return the number of source symbols, without padding."""
        return int(self.src_lengths.sum())


def has_loss(tgt_out: Tensor) -> Tensor:
    """Return a mask of target symbols with a loss; unknown symbols have none, as their loss would be infinite."""
    return (tgt_out != IGNORE_INDEX) & (tgt_out != UNK)
