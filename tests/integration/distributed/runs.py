"""Run by two processes: trainings one after the other, one of which may be killed on the way."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from integration.distributed.parts import DEV, SETTINGS, TRAIN, arguments, model
from process_fork import CALLS, Faults
from tsallis.errors import InputError
from tsallis.training import Trainer
from tsallis.training.distributed import CommonError, World, init_distributed


class Stopped(Trainer):
    """Ends itself by a signal before an update, or has no more room on its disk from then on."""

    at: int
    how: str

    def _update(self, window: list[list[list[int]]]) -> None:
        if self.position.step == self.at and self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.position.step == self.at and self.how == "full":
            Faults(self.folder, 1, "full").install()
        super()._update(window)


def trainer(request: dict[str, Any], world: World) -> Trainer:
    settings = replace(SETTINGS, strategy=request["strategy"])
    stop = next(((how, request[how]) for how in ("kill", "full") if how in request), None)
    kind = Stopped if stop and stop[1]["rank"] == world.rank else Trainer
    net = model(dropout=request.get("dropout", 0.0))
    folder = Path(request.get("folders", {}).get(str(world.rank), request["folder"]))
    made = kind(net, TRAIN, DEV, folder, settings, lambda _: None, world=world)
    if isinstance(made, Stopped) and stop:
        made.how, made.at = stop[0], stop[1]["step"]
    return made


def say(error: InputError) -> None:
    """As the command does: what all know of is said once."""
    if not isinstance(error, CommonError) or os.environ["RANK"] == "0":
        print(f"tsallis (process {os.environ['RANK']}): {error}", file=sys.stderr)


def main() -> None:
    torch.set_num_threads(1)
    calls = {name: getattr(os, name) for name in (*CALLS, "close")}
    try:
        with init_distributed("cpu") as world:
            for request in arguments():
                try:
                    trainer(request, world).run()
                except CommonError as error:
                    if not request.get("stops"):
                        raise
                    say(error)
                    for name, call in calls.items():  # there is room again
                        setattr(os, name, call)
    except InputError as error:
        say(error)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
