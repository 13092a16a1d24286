"""Run by two processes: make updates of every model with every strategy, and save the results."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from integration.distributed.parts import DEV, KINDS, SETTINGS, arguments, model, plain, windows
from small_run import changed
from tsallis.toolkit.evaluation.teacher_forcing import TeacherForcedScores, teacher_forced_sums
from tsallis.toolkit.training.distributed import World, exit_process, init_distributed
from tsallis.toolkit.training.engine import Engine


def updated(engine: Engine, world: World) -> list[Any]:
    """Make all updates, with the batches distributed over the processes, and return the sums."""
    calls = []
    for batches in windows():
        mine = batches[world.rank :: world.size]
        count = -(-len(batches) // world.size)
        symbols, loss = engine.update(mine or batches[:1], len(mine), count, 0.01)
        calls.append([symbols, world.sum(loss.item())[0]])
    return calls


def main() -> None:
    request = arguments()
    torch.set_num_threads(1)
    actual: dict[str, Any] = {}
    with init_distributed("cpu") as world:
        for kind in KINDS:
            for strategy in ("ddp", "fsdp"):
                engine = Engine(model(kind), changed(SETTINGS, strategy=strategy), world)
                sums = updated(engine, world)
                parameters, optimizer = engine.state()
                batches = DEV.batches(4)[world.rank :: world.size]
                scores = TeacherForcedScores.of(world.sum(*teacher_forced_sums(engine.unsharded_model(), batches)))
                result = {"sums": sums, "model": parameters, "optimizer": optimizer, "forced": asdict(scores)}
                actual[f"{kind}, {strategy}"] = plain(result)
            # Several processes resume from the state that one process stored.
            for strategy in ("ddp", "fsdp"):
                start = torch.load(request["stored"], weights_only=True)[kind]
                engine = Engine(model(kind), changed(SETTINGS, strategy=strategy), world)
                engine.load(start["model"], start["optimizer"])
                updated(engine, world)
                actual[f"{kind}, {strategy}, from one"] = plain({"model": engine.state()[0]})
        if world.main:
            torch.save(actual, request["out"])
    exit_process(0)


if __name__ == "__main__":
    main()
