"""The command `tsallis train`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

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


class TrainingStart(NamedTuple):
    """What a training begins or goes on with, once its folder is there."""

    run: PreparedRun
    parameters: Start
    lock: Lock | None  # of the first process
    resumed: bool


def run_training(loaded: Config, folder: Path, world: World) -> None:
    from tsallis.tasks.registry import task_type
    from tsallis.training import Trainer
    from tsallis.training.progress import TrainingDisplay
    from tsallis.training.run_folder import locked, start_run

    with contextlib.ExitStack() as stack:

        def prepare() -> TrainingStart:
            lock = stack.enter_context(locked(folder)) if world.main else None
            run = task_type(loaded).prepare(loaded, folder)
            parameters, symbols = run.initialize(run.build()), run.data.vocabularies
            resumed = world.main and start_run(
                folder,
                config=run.text,
                description=run.description,
                task=run.task.facts(),
                src_vocab=symbols.src,
                tgt_vocab=symbols.tgt,
                lock=lock,
                start=parameters.blob(),
            )
            return TrainingStart(run, parameters, lock, resumed)

        start = world.run_on_all(prepare)
        data, settings = start.run.data, start.run.settings
        counts, quiet = data.train.counts, not world.main
        display = stack.enter_context(TrainingDisplay(folder, start.resumed, settings.epochs, counts, quiet))
        display.print_lines(start.parameters.lines)
        trainer = Trainer(
            start.parameters.model,
            data.train,
            data.dev.corpus,
            folder,
            settings,
            watch=display.update,
            measure=start.run.measure(),
            world=world,
            lock=start.lock,
            init=start.parameters.facts,
            search=start.run.task.searched,
        )
        del start  # with the run that this one starts from
        trainer.run()
