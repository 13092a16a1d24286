"""The targets of fuzzing: all code that reads input. Add new readers and commands to `TARGETS` at the end."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import yaml

from integration.fuzz.mutations import WORDS, spoil, spoil_tree, wrong_value
from integration.fuzz.readers import (
    READERS,
    Reader,
    read_config,
    read_images,
    read_labelled,
    read_strings,
    read_text,
    read_vocabulary,
)
from integration.fuzz.samples import LINES, TASKS, configuration


@dataclass
class Case:
    """An input with the arguments of a command, or a function, that reads it."""

    arguments: list[str] = field(default_factory=list)
    call: Callable[[], object] | None = None
    stdin: bytes = b""
    watched: list[Path] = field(default_factory=list)  # files and folders that must not change


Make = Callable[[Random, Path, Path], Case]  # arguments: random generator, samples' folder, the case's folder


@dataclass(frozen=True)
class Target:
    """One kind of case; `share` is its relative frequency among all cases."""

    make: Make
    share: float = 1.0


def spoilt_file(reader: Reader) -> Make:
    """Return a target that reads a corrupted copy of a reader's sample."""

    def make(chance: Random, base: Path, work: Path) -> Case:
        source = base / reader.sample
        path = work / source.name
        path.write_bytes(spoil(source.read_bytes(), chance))
        return Case(call=partial(reader.read, path), watched=[path])

    return make


def forged_array(chance: Random, base: Path, work: Path) -> Case:
    """Create an array file whose header does not match its content."""
    shape = [chance.choice((0, -1, 1, 2, 6, 1 << 31, 1 << 40, 1 << 63, 10**30)) for _ in range(chance.randint(0, 5))]
    kind = chance.choice(("|u1", "<f4", "|O", "<i8", "|S100000000", "<U4", "|V8", "<c16", "x", "(1000000,)u1"))
    header = f"{{'descr': '{kind}', 'fortran_order': {chance.choice((True, False, 3))}, 'shape': {tuple(shape)}, }}"
    if chance.random() < 0.2:
        header = chance.choice(
            ("(" * 500, "{" * 3000, "{'descr': " + "[" * 90, "\0", "{'shape': 1}", header[:-9], "'" * 9)
        )
    version = chance.choice((1, 1, 2, 3, 9))
    length = chance.choice((len(header), len(header), len(header), 5, 1 << 15, (1 << 32) - 1))
    width = "<H" if version == 1 else "<I"
    blob = b"\x93NUMPY" + bytes([version, 0]) + struct.pack(width, length & (0xFFFF if version == 1 else 0xFFFFFFFF))
    blob += header.encode("latin-1") + chance.randbytes(chance.choice((0, 100, 432)))
    path = work / chance.choice(("a.npy", "a.npy.xz"))
    path.write_bytes(lzma.compress(blob, preset=0) if path.suffix == ".xz" else blob)
    return Case(call=partial(read_images, path), watched=[path])


def bomb(chance: Random, base: Path, work: Path) -> Case:
    """Create a small compressed file with large content."""
    import gzip

    count = chance.choice((1 << 20, 80 << 20))
    kind = chance.choice(("a.gz", "a.xz", "a.npy.xz"))
    header = b""
    if kind == "a.npy.xz":
        text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({count}, 100, 64, 3), }}"
        header = b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text.encode()
    content = header + chance.choice((b"\n", b"\0", b"a\n")) * count
    path = work / kind
    path.write_bytes(gzip.compress(content, 1) if kind == "a.gz" else lzma.compress(content, preset=0))
    read = read_images if kind == "a.npy.xz" else chance.choice((read_text, read_labelled, read_strings))
    return Case(call=partial(read, path), watched=[path])


def special_file(chance: Random, base: Path, work: Path) -> Case:
    """Pass a pipe, a device, a folder or a missing path instead of a file."""
    kind = chance.choice(("pipe", "zero", "folder", "nothing", "null byte", "long", "full"))
    path = work / "a"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind in ("zero", "full"):
        path = Path("/dev") / kind
    elif kind in ("null byte", "long"):
        path = work / {"null byte": "a\0b", "long": "a" * 300}[kind]
    read = chance.choice((read_text, read_strings, read_labelled, read_images, read_config, read_vocabulary))
    if chance.random() < 0.5:
        return Case(call=partial(read, path))
    task = chance.choice(TASKS)
    return Case([answering(task), str(base / "runs" / task), str(path)])


def answering(task: str) -> str:
    """Return the name of the command that reads lines without references."""
    return "generate" if task == "language" else "translate"


