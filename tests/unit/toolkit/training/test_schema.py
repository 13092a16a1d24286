"""Every file of a run folder is checked before use; errors are one line with the path of the file."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from small_run import change_json, change_state, checkpoint_of, contents, index_of, replace, train
from tsallis.errors import InputError
from tsallis.toolkit.tasks.registry import task_of
from tsallis.toolkit.training import Checkpoints, Log, load_run
from tsallis.toolkit.training.run_folder import build_model, read_stored
from tsallis.toolkit.training.schema import LARGEST, ModelRecord, parse_record

DEEP = b"[" * 100_000
JSON_FILES = ("model.json", "task.json", "checkpoints/index.json", "checkpoints/{last}/manifest.json")
# Invalid contents of the JSON files of a run, with patterns of the error messages.
CONTENTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not a JSON file"),
    "cut": (b'{"task": "infl', "not a JSON file"),
    "list": (b"[]", "expected|should"),
    "number": (b"1", "expected|should"),
    "null": (b"null", "expected|should"),
    "not UTF-8": (b'{"task": "\xff"}', "not a JSON file"),
    "nested": (b'{"task": ' + DEEP, "not a JSON file: recursion limit"),
    "long number": (b'{"step": 1' + b"0" * 6000 + b"}", "not a JSON file: number out of range"),
    "half a character": (b'{"task": "\\ud800"}', "not a JSON file"),
    "escapes": (b'{"\\u001b[2J' + b"x" * 100_000 + b'": 1}', "missing|unknown key"),
}
WRONG: dict[str, list[tuple[dict[str, Any], str]]] = {
    "model.json": [
        ({"arguments": 3}, "arguments: input should be"),
        ({"arguments": {}}, "src_vocab must be a whole number of at least 1, found None"),
        ({"arguments": {"src_vocab": 0, "tgt_vocab": 5}}, "src_vocab must be a whole number of at least 1, found 0"),
        ({"vocabularies": []}, "vocabularies: input should be"),
        ({"vocabularies": {"src": 7}}, r"vocabularies\.src: "),
        ({"classes": 3}, "classes: unknown key"),
        ({"class": None}, "class: missing"),
    ],
    "task.json": [
        ({"task": "parsing"}, "unknown task 'parsing', expected one of strings, translation, classification, visual"),
        ({"task": 3}, "task: input should be a valid string, found 3"),
        ({"languages": 3}, "languages: "),
        ({"languages": [3]}, r"languages\.0: "),
        ({"size": 3}, "size: unknown key"),
        ({"task": "translation", "tgt": []}, "tgt: "),
        ({"task": "translation", "src": "de", "tgt": {}}, "tgt: "),
        ({"task": "classification", "max_length": "x"}, "max_length: "),
        ({"task": "classification", "max_length": -1}, "max_length: "),
        ({"task": "visual", "images": 0}, "images: "),
        ({"task": "visual", "images": "a\0b"}, "images: "),
        ({"task": "visual", "size": "x"}, "size: "),
        ({"task": "visual", "size": [1]}, "size: "),
        ({"task": "visual", "size": [1, 0]}, r"size\.1: "),
        ({"task": "visual", "size": [1, 1e30]}, r"size\.1: "),
    ],
    "checkpoints/index.json": [
        ({"last": 3}, "last: "),
        ({"last": "../step-00000001"}, "last: "),
        ({"last": "step-00000001\n"}, "last: "),
        ({"last": "step-٠٠٠٠٠٠٠١"}, "last: "),
        ({"best": None}, "last and best must both be set"),
        ({"kept": 1}, "kept: "),
        ({"kept": [1]}, "kept.0: "),
        ({"kept": [[]]}, "kept.0: "),
        ({"kept": ["step-00000004"] * 2}, "kept must not name a checkpoint twice"),
        ({"finished": "no"}, "finished: "),
        ({"finished": None}, "finished: missing"),
        ({"average": "step-00000001"}, "average: "),
        ({"lst": "step-00000001"}, "lst: unknown key"),
    ],
    "checkpoints/{last}/manifest.json": [
        ({"step": "6"}, "step: "),
        ({"step": -1}, "step: "),
        ({"step": 1e30}, "step: "),
        ({"step": True}, "step: "),
        ({"metrics": [1]}, "metrics: "),
        ({"files": []}, "files: "),
        ({"files": {"model.safetensors": 3}}, r"files\.model\.safetensors: "),
        ({"files": {"model.safetensors": {"bytes": -1, "sha256": "0" * 64}}}, "bytes: "),
        ({"files": {"model.safetensors": {"bytes": 1, "sha256": "x"}}}, "sha256: "),
        ({"files": {"../../model.safetensors": {"bytes": 1, "sha256": "0" * 64}}}, "should be 'model.safetensors' or"),
        ({"of": "step-00000001"}, "of: "),
    ],
}
CASES = [(file, changes, words) for file, cases in WRONG.items() for changes, words in cases]


def file_of(run: Path, name: str) -> Path:
    return run / name.format(**index_of(run)) if "{" in name else run / name


def refused(run: Path, path: Path, words: str, *works: Callable[[Path], object]) -> None:
    """Check that every command that reads a file raises an error with its path and changes nothing."""
    before = contents(run)
    for work in works:
        with pytest.raises(InputError, match=words) as caught:
            work(run)
        text = str(caught.value)
        assert str(path) in text and len(text) < 1500 and text.isprintable(), text
        assert contents(run) == before


def readers(name: str) -> list[Callable[[Path], object]]:
    """Return functions that read a file: they load the model or resume training."""
    if name == "task.json":
        return [lambda run: task_of(load_run(run, "last").task, run / name)]
    if name == "model.json":
        return [lambda run: load_run(run, "last"), stored]
    return [train] if "training.pt" in name else [lambda run: load_run(run, "last"), train]


def stored(run: Path) -> object:
    return read_stored(run, ["version: 1\n"], {"d_model": 8})


@pytest.mark.parametrize("kind", CONTENTS)
@pytest.mark.parametrize("name", JSON_FILES)
def test_malformed_json_files_are_rejected(run: Path, name: str, kind: str) -> None:
    path = file_of(run, name)
    blob, words = CONTENTS[kind]
    path.write_bytes(blob)
    refused(run, path, words, *readers(name))


@pytest.mark.parametrize(("name", "changes", "words"), CASES)
def test_invalid_values_in_json_files_are_rejected(run: Path, name: str, changes: dict[str, Any], words: str) -> None:
    path = file_of(run, name)
    change_json(path, **changes)
    refused(run, path, words, *readers(name))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"d_model": -1}, "invalid arguments"),
        ({"d_model": 16}, r"does not match model\.json: expected .* of shape \[.*\], found \["),
        ({"d_model": 10**9}, "Storage size calculation overflowed"),
        ({"d_model": 10**6}, r"does not match model\.json"),  # would need terabytes of memory
        ({"d_model": 2**31 - 2}, "overflowed"),
        ({"d_model": 10**30}, "d_model must be from -2147483648 to 2147483647, found 1000"),
        ({"d_model": 10**400}, "d_model must be from -2147483648 to 2147483647, found an integer of 1329 bits"),
        ({"d_model": 1e999}, "d_model must be finite, found inf"),
        ({"d_model": "8"}, "invalid arguments"),
        ({"d_model": [8]}, "invalid arguments"),
        ({"d_model": {}}, "d_model must be a number, a string, true, false, null or a list of these"),
        ({"dropout": float("nan")}, "dropout must be finite, found nan"),
        ({"dropout": 2}, "invalid arguments"),
        ({"layers": 10**30}, "layers must be from -2147483648 to 10000"),
        ({"layers": 2**31 - 1}, "layers must be from -2147483648 to 10000"),
        ({"layers": 9999}, "layers is 9999, but there are only 18 parameters"),
        ({"layers": 1e30}, "layers must be a whole number"),
        ({"layers": [1]}, "layers must be a whole number"),
        ({"layers": "1"}, "layers must be a whole number"),
        ({"layers": 0}, "model.json: invalid arguments|not match"),
        ({"layers": 2}, r"does not match model\.json"),
        ({"src_vocab": 10**9}, "expected 1000000000 symbols"),
        ({"depth": 3}, "depth"),
        ({"functions": 30, "num_basis": 30}, "invalid arguments: .*functions"),
    ],
)
def test_invalid_model_arguments_are_rejected(run: Path, arguments: dict[str, Any], words: str) -> None:
    path = run / "model.json"
    change_json(path, arguments={**json.loads(path.read_text())["arguments"], **arguments})
    refused(run, run, words, lambda folder: load_run(folder, "last"))


@pytest.mark.parametrize(
    "description",
    [
        {"class": "rnn", "density": "truncated_parabola", "num_basis": 9},
        {"class": "rnn", "output": "alpha_relu", "tau": 0.5, "share": "target"},
        {"class": "transformer", "attention": "learned", "share": "all", "tie_alphas": "kind", "heads": 2, "d_ff": 8},
        {"class": "classifier", "density": "laplace", "attention": "combined", "d_embedding": 4, "num_basis": 8},
        {"class": "classifier", "density": "learned", "attention": "continuous", "num_basis": 8},
        {"class": "answerer", "kind": "questions", "image": "cnn", "d_image": 3, "heads": 2, "num_basis": 9},
        {"class": "answerer", "kind": "questions", "image": "features", "d_image": 3, "heads": 2, "num_basis": 9},
    ],
    ids=str,
)
def test_models_on_the_meta_device_have_the_same_shapes(description: dict[str, Any]) -> None:
    """The shapes of a model's parameters are known before memory is allocated for them."""
    name = description["class"]
    arguments = {"src_vocab": 9, "tgt_vocab": 9, "d_model": 8, **description}
    del arguments["class"]
    made = build_model({"class": name, "arguments": arguments})
    with torch.device("meta"):
        outline = build_model({"class": name, "arguments": arguments})
    shapes = [{key: value.shape for key, value in m.state_dict().items()} for m in (made, outline)]
    assert shapes[0] == shapes[1]
    record = parse_record(json.dumps({"class": name, "arguments": made.arguments}).encode(), ModelRecord, "model.json")
    assert record.arguments == made.arguments


