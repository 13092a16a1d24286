"""Choose block sizes for the attention kernels, and build their shared arguments."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tsallis.ops.arguments import AttentionArgs
from tsallis.ops.triton.attention.tiles import ADDITIVE, BOOLEAN, NO_MASK
from tsallis.ops.triton.language import ANY_ALPHA, TINY_EPS, interpreted, mode, plain, precision, run

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-4, torch.float16: 1e-4}  # maximum of |sum of the weights - 1|
DROP_BITS = 24  # random bits that decide whether a weight is dropped
SHORT_KEYS = 1024  # maximum number of keys whose scores fit into registers
DECODE_ROWS = 64  # maximum number of queries that read the same keys in one program


class Limits(NamedTuple):
    """Maximum number of Newton steps, and numbers of scores and splits that a decoding program reads at once."""

    newton: int = 40
    scores: int = 4096
    splits: int = 16


LIMITS = Limits()


class Tiling(NamedTuple):
    """Queries and keys per block, warps per program, and pipeline stages."""

    queries: int
    keys: int
    warps: int
    stages: int


class Tilings(NamedTuple):
    """Tilings of three kernels: the sparse forward kernel, backward by queries, and backward by keys.

    All three have the same number of keys per block. Backward may split a block of queries, because it needs more
    registers.
    """

    forward: Tiling
    by_query: Tiling
    by_key: Tiling


H200, A100, ADA, TURING = 232_448, 166_912, 101_376, 65_536  # maximum shared memory per program in bytes

# Each line holds the largest head size, the minimum shared memory, and tilings that fit into this memory. The first
# matching line is used. On an H200, few or no registers are spilled, except with wide float32 heads.
FLOAT32 = (
    (64, TURING, Tilings(Tiling(64, 32, 8, 2), Tiling(32, 32, 8, 1), Tiling(32, 32, 4, 1))),
    (128, A100, Tilings(Tiling(64, 32, 8, 2), Tiling(32, 32, 8, 1), Tiling(32, 32, 8, 1))),
    (128, ADA, Tilings(Tiling(64, 32, 8, 1), Tiling(32, 32, 8, 1), Tiling(32, 32, 8, 1))),
    (128, TURING, Tilings(Tiling(32, 32, 8, 1), Tiling(16, 32, 8, 1), Tiling(16, 32, 8, 1))),
    (256, A100, Tilings(Tiling(64, 16, 8, 1), Tiling(16, 16, 8, 1), Tiling(32, 16, 8, 1))),
    (256, ADA, Tilings(Tiling(32, 16, 8, 1), Tiling(16, 16, 8, 1), Tiling(32, 16, 8, 1))),
)
HALF = (
    (128, ADA, Tilings(Tiling(128, 64, 8, 2), Tiling(64, 64, 8, 2), Tiling(64, 64, 8, 2))),
    (64, TURING, Tilings(Tiling(64, 64, 8, 2), Tiling(64, 64, 8, 2), Tiling(64, 64, 8, 2))),
    (128, TURING, Tilings(Tiling(64, 32, 8, 2), Tiling(32, 32, 8, 2), Tiling(32, 32, 8, 2))),
    (256, A100, Tilings(Tiling(64, 32, 8, 2), Tiling(64, 32, 8, 1), Tiling(64, 32, 8, 1))),
    (256, ADA, Tilings(Tiling(64, 32, 8, 2), Tiling(64, 32, 8, 1), Tiling(32, 32, 8, 1))),
)


def tilings(size: int, value_size: int, dtype: torch.dtype, memory: int = H200) -> Tilings:
    """Return the tilings for heads of these sizes on a GPU with `memory` bytes of shared memory.

    Raises:
        NotImplementedError: No tiling fits, see `largest_head`.
    """
    widest = max(pad_head_size(size), pad_head_size(value_size))
    for head, least, result in FLOAT32 if dtype == torch.float32 else HALF:
        if widest <= head and memory >= least:
            return result
    raise NotImplementedError(
        f"attention heads of size {max(size, value_size)} need more than the {memory} bytes of shared memory of this "
        "GPU: use tsallis.backend('eager')"
    )


def largest_head(memory: int) -> int:
    """Return the largest head size that has tilings in every dtype; 0 if there is none."""
    return min(max((head for head, least, _ in table if memory >= least), default=0) for table in (FLOAT32, HALF))


class ShortTiling(NamedTuple):
    """Queries and keys per block, number of key blocks, and warps per program."""

    queries: int
    keys: int
    parts: int
    warps: int


def short_tiling(size: int, value_size: int, dtype: torch.dtype, keys: int, memory: int = H200) -> ShortTiling | None:
    """Return the tiling of the kernel that keeps all scores in registers, or None if the scores don't fit."""
    widest = max(pad_head_size(size), pad_head_size(value_size))
    if keys > SHORT_KEYS or widest > 128:
        return None
    if dtype == torch.float32 and (keys > 256 or widest > 64):  # registers would spill
        return None
    row = max(64, 1 << (keys - 1).bit_length())  # scores per row: the next power of two
    queries, warps = 32 if row <= 512 else 16, 4 if row <= 128 else 8
    block_keys = min(row, 128 if widest * dtype.itemsize <= (256 if memory >= ADA else 128) else 64)
    return ShortTiling(queries, block_keys, row // block_keys, warps)


def decode_tiling(size: int, value_size: int, dtype: torch.dtype, rows: int, memory: int = H200) -> Tiling | None:
    """Return the tiling of the kernels that split the keys, or None if none fits; `rows` queries read the same keys."""
    rows = max(16, 1 << (rows - 1).bit_length())
    widest, products = max(pad_head_size(size), pad_head_size(value_size)), 2 if dtype == torch.float32 else 1
    wide = widest * products > 256
    # With less memory than an H200 has, use fewer stages or keys.
    for stages in range(2 if wide else 3, 0, -1):
        for keys in (32,) if wide else (64, 32):
            # `scores` is the memory needed with tensor cores, which split each float32 in two. Without tensor cores,
            # tiles are float32.
            row = widest * dtype.itemsize
            scores = rows * row * products + (stages - 1) * keys * row + (rows * keys + 1024) * 4
            if max(scores, (rows + keys) * widest * 4) <= memory:
                return Tiling(rows, keys, 4, stages)
    return None


@functools.cache
def shared_memory(device: torch.device) -> int:
    """Return the maximum shared memory per program of a GPU in bytes; other devices count as an H200."""
    if device.type != "cuda":
        return H200
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", 0) or properties.shared_memory_per_block)


def min_shared_memory() -> int:
    """Return the smallest `shared_memory` of this machine's GPUs; machines without a GPU count as an H200."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return min((shared_memory(torch.device("cuda", index)) for index in range(count)), default=H200)


def pad_head_size(size: int) -> int:
    """Round a head size up to a power of two, at least 16."""
    return max(16, 1 << (size - 1).bit_length())


class Launch:
    """Arguments and tilings that all kernels of a call share."""

    def __init__(self, args: AttentionArgs) -> None:
        query, key, value, _, mask, slopes, lengths, *_ = args
        if query.dtype not in TOLERANCE:
            raise TypeError(f"the Triton kernels need float32, float16 or bfloat16, got {query.dtype}")
        self.query = contiguous_rows(query)
        self.key = contiguous_rows(key)
        self.value = contiguous_rows(value)
        batch, heads, queries, size = query.shape
        self.batch = batch
        self.heads = heads
        self.key_heads = key.shape[1]
        self.queries, self.keys = queries, key.shape[2]
        self.size, self.value_size = size, value.shape[-1]
        self.memory = shared_memory(query.device)
        self.tilings = tilings(size, self.value_size, query.dtype, self.memory)
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
            # Kernels that use no mask, slopes or lengths still need a tensor as argument.
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
            "PADDED": pad_head_size(size),
            "VALUE_PADDED": pad_head_size(self.value_size),
            "MODE": plain(ANY_ALPHA) if args.alpha_value is None else mode(args.alpha_value),
            "MASK": plain(kind),
            "CAUSAL": args.causal,
            "SLOPES": slopes is not None,
            "LENGTHS": lengths is not None,
            "DROPOUT": args.dropout > 0,
            "PRECISION": precision(query.dtype),
            "UPCAST": interpreted() and query.dtype != torch.float32,
            "TINY": TINY_EPS,
            **random_numbers(args),
        }

    def new_float32(self, *shape: int) -> Tensor:
        """Allocate a float32 tensor."""
        return self.query.new_empty(shape, dtype=torch.float32)

    def new_int32(self, *shape: int) -> Tensor:
        """Allocate an int32 tensor."""
        return self.query.new_empty(shape, dtype=torch.int32)

    def by_query(self, kernel: Any, tiling: Tiling, **kernel_arguments: Any) -> None:
        """Launch one program per block of queries."""
        blocks = -(-self.queries // tiling.queries)
        self._launch(kernel, (blocks, self.heads, self.batch), tiling, kernel_arguments)

    def by_key(self, kernel: Any, tiling: Tiling, **kernel_arguments: Any) -> None:
        """Launch one program per block of keys."""
        blocks = -(-self.keys // tiling.keys)
        self._launch(kernel, (blocks, self.key_heads, self.batch), tiling, kernel_arguments)

    def _launch(
        self, kernel: Any, grid: tuple[int, int, int], tiling: Tiling, kernel_arguments: dict[str, Any]
    ) -> None:
        sizes = {
            "BLOCK_Q": tiling.queries,
            "BLOCK_K": tiling.keys,
            "SPLIT": self.tilings.forward.queries // tiling.queries,
        }
        self.run(kernel, grid, **sizes, **kernel_arguments, num_warps=tiling.warps, num_stages=tiling.stages)

    def run(self, kernel: Any, grid: tuple[int, ...], **kernel_arguments: Any) -> None:
        """Launch a kernel with only those arguments that its signature names."""
        arguments = {**self.arguments, **kernel_arguments}
        options = {name: arguments[name] for name in ("num_warps", "num_stages") if name in arguments}
        run(kernel, grid, self.query, **{name: arguments[name] for name in kernel.arg_names}, **options)


def _alphas(args: AttentionArgs) -> Tensor:
    alpha = args.alpha
    if isinstance(alpha, Tensor):
        return alpha.detach()
    return torch.full((1, 1), alpha, dtype=torch.float32, device=args.query.device)


def _lengths(lengths: Tensor, device: torch.device) -> Tensor:
    """Return the lengths on the device; lengths on the CPU are copied as int32."""
    return lengths.contiguous() if lengths.is_cuda else lengths.int().to(device, non_blocking=True).contiguous()


def contiguous_rows(x: Tensor) -> Tensor:
    """Return a tensor whose last dimension is contiguous; copy it only if necessary."""
    x = x.resolve_neg()
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def broadcast_strides(mask: Tensor) -> tuple[int, ...]:
    """Return a mask's strides, with 0 for dimensions of size 1."""
    return tuple(0 if n == 1 else stride for n, stride in zip(mask.shape, mask.stride(), strict=True))


def random_numbers(args: AttentionArgs) -> dict[str, Any]:
    """Return the kernel arguments for dropout; integers stay below 2^31, so that their type never changes.

    Raises:
        RuntimeError: A CUDA graph is being captured; its replays would all drop the same weights.
    """
    if args.dropout > 0 and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"dropout_p must be 0 while a CUDA graph is captured, got {args.dropout:g}: each replay would drop the "
            "same weights. Call eval() on the module, or keep attention out of the graph."
        )
    keep_prob, seed = 1 - args.dropout, args.seed_value
    return {
        "drop_below": round(args.dropout * (1 << DROP_BITS)),
        "drop_factor": 1 / keep_prob if keep_prob else 0.0,
        "seed_low": seed & 0x7FFFFFFF,
        "seed_high": seed >> 31 & 0x7FFFFFFF,
    }