def spoilt_config(chance: Random, base: Path, work: Path) -> Case:
    """Create a configuration with corrupted text."""
    source = base / "config" / f"{chance.choice(TASKS)}.yaml"
    path = work / "config.yaml"
    path.write_bytes(spoil(source.read_bytes(), chance))
    return Case(call=partial(read_config, path), watched=[path])


def wrong_config(chance: Random, base: Path, work: Path) -> Case:
    """Create a configuration with well-formed but wrong values, and train if it is accepted."""
    task = chance.choice(TASKS)
    path = work / "config.yaml"
    tree = configuration(base, task)
    if chance.random() < 0.5:
        tree = spoil_tree(tree, chance)
    else:
        section = chance.choice(("data", "model", "training"))
        name, value = chance.choice([(name, value) for name, values in SETTINGS[section].items() for value in values])
        tree[section] = {**tree[section], name: value if chance.random() < 0.5 else wrong_value(chance)}
    try:
        path.write_text(yaml.safe_dump(tree, allow_unicode=True), encoding="utf-8")
    except (UnicodeEncodeError, yaml.YAMLError):
        path.write_text(json.dumps(tree), encoding="utf-8")
    return train(path, base, work)


# More settings than in the samples, each with a list of values that may be valid.
SETTINGS: dict[str, dict[str, list[Any]]] = {
    "data": {
        **{"max_length": [3], "size": [[5, 7], [1, 1]], "answers": [1], "languages": [["x"]], "dev": ["dev"]},
        **{"length": [2], "texts": ["paragraphs"], "synthetic": [{"name": "copy", "examples": 3}]},
    },
    "model": {
        **{"output": ["softmax", "alpha_relu"], "output_alpha": [1e300], "attention": ["continuous"], "density": [1.7]},
        **{"num_basis": [3], "dropout": [0.999], "ridge": [1e-300], "tau": [1e300], "share": ["all"], "heads": [3]},
        **{"alpha": ["learned"], "kv_heads": [1], "positions": ["rope"], "length_scale": ["input"]},
    },
    "training": {
        **{"learning_rate": [1e300], "clip": [1e-300], "max_tokens": [1], "batch_size": [2**31 - 1]},
        **{"schedule": ["linear"], "precision": ["bfloat16"], "label_smoothing": [0.99], "accumulate": [10_000]},
        **{"validation_beam": [50], "keep": [3], "seed": [2**63 - 1]},
    },
}


def train(config: Path, base: Path, work: Path, *overrides: str) -> Case:
    """Train for two updates in a new folder."""
    shortened = "training.updates=2", "training.epochs=1"
    arguments = ["train", str(config), "--run-dir", str(work / "run"), *shortened, *overrides]
    return Case(arguments, watched=[config, base / "data"])


def overrides(chance: Random, base: Path, work: Path) -> Case:
    """Pass random overrides on the command line."""
    path = base / "config" / f"{chance.choice(TASKS)}.yaml"
    inputs = []
    for _ in range(chance.choice((1, 1, 3))):
        key = chance.choice(
            ("data.train", "data.folder", "model.d_model", "training.epochs", "version", "x.y.z", "data")
        )
        value = wrong_value(chance)
        text = value if isinstance(value, str) else json.dumps(value)
        if chance.random() < 0.3:
            key, text = chance.choice(
                ((chance.choice(WORDS), text), (key + "." * 500, text), (key, "!!float x"), (key, "&a [*a]"))
            )
        inputs.append(f"{key}={text}".replace("\0", "\\0")[:100_000])
    if chance.random() < 0.5:
        return Case(call=partial(read_config, path, *inputs), watched=[path])
    arguments = ["train", str(path), "--run-dir", str(work / "run"), *inputs, "training.updates=1"]
    return Case(arguments, watched=[base / "data"])


def spoilt_data(task: str) -> Make:
    """Return a target that trains on corrupted data."""

    def make(chance: Random, base: Path, work: Path) -> Case:
        folder = work / "data"
        shutil.copytree(base / "data" / task, folder)
        for path in chance.sample(sorted(folder.iterdir()), chance.choice((1, 1, 2))):
            path.write_bytes(spoil(path.read_bytes(), chance))
        tree = configuration(base, task)
        tree["data"] |= {"folder": str(folder)} | ({"cache": str(work / "cache")} if task == "translation" else {})
        path = work / "config.yaml"
        path.write_text(yaml.safe_dump(tree), encoding="utf-8")
        case = train(path, base, work)
        case.watched.append(folder)
        return case

    return make


