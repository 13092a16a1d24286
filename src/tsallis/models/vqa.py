"""Define the visual question answerer of Martins et al. 2020: modular co-attention and attention to image regions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from tsallis import functional
from tsallis.continuous import Density, Elliptical, grid_masses, image_basis
from tsallis.continuous.moments import Matching
from tsallis.errors import check_one_of
from tsallis.models.arguments import constructor_arguments
from tsallis.models.checks import check_attending, check_counts
from tsallis.models.protocol import source_mask
from tsallis.models.recurrence import run_layers
from tsallis.nn import ContinuousAttention2d, OutputLayer, TransformerDecoderLayer, TransformerEncoderLayer
from tsallis.nn.continuous_attention.core import map_alpha
from tsallis.nn.dropout import Dropout
from tsallis.nn.positions import SinusoidalPositions
from tsallis.ops.dtypes import upcast

VARIANCES = {"image": 0.01, "image-paper": 0.001}  # variances of the basis functions


@dataclass(frozen=True)
class GridAttention:
    """Attention of a model to a batch of images; an image is the unit square, x points right, y down."""

    weights: Tensor  # [batch, rows, columns]: discrete weights, which also define the moments of a density
    density: Density | None  # density with batch shape [batch], or None

    @cached_property
    def masses(self) -> Tensor:
        """Return the discrete weights, or the density's masses in the grid's cells [batch, rows, columns].

        Masses are computed on first use, see :func:`tsallis.continuous.grid_masses`.
        """
        if self.density is None:
            return self.weights
        assert isinstance(self.density, Elliptical)
        return grid_masses(self.density, self.weights.shape[1], self.weights.shape[2])


class Flatten(nn.Module):
    """Layers that score states for attention, and project the context of this attention.

    Args:
        d_model: size of the states.
        d_flat: size of the hidden layer between a state and its score.
        d_fused: size of the projected context.
        dropout: dropout of the hidden layer.
    """

    def __init__(self, d_model: int, d_flat: int, d_fused: int, dropout: float) -> None:
        super().__init__()
        self.hidden, self.drop = nn.Linear(d_model, d_flat), Dropout(dropout)
        self.score = nn.Linear(d_flat, 1, bias=False)  # the same bias for all scores would change no weight
        self.merge = nn.Linear(d_model, d_fused)

    def scores(self, states: Tensor) -> Tensor:
        """Return the scores [batch, length] of states [batch, length, d_model]."""
        scores: Tensor = self.score(self.drop(torch.relu(self.hidden(states)))).squeeze(-1)
        return scores

    def forward(self, context: Tensor) -> Tensor:
        """Project a context [batch, d_model] to [batch, d_fused]."""
        merged: Tensor = self.merge(context)
        return merged


class VisualAnswerer(nn.Module):
    r"""Classifier that answers questions about images; each class is an answer.

    The model uses modular co-attention (Yu et al. 2019). An LSTM and layers of self-attention read the question. The
    same number of layers, with self-attention and attention to the question, reads the image's grid. Attention reduces
    the states :math:`h` of the question and :math:`h'` of the image to one vector each:

    .. math:: p = \mathrm{entmax}_\alpha\big(w^\top \mathrm{relu}(W h_l)\big), \qquad
              z = \mathrm{norm}\big(A \textstyle\sum_l p_l h_l + A' \sum_l p'_l h'_l\big)

    The weights :math:`p` of the question always use softmax. Continuous attention replaces the weights :math:`p'` of
    the image by a density with their mean and covariance. This density attends to a continuous image, without further
    parameters. Combined attention adds both contexts (Martins et al. 2020, sec. 4 and appendix H.3).

    Args:
        vocab: number of symbols of questions; 0 is padding.
        answers: number of classes.
        d_model: size of the states; a multiple of `heads`, and of 4 with `positions`.
        heads: number of heads of each attention in the layers, which use softmax.
        layers: number of layers for the question; the image has the same number.
        d_ff: size of the feed-forward networks in the layers; by default 4 `d_model`.
        dropout: dropout in the layers and in the networks that compute scores.
        d_embedding: size of the embeddings; by default `d_model`.
        d_flat: size of the networks that compute scores; by default `d_model`.
        d_fused: size of the fused features z; by default 2 `d_model`.
        image: "cnn" for pictures, or "features" of another network, see
            :class:`tsallis.models.vqa.ImageGrid`.
        d_image: number of channels of a picture, or size of the features.
        stages: number of convolutions of "cnn"; each convolution halves height and width.
        positions: whether to add position encodings of the grid to the states of the image.
        attention: attention to the image: "discrete", "continuous" or "combined".
        transform: activation of the discrete attention to the image, "softmax", "sparsemax", "entmax" (1.5) or an
            alpha; the density has the same alpha.
        num_basis: number of Gaussian basis functions of the continuous image; a square number.
        basis: "image", or "image-paper" with functions as narrow as the paper's.
        matching: "covariance" as in the paper, or "scale", see :class:`tsallis.nn.ContinuousAttention2d`.
        density: density in place of the one with the alpha of `transform`: "gaussian", "truncated_paraboloid", an
            alpha, or "learned", which adds a parameter. The paper's continuous sparsemax is a density of alpha 2 with
            the moments of softmax weights.
        ridge: penalty of the ridge regression.
        output: activation of the output, "softmax", "sparsemax" or "entmax".
        output_alpha: alpha of output "entmax".

    Raises:
        ValueError: sizes that don't fit, an unknown attention, map, basis or kind of image.

    Example:
        >>> model = VisualAnswerer(20, 5, d_model=8, heads=2, layers=1, attention="continuous", num_basis=16)
        >>> pictures = torch.randint(256, (3, 32, 32, 3), dtype=torch.uint8)
        >>> src, lengths = torch.randint(4, 20, (3, 6)), torch.tensor([6, 4, 1])
        >>> model(pictures, src, lengths).shape, model.attention(pictures, src, lengths).masses.shape
        (torch.Size([3, 5]), torch.Size([3, 4, 4]))
    """

    def __init__(
        self,
        vocab: int,
        answers: int,
        d_model: int = 128,
        heads: int = 4,
        layers: int = 2,
        d_ff: int | None = None,
        dropout: float = 0.1,
        d_embedding: int | None = None,
        d_flat: int | None = None,
        d_fused: int | None = None,
        image: str = "cnn",
        d_image: int = 3,
        stages: int = 3,
        positions: bool = True,
        attention: str = "continuous",
        transform: str | float = "softmax",
        num_basis: int = 100,
        basis: str = "image",
        matching: Matching = "covariance",
        density: str | float | None = None,
        ridge: float = 0.1,
        output: str = "softmax",
        output_alpha: float = 1.5,
    ) -> None:
        super().__init__()
        self.arguments = constructor_arguments(locals())
        check_attending(layers, dropout, attention, density, output)
        self.kind, self.alpha = attention, map_alpha(transform)
        d_fused = d_fused or 2 * d_model
        self.embedding = nn.Embedding(vocab, d_embedding or d_model, padding_idx=0)
        self.reader = nn.LSTM(d_embedding or d_model, d_model, batch_first=True)
        self.grid = ImageGrid(d_model, image, d_image, stages, positions)
        sizes = (d_model, heads, d_ff or 4 * d_model, dropout)
        self.question_layers = nn.ModuleList(
            TransformerEncoderLayer(*sizes, batch_first=True, alpha=1.0) for _ in range(layers)
        )
        self.image_layers = nn.ModuleList(
            TransformerDecoderLayer(*sizes, batch_first=True, alpha=1.0) for _ in range(layers)
        )
        self.question_flat, self.image_flat = (
            Flatten(d_model, d_flat or d_model, d_fused, dropout) for _ in ("question", "image")
        )
        self.norm = nn.LayerNorm(d_fused)
        self.continuous = None
        if attention != "discrete":
            self.continuous = ContinuousAttention2d(
                d_model,
                moments="scores",
                density=self.alpha if density is None else density,
                transform=transform,
                combine=attention == "combined",
                matching=matching,
                basis=image_basis(*_basis(num_basis, basis)),
                ridge=ridge,
                project=False,
            )
        self.output = OutputLayer(d_fused, answers, output, output_alpha)

    def forward(self, images: Tensor, src: Tensor, src_lengths: Tensor) -> Tensor:
        """Return the scores of the answers [batch, answers].

        Args:
            images: [batch, height, width, d_image]: pictures as uint8 (0 to 255) or floating point (0 to 1), or
                features.
            src: symbols of the questions [batch, src].
            src_lengths: number of symbols per question [batch].

        Raises:
            ValueError: counts below 1 or above the width of `src`, images of a wrong shape or number.
            TypeError: images of a wrong dtype.
        """
        return self.output.scores(self._hidden(images, src, src_lengths))

    def loss(
        self,
        images: Tensor,
        src: Tensor,
        src_lengths: Tensor,
        labels: Tensor,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """Return the output layer's loss for answers [batch]; answer -100 is ignored."""
        hidden = self._hidden(images, src, src_lengths)
        return self.output.loss(hidden, labels, reduction=reduction, label_smoothing=label_smoothing)

    def probs(self, images: Tensor, src: Tensor, src_lengths: Tensor) -> Tensor:
        """Return the probabilities of the answers [batch, answers]."""
        return self.output.probs(self(images, src, src_lengths))

    @torch.no_grad()
    def attention(self, images: Tensor, src: Tensor, src_lengths: Tensor) -> GridAttention:
        """Return the model's attention: weights and density."""
        return self.read(images, src, src_lengths)[1]

    def read(self, images: Tensor, src: Tensor, src_lengths: Tensor) -> tuple[Tensor, GridAttention]:
        """Return the output layer's input [batch, d_fused], and the attention, which has no gradients."""
        words, lengths, grid = self._states(images, src, src_lengths)
        context, density, weights = self._attend(grid)
        return self._fuse(words, lengths, context), self._attention_map(density, weights, grid.shape[1:3])

    @torch.no_grad()
    def _attention_map(self, density: Density | None, weights: Tensor, size: torch.Size) -> GridAttention:
        weights = weights.detach().unflatten(-1, size)
        if self.continuous is None:
            return GridAttention(weights, None)
        assert isinstance(density, Elliptical)
        mean, factor = density.mean.detach().flatten(0, -2), density.factor.detach().flatten(0, -3)
        flat = type(density).from_factor(mean, factor, **_flatten_shape(self.continuous.kind.shape(1)))
        return GridAttention(weights, flat)

    def _hidden(self, images: Tensor, src: Tensor, src_lengths: Tensor) -> Tensor:
        words, lengths, grid = self._states(images, src, src_lengths)
        return self._fuse(words, lengths, self._attend(grid)[0])

    def _states(self, images: Tensor, src: Tensor, src_lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return question states [batch, src, d_model], counts, and image states [batch, rows, columns, d_model]."""
        src_lengths = check_counts(src, src_lengths)
        if len(images) != len(src):
            raise ValueError(
                f"images must have one image per question, got {len(images)} images for {len(src)} questions"
            )
        lengths = src_lengths.to(src.device)
        words, _ = run_layers(self.reader, self.embedding(src))  # symbols after a row's end don't affect earlier states
        for layer in self.question_layers:
            words = layer(words, src_key_lengths=lengths)
        grid = self.grid(images)  # [batch, rows, columns, d_model]
        cells = grid.flatten(1, 2)
        for layer in self.image_layers:
            cells = layer(cells, words, memory_key_lengths=lengths)
        return words, lengths, cells.unflatten(1, grid.shape[1:3])

    def _attend(self, grid: Tensor) -> tuple[Tensor, Density | None, Tensor]:
        """Return context [batch, d_model], density (batch shape [batch, 1, 1]) and discrete weights [batch, cells]."""
        cells, size = grid.flatten(1, 2), (grid.shape[1], grid.shape[2])
        scores = self.image_flat.scores(cells)
        if self.continuous is not None:
            context, density, weights = self.continuous.attend(scores, cells, grid=size)
            assert weights is not None
            return context, density, weights.squeeze((1, 2))
        weights = functional.entmax(upcast(scores), self.alpha)
        return (weights.to(cells.dtype).unsqueeze(1) @ cells).squeeze(1), None, weights

    def _fuse(self, words: Tensor, lengths: Tensor, context: Tensor) -> Tensor:
        mask = source_mask(lengths, words)
        weights = functional.entmax(upcast(self.question_flat.scores(words)), 1.0, mask=mask)
        summary = (weights.to(words.dtype).unsqueeze(1) @ torch.where(mask.unsqueeze(-1), words, 0)).squeeze(1)
        fused: Tensor = self.norm(self.question_flat(summary) + self.image_flat(context))
        return fused


def _basis(num_basis: int, basis: str) -> tuple[int, float]:
    """Return the side and the variance of a basis."""
    side = math.isqrt(max(num_basis, 0))
    if side < 1 or side * side != num_basis:
        raise ValueError(f"num_basis must be a square number, got {num_basis}")
    check_one_of("basis", basis, VARIANCES)
    return side, VARIANCES[basis]


def _flatten_shape(shape: dict[str, Any]) -> dict[str, Any]:
    """Flatten the shape parameters of a density from batch shape [batch, 1, 1] to [batch]."""
    return {name: x.reshape(-1) if isinstance(x, Tensor) else x for name, x in shape.items()}


GROUPS = 8  # number of groups of channels that are normalized together
KINDS = ("cnn", "features")


class ImageGrid(nn.Module):
    """Encoder of images as grids of states: convolutions for pictures, a linear layer for features.

    Args:
        d_model: size of a state; a multiple of 4 with `positions`.
        kind: "cnn" for pictures, "features" for the output of another network.
        d_image: number of channels of a picture, or size of the features.
        stages: number of convolutions of "cnn"; each convolution halves height and width. The last has `d_model`
            filters; each earlier one has half as many as the next.
        positions: whether to add encodings of each state's row and column.

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
        check_one_of("image", kind, KINDS)
        if d_image < 1 or stages < 1:
            raise ValueError(f"d_image and stages must be at least 1, got {d_image} and {stages}")
        if positions and d_model % 4:
            raise ValueError(f"d_model must be a multiple of 4 with positions, got {d_model}")
        self.kind = kind
        self.d_image = d_image
        self.halved = 2**stages
        self.positions = SinusoidalPositions(d_model // 2) if positions else None
        if kind == "features":
            self.layers: nn.Module = nn.Linear(d_image, d_model)
        else:
            widths = [d_image, *(max(1, d_model >> (stages - 1 - i)) for i in range(stages))]
            self.layers = nn.Sequential(*(_stage(d_in, d_out) for d_in, d_out in pairwise(widths)))

    def forward(self, images: Tensor) -> Tensor:
        """Encode [batch, height, width, d_image] to [batch, rows, columns, d_model].

        Pictures are numbers from 0 to 255 as uint8, or from 0 to 1 as floating point; features are floating point.

        Raises:
            ValueError: a wrong shape, or pictures that are too small for the number of stages.
            TypeError: a wrong dtype.
        """
        self.check(images)
        dtype = next(self.parameters()).dtype
        if self.kind == "features":
            grid: Tensor = self.layers(images.to(dtype))
        else:
            x = images.to(dtype) / 255 if images.dtype == torch.uint8 else images.to(dtype)
            grid = self.layers((2 * x - 1).movedim(-1, 1)).movedim(1, -1)  # [batch, rows, columns, d_model]
        return grid if self.positions is None else grid + self._position_encodings(grid)

    def check(self, images: Tensor) -> None:
        """Raise unless images have a shape and a dtype that :meth:`forward` encodes."""
        if images.dim() != 4 or images.shape[-1] != self.d_image:
            raise ValueError(f"images must have shape [batch, height, width, {self.d_image}], got {list(images.shape)}")
        if self.kind == "features":
            if not images.is_floating_point():
                raise TypeError(f"features must be floating point, got {images.dtype}")
            return
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise TypeError(f"pictures must be uint8 or floating point, got {images.dtype}")
        if min(images.shape[1:3]) < self.halved:
            raise ValueError(
                f"pictures must have at least {self.halved} pixels per side, got {list(images.shape[1:3])}"
            )

    def _position_encodings(self, grid: Tensor) -> Tensor:
        """Return encodings [rows, columns, d_model]: the first half encodes the row, the second half the column."""
        assert self.positions is not None
        rows, columns = grid.shape[1:3]
        row_encodings, column_encodings = self.positions(grid, 0, rows), self.positions(grid, 0, columns)
        return torch.cat(
            [row_encodings.unsqueeze(1).expand(-1, columns, -1), column_encodings.expand(rows, -1, -1)], -1
        )


def _stage(d_in: int, d_out: int) -> nn.Sequential:
    convolution = nn.Conv2d(d_in, d_out, 3, stride=2, padding=1)
    return nn.Sequential(convolution, nn.GroupNorm(math.gcd(GROUPS, d_out), d_out), nn.ReLU())
