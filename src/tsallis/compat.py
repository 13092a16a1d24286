r"""The names, arguments and defaults of the PyPI package `entmax` 1.3: changing an import line is the migration::

    import tsallis.compat as entmax                          # was: import entmax
    from tsallis.compat import entmax15, EntmaxBisectLoss    # was: from entmax import ...

The page :doc:`/compat` says which arguments have no effect here, and where results differ on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from tsallis import functional
from tsallis.functional.losses import class_rows, reduce
from tsallis.functional.rows import result_dtype
from tsallis.ops.alphas import Alpha
from tsallis.ops.dtypes import compute_dtype, upcast

MapResult = Tensor | tuple[Tensor, Tensor]
REDUCTIONS = ("elementwise_mean", "mean", "sum", "none")

__all__ = [
    "BudgetBisect",
    "Entmax15",
    "Entmax15Loss",
    "EntmaxBisect",
    "EntmaxBisectLoss",
    "NormmaxBisect",
    "NormmaxBisectLoss",
    "Sparsemax",
    "SparsemaxBisect",
    "SparsemaxBisectLoss",
    "SparsemaxLoss",
    "budget_bisect",
    "entmax15",
    "entmax15_loss",
    "entmax_bisect",
    "entmax_bisect_loss",
    "normmax_bisect",
    "normmax_bisect_loss",
    "sparsemax",
    "sparsemax_bisect",
    "sparsemax_bisect_loss",
    "sparsemax_loss",
]


def sparsemax(X: Tensor, dim: int = -1, k: int | None = None, return_support_size: bool = False) -> MapResult:
    """Return :func:`tsallis.sparsemax` of scores, by the package's name.

    Args:
        X: scores of any shape.
        dim: the dimension whose entries sum to 1.
        k: without effect.
        return_support_size: return the number of positive entries, too.

    Returns:
        Probabilities, or a pair of them and of support sizes with size 1 along `dim`.

    Example:
        >>> probs, size = sparsemax(torch.tensor([[1.0, 0.6, -1.0]]), return_support_size=True)
        >>> probs, size
        (tensor([[0.7000, 0.3000, 0.0000]]), tensor([[2]]))
    """
    return _with_size(functional.sparsemax(X, dim), dim, return_support_size)


def entmax15(X: Tensor, dim: int = -1, k: int | None = None, return_support_size: bool = False) -> MapResult:
    """Return :func:`tsallis.entmax15` of scores, by the package's name.

    Args:
        X: scores of any shape.
        dim: the dimension whose entries sum to 1.
        k: without effect.
        return_support_size: return the number of positive entries, too.

    Returns:
        Probabilities, or a pair of them and of support sizes with size 1 along `dim`.

    Example:
        >>> entmax15(torch.tensor([3.0, 0.0]))
        tensor([1., 0.])
    """
    return _with_size(functional.entmax15(X, dim), dim, return_support_size)


def entmax_bisect(
    X: Tensor, alpha: Alpha = 1.5, dim: int = -1, n_iter: int | None = 50, ensure_sum_one: bool = True
) -> Tensor:
    """Return :func:`tsallis.entmax` of scores, by the package's name.

    Args:
        X: scores of any shape.
        alpha: positive: a number, or a tensor that can be expanded to `X` with size 1 along `dim`.
        dim: the dimension whose entries sum to 1.
        n_iter, ensure_sum_one: without effect.

    Returns:
        Probabilities of the shape of `X`.

    Example:
        >>> entmax_bisect(torch.tensor([1.0, 0.6, -1.0]), alpha=2)
        tensor([0.7000, 0.3000, 0.0000])
    """
    return functional.entmax(X, alpha, dim)


def sparsemax_bisect(X: Tensor, dim: int = -1, n_iter: int | None = 50, ensure_sum_one: bool = True) -> Tensor:
    """Return :func:`tsallis.sparsemax` of scores, by the package's name.

    Args:
        X: scores of any shape.
        dim: the dimension whose entries sum to 1.
        n_iter, ensure_sum_one: without effect.

    Returns:
        Probabilities of the shape of `X`.

    Example:
        >>> sparsemax_bisect(torch.tensor([1.0, 0.6, -1.0]))
        tensor([0.7000, 0.3000, 0.0000])
    """
    return functional.sparsemax(X, dim)


def normmax_bisect(X: Tensor, alpha: Alpha = 2, dim: int = -1, n_iter: int | None = 50) -> Tensor:
    """Return :func:`tsallis.normmax` of scores, by the package's name.

    Args:
        X: scores of any shape.
        alpha: above 1: a number, or a tensor that can be expanded to `X` with size 1 along `dim`.
        dim: the dimension whose entries sum to 1.
        n_iter: without effect.

    Returns:
        Probabilities of the shape of `X`.

    Example:
        >>> normmax_bisect(torch.tensor([1.0, 0.8, -1.0]))
        tensor([0.5714, 0.4286, 0.0000])
    """
    _refuse_learned("alpha", alpha)
    return _by_value(lambda rows, value: functional.normmax(rows, value), X, alpha, dim)


def budget_bisect(X: Tensor, budget: Alpha = 2, dim: int = -1, n_iter: int | None = 50) -> Tensor:
    """Return :func:`tsallis.budgeted_entmax` of scores with alpha 2, by the package's name.

    Args:
        X: scores of any shape.
        budget: at least 0: a number, or a tensor that can be expanded to `X` with size 1 along `dim`.
        dim: the dimension whose entries sum to the budget.
        n_iter: without effect.

    Returns:
        Marginals of the shape of `X`.

    Example:
        >>> budget_bisect(torch.tensor([3.0, 1.0, 1.0, -4.0]), budget=2)
        tensor([1.0000, 0.5000, 0.5000, 0.0000])
    """
    _refuse_learned("budget", budget)
    return _by_value(lambda rows, value: functional.budgeted_entmax(rows, 2.0, value), X, budget, dim)


def sparsemax_loss(
    X: Tensor, target: Tensor, k: int | None = None, return_support_size: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Return :func:`tsallis.entmax_loss` of alpha 2, one value a target.

    Args:
        X: scores [..., classes].
        target: classes [...], or probabilities [..., classes].
        k: without effect.
        return_support_size: return the number of positive entries, too.

    Returns:
        Losses [...], or a pair of them and of support sizes [..., 1].

    Example:
        >>> sparsemax_loss(torch.tensor([[2.0, 0.5]]), torch.tensor([0]))
        tensor([0.])
    """
    loss = functional.entmax_loss(X, target, 2.0, reduction="none")
    return (loss, _size(functional.sparsemax(X), -1)) if return_support_size else loss


