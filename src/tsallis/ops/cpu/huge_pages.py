"""Allocate memory in huge pages for weights that every step of a search reads.

A processor can't cache the addresses of thousands of pages of 4 KiB. Looking up these addresses takes up to a tenth of
the time of a matrix product. Linux provides pages of 2 MiB on request.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

PAGE = 1 << 21
LINE = 16  # numbers per cache line


def gather(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy float32 tensors into consecutive memory, each at the start of a cache line."""
    sizes = [-(-x.numel() // LINE) * LINE for x in tensors]
    parts = allocate(sum(sizes)).split(sizes)
    return [part[: x.numel()].view(x.shape).copy_(x) for part, x in zip(parts, tensors, strict=True)]


def allocate(numbers: int) -> Tensor:
    """Allocate a float32 tensor [numbers]; use huge pages if the tensor fills one and the system supports them."""
    if 4 * numbers < PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(numbers, dtype=torch.float32, device="cpu")
    memory = mmap.mmap(-1, 4 * numbers, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # raised if the system does not support huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.float32)
