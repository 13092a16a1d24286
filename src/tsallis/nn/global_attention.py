"""Define attention of a state over a memory, with weights that can be exactly zero."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tsallis import functional
from tsallis.errors import check_integer, check_one_of
from tsallis.functional.rows import check_dense
from tsallis.nn.output import transform_alpha

SCORERS = ("bilinear", "additive")


class ScoredAttention(nn.Module):
    """Base class of attention with a bilinear or additive score; subclasses define `attend`.

    Args:
        d_query: size of the state.
        d_memory: size of the memory.
        scorer: "bilinear" or "additive".

    Raises:
        ValueError: an unknown scorer.
    """

    def __init__(self, d_query: int, d_memory: int, scorer: str = "bilinear") -> None:
        super().__init__()
        check_integer("d_query", d_query, 1)
        check_integer("d_memory", d_memory, 1)
        check_one_of("scorer", scorer, SCORERS)
        self.scorer = scorer
        if scorer == "bilinear":
            self.bilinear = nn.Linear(d_memory, d_query, bias=False)
        else:
            self.by_memory = nn.Linear(d_memory, d_query, bias=False)
            self.by_query = nn.Linear(d_query, d_query)
            self.score = nn.Linear(d_query, 1, bias=False)

    def attend(self, scores: Tensor, memory: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the context [batch, tgt, d_memory] and weights [batch, tgt, src] of scores [batch, tgt, src]."""
        raise NotImplementedError

    def keys(self, memory: Tensor) -> Tensor:
        """Compute `W h_j` of a whole sentence [batch, src, d_query] once for all steps."""
        keys: Tensor = self.bilinear(memory) if self.scorer == "bilinear" else self.by_memory(memory)
        return keys

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        """Return the scores [batch, tgt, src] for states [batch, tgt, d_query] and the result of :meth:`keys`."""
        if self.scorer == "bilinear":
            return query @ keys.transpose(-2, -1)
        hidden = torch.tanh(keys.unsqueeze(1) + self.by_query(query).unsqueeze(2))  # [batch, tgt, src, d_query]
        scores: Tensor = self.score(hidden).squeeze(-1)
        return scores

    def forward(self, query: Tensor, memory: Tensor, mask: Tensor, keys: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return context and weights; continuous attention returns probability masses as weights.

        Args:
            query: [batch, d_query], or [batch, tgt, d_query] for many steps at once.
            memory: [batch, src, d_memory].
            mask: boolean [batch, src]; False hides a position.
            keys: the result of :meth:`keys` for the memory; computed by default.

        Returns:
            Context [batch, d_memory] and weights [batch, src], or [batch, tgt, d_memory] and [batch, tgt, src].
        """
        keys = self.keys(memory) if keys is None else keys
        single = query.dim() == 2
        steps = query.unsqueeze(1) if single else query  # [batch, tgt, d_query]
        context, weights = self.attend(self.scores(steps, keys), memory, mask)
        return (context.squeeze(1), weights.squeeze(1)) if single else (context, weights)


class GlobalAttention(ScoredAttention):
    r"""Attention of a state over a memory, with softmax, sparsemax or entmax weights.

    .. math:: w = \mathrm{entmax}_\alpha\big(s^\top W h_1, \dots, s^\top W h_n\big), \qquad c = \sum_j w_j h_j

    (Peters et al. 2019, eq. 1, with entmax in place of softmax; the "general" score of Luong et al. 2015.) The additive
    score is

    .. math:: v^\top \tanh(W h_j + U s + b)

    (Bahdanau et al. 2015), with a vector :math:`v` of the size of the state.

    Args:
        d_query: size of the state :math:`s`.
        d_memory: size of the memory :math:`h_j`.
        transform: "softmax", "sparsemax" or "entmax".
        alpha: alpha of "entmax".
        scorer: "bilinear" or "additive".

    Raises:
        ValueError: an unknown transform, a transform whose values don't sum to 1, an alpha below 1, an unknown scorer.

    Example:
        >>> import torch
        >>> attention = GlobalAttention(4, 6)
        >>> mask = torch.tensor([[True, True, False]])
        >>> context, weights = attention(torch.randn(1, 4), torch.randn(1, 3, 6), mask)
        >>> context.shape, weights[0, 2].item()
        (torch.Size([1, 6]), 0.0)
    """

    def __init__(
        self, d_query: int, d_memory: int, transform: str = "entmax", alpha: float = 1.5, scorer: str = "bilinear"
    ) -> None:
        super().__init__(d_query, d_memory, scorer)
        if transform == "alpha_relu":
            raise ValueError("transform must be softmax, sparsemax or entmax, whose weights sum to 1, got 'alpha_relu'")
        self.transform, self.alpha = transform, transform_alpha(transform, alpha)

    def attend(self, scores: Tensor, memory: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the context [batch, tgt, d_memory] and weights [batch, tgt, src] of scores [batch, tgt, src]."""
        check_dense(mask, "mask")
        if mask.shape != memory.shape[:2]:
            raise ValueError(
                f"mask must have the shape {tuple(memory.shape[:2])} of the memory, got {tuple(mask.shape)}"
            )
        weights = functional.entmax(scores, self.alpha, mask=mask.unsqueeze(1))
        return weights @ memory, weights

    def extra_repr(self) -> str:
        return f"transform={self.transform}, alpha={self.alpha:g}, scorer={self.scorer}"
