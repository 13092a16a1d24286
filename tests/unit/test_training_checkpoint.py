"""Checkpoints are whole or refused, and superseded ones go."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tsallis.errors import InputError
from tsallis.training import Checkpoints


def save(checkpoints: Checkpoints, step: int, best: bool = False, finished: bool = False) -> None:
    model = {"weight": torch.full((3, 2), float(step))}
    training = {"position": step, "random": torch.get_rng_state()}
    checkpoints.save(model, training, {"step": step, "epoch": 1, "metrics": {}}, best, finished)


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


def test_what_a_kill_left_behind_is_swept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    (tmp_path / "step-00000009").mkdir()
    (tmp_path / "step-00000009" / "model.safetensors").write_bytes(b"half")
    (tmp_path / ".index.json.x1.tmp").write_bytes(b"{")
    (tmp_path / "notes.txt").write_text("mine")
    checkpoints.sweep()
    assert names(tmp_path) == {"index.json", "step-00000001", "notes.txt"}


@pytest.mark.parametrize("file", ["model.safetensors", "training.pt"])
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "truncated or changed"),
        (lambda path: path.write_bytes(b""), "0 bytes"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])), "SHA-256"),
        (lambda path: path.unlink(), "can't be read"),
        (lambda path: (path.parent / "manifest.json").write_text("{}"), "says nothing of"),
        (lambda path: (path.parent / "manifest.json").write_text('{"files": []}'), "says nothing of"),
        (lambda path: (path.parent / "manifest.json").write_text("{"), "not a JSON file"),
        (lambda path: (path.parent / "manifest.json").unlink(), "manifest.json: can't be read"),
    ],
)
def test_damage_is_named(tmp_path: Path, file: str, spoil, words: str) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    spoil(tmp_path / "step-00000001" / file)
    load = checkpoints.load_model if file == "model.safetensors" else checkpoints.load_training
    with pytest.raises(InputError, match=words) as caught:
        load("last")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["{}", '{"last": 3, "best": "x"}', "[]", "x"])
def test_an_index_of_another_kind(tmp_path: Path, content: str) -> None:
    (tmp_path / "index.json").write_text(content)
    with pytest.raises(InputError, match=r"index\.json"):
        Checkpoints(tmp_path).index()
