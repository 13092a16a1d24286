"""Hallucinated training examples: affixes are kept, stems are replaced, and only training data grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from task_runs import config_of
from tsallis.errors import InputError
from tsallis.toolkit.tasks.hallucination import hallucinate
from tsallis.toolkit.tasks.prepared import prepare
from tsallis.toolkit.tasks.strings import StringsExample

WALK = StringsExample("walk", ("V", "PST"), "walked")


def test_affixes_and_features_are_kept_and_stems_are_replaced() -> None:
    verbs = [StringsExample("kaufen", ("V", "PTCP"), "gekauft"), StringsExample("bohren", ("V", "PTCP"), "gebohrt")]
    new = hallucinate(verbs, 50, ("", ""))
    assert len(new) == 50 and len({example.source for example in new}) > 40
    for example in new:
        stem = example.source[:4]
        assert example == StringsExample(f"{stem}en", ("V", "PTCP"), f"ge{stem}t")
        assert set(stem) <= set("kaufenbohren") & set("gekauftgebohrt")


def test_all_stems_of_an_example_are_replaced() -> None:
    (new,) = hallucinate([StringsExample("abcxdef", ("N",), "abcyydef")], 1, ("", ""))
    assert new.source[3] == "x" and new.target == f"{new.source[:3]}yy{new.source[4:]}"
    assert set(new.source[:3] + new.source[4:]) <= set("abcdef") and new.source != "abcxdef"


def test_symbols_of_several_characters_are_kept_whole() -> None:
    source = StringsExample("uː ts a", ("N",), "uː ts a n")
    for new in hallucinate([source], 20, (" ", " ")):
        assert new.target == f"{new.source} n" and set(new.source.split()) <= {"uː", "ts", "a"}


def test_spaces_stay_where_they_are() -> None:
    for new in hallucinate([StringsExample("walk up", ("PST",), "walk ups")], 20, ("", "")):
        assert new.source[4] == " " and new.target == f"{new.source}s" and new.source.count(" ") == 1


def test_new_symbols_come_from_the_same_language() -> None:
    latin = StringsExample("abc", ("N",), "abcd", "latin")
    greek = StringsExample("αβγ", ("N",), "αβγδ", "greek")
    new = hallucinate([latin, greek], 20, ("", ""))
    assert {example.language for example in new} == {"latin", "greek"}
    for example in new:
        assert set(example.source) <= set("abc" if example.language == "latin" else "αβγ")


def test_hallucinate_is_deterministic() -> None:
    assert hallucinate([WALK], 9, ("", "")) == hallucinate([WALK], 9, ("", ""))
    assert hallucinate([WALK], 3, ("", "")) == hallucinate([WALK], 9, ("", ""))[:3]


def test_examples_without_features_or_stems_are_rejected() -> None:
    for example in (StringsExample("walk", (), "walked"), StringsExample("go", ("PST",), "went")):
        with pytest.raises(InputError, match=r"data\.hallucinate: expected an example with features"):
            hallucinate([example], 1, ("", ""))


def test_only_training_data_grows(tmp_path: Path) -> None:
    lines = "".join(f"{word}ing\t{word}ed\tV\n" for word in ("walk", "talk", "jump", "play"))
    (tmp_path / "train").write_text(lines, encoding="utf-8")
    data = {"folder": str(tmp_path), "train": "train", "dev": "train", "max_length": 20}
    plain, grown = (
        prepare(config_of({"version": 1, "data": {**data, "hallucinate": count}, "model": {"d_model": 8}})).data
        for count in (0, 7)
    )
    assert len(grown.train) == len(plain.train) + 7 and len(grown.dev.corpus) == len(plain.dev.corpus) == 4
    for side in ("src", "tgt"):
        symbols, expected = (set(getattr(data.vocabularies, side).symbols) for data in (grown, plain))
        assert symbols == expected
