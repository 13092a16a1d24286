"""Corrupt valid input: change bytes, or insert values that are well-formed but wrong."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

ESCAPE = "\x1b[2J\x1b]0;owned\x07"
BITS = (
    *(b"\x00", b"\xff", b"\xef\xbb\xbf"),
    b"\xed\xa0\x80",  # half a surrogate pair
    b"\xc2\x9b2J",  # a control sequence of one character
    *("\u202e\u2028\u200d\ufeff".encode(), ESCAPE.encode(), b"\r\n", b"\n\n", b"\t", b"\t\t\t", b"\t\n", b";;", b",,"),
    *(b"\\u0000", b"nan", b"-1", b"1e999", b"9" * 5000, b"[" * 3000, b'{"a":' * 3000, b"'", b'"', b"%s{}"),
)
WORDS = ("", " ", "a", "\0", ESCAPE, "\x9b2J", "../../x", "/dev/zero", "-", "--help", "null", "nan", "𝔘\u0301", "<s>")
NUMBERS = (0, -1, 1, 2, 3, 7, 255, 1 << 31, (1 << 31) - 1, 1 << 53, 1 << 63, 10**400, 0.5, -0.5, 1e-300, 1e308)


def spoil(blob: bytes, chance: Random) -> bytes:
    """Change, remove, insert, repeat or cut off some bytes at random."""
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at, end = sorted(chance.randint(0, len(blob)) for _ in range(2))
        kind = chance.randrange(8)
        if kind == 0:
            blob = blob[:at]
        elif kind == 1 and blob:
            at = min(at, len(blob) - 1)
            blob = blob[:at] + bytes([blob[at] ^ 1 << chance.randrange(8)]) + blob[at + 1 :]
        elif kind == 2:
            blob = blob[:at] + blob[end:]
        elif kind == 3:
            blob = blob[:end] + blob[at:end] * chance.choice((1, 2, 20)) + blob[end:]
        elif kind == 4:
            blob = blob[:at] + chance.randbytes(chance.choice((1, 2, 8, 100))) + blob[at:]
        elif kind == 5:
            count = chance.choice((10, 1000, 20_000, 300_000))
            blob = blob[:at] + chance.choice((b"a", b"\n", b" ", b"\t", b"0", "ж".encode(), b"[")) * count + blob[at:]
        else:
            blob = blob[:at] + chance.choice(BITS) + blob[at:]
    return blob


def wrong_value(chance: Random) -> Any:
    """Return a random value that JSON or YAML can represent and that is rarely valid."""
    kind = chance.randrange(9)
    if kind == 0:
        return chance.choice((None, True, False, [], {}, [[]], {"": None}, [None]))
    if kind <= 2:
        return chance.choice(WORDS)
    if kind <= 4:
        return chance.choice(NUMBERS)
    if kind == 5:
        return chance.choice((float("nan"), float("inf"), -float("inf")))
    if kind == 6:
        return chance.choice(("x", ESCAPE, "0")) * chance.choice((100, 5000, 100_000))
    if kind == 7:
        value: Any = chance.choice(NUMBERS)
        for _ in range(chance.choice((3, 90))):
            value = [value] if chance.random() < 0.5 else {"a": value}
        return value
    return [chance.choice(NUMBERS)] * chance.choice((2, 4, 5000))


def spoil_tree(tree: Any, chance: Random) -> Any:
    """Copy nested lists and mappings with a value replaced, removed or added, or a key renamed."""
    tree = copy.deepcopy(tree)
    for _ in range(chance.choice((1, 1, 2))):
        holders = list(_holders(tree))
        if not holders:
            return wrong_value(chance)
        holder = chance.choice(holders)
        keys: list[Any] = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        kind = chance.randrange(8)
        if kind == 0 and isinstance(holder, dict):
            holder[chance.choice((*WORDS, "x" * 5000, "alpha", "sizes"))] = wrong_value(chance)
        elif not keys:
            continue
        elif kind == 1:
            del holder[chance.choice(keys)]
        elif kind == 2 and isinstance(holder, dict):
            key = chance.choice(keys)
            holder[f"{key}{chance.choice(WORDS)}"] = holder.pop(key)
        else:
            holder[chance.choice(keys)] = wrong_value(chance)
    return tree


def _holders(tree: Any) -> Any:
    if isinstance(tree, dict | list):
        yield tree
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from _holders(part)
