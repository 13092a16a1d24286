"""Run folder, which contains all files that are needed to use a trained model, in open formats.

config.yaml       configuration with all defaults
model.json        class and arguments of the model
task.json         task, which defines how input lines are read
src.vocab.json    source symbols; or src.model, a sentencepiece model
tgt.vocab.json    target symbols; or tgt.model, a sentencepiece model
start.safetensors initial parameters, unless they are random
log.jsonl         one event per line
timing.jsonl      durations, one event per line
checkpoints/      see `tsallis.toolkit.training.checkpoint`
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tsallis.errors import InputError, describe, memory_for
from tsallis.models.registry import MODELS
from tsallis.models.sharing import aliases_of
from tsallis.toolkit.config import flat_settings
from tsallis.toolkit.data.io import check_file, is_leftover, is_regular, read_text, remove_leftovers, write_atomic
from tsallis.toolkit.data.subwords import Subwords
from tsallis.toolkit.data.vocabulary import Vocabulary
from tsallis.toolkit.data.yaml_text import parse_yaml
from tsallis.toolkit.old_names import with_new_names
from tsallis.toolkit.training.changes import Changes
from tsallis.toolkit.training.checkpoint import Checkpoints
from tsallis.toolkit.training.file_names import CHECKPOINTS, CONFIG, LOCK, MODEL, PARAMETERS, START, TASK
from tsallis.toolkit.training.lock import Lock, locked, writing
from tsallis.toolkit.training.schema import (
    LAYERS,
    ModelRecord,
    TaskRecord,
    as_json,
    check_record,
    read_record,
)

__all__ = ["Run", "build_model", "load_run", "locked", "start_run"]

Symbols = Vocabulary | Subwords
# Classes of vocabularies by the ending of their files.
SYMBOLS: dict[str, type[Vocabulary] | type[Subwords]] = {"vocab.json": Vocabulary, "model": Subwords}
# Errors that model constructors raise for arguments of a wrong type or size.
REFUSALS = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RuntimeError, MemoryError)


@dataclass(frozen=True)
class Run:
    """Trained model with its vocabularies, task and settings.

    Args:
        folder: Run folder.
        model: Model in evaluation mode.
        src_vocab: Source symbols or subwords.
        tgt_vocab: Target symbols or subwords.
        task: Content of `task.json`, which defines how input lines are read.
        facts: Step, epoch and metrics of the checkpoint.
    """

    folder: Path
    model: Any
    src_vocab: Symbols
    tgt_vocab: Symbols
    task: dict[str, Any]
    facts: dict[str, Any]


def describe_run(run: Run) -> dict[str, Any]:
    """Return the names of a run's folder and task, and the class and the arguments of its model."""
    model = read_record(run.folder / MODEL, ModelRecord)
    name = run.folder.name or str(run.folder)
    return {"name": name, "task": run.task["task"], "model": model.name, "arguments": model.arguments}


def load_run(folder: Path | str, which: str = "best") -> Run:
    """Load the model of a run folder, ready for search.

    Args:
        folder: Run folder.
        which: Checkpoint: "best", "last" or "average", or the name of its folder.

    Returns:
        The model in evaluation mode, with its vocabularies and task.

    Raises:
        InputError: If the folder is not a run folder, the checkpoint is damaged, the vocabularies are not those of the
            model, or weights are not finite.

    Example:
        >>> import tempfile
        >>> folder, symbols = Path(tempfile.mkdtemp()), Vocabulary(["a", "b"])
        >>> description = {"class": "rnn", "arguments": {"src_vocab": 6, "tgt_vocab": 6, "d_model": 8}}
        >>> task = {"task": "strings", "languages": None}
        >>> resumed = start_run(folder, "version: 1", description, task, symbols, symbols)
        >>> parameters, facts = build_model(description).state_dict(), {"step": 1, "epoch": 1, "metrics": {}}
        >>> Checkpoints(folder / "checkpoints").save(parameters, {}, facts, best=True, finished=True)
        >>> load_run(folder).facts["step"]
        1
    """
    folder = Path(folder)
    check_run(folder)
    record, task = _read_records(folder)
    if os.path.lexists(folder / CONFIG):
        check_file(folder / CONFIG)  # raise for a FIFO: reading it would block
    vocabularies = _vocabularies(folder, record)
    checkpoint, parameters, facts = Checkpoints(folder / CHECKPOINTS).load(which)
    mismatch = f"{checkpoint / PARAMETERS}: the checkpoint does not match {MODEL}"
    model = _model_of(folder / MODEL, record, parameters, mismatch)
    return Run(folder, model, *vocabularies, task.model_dump(), facts)


def check_run(folder: Path) -> None:
    """Raise unless a folder is a run folder."""
    if not os.path.lexists(folder / MODEL):
        raise InputError(f"{folder}: not a run folder (it has no {MODEL})")


