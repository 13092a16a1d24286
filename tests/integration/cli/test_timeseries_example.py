"""The example of irregular time series runs in a new process, and its metrics are correct."""

from __future__ import annotations

import csv
import json
import lzma
import random
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

from integration.cli.conftest import run_example
from repository_tools import load_program

pytestmark = pytest.mark.slow

STAYS = 120
QUICK = ("--epochs", "4", "--batch-size", "32", "--num-basis", "5", "--d-model", "8")


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return load_program("examples/timeseries")


def stay(identity: int, died: bool, chance: random.Random) -> list[tuple[int, int, str, float]]:
    """Return descriptors, heart rates and temperatures at random times; patients who die end with a fast heart rate."""
    rows = [(identity, 0, "Age", chance.randint(20, 90)), (identity, 0, "Gender", chance.choice([0, 1, -1]))]
    rows += [(identity, 0, "Height", -1.0), (identity, 0, "ICUType", chance.randint(1, 4))]
    for minute in sorted(chance.randint(0, 2880) for _ in range(chance.randint(8, 20))):
        rows.append((identity, minute, "HR", chance.gauss(80, 10) + 60 * died * (minute > 1440)))
    for minute in sorted(chance.randint(0, 2880) for _ in range(chance.randint(0, 4))):
        rows.append((identity, minute, "Temp", chance.gauss(37, 1)))
    return rows


@pytest.fixture(scope="module")
def challenge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("challenge")
    chance = random.Random(0)
    for name, first in (("a", 1000), ("b", 5000)):
        outcomes = {first + i: i % 3 == 0 for i in range(STAYS)}
        with (folder / f"Outcomes-{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("RecordID", "In-hospital_death"), *((i, int(d)) for i, d in outcomes.items())])
        rows = [row for identity, died in outcomes.items() for row in stay(identity, died, chance)]
        with lzma.open(folder / f"set-{name}.csv.xz", "wt", newline="") as packed:
            csv.writer(packed).writerows([("RecordID", "minute", "parameter", "value"), *rows])
    return folder


def test_continuous_attention_finds_the_end_of_the_stay(challenge: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "results" / "one.json", tmp_path / "densities.html"
    inputs = ["--data", challenge, *QUICK, "--learning-rate", "0.02", "--epochs", "12", "--out", out, "--page", page]
    done = run_example("timeseries", *inputs)
    result = json.loads(done.stdout)
    assert json.loads(out.read_text()) == result and "epoch 1: loss" in done.stderr
    assert result["auroc"] > 0.9 and result["auprc"] > 0.8
    assert result["stays"] == {"train": 96, "dev": 24, "test": 120}
    assert result["deaths"] == {"train": 32, "dev": 8, "test": 40}
    assert result["options"]["model"] == "continuous" and result["options"]["transform"] == "sparsemax"
    assert set(result["attention"]["channels"]) == {"HR", "Temp"}
    heart = result["attention"]["channels"]["HR"]
    for mean, lower, upper in zip(heart["mean"], heart["lower"], heart["upper"], strict=True):
        assert 0 <= lower <= mean <= upper <= 48
    assert 0 < result["attention"]["attended"] <= 1 and 0 < result["attention"]["observations_attended"] <= 1
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text("utf-8"), re.S)
    assert data is not None
    assert [signal["channel"] for signal in json.loads(data[1])["signals"]] == ["HR", "HR", "Temp", "Temp"]


def test_auroc_and_auprc_match_known_values(example: ModuleType) -> None:
    labels = torch.tensor([0.0, 0.0, 1.0, 1.0])
    scores = torch.tensor([0.1, 0.4, 0.35, 0.8])
    assert example.auroc(scores, labels) == 0.75 and example.auprc(scores, labels) == pytest.approx(5 / 6)
    assert example.auroc(labels, labels) == example.auprc(labels, labels) == 1
