"""Train, evaluate and average a small translation run with the commands."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from run_seed import SEED
from tsallis.toolkit.datasets.embedded import german_english_numbers

CONFIG = """\
version: 1
data:
  task: translation
  embedded: german-english-numbers
  subwords: {size: 200}
model: {architecture: transformer, d_model: 16, heads: 2, encoder_layers: 1, decoder_layers: 1, d_ff: 32, share: all}
training:
  max_tokens: 600
  learning_rate: 0.01
  schedule: inverse-square-root
  warmup: 10
  label_smoothing: 0.1
  validate_updates: 8
  validation_rows: 10
  keep: 2
  seed: SEED
search: {beam_size: 2}
"""
DEV = german_english_numbers()["dev"][:5]
REPORT = """run on bleu length_ratio chrf ter exact intervals signatures samples loss gold_in_support symbol_accuracy
unknown_symbols gold_possible gold_listed single complete optimal bounded none output_support output_sum
attention_support attention_support_teacher_forced empty empty_rate empty_possible empty_best seconds speed"""


@pytest.fixture(scope="module")
def trained(tsallis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("translation")
    (folder / "config.yaml").write_text(CONFIG.replace("SEED", str(SEED)))
    train = "train", folder / "config.yaml", "training.updates=20", "--run-dir", folder / "run", "--device", "cpu"
    shown = tsallis(*train).stdout
    assert shown.count("dev bleu") == 3 and "dev exact" in shown
    return folder / "run"


@pytest.fixture(scope="module")
def known(trained: Path) -> Path:
    path = trained.parent / "known.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in DEV), encoding="utf-8")
    return path


def test_evaluate_reports_all_metrics(tsallis, trained: Path, known: Path) -> None:
    report = json.loads(tsallis("evaluate", trained, known, "--json").stdout)
    assert {*report} == {*REPORT.split()}
    assert report["samples"] == 5 and report["on"] == str(known) and report["run"] == str(trained)
    assert set(report["signatures"]) == {"bleu", "chrf", "ter"} and "tok:13a" in report["signatures"]["bleu"]
    assert report["complete"] + report["optimal"] + report["bounded"] + report["none"] == pytest.approx(1)
    assert all(math.isfinite(value) for value in report.values() if isinstance(value, float))


def test_two_runs_are_compared(tsallis, trained: Path, known: Path) -> None:
    compared = json.loads(tsallis("evaluate", trained, trained, known, "--json").stdout)["scores"]
    alone = json.loads(tsallis("evaluate", trained, known, "--json").stdout)
    assert list(compared) == ["bleu", "chrf", "ter", "exact"] == list(alone["intervals"])
    for name, score in compared.items():
        assert score["first"] == score["second"] == pytest.approx(alone[name])
        assert score["difference"] == 0 and score["interval"] == [0, 0]
    assert "second - first" in tsallis("evaluate", trained, trained, known).stdout


def test_average_writes_a_usable_checkpoint(tsallis, trained: Path) -> None:
    assert "step-00000016, step-00000020" in tsallis("average", trained).stdout
    used = tsallis("translate", trained, "--checkpoint", "average", stdin=f"{DEV[0][0]}\n")
    assert used.stdout.count("\n") == 1
    assert "only one" not in tsallis("average", trained, "--last", 1).stderr
    refused = tsallis("average", trained, "--last", 3, status=2).stderr
    assert "must be from 1 to 2, got 3" in refused and refused.count("\n") == 1
