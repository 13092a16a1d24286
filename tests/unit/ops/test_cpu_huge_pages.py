"""Tests of weights on huge pages: copies equal the tensors, even on systems without huge pages."""

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
def test_copies_equal_tensors_and_are_cache_aligned(monkeypatch: pytest.MonkeyPatch, system: str) -> None:
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


def test_a_copy_stays_valid_after_others_are_freed() -> None:
    x = torch.arange(2.0 * PAGE)
    first, _ = gather([x, torch.ones(4)])
    assert torch.equal(first, x)


def test_large_memory_asks_for_huge_pages() -> None:
    smaps, system = Path("/proc/self/smaps"), Path("/sys/kernel/mm/transparent_hugepage")
    if not smaps.exists():
        pytest.skip("needs linux: it tells what memory asks for")
    numbers = allocate(4 * PAGE // 4)
    address, flags, inside = numbers.data_ptr(), "", False
    for line in smaps.read_text().splitlines():
        head = line.split()[0]
        if "-" in head and ":" not in head:
            start, end = (int(x, 16) for x in head.split("-"))
            inside = start <= address < end
        elif inside and head == "VmFlags:":
            flags = line
    assert (" hg" in flags) == system.exists()
