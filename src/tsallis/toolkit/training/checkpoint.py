"""Checkpoints that are written atomically and are safe to load, because loading executes no code.

    checkpoints/
      index.json        names of the folders "last", "best", "kept" and "average", and whether the run is finished
      step-00000420/
        model.safetensors   parameters; shared parameters are stored once
        training.pt         optimizer, schedule, position (torch.load with weights_only)
        manifest.json       size and SHA-256 of the two files above, step, epoch, metrics

A checkpoint is valid once the index names it, and the index is replaced atomically. A run may therefore be killed at
any moment: the checkpoint from which it resumes is complete. Only folders that the index lists under "discard" are
removed. The index lists a checkpoint there before the first file is written, and again when the checkpoint is
superseded.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import safetensors.torch
import torch
from torch import Tensor

from tsallis.errors import IgnoredInputWarning, InputError
from tsallis.models.sharing import aliases_of
from tsallis.toolkit.data.io import is_folder, is_leftover, is_regular, read_bytes, remove_leftovers, write_atomic
from tsallis.toolkit.training.file_names import INDEX, MANIFEST, PARAMETERS, TRAINING
from tsallis.toolkit.training.lock import Lock, writing
from tsallis.toolkit.training.schema import Index, Manifest, as_json, check_record, read_record

NAMES = ("last", "best", "average")
FILES = (MANIFEST, PARAMETERS, TRAINING)  # in order of removal; without a manifest, a checkpoint is incomplete
ATTEMPTS = 3  # number of attempts to read a checkpoint that another process may replace
FOLDER = re.compile(r"(step-[0-9]{8,18}|average-[0-9]{8,18}-[0-9]{8,18})")
Content = TypeVar("Content")


class Checkpoints:
    """Checkpoints of one run.

    Args:
        folder: Folder of all checkpoints, `checkpoints` in the run folder.
        keep: Number of validated checkpoints that are kept for averaging. The best and the last checkpoint are always
            kept.
        lock: Lock on the run folder, for a training process. With None, the caller must check the folder.

    Example:
        >>> import tempfile
        >>> checkpoints = Checkpoints(Path(tempfile.mkdtemp()) / "checkpoints")
        >>> facts = {"step": 3, "epoch": 1, "metrics": {"accuracy": 0.5}}
        >>> checkpoints.save({"bias": torch.zeros(2)}, {}, facts, best=True, finished=False)
        >>> folder, parameters, loaded = checkpoints.load("best")
        >>> folder.name, parameters["bias"], loaded["step"]
        ('step-00000003', tensor([0., 0.]), 3)
    """

    def __init__(self, folder: Path | str, keep: int = 1, lock: Lock | None = None) -> None:
        self.folder = Path(folder)
        self.keep = keep
        self.lock = lock

    def index(self) -> Index:
        """Return the index of checkpoints; before the first checkpoint, the index is empty.

        Raises:
            InputError: If the index is damaged, or if it is missing although there are checkpoints.
        """
        path = self.folder / INDEX
        if os.path.lexists(path):
            return read_record(path, Index)
        if self._folders():
            raise InputError(f"{path}: missing, although there are checkpoints; restore the file")
        return Index(finished=False)

    def check(self) -> Index:
        """Compare the index with the folders, and return the index. Nothing is written.

        Raises:
            InputError: If the index names a missing checkpoint, or omits a checkpoint that is later than its last one.
        """
        if os.path.lexists(self.folder) and not self.folder.is_dir():
            raise InputError(f"{self.folder}: expected a folder, found a file or a broken link")
        index = self.index()
        for name in sorted(index.names):
            if not is_regular(self.folder / name / MANIFEST):
                raise InputError(
                    f"{self.folder / INDEX}: names {name}, which is not a complete checkpoint; "
                    "restore that folder or this file"
                )
        last = -1 if index.last is None else _step(index.last)
        for path in self._folders():
            unnamed = path.name not in index.names | set(index.discard)
            if unnamed and path.name.startswith("step-") and _step(path.name) > last and not self._is_partial(path):
                raise self._unnamed_error(path)
        return index

    def open(self) -> Index:
        """Prepare the folder for :meth:`save`: check the index and remove files that killed processes left.

        Raises:
            InputError: See :meth:`check`, or if the folder can't be written.
        """
        with writing(self.folder, self.lock):
            index = self.check()
            self.folder.mkdir(parents=self.lock is None, exist_ok=True)
            if not os.path.lexists(self.folder / INDEX):
                self._replace(index, index)
            self.sweep()
        return index

    def record_finished(self, finished: bool) -> None:
        """Record whether the run is finished: new settings may end it earlier or later."""
        with writing(self.folder, self.lock):
            index = self.index()
            if index.finished != finished:
                self._replace(index, index.model_copy(update={"finished": finished}))

    def save(
        self,
        model: dict[str, Tensor],
        training: dict[str, Any],
        facts: dict[str, Any],
        best: bool,
        finished: bool,
        validated: bool = True,
    ) -> None:
        """Save a checkpoint as the last one, and also as the best one if `best` is true. Remove superseded checkpoints.

        Raises:
            InputError: If a file can't be written or the folder has changed. Earlier checkpoints are kept.
        """
        name = f"step-{facts['step']:08d}"
        stream = io.BytesIO()
        torch.save(_canonical(training), stream)
        with writing(self.folder, self.lock):
            index = self.open()
            blobs = {PARAMETERS: safetensors.torch.save(_drop_aliases(model)), TRAINING: stream.getvalue()}
            before = self._write(index, name, blobs, facts)
            history = (*index.validated, name) if validated else index.validated
            changes = {
                "last": name,
                "best": name if best or index.best is None else index.best,
                "validated": history[-self.keep :],
                "finished": finished,
            }
            self._replace(before, before.model_copy(update=changes))
            self.sweep()

    def _write(self, index: Index, name: str, blobs: dict[str, bytes], facts: dict[str, Any]) -> Index:
        """Write a new checkpoint folder. Return the index, which still lists the folder under "discard"."""
        target = self.folder / name
        self._check_free(index, name)
        sums = {file: {"bytes": len(b), "sha256": hashlib.sha256(b).hexdigest()} for file, b in blobs.items()}
        manifest = check_record({**facts, "files": sums}, Manifest, str(target / MANIFEST))
        index = self._replace(index, index.model_copy(update={"discard": (*index.discard, name)}))
        try:
            self._remove(target)  # remove the remains of an earlier attempt
            target.mkdir(exist_ok=True)
            for file, blob in blobs.items():
                write_atomic(target / file, blob)
            write_atomic(target / MANIFEST, json.dumps(as_json(manifest), indent=1))
        except OSError:
            self._remove(target)  # free the disk space
            raise
        return index

    def _check_free(self, index: Index, name: str) -> None:
        """Raise an InputError if a new checkpoint `name` would replace another file, folder or checkpoint."""
        target, replaceable = self.folder / name, name in index.discard
        if name in index.names or (os.path.lexists(target) and not replaceable and not self._is_partial(target)):
            raise self._unnamed_error(target)

    def _replace(self, before: Index, index: Index) -> Index:
        """Write `index` in place of `before`. List checkpoints under "discard" if only `before` contains them."""
        discard = {*before.names, *index.discard} - index.names
        folders = {name for name in discard if name not in before.discard or os.path.lexists(self.folder / name)}
        index = Index.model_validate({**dict(index), "discard": tuple(sorted(folders))})
        write_atomic(self.folder / INDEX, json.dumps(as_json(index), indent=1))
        return index

    def average(self, last: int | None = None) -> list[str]:
        """Average the parameters of the last validated checkpoints, and save them as the checkpoint "average".

        Returns:
            The names of the averaged checkpoints.

        Raises:
            InputError: If there are too few checkpoints, or they are damaged or belong to different models.
        """
        with writing(self.folder, self.lock):
            index = self.check()
            if not (candidates := index.validated):
                raise InputError(f"{self.folder}: there is no validated checkpoint yet")
            if last is not None and not 1 <= last <= len(candidates):
                raise InputError(
                    f"{self.folder}: the number of checkpoints to average must be from 1 to {len(candidates)}, "
                    f"got {last}"
                )
            names = list(candidates[-last:] if last is not None else candidates)
            mean = self._mean(names)
            facts = {**dict(self._manifest(names[-1])), "of": names, "metrics": {}}
            folder = f"average-{names[0].removeprefix('step-')}-{names[-1].removeprefix('step-')}"
            if index.average != folder:
                self._check_free(index, folder)
            index = self.open()  # prepares the folder for writing, so it comes after all checks
            if index.average == folder:  # the average of these checkpoints already exists: replace it
                index = self._replace(index, index.model_copy(update={"average": None}))
            index = self._write(index, folder, {PARAMETERS: safetensors.torch.save(mean)}, facts)
            self._replace(index, index.model_copy(update={"average": folder}))
            self.sweep()
        return names

    def _mean(self, names: list[str]) -> dict[str, Tensor]:
        total: dict[str, Tensor] = {}
        for name in names:
            parameters = self._load(name)
            if total and {k: v.shape for k, v in parameters.items()} != {k: v.shape for k, v in total.items()}:
                raise InputError(
                    f"{self.folder / name / PARAMETERS}: names or shapes of parameters differ from those in {names[0]}"
                )
            total = {key: total[key] + v.double() if total else v.double() for key, v in parameters.items()}
        return {key: (total[key] / len(names)).to(value.dtype) for key, value in parameters.items()}

    def sweep(self) -> None:
        """Remove superseded checkpoints, incomplete checkpoints, and files that killed processes left."""
        index = self.index()
        with writing(self.folder, self.lock):
            for path in self._folders():
                last = -1 if index.last is None else _step(index.last)
                if path.name in index.discard or (
                    path.name.startswith("step-") and _step(path.name) > last and self._is_partial(path)
                ):
                    self._remove(path)
            if self.folder.is_dir():
                remove_leftovers(self.folder, (INDEX,))

    def _folders(self) -> list[Path]:
        """Return the folders that may be checkpoints, sorted by name. Links are left out."""
        if not self.folder.is_dir():
            return []
        return sorted(p for p in self.folder.iterdir() if FOLDER.fullmatch(p.name) and is_folder(p))

    def _is_partial(self, path: Path) -> bool:
        """Return whether a folder is an incomplete checkpoint: it contains only checkpoint files, but no manifest."""
        return is_folder(path) and all(
            (p.name in (PARAMETERS, TRAINING) and is_regular(p)) or is_leftover(p, FILES) for p in path.iterdir()
        )

    def _remove(self, path: Path) -> None:
        """Remove the files of a checkpoint, and its folder unless it contains other files."""
        if is_folder(path):
            for file in FILES:
                if is_regular(path / file):
                    (path / file).unlink()
            remove_leftovers(path, FILES)
            if not any(path.iterdir()):
                path.rmdir()

    def _unnamed_error(self, path: Path) -> InputError:
        return InputError(
            f"{path}: this checkpoint is not listed in {INDEX}; move it out of the folder, or add it to {INDEX}"
        )

    def facts(self, which: str) -> dict[str, Any]:
        """Return the manifest of the "last", "best" or "average" checkpoint."""
        return self._read_current(which, lambda name: as_json(self._manifest(name)))

    def load(self, which: str) -> tuple[Path, dict[str, Tensor], dict[str, Any]]:
        """Return the folder, the parameters and the manifest of a checkpoint.

        All three belong to the same checkpoint, even if another process saves a new one meanwhile.

        Raises:
            InputError: If the checkpoint is missing or damaged, or weights are not finite.
        """
        return self._read_current(
            which, lambda name: (self.folder / name, self._load(name), as_json(self._manifest(name)))
        )

    def _read_current(self, which: str, read: Callable[[str], Content]) -> Content:
        """Read a checkpoint by name; read again if another process replaces the checkpoint meanwhile."""
        for _ in range(ATTEMPTS - 1):
            name = self._name(which)
            try:
                return read(name)
            except InputError:
                if self._name(which) == name:
                    raise
        return read(self._name(which))

    def load_model(self, which: str, model: Any = None) -> dict[str, Tensor]:
        """Return the parameters of a checkpoint. Shared parameters of the model occur under each of their names.

        Raises:
            InputError: See :meth:`load`.
        """
        _, parameters, _ = self.load(which)
        return {**parameters, **{name: parameters[key] for name, key in aliases_of(model).items() if key in parameters}}

    def _load(self, name: str) -> dict[str, Tensor]:
        path, blob = self.folder / name / PARAMETERS, self._read(name, PARAMETERS)
        try:
            parameters: dict[str, Tensor] = safetensors.torch.load(blob)
        except Exception as error:
            raise InputError(f"{path}: not a safetensors file: {' '.join(str(error).split())}") from error
        if (key := find_nonfinite(parameters)) is not None:
            raise InputError(f"{path}: the weights {key} are not finite; restore the file")
        return parameters

    def load_training(self, which: str) -> Any:
        """Return the training state that :meth:`save` stored; no code is executed.

        Raises:
            InputError: If the checkpoint is missing or damaged, or is not a dictionary of plain values.
        """
        return self._read_current(which, self._load_training)

    def _load_training(self, name: str) -> Any:
        path, blob = self.folder / name / TRAINING, self._read(name, TRAINING)
        try:
            return torch.load(io.BytesIO(blob), weights_only=True)
        except Exception as error:
            raise InputError(f"{path}: not a training state; restore the file") from error

    def _name(self, which: str) -> str:
        index = self.index()
        if index.last is None:
            raise InputError(f"{self.folder}: the run has no checkpoint yet")
        if which in index.names:
            return which
        if which not in NAMES:
            raise InputError(f"checkpoint must be one of {', '.join(NAMES)}, got {which!r}")
        name = getattr(index, which)
        if name is None:
            raise InputError(f"{self.folder}: the run has no averaged checkpoint; `tsallis average` creates one")
        if which == "average" and index.validated and _step(name) < _step(index.validated[-1]):
            hint = f"{self.folder}: training has continued since this average; `tsallis average` makes a new one"
            warnings.warn(hint, IgnoredInputWarning, stacklevel=2)
        return str(name)

    def _manifest(self, name: str) -> Manifest:
        return read_record(self.folder / name / MANIFEST, Manifest)

    def _read(self, name: str, file: str) -> bytes:
        path = self.folder / name / file
        sums = {str(key): value for key, value in self._manifest(name).files.items()}
        if file not in sums:
            raise InputError(f"{path.parent / MANIFEST}: does not list {file}; restore the file")
        expected = sums[file]
        blob = read_bytes(path, expected.bytes)
        if len(blob) != expected.bytes:
            raise InputError(f"{path}: truncated or changed: expected {expected.bytes} bytes, found {len(blob)}")
        if hashlib.sha256(blob).hexdigest() != expected.sha256:
            raise InputError(f"{path}: damaged: the SHA-256 digest differs from that in {MANIFEST}")
        return blob


def find_nonfinite(parameters: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first tensor that contains NaN or infinity, or None."""
    return next((name for name, value in parameters.items() if not value.isfinite().all()), None)


def _step(name: str) -> int:
    return int(name.rpartition("-")[2])


def _canonical(value: Any) -> Any:
    """Convert tuples to lists and intern strings, so that equal values are pickled as equal bytes."""
    if isinstance(value, dict):
        return {_canonical(key): _canonical(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in value]
    return sys.intern(value) if type(value) is str else value


def _drop_aliases(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the parameters; a tensor with several names is included under its first name only."""
    names: dict[tuple[int, tuple[int, ...]], str] = {}
    for name, value in parameters.items():
        names.setdefault((value.data_ptr() if value.numel() else -len(names), tuple(value.shape)), name)
    return {name: parameters[name].contiguous() for name in names.values()}
