"""Train for hours with kills at random: no checkpoint is lost, the end is the same to the bit, memory stays flat.

python tests/soak.py [--minutes 120] [--seed 0] [--epochs 40] [--folder FOLDER]

In each round a small run is trained twice, once undisturbed and once killed (SIGKILL) again and again at moments that
know nothing of the code. After each kill the checkpoints that the index names are compared with their manifests, and
the last one may not be older than before; in the end both folders hold the same bytes, but for times. The undisturbed
training is one process, of whose memory samples are taken as long as it lasts.
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

from integration.cli.runs import contents, strings, translation
from process_fork import Child, command

CONFIGURATIONS: tuple[Callable[[Path], Path], ...] = (lambda f: strings(f, lines=320), translation)
GROWTH = 24 << 20  # bytes that a process may hold more in the last fifth of its time than in the second
KILLS_A_RUN = 6  # in the mean, by the time that the undisturbed training took
HANGS = 3600  # seconds of one training


@dataclass(frozen=True)
class Training:
    """A configuration and what is set beside it."""

    config: Path
    seed: int
    epochs: int

    def start(self, run: Path) -> Child:
        """Start the training in a folder, or go on with it."""
        settings = (f"training.epochs={self.epochs}", f"training.seed={self.seed}")
        return Child(command("train", self.config, *settings, "--run-dir", run))


def undisturbed(training: Training, run: Path) -> tuple[float, list[int]]:
    """Train to the end, and return how many seconds it took, and samples of the memory of its own in bytes."""
    started, samples = time.monotonic(), []
    child = training.start(run)
    while child.running():
        assert time.monotonic() - started < HANGS, f"{run} hangs"
        if (size := own_memory(child.process)) is not None:
            samples.append(size)
        time.sleep(0.1)
    ended = child.ended()
    assert ended.status == 0, ended.text
    return time.monotonic() - started, samples


def own_memory(process: int) -> int | None:
    """Return the resident bytes of a process that no file stands behind, None if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:")), None)


def growth(samples: list[int]) -> int:
    """Return by how many bytes the median of the last fifth of samples exceeds that of the second.

    Raises:
        AssertionError: too few samples to tell.
    """
    fifth = len(samples) // 5
    assert fifth >= 5, f"{len(samples)} samples of memory are too few"
    return int(statistics.median(samples[-fifth:]) - statistics.median(samples[fifth : 2 * fifth]))


def killed(training: Training, run: Path, seconds: float, chance: random.Random) -> int:
    """Train to the end through kills, the next one later than the last if nothing came of it; return how many.

    Raises:
        AssertionError: a training that ends otherwise, a checkpoint that is damaged or lost.
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
        step = whole_checkpoints(run)
        assert step >= last, f"{run}: the last checkpoint was {last}, and is {step} after kill {kills}"
        patience = patience if step > last else 1.5 * patience
        last = step


def whole_checkpoints(run: Path) -> int:
    """Return the step of the last checkpoint, -1 before the first, if what the index names is whole.

    Raises:
        AssertionError: a file that is not what its manifest says.
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
    """Return every file of a run, but of times neither seconds nor the machine and the commit that took them."""
    files: dict[str, Any] = contents(run)
    keys = ("event", "epoch", "step", "symbols")
    return {**files, "timing.jsonl": [{key: event[key] for key in keys} for event in files["timing.jsonl"]]}


def check_round(training: Training, folder: Path, chance: random.Random) -> tuple[int, int, int]:
    """Train both ways, and return how many kills there were, the last step, and the growth of memory.

    Raises:
        AssertionError: the runs differ, or memory grows.
    """
    seconds, samples = undisturbed(training, folder / "whole")
    kills = killed(training, folder / "killed", seconds, chance)
    expected, actual = (results(folder / name) for name in ("whole", "killed"))
    different = sorted(name for name in expected.keys() | actual.keys() if expected.get(name) != actual.get(name))
    assert not different, f"after {kills} kills other bytes in {different}"
    assert growth(samples) < GROWTH, f"memory grew by {growth(samples) >> 20} MiB"
    return kills, whole_checkpoints(folder / "killed"), growth(samples)


def main() -> None:
    """Do what the module says, for at least as many minutes as are asked for."""
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