STATES: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda state: [state], "expected a JSON object"),
    (lambda state: {}, "optimizer: missing; schedule: missing; position: missing; and 3 more"),
    (lambda state: state.update(log=None), "log: "),
    (lambda state: state.update(log=-1), "log: "),
    (lambda state: state.update(processes=0), "processes: "),
    (lambda state: state.update(processes="1"), "processes: "),
    (lambda state: state.update(more=1), "more: unknown key"),
    (lambda state: state.update(schedule={"rate": 1}), r"schedule\.rate: unknown key"),
    (lambda state: state.update(schedule={}), "belongs to another run: its schedule is not halve-on-worse"),
    (lambda state: state["schedule"].update(learning_rate=float("nan")), r"schedule\.learning_rate: "),
    (lambda state: state["position"].update(step=-1), r"position\.step: "),
    (lambda state: state["position"].update(loss=float("nan")), r"position\.loss: "),
    (lambda state: state["position"].update(update=10**9), "at update 1000000000 of an epoch with only 4"),
    (lambda state: state.update(optimizer=[]), "optimizer: "),
    (lambda state: state["optimizer"].update(state={}), "the stored optimizer does not belong to"),
    (lambda state: state["optimizer"]["state"]["output.projection.bias"].update(exp_avg=3), "state of output"),
    (lambda state: state["optimizer"]["state"]["output.projection.bias"].update(exp_avg=torch.ones(2)), "state of out"),
]


