"""The command `tsallis sweep`."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tsallis.errors import InputError, describe
from tsallis.toolkit.cli.options import Device
from tsallis.toolkit.cli.output import check_folder, plain_name, print_fields, print_notes

POLL = 0.2  # seconds between checks for finished runs
SEED = "training.seed"
LONGEST_NAME = 200  # bytes of the name of a run


def sweep(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="Configuration file or data file, as for `tsallis train`.")
    ],
    settings: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=[VALUE,...]...",
            help="Settings with lists of values to try. KEY=VALUE sets one value for all runs.",
        ),
    ],
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder for the runs and the results (default: runs/NAME-sweep).")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Number of runs that train at the same time.")] = 2,
    draw: Annotated[
        int | None,
        typer.Option("--random", min=1, help="Number of random combinations to train (default: all combinations)."),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Random seed for --random (default: 1).")] = None,
    device: Device = "auto",
) -> None:
    """Train a run for each combination of settings, and compare the runs.

    Example: tsallis sweep config.yaml model.dropout=[0.1,0.3] training.seed=[1,2]

    Several runs train at the same time. The file sweep.json contains all results. For each setting whose values are
    numbers, the command also writes a page with a chart. The same command resumes an interrupted sweep.
    """
    from tsallis.toolkit.data.io import json_text, write_output
    from tsallis.toolkit.training.distributed import device_kind
    from tsallis.toolkit.training.lock import locked

    device_kind(device)
    fixed, swept = split_settings(settings)
    if seed is not None and draw is None:
        raise InputError(f"--seed {seed} needs --random; for the seed of the runs, use training.seed={seed}")
    folder = run_dir or Path("runs") / f"{plain_name(config)}-sweep"
    runs = name_runs(combinations(swept, draw, 1 if seed is None else seed))
    _check(config, fixed, runs, folder)
    commands = {}
    for name, values in runs.items():
        options = "--run-dir", str(folder / name), "--device", device
        commands[name] = ["train", str(config), *fixed, *map(_override, values.items()), *options]
    with locked(folder, "running a sweep"):
        print_notes()
        failed = run_all(commands, folder, workers)
        results = _results({name: values for name, values in runs.items() if name not in failed}, folder)
        results += [{"run": name, "settings": runs[name], "error": error} for name, error in failed.items()]
        write_output(folder / "sweep.json", json_text(results, indent=1))
        print_fields("run", "score", "value", "updates")
        for result in results:
            if "error" in result:
                print_fields(result["run"], "failed", result["error"])
            else:
                print_fields(result["run"], result["score"], f"{result['value']:.4f}", str(result["step"]))
        for path in _write_charts(swept, [result for result in results if "error" not in result], folder):
            print_fields(str(path))
    if failed:
        raise typer.Exit(1)


def split_settings(settings: Sequence[str]) -> tuple[list[str], dict[str, list[Any]]]:
    """Return the overrides with one value, and the values of each setting with several.

    >>> split_settings(["training.epochs=3", "model.dropout=[0.1, 0.3]"])
    (['training.epochs=3'], {'model.dropout': [0.1, 0.3]})
    """
    from tsallis.toolkit.data.yaml_text import parse_yaml

    fixed, swept = [], {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        values = parse_yaml(text, f"override {describe(setting)}") if equals and text.startswith("[") else None
        if not isinstance(values, list):
            fixed.append(setting)
        elif not values or key in swept or any(value in values[:position] for position, value in enumerate(values)):
            fault = "another list sets the same setting; join the lists" if key in swept else "the list repeats a value"
            fault = fault if values else "the list has no values"
            raise InputError(f"override {describe(setting)}: {fault}")
        else:
            swept[key] = values
    if not swept:
        raise InputError("a sweep needs at least one setting with a list of values, such as model.dropout=[0.1,0.3]")
    return fixed, swept


def combinations(swept: Mapping[str, Sequence[Any]], draw: int | None, seed: int) -> list[dict[str, Any]]:
    """Return all combinations of values, or `draw` random ones; the first setting varies fastest.

    >>> combinations({"a": [1, 2], "b": [3]}, None, 1)
    [{'a': 1, 'b': 3}, {'a': 2, 'b': 3}]
    """
    total = math.prod(map(len, swept.values()))
    chosen: Sequence[int] = range(total)
    if draw is not None and draw < total:
        chosen = sorted(random.Random(seed).sample(chosen, draw))
    result = []
    for number in chosen:
        values = {}
        for key, options in swept.items():
            number, position = divmod(number, len(options))
            values[key] = options[position]
        result.append(values)
    return result


def name_runs(combinations: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return combinations by the names of their folders. A name with a digest replaces a long or ambiguous name.

    >>> list(name_runs([{"data.comment": "#"}, {"data.comment": "%"}]))
    ['data.comment=_', 'data.comment=_-0ad8dc13']
    """
    runs: dict[str, dict[str, Any]] = {}
    for values in combinations:
        name = run_name(values)
        if len(name.encode()) > LONGEST_NAME or runs.get(name, values) != values:
            digest = hashlib.sha256(json.dumps(values).encode()).hexdigest()[:8]
            name = f"{name.encode()[: LONGEST_NAME // 2].decode(errors='ignore')}-{digest}"
        runs[name] = values
    return runs