def entmax15_loss(
    X: Tensor, target: Tensor, k: int | None = None, return_support_size: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Return :func:`tsallis.entmax_loss` of alpha 1.5, one value a target.

    Args:
        X: scores [..., classes].
        target: classes [...], or probabilities [..., classes].
        k: without effect.
        return_support_size: return the number of positive entries, too.

    Returns:
        Losses [...], or a pair of them and of support sizes [..., 1].

    Example:
        >>> entmax15_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor([0.])
    """
    loss = functional.entmax_loss(X, target, 1.5, reduction="none")
    return (loss, _size(functional.entmax15(X), -1)) if return_support_size else loss


def entmax_bisect_loss(X: Tensor, target: Tensor, alpha: Alpha = 1.5, n_iter: int | None = 50) -> Tensor:
    """Return :func:`tsallis.entmax_loss`, one value a target.

    Args:
        X: scores [..., classes].
        target: classes [...], or probabilities [..., classes].
        alpha: positive: a number, or a tensor with last size 1, which gets a gradient.
        n_iter: without effect.

    Returns:
        Losses [...].

    Example:
        >>> entmax_bisect_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([0]), alpha=2)
        tensor([0.2500])
    """
    return functional.entmax_loss(X, target, alpha, reduction="none")


def sparsemax_bisect_loss(X: Tensor, target: Tensor, n_iter: int | None = 50) -> Tensor:
    """Return :func:`tsallis.entmax_loss` of alpha 2, one value a target.

    Args:
        X: scores [..., classes].
        target: classes [...], or probabilities [..., classes].
        n_iter: without effect.

    Returns:
        Losses [...].

    Example:
        >>> sparsemax_bisect_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))
        tensor([0.2500])
    """
    return functional.entmax_loss(X, target, 2.0, reduction="none")


def normmax_bisect_loss(X: Tensor, target: Tensor, alpha: Alpha = 2, n_iter: int | None = 50) -> Tensor:
    r"""Return the Fenchel-Young loss of normmax, one value a target.

    .. math:: L(z; y) = (p - e_y)^\top z + 1 - \lVert p \rVert_\alpha, \qquad p = \mathrm{normmax}_\alpha(z)

    with gradient :math:`p - e_y` (Blondel et al. 2020, sec. 4).

    Args:
        X: scores [..., classes].
        target: classes [...]; those of -100 have loss 0.
        alpha: above 1: a number, or a tensor with last size 1.
        n_iter: without effect.

    Returns:
        Losses [...].

    Example:
        >>> normmax_bisect_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor([0.])
    """
    return _normmax_loss(X, target, alpha, -100)


def _normmax_loss(X: Tensor, target: Tensor, alpha: Alpha, ignore_index: int) -> Tensor:
    _refuse_learned("alpha", alpha)
    if X.dim() == 0:
        raise ValueError("scores must have a dimension of classes, got a single number")
    rows = class_rows(X.shape, X.device, target, ignore_index).reshape(target.shape).unsqueeze(-1)
    wide = upcast(X)
    loss, _ = _NormmaxLoss.apply(wide, rows.clamp(min=0), rows >= 0, alpha)
    result: Tensor = loss.squeeze(-1).to(result_dtype(X))
    return result


class _NormmaxLoss(Function):
    """The gradient is `p - e_y` itself, so a second derivative is the map's Jacobian."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, gold: Tensor, mask: Tensor, alpha: Alpha) -> tuple[Tensor, Tensor]:
        probs = normmax_bisect(scores, alpha)
        inside = probs != 0  # and not `> 0`: a NaN must stay one
        lead = torch.where(inside, scores - scores.gather(-1, gold), 0)
        power = torch.where(inside, torch.where(inside, probs, 1) ** alpha, 0).sum(-1, keepdim=True)
        value = (probs * lead).sum(-1, keepdim=True) + 1 - power ** (1 / alpha)
        return torch.where(mask & inside.any(-1, keepdim=True), value.clamp(min=0), 0), probs

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        scores, gold, mask, ctx.alpha = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(scores, gold, mask, output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None, None, None]:
        scores, gold, mask, probs = ctx.saved_tensors
        if torch.is_grad_enabled():
            probs = normmax_bisect(scores, ctx.alpha)
        active = mask & (probs != 0).any(-1, keepdim=True)
        residual = probs.scatter_add(-1, gold, torch.full_like(gold, -1, dtype=probs.dtype))
        return torch.where(active, residual * grad, 0), None, None, None


