"""Train for hours with random kills: no checkpoint is lost, the result is identical, and memory does not grow.

python tests/soak.py [--minutes 120] [--seed 0] [--epochs 40] [--folder FOLDER]

Each round trains a small run twice: once without interruption, and once with many kills (SIGKILL) at random moments.
After each kill, the checkpoints in the index must match their manifests, and the last one must not be older than
before. At the end, both folders must contain the same bytes, except for times. The uninterrupted training is one
process, and its memory is sampled until it ends.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration.cli.runs import strings, translation
from process_fork import Child, command
from small_run import contents

CONFIGURATIONS: tuple[Callable[[Path], Path], ...] = (lambda f: strings(f, lines=320), translation)
GROWTH = 24 << 20  # bytes by which memory in the last fifth of a training may exceed that in the second fifth
KILLS_A_RUN = 6  # on average, within the duration of the uninterrupted training
HANGS = 3600  # time limit of one training in seconds


@dataclass(frozen=True)
class Training:
    """A configuration, with a seed and a number of epochs that override it."""

    config: Path
    seed: int
    epochs: int

    def start(self, run: Path) -> Child:
        """Start or resume the training in a folder."""
        settings = (f"training.epochs={self.epochs}", f"training.seed={self.seed}")
        return Child(command("train", self.config, *settings, "--run-dir", run))


def undisturbed(training: Training, run: Path) -> tuple[float, list[int]]:
    """Train to the end; return the seconds it took, and samples of the process's own memory in bytes."""
    started, samples = time.monotonic(), []
    child = training.start(run)
    while child.running():
        assert time.monotonic() - started < HANGS, f"{run} hangs"
        if (size := process_memory(child.process)) is not None:
            samples.append(size)
        time.sleep(0.1)
    ended = child.ended()
    assert ended.status == 0, ended.text
    return time.monotonic() - started, samples


def process_memory(process: int) -> int | None:
    """Return the resident anonymous memory of a process in bytes, or None if the process has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:")), None)


def growth(samples: list[int]) -> int:
    """Return the median of the last fifth of the samples minus the median of the second fifth, in bytes.

    Raises:
        AssertionError: If there are too few samples.
    """
    fifth = len(samples) // 5
    assert fifth >= 5, f"{len(samples)} samples of memory are too few"
    return int(statistics.median(samples[-fifth:]) - statistics.median(samples[fifth : 2 * fifth]))


def killed(training: Training, run: Path, seconds: float, chance: random.Random) -> int:
    """Train to the end with random kills, later ones after a kill without progress; return the number of kills.

    Raises:
        AssertionError: If a training fails for another reason, or a checkpoint is damaged or lost.
    """
    kills, last, patience = 0, -1, 2 * seconds / KILLS_A_RUN
    while True:
        child = training.start(run)
        child.wait(chance.uniform(0, patience))
        child.kill()
        ended = child.ended()
        if ended.status == 0:
            return kills
        assert ended.status == -9, ended.text
        kills += 1
        step = count_checkpoints(run)
        assert step >= last, f"{run}: the last checkpoint was {last}, and is {step} after kill {kills}"
        patience = patience if step > last else 1.5 * patience
        last = step


def count_checkpoints(run: Path) -> int:
    """Check all checkpoints in the index, and return the step of the last one, or -1 if there is none.

    Raises:
        AssertionError: If a file differs from its manifest.
    """
    path = run / "checkpoints" / "index.json"
    if not path.exists():
        return -1
    index = json.loads(path.read_text(encoding="utf-8"))
    names = {name for key in ("last", "best", "average") if (name := index.get(key))} | set(index.get("kept") or ())
    for name in names:
        folder = path.parent / name
        for file, facts in json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["files"].items():
            blob = (folder / file).read_bytes()
            assert len(blob) == facts["bytes"] and hashlib.sha256(blob).hexdigest() == facts["sha256"], folder / file
    return int(index["last"].rpartition("-")[2]) if index.get("last") else -1


def results(run: Path) -> dict[str, Any]:
    """Return every file of a run, with only the reproducible keys of `timing.jsonl`."""
    files: dict[str, Any] = contents(run)
    keys = ("event", "epoch", "step", "symbols")
    return {**files, "timing.jsonl": [{key: event[key] for key in keys} for event in files["timing.jsonl"]]}


def check_round(training: Training, folder: Path, chance: random.Random) -> tuple[int, int, int]:
    """Train with and without kills; return the number of kills, the last step, and the growth of memory.

    Raises:
        AssertionError: If the runs differ, or memory grows.
    """
    seconds, samples = undisturbed(training, folder / "whole")
    kills = killed(training, folder / "killed", seconds, chance)
    expected, actual = (results(folder / name) for name in ("whole", "killed"))
    different = sorted(name for name in expected.keys() | actual.keys() if expected.get(name) != actual.get(name))
    assert not different, f"after {kills} kills other bytes in {different}"
    assert growth(samples) < GROWTH, f"memory grew by {growth(samples) >> 20} MiB"
    return kills, count_checkpoints(folder / "killed"), growth(samples)


def main() -> None:
    """Run rounds for at least the given number of minutes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=40, help="of each training")
    parser.add_argument("--folder", type=Path, help="where a round that fails stays; the default is a temporary one")
    options = parser.parse_args()
    parent = options.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    print(f"in {parent}", flush=True)
    started, total, number = time.monotonic(), 0, 0
    while time.monotonic() - started < 60 * options.minutes:
        folder = parent / f"round-{number}"
        folder.mkdir(parents=True)
        config = CONFIGURATIONS[number % len(CONFIGURATIONS)](folder / "data")
        training = Training(config, number, options.epochs)
        kills, step, more = check_round(training, folder, random.Random(f"{options.seed}:{number}"))
        total, number = total + kills, number + 1
        minutes = (time.monotonic() - started) / 60
        print(
            f"{minutes:.1f} min, round {number}: {kills} kills, {step} updates, the same bytes, "
            f"memory {more / (1 << 20):+.1f} MiB",
            flush=True,
        )
        shutil.rmtree(folder)
    parent.rmdir()
    print(f"{number} rounds, {total} kills: nothing was lost")


if __name__ == "__main__":
    main()