def stdin(task: str, command: str) -> Make:
    """Return a target that passes corrupted lines to a command, on standard input or in a file."""

    def make(chance: Random, base: Path, work: Path) -> Case:
        line = LINES[task][command in ("score", "evaluate")].encode() + b"\n"
        count = chance.choice((1, 2)) if command == "look" else chance.choice((1, 3, 70))  # a page takes long to write
        blob = spoil(line * count, chance)
        arguments = [command, str(base / "runs" / task)]
        if command == "look":
            arguments += ["--out", str(work / "look.html")]
        if command == "generate":
            arguments += ["--max-length", "8"]
        if command in ("translate", "generate", "score") and chance.random() < 0.3:
            arguments.append("--json")
        watched = [base / "runs" / task]
        if command == "evaluate" or chance.random() < 0.3:
            (work / "in").write_bytes(blob)
            return Case([*arguments, str(work / "in")], watched=[*watched, work / "in"])
        return Case(arguments, stdin=blob, watched=watched)

    return make


REQUESTS: dict[str, list[dict[str, Any]]] = {
    "translate": [
        {"n_best": 2, "tree": True, "length_penalty": 0.5, "min_length": 1, "max_length": 6},
        {"mode": "exact", "budget": 5, "time_limit": 0.2, "prefix": "w"},
        {"mode": "all", "budget": 5, "mass": 0.5, "n_best": 2},
        {"mode": "sample", "num_samples": 2, "seed": 1},
    ],
    "prove": [{"never": "w.*", "budget": 5}, {"always": ["a", "b"], "at_least": 0.1, "time_limit": 0.2}],
    "suggest": [{"typed": "w", "n_best": 3}],
    "steps": [{"output": "walk"}, {"tokens": [4, 5]}, {}],
    "attention": [{"heads": ["cross.1.1"], "output": "walk"}, {}],
}


def request(task: str) -> Make:
    """Return a target that sends a server corrupted bytes or wrong values in a request."""

    def make(chance: Random, base: Path, work: Path) -> Case:
        name = chance.choice(list(REQUESTS))
        line = LINES[task][0]
        content: Any = {"run": None, "language": None, **chance.choice(REQUESTS[name])}
        content |= {"sources": [line, line]} if name in ("translate", "prove") else {"source": line}
        if chance.random() < 0.5:
            blob = spoil(json.dumps(content, ensure_ascii=chance.random() < 0.5).encode(), chance)
        else:
            blob = json.dumps(spoil_tree(content, chance)).encode()
        return Case(call=partial(answer_request, base / "runs" / task, name, blob), watched=[base / "runs" / task])

    return make


def answer_request(folder: Path, name: str, blob: bytes) -> None:
    """Answer a request as a server does, but without a socket; a rejected request raises `InputError`."""
    from tsallis.errors import InputError
    from tsallis.search import SearchOptions
    from tsallis.toolkit.serve.answers import ServedRun
    from tsallis.toolkit.serve.limits import Limits, Refusal
    from tsallis.toolkit.serve.requests import QUESTIONS, parse_request
    from tsallis.toolkit.tasks.registry import task_of
    from tsallis.toolkit.training import load_run

    limits = Limits(seconds=5)
    run = load_run(folder)
    served = ServedRun("run", run, task_of(run.task), SearchOptions(beam_size=2), limits)
    try:
        query = parse_request(blob, QUESTIONS[name], limits)
        for answer in getattr(served, name)([query], lambda: None):
            json.dumps(answer, allow_nan=False).encode()
    except Refusal as refusal:
        assert 400 <= refusal.status < 500
        raise InputError(refusal.message) from refusal


ANSWERING = {
    "translate": ["--n-best", "--beam-size", "--budget", "--language", "--images", "--checkpoint", "--all"],
    "generate": ["--prefix", "--num-samples", "--seed", "--max-length", "--mode", "--checkpoint"],
}


def options(chance: Random, base: Path, work: Path) -> Case:
    """Pass random values of options and arguments."""
    task = chance.choice(TASKS)
    run = str(base / "runs" / task)
    commands: list[tuple[list[str], list[str]]] = [
        ([answering(task), run], ANSWERING[answering(task)]),
        (["score", run], ["--language", "--images", "--checkpoint"]),
        (["evaluate", run], ["--split", "--beam-size", "--checkpoint", "--images", "--length"]),
        (["average", str(work / "run")], ["--last"]),
        (["train", str(base / "config" / f"{task}.yaml"), "--run-dir", str(work / "run")], ["--device", "--run-dir"]),
        (["data", "get"], ["--folder", "--languages"]),
        ([], ["--help", "--version", "translate", "dat", "info"]),
    ]
    arguments, names = chance.choice(commands)
    if arguments[:1] == ["average"]:
        shutil.copytree(run, work / "run")
    for _ in range(chance.choice((1, 1, 2))):
        value = chance.choice((*WORDS, "0", "1", "-1", "3", "1e9", "9" * 30, "x" * 50_000, "average", "last", "--"))
        name = chance.choice(names)
        arguments = [*arguments, name, *([] if name in ("--all", "--help") else [value.replace("\0", "")])]
    return Case(arguments, stdin=LINES[task][arguments[:1] == ["score"]].encode() + b"\n", watched=[base / "runs"])


