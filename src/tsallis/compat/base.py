"""Define a base class of modules with an alpha or a budget, and functions for support sizes."""

from __future__ import annotations

from torch import Tensor, nn

from tsallis.functional.rows import stored_alpha
from tsallis.ops.alphas import Alpha
from tsallis.ops.constants import ConstantBuffers

MapResult = Tensor | tuple[Tensor, Tensor]


def support_size(probs: Tensor, dim: int) -> Tensor:
    """Return the number of positive entries, with size 1 along `dim`."""
    return (probs > 0).sum(dim, keepdim=True)


def with_size(probs: Tensor, dim: int, return_size: bool) -> MapResult:
    """Return probabilities, or with `return_size` a pair of probabilities and support sizes."""
    return (probs, support_size(probs, dim)) if return_size else probs


class Map(ConstantBuffers):
    """Base class of modules; tensor arguments move with the module, but are not in the state dict."""

    has_alpha = True  # `tsallis.nn.parameter_groups` reads this: a parameter named alpha is a learned alpha

    def _set_argument(self, name: str, value: Alpha) -> None:
        if name == "alpha":
            value = stored_alpha(value, positive=True)
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            self.register_constant(name, value)
        else:
            setattr(self, name, value)
