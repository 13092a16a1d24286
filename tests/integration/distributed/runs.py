"""Run by two processes: several trainings in sequence, some of which may be killed or stopped."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from integration.distributed.parts import DEV, SETTINGS, TRAIN, arguments, model
from process_fork import CALLS, Faults
from small_run import changed
from tsallis.errors import InputError
from tsallis.toolkit.training import Trainer
from tsallis.toolkit.training.distributed import CommonError, World, exit_process, init_distributed
from tsallis.toolkit.training.termination import STATUS, note_termination


class Stopped(Trainer):
    """Before an update, receives a signal that ends it at once or after the update, or finds its disk full."""

    at: int
    how: str

    def _update(self, window: list[list[list[int]]]) -> None:
        if self.position.step == self.at and self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.position.step == self.at and self.how == "term":
            os.kill(os.getpid(), signal.SIGTERM)
        if self.position.step == self.at and self.how == "full":
            Faults(self.folder, 1, "full").install()
        super()._update(window)


def trainer(request: dict[str, Any], world: World, is_stopped: Callable[[], bool] = lambda: False) -> Trainer:
    settings = changed(SETTINGS, strategy=request["strategy"])
    stop = next(((how, request[how]) for how in ("kill", "term", "full") if how in request), None)
    kind = Stopped if stop and stop[1]["rank"] == world.rank else Trainer
    net = model(dropout=request.get("dropout", 0.0))
    folder = Path(request.get("folders", {}).get(str(world.rank), request["folder"]))
    made = kind(net, TRAIN, DEV, folder, settings, world=world, stop=is_stopped)
    if isinstance(made, Stopped) and stop:
        made.how, made.at = stop[0], stop[1]["step"]
    return made


def say(error: InputError) -> None:
    """Print an error as the command does: an error that is common to all processes is printed once."""
    if not isinstance(error, CommonError) or os.environ["RANK"] == "0":
        print(f"tsallis (process {os.environ['RANK']}): {error}", file=sys.stderr)


def run(made: Trainer) -> int:
    """Train, and return the exit status of the command `train`."""
    made.run()
    return STATUS if made.stopped else 0


def main() -> None:
    torch.set_num_threads(1)
    calls = {name: getattr(os, name) for name in (*CALLS, "close")}
    status = 0
    try:
        with init_distributed("cpu") as world, note_termination() as is_terminated:
            for request in arguments():
                try:
                    status = run(trainer(request, world, is_terminated))
                except CommonError as error:
                    if not request.get("stops"):
                        raise
                    say(error)
                    for name, call in calls.items():  # the disk is no longer full
                        setattr(os, name, call)
    except InputError as error:
        say(error)
        status = 2
    exit_process(status)


if __name__ == "__main__":
    main()
