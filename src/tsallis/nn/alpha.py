"""Define learned alphas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tsallis.errors import check_integer
from tsallis.functional.rows import alpha_number, number


def whole(x: Tensor) -> Tensor:
    """Return a tensor, or all of a tensor of which this process has a shard; then all processes must call it."""
    return x.full_tensor() if hasattr(x, "full_tensor") else x


class PerHeadAlpha(nn.Module):
    r"""Learned alpha per attention head, kept between two bounds.

    .. math:: \alpha_h = \mathrm{low} + (\mathrm{high} - \mathrm{low}) \, \sigma(a_h)

    (Correia et al. 2019, sec. 4, with bounds 1 and 2: from softmax to sparsemax.) The parameter :math:`a` is called
    `bias`, so that optimizers that exclude biases from weight decay also exclude :math:`a`. A state dict without this
    parameter can be loaded, for example from a PyTorch attention; the parameter then keeps its value. The parameter
    stays in float32 if the model is cast to half precision, because rounding would cancel small optimizer steps. FSDP
    needs parameters of one dtype: shard the model in float32, and let its mixed-precision policy choose half precision.

    Args:
        num_heads: number of heads.
        low: lower bound, at least 1.
        high: upper bound.
        initial: initial alpha of all heads, strictly between the bounds; None draws :math:`a` from a normal
            distribution.
        device: device of the parameter.
        dtype: dtype of the parameter.

    Raises:
        ValueError: bounds below 1 or in the wrong order, an initial alpha that is not between them.

    Example:
        >>> PerHeadAlpha(3, initial=1.5)().detach()
        tensor([1.5000, 1.5000, 1.5000])
    """

    def __init__(
        self,
        num_heads: int,
        low: float = 1.0,
        high: float = 2.0,
        initial: float | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.low, self.high = alpha_number(low), alpha_number(high)
        if not self.low < self.high:
            raise ValueError(f"low must be below high, got {low:g} and {high:g}")
        initial = None if initial is None else number("initial", initial)
        if initial is not None and not self.low < initial < self.high:
            raise ValueError(f"initial must be above {low:g} and below {high:g}, got {initial:g}")
        num_heads = check_integer("num_heads", num_heads, 1)
        self.initial = initial
        self.bias = nn.Parameter(torch.empty(num_heads, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset the parameter to its initial values."""
        if self.initial is None:
            nn.init.normal_(self.bias)
        else:
            share = (self.initial - self.low) / (self.high - self.low)
            nn.init.constant_(self.bias, math.log(share / (1 - share)))

    def forward(self) -> Tensor:
        """Return the alphas [heads]."""
        share = self.bias.sigmoid()
        # Use `lerp`: its rounded result is never outside the bounds.
        return torch.lerp(torch.full_like(share, self.low), torch.full_like(share, self.high), share)

    def extra_repr(self) -> str:
        return f"{len(self.bias)}, low={self.low:g}, high={self.high:g}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PerHeadAlpha:
        super()._apply(keep_precision(fn, self.bias), recurse)
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        if f"{prefix}bias" not in state_dict:
            state_dict[f"{prefix}bias"] = self.bias.detach().clone()
        super()._load_from_state_dict(state_dict, prefix, *args)


def keep_precision(fn: Callable[[Tensor], Tensor], alpha: Any) -> Callable[[Tensor], Tensor]:
    """Return a function for `Module._apply` that never converts the tensor `alpha` to half precision.

    Half precision would round 1.001 to 1, and cancel small steps of an optimizer.
    """
    alpha_tensors = (alpha, alpha.grad) if isinstance(alpha, Tensor) else ()

    def convert(x: Tensor) -> Tensor:
        moved = fn(x)
        half = moved.dtype.itemsize < 4 <= x.dtype.itemsize and any(x is tensor for tensor in alpha_tensors)
        return x.to(moved.device, torch.float32) if half else moved

    return convert
