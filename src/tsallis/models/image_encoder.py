"""Encode images as grids of states."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from tsallis.nn.positions import SinusoidalPositions

GROUPS = 8  # number of groups of channels that are normalized together
KINDS = ("cnn", "features")


class ImageGrid(nn.Module):
    """Encode pictures by convolutions, or given features by a linear layer, as grids of states.

    Args:
        d_model: size of a state; a multiple of 4 with `positions`.
        kind: "cnn" for pictures, "features" for the output of another network.
        d_image: channels of a picture, or size of the features.
        stages: convolutions of "cnn"; each halves height and width, and the last has `d_model` filters, the ones before
            it half as many each.
        positions: add encodings of each state's row and column.

    Raises:
        ValueError: an unknown kind, or sizes that are too small or not a multiple of 4.

    Example:
        >>> pictures = torch.randint(256, (2, 24, 32, 3), dtype=torch.uint8)
        >>> ImageGrid(8, stages=3)(pictures).shape
        torch.Size([2, 3, 4, 8])
        >>> ImageGrid(8, "features", d_image=5)(torch.randn(2, 7, 7, 5)).shape
        torch.Size([2, 7, 7, 8])
    """

    def __init__(
        self, d_model: int, kind: str = "cnn", d_image: int = 3, stages: int = 3, positions: bool = True
    ) -> None:
        super().__init__()
        if kind not in KINDS:
            raise ValueError(f"image must be one of {', '.join(KINDS)}, got {kind!r}")
        if d_image < 1 or stages < 1:
            raise ValueError(f"d_image and stages must be at least 1, got {d_image} and {stages}")
        if positions and d_model % 4:
            raise ValueError(f"with positions in rows and columns d_model must be a multiple of 4, got {d_model}")
        self.kind = kind
        self.d_image = d_image
        self.halved = 2**stages
        self.positions = SinusoidalPositions(d_model // 2) if positions else None
        if kind == "features":
            self.layers: nn.Module = nn.Linear(d_image, d_model)
        else:
            widths = [d_image, *(max(1, d_model >> (stages - 1 - i)) for i in range(stages))]
            self.layers = nn.Sequential(*(_stage(before, after) for before, after in pairwise(widths)))

    def forward(self, images: Tensor) -> Tensor:
        """Encode [batch, height, width, d_image] to [batch, rows, columns, d_model].

        Pictures are numbers from 0 to 255 as uint8, or from 0 to 1 as floating point; features are floating point.

        Raises:
            ValueError: another shape, or pictures of fewer pixels than the stages halve.
            TypeError: numbers of another dtype.
        """
        if images.dim() != 4 or images.shape[-1] != self.d_image:
            raise ValueError(f"images must be [batch, height, width, {self.d_image}], got {list(images.shape)}")
        dtype = next(self.parameters()).dtype
        if self.kind == "features":
            if not images.is_floating_point():
                raise TypeError(f"features must be floating point, got {images.dtype}")
            grid: Tensor = self.layers(images.to(dtype))
        else:
            if images.dtype != torch.uint8 and not images.is_floating_point():
                raise TypeError(f"pictures must be uint8 or floating point, got {images.dtype}")
            if min(images.shape[1:3]) < self.halved:
                raise ValueError(f"pictures need {self.halved} pixels a side at least, got {list(images.shape[1:3])}")
            x = images.to(dtype) / 255 if images.dtype == torch.uint8 else images.to(dtype)
            grid = self.layers((2 * x - 1).movedim(-1, 1)).movedim(1, -1)  # [batch, rows, columns, d_model]
        return grid if self.positions is None else grid + self._places(grid)

    def _places(self, grid: Tensor) -> Tensor:
        """Return encodings [rows, columns, d_model] of each state's position in its column, then in its row."""
        assert self.positions is not None
        rows, columns = grid.shape[1:3]
        down, across = self.positions(grid, 0, rows), self.positions(grid, 0, columns)
        return torch.cat([down.unsqueeze(1).expand(-1, columns, -1), across.expand(rows, -1, -1)], -1)


def _stage(before: int, after: int) -> nn.Sequential:
    convolution = nn.Conv2d(before, after, 3, stride=2, padding=1)
    return nn.Sequential(convolution, nn.GroupNorm(math.gcd(GROUPS, after), after), nn.ReLU())
