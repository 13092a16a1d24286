"""Provide the names of `entmax.root_finding`: the functions that the package `entmax` computes by bisection."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tsallis import functional
from tsallis.compat.base import Map
from tsallis.functional.rows import check_floating
from tsallis.ops.alphas import Alpha
from tsallis.ops.transforms import physical, without_numbers

__all__ = [
    "BudgetBisect",
    "BudgetBisectFunction",
    "EntmaxBisect",
    "EntmaxBisectFunction",
    "NormmaxBisect",
    "NormmaxBisectFunction",
    "SparsemaxBisect",
    "SparsemaxBisectFunction",
    "budget_bisect",
    "entmax_bisect",
    "normmax_bisect",
    "sparsemax_bisect",
]


def entmax_bisect(
    X: Tensor, alpha: Alpha = 1.5, dim: int = -1, n_iter: int | None = 50, ensure_sum_one: bool = True
) -> Tensor:
    """Return :func:`tsallis.entmax` of scores, with the arguments of the package `entmax`.

    Args:
        X: Scores of any shape.
        alpha: Positive number, or tensor that can be expanded to `X` with size 1 along `dim`.
        dim: Dimension whose entries sum to 1.
        n_iter, ensure_sum_one: Ignored.

    Returns:
        Probabilities of the shape of `X`.

    Example:
        >>> entmax_bisect(torch.tensor([1.0, 0.6, -1.0]), alpha=2)
        tensor([0.7000, 0.3000, 0.0000])
    """
    return functional.entmax(X, alpha, dim)


def sparsemax_bisect(X: Tensor, dim: int = -1, n_iter: int | None = 50, ensure_sum_one: bool = True) -> Tensor:
    """Return :func:`tsallis.sparsemax` of scores, with the arguments of the package `entmax`.

    Args:
        X: Scores of any shape.
        dim: Dimension whose entries sum to 1.
        n_iter, ensure_sum_one: Ignored.

    Returns:
        Probabilities of the shape of `X`.

    Example:
        >>> sparsemax_bisect(torch.tensor([1.0, 0.6, -1.0]))
        tensor([0.7000, 0.3000, 0.0000])
    """
    return functional.sparsemax(X, dim)


def normmax_bisect(X: Tensor, alpha: Alpha = 2, dim: int = -1, n_iter: int | None = 50) -> Tensor:
    """Return :func:`tsallis.normmax` of scores, with the arguments of the package `entmax`.

    Args:
        X: Scores of any shape.
        alpha: Number above 1, or tensor that can be expanded to `X` with size 1 along `dim`.
        dim: Dimension whose entries sum to 1.
        n_iter: Ignored.

    Returns:
        Probabilities of the shape of `X`.

    Raises:
        ValueError: alpha requires a gradient, or its shape doesn't fit.
        NotImplementedError: alpha is a tensor whose values can't be read, as in `torch.export`.

    Example:
        >>> normmax_bisect(torch.tensor([1.0, 0.8, -1.0]))
        tensor([0.5714, 0.4286, 0.0000])
    """
    refuse_learned("alpha", alpha)
    return _apply_per_value(lambda rows, value: functional.normmax(rows, value), X, alpha, dim)


def budget_bisect(X: Tensor, budget: Alpha = 2, dim: int = -1, n_iter: int | None = 50) -> Tensor:
    """Return :func:`tsallis.budgeted_entmax` of scores for alpha 2, with the arguments of the package `entmax`.

    Args:
        X: Scores of any shape.
        budget: Number >= 0, or tensor that can be expanded to `X` with size 1 along `dim`.
        dim: Dimension whose entries sum to the budget.
        n_iter: Ignored.

    Returns:
        Marginals of the shape of `X`.

    Raises:
        ValueError: The budget requires a gradient, or its shape doesn't fit.
        NotImplementedError: The budget is a tensor whose values can't be read, as in `torch.export`.

    Example:
        >>> budget_bisect(torch.tensor([3.0, 1.0, 1.0, -4.0]), budget=2)
        tensor([1.0000, 0.5000, 0.5000, 0.0000])
    """
    refuse_learned("budget", budget)
    return _apply_per_value(lambda rows, value: functional.budgeted_entmax(rows, 2.0, value), X, budget, dim)


def refuse_learned(name: str, value: Alpha) -> None:
    """Raise if an argument requires a gradient, which is not supported."""
    if isinstance(value, Tensor) and value.requires_grad:
        raise ValueError(
            f"{name} must not require a gradient, because this function computes none for it: "
            f"pass a number or {name}.detach()"
        )


def _without_values(x: Tensor) -> bool:
    """Return whether a tensor's values can't be read; torch.compile can, because it leaves such code out of a graph."""
    if torch.compiler.is_compiling():
        return torch.compiler.is_exporting()
    return without_numbers(x) or physical(x).shape != x.shape  # vmap hides a dimension


def _apply_per_value(apply: Callable[[Tensor, float], Tensor], X: Tensor, values: Alpha, dim: int) -> Tensor:
    """Call `apply(rows, value)` once per distinct value of a tensor; return the results along `dim`."""
    check_floating(X, "X")
    if isinstance(values, Tensor) and _without_values(values):
        raise NotImplementedError(
            "alpha or budget must be a number in torch.export, in torch.func.vmap over it, and on the meta device, "
            "got a tensor"
        )
    if not isinstance(values, Tensor):
        return apply(X.transpose(dim, -1), values).transpose(dim, -1) if X.dim() else apply(X, values)
    if values.numel() == 1:
        return _apply_per_value(apply, X, float(values), dim)
    shape = list(X.shape)
    shape[dim] = 1
    try:
        row_values = values.to(X.device).expand(shape).transpose(dim, -1).reshape(-1)  # [rows]
    except RuntimeError as error:
        raise ValueError(
            f"alpha or budget of shape {tuple(values.shape)} can't be expanded to {tuple(shape)}, one value per row"
        ) from error
    transposed = X.transpose(dim, -1)
    rows = transposed.reshape(-1, transposed.shape[-1])
    result = torch.zeros_like(rows)
    for value in row_values.unique().tolist():
        index = (row_values == value).nonzero().squeeze(-1)
        result = result.index_copy(0, index, apply(rows[index], value))
    return result.reshape(transposed.shape).transpose(dim, -1)


class SparsemaxBisect(Map):
    """:func:`sparsemax_bisect` as a module.

    Args:
        dim: Dimension whose entries sum to 1.
        n_iter: Ignored.

    Example:
        >>> SparsemaxBisect()(torch.tensor([1.0, 0.6, -1.0]))
        tensor([0.7000, 0.3000, 0.0000])
    """

    def __init__(self, dim: int = -1, n_iter: int | None = None) -> None:
        super().__init__()
        self.dim, self.n_iter = dim, n_iter

    def forward(self, X: Tensor) -> Tensor:
        return sparsemax_bisect(X, self.dim, self.n_iter)


class EntmaxBisect(Map):
    """:func:`entmax_bisect` as a module.

    Args:
        alpha: Alpha of the function; an `nn.Parameter` is learned.
        dim: Dimension whose entries sum to 1.
        n_iter: Ignored.

    Example:
        >>> EntmaxBisect(alpha=2)(torch.tensor([1.0, 0.6, -1.0]))
        tensor([0.7000, 0.3000, 0.0000])
    """

    alpha: Alpha

    def __init__(self, alpha: Alpha = 1.5, dim: int = -1, n_iter: int | None = 50) -> None:
        super().__init__()
        self._set_argument("alpha", alpha)
        self.dim, self.n_iter = dim, n_iter

    def forward(self, X: Tensor) -> Tensor:
        return entmax_bisect(X, self.alpha, self.dim, self.n_iter)


class NormmaxBisect(Map):
    """:func:`normmax_bisect` as a module.

    Args:
        alpha: Alpha of the function.
        dim: Dimension whose entries sum to 1.
        n_iter: Ignored.

    Example:
        >>> NormmaxBisect()(torch.tensor([1.0, 0.8, -1.0]))
        tensor([0.5714, 0.4286, 0.0000])
    """

    alpha: Alpha

    def __init__(self, alpha: Alpha = 2, dim: int = -1, n_iter: int | None = 50) -> None:
        super().__init__()
        self._set_argument("alpha", alpha)
        self.dim, self.n_iter = dim, n_iter

    def forward(self, X: Tensor) -> Tensor:
        return normmax_bisect(X, self.alpha, self.dim, self.n_iter)


class BudgetBisect(Map):
    """:func:`budget_bisect` as a module.

    Args:
        budget: Budget of the function.
        dim: Dimension whose entries sum to the budget.
        n_iter: Ignored.

    Example:
        >>> BudgetBisect(budget=2)(torch.tensor([3.0, 1.0, 1.0, -4.0]))
        tensor([1.0000, 0.5000, 0.5000, 0.0000])
    """

    budget: Alpha

    def __init__(self, budget: Alpha = 2, dim: int = -1, n_iter: int | None = 50) -> None:
        super().__init__()
        self._set_argument("budget", budget)
        self.dim, self.n_iter = dim, n_iter

    def forward(self, X: Tensor) -> Tensor:
        return budget_bisect(X, self.budget, self.dim, self.n_iter)


class EntmaxBisectFunction:
    """Autograd function of `entmax`; its `apply` is :func:`entmax_bisect`, differentiable to any order.

    Example:
        >>> EntmaxBisectFunction.apply(torch.tensor([1.0, 0.6, -1.0]), 2.0)
        tensor([0.7000, 0.3000, 0.0000])
    """

    apply = staticmethod(entmax_bisect)


class SparsemaxBisectFunction:
    """Autograd function of `entmax`; its `apply` is :func:`sparsemax_bisect`, differentiable to any order.

    Example:
        >>> SparsemaxBisectFunction.apply(torch.tensor([1.0, 0.6, -1.0]))
        tensor([0.7000, 0.3000, 0.0000])
    """

    apply = staticmethod(sparsemax_bisect)


class NormmaxBisectFunction:
    """Autograd function of `entmax`; its `apply` is :func:`normmax_bisect`, differentiable to any order.

    Example:
        >>> NormmaxBisectFunction.apply(torch.tensor([1.0, 0.8, -1.0]))
        tensor([0.5714, 0.4286, 0.0000])
    """

    apply = staticmethod(normmax_bisect)


class BudgetBisectFunction:
    """Autograd function of `entmax`; its `apply` is :func:`budget_bisect`, differentiable to any order.

    Example:
        >>> BudgetBisectFunction.apply(torch.tensor([3.0, 1.0, 1.0, -4.0]))
        tensor([1.0000, 0.5000, 0.5000, 0.0000])
    """

    apply = staticmethod(budget_bisect)
