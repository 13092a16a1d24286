"""Define alpha-ReLU, an unnormalized activation that is as sparse as entmax (Tezekbayev et al. 2022)."""

from __future__ import annotations

import math
from statistics import NormalDist

import torch
from torch import Tensor

from tsallis.errors import check_integer
from tsallis.functional.losses import anchors, check_reduction, class_rows, not_negative, reduce
from tsallis.functional.rows import (
    alpha_number,
    as_rows,
    check_dense,
    check_floating,
    check_real,
    finite_number,
    result_dtype,
)
from tsallis.functional.sparse_rows import SparseRows
from tsallis.ops.autograd import alpha_relu as autograd
from tsallis.ops.autograd.maps import entmax
from tsallis.ops.autograd.soft_targets import add_soft_target, leads_in_place
from tsallis.ops.dtypes import upcast
from tsallis.ops.eager import alpha_relu as eager
from tsallis.ops.protocol import Backend
from tsallis.ops.transforms import traced


def alpha_relu(scores: Tensor, alpha: float = 1.5, tau: float | Tensor = 0.0) -> Tensor:
    r"""Apply alpha-ReLU: the entmax formula with a constant threshold, without normalization.

    .. math:: r_i = [(\alpha - 1) z_i - \tau]_+^{1/(\alpha-1)}

    The result maximizes :math:`r^\top (z - \tfrac{\tau}{\alpha-1}) + H_\alpha(r)` over all :math:`r \ge 0`
    (Tezekbayev et al. 2022, eq. 2). If `tau` is the mean threshold of entmax (see :func:`estimate_tau`), the values sum
    to about 1.

    Args:
        scores: any shape, any floating dtype; -inf returns 0. Half precision is computed in float32.
        alpha: a number above 1.
        tau: the threshold: a number, or a tensor broadcastable to `scores` (it gets a gradient).

    Returns:
        Values of at least 0, of the shape and dtype of `scores`.

    Raises:
        ValueError: an alpha that is not above 1 or not finite, a threshold of another shape.
        TypeError: scores that are not floating point, an alpha that is not a number.

    Example:
        >>> alpha_relu(torch.tensor([2.0, 1.0, 0.1]), tau=0.2)
        tensor([0.6400, 0.0900, 0.0000])
    """
    eps = relu_alpha(alpha) - 1
    check_floating(scores)
    tau = _threshold(tau)
    if isinstance(tau, Tensor):
        sizes = zip(reversed(tau.shape), reversed(scores.shape), strict=False)
        if tau.dim() > scores.dim() or any(size not in (1, score_size) for size, score_size in sizes):
            raise ValueError(
                f"tau must be broadcastable to the scores of shape {tuple(scores.shape)}, got {tuple(tau.shape)}"
            )
    return eager.alpha_relu(upcast(scores), eps, tau).to(result_dtype(scores))


