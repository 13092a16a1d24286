"""Define functions from scores to sparse probabilities: alpha-entmax and its relatives."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tsallis.functional.rows import (
    alpha_number,
    as_rows,
    check_dim,
    check_floating,
    finite_number,
    number,
    result_dtype,
)
from tsallis.ops.alphas import Alpha
from tsallis.ops.autograd import maps as autograd
from tsallis.ops.choice import choose_direct
from tsallis.ops.dtypes import upcast
from tsallis.ops.eager.entropy import entropy
from tsallis.ops.eager.log_probs import log_probs
from tsallis.ops.transforms import as_input, differentiated, positive_alphas, varies


def entmax(scores: Tensor, alpha: Alpha = 1.5, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
    r"""Return alpha-entmax probabilities: softmax at `alpha = 1`, sparsemax at 2, sparse above 1.

    Equivalent to `torch.softmax` at `alpha = 1`. For alpha below 1 every probability is positive, and small ones are
    larger than with softmax. The probabilities of each row of scores :math:`z` along `dim` are

    .. math:: \arg\max_{p \in \triangle} \; p^\top z + H_\alpha(p), \qquad
              H_\alpha(p) = \frac{1 - \sum_i p_i^\alpha}{\alpha(\alpha - 1)},

    and the solution is :math:`p_i = [(\alpha - 1) z_i - \tau]_+^{1/(\alpha-1)}` (Peters et al. 2019, eq. 10 and 13).
    The probabilities are differentiable to every order in the scores and in alpha, also at `alpha = 1` (Correia et al.
    2019, prop. 1).

    Args:
        scores: any shape, any floating dtype. Entries of -inf get probability 0. Half precision is computed in float32.
        alpha: positive: a number, or a tensor broadcastable to `scores` with size 1 along `dim`. The
            second argument of `torch.softmax` is the dimension; here write `entmax(scores, dim=1)`.
        dim: the dimension whose entries sum to 1.
        mask: boolean, broadcastable to `scores`; False excludes an entry.

    Returns:
        Probabilities of the shape and dtype of `scores`. A row without a valid entry becomes all zeros; a row with a
        NaN becomes all NaN.

    Raises:
        ValueError: an alpha that is not positive and finite, or of a wrong shape; a mask of a wrong shape.
        TypeError: scores that are not floating point, an alpha that is not a number, a mask that is not boolean.

    Example:
        >>> entmax(torch.tensor([2.0, 1.0, 0.1]))
        tensor([0.8307, 0.1693, 0.0000])
        >>> per_head = torch.tensor([1.0, 2.0]).view(2, 1, 1)
        >>> entmax(torch.zeros(2, 3, 4), per_head).shape
        torch.Size([2, 3, 4])
    """
    # Do not merge dimensions under a tracer: it can't prove the guards if two dimensions have the same unknown length.
    jit_tracing = torch._C._get_tracing_state()
    merge = not (jit_tracing or torch.compiler.is_compiling())
    rows = as_rows(scores, alpha, dim, mask, "maps", positive=True, merge=merge)
    if not jit_tracing and scores.numel() == 0:  # torch.jit.trace warns if a size decides a branch
        return _empty(scores, rows.alpha).to(rows.dtype)
    return rows.restore(autograd.entmax(rows.scores, rows.alpha, rows.dim, rows.backend))


def log_entmax(scores: Tensor, alpha: Alpha = 1.5) -> Tensor:
    """Return the logarithms of :func:`entmax` along the last dimension in float64; -inf outside the support.

    Inside the support, a logarithm is finite even if the probability underflows to zero.
    """
    alpha = alpha.to(scores.device, torch.float64) if isinstance(alpha, Tensor) else float(alpha)
    if isinstance(alpha, float) and scores.dim() and scores.numel() and not differentiated(scores, alpha):
        backend = choose_direct("search", alpha, scores)
        if backend is not None:
            return backend.log_entmax(scores.reshape(-1, scores.shape[-1]).contiguous(), alpha).view(scores.shape)
    wide = scores.double()
    probs = entmax(wide, alpha)
    return log_probs(wide, probs, alpha) if scores.numel() else probs


def _empty(scores: Tensor, alpha: Alpha) -> Tensor:
    """Return a copy of empty scores; the scores and alpha get zero gradients."""
    return scores + (alpha.sum() * 0).to(scores.dtype) if isinstance(alpha, Tensor) else scores.clone()


def sparsemax(scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
    r"""Return sparsemax probabilities: the Euclidean projection of the scores onto the simplex.

    Equivalent to :func:`entmax` with `alpha = 2`.

    .. math:: \arg\min_{p \in \triangle} \; \lVert p - z \rVert^2, \qquad p_i = [z_i - \tau]_+

    (Martins and Astudillo 2016; Peters et al. 2019, eq. 5.)

    Args:
        scores: any shape, any floating dtype; entries of -inf get probability 0. Half precision is computed in float32.
        dim: the dimension whose entries sum to 1.
        mask: boolean, broadcastable to `scores`; False excludes an entry.

    Returns:
        Probabilities of the shape and dtype of `scores`. A row without a valid entry becomes all zeros.

    Raises:
        ValueError: a mask that can't be broadcast to the scores.
        TypeError: scores that are not floating point, a mask that is not boolean.

    Example:
        >>> sparsemax(torch.tensor([1.0, 0.6, -1.0]))
        tensor([0.7000, 0.3000, 0.0000])
    """
    return entmax(scores, 2.0, dim, mask=mask)


def entmax15(scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
    r"""Return 1.5-entmax probabilities, smooth like softmax and sparse like sparsemax.

    Equivalent to :func:`entmax` with `alpha = 1.5`.

    .. math:: \arg\max_{p \in \triangle} \; p^\top z + H_{1.5}(p), \qquad p_i = [z_i / 2 - \tau]_+^2

    (Peters et al. 2019, alg. 2 sorts the scores; this function needs no sort.)

    Args:
        scores: any shape, any floating dtype; entries of -inf get probability 0. Half precision is computed in float32.
        dim: the dimension whose entries sum to 1.
        mask: boolean, broadcastable to `scores`; False excludes an entry.

    Returns:
        Probabilities of the shape and dtype of `scores`. A row without a valid entry becomes all zeros.

    Raises:
        ValueError: a mask that can't be broadcast to the scores.
        TypeError: scores that are not floating point, a mask that is not boolean.

    Example:
        >>> entmax15(torch.tensor([[0.0, 0.0], [3.0, 0.0]]))
        tensor([[0.5000, 0.5000],
                [1.0000, 0.0000]])
    """
    return entmax(scores, 1.5, dim, mask=mask)


def normmax(scores: Tensor, alpha: float = 2.0, dim: int = -1) -> Tensor:
    r"""Return sparse probabilities: like entmax, with a norm of order alpha in place of the entropy.

    .. math:: \arg\max_{p \in \triangle} \; p^\top z - \lVert p \rVert_\alpha

    The solution is :math:`p_i \propto [z_i - \tau]_+^{1/(\alpha-1)}` (Blondel et al. 2020, sec. 4). It is computed by
    :func:`entmax` and :func:`escort`: :math:`p` is the escort distribution with exponent :math:`1/\alpha` of
    :math:`\beta`-entmax :math:`(\tfrac{\alpha}{\alpha-1} z)`, where :math:`\beta = 2 - 1/\alpha`. An entry has
    probability 1 if its score exceeds all others by at least 1.

    Args:
        scores: any shape, any floating dtype; entries of -inf get probability 0.
        alpha: order of the norm, above 1.
        dim: the dimension whose entries sum to 1.

    Returns:
        Probabilities of the shape and dtype of `scores`.

    Raises:
        ValueError: an alpha that is not above 1 or not finite.
        TypeError: scores that are not floating point, an alpha that is not a number.

    Example:
        >>> normmax(torch.tensor([1.0, 0.8, -1.0]))
        tensor([0.5714, 0.4286, 0.0000])
    """
    alpha = alpha_number(alpha)
    if alpha == 1:
        raise ValueError("alpha of normmax must be above 1, got 1")
    check_floating(scores)
    check_dim(dim)
    wide = upcast(scores)
    if scores.numel() and scores.dim():
        top = wide.detach().amax(dim, keepdim=True)
        wide = wide - torch.where(top == -torch.inf, 0, top)  # subtract first: scaling would round large scores
    wide = wide * (alpha / (alpha - 1))
    return escort(entmax(wide, 2 - 1 / alpha, dim), 1 / alpha, dim).to(result_dtype(scores))


def budgeted_entmax(scores: Tensor, alpha: Alpha = 1.5, budget: float = 2, dim: int = -1) -> Tensor:
    r"""Return the marginal probabilities of choosing `budget` entries: each at most 1, with sum `budget`.

    .. math:: \arg\max_{0 \le p \le 1,\; \sum_i p_i = k} \; p^\top z + H_\alpha(p)

    where :math:`k` is the budget. This generalizes :func:`entmax` (Peters et al. 2019, eq. 10) to sums other than 1.
    Entries at 1 are always chosen, entries at 0 never. The marginals are differentiable like the result of
    :func:`entmax`.

    Args:
        scores: any shape, any floating dtype; entries of -inf get probability 0.
        alpha: at least 1: a number, or a tensor broadcastable to `scores` with size 1 along `dim`.
        budget: sum of the marginals, at least 0. If fewer entries than the budget are finite, each finite entry gets 1.
        dim: the dimension whose entries sum to the budget.

    Returns:
        Marginals of the shape and dtype of `scores`.

    Raises:
        ValueError: a budget that is negative or not finite, an alpha below 1 or not finite, or of a wrong shape.
        TypeError: scores that are not floating point, a budget that is not a number.

    Example:
        >>> budgeted_entmax(torch.tensor([3.0, 1.0, 1.0, -4.0]), budget=2)
        tensor([1.0000, 0.5000, 0.5000, 0.0000])
    """
    budget = number("budget", budget)
    if not 0 <= budget < math.inf:
        raise ValueError(f"budget must be finite and at least 0, got {budget:g}")
    rows = as_rows(scores, alpha, dim)
    if scores.numel() == 0:
        return _empty(scores, rows.alpha).to(rows.dtype)
    return rows.restore(autograd.budgeted_entmax(rows.scores, rows.alpha, budget))


def tsallis_entropy(probs: Tensor, alpha: Alpha, dim: int = -1) -> Tensor:
    r"""Return the Tsallis entropy of probabilities: Shannon entropy at `alpha = 1`, half the Gini index at 2.

    .. math:: H_\alpha(p) = \frac{1 - \sum_i p_i^\alpha}{\alpha (\alpha - 1)}
              = -\frac{1}{\alpha} \sum_i p_i \frac{p_i^{\alpha-1} - 1}{\alpha - 1}

    (Peters et al. 2019, eq. 9.) The second form is computed, because it has no singularity at `alpha = 1`. Zeros in
    `probs` get no gradient.

    Args:
        probs: probabilities along `dim`.
        alpha: positive: a number, or a tensor broadcastable to `probs` with size 1 along `dim`.
        dim: the dimension to sum over.

    Returns:
        Entropies in nats (at `alpha = 1`), without dimension `dim`.

    Raises:
        ValueError: an alpha that is not positive and finite, or of a wrong shape.
        TypeError: probabilities that are not floating point.

    Example:
        >>> tsallis_entropy(torch.tensor([0.5, 0.5, 0.0]), alpha=2.0)
        tensor(0.2500)
    """
    check_floating(probs, "probs")
    rows = as_rows(probs, alpha, dim, positive=True)
    alpha = positive_alphas(rows.alpha) if isinstance(rows.alpha, Tensor) else rows.alpha
    if probs.numel() == 0:
        return _empty(probs, alpha).sum(dim).to(rows.dtype)
    assert rows.shape is not None
    return entropy(rows.scores, alpha).reshape(rows.shape[:-1]).to(rows.dtype)


def escort(probs: Tensor, beta: float, dim: int = -1) -> Tensor:
    r"""Return the escort distribution: probabilities raised to a power and normalized; zeros stay zero.

    .. math:: \tilde p_i = p_i^\beta \Big/ \sum_j p_j^\beta \quad \text{on the support}

    `beta = 1` returns the distribution itself, `beta = 0` the uniform distribution on its support. The
    Jacobian of :func:`entmax` contains the escort distribution with `beta = 2 - alpha` (Martins et al. 2020, eq. 5 and
    18).

    Args:
        probs: probabilities along `dim`; a row of zeros stays zero.
        beta: any finite number.
        dim: the dimension that sums to 1.

    Returns:
        Probabilities of the shape and dtype of `probs`.

    Raises:
        ValueError: a beta that is not finite.
        TypeError: probabilities that are not floating point.

    Example:
        >>> escort(torch.tensor([0.8, 0.2, 0.0]), beta=0.0)
        tensor([0.5000, 0.5000, 0.0000])
    """
    check_floating(probs, "probs")
    check_dim(dim)
    beta = finite_number("beta", beta)
    wide = upcast(probs)
    outside = wide == 0  # not `> 0`: a NaN must stay NaN
    dim = dim if wide.dim() else 0
    # Scale the largest power to 1 first: a power of a tiny probability could underflow or overflow.
    scale, has_entries = torch.where(outside, 1, wide.detach()), wide.numel() and wide.dim()
    if beta >= 0:
        scale = wide.detach().amax(dim, keepdim=True) if has_entries else scale
        ratio = torch.where(outside, 1, wide / torch.where(scale == 0, 1, scale))
        power = torch.where(outside, 0, ratio ** (as_input(beta, wide) if varies(beta) else beta))
    else:  # use logarithms: the ratio to the smallest probability could overflow
        scale = scale.amin(dim, keepdim=True) if has_entries else scale
        power = torch.where(outside, 0, torch.exp(beta * (torch.where(outside, 1, wide).log() - scale.log())))
    total = power.sum(dim, keepdim=True) if wide.dim() else power
    return (power / torch.where(total == 0, 1, total)).to(result_dtype(probs))
