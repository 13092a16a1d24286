"""Tests of the tilings of the attention kernels: every size has one, and the kernels compile without a GPU."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import tsallis
from triton_attention import arguments, gpu_attention, launching, tensors
from triton_interpreter import DEVICE, compile_for_a_gpu, gpu
from tsallis.ops.choice import choose_attention

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("memory", [232_448, 166_912, 101_376, 65_536])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 16, 33, 64, 80, 128, 200, 256])
def test_tilings_cover_every_head_size_and_length(size: int, dtype: torch.dtype, memory: int) -> None:
    if size > launching.largest_head(memory):
        with pytest.raises(NotImplementedError, match=rf"heads of size {size} need more than the 65536 bytes"):
            launching.tilings(size, 1, torch.float32, memory)
        return
    every = launching.tilings(size, size, dtype, memory)
    assert len({t.keys for t in every}) == 1
    assert all(every.forward.queries % t.queries == 0 for t in every)
    for keys in (1, 7, 64, 65, 129, 1000, 1024):
        short = launching.short_tiling(size, size, dtype, keys, memory)
        if short is not None:
            row = short.keys * short.parts
            assert keys <= row and (row == 64 or row < 2 * keys)
    assert launching.short_tiling(size, size, dtype, 1025) is None
    for rows in (1, 3, 17, 64):
        decoding = launching.decode_tiling(size, size, dtype, rows, memory)
        assert decoding.queries >= rows if decoding is not None else rows > 16 and memory < 232_448


def test_largest_head_fits_the_smallest_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [
        SimpleNamespace(shared_memory_per_block=49_152, shared_memory_per_block_optin=232_448),
        SimpleNamespace(shared_memory_per_block=65_536),  # from a different vendor
    ]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpus[device.index])
    monkeypatch.setattr(launching, "shared_memory", launching.shared_memory.__wrapped__)
    assert launching.shared_memory(torch.device("cpu")) == launching.shared_memory(torch.device("cuda", 0)) == 232_448
    assert launching.min_shared_memory() == 65_536
    gpus.clear()
    assert launching.min_shared_memory() == 232_448
    heads = [launching.largest_head(memory) for memory in (232_448, 166_912, 101_376, 65_536, 49_152)]
    assert heads == [256, 256, 256, 128, 0] and gpu.CAPABILITIES.largest_head in heads


def test_decoding_needs_few_queries_many_keys_and_no_dropout() -> None:
    def decodes(queries: int, heads: int, key_heads: int, keys: int, **options: float) -> bool:
        query, key = torch.empty(1, heads, queries, 8), torch.empty(1, key_heads, keys, 8)
        return gpu_attention.decodes(arguments(query, key, key, **options))

    assert decodes(1, 8, 8, 5000) and decodes(16, 4, 1, 5000)
    assert not decodes(17, 8, 8, 5000) and not decodes(16, 8, 1, 5000)
    assert not decodes(1, 8, 8, 1024) and not decodes(1, 8, 8, 5000, dropout=0.1)


def test_decoding_is_not_used_if_shared_memory_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key = torch.empty(1, 64, 1, 128), torch.empty(1, 1, 5000, 128)
    assert gpu_attention.decodes(arguments(query, key, key))
    monkeypatch.setattr(launching, "shared_memory", lambda _: 65_536)
    assert not gpu_attention.decodes(arguments(query, key, key))
    assert gpu_attention.decodes(arguments(query[:, :16], key, key))


def test_unsupported_sizes_and_dtypes_use_eager() -> None:
    def choice(size: int, value_size: int, dtype: torch.dtype = torch.float32, batch: int = 1) -> str:
        query, value = (torch.empty(batch, 1, 1, n, dtype=dtype, device=DEVICE) for n in (size, value_size))
        with tsallis.backend("triton"):
            return choose_attention(query, query, value, (1.0, 2.0))

    assert choice(256, 256) == choice(1, 16, torch.float16) == choice(8, 8, torch.bfloat16, 65535) == "triton"
    assert choice(257, 16) == choice(16, 300) == choice(8, 8, torch.float64) == choice(8, 8, batch=65536) == "eager"


def test_equal_alphas_become_a_number_and_invalid_raise() -> None:
    def value(alpha: float | Tensor) -> float | None:
        return gpu_attention.resolve(arguments(*tensors(1, 2, 3, 4), alpha)).alpha_value

    assert value(1.5) == value(torch.tensor([[1.5, 1.5]])) == 1.5
    assert value(torch.tensor([[1.5, 2.0]])) is None
    for large in (2.5, torch.tensor([[1.5, 2.5]])):
        with pytest.raises(NotImplementedError, match=r"from 1 to 2, got 2\.5"):
            value(large)
    for bad in (0.5, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="alpha"):
            value(torch.tensor([[1.5, bad]]))


COMPILE = """
from tsallis.ops.arguments import AttentionArgs
from tsallis.ops.autograd.attention import Attention
from tsallis.ops.triton.attention import calls as attention, launch as attention_launch

