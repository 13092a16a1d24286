"""Define fast dropout for CPUs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tsallis.ops.autograd.dropout import SeededDropout, seeded_backend, seeded_mask


class Dropout(nn.Dropout):
    """Dropout like PyTorch's, but fast on a CPU and without a stored mask.

    The compiled kernels compute the mask from a seed.

    Args:
        p: probability of setting a number to zero; the other numbers are scaled up.

    Example:
        >>> Dropout(0.5)(torch.ones(1000)).unique()
        tensor([0., 2.])
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        if 0 < self.p < 1 and (backend := seeded_backend(x)) is not None:
            output: Tensor = SeededDropout.apply(x, backend, 1 - self.p, _seed())
            return output
        dropped: Tensor = super().forward(x)
        return dropped


def dropout_mask(shape: Sequence[int], p: float, like: Tensor) -> Tensor:
    """Draw dropout factors: 0 with probability `p` < 1, else 1 / (1 - p); dtype and device are those of `like`."""
    if (backend := seeded_backend(like)) is not None:
        return seeded_mask(backend, like.new_ones(shape), 1 - p, _seed())
    return torch.rand(tuple(shape), dtype=like.dtype, device=like.device).ge_(p).div_(1 - p)


def _seed() -> int:
    return int(torch.randint(1 << 62, (), device="cpu"))
