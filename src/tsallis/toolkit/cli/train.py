"""The command `tsallis train`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from tsallis.errors import InputError, one_line
from tsallis.toolkit.cli.options import Device
from tsallis.toolkit.cli.output import check_folder, plain_name, print_notes

if TYPE_CHECKING:
    from tsallis.toolkit.config import Config, Settings
    from tsallis.toolkit.tasks.prepared import PreparedRun
    from tsallis.toolkit.training import Checkpoints
    from tsallis.toolkit.training.distributed import World
    from tsallis.toolkit.training.initial import Start
    from tsallis.toolkit.training.lock import Lock
    from tsallis.toolkit.training.teacher import Teacher


def train(
    config: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG",
            help="Configuration file (YAML, examples in recipes/), run folder to resume, or data file with lines "
            "source<TAB>target or source<TAB>target<TAB>features.",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Settings that replace those of CONFIG, for example training.epochs=5."
        ),
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Write the run to this folder (default: run_dir of CONFIG).")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check the configuration and the data, print sizes and settings, and stop before the training.",
        ),
    ] = False,
    device: Device = "auto",
) -> None:
    """Train a model, or resume an interrupted training.

    If CONFIG is a data file, the settings are derived from it, and the run is written to runs/NAME.

    On several processes: torchrun --nproc-per-node N -m tsallis train CONFIG
    """
    from tsallis.toolkit.config import refuse_idle
    from tsallis.toolkit.tasks.data_file import is_data_file
    from tsallis.toolkit.tasks.registry import config_of_file, load_config, missing_test_data
    from tsallis.toolkit.training.distributed import init_distributed
    from tsallis.toolkit.training.file_names import CONFIG, MODEL
    from tsallis.toolkit.training.run_folder import check_run

    with init_distributed(device) as world:
        with world.share_errors():
            if config.is_dir():
                check_run(config)
                config /= CONFIG
            is_run = config.name == CONFIG and (config.parent / MODEL).exists()
            default_folder = config.parent if is_run else Path("runs") / plain_name(config)
            from_data_file = is_data_file(config)
            loaded = (config_of_file if from_data_file else load_config)(config, overrides or [])
            folder = run_dir or (Path(loaded.run_dir) if loaded.run_dir else default_folder)
            if not (folder / CONFIG).exists():  # only new runs: a resumed run keeps its settings
                refuse_idle(loaded, overrides or [])
            if world.main and (fault := missing_test_data(loaded)) is not None:
                print(one_line(f"tsallis: note: {fault}"), file=sys.stderr)
        if dry_run:
            print_plan(loaded, folder, world)
        else:
            run_training(loaded, folder, world, preview=from_data_file)


class TrainingStart(NamedTuple):
    """Prepared run and its parameters, before the folder is written."""

    run: PreparedRun
    parameters: Start
    blob: bytes | None  # content of the parameter file; None if parameters are random
    resumed: bool
    teacher: Teacher | None


def prepare_training(loaded: Config, folder: Path, world: World) -> TrainingStart:
    """Prepare a run and check its folder; write nothing."""
    from tsallis.toolkit.tasks.prepared import prepare

    run = prepare(loaded, folder)
    parameters = run.initialize(run.build())
    blob = parameters.blob()  # copy parameters before they are moved to a device or sharded
    teacher = run.teacher(parameters.model)
    if teacher is not None:
        run = replace(run, data=replace(run.data, train=teacher.corpus))
    return TrainingStart(run, parameters, blob, world.main and _write_run(run, blob, folder, dry=True), teacher)


def _write_run(run: PreparedRun, blob: bytes | None, folder: Path, lock: Lock | None = None, dry: bool = False) -> bool:
    """Write a run's first files, or only check them if `dry` is true. Return whether the run existed."""
    from tsallis.toolkit.training.run_folder import start_run

    return start_run(
        folder,
        config=run.text,
        description=run.description,
        task=run.task.facts(),
        src_vocab=run.data.vocabularies.src,
        tgt_vocab=run.data.vocabularies.tgt,
        lock=lock,
        start=blob,
        changes=run.changes,
        dry=dry,
    )


