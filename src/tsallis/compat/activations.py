"""Provide the names of `entmax.activations`: the functions that the package `entmax` computes by sorting."""

from __future__ import annotations

from torch import Tensor

from tsallis import functional
from tsallis.compat.base import Map, MapResult, with_size

__all__ = ["Entmax15", "Entmax15Function", "Sparsemax", "SparsemaxFunction", "entmax15", "sparsemax"]


def sparsemax(X: Tensor, dim: int = -1, k: int | None = None, return_support_size: bool = False) -> MapResult:
    """Return :func:`tsallis.sparsemax` of scores, with the arguments of the package `entmax`.

    Args:
        X: Scores of any shape.
        dim: Dimension whose entries sum to 1.
        k: Ignored.
        return_support_size: Whether to also return the number of positive entries.

    Returns:
        Probabilities; with `return_support_size`, a pair of probabilities and support sizes (size 1 along `dim`).

    Example:
        >>> probs, size = sparsemax(torch.tensor([[1.0, 0.6, -1.0]]), return_support_size=True)
        >>> probs, size
        (tensor([[0.7000, 0.3000, 0.0000]]), tensor([[2]]))
    """
    return with_size(functional.sparsemax(X, dim), dim, return_support_size)


def entmax15(X: Tensor, dim: int = -1, k: int | None = None, return_support_size: bool = False) -> MapResult:
    """Return :func:`tsallis.entmax15` of scores, with the arguments of the package `entmax`.

    Args:
        X: Scores of any shape.
        dim: Dimension whose entries sum to 1.
        k: Ignored.
        return_support_size: Whether to also return the number of positive entries.

    Returns:
        Probabilities; with `return_support_size`, a pair of probabilities and support sizes (size 1 along `dim`).

    Example:
        >>> entmax15(torch.tensor([3.0, 0.0]))
        tensor([1., 0.])
    """
    return with_size(functional.entmax15(X, dim), dim, return_support_size)


class _SortingMap(Map):
    """Module with the arguments of the two functions that the package computes by sorting."""

    def __init__(self, dim: int = -1, k: int | None = None, return_support_size: bool = False) -> None:
        super().__init__()
        self.dim, self.k, self.return_support_size = dim, k, return_support_size


class Sparsemax(_SortingMap):
    """:func:`sparsemax` as a module.

    Args:
        dim: Dimension whose entries sum to 1.
        k: Ignored.
        return_support_size: Whether to also return the number of positive entries.

    Example:
        >>> Sparsemax()(torch.tensor([1.0, 0.6, -1.0]))
        tensor([0.7000, 0.3000, 0.0000])
    """

    def forward(self, X: Tensor) -> MapResult:
        return sparsemax(X, self.dim, self.k, self.return_support_size)


class Entmax15(_SortingMap):
    """:func:`entmax15` as a module.

    Args:
        dim: Dimension whose entries sum to 1.
        k: Ignored.
        return_support_size: Whether to also return the number of positive entries.

    Example:
        >>> Entmax15()(torch.tensor([3.0, 0.0]))
        tensor([1., 0.])
    """

    def forward(self, X: Tensor) -> MapResult:
        return entmax15(X, self.dim, self.k, self.return_support_size)


class SparsemaxFunction:
    """Autograd function of `entmax`; its `apply` is :func:`sparsemax`, differentiable to any order.

    Example:
        >>> SparsemaxFunction.apply(torch.tensor([1.0, 0.6, -1.0]), -1)
        tensor([0.7000, 0.3000, 0.0000])
    """

    @staticmethod
    def apply(X: Tensor, dim: int = -1, k: int | None = None) -> Tensor:
        """Return :func:`sparsemax` of scores."""
        return functional.sparsemax(X, dim)


class Entmax15Function:
    """Autograd function of `entmax`; its `apply` is :func:`entmax15`, differentiable to any order.

    Example:
        >>> Entmax15Function.apply(torch.tensor([3.0, 0.0]), -1)
        tensor([1., 0.])
    """

    @staticmethod
    def apply(X: Tensor, dim: int = 0, k: int | None = None) -> Tensor:
        """Return :func:`entmax15` of scores; `dim` defaults to 0, as in the package."""
        return functional.entmax15(X, dim)
