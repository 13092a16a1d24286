"""Processes of a run: a single process, or several processes that `torchrun` started."""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from tsallis.errors import InputError
from tsallis.toolkit.training.file_names import LOCK
from tsallis.toolkit.training.lock import writing

DEVICES = ("cpu", "cuda", "auto")
PATIENCE = timedelta(minutes=30)  # maximum time to wait for other processes, which may be validating or downloading
_had_group = False  # whether this process has been in a process group


class CommonError(InputError):
    """Error that all processes raise, so that only one process needs to print it."""


@dataclass(frozen=True)
class World:
    """Rank and device of this process, and the number of processes.

    >>> World().main, World().sum(2.5, 1)
    (True, (2.5, 1.0))
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def main(self) -> bool:
        """Return whether this is the first process. Only the first process writes files and makes decisions for all."""
        return self.rank == 0

    def sum(self, *numbers: float) -> tuple[float, ...]:
        """Sum numbers over all processes, in float64."""
        if self.size == 1:
            return tuple(float(n) for n in numbers)
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return tuple(total.tolist())

    def broadcast(self, decision: Any = None) -> Any:
        """Broadcast a value from the first process to all processes, and return it."""
        if self.size == 1:
            return decision
        objects = [decision]
        dist.broadcast_object_list(objects, src=0, device=self.device)
        return objects[0]

    def gather(self, part: Any) -> list[Any]:
        """Gather the part of every process, and return all parts in rank order to every process."""
        if self.size == 1:
            return [part]
        parts: list[Any] = [None] * self.size
        dist.all_gather_object(parts, part)
        return parts

    @contextlib.contextmanager
    def share_errors(self) -> Iterator[None]:
        """Raise an error of one process on all processes. All processes must run the block.

        Raises:
            CommonError: On all processes, if any process raised an InputError in the block.
        """
        if self.size == 1:
            yield
            return
        input_error = None
        try:
            yield
        except InputError as error:
            input_error = error
        messages = [text for text in self.gather(None if input_error is None else str(input_error)) if text is not None]
        if messages:
            raise CommonError(messages[0]) from input_error

    def on_main(self, work: Callable[[], object]) -> None:
        """Run a function on the first process only, while the others wait.

        Raises:
            CommonError: On all processes, if the function raised an InputError.
        """
        with self.share_errors():
            if self.main:
                work()

    def check_folder(self, folder: Path) -> None:
        """Create a folder on the first process, and check that all processes share it.

        Raises:
            CommonError: On all processes, if a process does not see the folder or the first process can't write to it.
                The message names the processes that don't see the folder.
        """
        if self.size == 1:
            return
        # The file has the name of a temporary file: if this process is killed, a later run removes the file.
        path = folder / self.broadcast(f".{LOCK}.{secrets.token_hex(4)}.tmp")

        def write() -> None:
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
                path.touch()

        try:
            self.on_main(write)
            processes = self.gather(None if path.exists() else f"process {self.rank} on {socket.gethostname()}")
        finally:
            if self.main:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
        if lacking := [process for process in processes if process is not None]:
            raise CommonError(
                f"{folder.absolute()}: all processes need this folder, but it does not exist for {', '.join(lacking)}"
            )


def device_kind(device: str) -> str:
    """Return "cpu" or "cuda"; "auto" selects a GPU if there is one.

    Raises:
        InputError: If the device is unknown or missing.
    """
    if device not in DEVICES:
        raise InputError(f"device must be {', '.join(DEVICES[:-1])} or {DEVICES[-1]}, got {device!r}")
    cuda = torch.cuda.is_available()
    if device == "cuda" and not cuda:
        raise InputError("device must be cpu or auto, got 'cuda': PyTorch finds no GPU")
    return ("cuda" if cuda else "cpu") if device == "auto" else device


def _from_launcher(name: str, default: int) -> int:
    """Return the value of an environment variable that torchrun sets."""
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise InputError(f"{name} must be a whole number, got {text!r}: torchrun sets it")
    return int(text)


@contextlib.contextmanager
def init_distributed(
    device: str = "auto", lost: str = "run the same command again to resume from the last checkpoint"
) -> Iterator[World]:
    """Join the processes that `torchrun` started and yield the :class:`World`. Without torchrun, there is one process.

    Args:
        device: "cpu", "cuda" or "auto", which selects a GPU if there is one.
        lost: Advice at the end of the error message that is raised if another process has ended.

    Raises:
        InputError: If the device is missing, there are fewer GPUs than processes, or another process has ended.
    """
    kind = device_kind(device)
    size = _from_launcher("WORLD_SIZE", 1)
    if size == 1:
        yield World(device=torch.device(kind))
        return
    local = _from_launcher("LOCAL_RANK", 0)
    if kind == "cuda":
        processes, gpus = _from_launcher("LOCAL_WORLD_SIZE", size), torch.cuda.device_count()
        if processes > gpus:
            raise CommonError(
                f"{processes} processes on a machine with {gpus} GPUs: start fewer processes, or use --device cpu"
            )
        torch.cuda.set_device(local)
    if missing := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        advice = "start the command with torchrun, or unset WORLD_SIZE"
        raise InputError(f"WORLD_SIZE is {size}, but {missing[0]} is not set: {advice}")
    torch_device = torch.device(kind, local) if kind == "cuda" else torch.device("cpu")
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo", timeout=PATIENCE, device_id=torch_device if kind == "cuda" else None
    )
    global _had_group
    _had_group = True
    try:
        yield World(dist.get_rank(), dist.get_world_size(), torch_device)
    except RuntimeError as error:
        if _is_lost(error):
            raise InputError(f"another process has ended; {lost}") from error
        raise
    finally:
        dist.destroy_process_group()


def exit_process(status: object) -> NoReturn:
    """Exit with a status; skip Python's finalization if this process was in a process group.

    PyTorch caches the process group of a sharded model even after the group was destroyed, so the threads of gloo keep
    running. Such a thread needs the GIL to release its last tensor. If Python is already shutting down, the thread
    can't get the GIL and aborts the process.
    """
    if not _had_group:
        raise SystemExit(status)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(status if isinstance(status, int) else status is not None)


def _is_lost(error: RuntimeError) -> bool:
    """Return whether an error means that the connection to another process was lost."""
    text = str(error).lower()
    return isinstance(error, dist.DistBackendError) or any(
        sign in text for sign in ("connection closed", "connection reset", "broken pipe", "timed out")
    )
