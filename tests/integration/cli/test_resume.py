"""A training can be stopped at any moment without loss: resumed, it ends like an uninterrupted one."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from integration.cli.conftest import command as process_command
from integration.cli.conftest import environment
from integration.cli.runs import strings
from process_fork import ALLOCATING, Child, Ended, Faults, command, run_forked
from small_run import contents
from soak import CONFIGURATIONS, Training, killed, results, undisturbed

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs fork: processes are forked and killed")


Uninterrupted = tuple[Path, dict[str, object]]
Call = tuple[str, str]  # the name of the call, and the file without numbers


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Uninterrupted:
    """Return a configuration, and the contents of its run folder after an uninterrupted training."""
    folder = tmp_path_factory.mktemp("strings")
    config = strings(folder)
    return config, trained(config, folder / "whole")


@pytest.fixture(scope="module")
def averaged(uninterrupted: Uninterrupted) -> Uninterrupted:
    run = uninterrupted[0].parent / "whole"
    after = Path(shutil.copytree(run, run.with_name("averaged")))
    assert run_forked(command("average", after)).status == 0
    return run, contents(after)


def trained(config: Path, run: Path) -> dict[str, object]:
    done = run_forked(command("train", config, "--run-dir", run))
    assert done.status == 0, done.text
    return contents(run)


def faulty(run: Path, at: int | None, kind: str, *arguments: object) -> Callable[[], None]:
    """Return a function that runs a command in which one call fails."""
    whole_command = command(*arguments)

    def work() -> None:
        faults = Faults(run, at, kind)
        faults.install()
        try:
            whole_command()
        finally:
            calls = list(zip(faults.names, faults.files, strict=True))
            (run.parent / f"{run.name}.calls").write_text(json.dumps(calls))

    return work


def calls_of(run: Path, *arguments: object) -> list[Call]:
    done = run_forked(faulty(run, None, "kill", *arguments))
    assert done.status == 0, done.text
    return [(name, file) for name, file in json.loads((run.parent / f"{run.name}.calls").read_text())]


@pytest.fixture(scope="module")
def calls(uninterrupted: Uninterrupted, tmp_path_factory: pytest.TempPathFactory) -> list[Call]:
    run = tmp_path_factory.mktemp("calls") / "run"
    result = calls_of(run, "train", uninterrupted[0], "--run-dir", run)
    assert contents(run) == uninterrupted[1] and len(result) > 100
    return result


def error_line(done: Ended) -> str:
    lines = [line for line in done.text.splitlines() if not line.startswith(("Training in", "Resuming in", "epoch "))]
    assert done.status == 2 and len(lines) == 1 and lines[0].startswith("tsallis: "), done.text
    return lines[0]


def goes_wrong(run: Path, at: int, kind: str, *arguments: object) -> None:
    """Run a command in which one call fails; check that it is killed there or prints an error."""
    done = run_forked(faulty(run, at, kind, *arguments))
    if kind == "kill":
        assert done.status == -signal.SIGKILL, done.text
        return
    assert "can't be written: " in error_line(done) or "can't be used as a run folder: " in error_line(done)
    left = [p for p in run.rglob("*") if p.name.endswith(".tmp")]
    assert not left, f"{kind} at call {at} leaves {left}"


def check_training(uninterrupted: Uninterrupted, folder: Path, places: Iterable[int], kind: str) -> None:
    config, expected = uninterrupted
    for at in places:
        run = folder / f"{kind}-{at}"
        goes_wrong(run, at, kind, "train", config, "--run-dir", run)
        assert trained(config, run) == expected, f"{kind} at call {at}"
        shutil.rmtree(run)


def check_average(averaged: Uninterrupted, folder: Path, places: Iterable[int], kind: str) -> None:
    before, expected = averaged
    for at in places:
        run = Path(shutil.copytree(before, folder / f"{kind}-{at}"))
        goes_wrong(run, at, kind, "average", run)
        assert run_forked(command("average", run)).status == 0
        assert contents(run) == expected, f"{kind} at call {at}"
        shutil.rmtree(run)


KINDS = ("kill", "full", "broken")


def places_of(calls: list[Call], kind: str) -> list[int]:
    """Return the numbers of the calls that can fail in this way: "full" needs calls that allocate, "broken" others."""
    return [i for i, (n, _) in enumerate(calls, start=1) if kind == "kill" or (n in ALLOCATING) == (kind == "full")]


def first_and_last(calls: list[Call], places: list[int]) -> list[int]:
    """Return the places of the first and the last call of each kind for each file."""
    first = {calls[i - 1]: i for i in reversed(places)}
    last = {calls[i - 1]: i for i in places}
    return sorted({*first.values(), *last.values()})


@pytest.mark.parametrize("kind", KINDS)
def test_training_resumes_after_random_failed_calls(
    uninterrupted: Uninterrupted, calls: list[Call], tmp_path: Path, kind: str
) -> None:
    """One call of each name fails, at a random place of the training."""
    chance, sorts = random.Random(kind), sorted({name for name, _ in calls})
    assert {"open", "write", "fsync", "ftruncate", "replace", "mkdir", "chmod", "unlink", "rmdir"} == set(sorts)
    places = [[i for i in places_of(calls, kind) if calls[i - 1][0] == name] for name in sorts]
    check_training(uninterrupted, tmp_path, [chance.choice(some) for some in places if some], kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_training_resumes_after_failed_calls_for_every_file(
    uninterrupted: Uninterrupted, calls: list[Call], tmp_path: Path, kind: str
) -> None:
    check_training(uninterrupted, tmp_path, first_and_last(calls, places_of(calls, kind)), kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_average_recovers_from_every_failed_call(averaged: Uninterrupted, tmp_path: Path, kind: str) -> None:
    run = Path(shutil.copytree(averaged[0], tmp_path / "calls"))
    check_average(averaged, tmp_path, places_of(calls_of(run, "average", run), kind), kind)


def test_failures_while_resuming_lose_nothing(uninterrupted: Uninterrupted, calls: list[Call], tmp_path: Path) -> None:
    """Resuming removes files and truncates logs; a fault in these calls must not lose anything."""
    config, expected = uninterrupted
    run, chance = tmp_path / "run", random.Random(3)
    arguments = ("train", config, "--run-dir", run)
    for kind in KINDS:
        run_forked(faulty(run, chance.randrange(len(calls) // 2, len(calls)), "kill", *arguments))
        done = run_forked(faulty(run, chance.randrange(1, 20), kind, *arguments))
        assert done.status in (0, -signal.SIGKILL) or error_line(done), done.text
    assert trained(config, run) == expected


@pytest.mark.slow
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_training_resumes_after_random_kills(tmp_path: Path, configuration: Callable[[Path], Path]) -> None:
    training = Training(configuration(tmp_path / "data"), seed=1, epochs=4)
    seconds, _ = undisturbed(training, tmp_path / "whole")
    assert killed(training, tmp_path / "killed", seconds, random.Random(1)) > 0
    assert results(tmp_path / "killed") == results(tmp_path / "whole")


@pytest.mark.slow
def test_training_resumes_after_sigkill_of_a_new_process(uninterrupted: Uninterrupted, tmp_path: Path) -> None:
    """Kill a new process, as a user does, instead of a fork of this one."""
    config, expected = uninterrupted
    run = tmp_path / "run"
    process = subprocess.Popen(
        process_command("train", config, "--run-dir", run), env=environment(), stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while not list(run.glob("checkpoints/step-*")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert trained(config, run) == expected


def test_sigterm_saves_a_checkpoint_of_the_last_update(uninterrupted: Uninterrupted, tmp_path: Path) -> None:
    """A batch system sends SIGTERM; the updates since the last checkpoint must not be lost."""
    config = tmp_path / "config.yaml"
    config.write_text(uninterrupted[0].read_text().replace("checkpoint_every: 2", "checkpoint_every: 500"))
    expected = trained(config, tmp_path / "whole")
    run = tmp_path / "run"
    child = Child(terminated(command("train", config, "--run-dir", run), update=3))
    done = child.ended()
    assert done.status == 128 + signal.SIGTERM, done.text
    assert "Stopped by SIGTERM after update 3: run the same command again to resume" in done.text
    index = json.loads((run / "checkpoints" / "index.json").read_text())
    assert (index["last"], index["finished"]) == ("step-00000003", False)
    result = trained(config, run)
    steps = [event["step"] for event in result.pop("timing.jsonl")]  # type: ignore[attr-defined]
    assert steps == [3, 4, 8] and expected.pop("timing.jsonl") and result == expected


def terminated(work: Callable[[], None], update: int) -> Callable[[], None]:
    """Return a function that trains and receives SIGTERM before an update."""

    def working() -> None:
        from tsallis.toolkit.training.engine import Engine

        original, count = Engine.update, iter(range(1, 100))

        def updating(self: Engine, *arguments: object, **options: object) -> object:
            if next(count) == update - 1:
                signal.raise_signal(signal.SIGTERM)  # the trainer stops after the next update
            return original(self, *arguments, **options)  # type: ignore[arg-type]

        Engine.update = updating  # type: ignore[assignment, method-assign]
        work()

    return working
