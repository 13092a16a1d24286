"""Provide the names of `entmax.losses`: losses as functions and as modules with a reduction."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from tsallis import functional
from tsallis.compat.base import Map, support_size
from tsallis.compat.root_finding import normmax_bisect, refuse_learned
from tsallis.errors import check_one_of
from tsallis.functional.losses import class_rows, reduce
from tsallis.functional.rows import integer, result_dtype
from tsallis.ops.alphas import Alpha
from tsallis.ops.dtypes import compute_dtype, upcast
from tsallis.ops.transforms import functionalized, jit_tracing

__all__ = [
    "Entmax15Loss",
    "Entmax15LossFunction",
    "EntmaxBisectLoss",
    "EntmaxBisectLossFunction",
    "NormmaxBisectLoss",
    "NormmaxBisectLossFunction",
    "SparsemaxBisectLoss",
    "SparsemaxBisectLossFunction",
    "SparsemaxLoss",
    "SparsemaxLossFunction",
    "entmax15_loss",
    "entmax_bisect_loss",
    "normmax_bisect_loss",
    "sparsemax_bisect_loss",
    "sparsemax_loss",
]

MEAN = "elementwise_mean"
REDUCTIONS = (MEAN, "mean", "sum", "none")


def sparsemax_loss(
    X: Tensor, target: Tensor, k: int | None = None, return_support_size: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Return :func:`tsallis.entmax_loss` with alpha 2, one value per target.

    Args:
        X: Scores [..., classes].
        target: Classes [...], or probabilities [..., classes].
        k: Ignored.
        return_support_size: Whether to also return the number of positive entries.

    Returns:
        Losses [...]; with `return_support_size`, a pair of losses and support sizes [..., 1].

    Example:
        >>> sparsemax_loss(torch.tensor([[2.0, 0.5]]), torch.tensor([0]))
        tensor([0.])
    """
    loss = functional.entmax_loss(X, target, 2.0, reduction="none")
    return (loss, support_size(functional.sparsemax(X), -1)) if return_support_size else loss


def entmax15_loss(
    X: Tensor, target: Tensor, k: int | None = None, return_support_size: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Return :func:`tsallis.entmax_loss` with alpha 1.5, one value per target.

    Args:
        X: Scores [..., classes].
        target: Classes [...], or probabilities [..., classes].
        k: Ignored.
        return_support_size: Whether to also return the number of positive entries.

    Returns:
        Losses [...]; with `return_support_size`, a pair of losses and support sizes [..., 1].

    Example:
        >>> entmax15_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor([0.])
    """
    loss = functional.entmax_loss(X, target, 1.5, reduction="none")
    return (loss, support_size(functional.entmax15(X), -1)) if return_support_size else loss


def entmax_bisect_loss(X: Tensor, target: Tensor, alpha: Alpha = 1.5, n_iter: int | None = 50) -> Tensor:
    """Return :func:`tsallis.entmax_loss`, one value per target.

    Args:
        X: Scores [..., classes].
        target: Classes [...], or probabilities [..., classes].
        alpha: Positive number, or tensor with last size 1; the tensor may require a gradient.
        n_iter: Ignored.

    Returns:
        Losses [...].

    Example:
        >>> entmax_bisect_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([0]), alpha=2)
        tensor([0.2500])
    """
    return functional.entmax_loss(X, target, alpha, reduction="none")


def sparsemax_bisect_loss(X: Tensor, target: Tensor, n_iter: int | None = 50) -> Tensor:
    """Return :func:`tsallis.entmax_loss` with alpha 2, one value per target.

    Args:
        X: Scores [..., classes].
        target: Classes [...], or probabilities [..., classes].
        n_iter: Ignored.

    Returns:
        Losses [...].

    Example:
        >>> sparsemax_bisect_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))
        tensor([0.2500])
    """
    return functional.entmax_loss(X, target, 2.0, reduction="none")


def normmax_bisect_loss(X: Tensor, target: Tensor, alpha: Alpha = 2, n_iter: int | None = 50) -> Tensor:
    r"""Return the Fenchel-Young loss of normmax, one value per target.

    .. math:: L(z; y) = (p - e_y)^\top z + 1 - \lVert p \rVert_\alpha, \qquad p = \mathrm{normmax}_\alpha(z)

    with gradient :math:`p - e_y` (Blondel et al. 2020, sec. 4).

    Args:
        X: Scores [..., classes].
        target: Classes [...]; targets of -100 have loss 0.
        alpha: Number above 1, or tensor with last size 1.
        n_iter: Ignored.

    Returns:
        Losses [...].

    Example:
        >>> normmax_bisect_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor([0.])
    """
    return _normmax_loss(X, target, alpha, -100)


def _normmax_loss(X: Tensor, target: Tensor, alpha: Alpha, ignore_index: int) -> Tensor:
    refuse_learned("alpha", alpha)
    if X.dim() == 0:
        raise ValueError("X must have shape [..., classes], got a tensor without dimensions")
    rows = class_rows(X.shape, X.device, target, ignore_index).reshape(target.shape).unsqueeze(-1)
    wide = upcast(X)
    # Call the formula directly under torch.jit.trace and functionalize, which don't support autograd functions.
    compute = _NormmaxLoss.forward if jit_tracing() or functionalized() else _NormmaxLoss.apply
    loss, _ = compute(wide, rows.clamp(min=0), rows >= 0, alpha)
    result: Tensor = loss.squeeze(-1).to(result_dtype(X))
    return result


class _NormmaxLoss(Function):
    """Autograd function with the gradient `p - e_y`, so that the second derivative is the Jacobian of normmax."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, gold: Tensor, mask: Tensor, alpha: Alpha) -> tuple[Tensor, Tensor]:
        probs = normmax_bisect(scores, alpha)
        inside = probs != 0  # not `> 0`: a NaN must stay NaN
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


