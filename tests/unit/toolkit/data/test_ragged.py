"""Rows in files equal rows in lists, and incomplete or changed files are rejected."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tsallis.errors import InputError
from tsallis.toolkit.data.ragged import MANIFEST, OFFSETS, TOKENS, RaggedRows, RaggedWriter, digest_of, type_for

ROWS = [[5, 6, 7], [], [65_535], [4] * 100, []]
LISTS = st.lists(st.lists(st.integers(0, 65_535), max_size=6), max_size=12)


def written(folder: Path, rows: list[list[int]] = ROWS, dtype: str = "<u2", chunk: int = 2) -> RaggedRows:
    with contextlib.closing(RaggedWriter(folder, dtype)) as writer:
        for start in range(0, len(rows), chunk):
            writer.extend(rows[start : start + chunk])
        writer.finish()
    return RaggedRows.open(folder)


@settings(deadline=None)
@given(LISTS, st.sampled_from(["<u2", "<u4"]), st.integers(1, 5), st.data())
def test_stored_rows_match_lists(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[int]], dtype: str, chunk: int, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("rows") / "r"
    ragged = written(folder, rows, dtype, chunk)
    for form in (ragged, RaggedRows.open(folder), RaggedRows.of(rows)):
        assert len(form) == len(rows) and form == rows
        assert [r.tolist() for r in form] == rows
        assert form.lengths.tolist() == list(map(len, rows))
        assert form.digest == digest_of(rows) == digest_of(form)
        index = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=9)) if rows else []
        flat, lengths = form.rows(index)
        assert flat.tolist() == [i for location in index for i in rows[location]]
        assert lengths.tolist() == [len(rows[location]) for location in index]
    assert ragged.tokens.dtype == np.dtype(dtype)


def test_rows_are_indexed_and_read_only(tmp_path: Path) -> None:
    rows = written(tmp_path / "r")
    assert rows[-2].tolist() == [4] * 100 and rows[2].dtype == np.uint16
    for index in (5, -6):
        with pytest.raises(IndexError, match=f"from 0 to 4, got {index}"):
            rows[index]
    assert rows != ROWS[:-1] and rows != [*ROWS[:-1], [1]] and rows != "rows"
    with pytest.raises(ValueError, match="read-only"):
        rows[0][0] = 9


def test_different_rows_have_different_digests() -> None:
    assert len({digest_of(rows) for rows in ([], [[]], [[1, 2]], [[1], [2]], [[2, 1]], [[1, 2], []])}) == 6


def test_type_for_returns_the_smallest_dtype() -> None:
    assert [type_for(n) for n in (1, 256, 257, 65_536, 65_537, 1 << 32)] == ["<u1", "<u1", "<u2", "<u2", "<u4", "<u4"]
    for count in (0, (1 << 32) + 1):
        with pytest.raises(ValueError, match=rf"symbols must be from 1 to 2\^32, got {count}"):
            type_for(count)


def test_rows_without_a_manifest_cannot_be_opened(tmp_path: Path) -> None:
    with contextlib.closing(RaggedWriter(tmp_path / "r", "<u2")) as writer:
        writer.extend(ROWS)
        with pytest.raises(InputError, match=r"manifest\.json: can't be read: No such file"):
            RaggedRows.open(tmp_path / "r")
        writer.finish()
    assert sorted(p.name for p in (tmp_path / "r").iterdir()) == [MANIFEST, OFFSETS, TOKENS]


def test_rows_reach_the_disk_before_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []  # of the files that were flushed

    def fsync(handle: int) -> None:
        sizes.append(os.fstat(handle).st_size)

    monkeypatch.setattr(os, "fsync", fsync)
    written(tmp_path / "rows")
    manifest, *_ = sizes[2:]
    files = [tmp_path / "rows" / name for name in (TOKENS, OFFSETS, MANIFEST)]
    assert [*sizes[:2], manifest] == [file.stat().st_size for file in files]


def test_existing_folders_are_not_overwritten(tmp_path: Path) -> None:
    rows = written(tmp_path / "r")
    with pytest.raises(FileExistsError):
        RaggedWriter(tmp_path / "r", "<u2")
    assert rows == ROWS and RaggedRows.open(tmp_path / "r") == ROWS


@pytest.mark.parametrize("name", [TOKENS, OFFSETS])
def test_files_of_the_wrong_size_raise(tmp_path: Path, name: str) -> None:
    written(tmp_path / "r")
    path = tmp_path / "r" / name
    whole = path.read_bytes()
    for blob in (whole[:-1], whole + b"\0", b""):
        path.write_bytes(blob)
        with pytest.raises(InputError, match=rf"{name}: .*expected {len(whole)} bytes, found {len(blob)}"):
            RaggedRows.open(tmp_path / "r")
    path.unlink()
    with pytest.raises(InputError, match=rf"{name}: can't be read: No such file"):
        RaggedRows.open(tmp_path / "r")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "not a manifest of token files"),
        ({"dtype": "O"}, "not a manifest of token files"),
        ({"dtype": ["<u2"]}, "not a manifest of token files"),
        ({"rows": -1}, "truncated or changed"),
        ({"symbols": "104"}, "not a manifest of token files"),
        ({"digest": None}, "not a manifest of token files"),
        ({"rows": 6}, "truncated or changed"),
        ({"symbols": 105}, "truncated or changed"),
    ],
)
def test_changed_manifests_raise(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    written(tmp_path / "r")
    path = tmp_path / "r" / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(InputError, match=message):
        RaggedRows.open(tmp_path / "r")
    for blob in (b"", b"[]", b"\xff"):
        path.write_bytes(blob)
        with pytest.raises(InputError, match=r"manifest\.json: "):
            RaggedRows.open(tmp_path / "r")
