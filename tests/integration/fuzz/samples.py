"""Valid input: data, configurations, and a small trained run of every task."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import tarfile
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import yaml

# For each task, a line without the reference and one with it.
LINES = {
    "strings": ("walk\tV;PST", "walk\twalked\tV;PST"),
    "translation": ("ein Hut", "ein Hut\ta hat"),
    "classification": ("a fine film", "good\ta fine film"),
    "visual": ("1\tis it red?", "1\tis it red?\tyes"),
    "language": ("the cat", "the cat sat"),
}
TASKS = (*LINES,)
TRAINING = {"epochs": 1, "updates": 2, "batch_size": 8}
TRANSFORMER = {"architecture": "transformer", "d_model": 8, "heads": 2}
MODELS: dict[str, dict[str, Any]] = {
    "strings": {"architecture": "rnn", "d_model": 8, "layers": 1},
    "translation": {**TRANSFORMER, "encoder_layers": 1, "decoder_layers": 1, "d_ff": 8},
    "classification": {"architecture": "classifier", "d_model": 8, "num_basis": 4},
    "visual": {"architecture": "answerer", "d_model": 8, "heads": 2, "layers": 1, "stages": 2, "num_basis": 4},
    "language": {"architecture": "language", "d_model": 8, "heads": 2, "layers": 1, "d_ff": 8},
}


def write_samples(base: Path) -> None:
    """Write everything except the runs: `data/TASK/` and `config/TASK.yaml`."""
    for task in TASKS:
        (base / "data" / task).mkdir(parents=True)
    (base / "config").mkdir()
    chance = Random(0)
    _write_strings(base / "data" / "strings", chance)
    _write_translation(base / "data" / "translation", chance)
    _write_classification(base / "data" / "classification", chance)
    _write_visual(base / "data" / "visual", chance)
    _split(base / "data" / "language", [f"the {chance.choice(['cat', 'hat'])} sat {i}\n" for i in range(20)], chance)
    _write_others(base / "data")
    for task in TASKS:
        (base / "config" / f"{task}.yaml").write_text(yaml.safe_dump(configuration(base, task)), encoding="utf-8")


def configuration(base: Path, task: str) -> dict[str, Any]:
    """Return the configuration of a run on the sample data."""
    data: dict[str, Any] = {"task": task, "folder": str(base / "data" / task), "train": "train", "test": "dev"}
    if task in ("strings", "translation", "language"):
        data["dev"] = "dev"
    if task == "translation":
        data |= {"subwords": {"size": 40}, "cache": str(base / "cache")}
    if task == "language":
        data["length"] = 16
    if task == "visual":
        data |= {"images": "images.npy", "size": None}
    if task in ("classification", "visual"):
        data |= {"min_count": 1, "held_out": 0.3}
    return {"version": 1, "data": data, "model": MODELS[task], "training": TRAINING, "search": {"beam_size": 2}}


def _write_strings(folder: Path, chance: Random) -> None:
    verbs = ["walk", "talk", "play", "jump", "call", "turn", "look", "move"]
    rows = [f"{v}\t{v}ed\tV;PST\n" for v in verbs] + [f"{v}\t{v}s\tV;3;SG;PRS\n" for v in verbs]
    _split(folder, rows, chance)


def _write_translation(folder: Path, chance: Random) -> None:
    words = [("ein", "a"), ("das", "the"), ("Haus", "house"), ("Hut", "hat"), ("rot", "red"), ("ist", "is")]
    pairs = [[chance.choice(words) for _ in range(chance.randint(2, 5))] for _ in range(24)]
    for side, language in enumerate(("de", "en")):
        for name, part in (("train", pairs[:16]), ("dev", pairs[16:])):
            text = "".join(" ".join(w[side] for w in pair) + "\n" for pair in part)
            (folder / f"{name}.{language}").write_text(text, encoding="utf-8")


def _write_classification(folder: Path, chance: Random) -> None:
    words = ["a", "fine", "film", "dull", "great", "poor", "the", "."]
    rows = [f"{'good' if i % 2 else 'bad'}\t{i}\t{' '.join(chance.choices(words, k=4))} {i}\n" for i in range(20)]
    _split(folder, rows, chance)


def _write_visual(folder: Path, chance: Random) -> None:
    np.save(folder / "images.npy", np.random.default_rng(0).integers(0, 255, (8, 8, 8, 3)).astype(np.uint8))
    rows = [f"{i % 8}\tis it {chance.choice(['red', 'blue'])}?\t{'yes' if i % 3 else 'no'}\n" for i in range(20)]
    _split(folder, rows, chance)


def _split(folder: Path, rows: list[str], chance: Random) -> None:
    chance.shuffle(rows)
    (folder / "train").write_text("".join(rows[:-4]), encoding="utf-8")
    (folder / "dev").write_text("".join(rows[-4:]), encoding="utf-8")


def _write_others(folder: Path) -> None:
    text = "".join(f"line {i}\n" for i in range(20)).encode()
    (folder / "text.gz").write_bytes(gzip.compress(text))
    (folder / "text.xz").write_bytes(lzma.compress(text))
    with zipfile.ZipFile(folder / "text.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("text", text)
    with tarfile.open(folder / "text.tar", "w:gz") as tar:
        _add(tar, "text", text)
    array = np.random.default_rng(1).integers(0, 255, (4, 6, 6, 3)).astype(np.uint8)
    np.save(folder / "images.npy", array)
    (folder / "images.npy.xz").write_bytes(lzma.compress((folder / "images.npy").read_bytes()))
    np.savez(folder / "images.npz", array)
    from PIL import Image

    from tsallis.toolkit.data import Vocabulary

    with tarfile.open(folder / "images.tar", "w") as tar:
        for number, pixels in enumerate(array):
            stream = io.BytesIO()
            Image.fromarray(pixels).save(stream, "PNG" if number % 2 else "JPEG")
            _add(tar, f"photos/{number}.{'png' if number % 2 else 'jpg'}", stream.getvalue())
    (folder / "vectors.txt").write_text("3 2\nwalk 0.5 1\nof 0 -1\nthe 2 0.25\n")
    request = {"sources": ["walk"], "source": "walk", "mode": "all", "n_best": 2}
    (folder / "request.json").write_text(json.dumps(request))
    Vocabulary(["w", "a", "l", "k"]).save(folder / "vocabulary.json")
    questions = json.dumps([["is it red?", "yes", 1], ["what is it?", "a box", 2]])
    (folder / "questions.json").write_text(questions)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