def run_name(values: Mapping[str, Any]) -> str:
    """Return the name of a run's folder, with the settings' values as the configuration spells them.

    >>> run_name({"model.dropout": 0.1, "training.init_from": "runs/a", "training.clip": None})
    'model.dropout=0.1,training.init_from=runs_a,training.clip=null'
    """
    texts = (f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items())
    return re.sub(r"[^\w.=,+-]", "_", ",".join(texts))


def _override(setting: tuple[str, Any]) -> str:
    return f"{setting[0]}={json.dumps(setting[1], ensure_ascii=False)}"


def _check(config: Path, fixed: Sequence[str], runs: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    """Raise if the settings of a run are wrong or differ from those in its folder, or the folder can't be written."""
    from tsallis.toolkit.config import refuse_idle
    from tsallis.toolkit.tasks.data_file import is_data_file
    from tsallis.toolkit.tasks.prepared import text_of_run
    from tsallis.toolkit.tasks.registry import config_of_file, load_config
    from tsallis.toolkit.training.file_names import CONFIG
    from tsallis.toolkit.training.run_folder import check_config

    if any(setting.startswith("run_dir=") for setting in fixed):
        raise InputError("run_dir is not a setting of a sweep: use --run-dir for the folder of all runs")
    if any("run_dir" in values for values in runs.values()):
        raise InputError("run_dir can't have several values: each run has a folder of its own, in --run-dir")
    load = config_of_file if is_data_file(config) else load_config
    for name, values in runs.items():
        overrides = [*fixed, *map(_override, values.items())]
        loaded = load(config, overrides)
        if not (folder / name / CONFIG).exists():
            refuse_idle(loaded, overrides)
            continue
        text, changes = text_of_run(loaded, folder / name)
        if changes is None:
            check_config(folder / name, text)
        else:
            changes.check(folder / name)
    check_folder(folder)


def run_all(commands: Mapping[str, Sequence[str]], folder: Path, workers: int) -> dict[str, str]:
    """Run commands of `tsallis`, `workers` at a time; return the last line of output of each that fails.

    The output of each is written to NAME.log. If this process is interrupted, the commands end, too.

    Raises:
        typer.Exit: If SIGTERM arrived.
    """
    from tsallis.toolkit.training.termination import STATUS, note_termination

    threads = str(max(1, (os.cpu_count() or 1) // workers))
    environment = {"OMP_NUM_THREADS": threads, **os.environ}
    waiting, failed = list(commands), {}
    running: dict[str, subprocess.Popen[bytes]] = {}
    with note_termination() as is_terminated:
        try:
            while (waiting or running) and not is_terminated():
                while waiting and len(running) < workers:
                    name = waiting.pop(0)
                    command = [sys.executable, "-m", "tsallis", *commands[name]]
                    with (folder / f"{name}.log").open("wb") as log:
                        running[name] = subprocess.Popen(
                            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
                        )
                for name in [name for name, process in running.items() if process.poll() is not None]:
                    if status := running.pop(name).returncode:
                        lines = (folder / f"{name}.log").read_text(encoding="utf-8", errors="replace").splitlines()
                        failed[name] = f"killed by signal {-status}" if status < 0 else (lines or ["no output"])[-1]
                    done = len(commands) - len(waiting) - len(running)
                    print(f"{done}/{len(commands)} {name}{': failed' if name in failed else ''}", file=sys.stderr)
                time.sleep(POLL)
        finally:
            for process in running.values():
                process.terminate()  # a training saves a checkpoint and ends
            for process in running.values():
                process.wait()
        if is_terminated():
            raise typer.Exit(STATUS)
    return failed


def _results(runs: Mapping[str, Mapping[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Return the best validation of each run, the best run first."""
    from tsallis.analysis.histories import ON_DEV
    from tsallis.analysis.score_names import rank_score
    from tsallis.toolkit.config import flat_settings
    from tsallis.toolkit.run_analysis.logs import value_history
    from tsallis.toolkit.run_analysis.sweep import SweepRun, best_validation, ranking_score
    from tsallis.toolkit.tasks.registry import run_config

    trained = []
    for name in runs:
        settings = flat_settings(run_config(folder / name).model_dump(mode="json"))
        trained.append(SweepRun(name, settings, value_history(folder / name)))
    score = ranking_score(trained) if trained else ""
    results: list[dict[str, Any]] = []
    for run in trained:
        best = best_validation(run)
        result = {"run": run.name, "settings": runs[run.name], "score": score.removeprefix(ON_DEV)}
        results.append({**result, "value": run.history.values[score][best], "step": run.history.steps[best]})
    return sorted(results, key=lambda result: -rank_score(result["score"], result["value"]))


def _write_charts(swept: Mapping[str, Sequence[Any]], results: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """Write a page per setting with numbers, from the runs that agree with the best run in all other settings."""
    from tsallis.analysis.histories import ON_DEV
    from tsallis.report.page import build_page
    from tsallis.toolkit.cli.report_parts import sweep_if_any
    from tsallis.toolkit.data.io import write_output

    paths = []
    for key in swept if results else ():
        other_keys = [other for other in swept if other not in (key, SEED)]
        best = results[0]["settings"]
        comparable = [r["run"] for r in results if all(r["settings"][other] == best[other] for other in other_keys)]
        points = None if key == SEED else sweep_if_any([folder / name for name in comparable])
        if points is not None:
            paths.append(folder / f"{run_name({key: ''})[:-1]}.html")
            points = replace(points, score=ON_DEV + results[0]["score"])
            write_output(paths[-1], build_page((), sweep=points))
    return paths
