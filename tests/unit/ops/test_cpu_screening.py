"""Tests of attention that scans keys in 8 bits, on every instruction set of this machine, against float64."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import tsallis
from instruction_sets import current_instructions, instructions
from screening_cases import KINDS, arguments, draw, problems
from tsallis.nn import ScreenedKeys
from tsallis.ops import cpu
from tsallis.ops.cpu import screening

__all__ = ["instructions"]

pytestmark = pytest.mark.skipif(not cpu.status().available, reason=f"needs kernel: {cpu.status().reason}")

DEFAULT = current_instructions() if cpu.status().available else ""
CLUSTERS = KINDS.index("clusters")


@pytest.fixture(autouse=True)
def scan_few_keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(screening, "MIN_KEYS", 1)
    with tsallis.backend("cpu"):
        yield


def test_scan_finds_all_keys_with_positive_weight(instructions: str) -> None:
    found, dense = problems(range(2000 if instructions == DEFAULT else 120))
    assert not found
    assert dense < 200  # otherwise too few problems would be scanned


def test_too_small_bounds_are_detected(instructions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = range(CLUSTERS, 200 * len(KINDS), len(KINDS))
    assert not problems(numbers)[0]
    monkeypatch.setattr(screening, "BOUND", 0.3)
    assert len(problems(numbers)[0]) > 3


def test_instruction_sets_find_the_same_keys(instructions: str) -> None:
    args = arguments(draw(len(KINDS)))
    rows = screening.ScreenedRows()
    count, index, _ = rows.lists(args)
    cpu._load()[0].tsallis_use_isa(b"portable")
    again = rows.lists(args)  # the same bytes, read by a different instruction set
    assert count[0] > 0
    assert torch.equal(count, again[0]) and torch.equal(index[0, : count[0]], again[1][0, : count[0]])


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


HEADS, KEYS = 6, 150
MIXED = torch.tensor([1.0, 1.1, 1.25, 4 / 3, 1.5, 2.0])
OPTIONS = {
    "plain": {},
    "boolean mask": {"attn_mask": random(2, HEADS, 1, KEYS) > 0},
    "window": {"attn_mask": (torch.arange(KEYS) > 70) & (torch.arange(KEYS) < 120)},
    "added mask": {"attn_mask": 3 * random(1, HEADS, 3, KEYS)},
    "mask of one column": {"attn_mask": random(2, 1, 3, 1) > 0},
    "nothing visible": {"attn_mask": torch.zeros(1, KEYS, dtype=torch.bool)},
    "lengths": {"key_lengths": [0, 37]},
    "causal": {"is_causal": True, "query_offset": 90},
    "slopes": {"slopes": torch.tensor([0.0, 0.01, 0.1, 1.0, 5.0, -0.1]), "query_offset": 100},
    "slopes and all others": {
        "slopes": torch.tensor([0.5, 0.01, 0.1, 1.0, 5.0, 0.0]),
        "query_offset": KEYS - 3,
        "is_causal": True,
        "key_lengths": [KEYS, 130],
        "attn_mask": random(2, HEADS, 3, KEYS) > -1,
    },
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("alpha", [MIXED, 1.5, 1.05, 3.0], ids=["mixed", "1.5", "1.05", "3"])
def test_attention_options_match_dense_float64(name: str, alpha: float | Tensor) -> None:
    query, key, value = 3 * random(2, HEADS, 3, 17), random(2, HEADS // 2, KEYS, 17), random(2, HEADS // 2, KEYS, 9)
    options = {"enable_gqa": True, "return_support": True, **OPTIONS[name]}
    double = {name: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for name, x in options.items()}
    out, support = tsallis.entmax_attention(query, ScreenedKeys(key, value), alpha=alpha, **options)
    dense, dense_support = tsallis.entmax_attention(query, key, value, alpha, **options)
    exact = tsallis.entmax_attention(query.double(), key.double(), value.double(), alpha, **double)[0]
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(support, dense_support)
    assert (out.double() - exact).abs().max() <= 2 * (dense.double() - exact).abs().max() + 1e-6


def test_slopes_limit_the_scan_to_a_window() -> None:
    key, value, query = random(1, 1, 4096, 8), random(1, 1, 4096, 8), random(1, 1, 1, 8)
    store = ScreenedKeys(key, value)
    options = {"slopes": torch.tensor([1.0]), "query_offset": 4095}
    wanted = tsallis.entmax_attention(query, key, value, **options)
    torch.testing.assert_close(tsallis.entmax_attention(query, store, **options), wanted)
    # Far keys now look like the best ones, but their bytes are not read.
    store.rows.rows[..., 128 * 16 * (8 + 4) :] = 255
    torch.testing.assert_close(tsallis.entmax_attention(query, store, **options), wanted)


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf, 3e38])
@pytest.mark.parametrize("where", ["query", "key", "value"])
def test_non_finite_numbers_match_dense_attention(where: str, number: float) -> None:
    inputs = {"query": 3 * random(1, 2, 1, 8), "key": random(1, 2, 300, 8), "value": random(1, 2, 300, 8)}
    position = tsallis.entmax_attention(**inputs, return_weights=True)[1][0, 0, 0].argmax()
    inputs[where][0, 0, 0 if where == "query" else position, 2] = number
    out = tsallis.entmax_attention(inputs["query"], ScreenedKeys(inputs["key"], inputs["value"]))
    torch.testing.assert_close(out, tsallis.entmax_attention(**inputs), equal_nan=True)


def test_nan_keys_beyond_the_length_have_no_effect() -> None:
    query, key, value = random(1, 1, 1, 8), random(1, 1, 300, 8), random(1, 1, 300, 8)
    key[..., 200:, :] = torch.nan
    out = tsallis.entmax_attention(query, ScreenedKeys(key, value), key_lengths=[200])
    torch.testing.assert_close(out, tsallis.entmax_attention(query, key[..., :200, :], value[..., :200, :]))


def test_flat_heads_pause_the_scan() -> None:
    key, value, query = random(1, 2, 3000, 8), random(1, 2, 3000, 8), random(1, 2, 1, 8)
    query[0, 0] *= 20
    query[0, 1] *= 0.01
    store = ScreenedKeys(key, value)
    for step in range(20):
        out = tsallis.entmax_attention(query, store)
        assert store.rows.pauses.tolist() == [[0, (16 - step) % 17]]
        torch.testing.assert_close(out, tsallis.entmax_attention(query, key, value))


def test_appended_and_reordered_keys_match_dense_attention() -> None:
    key, value, query = random(2, 1, 200, 5), random(2, 1, 200, 5), 4 * random(2, 2, 1, 5)
    store = ScreenedKeys()
    for step in range(200):
        store.append(key[:, :, step : step + 1], value[:, :, step : step + 1])
        out = tsallis.entmax_attention(query, store, enable_gqa=True)
        seen = key[:, :, : step + 1], value[:, :, : step + 1]
        torch.testing.assert_close(out, tsallis.entmax_attention(query, *seen, enable_gqa=True), rtol=1e-5, atol=1e-5)
    store.reorder(torch.tensor([1, 1]))
    out = tsallis.entmax_attention(query[[1, 1]], store, enable_gqa=True)
    wanted = tsallis.entmax_attention(query[[1, 1]], key[[1, 1]], value[[1, 1]], enable_gqa=True)
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5)


def test_thread_count_does_not_change_results() -> None:
    key, value, query = random(2, 4, 9000, 16), random(2, 4, 9000, 16), 3 * random(2, 4, 1, 16)
    store = ScreenedKeys(key, value)
    one = tsallis.entmax_attention(query, store)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(tsallis.entmax_attention(query, store), one)
        assert torch.equal(tsallis.entmax_attention(query, ScreenedKeys(key, value)), one)
    finally:
        torch.set_num_threads(threads)