def _vocabularies(folder: Path, record: ModelRecord) -> tuple[Symbols, Symbols]:
    """Load the source and target vocabularies that the model was trained with."""
    loaded = []
    for name in ("src", "tgt"):
        path, vocabulary = _load_symbols(folder, name)
        expected = record.arguments.get("vocab", record.arguments.get(f"{name}_vocab"))
        if len(vocabulary) != expected:
            raise InputError(f"{path}: expected {expected} symbols, as in the training, found {len(vocabulary)}")
        fingerprint = record.vocabularies and getattr(record.vocabularies, name)
        if fingerprint not in (None, vocabulary.fingerprint()):
            raise InputError(f"{path}: differs from the vocabulary of the training; restore the file")
        loaded.append(vocabulary)
    return loaded[0], loaded[1]


def _model_of(path: Path, record: ModelRecord, parameters: dict[str, Tensor], mismatch: str) -> Any:
    """Build a model and load its parameters.

    The model is first built on the meta device, which needs no memory, to compare its shapes with the stored
    parameters. Without this check, wrong arguments could allocate any amount of memory.
    """
    for key in LAYERS:
        if (layers := record.arguments.get(key) or 0) > len(parameters):
            raise InputError(f"{mismatch}: {key} is {layers}, but there are only {len(parameters)} parameters")
    description = {"class": record.name, "arguments": record.arguments}
    with torch.device("meta"):
        meta_model = build_model(description, path)
    _check_parameters(meta_model, parameters, mismatch)
    model = build_model(description, path)
    model.load_state_dict({**parameters, **{alias: parameters[key] for alias, key in aliases_of(model).items()}})
    return model.eval()


def _check_parameters(model: Any, parameters: Mapping[str, Tensor], mismatch: str) -> None:
    """Raise unless `parameters` have the same names and shapes as the parameters of the model."""
    aliases = aliases_of(model).keys()
    shapes = {name: list(value.shape) for name, value in model.state_dict().items()}
    for name in sorted((shapes.keys() | parameters.keys()) - aliases):
        expected, shape = shapes.get(name), list(parameters[name].shape) if name in parameters else None
        if shape is None:
            raise InputError(f"{mismatch}: the parameter {name} is missing")
        if expected is None:
            raise InputError(f"{mismatch}: the model has no parameter {name}")
        if expected != shape:
            raise InputError(f"{mismatch}: expected {name} of shape {expected}, found {shape}")


def _load_symbols(folder: Path, name: str) -> tuple[Path, Symbols]:
    for ending, kind in SYMBOLS.items():
        path = folder / f"{name}.{ending}"
        if os.path.lexists(path):
            check_file(path)
            return path, kind.load(path)
    raise InputError(f"{folder / name}.vocab.json: missing, and there is no {name}.model either; restore the file")


def _symbols_path(folder: Path, name: str, symbols: Symbols) -> Path:
    ending = next(ending for ending, kind in SYMBOLS.items() if isinstance(symbols, kind))
    return folder / f"{name}.{ending}"


def build_model(description: dict[str, Any], path: Path | str = MODEL) -> Any:
    """Build a model from `{"class": ..., "arguments": {...}}`; error messages begin with `path`."""
    name, arguments = description.get("class"), description.get("arguments") or {}
    if not isinstance(name, str) or name not in MODELS:
        raise InputError(f"{path}: unknown class {describe(name)}, expected one of {', '.join(MODELS)}")
    try:
        with memory_for(f"{path}: the model (reduce the sizes in the section model)"):
            return MODELS[name](**arguments)
    except InputError:
        raise
    except REFUSALS as error:
        detail = " ".join(str(error).split())
        raise InputError(f"{path}: invalid arguments: {detail}") from error


class StoredRun(NamedTuple):
    """Model and task of an existing run, as stored in its folder."""

    description: dict[str, Any]  # class and arguments of the model
    task: dict[str, Any]


def read_stored(folder: Path, configs: Sequence[str], arguments: Mapping[str, Any]) -> StoredRun | None:
    """Return the stored model and task of a run, or None if the folder has no run with this configuration.

    A resumed run uses the stored arguments, because another machine would estimate the threshold of alpha-ReLU slightly
    differently.

    Args:
        folder: Run folder.
        configs: Texts of the accepted configurations; several if settings have changed.
        arguments: Model arguments that the configuration determines.

    Raises:
        InputError: If the stored arguments differ from `arguments`.
    """
    if not (folder / CONFIG).exists():
        return None
    record, task = _read_records(folder)
    if read_text(folder / CONFIG) not in configs:
        return None
    for key, value in arguments.items():
        if record.arguments.get(key, value) != value:  # check here, before the model is built
            difference = f"{key} is {record.arguments[key]!r}, but {CONFIG} sets {value!r}"
            raise InputError(f"{folder / MODEL}: {difference}; restore the file")
    return StoredRun({"class": record.name, "arguments": dict(record.arguments)}, task.model_dump())