def run_training(loaded: Config, folder: Path, world: World, preview: bool = False) -> None:
    """Train a run until it is finished or SIGTERM arrives.

    If `preview` is true, first print a description of the data.

    Raises:
        typer.Exit: If SIGTERM arrived. The current update was completed.
    """
    from tsallis.toolkit.training import Checkpoints, Trainer, reuse_memory
    from tsallis.toolkit.training.file_names import CHECKPOINTS
    from tsallis.toolkit.training.progress import TrainingDisplay
    from tsallis.toolkit.training.termination import STATUS, note_termination

    reuse_memory()
    with contextlib.ExitStack() as stack:
        with world.share_errors():
            start, lock = _prepare_locked(loaded, folder, world, stack)
        data, settings = start.run.data, start.run.settings
        display = TrainingDisplay(folder, start.resumed, settings.epochs, data.train.counts, quiet=not world.main)
        trainer = Trainer(
            start.parameters.model,
            data.train,
            data.dev.corpus,
            folder,
            settings,
            watch=display.update,
            measure=start.run.measure(),
            world=world,
            lock=lock,
            init=start.parameters.facts,
            stop=stack.enter_context(note_termination()),
            teacher=start.teacher,
        )
        trainer.load()
        print_notes()
        checkpoints = Checkpoints(folder / CHECKPOINTS)
        resumed, first_step = start.resumed, trainer.position.step
        with world.share_errors():
            if world.main:  # the first write comes after all checks
                _write_run(start.run, start.blob, folder, lock)
        stack.enter_context(display)
        if preview:
            display.print_lines([*_describe_data(start.run)])
        display.print_lines(start.parameters.lines)
        display.print_lines(start.run.changes.lines if start.run.changes else ())
        updates = len(trainer.plan.updates(0, settings.accumulate, world.size))
        display.print_lines([*_early_end(settings, settings.epochs * updates)])
        del start  # free the run that provided the parameters
        trainer.run()
        if trainer.stopped:
            display.print_lines(
                [f"Stopped by SIGTERM after update {trainer.position.step}: run the same command again to resume"]
            )
            raise typer.Exit(STATUS)
        if resumed and trainer.position.step == first_step:
            display.print_lines([_describe_finished(checkpoints)])


def _prepare_locked(
    loaded: Config, folder: Path, world: World, stack: contextlib.ExitStack
) -> tuple[TrainingStart, Lock | None]:
    """Prepare a run; the first process locks its folder until the stack is closed."""
    from tsallis.toolkit.training.file_names import CONFIG
    from tsallis.toolkit.training.run_folder import locked

    run_exists = (folder / CONFIG).exists()
    if not run_exists:
        check_folder(folder)
    lock = stack.enter_context(locked(folder)) if world.main and run_exists else None
    start = prepare_training(loaded, folder, world)
    if world.main and lock is None:  # the folder of a new run is created after all checks
        lock = stack.enter_context(locked(folder))
    if world.main and (folder / CONFIG).exists() != run_exists:
        raise InputError(
            f"{folder}: another process has started a run in this folder; run the same command again to resume it"
        )
    return start, lock


def _describe_finished(checkpoints: Checkpoints) -> str:
    """Describe a finished run: its updates and its best score."""
    from tsallis.analysis.score_names import find_score

    last, best = checkpoints.facts("last"), checkpoints.facts("best")
    metrics = best["metrics"]
    select = metrics.get("select") or next((key.removeprefix("dev_") for key in metrics if key != "dev_loss"), "loss")
    value, score = metrics.get(f"dev_{select}"), find_score(select)
    score_text = "" if value is None else f" dev {select.replace('_', ' ')} {value:{score.format if score else '.2%'}}"
    return (
        f"The run is finished: epoch {last['epoch']}, update {last['step']}, best{score_text} after "
        f"update {best['step']}; "
        "increase training.epochs, training.updates or training.patience to continue it"
    )


def print_plan(loaded: Config, folder: Path, world: World) -> None:
    """Print data and model sizes as comments, then the whole configuration."""
    with world.share_errors():
        start = prepare_training(loaded, folder, world)
    if world.main:
        for line in _describe_plan(start, folder, world):
            print(f"# {line}")
        print(start.run.text, end="")


def _describe_data(run: PreparedRun) -> Iterator[str]:
    """Yield lines that describe the data: sizes, numbers of symbols, columns and some examples."""
    data = run.data
    symbols = data.vocabularies
    yield f"{len(data.train)} examples to train on, {len(data.dev.corpus)} to validate on"
    yield f"{len(symbols.src)} source symbols, {len(symbols.tgt)} target symbols"
    yield from run.task.preview(data)


def _early_end(settings: Settings, updates: int) -> Iterator[str]:
    """Yield a note if the epochs have fewer updates than a schedule or an alpha needs to reach its end."""
    if settings.updates is None:
        return
    annealed = settings.output_alpha
    names = ["schedule: linear"] if settings.schedule == "linear" and updates < settings.updates else []
    if annealed is not None and updates < annealed.until * settings.updates:
        names.append("output_alpha")
    if names:
        yield (
            f"note: training.epochs={settings.epochs} ends after about {updates} of {settings.updates} updates, so "
            f"{' and '.join(names)} will not reach the end: increase training.epochs"
        )


def _describe_plan(start: TrainingStart, folder: Path, world: World) -> Iterator[str]:
    run, data, settings = start.run, start.run.data, start.run.settings
    yield from _describe_data(run)
    if data.train.counts is not None:
        yield from data.train.counts.left_out
    yield f"{run.description['class']}: {sum(p.numel() for p in start.parameters.model.parameters())} parameters"
    updates = len(settings.plan(data.train.lengths()).updates(0, settings.accumulate, world.size))
    total_updates = min(settings.epochs * updates, settings.updates or settings.epochs * updates)
    yield from _early_end(settings, settings.epochs * updates)
    yield f"{updates} update{'' if updates == 1 else 's'} in the first epoch, about {total_updates} in all"
    yield from start.parameters.lines
    yield f"{folder}: {'the run in this folder is resumed' if start.resumed else 'a new run'}"
    yield from run.changes.lines if run.changes else ()