FILES = ("config.yaml", "model.json", "task.json", "src", "tgt", "index.json", "manifest.json", "log.jsonl")
FILES = (*FILES, "timing.jsonl", "model.safetensors", "training.pt")
COMMANDS = (["translate"], ["translate", "--checkpoint", "last"], ["score"], ["evaluate"], ["average"], ["train"])


def run_file(task: str, name: str) -> Make:
    """Return a target that reads a run folder with one corrupted file."""

    def make(chance: Random, base: Path, work: Path) -> Case:
        folder = work / "run"
        shutil.copytree(base / "runs" / task, folder)
        path = _path_in(folder, name)
        if chance.random() < 0.5 and path.suffix in (".json", ".yaml", ".pt"):
            _spoil_content(path, chance)
        else:
            path.write_bytes(spoil(path.read_bytes(), chance))
        if path.parent.name.startswith("step-") and chance.random() < 0.7:
            _sign(path)
        command, *options = chance.choice(COMMANDS)
        command = answering(task) if command == "translate" else command
        gold = command in ("score", "evaluate")
        if command == "train":
            arguments = ["train", str(base / "config" / f"{task}.yaml"), "--run-dir", str(folder)]
            return Case(arguments, watched=[base / "data", base / "config"])
        if command == "average":
            return Case(["average", str(folder)], watched=[base / "data"])
        return Case([command, str(folder), *options], stdin=f"{LINES[task][gold]}\n".encode(), watched=[folder])

    return make


def _path_in(folder: Path, name: str) -> Path:
    """Return the path of a file in a run folder; files of symbols have two formats, and the last checkpoint counts."""
    if name in ("src", "tgt"):
        return next(folder.glob(f"{name}.*"))
    if name == "index.json":
        return folder / "checkpoints" / name
    if name in ("manifest.json", "model.safetensors", "training.pt"):
        return sorted(folder.glob(f"checkpoints/step-*/{name}"))[-1]
    return folder / name


def _spoil_content(path: Path, chance: Random) -> None:
    """Insert values that are well-formed but wrong."""
    if path.suffix == ".json":
        path.write_text(json.dumps(spoil_tree(json.loads(path.read_text(encoding="utf-8")), chance)))
    elif path.suffix == ".yaml":
        path.write_text(json.dumps(spoil_tree(yaml.safe_load(path.read_text(encoding="utf-8")), chance)))
    else:
        import torch

        stream = io.BytesIO()
        torch.save(spoil_tree(torch.load(path, weights_only=True), chance), stream)
        path.write_bytes(stream.getvalue())


def _sign(path: Path) -> None:
    """Update the manifest in a file's folder to the current content of the file."""
    if path.name == "manifest.json":
        return
    manifest = path.with_name("manifest.json")
    content = json.loads(manifest.read_text())
    blob = path.read_bytes()
    content["files"][path.name] = {"bytes": len(blob), "sha256": hashlib.sha256(blob).hexdigest()}
    manifest.write_text(json.dumps(content))


SHARES = {"npz-file": 0.5, "tar-file": 3, "unpack-questions": 0.5} | dict.fromkeys(
    ("strings-file", "labelled-file", "questions-file", "npy-file"), 2
)
TARGETS: dict[str, Target] = {
    **{name: Target(spoilt_file(reader), SHARES.get(name, 1)) for name, reader in READERS.items()},
    "forged-array": Target(forged_array, 4),
    "bomb": Target(bomb, 0.2),
    "special-file": Target(special_file, 1),
    "yaml-config": Target(spoilt_config, 5),
    "wrong-config": Target(wrong_config, 8),
    "overrides": Target(overrides, 6),
    "options": Target(options, 5),
    **{f"train-{task}": Target(spoilt_data(task), 2) for task in TASKS},
    **{f"answer-{task}": Target(stdin(task, answering(task)), 2) for task in TASKS},
    **{f"score-{task}": Target(stdin(task, "score"), 2) for task in TASKS},
    "suggest-language": Target(stdin("language", "suggest"), 1),
    **{f"evaluate-{task}": Target(stdin(task, "evaluate"), 1) for task in TASKS},
    **{f"request-{task}": Target(request(task), 2) for task in TASKS if task != "visual"},
    **{f"look-{task}": Target(stdin(task, "look"), 0.25) for task in TASKS if task != "language"},
    **{f"run-{task}-{name}": Target(run_file(task, name), 0.7) for task in TASKS for name in FILES},
}
