"""Vocabularies: no symbol of the data is encoded as padding, start, end or unknown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsallis.errors import InputError
from tsallis.symbols import BOS, EOS, PAD, SPECIALS, UNK
from tsallis.toolkit.data import Vocabulary

# Lone surrogates are excluded: UTF-8 can't represent them, so no file contains them.
SYMBOLS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)


def test_special_symbols_have_numbers_0_to_3() -> None:
    assert (PAD, BOS, EOS, UNK) == (0, 1, 2, 3)
    assert [Vocabulary([]).name(i) for i in range(4)] == ["<pad>", "<s>", "</s>", "<unk>"]
    assert len(Vocabulary([])) == 4


def test_symbols_are_sorted_by_frequency_then_code_point() -> None:
    vocabulary = Vocabulary.build([list("bca"), list("cb"), list("c")])
    assert vocabulary.symbols == ("c", "b", "a")
    assert Vocabulary.build([list("ba"), list("ab")]).symbols == ("a", "b")
    assert vocabulary == Vocabulary.build([list("c"), list("bca"), list("bc")])


def test_rare_symbols_are_left_out() -> None:
    vocabulary = Vocabulary.build([list("aab"), list("bc")], min_count=2)
    assert vocabulary.symbols == ("a", "b")
    assert vocabulary.encode("abc") == [4, 5, UNK]
    with pytest.raises(ValueError, match="min_count must be at least 1, got 0"):
        Vocabulary.build([], min_count=0)


@pytest.mark.parametrize("special", SPECIALS)
def test_symbols_named_like_specials_get_their_own_number(special: str) -> None:
    assert Vocabulary(["a"]).encode([special]) == [UNK]
    vocabulary = Vocabulary.build([[special, "a"]])
    (number,) = vocabulary.encode([special])
    assert number >= 4
    assert vocabulary.decode([BOS, number, EOS, PAD]) == special
    assert Vocabulary.from_json(vocabulary.to_json()) == vocabulary


def test_decode_drops_specials_except_unknown() -> None:
    vocabulary = Vocabulary(["a"])
    assert vocabulary.decode([1, 4, 3, 2, 0, 0]) == "a<unk>"
    for number in (5, -1):
        with pytest.raises(IndexError, match=f"from 0 to 4, got {number}"):
            vocabulary.decode([number])


def test_duplicate_symbols_raise() -> None:
    with pytest.raises(InputError, match="'b' occurs more than once"):
        Vocabulary(["a", "b", "b"])


@given(st.lists(SYMBOLS, unique=True))
def test_symbols_round_trip_through_json_and_encoding(symbols: list[str]) -> None:
    vocabulary = Vocabulary(symbols)
    again = Vocabulary.from_json(vocabulary.to_json())
    assert again == vocabulary and hash(again) == hash(vocabulary)
    assert again.fingerprint() == vocabulary.fingerprint()
    assert [again.name(number) for number in again.encode(symbols)] == symbols
    assert again.decode(again.encode(symbols)) == "".join(symbols)


WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=" "), min_size=1, max_size=4)


@given(st.lists(WORDS, unique=True))
def test_separated_symbols_round_trip(symbols: list[str]) -> None:
    vocabulary = Vocabulary.build([" ".join(symbols)], separator=" ")
    assert set(vocabulary.symbols) == set(symbols)
    again = Vocabulary.from_json(vocabulary.to_json())
    assert again == vocabulary != Vocabulary(vocabulary.symbols)
    assert again.decode(again.encode(symbols)) == " ".join(symbols)
    assert again.encode(" ".join(symbols)) == again.encode(symbols)


def test_symbols_containing_the_separator_raise() -> None:
    for symbol in ("a b", ""):
        with pytest.raises(InputError, match=f"symbols must not be empty or contain ' ', found {symbol!r}"):
            Vocabulary([symbol], " ")


def test_fingerprints_depend_on_order_and_boundaries() -> None:
    prints = {Vocabulary(s).fingerprint() for s in (["a", "b"], ["b", "a"], ["ab"], ["a", "b", ""], ["a,b"], [])}
    prints |= {Vocabulary(s, " ").fingerprint() for s in (["a", "b"], ["ab"], [])}
    assert len(prints) == 9
    assert all(len(p) == 64 and set(p) <= set("0123456789abcdef") for p in prints)


def test_fingerprints_are_stable_across_versions() -> None:
    """Stored runs contain the fingerprint: if its computation changed, they would all look damaged."""
    expected = "253c719c2ae1986a73ef82c5f6e5c17c0bb31744f794fa6cb498e143a07e0cea"
    assert Vocabulary(["a", "ß", "<tag:V>"]).fingerprint() == expected


def test_vocabularies_round_trip_through_files(tmp_path: Path) -> None:
    vocabulary = Vocabulary(["a", "\u2028", " ", '"', "\\", "😀", "e\u0301"])
    vocabulary.save(tmp_path / "vocab.json")
    assert Vocabulary.load(tmp_path / "vocab.json") == vocabulary
    assert [p.name for p in tmp_path.iterdir()] == ["vocab.json"]


def content(**changes: object) -> bytes:
    return json.dumps({**json.loads(Vocabulary(["a", "b"]).to_json()), **changes}).encode()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a vocabulary file"),
        (b"[1, 2]", "not a vocabulary file"),
        (b"null", "not a vocabulary file"),
        (b'{"symbols": ["a"]}', "not a vocabulary file"),
        (b"[" * 200_000, "not a vocabulary file"),
        (b'{"symbols": ["\xff"]}', "expected UTF-8 text, found byte 0xff"),
        (content(format=2), "do not match the fingerprint"),
        (content(symbols=["a", 1]), "do not match the fingerprint"),
        (content(symbols=["a", {}]), "not a vocabulary file"),
        (content(symbols=["a", "a"]), "'a' occurs more than once"),
        (content(symbols=["a"]), "do not match the fingerprint"),
        (content(symbols=["b", "a"]), "do not match the fingerprint"),
        (content(fingerprint=None), "do not match the fingerprint"),
        (content(separator=" "), "do not match the fingerprint"),
        (content(separator="b"), "symbols must not be empty or contain 'b', found 'b'"),
        (content(separator=3), "not a vocabulary file"),
    ],
)
def test_damaged_files_raise(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "vocab.json"
    path.write_bytes(data)
    with pytest.raises(InputError) as error:
        Vocabulary.load(path)
    assert str(error.value).startswith(f"{path}: ") and message in str(error.value)
