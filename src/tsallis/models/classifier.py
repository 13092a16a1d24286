"""Define the document classifier of Martins et al. 2020: a BiLSTM with discrete or continuous attention."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from tsallis import functional
from tsallis.continuous import Density, Elliptical, cell_masses
from tsallis.continuous.moments import Matching
from tsallis.models.arguments import constructor_arguments
from tsallis.models.checks import check_attending, check_counts
from tsallis.models.protocol import source_mask
from tsallis.models.recurrence import CELLS, check_cell, open_forget_gates, run_layers
from tsallis.nn import ContinuousAttention1d, OutputLayer
from tsallis.nn.continuous_attention.core import cell_edges, map_alpha
from tsallis.nn.dropout import Dropout

INITIAL = 0.1  # parameters start uniform in [-0.1, 0.1]


@dataclass(frozen=True)
class AttentionMap:
    """Attention of a classifier to a batch of documents; each document is the interval [0, 1]."""

    mask: Tensor  # [batch, src], True for words
    weights: Tensor | None  # [batch, src]: weights of discrete attention, or None
    density: Elliptical | None  # density with batch shape [batch], or None

    @cached_property
    def masses(self) -> Tensor:
        """Return the discrete weights, or the density's masses in the cells of the words [batch, src]."""
        if self.density is not None:
            return cell_masses(self.density, cell_edges(self.mask).to(self.density.mean))
        assert self.weights is not None
        return self.weights


