"""Mistakes: one line that says where and what, exit status 2, nothing overwritten."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest


def refused(done, *words: str) -> None:
    lines = done.stderr.strip().split("\n")
    assert len(lines) == 1 and lines[0].startswith("tsallis: "), done.stderr
    for word in words:
        assert word in lines[0], lines[0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"walk\twalked\n", ("train.tsv:1", "lemma<TAB>form<TAB>tags", "2 columns")),
        (b"walk\twalked\tV;PST\nrun\tran\tV;PST\textra\n", ("train.tsv:2", "4 columns")),
        (b"walk\t\tV;PST\n", ("train.tsv:1", "empty form")),
        (b"walk\twalked\tV;;PST\n", ("train.tsv:1", "V;;PST")),
        (b"walk\twalked\tV;PST\nb\xff\tc\tV\n", ("train.tsv:2", "UTF-8", "0xff")),
        (b"", ("train.tsv", "empty")),
        (None, ("train.tsv", "No such file")),
    ],
)
def test_data_files(tsallis, tmp_path: Path, small_data: Path, content: bytes | None, words: tuple[str, ...]) -> None:
    shutil.copy(small_data / "dev.tsv", tmp_path / "dev.tsv")
    if content is not None:
        (tmp_path / "train.tsv").write_bytes(content)
    config = tmp_path / "config.yaml"
    config.write_text(f"version: 1\ndata: {{folder: {tmp_path}, train: train.tsv, dev: dev.tsv}}\n")
    refused(tsallis("train", config, "--run-dir", tmp_path / "run", status=2), *words)
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_every_mistake_of_a_config_in_one_message(tsallis, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "version: 1\ndata: {embedded: english-verbs}\nmodel: {d_modle: 3, dropout: 1.5, output: sofmax}\n"
        "training: {epochs: none}\nseach: {}\n"
    )
    done = tsallis("train", config, "--run-dir", tmp_path / "run", status=2)
    refused(done, "model.d_modle: unknown key (did you mean d_model?)", "model.dropout", "1.5", "model.output")
    refused(done, "training.epochs", "'none'", "seach: unknown key (did you mean search?)")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ("empty",)),
        (b"\xff\xfe", ("UTF-8", "0xff")),
        (b"version: [1", ("not YAML",)),
        (b"- a\n", ("keys and values",)),
        (b"version: 2\ndata: {embedded: english-verbs}\n", ("version",)),
        (b"version: 1\ndata: {embedded: english-verbs, train: x}\n", ("embedded data takes no train",)),
    ],
)
def test_config_files(tsallis, tmp_path: Path, content: bytes, words: tuple[str, ...]) -> None:
    config = tmp_path / "config.yaml"
    config.write_bytes(content)
    refused(tsallis("train", config, status=2), "config.yaml", *words)


def test_a_folder_of_another_run_is_left_alone(tsallis, trained: Path, small_data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(trained, copy)
    before = {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()}
    done = tsallis("train", small_data / "config.yaml", "training.epochs=9", "--run-dir", copy, status=2)
    refused(done, "another configuration", "epochs: 9", "epochs: 4")
    assert {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()} == before
    busy = tmp_path / "mine"
    busy.mkdir()
    (busy / "thesis.txt").write_text("words")
    refused(tsallis("train", small_data / "config.yaml", "--run-dir", busy, status=2), "not empty")
    assert (busy / "thesis.txt").read_text() == "words"


def test_damaged_runs(tsallis, trained: Path, tmp_path: Path) -> None:
    def damaged(name: str) -> Path:
        copy = tmp_path / name
        shutil.copytree(trained, copy)
        return copy

    def model_of(run: Path) -> Path:
        best = json.loads((run / "checkpoints" / "index.json").read_text())["best"]
        return run / "checkpoints" / best / "model.safetensors"

    cut = damaged("cut")
    model_of(cut).write_bytes(model_of(cut).read_bytes()[:1000])
    refused(tsallis("translate", cut, stdin="walk\tV;PST\n", status=2), "model.safetensors", "truncated", "1000 bytes")
    flipped = damaged("flipped")
    blob = bytearray(model_of(flipped).read_bytes())
    blob[-1] ^= 1
    model_of(flipped).write_bytes(bytes(blob))
    refused(tsallis("translate", flipped, stdin="walk\tV;PST\n", status=2), "damaged", "SHA-256")
    other = damaged("other")
    vocabulary = json.loads((other / "tgt.vocab.json").read_text())
    from tsallis.data import Vocabulary

    Vocabulary(vocabulary["symbols"][:-1]).save(other / "tgt.vocab.json")
    refused(
        tsallis("translate", other, stdin="walk\tV;PST\n", status=2), "tgt.vocab.json", "the model was trained with"
    )
    edited = damaged("edited")
    (edited / "src.vocab.json").write_text((edited / "src.vocab.json").read_text().replace('"a"', '"å"'))
    refused(tsallis("translate", edited, stdin="walk\tV;PST\n", status=2), "src.vocab.json", "fingerprint")
    refused(tsallis("translate", tmp_path / "nowhere", stdin="x\tV\n", status=2), "not a run folder")


def test_lines_to_translate(tsallis, trained: Path) -> None:
    refused(tsallis("translate", trained, stdin="walk\n", status=2), "standard input:1", "lemma<TAB>tags")
    refused(tsallis("translate", trained, stdin="", status=2), "standard input", "empty")
    refused(tsallis("translate", trained, stdin=b"caf\xe9\tV\n", status=2), "standard input:1", "0xe9")
    refused(tsallis("evaluate", trained, "--split", "tset", status=2), "tset")


def test_unknown_data_sets(tsallis, tmp_path: Path) -> None:
    refused(
        tsallis("data", "get", "sigmorphon1066", "--folder", tmp_path, status=2), "sigmorphon1066", "sigmorphon2018"
    )
