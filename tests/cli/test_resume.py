"""A training killed at any moment and started again ends as one that never was."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from cli.conftest import command, environment


def outcome(run: Path) -> dict[str, object]:
    index = json.loads((run / "checkpoints" / "index.json").read_text())
    assert index["finished"]
    models = {w: (run / "checkpoints" / index[w] / "model.safetensors").read_bytes() for w in ("last", "best")}
    state = torch.load(run / "checkpoints" / index["last"] / "training.pt", weights_only=True)
    state.pop("timing")  # where timing.jsonl ends: times are not the same twice
    return {"log": (run / "log.jsonl").read_bytes(), **models, **plain(state)}


def plain(value: object, name: str = "state") -> dict[str, object]:
    """The leaves of nested dictionaries and lists; tensors as bytes."""
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in plain(item, f"{name}.{key}").items()}
    if isinstance(value, (list, tuple)):
        return {k: v for i, item in enumerate(value) for k, v in plain(item, f"{name}.{i}").items()}
    return {name: value.numpy().tobytes() if isinstance(value, torch.Tensor) else value}


def last_step(run: Path) -> int:
    try:
        return int(json.loads((run / "checkpoints" / "index.json").read_text())["last"].removeprefix("step-"))
    except (OSError, ValueError):
        return -1


@pytest.mark.parametrize("moment", range(3))
def test_sigkill_at_a_random_moment(tsallis, trained: Path, small_data: Path, tmp_path: Path, moment: int) -> None:
    run = tmp_path / "run"
    steps = 80  # 4 epochs of 20 updates
    goal = random.Random(time.time_ns()).randrange(moment * steps // 3, (moment + 1) * steps // 3)
    process = subprocess.Popen(
        command("train", small_data / "config.yaml", "--run-dir", run), env=environment(), stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while last_step(run) < goal and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    killed_at = last_step(run)
    tsallis("train", small_data / "config.yaml", "--run-dir", run)
    assert outcome(run) == outcome(trained), f"killed after step {killed_at}"


def test_two_processes_cannot_train_in_one_folder(tsallis, small_data: Path, tmp_path: Path) -> None:
    import fcntl

    run = tmp_path / "run"
    run.mkdir()
    with (run / ".lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        done = tsallis("train", small_data / "config.yaml", "--run-dir", run, status=2)
    assert "another process" in done.stderr
