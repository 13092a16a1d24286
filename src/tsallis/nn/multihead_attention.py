"""Define multi-head attention with a fixed or learned alpha per head."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tsallis.errors import check_integer, check_real
from tsallis.functional.attention import KeyStore, attend, count_support
from tsallis.functional.rows import check_dense, check_flag, stored_alpha
from tsallis.nn.alpha import PerHeadAlpha, keep_precision, whole
from tsallis.nn.attention_masks import (
    VisibleKeys,
    active_queries,
    combine_masks,
    convert_mask,
    split_lengths,
    split_padding,
    sum_support,
)
from tsallis.nn.kv_cache import Cache
from tsallis.nn.length_scale import LengthScale, LengthScaleKind
from tsallis.nn.positions import AttentionPositions, RotaryPositions, check_positions, head_slopes
from tsallis.ops.constants import ConstantBuffers
from tsallis.ops.transforms import traced

Alpha = float | Tensor | Literal["learned"]


class AttentionStats(NamedTuple):
    """Sparsity of a forward pass per head.

    Args:
        density: Share of the visible keys with non-zero weight [heads].
        support: Mean number of keys with non-zero weight [heads].
        alpha: Alpha [heads].

    Example:
        >>> attention = MultiheadAttention(8, 2, batch_first=True, alpha=1.0)
        >>> x = torch.randn(3, 5, 8)
        >>> _ = attention(x, x, x)
        >>> attention.stats()
        AttentionStats(density=tensor([1., 1.]), support=tensor([5., 5.]), alpha=tensor([1., 1.]))
    """

    density: Tensor
    support: Tensor
    alpha: Tensor


class _PassRecord(NamedTuple):
    """Data of a forward pass for statistics."""

    support: Tensor  # number of attended keys per query [batch, heads, queries]
    visible: VisibleKeys
    alpha: float | Tensor  # one alpha for all heads, or [heads]
    query_lengths: Tensor | None  # [batch]: number of valid queries in self-attention
    query_padding: Tensor | None  # [batch, queries] or [queries]: which queries are padding, in place of lengths


class MultiheadAttention(ConstantBuffers):
    r"""`torch.nn.MultiheadAttention` with sparse weights and an alpha for each head.

    .. math:: \mathrm{head}_h = \mathrm{entmax}_{\alpha_h}\big(Q_h K_h^\top / \sqrt{d}\big) V_h

    (Correia et al. 2019, eq. 8). It replaces PyTorch's module: arguments, parameter names, shapes and masks are the
    same, and state dicts can be loaded unless `alpha` is a tensor, or `length_scale` or `num_kv_heads` is set. As in
    PyTorch, True in a boolean mask hides a key. A query without a visible key returns the output's bias, where PyTorch
    returns NaN. Weights are computed and returned only with `need_weights`; they do not include dropout. The keys that
    `add_bias_kv` and `add_zero_attn` add are always visible.

    Args:
        embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn: as in `torch.nn.MultiheadAttention`.
        kdim, vdim, batch_first, device, dtype: as in `torch.nn.MultiheadAttention`.
        alpha: at least 1: a number, "learned" (a :class:`PerHeadAlpha`), a fixed tensor or a parameter [heads], or a
            module whose `forward()` returns a tensor [heads], or [1] for all heads. Alphas stay in float32 if the model
            is cast to half precision. "learned" keeps them in range; an optimizer may move a parameter below 1.
        positions: position information for self-attention: "none"; "rope" rotates queries and keys (Su et al. 2021);
            "alibi" subtracts the distance times a slope per head from the scores (Press et al. 2022); "nape" subtracts
            it only in half of the heads (Vasylenko et al. 2026).
        num_kv_heads: number of key and value heads, each shared by neighbouring query heads (Ainslie et al. 2023);
            None: `num_heads`.
        length_scale: kind of :class:`LengthScale`, or such a module: scale the scores by the number of visible keys.
            With "nape", only heads without a slope are scaled.

    Raises:
        ValueError: sizes that don't match, a bad alpha or dropout, unknown `positions` or `length_scale`.
        TypeError: alphas in a list.

    Example:
        >>> attention = MultiheadAttention(8, 2, batch_first=True, alpha="learned")
        >>> x = torch.randn(3, 5, 8)
        >>> out, weights = attention(x, x, x, need_weights=True)
        >>> out.shape, weights.shape
        (torch.Size([3, 5, 8]), torch.Size([3, 5, 5]))
        >>> attention.stats().density.shape
        torch.Size([2])
    """

    _qkv_same_embed_dim = False  # prevents PyTorch's layers from computing softmax attention instead
    alpha: float | Tensor | nn.Module
    in_proj_weight: Tensor | None
    q_proj_weight: Tensor
    k_proj_weight: Tensor
    v_proj_weight: Tensor
    in_proj_bias: Tensor | None
    bias_k: Tensor | None
    bias_v: Tensor | None
    slopes: Tensor | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        alpha: Alpha | nn.Module = 1.5,
        positions: AttentionPositions = "none",
        length_scale: LengthScaleKind | LengthScale | None = None,
        num_kv_heads: int | None = None,
    ) -> None:
        super().__init__()
        embed_dim, num_heads = check_integer("embed_dim", embed_dim, 1), check_integer("num_heads", num_heads, 1)
        if embed_dim % num_heads:
            raise ValueError(f"embed_dim must be a multiple of num_heads, got {embed_dim} and {num_heads}")
        kv_heads = num_heads if num_kv_heads is None else check_integer("num_kv_heads", num_kv_heads, 1)
        if num_heads % kv_heads:
            raise ValueError(f"num_heads must be a multiple of num_kv_heads, got {num_heads} and {kv_heads}")
        factory_kwargs: dict[str, Any] = {"device": device, "dtype": dtype}
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.num_kv_heads, kv_dim = kv_heads, kv_heads * self.head_dim
        self.kdim = embed_dim if kdim is None else check_integer("kdim", kdim, 1)
        self.vdim = embed_dim if vdim is None else check_integer("vdim", vdim, 1)
        self.dropout = check_real("dropout", dropout, 0, 1)
        self.batch_first, self.add_zero_attn = batch_first, add_zero_attn
        self._sizes = (embed_dim, kv_dim, kv_dim)  # sizes of the projected queries, keys and values
        inputs = {"q_proj_weight": embed_dim, "k_proj_weight": self.kdim, "v_proj_weight": self.vdim}
        packed = self.kdim == self.vdim == embed_dim
        weight = nn.Parameter(torch.empty(sum(self._sizes), embed_dim, **factory_kwargs)) if packed else None
        self.register_parameter("in_proj_weight", weight)
        for (name, size), projected_size in zip(inputs.items(), self._sizes, strict=True):
            projection_weight = None if packed else nn.Parameter(torch.empty(projected_size, size, **factory_kwargs))
            self.register_parameter(name, projection_weight)
        self.register_parameter(
            "in_proj_bias", nn.Parameter(torch.empty(sum(self._sizes), **factory_kwargs)) if bias else None
        )
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, **factory_kwargs)
        for name in ("bias_k", "bias_v"):
            extra = nn.Parameter(torch.empty(1, 1, kv_dim, **factory_kwargs)) if add_bias_kv else None
            self.register_parameter(name, extra)
        self._assign_alpha(alpha, device, dtype)
        self._set_positions(positions, length_scale, factory_kwargs)
        self._last: _PassRecord | None = None
        self._reset_parameters()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the record of the last pass, which can be large."""
        return {**self.__dict__, "_last": None}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> MultiheadAttention:
        super()._apply(keep_precision(fn, self.alpha), recurse)
        return self

    def set_alpha(self, alpha: Alpha | nn.Module) -> None:
        """Set another alpha; a learned alpha is discarded.

        Args:
            alpha: as in the constructor.

        Raises:
            ValueError: a bad alpha; the old one is kept.

        Example:
            >>> attention = MultiheadAttention(8, 2, alpha="learned")
            >>> attention.set_alpha(2.0)
            >>> attention.alphas(), [name for name, _ in attention.named_parameters() if "alpha" in name]
            (tensor([2., 2.]), [])
        """
        weight = next(self.parameters())  # not `out_proj.weight`: a quantized `out_proj` has no parameters
        self._assign_alpha(alpha, weight.device, weight.dtype)

    def _assign_alpha(self, alpha: Alpha | nn.Module, device: Any, dtype: torch.dtype | None) -> None:
        if isinstance(alpha, str):
            if alpha != "learned":
                raise ValueError(f"alpha must be a number, 'learned', a tensor or a module, got {alpha!r}")
            half = dtype is not None and dtype.itemsize < 4  # rounding would cancel small optimizer steps
            alpha = PerHeadAlpha(self.num_heads, device=device, dtype=torch.float32 if half else dtype)
        elif not isinstance(alpha, nn.Module):
            if isinstance(alpha, Tensor) and alpha.shape != (self.num_heads,):
                raise ValueError(f"alpha must have shape ({self.num_heads},), one per head, got {tuple(alpha.shape)}")
            if isinstance(alpha, Tensor) and alpha.requires_grad and not isinstance(alpha, nn.Parameter):
                raise ValueError("alpha must be an nn.Parameter to be learned, got a tensor that requires a gradient")
            alpha = stored_alpha(alpha)
        for registry in (self.__dict__, self._parameters, self._buffers, self._modules):
            registry.pop("alpha", None)
        if isinstance(alpha, Tensor) and not isinstance(alpha, nn.Parameter):
            self.register_buffer("alpha", alpha.to(device=device))
        else:
            self.alpha = alpha

    def _set_positions(
        self,
        positions: AttentionPositions,
        length_scale: LengthScaleKind | LengthScale | None,
        factory_kwargs: dict[str, Any],
    ) -> None:
        check_positions(positions)
        if positions != "none" and (self.bias_k is not None or self.add_zero_attn):
            raise ValueError(f"positions must be 'none' with add_bias_kv or add_zero_attn, got {positions!r}")
        self.positions: AttentionPositions = positions
        self.rotary = RotaryPositions(self.head_dim) if positions == "rope" else None
        self.register_constant("slopes", head_slopes(positions, self.num_heads), self.out_proj.weight.device)
        if length_scale is not None and not isinstance(length_scale, nn.Module):
            length_scale = LengthScale(self.embed_dim, self.num_heads, length_scale, **factory_kwargs)
        self.length_scale = length_scale

    def _reset_parameters(self) -> None:
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                nn.init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)
        for extra in (self.bias_k, self.bias_v):
            if extra is not None:
                nn.init.xavier_normal_(extra)

    def alphas(self) -> Tensor:
        """Return the alpha of each head [heads]. If they are sharded (FSDP2), all processes must call this method."""
        return whole(self._expand_alpha(self._alpha()))

    def _alpha(self) -> float | Tensor:
        alpha: float | Tensor = self.alpha() if isinstance(self.alpha, nn.Module) else self.alpha
        return alpha

    def _expand_alpha(self, alpha: float | Tensor) -> Tensor:
        return alpha.expand(self.num_heads) if isinstance(alpha, Tensor) else torch.full((self.num_heads,), alpha)

    def keys_and_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Project a memory [batch, keys, size], batch first, to keys and values [batch, key heads, keys, size]."""
        _, weight_k, weight_v = self._weights()
        _, bias_k, bias_v = self._biases()
        projections = (F.linear(memory, weight_k, bias_k), F.linear(memory, weight_v, bias_v))
        k, v = (x.unflatten(-1, (self.num_kv_heads, self.head_dim)).transpose(1, 2) for x in projections)
        return k, v

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        cache: Cache | None = None,
        key_lengths: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute attention; return the output, and the weights or None.

        Args:
            query, key, value: [length, batch, size], [batch, length, size] with `batch_first`, or [length, size].
            key_padding_mask: [batch, keys] or [keys]: True (or -inf) where a key is padding.
            need_weights: also return the weights, which must then be stored.
            attn_mask: [queries, keys] or [batch * heads, queries, keys], or [batch, heads, queries, keys] with
                size 1 to broadcast: True hides a key; numbers are added to the scores.
            average_attn_weights: return the mean of the weights over the heads [batch, queries, keys].
            is_causal: hide later keys; needs no mask. With a cache, the last key has the position of the last query.
            cache: keys and values of earlier steps. `key` and `value` are appended to the cache if `key` is given.
            key_lengths: number of valid keys [batch], instead of a `key_padding_mask`. The other keys must be finite;
                they are skipped or masked.

        Returns:
            Output of the shape of `query`, with the size `embed_dim`, and the weights or None.

        Raises:
            ValueError: shapes that don't match, arguments that exclude each other.
            TypeError: a mask that is neither boolean nor floating point.
        """
        self._check_inputs(query, key, value, cache, key_lengths, key_padding_mask, is_causal)
        q, k, v = self._queries_keys_values(query, key, value, cache)
        visible = self._visible_keys(q, k, attn_mask, key_padding_mask, key_lengths, is_causal, cache is not None)
        if not self._has_no_extra_keys:
            k, v, visible = self._append_extra_keys(k, v, visible)
        alpha = self._alpha()
        keys: Tensor | KeyStore = cache if isinstance(cache, KeyStore) and self._has_no_extra_keys else k
        result = attend(
            self._scale(q, query, visible),
            keys,
            v if keys is k else None,
            alpha,
            attn_mask=visible.mask,
            key_lengths=visible.lengths,
            is_causal=visible.causal,
            dropout_p=self.dropout if self.training else 0.0,
            enable_gqa=self.num_kv_heads != self.num_heads,
            need_weights=need_weights,
            slopes=self.slopes,
            query_offset=visible.offset,
            key_norms=None if cache is None or self.slopes is None else cache.key_norms,
        )
        query_masks = (key_lengths, key_padding_mask) if key is query and cache is None else (None, None)
        self._keep_record(result.support, visible, alpha, *query_masks)
        return self._project_output(query, result.output, result.weights, average_attn_weights)

    def _keep_record(
        self,
        support: Tensor,
        visible: VisibleKeys,
        alpha: float | Tensor,
        query_lengths: Tensor | None,
        query_padding: Tensor | None,
    ) -> None:
        """Record this pass for :meth:`stats`; under a tracer, discard the last record."""
        if not traced():
            if isinstance(alpha, Tensor):
                alpha = alpha.detach().clone()  # an optimizer changes parameters in place
            mask = None if visible.mask is None else visible.mask.detach()
            support = count_support(support)  # weights of every layer would stay in memory
            self._last = _PassRecord(support, visible._replace(mask=mask), alpha, query_lengths, query_padding)
        elif self._last is not None:
            self._last = None

    def _project_output(
        self, query: Tensor, context: Tensor, weights: Tensor | None, average: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Project contexts [batch, heads, queries, size]; return output and weights in the query's layout."""
        weights = weights.mean(1) if weights is not None and average else weights
        out = self.out_proj(context.transpose(1, 2).flatten(2))  # [batch, queries, size]
        if query.dim() == 2:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return out if self.batch_first else out.transpose(0, 1), weights

    def _check_inputs(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        cache: Cache | None,
        key_lengths: Tensor | None,
        key_padding_mask: Tensor | None,
        is_causal: bool,
    ) -> None:
        if query.is_nested:
            raise ValueError("query must not be a nested tensor: pad it and pass key_padding_mask")
        if query.dim() not in (2, 3):
            raise ValueError(f"query must have 2 or 3 dimensions, got shape {tuple(query.shape)}")
        if (key is None) != (value is None) or (key is None and cache is None):
            arguments = " and ".join(
                f"{name} {'None' if x is None else 'given'}" for name, x in (("key", key), ("value", value))
            )
            raise ValueError(f"key and value must both be given, or both be None with a cache, got {arguments}")
        if key is not None and value is not None and not query.dim() == key.dim() == value.dim():
            raise ValueError(
                "query, key and value must all have a batch, or none of them, got shapes "
                f"{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
            )
        if query.shape[-1] != self.embed_dim:
            raise ValueError(f"query must have last size {self.embed_dim}, got {query.shape[-1]}")
        for name, x, size in (("key", key, self.kdim), ("value", value, self.vdim)):
            if x is not None and x.shape[-1] != size:
                raise ValueError(f"{name} must have last size {size}, got {x.shape[-1]}")
        if key_lengths is not None and key_padding_mask is not None:
            raise ValueError("use either key_lengths or key_padding_mask, not both")
        if key_padding_mask is not None:
            check_dense(key_padding_mask, "key_padding_mask")
            if key_padding_mask.dim() != query.dim() - 1:
                expected = "[keys] without a batch" if query.dim() == 2 else "[batch, keys]"
                raise ValueError(f"key_padding_mask must have shape {expected}, got {tuple(key_padding_mask.shape)}")
        check_flag("is_causal", is_causal)

    @property
    def _has_no_extra_keys(self) -> bool:
        """Return whether this module adds no extra keys. Extra keys are visible regardless of lengths and order."""
        return self.bias_k is None and not self.add_zero_attn

    def _queries_keys_values(
        self, query: Tensor, key: Tensor | None, value: Tensor | None, cache: Cache | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Project the inputs to heads, rotate them by position, and combine keys and values with a cache."""
        q, k, v = self._project(query, key, value)
        if self.rotary is not None:
            if k is None:
                raise ValueError("key and value must be given with positions='rope', got None")
            first = 0 if cache is None else cache.position
            q, k = self.rotary(q, first), self.rotary(k, first)
        if k is None or v is None:
            assert cache is not None
            return q, *cache.read()
        return (q, k, v) if cache is None else (q, *cache.append(k, v))

    def _visible_keys(
        self,
        q: Tensor,
        k: Tensor,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        key_lengths: Tensor | None,
        is_causal: bool,
        cached: bool,
    ) -> VisibleKeys:
        """Convert PyTorch's masks, padding and causal order to the form that kernels read."""
        queries, keys, plain = q.shape[2], k.shape[2], self._has_no_extra_keys
        past = keys - queries if cached else 0  # negative if queries and keys are different sequences
        if key_lengths is not None:
            padding, lengths = split_lengths(key_lengths, q, keys, plain)
        else:
            padding, lengths = split_padding(key_padding_mask, k.shape[0], keys, plain)
        causal = is_causal and plain and past >= 0 and (queries > 1 or not past)
        mask = combine_masks(convert_mask(attn_mask, q.shape[0], self.num_heads, queries, keys), padding)
        if is_causal and not causal and (queries > 1 or not plain):
            mask = combine_masks(mask, torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(past))
        return VisibleKeys(mask, lengths, causal, queries, keys, max(past, 0))

    def stats(self) -> AttentionStats:
        """Return the sparsity of the last forward pass, without computing weights.

        In self-attention, padding queries are skipped.

        Raises:
            RuntimeError: There was no forward pass yet, or it was compiled.
        """
        attended, visible, queries = self.count_attended()
        density, mean = (attended / visible.clamp(min=1)).float(), (attended / queries.clamp(min=1)).float()
        return AttentionStats(density, mean, self._expand_alpha(self._last_pass().alpha))

    def count_attended(self, active: Tensor | None = None) -> Tensor:
        """Return sums over the queries of the last pass [3, heads]: attended keys, visible keys, number of queries.

        Args:
            active: Mask of the queries that count [batch, queries]. Padding queries of self-attention never count.

        Raises:
            RuntimeError: There was no forward pass yet, or it was compiled.
        """
        last = self._last_pass()
        support = last.support
        visible = last.visible.count_keys(support.device)
        valid = active_queries(last.query_lengths, last.query_padding, last.visible.queries, support.device)
        if active is not None:
            valid = active.unsqueeze(1) if valid is None else active.unsqueeze(1) & valid
        return sum_support(support, visible, valid)

    @torch.no_grad()
    def scale_scores(self, factor: float) -> None:
        """Multiply the scores of queries and keys by a factor, by scaling the projection of the queries.

        Biases of the scores, such as slopes and additive masks, keep their values.

        Args:
            factor: Positive number; above 1, the weights become sparser.

        Raises:
            ValueError: The factor is not positive and finite.

        Example:
            >>> attention, x = MultiheadAttention(8, 2, batch_first=True), torch.randn(3, 50, 8)
            >>> before = attention(x, x, x) and attention.stats().support
            >>> attention.scale_scores(4.0)
            >>> after = attention(x, x, x) and attention.stats().support
            >>> (after < before).tolist()
            [True, True]
        """
        if not 0 < factor < math.inf:
            raise ValueError(f"factor must be positive and finite, got {factor}")
        for parameter in (self._weights()[0], self._biases()[0]):
            if parameter is not None:
                parameter.mul_(factor)

    @property
    def recorded(self) -> bool:
        """Return whether a forward pass is recorded."""
        return self._last is not None

    def support(self) -> Tensor:
        """Return the number of keys with non-zero weight in the last pass [batch, heads, queries].

        Raises:
            RuntimeError: There was no forward pass yet, or it was compiled.
        """
        return self._last_pass().support

    def _last_pass(self) -> _PassRecord:
        if self._last is None:
            raise RuntimeError(
                "no attention weights are recorded. Call the model first. If it is compiled, call it in "
                "'with torch.compiler.set_stance(\"force_eager\")'."
            )
        return self._last

    def _weights(self) -> tuple[Tensor, ...]:
        if self.in_proj_weight is None:
            return self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        parts: tuple[Tensor, ...] = self.in_proj_weight.split(self._sizes)
        return parts

    def _biases(self) -> tuple[Tensor | None, ...]:
        return self.in_proj_bias.split(self._sizes) if self.in_proj_bias is not None else (None, None, None)

    def _project(
        self, query: Tensor, key: Tensor | None, value: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Project the inputs to heads [batch, heads or key heads, length, head size]."""
        if self.in_proj_weight is not None and key is query and value is query:
            q, k, v = F.linear(query, self.in_proj_weight, self.in_proj_bias).split(self._sizes, -1)
            return (
                self._split_heads(q),
                self._split_heads(k, self.num_kv_heads),
                self._split_heads(v, self.num_kv_heads),
            )
        weights, biases = self._weights(), self._biases()
        q = self._split_heads(F.linear(query, weights[0], biases[0]))
        if key is None or value is None:
            return q, None, None
        k, v = F.linear(key, weights[1], biases[1]), F.linear(value, weights[2], biases[2])
        return q, self._split_heads(k, self.num_kv_heads), self._split_heads(v, self.num_kv_heads)

    def _split_heads(self, x: Tensor, count: int | None = None) -> Tensor:
        x = self._batch_first(x)
        # Do not use `unflatten`: the tracing ONNX exporter would lose the dynamic batch size.
        return x.reshape(x.shape[0], x.shape[1], count or self.num_heads, self.head_dim).transpose(1, 2)

    def _batch_first(self, x: Tensor) -> Tensor:
        if x.dim() == 2:
            return x.unsqueeze(0)
        return x if self.batch_first else x.transpose(0, 1)

    def _scale(self, q: Tensor, query: Tensor, visible: VisibleKeys) -> Tensor:
        """Scale each query [batch, heads, queries, head size] according to its number of visible keys."""
        if self.length_scale is None:
            return q
        factor: Tensor = self.length_scale(self._batch_first(query), visible.count_keys(q.device))
        if self.positions == "nape" and self.slopes is not None:
            factor = torch.where((self.slopes == 0).view(-1, 1, 1), factor, 1)
        scaled: Tensor = q * factor.to(q.dtype)
        return scaled

    def _append_extra_keys(self, k: Tensor, v: Tensor, visible: VisibleKeys) -> tuple[Tensor, Tensor, VisibleKeys]:
        """Append the learned key and the zero key, if this module has them."""
        batch, num_extra, mask = k.shape[0], 0, visible.mask
        if self.bias_k is not None and self.bias_v is not None:
            biases = [x.view(1, self.num_kv_heads, 1, -1).expand(batch, -1, -1, -1) for x in (self.bias_k, self.bias_v)]
            k, v = (torch.cat([x, bias.to(x.dtype)], 2) for x, bias in zip((k, v), biases, strict=True))
            num_extra += 1
        if self.add_zero_attn:
            k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
            num_extra += 1
        if mask is not None:
            if mask.shape[-1] == 1:
                mask = mask.expand(*mask.shape[:-1], k.shape[2] - num_extra)
            mask = F.pad(mask, (0, num_extra), value=mask.dtype == torch.bool)
        return k, v, visible._replace(mask=mask, keys=k.shape[2])

    def extra_repr(self) -> str:
        alpha = self.alpha
        suffix = f", alpha={alpha:g}" if isinstance(alpha, float) else ""
        suffix += f", num_kv_heads={self.num_kv_heads}" if self.num_kv_heads != self.num_heads else ""
        return f"{self.embed_dim}, {self.num_heads}, dropout={self.dropout:g}{suffix}"


def attention_stats(module: nn.Module) -> dict[str, AttentionStats]:
    """Return the sparsity of the last pass for every :class:`MultiheadAttention` in a module, by name.

    Args:
        module: module that contains attentions.

    Returns:
        Statistics by name. Attentions that have not run, or whose last pass was compiled, are left out. The function
        warns if no attention is left.

    Raises:
        ValueError: a module without a :class:`MultiheadAttention`.

    Example:
        >>> layer = nn.ModuleDict({"attention": MultiheadAttention(8, 2, alpha=1.0)})
        >>> _ = layer["attention"](*[torch.randn(5, 3, 8)] * 3)
        >>> attention_stats(layer)["attention"].density
        tensor([1., 1.])
    """
    parts = {name: part for name, part in module.named_modules() if isinstance(part, MultiheadAttention)}
    kind = type(module).__name__
    if not parts:
        raise ValueError(f"{kind} has no tsallis.nn.MultiheadAttention: call sparsify_module first")
    stats = {name: part.stats() for name, part in parts.items() if part.recorded}
    if not stats:
        message = f"no attention of {kind} has run: call the model first, without torch.compile"
        warnings.warn(message, stacklevel=2)
    return stats