def _size(probs: Tensor, dim: int) -> Tensor:
    return (probs > 0).sum(dim, keepdim=True)


def _with_size(probs: Tensor, dim: int, return_size: bool) -> MapResult:
    return (probs, _size(probs, dim)) if return_size else probs


def _refuse_learned(name: str, value: Alpha) -> None:
    """Refuse what asks for a gradient that there is not."""
    if isinstance(value, Tensor) and value.requires_grad:
        raise ValueError(f"{name} has no gradient here and can't be learned: give a number, or {name}.detach()")


def _by_value(apply: Callable[[Tensor, float], Tensor], X: Tensor, values: Alpha, dim: int) -> Tensor:
    """Return `apply(rows, value)` along `dim`; with a tensor of values, once for each distinct one."""
    if not isinstance(values, Tensor):
        return apply(X.movedim(dim, -1), values).movedim(-1, dim) if X.dim() else apply(X, values)
    if values.numel() == 1:
        return _by_value(apply, X, float(values), dim)
    shape = list(X.shape)
    shape[dim] = 1
    each = values.expand(shape).movedim(dim, -1).reshape(-1)  # [rows]
    last = X.movedim(dim, -1)
    rows = last.reshape(-1, last.shape[-1])
    result = torch.zeros_like(rows)
    for value in each.unique().tolist():
        index = (each == value).nonzero().squeeze(-1)
        result = result.index_copy(0, index, apply(rows[index], value))
    return result.reshape(last.shape).movedim(-1, dim)


class _Map(nn.Module):
    """A map with its arguments; a tensor among them moves with the module and stays out of its state."""

    def _keep(self, name: str, value: Alpha) -> None:
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            self.register_buffer(name, value, persistent=False)
        else:
            setattr(self, name, value)


class _SortingMap(_Map):
    """The arguments of the two maps that the peer solves by sorting."""

    def __init__(self, dim: int = -1, k: int | None = None, return_support_size: bool = False) -> None:
        super().__init__()
        self.dim, self.k, self.return_support_size = dim, k, return_support_size


