"""Open a trained run and a split of its data, for the benchmarks of trained models."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tsallis.toolkit.tasks.registry import load_config, task_of
from tsallis.toolkit.training import load_run
from tsallis.toolkit.training.file_names import CONFIG


def open_split(folder: Path, split: str, *overrides: str) -> tuple[Any, Any, Any]:
    """Return the configuration of a run, the run, and a split of its data."""
    config, run = load_config(folder / CONFIG, overrides), load_run(folder)
    return config, run, task_of(run.task).split(run, config.data, split).corpus


def run_parser(description: str | None, lines: int) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks of trained models share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--commit", required=True, help="commit of the code that trained the runs")
    parser.add_argument("--split", default="dev")
    parser.add_argument("--lines", type=int, default=lines, help="maximum number of lines to read from the split")
    parser.add_argument("--out", type=Path)
    return parser
