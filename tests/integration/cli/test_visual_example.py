"""The example on questions about images runs, learns, and says what it looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from integration.cli.conftest import run_example

pytestmark = pytest.mark.slow

COLOURS = ["red", "green", "blue"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A square of one of three colours on the left or on the right of each image."""
    path = tmp_path_factory.mktemp("visual")
    chance = np.random.default_rng(0)
    for name, count in (("train", 60), ("test", 20)):
        images = np.zeros((count, 16, 32, 3), np.uint8)
        lines = ["image\tquestion\tanswer"]
        for i in range(count):
            colour, left = int(chance.integers(3)), bool(chance.integers(2))
            images[i, 4:12, slice(4, 12) if left else slice(20, 28), colour] = 255
            lines.append(f"{i}\twhat color is the square?\t{COLOURS[colour]}")
            lines.append(f"{i}\tis the square on the left?\t{'yes' if left else 'no'}")
        np.save(path / f"{name}.npy", images)
        (path / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def result(folder: Path) -> dict[str, Any]:
    out = folder / "new" / "result.json"
    files = [f"--{split}-{part}" for split in ("train", "test") for part in ("questions", "images")]
    names = ["train.tsv", "train.npy", "test.tsv", "test.npy"]
    options = """--d-model 16 --warmup 5 --batch-size 16 --learning-rate 0.005 --attention continuous --density 2
        --num-basis 16 --epochs 12 --looks 3"""
    inputs = [part for pair in zip(files, names, strict=True) for part in pair]
    done = run_example("visual", "--data", folder, *inputs, *options.split(), "--out", out)
    assert json.loads(done.stdout) == json.loads(out.read_text(encoding="utf-8"))
    actual: dict[str, Any] = json.loads(done.stdout)
    return actual


def test_it_learns(result: dict[str, Any]) -> None:
    assert result["accuracy"] > 0.9 and result["dev_accuracy"] > 0.9
    assert result["questions"] == {"train": 108, "dev": 12, "test": 40} and result["known_answers"] == 1
    assert {kind: row["questions"] for kind, row in result["kinds"].items()} == {"yes/no": 20, "other": 20}
    mean = sum(row["questions"] * row["accuracy"] for row in result["kinds"].values()) / 40
    assert mean == pytest.approx(result["accuracy"]) and 0 < result["attended"] <= 1
    assert len(result["epochs"]) == 12 and result["model"]["density"] == 2 and result["options"]["seed"] == 1