def _read_records(folder: Path) -> tuple[ModelRecord, TaskRecord]:
    return read_record(folder / MODEL, ModelRecord), read_record(folder / TASK, TaskRecord)


def start_run(
    folder: Path,
    config: str,
    description: dict[str, Any],
    task: dict[str, Any],
    src_vocab: Symbols,
    tgt_vocab: Symbols,
    lock: Lock | None = None,
    start: bytes | None = None,
    changes: Changes | None = None,
    dry: bool = False,
) -> bool:
    """Write the files of a new run, or check that the folder contains the same run; return whether the run existed.

    `start` is the content of the file of initial parameters, or None if they are random. With `changes`, the run
    continues with new settings, and its configuration is rewritten. With `dry`, no file is written. Checkpoints are
    written later.

    Raises:
        InputError: If the folder contains other files, another configuration or other data, or a file can't be written.
    """
    path = folder / CONFIG
    vocabularies_by_side = {"src": src_vocab, "tgt": tgt_vocab}
    vocabularies = {_symbols_path(folder, name, symbols): symbols for name, symbols in vocabularies_by_side.items()}
    fingerprints = {name: symbols.fingerprint() for name, symbols in vocabularies_by_side.items()}
    record = check_record({**description, "vocabularies": fingerprints}, ModelRecord, "model")
    names = (MODEL, TASK, START, CONFIG, LOCK, *(p.name for p in vocabularies))
    with writing(folder, lock):
        resumed = os.path.lexists(path)
        if resumed:
            expected_config = config if changes is None or read_text(path) == config else changes.before
            _check_same(folder, expected_config, vocabularies)
            if changes is not None and expected_config != config:
                changes.check(folder)
                if not dry:
                    write_atomic(path, config)
        else:
            texts = {MODEL: json.dumps(as_json(record), indent=1).encode(), TASK: json.dumps(task, indent=1).encode()}
            texts.update({START: start} if start is not None else {})
            existing_paths = folder.iterdir() if os.path.lexists(folder) or not dry else ()
            if any(not _is_start_leftover(p, texts, vocabularies, names) for p in existing_paths):
                raise InputError(f"{folder}: the folder is not empty and contains no run; choose another folder")
            if dry:
                return False
            for name, text in texts.items():
                write_atomic(folder / name, text)
            for target, symbols in vocabularies.items():
                write_atomic(target, symbols.model if isinstance(symbols, Subwords) else symbols.to_json())
            write_atomic(path, config)  # written last: it marks the folder as a run
        if not dry:
            remove_leftovers(folder, names)
    return resumed


def check_config(folder: Path, config: str) -> None:
    """Raise unless the run in a folder has this configuration."""
    before = read_text(folder / CONFIG)
    if before != config:
        changed = _difference(before, config)
        raise InputError(f"{folder}: contains a run with another configuration ({changed}); choose another folder")


def _check_same(folder: Path, config: str, vocabularies: Mapping[Path, Symbols]) -> None:
    """Raise unless a folder contains a run with the same configuration and data."""
    check_config(folder, config)
    for file, symbols in vocabularies.items():
        check_file(file)
        if type(symbols).load(file) != symbols:
            raise InputError(
                f"{file}: the training data has changed since the run was started; restore it or choose another folder"
            )


def _is_start_leftover(
    path: Path, texts: Mapping[str, bytes], vocabularies: Mapping[Path, Symbols], names: tuple[str, ...]
) -> bool:
    """Return whether this file was left by an earlier start of the same run that was killed."""
    if path.name == LOCK or is_leftover(path, names):
        return True
    try:
        if not is_regular(path):
            return False
        if path.name in texts:
            return path.read_bytes() == texts[path.name]
        return path in vocabularies and type(vocabularies[path]).load(path) == vocabularies[path]
    except (OSError, InputError):
        return False


def _difference(old: str, new: str) -> str:
    """Return up to four differences of two configurations. New values of old settings come before new settings."""
    before, after = (_value_texts(flat_settings(with_new_names(parse_yaml(text, CONFIG)))) for text in (old, new))
    added = [path for path in after if path not in before or before[path] != after[path]]
    lines = [f"new {path}: {after[path]}" for path in sorted(added, key=lambda path: path not in before)]
    lines += [f"old {path}: {text}" for path, text in before.items() if path not in after or after[path] != text]
    return "; ".join(lines[:4])


def _value_texts(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return each value as text."""
    strings = {path: value for path, value in settings.items() if isinstance(value, str)}
    return {path: json.dumps(value, ensure_ascii=False, default=str) for path, value in settings.items()} | strings
