"""Checkpoints that are whole or not there, and that never execute code.

    checkpoints/
      index.json        which folders are "last", "best", "kept" and "average", and whether the run is finished
      step-00000420/
        model.safetensors   parameters, one that stands in several places once
        training.pt         optimizer, schedule, position (torch.load with weights_only)
        manifest.json       sizes and SHA-256 of both, step, epoch, metrics

A folder counts only once the index names it, and the index is replaced in one step: whenever a run is killed, the
folder it resumes from is whole.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from tsallis.data.reading import read_bytes, read_json
from tsallis.errors import InputError
from tsallis.files import write_atomic

NAMES = ("last", "best", "average")
MODEL, TRAINING, MANIFEST, INDEX = "model.safetensors", "training.pt", "manifest.json", "index.json"


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: where they lie.
        keep: validated checkpoints kept beside the best and the last one, to be averaged.
    """

    def __init__(self, folder: Path | str, keep: int = 1) -> None:
        self.folder, self.keep = Path(folder), keep

    def index(self) -> dict[str, Any]:
        """`last`, `best`, `kept`, `finished`, perhaps `average`; empty before the first checkpoint."""
        path = self.folder / INDEX
        if not path.exists():
            return {}
        content = read_json(path)
        if not all(isinstance(content.get(key), str) for key in ("last", "best")):
            raise InputError(f"{path}: not a checkpoint index (last and best must name folders)")
        return content

    def save(
        self,
        model: dict[str, Tensor],
        training: dict[str, Any],
        facts: dict[str, Any],
        best: bool,
        finished: bool,
        validated: bool = True,
    ) -> None:
        """A new checkpoint that becomes the last one, and the best one if `best`; what has no such name is removed."""
        index = self.index()
        name = f"step-{facts['step']:08d}"
        stream = io.BytesIO()
        torch.save(training, stream)
        self._write(name, {MODEL: safetensors.torch.save(_once(model)), TRAINING: stream.getvalue()}, facts)
        kept = [*index.get("kept", []), name] if validated else index.get("kept", [])
        new = {
            **index,
            "last": name,
            "best": name if best or "best" not in index else index["best"],
            "kept": list(dict.fromkeys(kept))[-self.keep :],
            "finished": finished,
        }
        write_atomic(self.folder / INDEX, json.dumps(new, indent=1))
        self.sweep()

    def _write(self, name: str, blobs: dict[str, bytes], facts: dict[str, Any]) -> None:
        target = self.folder / name
        target.mkdir(parents=True, exist_ok=True)
        for file, blob in blobs.items():
            write_atomic(target / file, blob)
        sums = {file: {"bytes": len(b), "sha256": hashlib.sha256(b).hexdigest()} for file, b in blobs.items()}
        write_atomic(target / MANIFEST, json.dumps({**facts, "files": sums}, indent=1))

    def average(self, last: int | None = None) -> list[str]:
        """Average the parameters of the last checkpoints kept, into one named `average`; which ones they were.

        Raises:
            InputError: fewer checkpoints than asked for, or damaged ones.
        """
        index = self.index()
        kept = index.get("kept", [])
        if last is not None and not 1 <= last <= len(kept):
            raise InputError(f"{self.folder}: {len(kept)} validated checkpoints were kept, {last} are to be averaged")
        names = kept[-last:] if last is not None else kept
        if not names:
            raise InputError(f"{self.folder}: no validated checkpoint was kept yet")
        total: dict[str, Tensor] = {}
        for name in names:
            for key, value in self._load(name).items():
                total[key] = total[key] + value.double() if key in total else value.double()
        dtypes = {key: value.dtype for key, value in self._load(names[-1]).items()}
        mean = {key: (value / len(names)).to(dtypes[key]) for key, value in total.items()}
        folder = f"average-{names[0].removeprefix('step-')}-{names[-1].removeprefix('step-')}"
        facts = {**read_json(self.folder / names[-1] / MANIFEST), "of": names, "metrics": {}}
        self._write(folder, {MODEL: safetensors.torch.save(mean)}, facts)
        write_atomic(self.folder / INDEX, json.dumps({**index, "average": folder}, indent=1))
        self.sweep()
        return names

    def sweep(self) -> None:
        """Remove folders the index does not name: left over from a kill, or superseded."""
        index = self.index()
        named = {*(index.get(key) for key in NAMES), *index.get("kept", [])}
        for path in (*self.folder.glob("step-*"), *self.folder.glob("average-*")):
            if path.name not in named:
                shutil.rmtree(path)
        for path in self.folder.glob(f".{INDEX}.*.tmp"):
            path.unlink()

    def facts(self, which: str) -> dict[str, Any]:
        """The manifest of the "last", "best" or "average" checkpoint."""
        return read_json(self._path(which) / MANIFEST)

    def load_model(self, which: str, model: Any = None) -> dict[str, Tensor]:
        """The parameters of a checkpoint; for a model that shares some of its own, those in every place."""
        found = self._load(self._name(which))
        shared = model.shared_parameters() if hasattr(model, "shared_parameters") else {}
        return {**found, **{alias: found[key] for alias, key in shared.items() if key in found}}

    def _load(self, name: str) -> dict[str, Tensor]:
        blob = self._read(name, MODEL)
        try:
            return safetensors.torch.load(blob)
        except Exception as error:
            raise InputError(f"{self.folder / name / MODEL}: not a safetensors file: {error}") from error

    def load_training(self, which: str) -> dict[str, Any]:
        name = self._name(which)
        blob = self._read(name, TRAINING)
        try:
            state: dict[str, Any] = torch.load(io.BytesIO(blob), weights_only=True)
        except Exception as error:
            raise InputError(f"{self.folder / name / TRAINING}: can't be read as a training state") from error
        return state

    def _name(self, which: str) -> str:
        index = self.index()
        if "last" not in index:
            raise InputError(f"{self.folder}: the run has no checkpoint yet")
        if which not in NAMES:
            raise InputError(f"checkpoint must be one of {', '.join(NAMES)}, got {which!r}")
        if which not in index:
            raise InputError(f"{self.folder}: the run has no averaged checkpoint; `tsallis average` makes one")
        return str(index[which])

    def _path(self, which: str) -> Path:
        return self.folder / self._name(which)

    def _read(self, name: str, file: str) -> bytes:
        path = self.folder / name / file
        sums = read_json(path.parent / MANIFEST).get("files")
        expected = sums.get(file) if isinstance(sums, dict) else None
        if not isinstance(expected, dict):
            raise InputError(f"{path.parent / MANIFEST}: says nothing of {file}")
        blob = read_bytes(path)
        if len(blob) != expected.get("bytes"):
            raise InputError(f"{path}: truncated or changed: {len(blob)} bytes, expected {expected.get('bytes')}")
        if hashlib.sha256(blob).hexdigest() != expected.get("sha256"):
            raise InputError(f"{path}: damaged: its SHA-256 is not the one in {MANIFEST}")
        return blob


def _once(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """Without the second name of a tensor that has several."""
    found: dict[tuple[int, tuple[int, ...]], str] = {}
    for name, value in parameters.items():
        found.setdefault((value.data_ptr() if value.numel() else -len(found), tuple(value.shape)), name)
    return {name: parameters[name].contiguous() for name in found.values()}
