"""Compute an output layer with its loss, without storing the scores of all tokens and classes."""

from __future__ import annotations

import torch
from torch import Tensor

from tsallis.functional.alpha_relu import relu_alpha
from tsallis.functional.losses import anchors, check_reduction, class_rows, not_negative, reduce
from tsallis.functional.rows import (
    alpha_along,
    check_dense,
    check_floating,
    finite_number,
    result_dtype,
)
from tsallis.functional.sparse_rows import SparseRows
from tsallis.ops.alphas import Alpha
from tsallis.ops.autograd.linear import Layer, linear_loss
from tsallis.ops.dtypes import autocast_enabled, upcast
from tsallis.ops.transforms import savable


def linear_entmax_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor | SparseRows,
    alpha: Alpha = 1.5,
    *,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    r"""Return the :func:`entmax_loss` of a linear layer; scores of only a few hundred tokens are stored at once.

    .. math:: L_\alpha(W h + b; y), \qquad \nabla_h = W^\top (p - e_y), \qquad \nabla_W = (p - e_y)\, h^\top, \qquad
              p = \mathrm{entmax}_\alpha(W h + b)

    (Peters et al. 2019, eq. 11 and 12.) The loss and its gradients equal those of
    `entmax_loss(torch.nn.functional.linear(hidden, weight, bias), target, alpha)`. The scores are computed for one
    chunk of tokens at a time. Each token stores only its support, a short list of classes over which the backward pass
    sums. If these lists are long, as near `alpha = 1`, the scores are computed twice instead. Second derivatives and
    the transforms of `torch.func` store all scores at once.

    Args:
        hidden: [..., d], any floating dtype.
        weight: [classes, d], as in `torch.nn.Linear`.
        target: classes [...], or :class:`SparseRows`.
        alpha: at least 1: a number, or a tensor broadcastable to [..., 1]; it gets a gradient.
        bias: [classes].
        ignore_index: targets with this value have loss 0 and no gradient.
        reduction: "mean" over the targets that are not ignored, "sum", or "none" for a loss of shape [...].

    Returns:
        A number, or with reduction "none" losses [...], in the dtype of `hidden`. The mean is NaN if all
        targets are ignored.

    Raises:
        ValueError: wrong shapes, a class out of range, an unknown reduction, a bad alpha.
        TypeError: hidden states that are not floating point, weights of another dtype, targets that are not integers.

    Example:
        >>> hidden, weight = torch.eye(2, requires_grad=True), torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.1, 4.0]])
        >>> loss = linear_entmax_loss(hidden, weight, torch.tensor([0, 2]), reduction="none")
        >>> loss.detach()
        tensor([0.0617, 0.0000])
        >>> loss.sum().backward()
        >>> hidden.grad
        tensor([[-0.1693,  0.0000],
                [ 0.0000,  0.0000]])
    """
    hidden, weight, bias = _check_arguments(hidden, weight, bias, reduction)
    alpha = alpha_along(alpha, hidden, hidden.shape, -1, hidden.dim())
    return _reduce(hidden, weight, bias, target, alpha, None, ignore_index, reduction)


def linear_alpha_relu_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor | SparseRows,
    alpha: float = 1.5,
    tau: float = 0.0,
    *,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    r"""Return the :func:`alpha_relu_loss` of a linear layer; scores of only a few hundred tokens are stored at once.

    .. math:: \ell(W h + b, y), \qquad \nabla_h = W^\top (r - e_y), \quad \nabla_W = (r - e_y)\, h^\top, \qquad
              r = [(\alpha - 1)(W h + b) - \tau]_+^{1/(\alpha-1)}

    (Tezekbayev et al. 2022, eq. 3.) The scores are computed in chunks, as in :func:`linear_entmax_loss`.

    Args:
        hidden: [..., d], any floating dtype.
        weight: [classes, d], as in `torch.nn.Linear`.
        target: classes [...], or :class:`SparseRows`.
        alpha: a number above 1.
        tau: the threshold, a number; see :func:`estimate_tau`.
        bias: [classes].
        ignore_index: targets with this value have loss 0 and no gradient.
        reduction: "mean" over the targets that are not ignored, "sum", or "none" for a loss of shape [...].

    Returns:
        A number, or with reduction "none" losses [...], in the dtype of `hidden`. The mean is NaN if all
        targets are ignored.

    Raises:
        ValueError: wrong shapes, a class out of range, an unknown reduction, a bad alpha.
        TypeError: hidden states that are not floating point, weights of another dtype, targets that are not integers.

    Example:
        >>> hidden, weight = torch.ones(1, 2), torch.tensor([[1.0, 1.0], [0.0, 0.0], [0.5, 0.0]])
        >>> linear_alpha_relu_loss(hidden, weight, torch.tensor([0]))
        tensor(0.0104)
    """
    alpha = relu_alpha(alpha)
    hidden, weight, bias = _check_arguments(hidden, weight, bias, reduction)
    return _reduce(hidden, weight, bias, target, alpha, finite_number("tau", tau), ignore_index, reduction)


def _check_arguments(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, reduction: str
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Check the arguments, and convert them to the dtype that autocast uses for linear layers."""
    check_floating(hidden, "hidden")
    check_dense(weight, "weight")
    if bias is not None:
        check_floating(bias, "bias")
    check_reduction(reduction)
    if hidden.dim() == 0 or weight.dim() != 2 or weight.shape[1] != hidden.shape[-1] or len(weight) == 0:
        raise ValueError(
            "hidden must have shape [..., d] and weight [classes, d], "
            f"got {tuple(hidden.shape)} and {tuple(weight.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must have shape ({len(weight)},), got {tuple(bias.shape)}")
    kind = hidden.device.type
    if autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        hidden, weight = (x if x.dtype == torch.float64 else x.to(dtype) for x in (hidden, weight))
    if weight.dtype != hidden.dtype:
        raise TypeError(f"hidden and weight must have the same dtype, got {hidden.dtype} and {weight.dtype}")
    return savable(hidden), savable(weight), None if bias is None else savable(bias).to(hidden.dtype)


def _reduce(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor | SparseRows,
    alpha: Alpha,
    tau: float | None,
    ignore_index: int,
    reduction: str,
) -> Tensor:
    leading = hidden.shape[:-1]
    rows = hidden.reshape(-1, hidden.shape[-1])
    soft = None
    if isinstance(target, SparseRows):
        classes, soft = anchors(target, (len(rows), len(weight)), alpha, upcast(weight[:0]))
    else:
        check_dense(target, "target")
        classes = class_rows((*leading, len(weight)), weight.device, target, ignore_index)
    # Set ignored rows to 0: a NaN in an ignored row would make the gradient of the weight NaN.
    rows = torch.where((classes >= 0).unsqueeze(-1), rows, 0)
    layer = Layer(rows, weight, bias, classes, alpha, tau, soft)
    if rows.shape[0] == 0:
        inputs = [x for x in (weight, bias, alpha) if isinstance(x, Tensor)]
        loss = (rows.sum(-1) + sum(x.sum() * 0 for x in inputs)).float()  # empty loss with zero gradients
    else:
        loss = linear_loss(layer, total=reduction != "none")
    if soft is not None:
        loss = not_negative(loss)
    if reduction == "none":
        loss = loss.reshape(leading)
    return reduce(loss, (classes >= 0).sum(), reduction).to(result_dtype(rows))
