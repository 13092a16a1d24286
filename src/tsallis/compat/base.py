"""The base of modules that hold an alpha or a budget, and the sizes of supports."""

from __future__ import annotations

from torch import Tensor, nn

from tsallis.ops.alphas import Alpha
from tsallis.ops.constants import ConstantBuffers

MapResult = Tensor | tuple[Tensor, Tensor]


def support_size(probs: Tensor, dim: int) -> Tensor:
    """Return how many entries are positive, with size 1 along `dim`."""
    return (probs > 0).sum(dim, keepdim=True)


def with_size(probs: Tensor, dim: int, return_size: bool) -> MapResult:
    """Return probabilities, with their support sizes where those are asked for."""
    return (probs, support_size(probs, dim)) if return_size else probs


class Map(ConstantBuffers):
    """A map with its arguments; a tensor among them moves with the module and stays out of its state."""

    def _keep(self, name: str, value: Alpha) -> None:
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            self.register_constant(name, value)
        else:
            setattr(self, name, value)