class BidirectionalLayer(nn.Module):
    """Bidirectional LSTM or GRU layer for rows of different lengths.

    Rows are reversed within their lengths instead of packed, because packed sequences train several times slower on a
    CPU.

    Args:
        d_input: size of the input.
        d_model: size of the states of both directions together; even.
        cell: "lstm" or "gru".
    """

    def __init__(self, d_input: int, d_model: int, cell: str = "lstm") -> None:
        super().__init__()
        self.forwards = CELLS[cell](d_input, d_model // 2, batch_first=True)
        self.backwards = CELLS[cell](d_input, d_model // 2, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Encode inputs [batch, src, d_input]; return states [batch, src, d_model] and last states [batch, d_model].

        `lengths` [batch] are the numbers of inputs per row. States after the end of a row are undefined.
        """
        position = torch.arange(x.shape[1], device=x.device)
        last = lengths.unsqueeze(1) - 1  # [batch, 1]
        # Reverse the valid positions of each row; reversing twice is the identity.
        reverse = torch.where(position <= last, last - position, position)  # [batch, src]
        forward_states, _ = run_layers(self.forwards, x)
        backward_states, _ = run_layers(self.backwards, _gather_rows(x, reverse))
        backward_states = _gather_rows(backward_states, reverse)
        states = torch.cat([forward_states, backward_states], -1)
        return states, torch.cat([_gather_rows(forward_states, last).squeeze(1), backward_states[:, 0]], -1)


def _gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """Gather positions [batch, places] from each row of x [batch, src, size]."""
    return x.gather(1, index.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


class BiLSTMClassifier(nn.Module):
    r"""Document classifier: a bidirectional LSTM or GRU with attention to its states.

    Discrete attention scores each state by :math:`v^\top \tanh(W h_l + U s)`, where s are the last states of both
    directions. Continuous attention computes the mean and spread of its density by a convolution and max-pooling over
    the states. Combined attention takes the mean and spread of the discrete weights instead, and adds both contexts
    (Martins et al. 2020, sec. 4 and appendix H.1).

    Args:
        vocab: number of symbols; 0 is padding.
        classes: number of classes.
        d_model: size of the states of both directions together; even.
        layers: number of layers of the LSTM or GRU.
        dropout: dropout on embeddings, between layers and on the context.
        attention: "discrete", "continuous" or "combined".
        transform: activation of discrete attention, "softmax", "sparsemax", "entmax" (1.5) or an alpha; the density has
            the same alpha.
        num_basis: number of Gaussian basis functions of the value function; half of them have width 0.1, half 0.5.
        matching: "scale" as in the paper, or "covariance", see :class:`tsallis.nn.ContinuousAttention1d`.
        density: density in place of the one with the alpha of `transform`: "laplace", "triangular" or another alpha.
        ridge: penalty of the ridge regression.
        d_embedding: size of the embeddings; by default `d_model`.
        output: activation of the output, "softmax", "sparsemax" or "entmax".
        output_alpha: alpha of output "entmax".
        cell: "lstm" or "gru".

    Raises:
        ValueError: a size is odd or too small, or the attention, map or cell is unknown.

    Example:
        >>> model = BiLSTMClassifier(20, 2, d_model=8, attention="combined", transform="sparsemax", num_basis=8)
        >>> src, lengths = torch.randint(4, 20, (3, 5)), torch.tensor([5, 3, 1])
        >>> model(src, lengths).shape, model.attention(src, lengths).masses.shape
        (torch.Size([3, 2]), torch.Size([3, 5]))
    """

    def __init__(
        self,
        vocab: int,
        classes: int,
        d_model: int = 128,
        layers: int = 1,
        dropout: float = 0.3,
        attention: str = "combined",
        transform: str | float = "sparsemax",
        num_basis: int = 64,
        matching: Matching = "scale",
        density: str | float | None = None,
        ridge: float = 0.1,
        d_embedding: int | None = None,
        output: str = "softmax",
        output_alpha: float = 1.5,
        cell: str = "lstm",
    ) -> None:
        super().__init__()
        self.arguments = constructor_arguments(locals())
        if d_model < 2 or d_model % 2:
            raise ValueError(f"d_model must be even and at least 2, got {d_model}")
        check_attending(layers, dropout, attention, density, output)
        check_cell(cell)
        self.kind = attention
        self.alpha = map_alpha(transform)
        self.drop = Dropout(dropout)
        size = d_embedding or d_model
        self.embedding = nn.Embedding(vocab, size, padding_idx=0)
        self.layers = nn.ModuleList(BidirectionalLayer(d_model if i else size, d_model, cell) for i in range(layers))
        if attention != "continuous":
            self.keys = nn.Linear(d_model, d_model)
            self.query = nn.Linear(d_model, d_model, bias=False)
            self.score = nn.Linear(d_model, 1, bias=False)
        self._initialise()  # call this before creating modules with their own initialization
        self.continuous = None
        if attention != "discrete":
            self.continuous = ContinuousAttention1d(
                d_model,
                moments="pooled" if attention == "continuous" else "scores",
                density=self.alpha if density is None else density,
                transform=transform,
                combine=attention == "combined",
                matching=matching,
                basis=num_basis,
                ridge=ridge,
                project=False,
            )
        self.output = OutputLayer(d_model, classes, output, output_alpha)

    @torch.no_grad()
    def _initialise(self) -> None:
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -INITIAL, INITIAL)
        self.embedding.weight[0] = 0
        for layer in self.layers:
            assert isinstance(layer, BidirectionalLayer)
            open_forget_gates(layer.forwards)
            open_forget_gates(layer.backwards)

    def forward(self, src: Tensor, src_lengths: Tensor) -> Tensor:
        """Return the scores of the classes [batch, classes] for symbols [batch, src] and their counts [batch].

        Raises:
            ValueError: counts below 1 or above the width of `src`.
        """
        return self.output.scores(self._hidden(src, src_lengths))

    def loss(
        self,
        src: Tensor,
        src_lengths: Tensor,
        labels: Tensor,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """Return the output layer's loss for classes [batch]; class -100 is ignored."""
        hidden = self._hidden(src, src_lengths)
        return self.output.loss(hidden, labels, reduction=reduction, label_smoothing=label_smoothing)

    def probs(self, src: Tensor, src_lengths: Tensor) -> Tensor:
        """Return the probabilities of the classes [batch, classes]."""
        return self.output.probs(self(src, src_lengths))

    @torch.no_grad()
    def attention(self, src: Tensor, src_lengths: Tensor) -> AttentionMap:
        """Return the model's attention: weights and density."""
        return self.read(src, src_lengths)[1]

    def read(self, src: Tensor, src_lengths: Tensor) -> tuple[Tensor, AttentionMap]:
        """Return the output layer's input [batch, d_model], and the attention, which has no gradients."""
        states, last, lengths = self._states(src, src_lengths)
        context, density, weights = self._attend(states, last, lengths)
        return self.drop(context), self._attention_map(density, weights, source_mask(lengths, src))

    @torch.no_grad()
    def _attention_map(self, density: Density | None, weights: Tensor | None, mask: Tensor) -> AttentionMap:
        weights = None if weights is None else weights.detach()
        if self.continuous is None:
            return AttentionMap(mask, weights, None)
        assert isinstance(density, Elliptical)
        mean, std = density.mean.detach().flatten(), density.factor.detach().flatten()
        return AttentionMap(mask, weights, type(density).from_factor(mean, std, **self.continuous.kind.shape(1)))

    def _hidden(self, src: Tensor, src_lengths: Tensor) -> Tensor:
        return self.drop(self._attend(*self._states(src, src_lengths))[0])

    def _states(self, src: Tensor, src_lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return states [batch, src, d_model], zero after a document's end; last states [batch, d_model]; counts."""
        src_lengths = check_counts(src, src_lengths)
        lengths = src_lengths.to(src.device)
        x, last = self.embedding(src), None
        for layer in self.layers:
            x, last = layer(self.drop(x), lengths)
        assert last is not None
        return torch.where(source_mask(lengths, src).unsqueeze(-1), x, 0), last, lengths

    def _attend(self, states: Tensor, last: Tensor, lengths: Tensor) -> tuple[Tensor, Density | None, Tensor | None]:
        """Return context [batch, d_model], density (batch shape [batch, 1, 1]) and discrete weights [batch, src]."""
        if self.kind == "continuous":
            assert self.continuous is not None
            return self.continuous.attend(None, states, lengths=lengths)
        mixed = torch.tanh(self.keys(states) + self.query(last).unsqueeze(1))
        scores = self.score(mixed).squeeze(-1)  # [batch, src]
        if self.continuous is not None:
            context, density, weights = self.continuous.attend(scores, states, lengths=lengths)
            return context, density, None if weights is None else weights.squeeze((1, 2))
        weights = functional.entmax(scores, self.alpha, mask=source_mask(lengths, states))
        return (weights.to(states.dtype).unsqueeze(1) @ states).squeeze(1), None, weights
