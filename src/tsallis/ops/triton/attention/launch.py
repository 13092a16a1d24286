"""The launch parameters of the attention kernels: block sizes, and the arguments that all of them share."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tsallis.ops.arguments import AttentionArgs
from tsallis.ops.triton.attention.tiles import ADDITIVE, BOOLEAN, NO_MASK
from tsallis.ops.triton.language import ANY_ALPHA, TINY_EPS, interpreted, mode, plain, precision, run

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-4, torch.float16: 1e-4}  # |sum of the weights - 1|
DROP_BITS = 24  # random bits that decide whether a weight is dropped
SHORT_KEYS = 1024  # the longest rows of scores that fit into registers
DECODE_ROWS = 64  # queries that read the same keys in one program


class Limits(NamedTuple):
    """The most Newton steps, and how many scores and splits a program of the decoding kernels reads at once."""

    newton: int = 40
    scores: int = 4096
    splits: int = 16


LIMITS = Limits()


class Tiling(NamedTuple):
    """Queries and keys of a block, and how a program computes it."""

    queries: int
    keys: int
    warps: int
    stages: int


class Tilings(NamedTuple):
    """The tilings of the sparse forward kernel and of the backward kernels by queries and by keys.

    All have as many keys; backward may split a block of queries, for it has more to hold in registers.
    """

    forward: Tiling
    by_query: Tiling
    by_key: Tiling


def tilings(size: int, value_size: int, dtype: torch.dtype) -> Tilings:
    """Return tilings that compile for an H200 with few registers spilled or none; wide float32 heads spill more."""
    widest = max(pad_size(size), pad_size(value_size))
    if dtype == torch.float32:
        if widest <= 64:
            return Tilings(Tiling(64, 32, 8, 2), Tiling(32, 32, 8, 1), Tiling(32, 32, 4, 1))
        if widest <= 128:
            return Tilings(Tiling(64, 32, 8, 2), Tiling(32, 32, 8, 1), Tiling(32, 32, 8, 1))
        return Tilings(Tiling(64, 16, 8, 1), Tiling(16, 16, 8, 1), Tiling(32, 16, 8, 1))
    if widest <= 128:
        return Tilings(Tiling(128, 64, 8, 2), Tiling(64, 64, 8, 2), Tiling(64, 64, 8, 2))
    return Tilings(Tiling(64, 32, 8, 2), Tiling(64, 32, 8, 1), Tiling(64, 32, 8, 1))


class ShortTiling(NamedTuple):
    """The queries of a block, the blocks of keys that hold all keys, and how a program computes it."""

    queries: int
    keys: int
    parts: int
    warps: int


def short_tiling(size: int, value_size: int, dtype: torch.dtype, keys: int) -> ShortTiling | None:
    """Return the tiling of the kernel that holds all scores of a block of queries; None if there are too many."""
    widest = max(pad_size(size), pad_size(value_size))
    if keys > SHORT_KEYS or widest > 128:
        return None
    if dtype == torch.float32 and (keys > 256 or widest > 64):  # spills
        return None
    row = max(64, 1 << (keys - 1).bit_length())  # its scores: the next power of two
    queries, warps = 32 if row <= 512 else 16, 4 if row <= 128 else 8
    block_keys = min(row, 128 if widest * dtype.itemsize <= 256 else 64)
    return ShortTiling(queries, block_keys, row // block_keys, warps)


def decode_tiling(size: int, value_size: int, dtype: torch.dtype, rows: int) -> Tiling:
    """Return the tiling of the kernels that split the keys; `rows` queries read the same ones."""
    rows = max(16, 1 << (rows - 1).bit_length())
    widest = max(pad_size(size), pad_size(value_size)) * (2 if dtype == torch.float32 else 1)
    return Tiling(rows, 64 if widest <= 256 else 32, 4, 3 if widest <= 256 else 2)


def processors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU, 1 for another device."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def pad_size(size: int) -> int:
    """Return the size of a block that holds a head."""
    return max(16, 1 << (size - 1).bit_length())


class Launch:
    """The arguments and tilings that all kernels of one call share."""

    def __init__(self, args: AttentionArgs) -> None:
        query, key, value, _, mask, slopes, lengths, *_ = args
        if query.dtype not in TOLERANCE:
            raise TypeError(f"the Triton kernels compute float32, float16 and bfloat16, got {query.dtype}")
        self.query, self.key, self.value = (contiguous_rows(x) for x in (query, key, value))
        batch, heads, queries, size = query.shape
        self.batch, self.heads, self.key_heads = batch, heads, key.shape[1]
        self.queries, self.keys = queries, key.shape[2]
        self.size, self.value_size = size, value.shape[-1]
        self.tilings = tilings(size, self.value_size, query.dtype)
        self.tolerance = TOLERANCE[query.dtype]
        kind = NO_MASK if mask is None else BOOLEAN if mask.dtype == torch.bool else ADDITIVE
        alphas = _alphas(args).expand(batch, heads)
        strides = (0, 0, 0, 0) if mask is None else broadcast_strides(mask)
        slopes = None if slopes is None else slopes.detach().expand(batch, heads)
        self.arguments: dict[str, Any] = {
            "query": self.query,
            "key": self.key,
            "value": self.value,
            "alpha": alphas,
            # A kernel that reads no mask or lengths takes a tensor in their place.
            "mask": alphas if mask is None else mask.view(torch.uint8) if mask.dtype == torch.bool else mask,
            "slopes": alphas if slopes is None else slopes,
            "lengths": alphas if lengths is None else _lengths(lengths, query.device),
            "query_strides": self.query.stride()[:3],
            "key_strides": self.key.stride()[:3],
            "value_strides": self.value.stride()[:3],
            "alpha_strides": alphas.stride(),
            "mask_strides": strides[:3],
            "mask_column": strides[3],
            "slope_strides": (0, 0) if slopes is None else slopes.stride(),
            "offset": args.offset,
            "queries": queries,
            "keys": self.keys,
            "group": heads // self.key_heads,
            "scale": args.scale,
            "SIZE": size,
            "VALUE_SIZE": self.value_size,
            "PADDED": pad_size(size),
            "VALUE_PADDED": pad_size(self.value_size),
            "MODE": plain(ANY_ALPHA) if args.alpha_value is None else mode(args.alpha_value),
            "MASK": plain(kind),
            "CAUSAL": args.causal,
            "SLOPES": slopes is not None,
            "LENGTHS": lengths is not None,
            "DROPOUT": args.dropout > 0,
            "PRECISION": precision(query.dtype),
            "WIDEN": interpreted() and query.dtype != torch.float32,
            "TINY": TINY_EPS,
            **random_numbers(args),
        }

    def new_float32(self, *shape: int) -> Tensor:
        """Allocate memory for float32."""
        return self.query.new_empty(shape, dtype=torch.float32)

    def new_int32(self, *shape: int) -> Tensor:
        """Allocate memory for int32."""
        return self.query.new_empty(shape, dtype=torch.int32)

    def by_query(self, kernel: Any, tiling: Tiling, **more: Any) -> None:
        """Launch a program for each block of queries."""
        blocks = -(-self.queries // tiling.queries)
        self._launch(kernel, (blocks, self.heads, self.batch), tiling, more)

    def by_key(self, kernel: Any, tiling: Tiling, **more: Any) -> None:
        """Launch a program for each block of keys."""
        blocks = -(-self.keys // tiling.keys)
        self._launch(kernel, (blocks, self.key_heads, self.batch), tiling, more)

    def _launch(self, kernel: Any, grid: tuple[int, int, int], tiling: Tiling, more: dict[str, Any]) -> None:
        sizes = {
            "BLOCK_Q": tiling.queries,
            "BLOCK_K": tiling.keys,
            "SPLIT": self.tilings.forward.queries // tiling.queries,
        }
        self.run(kernel, grid, **sizes, **more, num_warps=tiling.warps, num_stages=tiling.stages)

    def run(self, kernel: Any, grid: tuple[int, ...], **more: Any) -> None:
        """Launch a kernel with what it takes of all this."""
        arguments = {**self.arguments, **more}
        options = {name: arguments[name] for name in ("num_warps", "num_stages") if name in arguments}
        run(kernel, grid, self.query, **{name: arguments[name] for name in kernel.arg_names}, **options)


def _alphas(args: AttentionArgs) -> Tensor:
    alpha = args.alpha
    if isinstance(alpha, Tensor):
        return alpha.detach()
    return torch.full((1, 1), alpha, dtype=torch.float32, device=args.query.device)


def _lengths(lengths: Tensor, device: torch.device) -> Tensor:
    """Return lengths on the device, in as few bytes as they need if they have to be copied there."""
    return lengths.contiguous() if lengths.is_cuda else lengths.int().to(device, non_blocking=True).contiguous()


def contiguous_rows(x: Tensor) -> Tensor:
    """Return a tensor whose rows are consecutive numbers."""
    x = x.resolve_neg()
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def broadcast_strides(mask: Tensor) -> tuple[int, ...]:
    """Return strides with which one entry is every entry of a dimension of size 1."""
    return tuple(0 if n == 1 else stride for n, stride in zip(mask.shape, mask.stride(), strict=True))


def random_numbers(args: AttentionArgs) -> dict[str, Any]:
    """Return dropout as numbers of 32 bits, whatever the seed: they have the same type in every call."""
    keep_prob, seed = 1 - args.dropout, args.seed_value
    return {
        "drop_below": round(args.dropout * (1 << DROP_BITS)),
        "drop_factor": 1 / keep_prob if keep_prob else 0.0,
        "seed_low": seed & 0x7FFFFFFF,
        "seed_high": seed >> 31 & 0x7FFFFFFF,
    }
