"""Run the commands as a user does."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.cli.conftest import json_lines
from tsallis.errors import InputError
from tsallis.toolkit.datasets.registry import SOURCES
from tsallis.toolkit.training.distributed import World


def test_info_compares_the_kernels(tsallis) -> None:
    lines = tsallis("info", "--check").stdout.splitlines()
    (header,) = (number for number, line in enumerate(lines) if line.startswith("backend device"))
    rows = [line.split()[:4] for line in lines[header + 1 :]]
    if any("cpu (compiled kernels" in line for line in lines):
        assert ["cpu", "cpu", "float32", "maps"] in rows and ["cpu", "cpu", "float16", "losses"] in rows
    assert not any("WRONG" in line for line in lines)


@pytest.mark.parametrize("command", ["evaluate", "score", "translate"])
def test_processes_choose_their_devices_before_a_run_is_opened(
    command: str, tsallis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    @contextlib.contextmanager
    def joined(*_: object) -> Iterator[World]:
        calls.append("join")
        yield World()

    def opened(*_: object) -> None:
        calls.append("open")
        raise InputError("no run")

    monkeypatch.setattr("tsallis.toolkit.training.distributed.init_distributed", joined)
    monkeypatch.setattr(f"tsallis.toolkit.cli.{command}.open_run", opened)
    assert "no run" in tsallis(command, tmp_path, status=2).stderr
    assert calls == ["join", "open"]


def test_translate_score_and_evaluate_agree(tsallis, trained: Path, small_data: Path) -> None:
    lines = (small_data / "dev.tsv").read_text().splitlines()
    request = "".join(f"{line.split(chr(9))[0]}\t{line.split(chr(9))[2]}\n" for line in lines)
    forms = tsallis("translate", trained, stdin=request).stdout.split("\n")[:-1]
    assert len(forms) == len(lines)
    listed = json_lines(tsallis("translate", trained, "--json", stdin=request).stdout)
    assert [x["hypotheses"][0]["text"] if x["hypotheses"] else "" for x in listed] == forms
    result = [(line, x["hypotheses"][0]) for line, x in zip(lines, listed, strict=True) if x["hypotheses"]]
    answers = "".join(f"{a.split(chr(9))[0]}\t{h['text']}\t{a.split(chr(9))[2]}\n" for a, h in result)
    scores = [float(x) for x in tsallis("score", trained, stdin=answers).stdout.split()]
    for (_, hypothesis), score in zip(result, scores, strict=True):
        assert score == pytest.approx(hypothesis["log_prob"], abs=1e-4)
    report = json.loads(tsallis("evaluate", trained, "--json").stdout)
    right = sum(form == line.split("\t")[1] for form, line in zip(forms, lines, strict=True))
    assert report["accuracy"] == pytest.approx(right / len(lines))
    assert report["complete"] + report["optimal"] + report["bounded"] + report["none"] == pytest.approx(1)
    table = tsallis("evaluate", trained, small_data / "dev.tsv").stdout
    assert "accuracy" in table and "proved complete" in table and f"{report['accuracy']:.2%}" in table


def test_unknown_reference_symbols_are_counted(tsallis, trained: Path, small_data: Path, tmp_path: Path) -> None:
    """`score` treats such references as impossible; `evaluate` counts the symbols, and its files may be links."""
    known, unknown = tmp_path / "known.tsv", tmp_path / "unknown.tsv"
    lemma, form, tags = (small_data / "train.tsv").read_text().splitlines()[0].split("\t")
    known.write_text(f"{lemma}\t{form}\t{tags}\n")
    unknown.write_text(f"{lemma}\t☃{form[1:-1]}☃\t{tags}\n")
    symbols = len(form) + 1
    assert tsallis("score", trained, unknown).stdout == "-inf\n"
    for file, count in ((known, 0), (unknown, 2)):
        for name in ("out", "manifest"):
            (tmp_path / name).unlink(missing_ok=True)
            (tmp_path / name).symlink_to(tmp_path / f"{file.stem}-{name}")
        outputs = "--out", tmp_path / "out", "--manifest", tmp_path / "manifest"
        text = tsallis("evaluate", trained, file, *outputs).stdout
        assert (f"{'unknown reference symbols':<34}{count:>10}" in text.splitlines()) == (count > 0)
        metrics = json.loads((tmp_path / f"{file.stem}-manifest").read_text())["metrics"]
        assert metrics["unknown_symbols"] == count and metrics["gold_in_support"] <= 1 - count / symbols
        assert metrics["symbol_accuracy"] <= 1 - count / symbols and math.isfinite(metrics["loss"])
        assert (tmp_path / "manifest").is_symlink() and (tmp_path / "out").is_symlink()
        assert json.loads((tmp_path / f"{file.stem}-out").read_text())["line"] == 1


@pytest.mark.slow
def test_demo_shows_two_models_and_what_to_try(tsallis, tmp_path: Path) -> None:
    text = tsallis("demo", "--run-dir", tmp_path / "demo", "--updates", 20).stdout
    for lemma in ("travel", "model", "vlog"):
        (heading, *rows) = text.split(f"\n  {lemma}, ")[1].split("\n\n")[0].split("\n")
        assert heading.endswith(":") and rows[0].split()[0] == "1.5-entmax:" and "softmax: " in rows[0]
        assert sum("sum " in row for row in rows) >= 1
    drawing = text.split("exactly zero:\n\n")[1].split("\n\n")[0].split("\n")
    assert drawing[0].split() == ["V", "PST", *"travel"] and drawing[-1].split()[0] == "end"
    assert (tmp_path / "demo/report.html").is_file() and (tmp_path / "demo-softmax/checkpoints").is_dir()
    commands = [line.strip() for line in text.split("To try next:")[1].strip().split("\n")]
    assert len(commands) == 3
    for command in commands:
        shown, _, arguments = command.partition(" | tsallis ")
        stdin = shown.split("'")[1].encode().decode("unicode_escape")
        assert tsallis(*arguments.split(), stdin=stdin).stdout


def test_demo_names_a_run_folder_that_is_a_file(tsallis, tmp_path: Path) -> None:
    (tmp_path / "demo-softmax").write_text("a file")
    done = tsallis("demo", "--run-dir", tmp_path / "demo", status=2)
    assert done.stderr.count("\n") == 1 and "demo-softmax: expected a folder, found a file" in done.stderr


@pytest.mark.parametrize("folder", [".", "/", "..", "runs/.."])
def test_demo_needs_a_folder_with_a_name(tsallis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    done = tsallis("demo", "--run-dir", folder, status=2)
    assert done.stderr.count("\n") == 1 and done.stderr.endswith(f"a name, such as runs/demo, got {folder}\n")
    assert list(tmp_path.rglob("*")) == [tmp_path / "here"]


def test_look_prints_weights(tsallis, trained: Path) -> None:
    done = tsallis("look", trained, "--weights", stdin="walk\tV;PST\nrebel\tV;PST\n")
    contents = json_lines(done.stdout)
    assert [content["line"] for content in contents] == [1, 2] and contents[1]["source"][-5:] == [*"rebel"]
    for content in contents:
        (entry,) = content["attention"]
        sums = [0.0] * len(content["target"])
        for row, _, weight in entry["weights"]:
            sums[row] += weight
        assert sums == pytest.approx([1.0] * len(sums), abs=1e-4)
        assert "".join(content["target"][:-1]) == content["text"]


def test_look_writes_a_page_with_every_line(tsallis, trained: Path, tmp_path: Path) -> None:
    lines, page = 40, tmp_path / "look.html"  # more than a report shows by default
    done = tsallis("look", trained, "--out", page, stdin="walk\tV;PST\n" * lines)
    assert done.stdout == f"{page}\n"
    data = re.search(r'<script[^>]*id="data"[^>]*>(.*?)</script>', page.read_text(), re.S)
    (run,) = json.loads(data[1])["runs"]
    assert len(run["sentences"]) == lines and all(sentence["answer"] for sentence in run["sentences"])


def test_every_data_set_is_listed(tsallis) -> None:
    lines = tsallis("data", "list").stdout.split("\n")
    assert [line.split("\t")[0] for line in lines if line and not line.startswith("\t")] == list(SOURCES)
    assert {"imdb", "sst2", "trec", "easy-vqa", "daquar", "physionet2012"} <= set(SOURCES)
    daquar = lines[[line.split("\t")[0] for line in lines].index("daquar")]
    assert "may come to 1 GB" in daquar


def test_data_list_filters_by_text_and_language(tsallis) -> None:
    sets = json_lines(tsallis("data", "list", "--json").stdout)
    assert len(sets) > 5 and all(s["licence"] and s["citation"] and s["files"] for s in sets)
    german = [s["name"] for s in json_lines(tsallis("data", "list", "--language", "de", "--json").stdout)]
    assert german == [s["name"] for s in sets if "de" in s["languages"]] and 0 < len(german) < len(sets)
    (one,) = json_lines(tsallis("data", "list", "TASK 1: CAPTIONS", "--json").stdout)
    assert one["name"] == "multi30k" and one["bytes"] > 10**6
    errors = tsallis("data", "get", "multi30k", "--languages", "de, it", status=2).stderr
    assert "no language 'it'; it has cs, de, en, fr" in errors
    assert "no language ''" in tsallis("data", "get", "multi30k", "--languages", "", status=2).stderr
    assert "no data set matches 'nothing'" in tsallis("data", "list", "nothing", status=2).stderr