attention_launch.run = run

def tensors(queries, keys, group, dtype, size, value_size):
    shapes = ((2 * group, queries, size), (2, keys, size), (2, keys, value_size))
    return [torch.zeros(1, *shape, dtype=dtype, requires_grad=True) for shape in shapes]

def finish(*names):
    assert {len(actual) for actual in compiled.values()} == {1}, compiled  # not once more for another length
    assert set(compiled) == set(names), compiled
    compiled.clear()

for dtype, size, value_size, alpha, features in CASES:
    dropout = 0.1 if features else 0.0
    alphas, value = (alpha, None) if isinstance(alpha, torch.Tensor) else (None, alpha)
    slopes = torch.ones(1, 4, requires_grad=True) if features else None
    for lengths in ((100, 128, 66), (257, 304, 512)):  # padded to one power of two
        for length in lengths:
            inputs = tensors(length, length, 2, dtype, size, value_size)
            mask = torch.zeros(1, 1, 1, length, requires_grad=True) if features else None
            limits = torch.tensor([length]) if features else None
            seed = torch.tensor(length << 31)
            args = AttentionArgs(*inputs, alphas, mask, slopes, limits, seed, None, value, 0.1, features, dropout)
            output, _ = Attention.apply(*attention.resolve(args), "triton")
            output.backward(torch.zeros_like(output))
        short = attention_launch.short_tiling(size, value_size, dtype, length) is not None
        kernels = ["forward_short"] if short else ["forward", "transpose"]
        finish(*kernels, "backward_query", "backward_key", *["backward_mask"] * features)
    for queries, lengths in ((1, (4096, 4097, 50000)), (2, (4096, 5000))):
        for length in lengths:
            with torch.no_grad():
                inputs = tensors(queries, length, 2, dtype, size, value_size)
                mask = torch.zeros(1, 1, 1, length) if features else None
                limits = torch.tensor([length]) if features else None
                offset = length - queries
                args = AttentionArgs(*inputs, alphas, mask, slopes, limits, None, None, value, 0.1, False, 0.0, offset)
                attention.attention(attention.resolve(args), False)
        finish("decode_scores", "decode_thresholds", "decode_output", "decode_sum")
"""
SHARED = """
from triton.backends.nvidia.compiler import CUDABackend, nvidia
from tsallis.ops.arguments import AttentionArgs
from tsallis.ops.triton import attention
from tsallis.ops.triton.attention import calls, launch

class Size(Exception):  # of the shared memory, which is known before any code is made
    pass

class Allocated(Exception):
    pass

def stop(passes, *options):
    raise Allocated(passes)

def add_stages(self, stages, *options, add=CUDABackend.add_stages):
    add(self, stages, *options)
    lower = stages["llir"]
    def allocate(source, metadata):
        try:
            lower(source, metadata)
        except Allocated as allocated:
            allocated.args[0].run(source, "allocate")
        raise Size(source.get_int_attr("ttg.shared"))
    stages["llir"] = allocate

