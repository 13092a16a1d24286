"""Define an output layer: a projection, an activation such as entmax, and its loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from tsallis import functional
from tsallis.errors import check_integer, check_one_of
from tsallis.functional.alpha_relu import thresholds_of_probs
from tsallis.functional.losses import check_smoothing, reduce
from tsallis.functional.maps import log_entmax
from tsallis.functional.rows import alpha_number, check_integers, finite_number, integer
from tsallis.functional.sparse_rows import SparseRows
from tsallis.ops.arguments import AttentionArgs, BestSymbols
from tsallis.ops.choice import choose, choose_screening
from tsallis.ops.constants import ConstantBuffers
from tsallis.ops.dtypes import upcast
from tsallis.ops.eager.log_probs import alpha_relu_log_probs
from tsallis.ops.fused_optimizers import fused_optimizer_steps
from tsallis.ops.transforms import traced, tracing_active

ROWS = 64  # number of states whose supports are computed together
MANY_SCORES = 1 << 21  # for at least this number of scores, layer and loss are computed together
TRANSFORMS = ("softmax", "sparsemax", "entmax", "alpha_relu")
MAP_ALPHAS = {"softmax": 1.0, "sparsemax": 2.0}  # activations with a fixed alpha


def transform_alpha(transform: str, alpha: float) -> float:
    """Return the alpha of a transform; only "entmax" and "alpha_relu" use `alpha`."""
    check_one_of("transform", transform, TRANSFORMS)
    alpha = alpha_number(MAP_ALPHAS.get(transform, alpha))
    if transform == "alpha_relu" and alpha == 1:
        raise ValueError("alpha of alpha_relu must be above 1, got 1")
    return alpha


def is_linear(module: nn.Module) -> bool:
    """Return whether a module computes exactly `linear(x, module.weight, module.bias)`: no hooks, no other code."""
    hooks = module._forward_hooks or module._forward_pre_hooks
    hooks = hooks or module._backward_hooks or module._backward_pre_hooks
    return getattr(type(module), "forward", None) is nn.Linear.forward and not hooks and "forward" not in vars(module)


class OutputLayer(ConstantBuffers):
    r"""Output layer that computes probabilities of symbols and their loss from hidden states.

    .. math:: z = W h + b, \qquad p = \mathrm{entmax}_\alpha(z) \;\text{ or }\;
              r = [(\alpha-1) z - \tau]_+^{1/(\alpha-1)}

    (Peters et al. 2019, eq. 10; Tezekbayev et al. 2022, eq. 2.)

    Args:
        d_model: size of the hidden states.
        d_vocab: number of symbols.
        transform: "softmax", "sparsemax", "entmax" or "alpha_relu".
        alpha: alpha of "entmax" and "alpha_relu".
        tau: threshold of "alpha_relu", see :func:`tsallis.estimate_tau`.
        bias: whether the projection has a bias.
        forbidden: symbols that never get a probability (padding, start): their scores are -inf. The loss of such a
            target is infinite, unless `ignore_index` excludes it.

    Raises:
        ValueError: an unknown transform, a bad alpha, a vocabulary without symbols, a forbidden symbol outside the
            vocabulary, a vocabulary in which every symbol is forbidden.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> layer = OutputLayer(8, 5, "sparsemax", forbidden=(0,))
        >>> scores = layer(torch.randn(2, 3, 8))  # [2, 3, 5]
        >>> layer.probs(scores)[..., 0].sum().item()
        0.0
        >>> layer.loss(torch.randn(2, 3, 8), torch.ones(2, 3, dtype=torch.long)).shape
        torch.Size([])
    """

    never: Tensor
    _forbidden: Tensor

    def __init__(
        self,
        d_model: int,
        d_vocab: int,
        transform: str = "entmax",
        alpha: float = 1.5,
        tau: float = 0.0,
        bias: bool = True,
        forbidden: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.transform = transform
        self.alpha = transform_alpha(transform, alpha)
        self.tau = finite_number("tau", tau)
        d_vocab = check_integer("d_vocab", d_vocab, 1)
        forbidden = [check_integer("a forbidden symbol", i, -(2**63)) for i in forbidden]
        out_of_range = [i for i in forbidden if not 0 <= i < d_vocab]
        if out_of_range or len(set(forbidden)) >= d_vocab:
            raise ValueError(
                f"forbidden must contain symbols from 0 to {d_vocab - 1}, but not all of them, got {tuple(forbidden)}"
            )
        self.projection = nn.Linear(check_integer("d_model", d_model, 1), d_vocab, bias=bias)
        never = torch.zeros(d_vocab, dtype=torch.bool, device="cpu")
        never[list(forbidden)] = True
        self._screened: Any = None  # the weight's version when it was encoded in 8 bits, the weight, and the result
        self.register_constant("never", never, self.weight.device)
        self.register_constant("_forbidden", never.nonzero().flatten(), self.weight.device)

    @property
    def weight(self) -> Tensor:
        """Return the weight of the projection [d_vocab, d_model]."""
        weight = self.projection.weight
        return weight().dequantize() if callable(weight) else weight  # `weight` is a method in quantized layers

    @property
    def d_vocab(self) -> int:
        """Return the number of symbols."""
        return len(self.weight)

    @property
    def d_model(self) -> int:
        """Return the size of the hidden states."""
        return self.projection.in_features

    @property
    def bias(self) -> Tensor | None:
        """Return the bias of the projection [d_vocab], or None."""
        bias = self.projection.bias
        return bias() if callable(bias) else bias

    def tie(self, weight: nn.Parameter) -> None:
        """Share the weight [d_vocab, d_model] of another module, such as the target embedding.

        Raises:
            ValueError: The weight has another shape.
        """
        if weight.shape != self.weight.shape:
            raise ValueError(
                f"weight must have the shape of the projection, {tuple(self.weight.shape)}, got {tuple(weight.shape)}"
            )
        self.projection.weight = weight

    @property
    def normalized(self) -> bool:
        """Return whether the probabilities sum to 1; False only for alpha-ReLU."""
        return self.transform != "alpha_relu"

    def scores(self, hidden: Tensor) -> Tensor:
        """Project hidden states [..., d_model] to scores [..., d_vocab]."""
        scores: Tensor = self.projection(hidden)
        if not len(self._forbidden):
            return scores
        if torch.is_grad_enabled() or traced() or not is_linear(self.projection):  # a hook may have kept the scores
            return scores.masked_fill(self.never, -torch.inf)
        return scores.index_fill_(-1, self._forbidden, -torch.inf)  # in place, without a copy

    def forward(self, hidden: Tensor) -> Tensor:
        """Project hidden states [..., d_model] to scores [..., d_vocab]."""
        return self.scores(hidden)

    def probs(self, scores: Tensor) -> Tensor:
        """Return probabilities [..., d_vocab]; those of alpha-ReLU need not sum to 1."""
        if self.transform == "alpha_relu":
            return functional.alpha_relu(scores, self.alpha, self.tau)
        return functional.entmax(scores, self.alpha)

    def log_probs(self, scores: Tensor) -> Tensor:
        """Return log-probabilities in float64; -inf exactly where a probability is zero.

        They are computed from the scores, because a probability of :meth:`probs` may underflow.
        """
        if self.transform == "alpha_relu":
            return alpha_relu_log_probs(scores.double(), self.alpha, self.tau)
        return log_entmax(scores, self.alpha)

    def support(self, hidden: Tensor) -> SparseRows:
        """Return the symbols with a non-zero probability, without computing all scores.

        A copy of the weight in 8 bits is scanned, see :class:`ScreenedKeys`. It is made in the first call, and again
        after a change of the weight; changes through `weight.data` are not noticed. The scan needs the compiled CPU
        kernels, float32, and an alpha above 1 and up to 2. Other calls, and states with many possible symbols, are
        computed from all scores.

        Args:
            hidden: Hidden states [..., d_model]; leading dimensions are merged.

        Returns:
            A row for each state. They have no gradients.

        Raises:
            ValueError: `hidden` has another size, requires a gradient, is not finite, or the transform is "alpha_relu".

        Example:
            >>> layer = OutputLayer(8, 5000)
            >>> rows = layer.support(torch.randn(2, 3, 8))
            >>> len(rows)
            6
        """
        if not self.normalized:
            raise ValueError("support needs a transform whose probabilities sum to 1, got 'alpha_relu'")
        if hidden.shape[-1:] != (self.d_model,):
            raise ValueError(f"hidden must have the shape [..., {self.d_model}], got {tuple(hidden.shape)}")
        if torch.is_grad_enabled() and hidden.requires_grad:
            raise ValueError("hidden must not require a gradient, because support has none: call hidden.detach()")
        if not (traced() or bool(hidden.isfinite().all())):
            raise ValueError("hidden must be finite, got NaN or infinity")
        with torch.no_grad():
            rows = hidden.reshape(-1, self.d_model)
            screened = self._screened_weight(rows)
            parts = [self._supports(part, screened) for part in rows.split(ROWS)] if screened else []
            if not parts:
                return SparseRows.from_dense(self.probs(upcast(self.scores(rows))))
            index, probs = (torch.cat(values) for values in zip(*[row for part in parts for row in part], strict=True))
            counts = torch.tensor([len(symbols) for part in parts for symbols, _ in part])
            return SparseRows(index, probs, torch.nn.functional.pad(counts.cumsum(0), (1, 0)))

    def _supports(self, rows: Tensor, screened: Any) -> list[tuple[Tensor, Tensor]]:
        """Return the symbols and probabilities of each row."""
        bias, size = self.bias, (1, 1, 1, self.d_vocab)
        if len(self._forbidden):
            bias = (self.weight.new_zeros(self.d_vocab) if bias is None else bias).masked_fill(self.never, -torch.inf)
        mask = None if bias is None else bias.detach().view(size)
        tensors = rows[None, :, None], self.weight.detach()[None, None], rows.new_empty(1, 1, self.d_vocab, 0)
        count, index, probs = screened.lists(
            AttentionArgs(*tensors, None, mask, None, None, None, None, self.alpha, 1.0, False, 0.0)
        )
        supports = []
        for row, n in enumerate(count.tolist()):
            if n < 0:
                dense = self.probs(self.scores(rows[row]))
                symbols = dense.nonzero().flatten()
                supports.append((symbols.int(), dense[symbols]))
            else:
                supports.append((index[row, :n], probs[row, :n]))
        return supports

    def _screened_weight(self, rows: Tensor) -> Any:
        """Return the weight in 8 bits, or None if it can't be scanned or few scores are needed."""
        weight = self.projection.weight
        if not (isinstance(weight, Tensor) and is_linear(self.projection)) or tracing_active() or not len(rows):
            return None
        kernels = choose_screening(rows.device.type)
        is_supported = all(x.dtype == torch.float32 and x.device.type == "cpu" for x in (rows, weight))
        if kernels is None or not is_supported or self.d_vocab < kernels.MIN_KEYS or not 1 < self.alpha <= 2:
            return None
        if weight.is_inference():  # such a tensor does not count its changes
            return None
        old, version = self._screened, (weight.data_ptr(), weight._version, fused_optimizer_steps())
        if old is None or old[0] != version:
            # An alias keeps the memory, so that no other weight gets its address.
            self._screened = version, weight.detach(), kernels.ScreenedRows()
        return self._screened[2]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_screened": None}

    def thresholds(self, scores: Tensor, probs: Tensor) -> Tensor | None:
        r"""Return the threshold of the activation in each step, in float64.

        .. math:: \tau(z) = (\alpha-1) \max z - (\max p)^{\alpha-1}

        where :math:`p_i = [(\alpha-1) z_i - \tau(z)]_+^{1/(\alpha-1)}` (Peters et al. 2019, eq. 13; Tezekbayev et al.
        2022, sec. 2 and fig. 7). For alpha-ReLU, the result is the constant threshold.

        Args:
            scores: Scores [..., d_vocab].
            probs: Probabilities of the scores [..., d_vocab].

        Returns:
            Thresholds [...], or None for softmax.

        Example:
            >>> layer, scores = OutputLayer(2, 3, "sparsemax"), torch.tensor([[1.0, 0.5, -2.0]])
            >>> layer.thresholds(scores, layer.probs(scores)).tolist()
            [0.25]
        """
        if self.transform == "alpha_relu":
            return torch.full(scores.shape[:-1], self.tau, dtype=torch.float64, device=scores.device)
        return None if self.alpha == 1 else thresholds_of_probs(scores, probs, self.alpha)

    def best_symbols(self, scores: Tensor, count: int, end: int, only: Tensor | None = None) -> BestSymbols:
        """Return the most probable symbols of each row and the end symbol, with their log-probabilities.

        Args:
            scores: Scores [rows, d_vocab].
            count: Number of symbols per row, without the end symbol.
            end: End symbol.
            only: The only symbol that a row may return [rows]; negative numbers, or None, allow all symbols.
        """
        tau = self.tau if self.transform == "alpha_relu" else None
        backend = choose("search", self.alpha, scores)
        return backend.best_symbols(scores.contiguous(), self.alpha, tau, count, end, only)

    def loss(
        self,
        hidden: Tensor,
        target: Tensor | SparseRows,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """Compute the loss from hidden states.

        A large number of scores is computed in chunks, see :func:`tsallis.linear_entmax_loss`.

        Args:
            hidden: hidden states [..., d_model].
            target: symbols [...], or their probabilities as :class:`tsallis.SparseRows`.
            ignore_index: targets with this value have loss 0 and no gradient.
            reduction: "mean" over the targets that are not ignored, "sum" or "none".
            label_smoothing: share of the target that is spread evenly over the symbols that are not forbidden, from 0
                to 1.

        Returns:
            A number, or with reduction "none" losses [...].

        Raises:
            ValueError: wrong shapes, a symbol out of range, an unknown reduction, a smoothing outside [0, 1],
                smoothing of probabilities.
        """
        label_smoothing = check_smoothing(label_smoothing)
        ignore_index = integer("ignore_index", ignore_index)
        if isinstance(target, SparseRows):
            if label_smoothing:
                raise ValueError(f"label_smoothing must be 0 for targets in SparseRows, got {label_smoothing}")
            counted = target.offsets.diff().to(hidden.device) > 0
            return self._loss(_without_ignored(hidden, counted), target, ignore_index, reduction)
        check_integers(target, "class targets")
        hidden = _without_ignored(hidden, target != ignore_index)
        if label_smoothing and not is_linear(self.projection):  # e.g. with dropout: both parts need the same scores
            return self._smoothed(self.scores(hidden), target, ignore_index, reduction, label_smoothing)
        unsmoothed = self._loss(hidden, target, ignore_index, reduction)
        if label_smoothing == 0:
            return unsmoothed
        return unsmoothed + label_smoothing * self._lead(hidden, target, ignore_index, reduction)

    def _smoothed(
        self, scores: Tensor, target: Tensor, ignore_index: int, reduction: str, label_smoothing: float
    ) -> Tensor:
        """Compute the smoothed loss from scores."""
        active = target != ignore_index
        losses = self.loss_of_scores(scores, target, ignore_index, "none")
        index, finite = torch.where(active, target, 0).long().unsqueeze(-1), upcast(scores).masked_fill(self.never, 0)
        lead = finite.gather(-1, index).squeeze(-1) - finite.sum(-1) / (~self.never).sum()
        return reduce(losses + torch.where(active, label_smoothing * lead, 0), active.sum(), reduction)

    def _lead(self, hidden: Tensor, target: Tensor, ignore_index: int, reduction: str) -> Tensor:
        """Compute the difference between the target's score and the mean score.

        Label smoothing adds a share of this difference, because the loss without the entropy is linear in the target.
        """
        active = target != ignore_index
        allowed = ~self.never
        index = torch.where(active, target, 0).long()
        weight = self.weight
        mean = (weight * allowed.unsqueeze(-1)).sum(0) / allowed.sum()  # [d_model]
        lead = (hidden * (embedding(index, weight) - mean)).sum(-1)  # [...]
        if self.bias is not None:
            lead = lead + self.bias[index] - (self.bias * allowed).sum() / allowed.sum()
        lead = torch.where(active, lead, 0)
        return reduce(lead, active.sum(), reduction)

    def _loss(self, hidden: Tensor, target: Tensor | SparseRows, ignore_index: int, reduction: str) -> Tensor:
        rows = len(target) if isinstance(target, SparseRows) else target.numel()
        if rows * len(self.weight) < MANY_SCORES or not is_linear(self.projection):
            return self.loss_of_scores(self.scores(hidden), target, ignore_index, reduction)
        bias = self.bias
        if len(self._forbidden):
            bias = self.weight.new_zeros(len(self.weight)) if bias is None else bias
            bias = bias.masked_fill(self.never, -torch.inf)
        options = {"bias": bias, "ignore_index": ignore_index, "reduction": reduction}
        if self.transform == "alpha_relu":
            return functional.linear_alpha_relu_loss(hidden, self.weight, target, self.alpha, self.tau, **options)  # type: ignore[arg-type]
        return functional.linear_entmax_loss(hidden, self.weight, target, self.alpha, **options)  # type: ignore[arg-type]

    def loss_of_scores(
        self, scores: Tensor, target: Tensor | SparseRows, ignore_index: int = -100, reduction: str = "mean"
    ) -> Tensor:
        """Compute the loss from scores, as :meth:`loss` without label smoothing does from states."""
        options = {"ignore_index": ignore_index, "reduction": reduction}
        if self.transform == "alpha_relu":
            return functional.alpha_relu_loss(scores, target, self.alpha, self.tau, **options)  # type: ignore[arg-type]
        return functional.entmax_loss(scores, target, self.alpha, **options)  # type: ignore[arg-type]

    def extra_repr(self) -> str:
        threshold = f", tau={self.tau:g}" if self.transform == "alpha_relu" else ""
        return f"transform={self.transform}, alpha={self.alpha:g}{threshold}"


def _without_ignored(hidden: Tensor, counted: Tensor) -> Tensor:
    """Set the states of ignored targets to 0: a NaN there would make the gradient of the weight NaN."""
    if counted.numel() * hidden.shape[-1] != hidden.numel():
        return hidden  # the loss rejects the shapes
    return torch.where(counted.reshape(hidden.shape[:-1]).unsqueeze(-1), hidden, 0)