class _Loss(Map):
    """Entmax loss with a reduction."""

    alpha: Alpha

    def __init__(self, alpha: Alpha, ignore_index: int, reduction: str, return_support_size: bool = False) -> None:
        super().__init__()
        self._set_argument("alpha", alpha)
        check_one_of("reduction", reduction, REDUCTIONS)
        self.ignore_index = integer("ignore_index", ignore_index)
        self.reduction, self.return_support_size = reduction, return_support_size

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each target, 0 for ignored targets."""
        return functional.entmax_loss(X, target, self.alpha, ignore_index=self.ignore_index, reduction="none")

    def forward(self, X: Tensor, target: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        loss = self.loss(X, target)
        count = loss.numel() if target.is_floating_point() else (target != self.ignore_index).sum()
        dtype = loss.dtype
        if self.reduction != "none":
            loss = loss.sum(dtype=compute_dtype(dtype))  # a half-precision sum can overflow even if the mean doesn't
        if self.reduction in (MEAN, "mean"):
            loss = reduce(loss, count, "mean")
        loss = loss.to(dtype)
        return (loss, support_size(functional.entmax(X, self.alpha), -1)) if self.return_support_size else loss

    def extra_repr(self) -> str:
        return f"ignore_index={self.ignore_index}, reduction={self.reduction!r}"


class SparsemaxLoss(_Loss):
    """:func:`sparsemax_loss` as a module.

    Args:
        k: Ignored.
        ignore_index: Target value whose loss is 0.
        reduction: "elementwise_mean" or "mean" (of the targets that are not ignored), "sum" or "none".
        return_support_size: Whether to also return the number of positive entries.

    Raises:
        ValueError: If the reduction is unknown.

    Example:
        >>> SparsemaxLoss()(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 0]))
        tensor(0.1250)
    """

    def __init__(
        self, k: int | None = None, ignore_index: int = -100, reduction: str = MEAN, return_support_size: bool = False
    ) -> None:
        super().__init__(2.0, ignore_index, reduction, return_support_size)
        self.k = k


class Entmax15Loss(_Loss):
    """:func:`entmax15_loss` as a module.

    Args:
        k: Ignored.
        ignore_index: Target value whose loss is 0.
        reduction: "elementwise_mean" or "mean" (of the targets that are not ignored), "sum" or "none".
        return_support_size: Whether to also return the number of positive entries.

    Raises:
        ValueError: If the reduction is unknown.

    Example:
        >>> Entmax15Loss(ignore_index=1)(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1]))
        tensor(0.3905)
    """

    def __init__(
        self, k: int | None = 100, ignore_index: int = -100, reduction: str = MEAN, return_support_size: bool = False
    ) -> None:
        super().__init__(1.5, ignore_index, reduction, return_support_size)
        self.k = k


class SparsemaxBisectLoss(_Loss):
    """:func:`sparsemax_bisect_loss` as a module.

    Args:
        n_iter: Ignored.
        ignore_index: Target value whose loss is 0.
        reduction: "elementwise_mean" or "mean" (of the targets that are not ignored), "sum" or "none".

    Raises:
        ValueError: If the reduction is unknown.

    Example:
        >>> SparsemaxBisectLoss(reduction="none")(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 0]))
        tensor([0.2500, 0.0000])
    """

    def __init__(self, n_iter: int | None = 50, ignore_index: int = -100, reduction: str = MEAN) -> None:
        super().__init__(2.0, ignore_index, reduction)
        self.n_iter = n_iter


class EntmaxBisectLoss(_Loss):
    """:func:`entmax_bisect_loss` as a module.

    Args:
        alpha: Alpha of the function; an `nn.Parameter` is learned.
        n_iter: Ignored.
        ignore_index: Target value whose loss is 0.
        reduction: "elementwise_mean" or "mean" (of the targets that are not ignored), "sum" or "none".

    Raises:
        ValueError: If the reduction is unknown.

    Example:
        >>> EntmaxBisectLoss(alpha=2)(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 0]))
        tensor(0.1250)
    """

    def __init__(
        self, alpha: Alpha = 1.5, n_iter: int | None = 50, ignore_index: int = -100, reduction: str = MEAN
    ) -> None:
        super().__init__(alpha, ignore_index, reduction)
        self.n_iter = n_iter


class NormmaxBisectLoss(_Loss):
    """:func:`normmax_bisect_loss` as a module.

    Args:
        alpha: Alpha of the function.
        n_iter: Ignored.
        ignore_index: Target value whose loss is 0.
        reduction: "elementwise_mean" or "mean" (of the targets that are not ignored), "sum" or "none".

    Raises:
        ValueError: If the reduction is unknown.

    Example:
        >>> NormmaxBisectLoss(reduction="sum")(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 0]))
        tensor(0.2929)
    """

    def __init__(
        self, alpha: Alpha = 2, n_iter: int | None = 50, ignore_index: int = -100, reduction: str = MEAN
    ) -> None:
        super().__init__(alpha, ignore_index, reduction)
        self.n_iter = n_iter

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        return _normmax_loss(X, target, self.alpha, self.ignore_index)


class SparsemaxLossFunction:
    """Autograd function of `entmax`; its `apply` is :func:`sparsemax_loss`, differentiable to any order.

    Example:
        >>> SparsemaxLossFunction.apply(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))
        tensor([0.2500])
    """

    apply = staticmethod(sparsemax_loss)


class Entmax15LossFunction:
    """Autograd function of `entmax`; its `apply` is :func:`entmax15_loss`, differentiable to any order.

    Example:
        >>> Entmax15LossFunction.apply(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor([0.])
    """

    apply = staticmethod(entmax15_loss)


class SparsemaxBisectLossFunction:
    """Autograd function of `entmax`; its `apply` is :func:`sparsemax_bisect_loss`, differentiable to any order.

    Example:
        >>> SparsemaxBisectLossFunction.apply(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))
        tensor([0.2500])
    """

    apply = staticmethod(sparsemax_bisect_loss)


class EntmaxBisectLossFunction:
    """Autograd function of `entmax`; its `apply` is :func:`entmax_bisect_loss`, differentiable to any order.

    Example:
        >>> EntmaxBisectLossFunction.apply(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor([0.])
    """

    apply = staticmethod(entmax_bisect_loss)


class NormmaxBisectLossFunction:
    """Autograd function of `entmax`; its `apply` is :func:`normmax_bisect_loss`, differentiable to any order.

    Example:
        >>> NormmaxBisectLossFunction.apply(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor([0.])
    """

    apply = staticmethod(normmax_bisect_loss)
