"""Define sparse distributions for `torch.distributions`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, constraints, kl_divergence, register_kl
from torch.distributions.utils import lazy_property

from tsallis import functional
from tsallis.functional.losses import check_classes
from tsallis.functional.maps import log_entmax
from tsallis.functional.rows import stored_alpha
from tsallis.ops.alphas import Alpha
from tsallis.ops.sparse_rows import row_numbers
from tsallis.ops.transforms import graph_outlives_values, savable, transforms_active, without_numbers

if TYPE_CHECKING:
    from tsallis.nn import OutputLayer

__all__ = ["EntmaxCategorical", "Support", "kl_divergence"]


class Support(constraints.Constraint):
    """Constraint that a value is a class with non-zero probability in its row.

    `check(value)` returns which values satisfy the constraint, as always in `torch.distributions`.

    Args:
        mask: Boolean mask [..., classes], True for classes with non-zero probability.

    Example:
        >>> import tsallis
        >>> support = tsallis.distributions.EntmaxCategorical(torch.tensor([2.0, 1.0, 0.1])).support
        >>> support.mask, support.check(torch.tensor([0, 2]))
        (tensor([ True,  True, False]), tensor([ True, False]))
    """

    is_discrete = True
    event_dim = 0

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask
        super().__init__()

    @property
    def size(self) -> Tensor:
        """Return the number of classes in the support [...]."""
        return self.mask.sum(-1)

    def check(self, value: Tensor) -> Tensor:
        classes = self.mask.shape[-1]
        is_integer = value == value.floor() if value.is_floating_point() else True
        in_range = (value >= 0) & (value < classes) & is_integer
        index, mask = _align(torch.where(in_range, value, 0).long(), self.mask)
        return in_range & mask.gather(-1, index).squeeze(-1)

    def __repr__(self) -> str:
        return f"Support(shape={tuple(self.mask.shape)})"


class EntmaxCategorical(Categorical):
    r"""Categorical distribution with alpha-entmax probabilities, which may be exactly zero.

    .. math:: P(k) = [(\alpha - 1) z_k - \tau]_+^{1/(\alpha-1)}

    (Peters et al. 2019, eq. 13.) The attribute `threshold` is :math:`\tau`; `indices` and `values` are the classes of
    the `support` and their probabilities. Train with :meth:`loss`, because log-probabilities may be -inf. Like any
    `Categorical`, this distribution can select the components of a `torch.distributions.MixtureSameFamily`.

    Args:
        scores: [..., classes], any floating dtype; -inf excludes a class.
        alpha: positive: a number, or a tensor broadcastable to the batch shape [...].
        validate_args: whether to check scores and values, as in `torch.distributions`.

    Raises:
        ValueError: scores with NaN or +inf or without a class, an alpha that is not positive and finite.

    Example:
        >>> d = EntmaxCategorical(torch.tensor([2.0, 1.0, 0.1, 0.0]))
        >>> d.probs
        tensor([0.8307, 0.1693, 0.0000, 0.0000])
        >>> d.indices, d.values
        (tensor([0, 1]), tensor([0.8307, 0.1693]))
        >>> d.log_prob(torch.tensor([0, 3]))
        tensor([-0.1855,    -inf])
    """

    arg_constraints = {"scores": constraints.independent(constraints.less_than(math.inf), 1)}  # noqa: RUF012 (torch's own convention)
    has_enumerate_support = True
    _classes: Tensor | None = None  # classes of the scores [..., width], padded with their number; None: all

    def __init__(self, scores: Tensor, alpha: Alpha = 1.5, validate_args: bool | None = None) -> None:
        check_classes(scores)
        self.scores = self._param = scores
        self._num_events = scores.shape[-1]
        self.alpha = _checked_alpha(alpha, scores.shape[:-1])
        # Skip Categorical.__init__, which would compute probabilities and drop the scores.
        # Skip the validation of an empty batch: PyTorch's constraints can't check one.
        Distribution.__init__(self, scores.shape[:-1], validate_args=validate_args if scores.numel() else False)

    @classmethod
    def from_linear(cls, layer: OutputLayer, hidden: Tensor) -> EntmaxCategorical:
        """Create the distribution of an output layer without computing all scores.

        The possible classes come from :meth:`tsallis.nn.OutputLayer.support`. The attribute `scores` then contains only
        their scores [..., width], in float32 and shifted so that the threshold is 0. The results equal those of
        `EntmaxCategorical(layer.scores(hidden), layer.alpha)`, but have no gradients, and :meth:`loss` is not defined.

        Args:
            layer: Output layer; its transform is not "alpha_relu".
            hidden: Hidden states [..., d_model].

        Raises:
            ValueError: `hidden` requires a gradient, is not finite, or the transform is "alpha_relu".

        Example:
            >>> layer = tsallis.nn.OutputLayer(8, 5000).requires_grad_(False)
            >>> hidden = 20 * torch.randn(3, 8)
            >>> d = EntmaxCategorical.from_linear(layer, hidden)
            >>> bool((d.log_prob(d.sample()) > -torch.inf).all())
            True
        """
        rows = layer.support(hidden)
        eps, probs = layer.alpha - 1, rows.probs.double()
        row = row_numbers(rows.offsets, len(probs))
        column = torch.arange(len(probs), device=row.device) - rows.offsets[row]
        width = max([1, *rows.offsets.diff().tolist()])
        scores = rows.probs.new_full((len(rows), width), -torch.inf)
        scores[row, column] = (probs**eps / eps if eps else probs.log()).float()
        classes = torch.full(scores.shape, layer.d_vocab, device=row.device)
        classes[row, column] = rows.indices.long()
        d = cls(scores.view(*hidden.shape[:-1], width), layer.alpha)
        d._classes = classes.view(d.scores.shape)
        d._num_events = layer.d_vocab
        d._param = scores.new_empty(1).expand(*d.batch_shape, layer.d_vocab)  # PyTorch reads its shape
        return d

    def _spread(self, x: Tensor, fill: float) -> Tensor:
        """Return values of the scores as values of all classes [..., classes]."""
        if self._classes is None:
            return x
        dense = x.new_full((*x.shape[:-1], self._num_events + 1), fill)  # the last column collects the padding
        return dense.scatter(-1, self._classes, x)[..., :-1]

    @property
    def _row_alpha(self) -> Alpha:
        return self.alpha.unsqueeze(-1) if isinstance(self.alpha, Tensor) else self.alpha

    @lazy_property
    def probs(self) -> Tensor:
        """Return the probabilities [..., classes]."""
        return self._spread(self._weights, 0)

    @lazy_property
    def _weights(self) -> Tensor:
        """Return the probabilities of the scores."""
        return functional.entmax(self.scores, self._row_alpha)

    @lazy_property
    def logits(self) -> Tensor:
        """Return log-probabilities [..., classes]; -inf outside the support."""
        return self._spread(self._log_probs.to(self.scores.dtype), -torch.inf)

    @lazy_property
    def _log_probs(self) -> Tensor:
        """Return log-probabilities of the scores in float64: probabilities may underflow."""
        return log_entmax(self.scores, self._row_alpha)

    @property
    def support(self) -> Support:
        """Return the classes with non-zero probability, even if the probability underflows to 0."""
        return Support(self._spread(self._log_probs.detach(), -torch.inf) > -torch.inf)

    @property
    def support_size(self) -> Tensor:
        """Return the number of classes in the support [...]."""
        return (self._log_probs > -torch.inf).sum(-1)

    @property
    def threshold(self) -> Tensor:
        r"""Return :math:`\tau` [...]; a class has non-zero probability if :math:`(\alpha - 1) z_k > \tau`."""
        eps = self.alpha - 1
        return eps * self.scores.amax(-1) - self._weights.amax(-1) ** eps

    @property
    def indices(self) -> Tensor:
        """Return the classes in the support [..., width], most probable first, padded with -1."""
        if self._classes is None:
            return self._order
        return self._classes.gather(-1, self._order.clamp(min=0)).masked_fill(self._order < 0, -1)

    @property
    def _is_traced(self) -> bool:
        """Return whether the scores can't be read, or a graph is recorded for other scores."""
        return transforms_active() or graph_outlives_values() or without_numbers(self.scores)

    @lazy_property
    def _order(self) -> Tensor:
        """Return the positions of `indices` among the scores."""
        if self._is_traced:
            raise RuntimeError(
                "indices and values can't be used in torch.func, in a recorded graph or on a meta tensor, "
                "because their width depends on the scores: use probs"
            )
        width = max(int(self.support_size.amax()), 1) if self.scores.numel() else 1
        values, order = self._log_probs.detach().topk(width, -1)
        return order.masked_fill(values == -torch.inf, -1)

    @property
    def values(self) -> Tensor:
        """Return the probabilities of `indices` [..., width], padded with 0."""
        return self._weights.gather(-1, self._order.clamp(min=0)).masked_fill(self._order < 0, 0)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return log-probabilities of values; outside the support they are -inf with zero gradients.

        Raises:
            ValueError: A value is not a class.
        """
        if self._validate_args:
            self._check_classes(value)
        if self._classes is not None:
            match = self._classes == value.long().unsqueeze(-1)
            return torch.where(match, self._log_probs.to(self.scores.dtype), -torch.inf).amax(-1)
        index, log_p = _align(value.long(), self.logits)
        return log_p.gather(-1, index).squeeze(-1)

    def _check_classes(self, value: Tensor) -> None:
        if not isinstance(value, Tensor):
            raise ValueError(f"value must be a tensor of classes, got {value!r}")
        valid = (value >= 0) & (value < self._num_events)  # False for NaN
        if value.is_floating_point():
            valid = valid & (value == value.floor())
        if not torch._is_all_true(valid):
            invalid = value[~valid][0].item()
            raise ValueError(f"value must contain classes from 0 to {self._num_events - 1}, got {invalid:g}")
        try:
            torch.broadcast_shapes(value.shape, self.batch_shape)
        except RuntimeError as error:
            shapes = f"{tuple(self.batch_shape)}, got {tuple(value.shape)}"
            raise ValueError(f"value must have a shape that can be broadcast with the batch shape {shapes}") from error

    def loss(self, value: Tensor) -> Tensor:
        """Return the :func:`tsallis.entmax_loss` of values, which is finite outside the support too.

        Raises:
            ValueError: A value is not a class, or the distribution was made by `from_linear`.
        """
        if self._validate_args:
            self._check_classes(value)
        if self._classes is not None:
            raise ValueError(
                "loss needs all scores, and from_linear computes few: call OutputLayer.loss(hidden, value)"
            )
        index, scores = _align(value.long(), self.scores)
        alpha = self.alpha.unsqueeze(-1).expand(*scores.shape[:-1], 1) if isinstance(self.alpha, Tensor) else self.alpha
        return functional.entmax_loss(scores, index.squeeze(-1), alpha, reduction="none")

    def sample(self, sample_shape: Any = (), generator: torch.Generator | None = None) -> Tensor:
        """Draw classes [*sample_shape, ...] from the support.

        Args:
            sample_shape: Shape of the draws of each row.
            generator: Random number generator; None: PyTorch's default.

        Raises:
            ValueError: A row has no support: all its classes are excluded, or scores are NaN or infinite.
        """
        with torch.no_grad():  # a decorator can't be compiled
            if torch.compiler.is_compiling() or self._is_traced:
                return self._sample_traced(sample_shape, generator)
            return self._sample_support(sample_shape, generator)

    def _sample_support(self, sample_shape: Any, generator: torch.Generator | None) -> Tensor:
        """Draw among the classes of the support only."""
        if bool((self.support_size == 0).any()):
            if bool(self._weights.isnan().any()):
                raise ValueError("can't sample: the scores of a row contain NaN or infinity")
            raise ValueError("can't sample: all scores of a row are -inf")
        shape = self._extended_shape(sample_shape)
        width = self.indices.shape[-1]
        count = torch.Size(sample_shape).numel()
        cumulative = self.values.double().cumsum(-1).reshape(-1, width)  # [rows, width]
        device = self.scores.device
        draws = torch.rand(len(cumulative), count, dtype=torch.float64, device=device, generator=generator)
        slot = torch.searchsorted(cumulative, draws * cumulative[:, -1:], right=True)  # [rows, count]
        # A draw times the sum may round up to the sum: limit the slot to the last class with probability above 0.
        slot = slot.minimum((cumulative < cumulative[:, -1:]).sum(-1, keepdim=True))
        return self.indices.reshape(-1, width).gather(-1, slot).T.reshape(shape)

    def _sample_traced(self, sample_shape: Any, generator: torch.Generator | None) -> Tensor:
        """Draw where shapes can't depend on the scores and rows can't be checked."""
        cumulative = self.probs.double().cumsum(-1)
        total = cumulative[..., -1]
        # Use expand, because torch.jit.trace would store the batch shape as numbers.
        draws = torch.empty_like(
            total.expand((*sample_shape, *(-1,) * total.dim())), memory_format=torch.contiguous_format
        )
        drawn = (cumulative <= (draws.uniform_(generator=generator) * total).unsqueeze(-1)).sum(-1)
        classes = torch.arange(self._num_events, device=self.scores.device)
        last = torch.where(self.probs > 0, classes, 0).amax(-1)
        # A draw times the sum may round up to the sum: limit the class to the last class with probability above 0.
        return torch.minimum(drawn, last)

    def entropy(self) -> Tensor:
        """Return the Shannon entropy in nats [...]."""
        log_p = self._log_probs
        return -(log_p.exp() * log_p.masked_fill(log_p == -torch.inf, 0)).sum(-1).to(self.scores.dtype)

    def tsallis_entropy(self) -> Tensor:
        """Return the Tsallis entropy [...], see :func:`tsallis.tsallis_entropy`."""
        return functional.tsallis_entropy(self._weights, self._row_alpha)

    def expand(self, batch_shape: Any, _instance: EntmaxCategorical | None = None) -> EntmaxCategorical:
        new: EntmaxCategorical = self._get_checked_instance(EntmaxCategorical, _instance)
        shape = torch.Size(batch_shape)
        new._num_events = self._num_events
        for name in ("scores", "_param", "_classes", "probs", "logits", "_weights", "_log_probs", "_order"):
            if (tensor := self.__dict__.get(name)) is not None:
                new.__dict__[name] = tensor.expand(*shape, tensor.shape[-1])
        new.alpha = self.alpha.expand(shape) if isinstance(self.alpha, Tensor) else self.alpha
        Distribution.__init__(new, shape, validate_args=False)
        new._validate_args = self._validate_args
        return new


def _checked_alpha(alpha: Alpha, shape: torch.Size) -> Alpha:
    alpha = stored_alpha(alpha, positive=True)
    if not isinstance(alpha, Tensor):
        return alpha
    try:
        return savable(alpha).expand(shape)
    except RuntimeError as error:
        hint = "; remove the dimension of classes with alpha.squeeze(-1)" if alpha.shape[:-1] == shape else ""
        raise ValueError(
            f"alpha of shape {tuple(alpha.shape)} can't be broadcast to the batch shape {tuple(shape)}{hint}"
        ) from error


def _align(value: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Expand values [...] and rows [..., classes] to one batch shape; return values as [..., 1]."""
    shape = torch.broadcast_shapes(value.shape, rows.shape[:-1])
    return savable(value).expand(shape).unsqueeze(-1), rows.expand(*shape, rows.shape[-1])


