"""How the attention kernels are cut for a GPU: every size has its tiling, and they compile without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import tsallis
from triton_attention import arguments, gpu_attention, launching, tensors
from triton_interpreter import compile_for_a_gpu
from tsallis.ops.backend import choose_attention

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 16, 33, 64, 80, 128, 200, 256])
def test_a_tiling_holds_what_it_is_for(size: int, dtype: torch.dtype) -> None:
    every = launching.tilings(size, size, dtype)
    assert len({t.keys for t in every}) == 1
    assert all(every.forward.queries % t.queries == 0 for t in every)
    for keys in (1, 7, 64, 65, 129, 1000, 1024):
        short = launching.short_tiling(size, size, dtype, keys)
        if short is not None:
            row = short.keys * short.parts
            assert keys <= row and (row == 64 or row < 2 * keys)
    assert launching.short_tiling(size, size, dtype, 1025) is None
    for rows in (1, 3, 17, 64):
        assert launching.decode_tiling(size, size, dtype, rows).queries >= rows


def test_few_queries_of_many_keys_are_decoded_unless_weights_are_dropped() -> None:
    def decodes(queries: int, heads: int, key_heads: int, keys: int, **options: float) -> bool:
        query, key = torch.empty(1, heads, queries, 8), torch.empty(1, key_heads, keys, 8)
        return gpu_attention.decodes(arguments(query, key, key, **options))

    assert decodes(1, 8, 8, 5000) and decodes(16, 4, 1, 5000)
    assert not decodes(17, 8, 8, 5000) and not decodes(16, 8, 1, 5000)
    assert not decodes(1, 8, 8, 1024) and not decodes(1, 8, 8, 5000, dropout=0.1)


def test_what_the_kernels_do_not_take() -> None:
    def choice(size: int, value_size: int, dtype: torch.dtype = torch.float32, batch: int = 1) -> str:
        query, value = (torch.empty(batch, 1, 1, n, dtype=dtype) for n in (size, value_size))
        with tsallis.backend("triton"):
            return choose_attention(query, query, value, (1.0, 2.0))

    assert choice(256, 256) == choice(1, 16, torch.float16) == choice(8, 8, torch.bfloat16, 65535) == "triton"
    assert choice(257, 16) == choice(16, 300) == choice(8, 8, torch.float64) == choice(8, 8, batch=65536) == "eager"


def test_alphas_are_looked_at_once() -> None:
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
MIXED = "torch.tensor([[1.0, 1.2, 1.5, 2.0]], requires_grad=True)"
ONE_CASE = "[(torch.bfloat16, 64, 64, 1.5, True)]"
ALL_CASES = (
    f"[(d, n, m, a, f) for d in (torch.bfloat16, torch.float32) for n, m in ((64, 64), (80, 128))"
    f" for a in ({MIXED}, 1.5) for f in (True, False)]"
)


@pytest.mark.slow
@pytest.mark.parametrize("cases", [ONE_CASE] + [ALL_CASES] * bool(os.environ.get("TSALLIS_COMPILE_ALL")))
def test_the_kernels_compile_for_a_gpu_and_not_anew_for_every_length(cases: str) -> None:
    """Without one: what the interpreter runs is not always what the compiler takes."""
    compile_for_a_gpu(COMPILE.replace("CASES", cases))


def test_the_benchmark_ends_at_once_without_a_gpu_and_makes_blocks_as_empty_as_asked() -> None:
    folder = Path(__file__).parents[4] / "benchmarks"
    if not torch.cuda.is_available():
        command = [sys.executable, str(folder / "gpu_attention.py"), "--quick"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and "GPU" in done.stderr
    sys.path.insert(0, str(folder))
    try:
        import gpu_attention as benchmark
    finally:
        sys.path.remove(str(folder))
    for empty in (0.0, 0.7, 0.85):
        setting = benchmark.Setting("long", 1, 2, 1, 8192, 8192, 32, True, empty, torch.float32)
        query, key, _ = benchmark.inputs(setting, 0, "cpu")
        first, second = (x[0, 0, ::128].softmax(-1) if empty else x[0, 0, ::128] * 0 for x in (query * 9, key * 9))
        apart = (first.argmax(-1)[:, None] != second.argmax(-1)[None, :]).double().mean()
        assert abs(apart - empty) < 0.05
    rows = [
        benchmark.row(setting, benchmark.Contender(owner, "1.5", lambda *_: query), 0.8, (ms, ms), 1.0)
        for owner, ms in (("tsallis", 1.0), ("adasplash 2", 3.0))
    ]
    assert [line[:3] for line in benchmark.verdicts(rows)] == ["met", "met"]
