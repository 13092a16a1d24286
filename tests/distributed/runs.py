"""Run by two processes: trainings one after the other, one of which may be killed on the way."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from distributed.parts import DEV, SETTINGS, TRAIN, arguments, model
from tsallis.errors import InputError
from tsallis.training import Trainer
from tsallis.training.world import World, joined


class Killed(Trainer):
    """Ends itself by a signal before an update."""

    at: int

    def _update(self, window: list[list[list[int]]]) -> None:
        if self.position.step == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        super()._update(window)


def trainer(asked: dict[str, Any], world: World) -> Trainer:
    settings = replace(SETTINGS, strategy=asked["strategy"])
    kill = asked.get("kill")
    kind = Killed if kill and kill["rank"] == world.rank else Trainer
    net = model(dropout=asked.get("dropout", 0.0))
    made = kind(net, TRAIN, DEV, Path(asked["folder"]), settings, lambda _: None, world=world)
    if isinstance(made, Killed):
        made.at = kill["step"]
    return made


def main() -> None:
    torch.set_num_threads(1)
    try:
        with joined("cpu") as world:
            for asked in arguments():
                trainer(asked, world).run()
    except InputError as error:
        print(f"tsallis (process {os.environ['RANK']}): {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