def alpha_relu_loss(
    scores: Tensor,
    target: Tensor | SparseRows,
    alpha: float = 1.5,
    tau: float | Tensor = 0.0,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    r"""Return the loss of :func:`alpha_relu`: convex, non-negative, with gradient `r - e_y`.

    .. math:: \ell(z, y) = (r - e_y)^\top \big(z - \tfrac{\tau}{\alpha-1}\big)
              + \frac{1 - \sum_i r_i^\alpha}{\alpha(\alpha-1)}, \qquad \nabla_z \ell = r - e_y

    (Tezekbayev et al. 2022, eq. 3 and lemma 1). For probabilities `y`, replace :math:`e_y` by `y` and subtract
    :math:`H_\alpha(y)`.

    Args:
        scores: [..., classes]; a class with a score of -inf is excluded.
        target: classes [...], or probabilities as :class:`SparseRows`.
        alpha: a number above 1.
        tau: the threshold: a number or a scalar tensor (it gets a gradient).
        ignore_index: targets with this value have loss 0 and no gradient.
        reduction: "mean" over the targets that are not ignored, "sum" or "none".

    Returns:
        A number, or with reduction "none" losses [...], in the dtype of `scores`. The mean is NaN if all
        targets are ignored.

    Raises:
        ValueError: wrong shapes, a class out of range, an unknown reduction, a bad alpha.
        TypeError: scores that are not floating point, targets that are not integers.

    Example:
        >>> alpha_relu_loss(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([0]))
        tensor(0.)
    """
    alpha = relu_alpha(alpha)
    check_reduction(reduction)
    check_floating(scores)
    tau = _threshold(tau)
    if scores.dim() == 0:
        raise ValueError("scores must have shape [..., classes], got a tensor without dimensions")
    fused = not (isinstance(tau, Tensor) or traced())
    sparse = isinstance(target, SparseRows)
    rows = as_rows(upcast(scores) if sparse else scores, alpha, operation="alpha-ReLU" if fused else None)
    if isinstance(tau, Tensor) and (tau.numel() != 1 or tau.dim() > 1):
        raise ValueError(f"tau must be one number, got a tensor of shape {tuple(tau.shape)}")
    z = rows.scores.reshape(-1, scores.shape[-1])  # [rows, classes]
    soft = lead = None
    if isinstance(target, SparseRows):
        classes, soft = anchors(target, z.shape, alpha, z)
        z, lead = leads_in_place(z, classes, soft)
    else:
        check_dense(target, "target")
        classes = class_rows(scores.shape, scores.device, target, ignore_index)
    loss = _class_losses(z, classes, alpha, tau, rows.backend)
    if soft is not None:
        loss = not_negative(add_soft_target(loss, z, classes, soft, lead))
    return reduce(loss.reshape(scores.shape[:-1]), (classes >= 0).sum(), reduction).to(result_dtype(scores))


def _class_losses(z: Tensor, classes: Tensor, alpha: float, tau: float | Tensor, backend: Backend | None) -> Tensor:
    if not isinstance(tau, Tensor) and not traced():
        return autograd.alpha_relu_loss(z, classes, alpha, tau, backend)
    # Set ignored rows to 0: 0 times an infinite or NaN score would make gradients NaN.
    return eager.loss(torch.where((classes >= 0).unsqueeze(-1), z, 0), classes, alpha - 1, tau)


def estimate_tau(d_model: int, d_vocab: int) -> float:
    r"""Return a threshold of alpha-ReLU (alpha 1.5) for a newly initialized output layer.

    The result is the mean threshold of 1.5-entmax for scores :math:`N(0, \sigma^2)`. Layer normalization followed by a
    Xavier-uniform layer gives :math:`\sigma^2 = 2 d_{model} / (d_{model} + d_{vocab})`:

    .. math:: \tau = \tfrac{\sigma}{2} \, \Phi^{-1}(1 - p^*),

    where :math:`p^*` follows from the truncated moments of the normal distribution (Tezekbayev et al. 2022, eq. 4 and
    app. B.2; table 3 lists values). Use :func:`estimate_tau_from_scores` for other initializations, such as a matrix
    shared with the embedding.

    Args:
        d_model: size of the hidden state.
        d_vocab: number of classes, at least 2.

    Returns:
        The threshold.

    Raises:
        ValueError: A size is too small, or the formula has no solution for these sizes.
        TypeError: A size is not an integer.

    Example:
        >>> round(estimate_tau(512, 40_000), 4)
        0.1683
    """
    check_integer("d_model", d_model, 1)
    check_integer("d_vocab", d_vocab, 2)
    sigma = math.sqrt(2 * d_model / (d_model + d_vocab))
    normal = NormalDist()
    eps = 1 / d_vocab

    def quantile(p: float) -> float:
        return normal.inv_cdf(1 - p)

    def excess(p: float) -> float:
        # Return how much the quantile of p exceeds the 1.5-entmax threshold if the support is the largest share p.
        q, q_eps = quantile(p), quantile(eps)
        width = p - eps
        mean = (normal.pdf(q) - normal.pdf(q_eps)) / width
        square = (p + normal.pdf(q) * q - (eps + normal.pdf(q_eps) * q_eps)) / width
        variance = square - mean * mean
        radicand = (4 / sigma**2) * (eps / p) - variance
        return q - mean + math.sqrt(radicand) if radicand > 0 else -1.0

    low, high = eps * (1 + 1e-9), 1 - 1e-12
    # The excess is positive near eps, where the variance is small, and changes sign once between eps and 1.
    for _ in range(200):
        middle = math.sqrt(low * high)
        if excess(middle) > 0:
            low = middle
        else:
            high = middle
    if high > 0.999:
        raise ValueError(
            f"no threshold exists for d_model {d_model} and d_vocab {d_vocab}: all classes would be in the support"
        )
    return sigma / 2 * quantile((low + high) / 2)


def estimate_tau_from_scores(scores: Tensor, alpha: float = 1.5) -> float:
    r"""Return a threshold of alpha-ReLU from data: the mean entmax threshold of rows of scores.

    .. math:: \frac{1}{n} \sum_{i=1}^n \tau_i, \qquad
              \mathrm{entmax}_\alpha(z_i) = [(\alpha - 1) z_i - \tau_i]_+^{1/(\alpha-1)}

    With this threshold, the values of :func:`alpha_relu` sum to about 1 in a network that starts training. Pass the
    scores of its first batch (Tezekbayev et al. 2022, sec. 3.1).

    Args:
        scores: [..., classes]; rows with a NaN, or with a largest score that is not finite, are skipped.
        alpha: a number above 1.

    Returns:
        The threshold.

    Raises:
        ValueError: no row with finite scores, a bad alpha.
        TypeError: scores that are not floating point.

    Example:
        >>> round(estimate_tau_from_scores(torch.zeros(2, 4)), 4)  # p = 1/4 = (0 - tau)^2
        -0.5
    """
    alpha = relu_alpha(alpha)
    check_floating(scores)
    rows = as_rows(scores.detach(), alpha).scores.double()
    finite = rows[rows.amax(-1).abs() < torch.inf]
    if not len(finite):
        raise ValueError(
            f"scores must have at least one row of finite numbers, got none in shape {tuple(scores.shape)}"
        )
    return float(thresholds_of_probs(finite, entmax(finite, alpha), alpha).mean())


def thresholds_of_probs(scores: Tensor, probs: Tensor, alpha: float) -> Tensor:
    r"""Compute the thresholds of entmax [...] in float64 from scores and probabilities [..., classes].

    .. math:: \tau(z) = (\alpha-1) \max z - (\max p)^{\alpha-1}

    where :math:`p_i = [(\alpha-1) z_i - \tau(z)]_+^{1/(\alpha-1)}` (Peters et al. 2019, eq. 13).
    """
    eps = alpha - 1
    return eps * scores.amax(-1).double() - probs.amax(-1).double() ** eps


def _threshold(tau: float | Tensor) -> float | Tensor:
    """Return the threshold after checking its type."""
    if not isinstance(tau, Tensor):
        return finite_number("tau", tau)
    check_real(tau, "tau")
    return tau


def relu_alpha(alpha: float) -> float:
    """Return an alpha of alpha-ReLU as a float; raise if it is not above 1."""
    alpha = alpha_number(alpha)
    if alpha == 1:
        raise ValueError("alpha of alpha-ReLU must be above 1, got 1")
    return alpha