@pytest.mark.parametrize(("change", "words"), STATES)
def test_invalid_training_states_are_rejected(run: Path, change: Callable[[dict[str, Any]], Any], words: str) -> None:
    change_state(checkpoint_of(run) / "training.pt", change)
    refused(run, run / "checkpoints", words, train)


def test_stored_optimizer_settings_are_ignored(run: Path, half: Path, tmp_path: Path) -> None:
    change_state(
        checkpoint_of(run) / "training.pt",
        lambda state: state["optimizer"]["param_groups"][0].update(betas="x", eps=1e9, lr=None, fused=None),
    )
    train(run)
    other = Path(shutil.copytree(half, tmp_path / "other"))
    train(other)
    assert contents(run) == contents(other)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_non_finite_weights_are_rejected(run: Path, value: float) -> None:
    path = checkpoint_of(run) / "model.safetensors"
    parameters = load(path.read_bytes())
    parameters["output.projection.bias"][3] = value
    replace(path, save(parameters))
    refused(run, path, "the weights output.projection.bias are not finite", *readers("model"))


def test_parameters_of_another_model_are_rejected(run: Path) -> None:
    path = checkpoint_of(run) / "model.safetensors"
    parameters = load(path.read_bytes())
    bias = parameters.pop("output.projection.bias")
    for changed in ({**parameters}, {**parameters, "output.projection.bias": bias[1:]}, {**parameters, "bias": bias}):
        replace(path, save(changed))
        refused(run, path.parent, "not match|belongs to another run", *readers("model"))


