"""Handle rows of tokens with several texts that don't attend to each other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tsallis.ops.transforms import traced
from tsallis.symbols import BOS


@dataclass(frozen=True)
class RowTexts:
    """The texts of some rows, as rows of their own: attention then costs a text's length, not its row's.

    Args:
        index: [texts, longest]: the number of each token among all of the rows'; behind a text's end any.
        lengths: [texts]
        shape: batch and length of the rows.
    """

    index: Tensor
    lengths: Tensor
    shape: tuple[int, int]

    def split(self, x: Tensor) -> Tensor:
        """Return rows [batch, length, size] as texts [texts, longest, size], padded with finite numbers."""
        return x.flatten(0, 1)[self.index]

    def join(self, x: Tensor) -> Tensor:
        """Return texts [texts, longest, ...] as rows [batch, length, ...]."""
        active = torch.arange(x.shape[1], device=x.device) < self.lengths.unsqueeze(1)
        return x[active].unflatten(0, self.shape)


def split_rows(tokens: Tensor, d_model: int) -> RowTexts | None:
    """Return the limits of the texts in rows [batch, length], or None.

    It is None if each row is one text, if a mask is cheaper than separate texts, or under torch.compile.

    Example:
        >>> texts = split_rows(torch.tensor([[1, 7, 1, 8], [9, 9, 1, 8]]), 4)
        >>> texts.lengths.tolist()
        [2, 2, 2, 2]
        >>> texts.join(texts.split(torch.arange(8.0).view(2, 4, 1))).flatten().tolist()
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    """
    batch, length = tokens.shape
    starts = tokens == BOS
    if traced() or not starts[:, 1:].any():
        return None
    starts[:, 0] = True  # a row may begin in the middle of a text
    begins = starts.flatten().nonzero().flatten()
    lengths = begins.diff(append=begins.new_tensor([tokens.numel()]))
    longest = int(lengths.max())
    padded = len(begins) * longest
    # Projections cost 4 d_model a token, scores and sums twice the keys it is compared with: half of a text's.
    if padded * (4 * d_model + longest) > tokens.numel() * (4 * d_model + 2 * length):
        return None
    index = begins.unsqueeze(1) + torch.arange(longest, device=tokens.device)
    return RowTexts(index.clamp(max=tokens.numel() - 1), lengths, (batch, length))


def other_texts(tokens: Tensor) -> Tensor | None:
    """Return which tokens belong to different texts [batch, 1, length, length]; None if rows have one text.

    A start symbol begins a text.

    Example:
        >>> other_texts(torch.tensor([[1, 7, 1]]))[0, 0].tolist()
        [[False, False, True], [False, False, True], [True, True, False]]
    """
    starts = tokens == BOS
    if not traced() and not starts[:, 1:].any():
        return None
    number = starts.cumsum(1)
    return (number.unsqueeze(1) != number.unsqueeze(2)).unsqueeze(1)
