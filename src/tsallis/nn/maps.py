"""Define entmax, sparsemax and their losses as modules, for `nn.Sequential` and for learned alphas."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from tsallis import functional
from tsallis.functional.losses import check_reduction, check_smoothing
from tsallis.functional.rows import check_dim, integer, stored_alpha
from tsallis.functional.sparse_rows import SparseRows
from tsallis.nn.alpha import keep_precision
from tsallis.ops.alphas import Alpha


class AlphaModule(nn.Module):
    """Base class of modules with an alpha, which stays in float32 if the model is cast to half precision."""

    alpha: Alpha

    def __init__(self, alpha: Alpha) -> None:
        super().__init__()
        alpha = stored_alpha(alpha, positive=True)
        if isinstance(alpha, Tensor) and not isinstance(alpha, nn.Parameter):
            self.register_buffer("alpha", alpha)
        else:
            self.alpha = alpha

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> AlphaModule:
        super()._apply(keep_precision(fn, self.alpha), recurse)
        return self

    def extra_repr(self) -> str:
        return f"alpha: {tuple(self.alpha.shape)}" if isinstance(self.alpha, Tensor) else f"alpha={self.alpha:g}"


class Entmax(AlphaModule):
    r""":func:`tsallis.entmax` as a module, with a fixed or learned alpha.

    .. math:: p = \mathrm{entmax}_\alpha(z)

    (Peters et al. 2019, eq. 10.)

    Args:
        alpha: positive: a number, an `nn.Parameter` to be learned (Correia et al. 2019), or another tensor, which
            becomes a buffer; tensors must broadcast to the scores with size 1 along `dim`. They stay in float32 if the
            model is cast to half precision. An optimizer may move a parameter out of range: clamp it after each step.
        dim: the dimension whose entries sum to 1.

    Raises:
        ValueError: an alpha that is not positive and finite.
        TypeError: an alpha that is neither a number nor a tensor, a dimension that is not an integer.

    Example:
        >>> import torch
        >>> Entmax(alpha=2.0)(torch.tensor([1.0, 0.6, -1.0]))
        tensor([0.7000, 0.3000, 0.0000])
        >>> learned = Entmax(torch.nn.Parameter(torch.tensor([1.5])))
        >>> learned(torch.tensor([1.0, 0.6, -1.0]))[0].backward()
        >>> learned.alpha.grad > 0
        tensor([True])
    """

    def __init__(self, alpha: Alpha = 1.5, dim: int = -1) -> None:
        super().__init__(alpha)
        check_dim(dim)
        self.dim = dim

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the probabilities of scores; `mask` is as in :func:`tsallis.entmax`."""
        return functional.entmax(scores, self.alpha, self.dim, mask=mask)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, dim={self.dim}"


class Sparsemax(Entmax):
    r""":func:`tsallis.sparsemax` as a module: the Euclidean projection onto the simplex.

    .. math:: \arg\min_{p \in \triangle} \; \lVert p - z \rVert^2

    (Peters et al. 2019, eq. 5.)

    Args:
        dim: the dimension whose entries sum to 1.

    Example:
        >>> import torch
        >>> Sparsemax()(torch.tensor([1.0, 0.6, -1.0]))
        tensor([0.7000, 0.3000, 0.0000])
    """

    def __init__(self, dim: int = -1) -> None:
        super().__init__(2.0, dim)


class EntmaxLoss(AlphaModule):
    r""":func:`tsallis.entmax_loss` as a module, with the options of `nn.CrossEntropyLoss`.

    .. math:: L_\alpha(z; y) = (p - y)^\top z + H_\alpha(p) - H_\alpha(y), \qquad p = \mathrm{entmax}_\alpha(z)

    (Peters et al. 2019, eq. 11.)

    Args:
        alpha: as in :class:`Entmax`; a tensor with last size 1.
        weight: weights of the classes [classes].
        ignore_index: class targets with this value have loss 0 and no gradient.
        reduction: "mean" over the targets that are not ignored, "sum" or "none".
        label_smoothing: share of the target that is spread evenly over the classes with finite scores.

    Raises:
        ValueError: an alpha that is not positive and finite, an unknown reduction.
        TypeError: an alpha that is neither a number nor a tensor.

    Example:
        >>> import torch
        >>> EntmaxLoss(alpha=1.5)(torch.tensor([[4.0, 1.0, 0.1]]), torch.tensor([0]))
        tensor(0.)
    """

    weight: Tensor | None

    def __init__(
        self,
        alpha: Alpha = 1.5,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(alpha)
        self.register_buffer("weight", weight)
        self.ignore_index, self.reduction = integer("ignore_index", ignore_index), check_reduction(reduction)
        self.label_smoothing = check_smoothing(label_smoothing)

    def forward(self, scores: Tensor, target: Tensor | SparseRows) -> Tensor:
        """Return the loss of scores [..., classes] for classes [...], probabilities [..., classes] or sparse rows."""
        return functional.entmax_loss(
            scores,
            target,
            self.alpha,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )
