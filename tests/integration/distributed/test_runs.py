"""Trainings on two processes: they are killed, resumed, and moved from one to two processes and back."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from integration.distributed.conftest import Launch
from integration.distributed.parts import SETTINGS
from integration.distributed.runs import trainer
from tsallis.toolkit.training import Checkpoints
from tsallis.toolkit.training.distributed import World

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
KILL_AT = 5  # in the middle of the second epoch, which has three updates; the last checkpoint is that of step 4


class Ended(BaseException):
    """Simulates a kill: no handler in the tested code catches this exception."""


def settings(folder: Path, strategy: str, **more: Any) -> dict[str, Any]:
    return {"folder": str(folder), "strategy": strategy, **more}


def run(launch: Launch, location: Path, *requests: dict[str, Any], status: int | None = 0) -> Any:
    location.write_text(json.dumps(requests), encoding="utf-8")
    return launch(HERE / "runs.py", location, status=status)


def alone(folder: Path, stop: int | None = None) -> None:
    """Train with one process, to the end or up to a step."""
    made = trainer(settings(folder, "ddp"), World())

    def watch(progress: Any) -> None:
        if progress.position.step == stop:
            raise Ended

    made.watch = watch
    if stop is None:
        made.run()
    else:
        with pytest.raises(Ended):
            made.run()


@pytest.fixture(scope="module")
def folders(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all trainings of these tests: first the killed ones, then the uninterrupted and the resumed ones."""
    base = tmp_path_factory.mktemp("runs")
    alone(base / "one")
    alone(base / "one to ddp", KILL_AT)
    shutil.copytree(base / "one to ddp", base / "one to fsdp")
    first = settings(base / "killed", "ddp", dropout=0.2, kill={"rank": 1, "step": KILL_AT})
    second = settings(base / "fsdp to one", "fsdp", kill={"rank": 0, "step": KILL_AT})
    third = settings(base / "terminated", "fsdp", dropout=0.2, term={"rank": 1, "step": KILL_AT - 1})
    for name, expected in (("first", first), ("second", second), ("third", third)):
        done = run(launch, base / name, expected, status=1)
        (base / f"{name}.err").write_text(done.stderr)
    shutil.copytree(base / "terminated", base / "third checkpoint")
    shutil.copytree(base / "fsdp to one", base / "fsdp")
    run(
        launch,
        base / "others",
        settings(base / "whole", "ddp", dropout=0.2),
        settings(base / "killed", "ddp", dropout=0.2),  # the same command again
        settings(base / "terminated", "fsdp", dropout=0.2),
        settings(base / "whole fsdp", "fsdp", dropout=0.2),
        settings(base / "fsdp", "fsdp"),
        settings(base / "one to ddp", "ddp"),
        settings(base / "one to fsdp", "fsdp"),
    )
    alone(base / "fsdp to one")
    return base


def checkpoints(folder: Path) -> Checkpoints:
    return Checkpoints(folder / "checkpoints")


def last(folder: Path) -> dict[str, torch.Tensor]:
    return checkpoints(folder).load_model("last")


def events(folder: Path) -> list[dict[str, Any]]:
    """Return the events of the log after the first, the start."""
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()][1:]


def test_killed_runs_resume_bit_identically(folders: Path) -> None:
    whole, killed = folders / "whole", folders / "killed"
    index = checkpoints(whole).index()
    assert index.finished and index == checkpoints(killed).index()
    assert len(index.validated) == 2
    assert (whole / "log.jsonl").read_bytes() == (killed / "log.jsonl").read_bytes()
    assert [e["step"] for e in events(whole)] == [3, 6, 9, 12]
    for name in {index.last, index.best, *index.validated}:
        one, other = (folder / "checkpoints" / name / "model.safetensors" for folder in (whole, killed))
        assert one.read_bytes() == other.read_bytes(), name
    states = [checkpoints(folder).load_training("last") for folder in (whole, killed)]
    for name, moments in states[0]["optimizer"]["state"].items():
        for kind, value in moments.items():
            assert value.equal(states[1]["optimizer"]["state"][name][kind]), name
    assert states[0]["position"] == states[1]["position"]


