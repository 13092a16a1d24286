"""The benchmarks run from their command line, on tiny shapes, and write the columns their README names."""

from __future__ import annotations

import csv
import importlib
import json
import lzma
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import yaml

import tsallis
from integration.cli.conftest import train_here
from small_run import train
from tsallis.symbols import EOS
from tsallis.toolkit.data import Vocabulary
from tsallis.toolkit.inference import open_run
from tsallis.toolkit.training.checkpoint import Checkpoints
from tsallis.toolkit.training.run_folder import build_model, start_run

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MACHINE = ["backend", "threads", "cpu", "cores", "torch", "tsallis", "entmax", "python", "date"]


def run(script: str, *arguments: object) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(tsallis.__file__).parents[1])}
    command = [sys.executable, str(BENCHMARKS / script), "--threads=1", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_maps(tmp_path: Path) -> None:
    times, errors = tmp_path / "times.csv", tmp_path / "errors.csv"
    peer = find_spec("entmax") is not None
    shapes = ["--maps", "6x120", "--learned", "2x4x3x20", "--losses", "5x30", "--inputs", "normal"]
    files = ["--out", times, "--accuracy", errors]
    printed = run("maps.py", *shapes, *files, "--rounds", 3, "--few", 2, *([] if peer else ["--no-peer"]))
    rows = read(times)
    columns = ["group", "shape", "d", "input", "memory", "operation", "owner"]
    measured = ["forward_ms", "both_ms", "forward_to_dense", "both_to_dense", "forward_to_ours", "both_to_ours"]
    assert list(rows[0]) == [*columns, *measured, "scaled", "rounds", *MACHINE]
    assert {r["group"] for r in rows} == {"maps", "learned", "losses"}
    result = {(r["operation"], r["owner"]) for r in rows}
    alphas = (1.05, 1.1, 1.25, 1.3, 1.4, 1.75)
    names = ["entmax15", "entmax15-bf16", "sparsemax", "entmax-learned", *(f"entmax-{a}" for a in alphas)]
    names += [f"entmax-loss-{a}" for a in (1.0, 1.05, 1.25, 1.5, 1.75, 2.0)]
    assert result >= {(name, "tsallis") for name in names} | {("entmax15", "tsallis eager")}
    if peer:
        sorted_ = ("entmax15", "sparsemax", "entmax-loss-1.5", "entmax-loss-2.0", "entmax-1.25", "entmax-learned")
        assert result >= {(name, "entmax") for name in sorted_} | {("sparsemax", "entmax k=100")}
    for row in rows:
        dense = row["owner"] == "torch"
        assert float(row["both_ms"]) >= float(row["forward_ms"]) > 0
        assert not dense or float(row["both_to_dense"]) == 1
        assert row["rounds"] == ("2" if row["owner"].startswith(("entmax", "tsallis eager")) else "3")
        assert (row["both_to_ours"] != "") == row["owner"].startswith("entmax")
        assert (row["backend"] != "") == row["owner"].startswith("tsallis")
    checked = read(errors)
    assert list(checked[0]) == [*columns, "rows", "error", "sum_error", *MACHINE]
    assert {r["group"] for r in checked} == {"maps", "learned"}
    for row in checked:
        tolerance = 1e-2 if row["operation"].endswith("bf16") else 1e-5
        assert float(row["error"]) < tolerance and float(row["sum_error"]) < tolerance, row
    for target in ("entmax15 / softmax, d < 512", "learned alphas / softmax", "losses / cross-entropy, every alpha"):
        assert target in printed


def test_losses_alone(tmp_path: Path) -> None:
    run("maps.py", "--no-peer", "--maps", "--learned", "--losses", "4x10", "--rounds", 1, "--out", tmp_path / "t.csv")
    rows = read(tmp_path / "t.csv")
    assert {r["group"] for r in rows} == {"losses"}
    assert {r["scaled"] for r in rows} == {"1"}
    assert {r["input"] for r in rows} == {"normal", "normal3", "peaked"}


def test_linear(tmp_path: Path) -> None:
    out = tmp_path / "linear.csv"
    size = ["--tokens", 8, "--d", 8, "--classes", 64, "--rounds", 2, "--inputs", "trained"]
    operations = ["linear-entmax-loss-1.5", "linear-alpha-relu-loss"]
    printed = run("linear.py", *size, "--operations", *operations, "--out", out)
    rows = read(out)
    time = ["forward_seconds", "seconds", "time_ratio"]
    memory = ["extra_mb", "extra_ratio", "extra_without_gradients_mb", "extra_without_gradients_ratio"]
    columns = ["tokens", "d", "classes", "input", "operation", "owner", "tau"]
    assert list(rows[0]) == [*columns, *time, *memory, "support", "rounds", *MACHINE]
    assert [r["operation"] for r in rows] == ["cross-entropy", *operations]
    assert float(rows[0]["time_ratio"]) == 1 and float(rows[0]["support"]) == 64
    assert 1 <= float(rows[1]["support"]) < 64
    assert "time / linear and cross-entropy" in printed


def test_recurrent(tmp_path: Path) -> None:
    for split in ("train-medium", "dev"):
        words = [f"{'ab' * (i % 5 + 1)}\t{'ba' * (i % 7 + 1)}\tN\n" for i in range(400)]
        (tmp_path / f"esperanto-{split}").write_text("".join(words))
    out = tmp_path / "recurrent.csv"
    printed = run("recurrent.py", "--folder", tmp_path, "--d-model", 4, "--updates", 2, "--out", out)
    rows = read(out)
    assert rows[0]["name"] == "PyTorch's operations" and len(rows) == 7
    assert float(rows[0]["to_pytorch"]) == 1 and "samples a second to those of PyTorch's operations" in printed
    assert float(rows[5]["padding_tgt"]) < float(rows[2]["padding_tgt"])
    assert all(float(row["samples_per_second"]) > 0 for row in rows)


def test_allocator(tmp_path: Path) -> None:
    out, recipe = tmp_path / "allocator.csv", BENCHMARKS.parent / "recipes" / "tiny" / "language.yaml"
    size = ("model.d_model=8", "model.layers=1", "training.warmup=1")
    printed = run("allocator.py", "--train", recipe, *size, "--updates", 3, "--rounds", 1, "--out", out)
    (row,) = read(out)
    measured = ["fresh_seconds", "reused_seconds", "to_fresh", "fresh_mb", "reused_mb", "rounds"]
    assert list(row) == ["recipe", "overrides", "updates", *measured, *(name for name in MACHINE if name != "backend")]
    assert row["recipe"] == "tiny/language.yaml" and row["overrides"] == " ".join(size)
    ratio = float(row["reused_seconds"]) / float(row["fresh_seconds"])
    assert float(row["to_fresh"]) == pytest.approx(ratio, rel=1e-2) and "tiny/language.yaml" in printed


@pytest.mark.slow
def test_attention(tmp_path: Path) -> None:
    out = tmp_path / "attention.csv"
    peer = find_spec("entmax") is not None
    sizes = ["--attention", "1x2x9x4", "--bias", "1x2x9x4", "--layers", "1x5", "--dropouts", 0, 0.5, "--rounds", 2]
    printed = run("attention.py", *sizes, "--out", out, *([] if peer else ["--no-peer"]))
    rows = read(out)
    columns = ["group", "shape", "causal", "dropout", "operation", "owner"]
    measured = ["forward_ms", "both_ms", "time_ratio", "tokens_ratio", "extra_mb", "extra_ratio", "rounds"]
    assert list(rows[0]) == [*columns, *measured, *MACHINE]
    result = {(r["group"], r["causal"], r["dropout"], r["operation"], r["owner"]) for r in rows}
    alphas = ("1.0", "1.5", "learned")
    ours = [("attention", causal, "0", f"entmax-{a}") for causal in ("False", "True") for a in alphas]
    ours += [("bias", "False", "0", f"entmax-{a}") for a in alphas]
    ours += [("layers", "False", dropout, f"layer-{a}") for dropout in ("0", "0.5") for a in ("1.5", "learned")]
    assert result >= {(*each, "tsallis") for each in ours}
    assert not peer or ("attention", "False", "0", "entmax-learned", "entmax") in result
    for row in rows:
        assert float(row["both_ms"]) >= float(row["forward_ms"]) > 0
        assert abs(float(row["time_ratio"]) * float(row["tokens_ratio"]) - 1) < 1e-2
    assert "a layer's tokens a second, learned / softmax" in printed
    assert ("attention by the peer's bisection / ours" in printed) == peer


def test_slopes(tmp_path: Path) -> None:
    out = tmp_path / "slopes.csv"
    shapes = ["--slopes", "1x2x512x4", "--windows", 300, 600, "--decoding", 300]
    printed = run("slopes.py", *shapes, "--rounds", 1, "--out", out)
    rows = read(out)
    measured = ["cpu_ms", "time_ratio", "query_us", "support", "rounds"]
    assert list(rows[0]) == ["group", "shape", "operation", "owner", *measured, *MACHINE]
    measured_shapes = {(row["group"], row["shape"]) for row in rows}
    assert measured_shapes == {("slopes", "1x2x512x4"), ("windows", "300"), ("windows", "600"), ("decoding", "300")}
    assert all(float(row["cpu_ms"]) > 0 for row in rows)
    support = {row["operation"]: float(row["support"]) for row in rows if row["shape"] == "600"}
    assert 1 <= support["entmax-1.5, slope 1"] < support["entmax-1.5, slope 0.125"] < support["entmax-1.5"]
    assert "slopes at 512 keys / SDPA with a bias tensor" in printed


def test_language(tmp_path: Path) -> None:
    out = tmp_path / "language.csv"
    printed = run("language.py", "--lengths", 16, 32, "--tokens", 64, "--texts", 2, "--rounds", 1, "--out", out)
    rows = read(out)
    measured = ["tokens_per_second", "to_softmax", "support", "rounds"]
    assert list(rows[0]) == ["operation", "name", "length", "batch", *measured, *MACHINE]
    assert {(r["operation"], r["length"], r["batch"]) for r in rows} == {
        ("training", "16", "4"),
        ("generation", "16", "2"),
        ("training", "32", "2"),
        ("generation", "32", "2"),
    }
    assert all(float(r["tokens_per_second"]) > 0 for r in rows)
    assert [float(r["to_softmax"]) for r in rows if r["name"] == "softmax"] == [1] * 4
    support = {r["name"]: float(r["support"]) for r in rows if r["operation"] == "generation"}
    assert support["learned attention, 1.5-entmax output"] < support["softmax"] and "generation" in printed


def test_language_of_trained_runs(tmp_path: Path) -> None:
    folders = []
    for output in ("softmax", "entmax"):
        model = {"d_model": 8, "heads": 2, "layers": 1, "d_ff": 8, "output": output}
        data = {"task": "language", "embedded": "german-numbers", "length": 32}
        training = {"epochs": 1, "updates": 2, "max_tokens": 256}
        (tmp_path / f"{output}.yaml").write_text(
            yaml.safe_dump({"version": 1, "data": data, "model": model, "training": training})
        )
        folders.append(train_here(tmp_path / f"{output}.yaml", tmp_path / output))
    run("language.py", "--runs", *folders, "--quick", "--texts", 2, "--out", tmp_path / "rows.csv")
    names = [row["name"] for row in read(tmp_path / "rows.csv")]
    assert names == ["1.5 attention, softmax output", "1.5 attention, entmax output"] * 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs no-gpu: there is one")
@pytest.mark.parametrize("script", ["gpu_maps.py", "gpu_linear.py", "gpu_attention.py"])
def test_without_a_gpu_its_benchmarks_say_so(script: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(tsallis.__file__).parents[1])}
    command = [sys.executable, str(BENCHMARKS / script), "--quick", f"--out={tmp_path / 'x.csv'}"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["this benchmark needs a GPU that PyTorch can use, and there is none"]
    assert not (tmp_path / "x.csv").exists()


GPU_SCRIPTS = {
    "gpu_maps.py": ["--sizes", 64, "--classes", 64, "--scores", 256, "--dtypes", "bfloat16", "--inputs", "normal"],
    "gpu_linear.py": ["--shapes", "16x16x64", "--inputs", "trained"],
    "gpu_attention.py": ["--groups", "accuracy", "long"],
}
GPU_TARGETS = 2  # lines of each: a target that was met or missed


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs no-gpu: there is one")
@pytest.mark.parametrize("script", GPU_SCRIPTS)
def test_those_for_a_gpu_run_to_their_end_and_print_rows_as_they_come(script: str, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    out, tests = tmp_path / "gpu.csv", Path(__file__).parents[1]
    command = [sys.executable, "cuda_on_cpu.py", script, *map(str, GPU_SCRIPTS[script]), "--rounds=1", f"--out={out}"]
    command += ["--quick"] if script == "gpu_attention.py" else []
    environment = {**os.environ, "PYTHONPATH": str(tests.parent / "src"), "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tests)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "left out" in line and "compiled" not in line] == []
    rows = read(out)
    lines = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert len(lines) == 2 + len(rows) and sum(row["owner"] == "tsallis" for row in rows) >= 4
    targets = re.findall(r"^(?:MISSED|met   )  .*: at (?:least|most) ", done.stdout, re.MULTILINE)
    assert len(targets) == GPU_TARGETS, done.stdout  # at the end


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs no-gpu: there is one")
def test_tuning_on_a_gpu_compares_every_candidate_with_todays(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    out, tests = tmp_path / "tune.csv", Path(__file__).parents[1]
    command = [sys.executable, "cuda_on_cpu.py", "gpu_tune.py", "--tiny", "--rounds=1", f"--out={out}"]
    environment = {**os.environ, "PYTHONPATH": str(tests.parent / "src"), "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tests)
    assert done.returncode == 0 and "left out" not in done.stderr, done.stderr
    rows = read(out)
    groups = {row["group"] for row in rows}
    assert groups == {"maps", "powers", "losses", "attention", "layer"}
    assert sum(row["candidate"] == "today" and float(row["ratio"]) == 1 for row in rows) == len(groups)
    assert len(done.stdout.partition("\nbest\n")[2].splitlines()) == len(groups)


def test_cases_on_a_gpu_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    gpu = importlib.import_module("gpu")
    with pytest.raises(ValueError, match="different names, got a, a"):
        gpu.interleaved([gpu.Case("a", "us", print), gpu.Case("a", "them", print)])
    assert {"gpu", "driver", "triton", "adasplash", "liger-kernel", "date"} <= set(gpu.machine())


def rehearse(script: str, *arguments: object) -> str:
    """Run a script for a GPU on the CPU; return what it prints."""
    paths = [str(Path(tsallis.__file__).parents[1]), str(Path(__file__).parents[1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(BENCHMARKS / script), "--rehearse", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs no-gpu: there is one")
def test_the_first_run_on_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    printed = rehearse("gpu_first_run.py", "--out", tmp_path)
    assert printed == (tmp_path / "summary.txt").read_text(encoding="utf-8") and len(printed.splitlines()) <= 40
    for group in ("maps", "losses", "attention", "layer"):
        rows = [json.loads(line) for line in (tmp_path / f"kernels-{group}.jsonl").read_text().splitlines()]
        assert rows and all(row["right"] for row in rows), rows
        assert f"kernels {group}: {len(rows)} of {len(rows)} right" in printed
    assert re.search(r"^tests: [1-9]\d* passed, 0 failed", printed, re.MULTILINE), printed
    for name in ("maps", "linear", "attention"):
        assert f"rows {name}: {len(read(tmp_path / f'{name}.csv'))};" in printed


def test_the_first_run_tells_what_went_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    script = importlib.import_module("gpu_first_run")
    case = script.Case("shifted", [(2, 3)], lambda x: x / 100, lambda x: x / 100 + x.new_tensor([0.0, 0.0, 1e-3]))
    errors = script.compare(case, "cpu", "float32")
    assert errors["result"] == pytest.approx(1e-3, rel=0.01) and errors["gradient 0"] < 1e-8
    infinite = script.Case("nan", [(2, 3)], lambda x: x / 0, lambda x: x)
    assert script.compare(infinite, "cpu", "float32")["result"] == float("inf")
    monkeypatch.setattr(script, "cases", lambda *_: [case, case._replace(name="raises", ours=lambda _: [][1])])
    script.check_kernels("maps", tmp_path, True)
    wrong, failed = map(json.loads, (tmp_path / "kernels-maps.jsonl").read_text().splitlines())
    assert not wrong["right"] and wrong["in"] == "result" and not failed["right"] and "IndexError" in failed["in"]
    sleep = [sys.executable, "-c", "print('begun', flush=True); import time; time.sleep(600)"]
    fail = [sys.executable, "-c", "raise SystemExit(3)"]
    ended = script.run_together({"sleep": sleep, "fail": fail}, tmp_path, 10)
    assert ended == {"sleep": "killed after 10 s", "fail": "ended with status 3"}
    assert (tmp_path / "sleep.log").read_text().startswith("begun\n")
    lines = script.summarize(tmp_path, ended)
    assert "sleep: killed after 10 s; fail: ended with status 3" in lines
    assert "kernels maps: 0 of 2 right, 0 s" in lines and "kernels losses: no result" in lines
    assert any(line.startswith("  WRONG raises float32: None in IndexError") for line in lines)


def test_translation_on_a_gpu_comes_back_as_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    words = ["the", "old", "river", "temple", "was", "built", "by", "one", "monk", "in", "small", "town"]
    lines = [" ".join(words[i % 7 : i % 7 + 2 + i % 5]) + f" {i}\n" for i in range(90)]
    for split, part in (("train", lines), ("dev", lines[:8]), ("test", lines[:8])):
        for language in ("ja", "en"):
            with lzma.open(data / f"kyoto-{split}.{language}.xz", "wt", encoding="utf-8") as stream:
                stream.writelines(part)
    small = ["--data", data, "--seconds", 40, "--out", out]
    assert re.search(r"s an update; \d+ updates in ", rehearse("gpu_translation.py", *small))
    parts = sorted(path.name for path in out.glob("run.tar.*"))
    assert parts[0] == "run.tar.00" and all((out / part).stat().st_size <= 15 << 20 for part in parts)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    script = importlib.import_module("gpu_translation")
    script.unpack(out, tmp_path / "run")
    run = open_run(tmp_path / "run")
    assert len(run.translate(["the old river"])) == 1
    with pytest.raises(SystemExit, match="exists already"):
        script.unpack(out, tmp_path / "run")
    monkeypatch.setattr(script, "PART", 100_000)
    assert len(script.pack(tmp_path / "run", tmp_path)) > 1
    script.unpack(tmp_path, tmp_path / "again")
    files = {path.relative_to(tmp_path / "run") for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert all((tmp_path / "again" / path).read_bytes() == (tmp_path / "run" / path).read_bytes() for path in files)


def test_report(tmp_path: Path) -> None:
    run("report.py", "--sentences", 2, "--length", 4, "--out", tmp_path / "report.csv")
    (row,) = read(tmp_path / "report.csv")
    assert row["sentences"] == "2" and float(row["page_mb"]) > 0 and list(row)[-len(MACHINE) :] == MACHINE


@pytest.mark.parametrize("kinds", ["translate", "tree exact sample suggest steps attention"])
def test_serve(kinds: str, tmp_path: Path) -> None:
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    train(tmp_path / "run")
    (tmp_path / "run" / "config.yaml").write_text("version: 1\ndata: {embedded: english-verbs}\n")
    (tmp_path / "sources").write_text("walk\tV;PST\ntry\tV;PST\n")
    options = ["--clients", 4, "--seconds", 1, "--kinds", *kinds.split(), "--out", tmp_path / "serve.csv"]
    run("serve.py", tmp_path / "run", tmp_path / "sources", *options)
    (row,) = read(tmp_path / "serve.csv")
    assert row["errors"] == "0" and int(row["requests"]) >= 4 and float(row["p95_ms"]) >= float(row["p50_ms"]) > 0
    assert row["kinds"] == kinds and list(row)[-len(MACHINE) :] == MACHINE


@pytest.mark.skipif(find_spec("ctranslate2") is None, reason="needs peer: ctranslate2, of the extra bench")
def test_decoding(tmp_path: Path) -> None:
    out = tmp_path / "decoding.csv"
    options = ["--sizes", "multi30k", "--sentences", 4, "--single", 2, "--batches", 4, "--beams", 2, "--rounds", 1]
    printed = run("decoding.py", *options, "--eager", "--plain", "--out", out)
    rows = read(out)
    names = {(row["owner"], row["name"]) for row in rows}
    assert names == {
        *(("tsallis", kind + name) for name in ("softmax", "1.5-entmax", "learned") for kind in ("", "plain ")),
        ("tsallis", "eager softmax"),
        *(("ctranslate2", name) for name in ("float32", "int8")),
    }
    by_name = {row["name"]: row for row in rows}
    assert by_name["eager softmax"]["agree"] == "1" and float(by_name["float32"]["to_peer"]) == 1
    assert "softmax: time of CTranslate2's float32" in printed


def test_decoding_proof(tmp_path: Path) -> None:
    out = tmp_path / "proof.csv"
    run("decoding_proof.py", "--sizes", "multi30k", "--sentences", 6, "--batch", 3, "--out", out)
    rows = read(out)
    assert [row["name"] for row in rows] == ["softmax", "1.5-entmax", "learned"]
    for row in rows:
        assert row["sentences"] == "6" and float(row["same_kinds"]) == 1
        assert 0 < float(row["rms"]) <= float(row["worst"]) < 1e-3
        assert 0.3 < float(row["rows_to_stop"]) < 3 and float(row["cpu_to_stop"]) > 0


def save_run(folder: Path, symbols: int = 6, **arguments: object) -> Path:
    """Save a random Transformer as a run of one step, and return its folder."""
    vocabulary = Vocabulary([chr(97 + k) for k in range(symbols)])
    sizes = {"src_vocab": symbols + 4, "tgt_vocab": symbols + 4, "d_model": 32, "heads": 2, "layers": 1, "d_ff": 32}
    description = {"class": "transformer", "arguments": {**sizes, "attention": "softmax", **arguments}}
    folder.mkdir()
    start_run(folder, "version: 1", description, {"task": "strings", "languages": None}, vocabulary, vocabulary)
    state = build_model(description).state_dict()
    state["output.projection.bias"][EOS] = 2  # outputs end
    facts = {"step": 1, "epoch": 1, "metrics": {}}
    Checkpoints(folder / "checkpoints").save(state, {}, facts, best=True, finished=True)
    return folder


def test_decoding_proof_of_runs(tmp_path: Path) -> None:
    file, out = tmp_path / "sources", tmp_path / "proof.csv"
    file.write_text("abc\ncab\n", encoding="utf-8")
    runs = [
        save_run(tmp_path / "1", output="softmax"),
        save_run(tmp_path / "2", output="entmax"),
        save_run(tmp_path / "3", output="entmax", cross_attention="entmax"),
        save_run(tmp_path / "4", output="entmax"),
    ]
    run("decoding_proof.py", "--run", *runs, "--file", file, "--out", out)
    rows = read(out)
    assert {row["size"] for row in rows} == {"trained"} and {row["sentences"] for row in rows} == {"2"}
    names = ["softmax", "1.5-entmax", "1.5-entmax, entmax attention", "1.5-entmax (4)"]
    assert [row["name"] for row in rows] == names


def test_decoding_refuses_runs_that_cannot_be_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    trained_models = importlib.import_module("decoding").trained_models
    softmax, sparse = save_run(tmp_path / "1", output="softmax"), save_run(tmp_path / "2", output="entmax")
    other = save_run(tmp_path / "3", symbols=7, output="entmax")
    with pytest.raises(SystemExit, match=r"the first run must have softmax everywhere, .*2 has 1\.5-entmax"):
        trained_models([sparse, softmax])
    with pytest.raises(SystemExit, match=r"all runs must have the same symbols, .*3 and .*1 have not"):
        trained_models([softmax, other])


def test_certificates(tmp_path: Path) -> None:
    folder, out = tmp_path / "run", tmp_path / "certificates.csv"
    recipe = Path(tsallis.__file__).parent / "toolkit" / "recipes" / "demo.yaml"
    command = [sys.executable, "-m", "tsallis", "train", recipe, "training.updates=151", "--run-dir", folder]
    subprocess.run(list(map(str, command)), check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    run("certificates.py", folder, "--commit", "none", "--beam", 3, "--out", out)
    (row,) = read(out)
    shares = {name: float(row[name]) for name in ("accuracy", "complete", "optimal", "single", "sum_one")}
    assert row["samples"] == "1096" and all(0 <= share <= 1 for share in shares.values())
    assert shares["single"] <= shares["complete"] and 0 < float(row["rows_to_full"]) < 1


def test_rows_of_the_study_of_long_contexts_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    study = importlib.import_module("long_context")
    made = dict.fromkeys(("commit", "tsallis", "torch", "python", "cpu", "cores", "threads"), "")
    made |= {"train_seconds": 1.0, "test_seconds": 2.0, "loss": 0.5, "alphas": [[1.5]], "training": {"updates": 9}}

    def result(task: str, variant: str, seed: int, share: float) -> dict[str, object]:
        tests = [{"length": length, "accuracy": share, "whole": 0.0} for length in study.LENGTHS]
        return {"task": task, "variant": variant, "seed": seed, "tests": tests, **made}

    out = tmp_path / "rows.csv"
    assert len(study.add(out, [result("copy", "entmax", 1, 0.5), result("recall", "softmax", 1, 0.9)])) == 2
    rows = study.add(out, [result("copy", "entmax", 2, 0.25), result("recall", "softmax", 1, 0.8)])
    assert [(row["task"], row["variant"], row["seed"]) for row in rows] == [
        ("recall", "softmax", "1"),
        ("copy", "entmax", "1"),
        ("copy", "entmax", "2"),
    ]
    assert study.page_table(rows).splitlines()[2:] == [
        "| recall | softmax | 1 | 80.0 | 80.0 | 80.0 | 80.0 | 80.0 |",
        "| copy | 1.5-entmax | 2 | 37.5 | 37.5 | 37.5 | 37.5 | 37.5 (25.0–50.0) |",
    ]
