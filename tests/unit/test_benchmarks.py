"""The benchmarks run on tiny shapes from the command line, and write the columns of the committed rows."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tsallis
from small_run import train
from tsallis.ops import cpu

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RECIPE = BENCHMARKS.parent / "recipes" / "tiny" / "language.yaml"
ATTENTION = "--attention 1x2x9x4 --bias 1x2x9x4 --layers 1x5 --dropouts 0 0.5 --no-peer"
ALLOCATOR = f"--train {RECIPE} model.d_model=8 model.layers=1 training.warmup=1 --updates 3"
SMALL = "--sizes multi30k --sentences 4 --single 2"
# Script, arguments, and the committed rows with the same columns.
CASES = [
    ("maps.py", "--maps 6x120 --learned 2x4x3x20 --losses 5x30 --inputs normal --rounds 3 --no-peer", "maps-cpu"),
    ("maps.py", "--maps --learned --losses 4x10 --rounds 1 --no-peer", "losses-cpu"),
    ("linear.py", "--tokens 8 --d 8 --classes 64 --rounds 2 --inputs trained", "linear-cpu"),
    ("attention.py", f"{ATTENTION} --rounds 2", "attention-cpu"),
    ("slopes.py", "--slopes 1x2x512x4 --windows 300 600 --decoding 300 --rounds 1", "slopes-cpu"),
    ("allocator.py", f"{ALLOCATOR} --rounds 1", "allocator-xeon-cpu"),
    ("language.py", "--lengths 16 32 --tokens 64 --texts 2 --rounds 1", "language-cpu"),
    ("race.py", "--accuracy 0 --proved 0", "race-cpu"),
    ("report.py", "--sentences 2 --length 4", "report-cpu"),
    ("decoding_proof.py", "--sizes multi30k --sentences 6 --batch 3", "decoding-proof-cpu"),
    ("decoding.py", f"{SMALL} --batches 4 --beams 2 --rounds 1 --eager --plain", "decoding-multi30k-cpu"),
]


def run(script: str, *arguments: object) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(tsallis.__file__).parents[1])}
    command = [sys.executable, str(BENCHMARKS / script), "--threads=1", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize(("script", "arguments", "committed"), CASES)
def test_rows_have_the_committed_columns(script: str, arguments: str, committed: str, tmp_path: Path) -> None:
    if script == "decoding.py":
        pytest.importorskip("ctranslate2")
    run(script, *arguments.split(), "--out", tmp_path / "rows.csv")
    rows = read(tmp_path / "rows.csv")
    assert rows and list(rows[0]) == list(read(BENCHMARKS / "results" / f"{committed}.csv")[0])
    if "time_ratio" in rows[0]:
        assert all(float(row["time_ratio"]) > 0 for row in rows if row["time_ratio"])


def test_the_errors_of_maps_are_small(tmp_path: Path) -> None:
    files = ["--out", tmp_path / "times.csv", "--accuracy", tmp_path / "errors.csv"]
    run("maps.py", "--no-peer", "--maps", "6x120", "--learned", "2x4x3x20", "--losses", "--rounds", 1, *files)
    rows = read(tmp_path / "errors.csv")
    assert {row["group"] for row in rows} == {"maps", "learned"}
    for row in rows:
        tolerance = 1e-2 if row["operation"].endswith("bf16") else 1e-5
        assert float(row["error"]) < tolerance and float(row["sum_error"]) < tolerance, row


def test_the_recurrent_benchmark_runs(tmp_path: Path) -> None:
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


def test_the_strings_and_distillation_benchmarks_run(tmp_path: Path) -> None:
    for part in ("train", "dev", "test"):
        (tmp_path / f"eo_{part}.tsv").write_text(
            "".join(f"{'ab' * (i % 5 + 1)}{'ac'[i % 2]}\tx y\n" for i in range(40))
        )
    runs = ["--runs", tmp_path / "runs", "--set", "training.epochs=1", "model.d_model=8", "model.monotonic=null"]
    run("strings.py", tmp_path, "--seeds", 2, *runs, "--out", tmp_path / "rows.csv")
    rows = read(tmp_path / "rows.csv")
    assert [(row["language"], row["models"], row["samples"]) for row in rows] == [("eo", "1", "40"), ("eo", "2", "40")]
    assert list(rows[0]) == list(read(BENCHMARKS / "results" / "strings-cpu.csv")[0])
    students = [*runs, "--students", 1, "--weights", 1, "--out", tmp_path / "students.csv"]
    run("distillation.py", tmp_path, *students)
    (row,) = read(tmp_path / "students.csv")
    assert row["models"] == "2" and 8 <= float(row["bytes_per_symbol"]) <= 8 * 9
    assert all(0 <= float(row[f"error_of_{name}"]) <= 1 for name in ("one", "ensemble", "students"))


def test_the_attended_benchmark_runs(tmp_path: Path) -> None:
    files = [tmp_path / f"{part}.tsv" for part in ("train", "dev", "test")]
    for number, file in enumerate(files):
        words = "".join(f"{i % 2}\t{' '.join('abcdefgh'[(i + j + number) % 8] for j in range(8))}\n" for i in range(40))
        file.write_text(words)
    out = ("--out", tmp_path / "rows.csv")
    run("attended.py", "sentences", *files, "--updates", 11, "--targets", 2, "--seeds", 1, *out)
    rows = read(tmp_path / "rows.csv")
    assert list(rows[0]) == list(read(BENCHMARKS / "results" / "attended-cpu.csv")[0])
    methods = ["entmax", "entmax, calibrated", "softmax", "top-k of softmax", "sparsemax", "sparsemax, calibrated"]
    assert [row["method"] for row in rows] == methods
    assert all(abs(float(row["reached"]) - 2) < 0.2 for row in rows if row["attended"])
    encoder = save_encoder(tmp_path / "encoder", "abcdefgh")
    run("attended.py", "sentences", *files, "--encoder", encoder, "--updates", 3, "--targets", 2, "--seeds", 1, *out)
    assert {row["task"] for row in read(tmp_path / "rows.csv")} == {"sentences", f"{tmp_path.name}, pretrained"}


def save_encoder(folder: Path, words: str) -> Path:
    """Save a small random BERT and its tokenizer."""
    import transformers

    (folder / "vocab.txt").parent.mkdir()
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 16}
    transformers.BertModel(transformers.BertConfig(vocab_size=5 + len(words), **sizes)).save_pretrained(folder)
    return folder


GPU_SCRIPTS = {
    "gpu_maps.py": ["--sizes", 64, "--classes", 64, "--scores", 256, "--dtypes", "bfloat16", "--inputs", "normal"],
    "gpu_linear.py": ["--shapes", "16x16x64", "--inputs", "trained"],
    "gpu_attention.py": ["--groups", "accuracy", "long"],
}
GPU_TARGETS = 2  # number of lines per script that report a target as met or missed


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs no-gpu: there is one")
@pytest.mark.parametrize("script", GPU_SCRIPTS)
def test_gpu_benchmarks_run_and_print_every_row(script: str, tmp_path: Path) -> None:
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
    assert len(targets) == GPU_TARGETS, done.stdout  # printed at the end


@pytest.mark.parametrize("kinds", ["translate", "tree exact sample suggest steps attention"])
def test_the_serve_benchmark_runs(kinds: str, tmp_path: Path) -> None:
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    train(tmp_path / "run")
    (tmp_path / "run" / "config.yaml").write_text("version: 1\ndata: {embedded: english-verbs}\n")
    (tmp_path / "sources").write_text("walk\tV;PST\ntry\tV;PST\n")
    options = ["--clients", 4, "--seconds", 1, "--kinds", *kinds.split(), "--out", tmp_path / "serve.csv"]
    run("serve.py", tmp_path / "run", tmp_path / "sources", *options)
    (row,) = read(tmp_path / "serve.csv")
    assert row["errors"] == "0" and int(row["requests"]) >= 4 and float(row["p95_ms"]) >= float(row["p50_ms"]) > 0
    assert row["kinds"] == kinds and list(row) == list(read(BENCHMARKS / "results" / "serve-cpu.csv")[0])


@pytest.mark.parametrize("script", ["completions", "patterns", "stability", "survivors"])
def test_search_benchmarks_accept_a_trained_run(script: str, tmp_path: Path) -> None:
    if script == "stability" and not cpu.status().available:
        pytest.skip("needs kernels: this script compares instruction sets")
    train(tmp_path / "run")
    (tmp_path / "run" / "config.yaml").write_text("version: 1\ndata: {embedded: english-verbs}\n")
    run(f"{script}.py", tmp_path / "run", "--commit", "none", "--lines", 2, "--out", tmp_path / "rows.csv")
    rows = read(tmp_path / "rows.csv")
    assert rows and list(rows[0]) == list(read(BENCHMARKS / "results" / f"{script}-cpu.csv")[0])