@register_kl(EntmaxCategorical, EntmaxCategorical)  # type: ignore[untyped-decorator]
@register_kl(EntmaxCategorical, Categorical)  # type: ignore[untyped-decorator]
@register_kl(Categorical, EntmaxCategorical)  # type: ignore[untyped-decorator]
def _kl(p: EntmaxCategorical | Categorical, q: EntmaxCategorical | Categorical) -> Tensor:
    """Return the Kullback-Leibler divergence; it is infinite if q is zero where p is not."""
    if p._num_events != q._num_events:
        raise ValueError(f"distributions must have the same number of classes, got {p._num_events} and {q._num_events}")
    log_p, log_q = _logarithms(p), _logarithms(q)
    inside = log_p > -torch.inf
    difference = torch.where(inside, log_p, 0) - torch.where(inside, log_q, 0)
    divergence = (torch.where(inside, log_p, 0).exp() * difference).masked_fill(~inside, 0).sum(-1)
    return divergence.to(torch.promote_types(p.logits.dtype, q.logits.dtype))


def _logarithms(d: EntmaxCategorical | Categorical) -> Tensor:
    """Return log-probabilities in float64."""
    if isinstance(d, EntmaxCategorical):
        return d._spread(d._log_probs, -torch.inf)
    logits = d.logits.double()
    # Correct the logits of a Categorical made from probabilities: PyTorch replaces zeros by a small number.
    return logits.masked_fill((d.probs == 0) & (d.logits.exp() > 0), -torch.inf)
