"""Scale attention scores with the number of keys."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tsallis.errors import check_integer, check_one_of
from tsallis.ops.dtypes import compute_dtype

LengthScaleKind = Literal["input", "head", "ssmax"]


class LengthScale(nn.Module):
    r"""Learned factor of attention scores that depends on the number of visible keys of each query.

    .. math:: s_i = 1 + \beta_i (\log (n_i + 1))^{\gamma_i}, \qquad
              \beta_i = \mathrm{softplus}(w_\beta \cdot x_i), \qquad \gamma_i = 2 \tanh(w_\gamma \cdot x_i)

    where query i has the input :math:`x_i` and may attend to :math:`n_i` keys (adaptive-scalable entmax, Vasylenko et
    al. 2026; the logarithm is as in their code). With more keys, scores must differ more for equally sharp weights. The
    kind "head" has one :math:`\beta` and one :math:`\gamma` per head, regardless of the input. The kind "ssmax" is
    :math:`s_i = \beta \log n_i` with one :math:`\beta` per head, initially 1 (scalable softmax, Nakanishi 2025).

    Args:
        embed_dim: size of the inputs.
        num_heads: number of heads.
        kind: "input", "head" or "ssmax".
        device: device of the parameters.
        dtype: dtype of the parameters.

    Raises:
        ValueError: an unknown kind.

    Example:
        >>> scale = LengthScale(8, 2, "ssmax")
        >>> factor = scale(torch.randn(1, 3, 8), torch.tensor([1.0, 2.0, 100.0]))
        >>> factor.shape, factor[0, 0, :, 0].tolist()
        (torch.Size([1, 2, 3, 1]), [0.0, 0.6931471824645996, 4.605170249938965])
    """

    LARGEST_POWER = 2.0  # largest exponent of the logarithm

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        kind: LengthScaleKind = "input",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_integer("embed_dim", embed_dim, 1)
        check_integer("num_heads", num_heads, 1)
        check_one_of("length_scale", kind, get_args(LengthScaleKind))
        self.kind: LengthScaleKind = kind
        shape = (num_heads, embed_dim) if kind == "input" else (num_heads,)
        self.beta = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        gamma = None if kind == "ssmax" else nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.register_parameter("gamma", gamma)
        self.reset_parameters()

    gamma: Tensor | None

    def reset_parameters(self) -> None:
        """Reset the parameters to their initial values."""
        if self.gamma is None:
            nn.init.ones_(self.beta)
        elif self.kind == "head":
            nn.init.zeros_(self.beta)
            nn.init.zeros_(self.gamma)
        else:
            for weight in (self.beta, self.gamma):
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5)

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        """Return the factors of queries [batch, heads, queries, 1].

        Args:
            x: inputs of the queries [batch, queries, embed_dim].
            visible: number of visible keys, broadcastable to [batch, heads, queries].
        """
        count, dtype = visible.clamp(min=1).to(compute_dtype(self.beta.dtype)), self.beta.dtype
        if self.gamma is None:
            return (self.beta.unsqueeze(1) * count.log().to(dtype)).expand(x.shape[0], -1, x.shape[1]).unsqueeze(-1)
        if self.kind == "head":
            beta, gamma = self.beta.unsqueeze(1), self.gamma.unsqueeze(1)  # [heads, 1]
        else:
            # PyTorch's compiler can't differentiate softplus of a transposed tensor.
            beta, gamma = (F.linear(x, weight).mT.contiguous() for weight in (self.beta, self.gamma))
        factor = 1 + F.softplus(beta) * (count + 1).log().to(dtype) ** (self.LARGEST_POWER * gamma.tanh())
        return factor.expand(x.shape[0], -1, x.shape[1]).unsqueeze(-1)

    def extra_repr(self) -> str:
        return f"{len(self.beta)}, kind={self.kind!r}"