def test_a_signal_to_one_process_ends_all_with_a_checkpoint(folders: Path) -> None:
    """After SIGTERM, training must save a checkpoint after the current update, and resume with identical results."""
    index = checkpoints(folders / "third checkpoint").index()
    assert (index.last, index.finished) == (f"step-{KILL_AT:08d}", False)
    text = (folders / "third.err").read_text()
    # When one process has ended, torchrun may kill the other one, which has nothing left to do, before it exits.
    assert {"143"} <= set(re.findall(r"exitcode *: (-?[0-9]+)", text)) <= {"143", "-15"}, text
    one, other = folders / "terminated", folders / "whole fsdp"
    assert checkpoints(one).index() == checkpoints(other).index()
    assert (one / "log.jsonl").read_bytes() == (other / "log.jsonl").read_bytes()
    states = [checkpoints(folder).load_training("last") for folder in (one, other)]
    assert states[0]["position"] == states[1]["position"]
    assert all(value.equal(last(other)[name]) for name, value in last(one).items())


@pytest.mark.parametrize(("name", "lost"), [("first", 1), ("second", 0)])
def test_surviving_process_reports_the_killed_one(folders: Path, name: str, lost: int) -> None:
    """A process must report that the other one was killed, unless torchrun ends it first and reports the kill."""
    text = (folders / f"{name}.err").read_text()
    message = f"tsallis (process {1 - lost}): another process has ended; run the same command again"
    said = [line for line in text.splitlines() if line.startswith("tsallis (")]
    assert all(line.startswith(message) for line in said) and len(said) <= 1, text
    assert "SIGKILL" in text or said, text
    assert "[rank" not in text, text  # uncaught errors begin like this


@pytest.mark.parametrize("name", ["one to ddp", "one to fsdp", "fsdp to one", "fsdp"])
def test_runs_resume_with_other_process_counts(folders: Path, name: str) -> None:
    """One process and two processes group batches into updates differently, but share the format of checkpoints."""
    result = folders / name
    index = checkpoints(result).index()
    assert index.finished
    assert last(result).keys() == last(folders / "one").keys()
    state, expected = (checkpoints(folder).load_training("last") for folder in (result, folders / "one"))
    assert state.keys() == expected.keys()
    assert state["optimizer"]["state"].keys() == expected["optimizer"]["state"].keys()
    assert events(result)[-1]["epoch"] == SETTINGS.epochs
    assert events(result)[-1]["loss"] < events(result)[0]["loss"]
    assert all(value.isfinite().all() for value in last(result).values())


def test_resumed_ddp_and_fsdp_runs_match(folders: Path) -> None:
    one, other = last(folders / "one to ddp"), last(folders / "one to fsdp")
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, atol=1e-8, rtol=1e-7, msg=name)
    for a, b in zip(events(folders / "one to ddp"), events(folders / "one to fsdp"), strict=True):
        assert a.keys() == b.keys()
        for name, value in a.items():
            if name.startswith(("alpha_", "density_")):
                torch.testing.assert_close(torch.tensor(b[name]), torch.tensor(value))
            else:
                assert b[name] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-7)), name


@pytest.fixture(scope="module")
def hindered(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Run trainings, some of which stop with an error, and return their messages."""
    base = tmp_path_factory.mktemp("hindered")
    stops = {"stops": True, "dropout": 0.2}
    other = {"folders": {"1": str(base / "elsewhere")}}
    done = run(
        launch,
        base / "wanted",
        settings(base / "fresh", "ddp", **stops, **other),
        settings(base / "run", "ddp", **stops, full={"rank": 0, "step": KILL_AT}),
        settings(base / "run", "ddp", **stops, **other),
        settings(base / "run", "ddp", dropout=0.2),
        settings(base / "whole", "ddp", dropout=0.2),
    )
    return base, [line for line in done.stderr.splitlines() if line.startswith("tsallis (")]


def test_run_folder_missing_on_one_process_stops_training(hindered: tuple[Path, list[str]]) -> None:
    """Training must stop with an error at a fresh start and when resuming, and must not create the folder."""
    base, said = hindered
    for line, name in ((said[0], "fresh"), (said[2], "run")):
        needed = "all processes need this folder, but it does not exist for process 1 on "
        assert line.startswith(f"tsallis (process 0): {base / name}: {needed}")
    assert not (base / "elsewhere").exists() and len(said) == 3
    assert not (base / "fresh" / "log.jsonl").exists()


def test_full_disk_is_reported_once_and_loses_nothing(hindered: tuple[Path, list[str]]) -> None:
    base, said = hindered
    assert "can't be written: No space left on device; fix this, then run the same command again" in said[1]
    one, other = (
        {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        for folder in (base / "run", base / "whole")
    )
    assert one.keys() == other.keys()
    assert not [name for name in one if name != "timing.jsonl" and one[name] != other[name]]
