"""Convert PyTorch's attention masks to the masks of the kernels, and count visible keys."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tsallis.functional.rows import check_dense
from tsallis.ops.eager.attention import TILE, future_mask, length_mask
from tsallis.ops.transforms import traced, without_numbers


def convert_mask(mask: Tensor | None, batch: int, heads: int, queries: int, keys: int) -> Tensor | None:
    """Convert PyTorch's mask, where True hides a key, to the kernels' mask, where True shows the key."""
    if mask is None:
        return None
    check_dense(mask, "attn_mask")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(f"attn_mask must be boolean or floating point, got {mask.dtype}")
    shape = tuple(mask.shape)
    if mask.dim() == 4:
        if any(size not in (full, 1) for size, full in zip(shape, (batch, heads, queries, keys), strict=True)):
            raise ValueError(
                f"attn_mask must have shape ({batch} or 1, {heads} or 1, {queries} or 1, {keys} or 1), got {shape}"
            )
    elif shape not in ((queries, keys), (batch * heads, queries, keys)):
        raise ValueError(
            f"attn_mask must have shape {(queries, keys)} or {(batch * heads, queries, keys)}, got {shape}"
        )
    elif mask.dim() == 3:
        mask = mask.view(batch, heads, queries, keys)
    return ~mask if mask.dtype == torch.bool else mask


def split_padding(padding: Tensor | None, batch: int, keys: int, plain: bool) -> tuple[Tensor | None, Tensor | None]:
    """Convert padding to a mask [batch, 1, 1, keys], or to lengths if all padding is at the end."""
    if padding is None:
        return None, None
    padding = padding.unsqueeze(0) if padding.dim() == 1 else padding
    if padding.shape != (batch, keys):
        raise ValueError(f"key_padding_mask must have shape {(batch, keys)}, got {tuple(padding.shape)}")
    if padding.dtype != torch.bool and not padding.is_floating_point():
        raise TypeError(f"key_padding_mask must be boolean or floating point, got {padding.dtype}")
    # Reading a mask on a GPU would wait for the GPU.
    readable = plain and not (traced() or padding.is_cuda or without_numbers(padding))
    if padding.dtype != torch.bool:
        active = padding == 0
        if not readable or not torch.equal(active, padding != -torch.inf):
            return padding.view(batch, 1, 1, keys), None
    else:
        active = ~padding
    if readable:
        lengths = active.sum(1)
        if torch.equal(torch.arange(keys, device=active.device) < lengths.unsqueeze(1), active):
            return None, lengths
    return active.view(batch, 1, 1, keys), None


def split_lengths(lengths: Tensor, q: Tensor, keys: int, plain: bool) -> tuple[Tensor | None, Tensor | None]:
    """Return key lengths if skipping keys is faster; otherwise convert them to an additive mask [batch, 1, 1, keys]."""
    batch, heads, queries, _ = q.shape
    check_dense(lengths, "key_lengths")
    if lengths.shape != (batch,) or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise ValueError(
            f"key_lengths must be {batch} integers, one per batch element, got {lengths.dtype} of shape "
            f"{tuple(lengths.shape)}"
        )
    small = q.device.type == "cpu" and batch * heads * queries * keys <= TILE
    if plain and not small and not traced():
        return None, lengths
    if lengths.device.type == "cpu" and batch and not traced():
        least, most = (int(x) for x in lengths.aminmax())
        if not 0 <= least <= most <= keys:
            raise ValueError(
                f"key_lengths must be from 0 to the number of keys, {keys}, got {least if least < 0 else most}"
            )
        if least == keys:
            return None, None
    hidden = ~length_mask(lengths, keys, q.device).unsqueeze(1)
    return torch.zeros(hidden.shape, dtype=q.dtype, device=q.device).masked_fill_(hidden, -torch.inf), None


def active_queries(lengths: Tensor | None, padding: Tensor | None, queries: int, device: torch.device) -> Tensor | None:
    """Return a mask [batch or 1, 1, queries] of valid queries in self-attention, or None if all are valid."""
    if lengths is not None:
        return length_mask(lengths, queries, device)
    if padding is None:
        return None
    active = ~padding if padding.dtype == torch.bool else padding > -torch.inf
    return active.view(-1, 1, queries)


def combine_masks(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Combine two masks, each boolean (True: visible) or additive."""
    if first is None or second is None:
        return second if first is None else first
    if first.dtype == torch.bool and second.dtype == torch.bool:
        return first & second
    if first.dtype == torch.bool or second.dtype == torch.bool:
        active, bias = (first, second) if first.dtype == torch.bool else (second, first)
        return torch.where(active, bias, -torch.inf)
    return first + second


class VisibleKeys(NamedTuple):
    """Keys that each query may attend to, in the form that kernels read."""

    # Mask broadcastable to [batch, heads, queries, keys]: boolean (True: visible), or numbers added to the scores.
    mask: Tensor | None
    lengths: Tensor | None  # [batch]: number of valid keys
    causal: bool
    queries: int
    keys: int
    offset: int = 0  # position of the first query among the keys

    def count_keys(self, device: torch.device) -> Tensor:
        """Count the keys that each query may attend to, broadcastable to [batch, heads, queries]."""
        position = torch.arange(self.offset, self.offset + self.queries, device=device)
        if self.mask is None:
            ends = position.new_full((1,), self.keys) if self.lengths is None else self.lengths.to(device)
            ends = ends.view(-1, 1, 1)
            return torch.minimum(ends, position + 1) if self.causal else ends
        active = self.mask if self.mask.dtype == torch.bool else self.mask > -torch.inf
        active = active[(None,) * (4 - active.dim())]
        active = active.expand(*active.shape[:3], self.keys)
        if self.lengths is not None:
            active = active & length_mask(self.lengths, self.keys, device).unsqueeze(1)
        if self.causal and active.shape[2] == 1:
            return active.squeeze(2).cumsum(-1)[..., position.clamp(max=self.keys - 1)]
        if self.causal:
            active = active & ~future_mask(self.queries, self.keys, device, self.offset)
        return active.sum(-1)


def sum_support(support: Tensor, visible: Tensor, active: Tensor | None) -> Tensor:
    """Return three sums per head [3, heads]: attended keys, visible keys, and queries with a visible key.

    Args:
        support: number of keys with non-zero weight [batch, heads, queries].
        visible: number of visible keys, broadcastable to `support`.
        active: whether a query counts, broadcastable to `support`; None: all queries count.
    """
    support = support.double()
    visible = visible.to(support).expand_as(support)
    if active is not None:
        support, visible = support * active, visible * active
    return torch.stack([x.sum((0, 2)) for x in (support, visible, (visible > 0).double())])
