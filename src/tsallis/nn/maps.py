"""The maps and losses as modules, for `nn.Sequential` and for learned alphas."""

from __future__ import annotations

from torch import Tensor, nn

from tsallis import functional
from tsallis.functional.rows import Alpha, alpha_number


class _Alpha(nn.Module):
    """Holds alpha: a number, a parameter that is learned, or a buffer that moves with the module."""

    alpha: Alpha

    def __init__(self, alpha: Alpha) -> None:
        super().__init__()
        if isinstance(alpha, nn.Parameter):
            self.alpha = alpha
        elif isinstance(alpha, Tensor):
            self.register_buffer("alpha", alpha)
        else:
            self.alpha = alpha_number(alpha)

    def extra_repr(self) -> str:
        return f"alpha={tuple(self.alpha.shape)}" if isinstance(self.alpha, Tensor) else f"alpha={self.alpha:g}"


class Entmax(_Alpha):
    """:func:`tsallis.entmax` as a module; `alpha` may be an `nn.Parameter`.

    >>> import torch
    >>> Entmax(alpha=2.0)(torch.tensor([1.0, 0.6, -1.0]))
    tensor([0.7000, 0.3000, 0.0000])
    """

    def __init__(self, alpha: Alpha = 1.5, dim: int = -1) -> None:
        super().__init__(alpha)
        self.dim = dim

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        return functional.entmax(scores, self.alpha, self.dim, mask=mask)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, dim={self.dim}"


class Sparsemax(nn.Module):
    """:func:`tsallis.sparsemax` as a module.

    >>> import torch
    >>> Sparsemax()(torch.tensor([1.0, 0.6, -1.0]))
    tensor([0.7000, 0.3000, 0.0000])
    """

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        return functional.sparsemax(scores, self.dim, mask=mask)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class EntmaxLoss(_Alpha):
    """:func:`tsallis.entmax_loss` as a module, with the options of `nn.CrossEntropyLoss`.

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
        self.ignore_index, self.reduction, self.label_smoothing = ignore_index, reduction, label_smoothing

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        return functional.entmax_loss(
            scores,
            target,
            self.alpha,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class AlphaReLULoss(nn.Module):
    """:func:`tsallis.alpha_relu_loss` as a module; `tau` may be an `nn.Parameter`.

    >>> import torch
    >>> AlphaReLULoss(tau=0.2)(torch.tensor([[2.4, 0.0, 0.1]]), torch.tensor([0]))
    tensor(0.)
    """

    def __init__(
        self,
        alpha: float = 1.5,
        tau: float | Tensor = 0.0,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        self.alpha, self.tau = alpha_number(alpha), tau
        self.ignore_index, self.reduction = ignore_index, reduction

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        return functional.alpha_relu_loss(
            scores, target, self.alpha, self.tau, ignore_index=self.ignore_index, reduction=self.reduction
        )