FILES = ("config.yaml", *JSON_FILES, "src.vocab.json", "tgt.vocab.json", "log.jsonl", "timing.jsonl")
FILES += ("checkpoints/{last}/model.safetensors", "checkpoints/{last}/training.pt")


@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
@pytest.mark.parametrize("name", FILES)
def test_special_files_and_folders_are_rejected(half: Path, tmp_path: Path, name: str, kind: str) -> None:
    """Reading a pipe would block, and a device has no end."""
    run = Path(shutil.copytree(half, tmp_path / "run"))
    path = file_of(run, name)
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    only_training = name.endswith((".jsonl", "training.pt"))
    for work in readers("training.pt" if only_training else name):
        with pytest.raises(InputError, match=f"{path.name}|names {path.parent.name}, which is not a complete check"):
            work(run)


def test_configurations_that_are_not_utf8_are_rejected(run: Path) -> None:
    (run / "config.yaml").write_bytes(b"version: \xff\n")
    refused(run, run / "config.yaml", "expected UTF-8 text, found byte 0xff", train)


def test_model_json_must_match_the_configuration(run: Path) -> None:
    path = run / "model.json"
    change_json(path, arguments={**json.loads(path.read_text())["arguments"], "d_model": 16, "tau": 0.25})
    refused(run, path, r"d_model is 16, but config\.yaml sets 8; restore the file", stored)
    path.unlink()
    refused(run, path, "can't be read", stored)


def test_oversized_files_are_rejected(run: Path) -> None:
    path = run / "task.json"
    with path.open("wb") as stream:
        stream.truncate(LARGEST + 1)
    with pytest.raises(InputError, match=r"task\.json: expected at most 67108864 bytes"):
        load_run(run)
    model = checkpoint_of(run) / "model.safetensors"
    with model.open("r+b") as stream:
        stream.truncate(1 << 40)  # sparse on disk, but would need a terabyte of memory
    with pytest.raises(InputError, match=r"model\.safetensors: expected at most \d+ bytes, found more"):
        Checkpoints(run / "checkpoints").load_model("last")


@pytest.mark.parametrize("line", [b"3", b"{}", b'{"event": 3}', b'{"event": "x", "step": "x"}', b"\xff", b""])
def test_invalid_log_lines_raise(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"event": "start"}\n' + line + b'\n{"event": "x"}\n')
    with pytest.raises(InputError, match=r"log\.jsonl:2: "):
        Log(path).events()
