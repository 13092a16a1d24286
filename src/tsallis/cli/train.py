"""The command `tsallis train`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tsallis.cli.options import Device

if TYPE_CHECKING:
    from tsallis.config import Config
    from tsallis.tasks.prepared import PreparedRun
    from tsallis.training.distributed import World
    from tsallis.training.initial import Start
    from tsallis.training.lock import Lock


def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file, see recipes/.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...")] = None,
    run_dir: Annotated[Path | None, typer.Option(help="The run folder; default: run_dir of the config.")] = None,
    device: Device = "auto",
) -> None:
    """Train a model, or go on with a training that was interrupted.

    On several processes: torchrun --nproc-per-node N -m tsallis train CONFIG
    """
    from tsallis.tasks.registry import load_config
    from tsallis.training.distributed import init_distributed

    with init_distributed(device) as world:
        with world.share_mistakes():
            loaded = load_config(config, overrides or [])
        run_training(loaded, run_dir or (Path(loaded.run_dir) if loaded.run_dir else Path("runs") / config.stem), world)


def run_training(loaded: Config, folder: Path, world: World) -> None:
    from tsallis.tasks.registry import task_type
    from tsallis.training import Trainer
    from tsallis.training.progress import TrainingDisplay
    from tsallis.training.run_folder import locked, start_run

    with contextlib.ExitStack() as stack:

        def start() -> tuple[PreparedRun, Start, Lock | None, bool]:
            lock = stack.enter_context(locked(folder)) if world.main else None
            prepared = task_type(loaded).prepare(loaded, folder)
            parameters, symbols = prepared.initialize(prepared.build()), prepared.data.vocabularies
            arguments = (prepared.description, prepared.task.facts(), symbols.src, symbols.tgt, lock)
            blob = parameters.blob() if world.main else None
            return prepared, parameters, lock, world.main and start_run(folder, prepared.text, *arguments, blob)

        prepared, parameters, lock, resumed = world.run_on_all(start)
        data, settings = prepared.data, prepared.settings
        counts, quiet = data.train.counts, not world.main
        display = stack.enter_context(TrainingDisplay(folder, resumed, settings.epochs, counts, quiet))
        display.print_lines(parameters.lines)
        model, train, dev = parameters.model, data.train, data.dev.corpus
        where = (folder, settings, display.update, prepared.measure(), world, lock, parameters.facts)
        searched = prepared.task.searched
        del prepared  # with the run that this one starts from
        Trainer(model, train, dev, *where, search=searched).run()
