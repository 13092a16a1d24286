"""Weights on huge pages: copies of the tensors, on every system."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch

from tsallis.ops.cpu.huge_pages import PAGE, allocate, gather

SHAPES = [(3, 5), (16,), (0, 7), (700, 1024), (1,)]


class _NoHugePages(mmap.mmap):
    def madvise(self, *args: int) -> None:
        raise OSError(22, "Invalid argument")


@pytest.mark.parametrize("system", ["ours", "unaware", "refuses"])
def test_copies_equal_the_tensors_and_start_cache_lines(monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    if system == "unaware":
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    elif system == "refuses":
        monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 14, raising=False)
        monkeypatch.setattr(mmap, "mmap", _NoHugePages)
    tensors = [torch.randn(shape) for shape in SHAPES]
    copies = gather(tensors)
    for copy, x in zip(copies, tensors, strict=True):
        assert torch.equal(copy, x) and copy.is_contiguous()
        assert copy.data_ptr() % 64 == 0 or not x.numel()
    tensors[0].zero_()
    assert copies[0].abs().sum() > 0


def test_a_copy_outlives_the_others() -> None:
    x = torch.arange(2.0 * PAGE)
    first, _ = gather([x, torch.ones(4)])
    assert torch.equal(first, x)


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no huge pages to ask for")
def test_large_memory_asks_for_huge_pages() -> None:
    numbers = allocate(4 * PAGE // 4)
    maps = Path("/proc/self/smaps").read_text().splitlines()
    address, flags = numbers.data_ptr(), ""
    inside = False
    for line in maps:
        head = line.split()[0]
        if "-" in head and ":" not in head:
            start, end = (int(x, 16) for x in head.split("-"))
            inside = start <= address < end
        elif inside and head == "VmFlags:":
            flags = line
    assert " hg" in flags