class Sparsemax(_SortingMap):
    """:func:`sparsemax` as a module.

    Args:
        dim: the dimension whose entries sum to 1.
        k: without effect.
        return_support_size: return the number of positive entries, too.

    Example:
        >>> Sparsemax()(torch.tensor([1.0, 0.6, -1.0]))
        tensor([0.7000, 0.3000, 0.0000])
    """

    def forward(self, X: Tensor) -> MapResult:
        return sparsemax(X, self.dim, self.k, self.return_support_size)


class Entmax15(_SortingMap):
    """:func:`entmax15` as a module.

    Args:
        dim: the dimension whose entries sum to 1.
        k: without effect.
        return_support_size: return the number of positive entries, too.

    Example:
        >>> Entmax15()(torch.tensor([3.0, 0.0]))
        tensor([1., 0.])
    """

    def forward(self, X: Tensor) -> MapResult:
        return entmax15(X, self.dim, self.k, self.return_support_size)


class SparsemaxBisect(_Map):
    """:func:`sparsemax_bisect` as a module.

    Args:
        dim: the dimension whose entries sum to 1.
        n_iter: without effect.

    Example:
        >>> SparsemaxBisect()(torch.tensor([1.0, 0.6, -1.0]))
        tensor([0.7000, 0.3000, 0.0000])
    """

    def __init__(self, dim: int = -1, n_iter: int | None = None) -> None:
        super().__init__()
        self.dim, self.n_iter = dim, n_iter

    def forward(self, X: Tensor) -> Tensor:
        return sparsemax_bisect(X, self.dim, self.n_iter)


class EntmaxBisect(_Map):
    """:func:`entmax_bisect` as a module.

    Args:
        alpha: as of the function; an `nn.Parameter` is learned.
        dim: the dimension whose entries sum to 1.
        n_iter: without effect.

    Example:
        >>> EntmaxBisect(alpha=2)(torch.tensor([1.0, 0.6, -1.0]))
        tensor([0.7000, 0.3000, 0.0000])
    """

    alpha: Alpha

    def __init__(self, alpha: Alpha = 1.5, dim: int = -1, n_iter: int | None = 50) -> None:
        super().__init__()
        self._keep("alpha", alpha)
        self.dim, self.n_iter = dim, n_iter

    def forward(self, X: Tensor) -> Tensor:
        return entmax_bisect(X, self.alpha, self.dim, self.n_iter)


class NormmaxBisect(_Map):
    """:func:`normmax_bisect` as a module.

    Args:
        alpha: as of the function.
        dim: the dimension whose entries sum to 1.
        n_iter: without effect.

    Example:
        >>> NormmaxBisect()(torch.tensor([1.0, 0.8, -1.0]))
        tensor([0.5714, 0.4286, 0.0000])
    """

    alpha: Alpha

    def __init__(self, alpha: Alpha = 2, dim: int = -1, n_iter: int | None = 50) -> None:
        super().__init__()
        self._keep("alpha", alpha)
        self.dim, self.n_iter = dim, n_iter

    def forward(self, X: Tensor) -> Tensor:
        return normmax_bisect(X, self.alpha, self.dim, self.n_iter)


class BudgetBisect(_Map):
    """:func:`budget_bisect` as a module.

    Args:
        budget: as of the function.
        dim: the dimension whose entries sum to the budget.
        n_iter: without effect.

    Example:
        >>> BudgetBisect(budget=2)(torch.tensor([3.0, 1.0, 1.0, -4.0]))
        tensor([1.0000, 0.5000, 0.5000, 0.0000])
    """

    budget: Alpha

    def __init__(self, budget: Alpha = 2, dim: int = -1, n_iter: int | None = 50) -> None:
        super().__init__()
        self._keep("budget", budget)
        self.dim, self.n_iter = dim, n_iter

    def forward(self, X: Tensor) -> Tensor:
        return budget_bisect(X, self.budget, self.dim, self.n_iter)


