"""`tsallis evaluate --manifest`: the scores, and everything that is needed to reproduce them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from flags import flags
from run_seed import SEED
from tsallis.toolkit.evaluation.provenance import digest_files, find_commit

pytestmark = pytest.mark.process


def test_manifests_have_scores_config_data_and_origin(tsallis, trained: Path, small_data: Path, tmp_path: Path) -> None:
    path = tmp_path / "results" / "verbs.json"
    printed = json.loads(tsallis("evaluate", trained, "--beam-size", 2, "--manifest", path, "--json").stdout)
    manifest = json.loads(path.read_text(encoding="utf-8"))
    metrics = manifest["metrics"]
    assert {key: printed[key] for key in metrics} == metrics and metrics["samples"] > 0
    assert manifest["run"]["name"] == trained.name and manifest["run"]["step"] > 0
    assert manifest["config"]["model"]["d_model"] == 24 and manifest["config"]["data"]["folder"] == small_data.name
    train, dev = (digest_files([small_data / name]) for name in ("train.tsv", "dev.tsv"))
    assert manifest["data"] == {"train": train, "dev": dev, "test": dev}
    events = [json.loads(line) for line in (trained / "timing.jsonl").read_text().splitlines()]
    training = manifest["training"]
    assert training["seed"] == SEED and training["updates"] == max(event["step"] for event in events)
    assert training["seconds"] == round(sum(x["seconds"] for x in events if x["event"] == "epoch"), 1)
    (origin,) = training["origins"]
    assert origin["commit"] == find_commit() and {"torch", "python", "cpu", "threads"} <= origin.keys()
    evaluation = manifest["evaluation"]
    assert (evaluation["split"], evaluation["beam_size"], evaluation["checkpoint"]) == ("test", 2, "best")
    assert evaluation["cpu"] == origin["cpu"]
    assert str(tmp_path.parent) not in path.read_text(encoding="utf-8")


def test_manifest_records_files_and_ensemble_members(tsallis, trained: Path, small_data: Path, tmp_path: Path) -> None:
    path, lines = tmp_path / "a.json", small_data / "dev.tsv"
    tsallis("evaluate", trained, lines, "--with", trained, "--manifest", path)
    manifest = json.loads(path.read_text(encoding="utf-8"))
    assert manifest["data"]["dev.tsv"] == digest_files([lines]) and "split" not in manifest["evaluation"]
    assert [member["name"] for member in manifest["others"]] == [trained.name]
    assert manifest["others"][0]["training"] == manifest["training"]


def test_manifest_records_the_end_rule(tsallis, trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for options in ({}, {"end_rule": "every"}, {"end_rule": "competing"}, {"mode": "exact"}):
        rule = None if "mode" in options else options.get("end_rule", "every")
        tsallis("evaluate", trained, "--split", "dev", *flags(**options), "--manifest", path)
        evaluation = json.loads(path.read_text(encoding="utf-8"))["evaluation"]
        assert evaluation.get("end_rule") == rule and evaluation["mode"] == options.get("mode", "beam")
        assert evaluation.get("budget") == (10_000 if "mode" in options else None)


def test_files_named_like_a_split_have_another_entry(tsallis, trained: Path, small_data: Path, tmp_path: Path) -> None:
    path, lines = tmp_path / "a.json", tmp_path / "test"
    lines.write_text("walk\twalked\tV;PST\n", encoding="utf-8")
    tsallis("evaluate", trained, lines, "--manifest", path)
    data = json.loads(path.read_text(encoding="utf-8"))["data"]
    assert data["test"] == digest_files([small_data / "dev.tsv"]) and data["file test"] == digest_files([lines])


def test_missing_data_has_no_digest_in_the_manifest(tsallis, trained: Path, tmp_path: Path) -> None:
    path, run = tmp_path / "a.json", Path(shutil.copytree(trained, tmp_path / "run"))
    config = (run / "config.yaml").read_text(encoding="utf-8")
    (run / "config.yaml").write_text(config.replace("train: train.tsv", "train: gone.tsv"), encoding="utf-8")
    tsallis("evaluate", run, "--split", "dev", "--manifest", path)
    manifest = json.loads(path.read_text(encoding="utf-8"))
    assert manifest["data"]["train"] is None and manifest["data"]["dev"] is not None
    assert "expected a file to write" in tsallis("evaluate", trained, "--manifest", tmp_path, status=2).stderr