def run(kernel, grid, where, **arguments):
    if kernel.fn.__name__ in sizes:  # with fewer arguments before
        return
    try:
        sizes[kernel.fn.__name__] = kernel.warmup(grid=grid, **arguments).metadata.shared
    except Size as size:
        sizes[kernel.fn.__name__] = size.args[0]

capability, limit = TARGET
Driver.get_current_target = lambda self: GPUTarget("cuda", capability, 32)
CUDABackend.add_stages, nvidia.passes.ttgpuir.add_to_llvmir = add_stages, stop
calls.run = launch.run = run
launch.shared_memory = lambda device: limit
alphas, slopes, lengths = torch.tensor([[1.0, 1.2, 1.5, 2.0] * 16]), torch.ones(1, 64), torch.tensor([1000])

def arguments(dtype, size, heads, queries, keys, dropout):
    query, key = torch.empty(1, heads, queries, size, dtype=dtype), torch.empty(1, 1, keys, size, dtype=dtype)
    mask, seed = torch.empty(1, 1, queries, keys), torch.tensor(7)
    few = alphas[:, :heads], mask, slopes[:, :heads], lengths
    return AttentionArgs(query, key, key, *few, seed, None, None, 0.1, dropout > 0, dropout, keys - queries)

def check(case, *expected):
    assert set(expected) <= set(sizes) and max(sizes.values()) <= limit, (capability, limit, case, sizes)
    sizes.clear()

sizes = {}
for dtype in (torch.float32, torch.float16, torch.bfloat16)[: 2 if capability < 80 else 3]:
    for size in SIZES:
        if size > launch.largest_head(limit):
            continue
        args = arguments(dtype, size, 2, 1500, 1500, 0.1)
        output, _, saved = attention.attention(args, True)
        attention.attention_gradient(args, saved, output, (True,) * 6)
        check((dtype, size), "forward", "backward_query", "backward_key", "backward_mask")
        attention.attention(arguments(dtype, size, 2, 100, 256, 0.1), True)
        check((dtype, size, "short"), *["forward_short"] * (size <= (64 if dtype == torch.float32 else 128)))
        for rows in (16, 64):
            args = arguments(dtype, size, rows, 1, 1500, 0.0)
            if calls.decodes(args):
                attention.attention(args, False)
                check((dtype, size, rows), "decode_scores", "decode_output")
"""


@pytest.mark.slow
@pytest.mark.parametrize("target", [(75, 65_536), (80, 166_912), (86, 101_376)], ids=["sm_75", "sm_80", "sm_86"])
def test_the_kernels_fit_the_shared_memory_of_every_gpu(target: tuple[int, int]) -> None:
    """Check the usual and the widest heads; by default no others, because compiling takes long."""
    sizes = "(32, 64, 80, 128, 256)" if os.environ.get("TSALLIS_COMPILE_ALL") else "(64, launch.largest_head(limit))"
    compile_for_a_gpu(SHARED.replace("TARGET", str(target)).replace("SIZES", sizes))


MIXED = "torch.tensor([[1.0, 1.2, 1.5, 2.0]], requires_grad=True)"
ONE_CASE = "[(torch.bfloat16, 64, 64, 1.5, True)]"
ALL_CASES = (
    f"[(d, n, m, a, f) for d in (torch.bfloat16, torch.float32) for n, m in ((64, 64), (80, 128))"
    f" for a in ({MIXED}, 1.5) for f in (True, False)]"
)


@pytest.mark.slow
@pytest.mark.parametrize("cases", [ONE_CASE] + [ALL_CASES] * bool(os.environ.get("TSALLIS_COMPILE_ALL")))
def test_kernels_compile_for_a_gpu_once_for_all_lengths(cases: str) -> None:
    """Check that the kernels compile: the interpreter accepts code that the compiler rejects."""
    compile_for_a_gpu(COMPILE.replace("CASES", cases))
