"""Recordings in folders: they come back as they were, and damage is reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analysis_samples import LAYERS, corpus, random_sentences, recording_of, transformer
from tsallis.analysis import (
    Recording,
    Sentence,
)
from tsallis.errors import InputError
from tsallis.toolkit.run_analysis import load_recording, save_recording


def same(one: Sentence, other: Sentence) -> bool:
    arrays = [(a, b) for a, b in zip(one.weights, other.weights, strict=True)]
    return one.text == other.text and all(
        a.shape == b.shape
        and a.offsets.tolist() == b.offsets.tolist()
        and a.columns.tolist() == b.columns.tolist()
        and a.values.tolist() == b.values.tolist()
        for a, b in arrays
    )


@pytest.mark.parametrize("part", [1, 4, 4096])
def test_a_saved_recording_comes_back(tmp_path: Path, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tsallis.toolkit.run_analysis.store.SENTENCES", part)
    sentences = list(random_sentences(11, LAYERS))
    save_recording(Recording(LAYERS, sentences), tmp_path / "deep" / "recording")
    copy = load_recording(tmp_path / "deep" / "recording")
    assert copy.layers == LAYERS
    for _ in range(2):  # it can be read again
        assert all(same(a, b) for a, b in zip(copy, sentences, strict=True))
    files = sorted(path.name for path in (tmp_path / "deep" / "recording").iterdir())
    assert len(files) == -(-11 // part) + 1
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["recording"]  # nothing is left beside it


def test_a_model_recorded_and_copy_is_the_same(tmp_path: Path) -> None:
    recording = recording_of(transformer(), corpus())
    save_recording(recording, tmp_path / "r")
    assert all(same(a, b) for a, b in zip(load_recording(tmp_path / "r"), recording, strict=True))


def test_nothing_is_there_after_a_failed_save(tmp_path: Path) -> None:
    class Failing:
        def __iter__(self) -> Any:
            yield from random_sentences(3, LAYERS)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        save_recording(Recording(LAYERS, Failing()), tmp_path / "r")
    with pytest.raises(InputError, match="no sentences to save"):
        save_recording(Recording(LAYERS, []), tmp_path / "r")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "r").mkdir()
    with pytest.raises(InputError, match="there already"):
        save_recording(Recording(LAYERS, random_sentences(3, LAYERS)), tmp_path / "r")


def save(folder: Path) -> Path:
    save_recording(Recording(LAYERS, random_sentences(3, LAYERS)), folder)
    return folder


def test_damage_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"manifest\.json: can't be read"):
        load_recording(tmp_path)
    folder = save(tmp_path / "cut")
    part = folder / "part-00000.safetensors"
    blob = part.read_bytes()
    for damaged in (blob[:-1], blob[:100] + b"x" + blob[101:], b""):
        part.write_bytes(damaged)
        with pytest.raises(InputError, match=r"part-00000\.safetensors: not the file the manifest describes"):
            list(load_recording(folder))
    part.unlink()
    with pytest.raises(InputError, match="can't be read"):
        list(load_recording(folder))
    manifest = folder / "manifest.json"
    for content, message in (
        ({"format": 2}, "format 2, this program reads 1"),
        ({"format": 1}, "not the manifest of a recording"),
        ({"format": 1, "layers": [{"kind": "x"}], "parts": []}, "not the manifest of a recording"),
        ({"format": 1, "layers": 3, "parts": []}, "not the manifest of a recording"),
    ):
        manifest.write_text(json.dumps(content))
        with pytest.raises(InputError, match=message):
            load_recording(folder)


def test_parts_that_do_not_fit_the_layers_are_reported(tmp_path: Path) -> None:
    folder = save(tmp_path / "r")
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["layers"][0]
    path.write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="not a part of a recording"):
        list(load_recording(folder))
