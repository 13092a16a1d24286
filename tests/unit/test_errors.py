"""Error messages are one line, safe to print in a terminal, and quote a limited part of any value."""

from __future__ import annotations

import tracemalloc

import pytest
import torch

from tsallis.errors import InputError, describe, memory_for, one_line, shorten, without_controls

MESSAGES = [
    ("in.tsv:3: one column", "in.tsv:3: one column"),
    ("a\nb\r\tc", "a b\\r\\tc"),
    ("key '\x1b[2J'", "key '\\x1b[2J'"),
    ("\x9b2J\x7f\u202e\u2028\ud800", "\\x9b2J\\x7f\\u202e\\u2028\\ud800"),
    ("Größe, 日本, हिन्दी", "Größe, 日本, हिन्दी"),
    ("x" * 2001, "x" * 1997 + "..."),
    ("x" * 2000, "x" * 2000),
    ("\x1b" * 1000, ("\\x1b" * 500)[:1997] + "..."),
]


@pytest.mark.parametrize(("message", "line"), MESSAGES)
def test_messages_are_one_printable_line(message: str, line: str) -> None:
    assert one_line(message) == line and one_line(one_line(message)) == line


def test_without_controls_escapes_only_control_characters() -> None:
    assert without_controls("क्\u200dष \u202e\u00a0") == "क्\u200dष \u202e\u00a0"
    assert without_controls("a\x1b[2J\x9b\x07\ud800") == "a\\x1b[2J\\x9b\\x07\\ud800"


def nested(levels: int, width: int) -> object:
    value: object = "x"
    for _ in range(levels):
        value = [value] * width
    return value


LARGE = [nested(60, 10), {"a": nested(60, 10)}, "x" * 10**7, 10**6000, -(10**6000), list(range(10**6)), b"x" * 10**7]


@pytest.mark.parametrize("value", LARGE, ids=lambda value: type(value).__name__)
def test_describing_large_values_reads_a_small_part(value: object) -> None:
    tracemalloc.start()
    try:
        text = describe(value)
        assert len(text) <= 60 and tracemalloc.get_traced_memory()[1] < 100_000  # bytes
    finally:
        tracemalloc.stop()


def test_describe_returns_the_repr_of_small_values() -> None:
    for value in ("none", 7, 1.5, None, True, [1, "a"], {"a": [1]}, (1, 2), float("nan")):
        assert describe(value) == repr(value)
    assert describe({3}) == "{3}" and shorten("ab\t") == "'ab\\t'" and len(shorten("x" * 10**6)) == 42


def test_memory_errors_become_input_errors() -> None:
    with pytest.raises(InputError, match=r"^the model does not fit into memory: .*allocate"), memory_for("the model"):
        torch.empty(1 << 60)
    with pytest.raises(InputError, match=r"^the file does not fit into memory$"), memory_for("the file"):
        raise MemoryError
    with pytest.raises(RuntimeError, match="shape"), memory_for("the model"):
        raise RuntimeError("shape")
