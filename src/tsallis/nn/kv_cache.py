"""Store keys and values of earlier steps, for decoding."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from tsallis.functional.attention import KeyStore
from tsallis.functional.rows import check_floating
from tsallis.ops.dtypes import upcast
from tsallis.ops.transforms import writable


class Cache(Protocol):
    """Interface of a cache for attention; :class:`KeyValueCache` implements it."""

    @property
    def position(self) -> int | Tensor:
        """Return the position of the next step, or positions [batch] if they differ."""
        ...

    @property
    def key_norms(self) -> Tensor | None:
        """Return the largest norm of each head's keys [batch, heads], or None if unknown."""
        ...

    def read(self) -> tuple[Tensor, Tensor]:
        """Return keys and values [batch, heads, length, size]."""
        ...

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add steps and return all keys and values."""
        ...


class KeyValueCache:
    """Cache of keys and values for decoding with :class:`tsallis.nn.MultiheadAttention`.

    The storage doubles when it is full. The tensors passed to it are copied. Attention without a `key` argument reads
    only the cache, so that the encoder's output is projected once.

    Example:
        >>> from tsallis.nn import MultiheadAttention
        >>> attention, cache = MultiheadAttention(8, 2, batch_first=True), KeyValueCache()
        >>> with torch.no_grad():
        ...     for step in torch.randn(5, 1, 1, 8):
        ...         out, _ = attention(step, step, step, cache=cache, need_weights=False)
        >>> len(cache)
        5
    """

    def __init__(self) -> None:
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self._length = 0
        self._saved = False  # whether autograd may have saved what `read` returned
        self._norms: Tensor | None = None  # largest norm per head of the first `_measured` keys
        self._measured = 0  # number of keys that `_norms` includes

    def __len__(self) -> int:
        """Return the number of stored steps."""
        return self._length

    @property
    def position(self) -> int:
        """Return the position of the next step."""
        return self._length

    @property
    def key_norms(self) -> Tensor | None:
        """Return the largest norm of each head's keys [batch, heads], or None if the cache is empty."""
        if self._keys is not None and self._measured < self._length:
            new = self._keys.detach()[:, :, self._measured : self._length]
            dtype = torch.promote_types(new.dtype, torch.float32)
            norms = torch.linalg.vector_norm(new, dim=-1, dtype=dtype).amax(-1)
            self._norms = norms if self._norms is None else torch.maximum(self._norms, norms)
            self._measured = self._length
        return self._norms

    def read(self) -> tuple[Tensor, Tensor]:
        """Return keys and values [batch, heads, length, size].

        Raises:
            ValueError: The cache is empty.
        """
        if self._keys is None or self._values is None:
            raise ValueError("the cache is empty: pass a key and a value in the first call")
        self._saved = self._saved or torch.is_grad_enabled()
        return self._keys[:, :, : self._length], self._values[:, :, : self._length]

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add steps, and return the keys and values of all steps.

        Args:
            keys: [batch, heads, steps, size]
            values: [batch, heads, steps, value size]

        Returns:
            Keys and values [batch, heads, length, size].

        Raises:
            ValueError: The shapes don't match each other or the cache.
            TypeError: Keys or values are not floating point, or their dtype differs from the dtype of the stored ones.
        """
        if keys.dim() != 4 or keys.shape[:3] != values.shape[:3]:
            raise ValueError(
                "keys and values must have shape [batch, heads, steps, size] with equal batch, heads and steps, "
                f"got {tuple(keys.shape)} and {tuple(values.shape)}"
            )
        for name, memory, new in (("keys", self._keys, keys), ("values", self._values, values)):
            check_floating(new, name)
            if memory is not None and new.dtype != memory.dtype:
                raise TypeError(f"{name} must have the dtype of the stored ones, {memory.dtype}, got {new.dtype}")
            if memory is not None and (new.shape[:2] != memory.shape[:2] or new.shape[3] != memory.shape[3]):
                raise ValueError(
                    f"can't append a tensor of shape {tuple(new.shape)} to a cache of shape {tuple(memory.shape)}"
                )
        self._keys = self._append(self._keys, keys)
        self._values = self._append(self._values, values)
        self._saved = False
        self._length += keys.shape[2]
        return self.read()

    def reorder(self, index: Tensor) -> None:
        """Select batch elements by `index`, for example after a step of beam search."""
        if self._keys is not None and self._values is not None:
            self._keys, self._values = self._keys.index_select(0, index), self._values.index_select(0, index)
            self._norms = None if self._norms is None else self._norms.index_select(0, index)

    def _append(self, memory: Tensor | None, new: Tensor) -> Tensor:
        if memory is None:
            return new.clone(memory_format=torch.contiguous_format)
        length, total = self._length, self._length + new.shape[2]
        if torch.is_grad_enabled():  # backward may need the old tensor unchanged
            return torch.cat([memory[:, :, :length], new], 2)
        if memory.shape[2] < total or self._saved or not writable(memory):
            larger = memory.new_empty(*memory.shape[:2], max(total, 2 * length), memory.shape[3])
            larger[:, :, :length] = memory[:, :, :length]
            memory = larger
        memory[:, :, length:total] = new
        return memory


class ScreenedKeys(KeyValueCache, KeyStore):
    """Cache of keys and values; exact attention of up to three queries reads few of them.

    Entmax gives weight to few keys. :func:`tsallis.entmax_attention` first scans a copy of the keys in 8 bits, with
    proved bounds of the scores. It then reads only the keys and values that may have a weight. The result is exact up
    to the rounding of float32. Alphas above 1 and up to 2, slopes, masks and grouped queries are supported. Other
    calls, short caches, and queries with weights on many keys use all keys.

    The scan needs the compiled CPU kernels and float32 or half precision, which is stored in float32. It adds
    `size + 4` bytes per key and head. No gradients are computed. The store also replaces :class:`KeyValueCache` as the
    cache of :class:`MultiheadAttention`.

    Args:
        key: [batch, heads, keys, size], which is copied; None: start empty.
        value: [batch, heads, keys, value size], which is copied.

    Raises:
        ValueError: The shapes don't match, or a key or value requires a gradient.

    Example:
        >>> store = ScreenedKeys(torch.randn(1, 2, 3000, 64), torch.randn(1, 2, 3000, 64))
        >>> _ = store.append(torch.randn(1, 2, 1, 64), torch.randn(1, 2, 1, 64))
        >>> tsallis.entmax_attention(torch.randn(1, 2, 1, 64), store, alpha=1.5).shape
        torch.Size([1, 2, 1, 64])
    """

    def __init__(self, key: Tensor | None = None, value: Tensor | None = None) -> None:
        super().__init__()
        self._views: tuple[Tensor, Tensor] | None = None  # the last result of `read`: new views take 3 µs
        if (key is None) != (value is None):
            raise ValueError("key and value must both be given, or both be None")
        if key is not None and value is not None:
            self.append(key, value)

    def read(self) -> tuple[Tensor, Tensor]:
        """Return keys and values [batch, heads, length, size], in the dtype of the computation.

        Do not change them in place: the copy in 8 bits would stay as it was.
        """
        if self._views is None:
            self._views = super().read()
        return self._views

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add steps, as :meth:`KeyValueCache.append`; return all keys and values in the dtype of the computation."""
        if torch.is_grad_enabled() and (keys.requires_grad or values.requires_grad):
            raise ValueError("ScreenedKeys stores no gradients: append keys and values inside torch.no_grad()")
        with torch.no_grad():
            dtype = keys.dtype
            for name, x in (("keys", keys), ("values", values)):
                check_floating(x, name)
                if x.dtype != (expected := dtype if self._keys is None else self.dtype):
                    raise TypeError(f"{name} must have the dtype of the stored keys, {expected}, got {x.dtype}")
            self._views = None
            result = super().append(upcast(keys), upcast(values))
            self.dtype = dtype
            return result

    def reorder(self, index: Tensor) -> None:
        """Select batch elements by `index`, for example after a step of beam search."""
        super().reorder(index)
        self._views = None
        if self.rows is not None:
            self.rows = self.rows.select(index, len(self))