class _Loss(_Map):
    """An entmax loss, reduced."""

    alpha: Alpha

    def __init__(self, alpha: Alpha, ignore_index: int, reduction: str, return_support_size: bool = False) -> None:
        super().__init__()
        self._keep("alpha", alpha)
        if reduction not in REDUCTIONS:
            raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")
        self.ignore_index, self.reduction, self.return_support_size = ignore_index, reduction, return_support_size

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each target, 0 for an ignored one."""
        return functional.entmax_loss(X, target, self.alpha, ignore_index=self.ignore_index, reduction="none")

    def forward(self, X: Tensor, target: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        loss = self.loss(X, target)
        count = loss.numel() if target.is_floating_point() else (target != self.ignore_index).sum()
        dtype = loss.dtype
        if self.reduction != "none":
            loss = loss.sum(dtype=compute_dtype(dtype))  # of half precision a sum overflows where its mean does not
        if self.reduction in ("elementwise_mean", "mean"):
            loss = reduce(loss, count, "mean")
        loss = loss.to(dtype)
        return (loss, _size(functional.entmax(X, self.alpha), -1)) if self.return_support_size else loss

    def extra_repr(self) -> str:
        return f"ignore_index={self.ignore_index}, reduction={self.reduction!r}"


class SparsemaxLoss(_Loss):
    """:func:`sparsemax_loss` as a module.

    Args:
        k: without effect.
        ignore_index: targets of this value have loss 0.
        reduction: "elementwise_mean" or "mean" over the targets that count, "sum" or "none".
        return_support_size: return the number of positive entries, too.

    Raises:
        ValueError: an unknown reduction.

    Example:
        >>> SparsemaxLoss()(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 0]))
        tensor(0.1250)
    """

    def __init__(
        self,
        k: int | None = None,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
        return_support_size: bool = False,
    ) -> None:
        super().__init__(2.0, ignore_index, reduction, return_support_size)
        self.k = k


class Entmax15Loss(_Loss):
    """:func:`entmax15_loss` as a module.

    Args:
        k: without effect.
        ignore_index: targets of this value have loss 0.
        reduction: "elementwise_mean" or "mean" over the targets that count, "sum" or "none".
        return_support_size: return the number of positive entries, too.

    Raises:
        ValueError: an unknown reduction.

    Example:
        >>> Entmax15Loss(ignore_index=1)(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1]))
        tensor(0.3905)
    """

    def __init__(
        self,
        k: int | None = 100,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
        return_support_size: bool = False,
    ) -> None:
        super().__init__(1.5, ignore_index, reduction, return_support_size)
        self.k = k


class SparsemaxBisectLoss(_Loss):
    """:func:`sparsemax_bisect_loss` as a module.

    Args:
        n_iter: without effect.
        ignore_index: targets of this value have loss 0.
        reduction: "elementwise_mean" or "mean" over the targets that count, "sum" or "none".

    Raises:
        ValueError: an unknown reduction.

    Example:
        >>> SparsemaxBisectLoss(reduction="none")(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 0]))
        tensor([0.2500, 0.0000])
    """

    def __init__(self, n_iter: int | None = 50, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__(2.0, ignore_index, reduction)
        self.n_iter = n_iter


class EntmaxBisectLoss(_Loss):
    """:func:`entmax_bisect_loss` as a module.

    Args:
        alpha: as of the function; an `nn.Parameter` is learned.
        n_iter: without effect.
        ignore_index: targets of this value have loss 0.
        reduction: "elementwise_mean" or "mean" over the targets that count, "sum" or "none".

    Raises:
        ValueError: an unknown reduction.

    Example:
        >>> EntmaxBisectLoss(alpha=2)(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 0]))
        tensor(0.1250)
    """

    def __init__(
        self,
        alpha: Alpha = 1.5,
        n_iter: int | None = 50,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
    ) -> None:
        super().__init__(alpha, ignore_index, reduction)
        self.n_iter = n_iter


class NormmaxBisectLoss(_Loss):
    """:func:`normmax_bisect_loss` as a module.

    Args:
        alpha: as of the function.
        n_iter: without effect.
        ignore_index: targets of this value have loss 0.
        reduction: "elementwise_mean" or "mean" over the targets that count, "sum" or "none".

    Raises:
        ValueError: an unknown reduction.

    Example:
        >>> NormmaxBisectLoss(reduction="sum")(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 0]))
        tensor(0.2929)
    """

    def __init__(
        self,
        alpha: Alpha = 2,
        n_iter: int | None = 50,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
    ) -> None:
        super().__init__(alpha, ignore_index, reduction)
        self.n_iter = n_iter

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        return _normmax_loss(X, target, self.alpha, self.ignore_index)
