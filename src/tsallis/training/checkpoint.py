"""Checkpoints that are whole or not there, and that never execute code.

    checkpoints/
      index.json        which folders are "last" and "best", and whether the run is finished
      step-00000420/
        model.safetensors   parameters
        training.pt         optimizer, schedule, random state, position (torch.load with weights_only)
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

MODEL, TRAINING, MANIFEST, INDEX = "model.safetensors", "training.pt", "manifest.json", "index.json"


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def index(self) -> dict[str, Any]:
        """`last`, `best`, `finished`; empty before the first checkpoint."""
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
    ) -> None:
        """A new checkpoint that becomes the last one, and the best one if `best`; what is neither is removed."""
        index = self.index()
        name = f"step-{facts['step']:08d}"
        target = self.folder / name
        target.mkdir(parents=True, exist_ok=True)
        stream = io.BytesIO()
        torch.save(training, stream)
        blobs = {MODEL: safetensors.torch.save(model), TRAINING: stream.getvalue()}
        for file, blob in blobs.items():
            write_atomic(target / file, blob)
        sums = {file: {"bytes": len(b), "sha256": hashlib.sha256(b).hexdigest()} for file, b in blobs.items()}
        write_atomic(target / MANIFEST, json.dumps({**facts, "files": sums}, indent=1))
        new = {
            "last": name,
            "best": name if best or "best" not in index else index["best"],
            "finished": finished,
        }
        write_atomic(self.folder / INDEX, json.dumps(new, indent=1))
        self.sweep()

    def sweep(self) -> None:
        """Remove folders the index does not name: left over from a kill, or superseded."""
        index = self.index()
        for path in self.folder.glob("step-*"):
            if path.name not in (index.get("last"), index.get("best")):
                shutil.rmtree(path)
        for path in self.folder.glob(f".{INDEX}.*.tmp"):
            path.unlink()

    def facts(self, which: str) -> dict[str, Any]:
        """The manifest of the "last" or "best" checkpoint."""
        return read_json(self._path(which) / MANIFEST)

    def load_model(self, which: str) -> dict[str, Tensor]:
        blob = self._read(which, MODEL)
        try:
            return safetensors.torch.load(blob)
        except Exception as error:
            raise InputError(f"{self._path(which) / MODEL}: not a safetensors file: {error}") from error

    def load_training(self, which: str) -> dict[str, Any]:
        blob = self._read(which, TRAINING)
        try:
            state: dict[str, Any] = torch.load(io.BytesIO(blob), weights_only=True)
        except Exception as error:
            raise InputError(f"{self._path(which) / TRAINING}: can't be read as a training state") from error
        return state

    def _path(self, which: str) -> Path:
        index = self.index()
        if which not in index:
            raise InputError(f"{self.folder}: the run has no checkpoint yet")
        return self.folder / str(index[which])

    def _read(self, which: str, file: str) -> bytes:
        path = self._path(which) / file
        sums = self.facts(which).get("files")
        expected = sums.get(file) if isinstance(sums, dict) else None
        if not isinstance(expected, dict):
            raise InputError(f"{path.parent / MANIFEST}: says nothing of {file}")
        blob = read_bytes(path)
        if len(blob) != expected.get("bytes"):
            raise InputError(f"{path}: truncated or changed: {len(blob)} bytes, expected {expected.get('bytes')}")
        if hashlib.sha256(blob).hexdigest() != expected.get("sha256"):
            raise InputError(f"{path}: damaged: its SHA-256 is not the one in {MANIFEST}")
        return blob
