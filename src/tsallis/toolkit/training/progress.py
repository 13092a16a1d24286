"""Display of a training run: one progress bar per epoch and one line per validation."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from tsallis.analysis.score_names import TEXT_SCORES, find_score
from tsallis.errors import without_controls
from tsallis.toolkit.data.corpus import Counts
from tsallis.toolkit.optional_output import OptionalOutput
from tsallis.toolkit.training.trainer import Progress as State

# The line that is printed after a validation shows these scores if they were computed.
LINE = ("bleu", "macro_accuracy", "accuracy", "exact", *TEXT_SCORES)


class TrainingDisplay:
    """Display of a training run, with progress bars on a terminal and plain lines elsewhere.

    If writing fails, the training continues without a display. The file `log.jsonl` contains all values.
    """

    def __init__(
        self, folder: Path, resumed: bool, epochs: int, counts: Counts | None = None, quiet: bool = False
    ) -> None:
        self.folder = folder
        self.resumed = resumed
        self.epochs = epochs
        self.counts = counts
        note = "the training continues without a display"
        self.console = Console(file=cast("IO[str]", OptionalOutput(sys.stdout, note)), quiet=quiet)
        self.progress = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(
                "loss {task.fields[loss]:.4f}  accuracy {task.fields[accuracy]}  "
                "attended {task.fields[num_attended]}  symbols {task.fields[symbols]}  {task.fields[speed]}/s"
            ),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self.task: TaskID | None = None

    def __enter__(self) -> TrainingDisplay:
        self.print_lines([f"{'Resuming' if self.resumed else 'Training'} in {self.folder}"])
        if self.counts is not None:
            self.print_lines([line.capitalize() for line in self.counts.left_out])
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def print_lines(self, lines: Sequence[str]) -> None:
        """Print lines about the run."""
        for line in lines:
            self.console.print(without_controls(line), highlight=False, soft_wrap=True, markup=False)

    def update(self, state: State) -> None:
        fields: dict[str, Any] = {
            "epoch": f"{min(state.position.epoch + 1, self.epochs)}/{self.epochs}",
            "loss": state.loss,
            "accuracy": "-" if state.accuracy is None else f"{state.accuracy:.1%}",
            "num_attended": "-" if state.num_attended is None else f"{state.num_attended:.2f}",
            "symbols": "-" if state.supported is None else f"{state.supported:.2f}",
            "speed": f"{state.speed:.0f}",
        }
        if self.task is None:
            self.task = self.progress.add_task("", total=state.updates, **fields)
        self.progress.update(self.task, total=state.updates, completed=state.position.update, **fields)
        if state.validation is not None:
            v = state.validation
            names = dict.fromkeys((*LINE, v.get("select", "loss")))
            scores = "  ".join(
                f"dev {n.replace('_', ' ')} {_format(n, v[f'dev_{n}'])}"
                for n in names
                if f"dev_{n}" in v and n != "loss"
            )
            self.console.print(
                f"epoch {state.position.epoch:>3}  step {state.position.step:>6}  loss {state.loss:.4f}  "
                f"dev loss {v['dev_loss']:.4f}  {scores}  attended {v['attention_support']:.2f}  "
                f"symbols {v['output_support']:.2f}  {state.speed:.0f}/s",
                highlight=False,
                soft_wrap=True,
            )


def _format(name: str, value: float) -> str:
    score = find_score(name)
    return format(value, score.format if score else ".2%")
