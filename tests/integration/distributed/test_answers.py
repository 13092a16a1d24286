"""Two processes share the lines, and the first one prints the same answers as a single process."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from integration.distributed.conftest import PATIENCE, Launch, ours

pytestmark = pytest.mark.slow

RUN = Path(__file__).parents[2] / "fixtures" / "version1" / "strings" / "run"
VERBS = ("walk", "play", "jump", "open", "visit")
LINES = [f"{verb}\tV;PST" for verb in VERBS] * 40  # several blocks for each process
GOLD = [f"{verb}\t{verb}ed\tV;PST" for verb in VERBS] * 40


def alone(*arguments: object, status: int = 0) -> str:
    command = [sys.executable, "-m", "tsallis", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == status, done.stderr
    return done.stdout


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines"
    path.write_text("".join(f"{line}\n" for line in LINES))
    return path


@pytest.fixture
def gold(tmp_path: Path) -> Path:
    path = tmp_path / "gold"
    path.write_text("".join(f"{line}\n" for line in GOLD))
    return path


def test_answers_match_one_process(launch: Launch, lines: Path, gold: Path) -> None:
    for arguments in (("translate", RUN, lines, "--n-best", 2), ("score", RUN, gold, "--tokens")):
        assert launch("-m", "tsallis", *arguments, "--device", "cpu").stdout == alone(*arguments, "--device", "cpu")


def test_evaluation_matches_one_process(launch: Launch, gold: Path) -> None:
    arguments = ("evaluate", RUN, gold, "--json", "--device", "cpu")
    shared, single = (json.loads(text) for text in (launch("-m", "tsallis", *arguments).stdout, alone(*arguments)))
    for report in (shared, single):
        assert report.pop("speed") > 0 and report.pop("seconds") > 0
    assert shared == single


def test_invalid_lines_are_skipped_or_stop_all_processes(launch: Launch, lines: Path) -> None:
    whole = lines.read_text()
    lines.write_text(whole.replace("jump\tV;PST\n", "jump\n", 1) + "open\n")
    skipped = ("translate", RUN, lines, "--on-error", "skip", "--device", "cpu")
    done = launch("-m", "tsallis", *skipped, status=1)
    assert done.stdout == alone(*skipped, status=1) and len(done.stdout.splitlines()) == len(LINES) + 1
    assert [line.split(":")[2] for line in ours(done)[:2]] == ["3", "201"]
    stopped = launch("-m", "tsallis", *skipped[:3], "--device", "cpu", status=1)
    assert stopped.stdout.splitlines() == done.stdout.splitlines()[:2]
    (line,) = ours(stopped)
    assert f"{lines}:3: expected" in line


def test_standard_input_is_rejected(launch: Launch) -> None:
    (line,) = ours(launch("-m", "tsallis", "translate", RUN, "--device", "cpu", status=1))
    assert "several processes can't read standard input" in line


def test_killed_process_ends_the_other_processes(tmp_path: Path) -> None:
    path = tmp_path / "many"
    path.write_text("".join(f"{line}\n" for line in LINES * 200))
    options = ("--nproc-per-node", "2", "--standalone", "--local-addr", "127.0.0.1", "-m", "tsallis")
    command = [sys.executable, "-m", "torch.distributed.run", *options, "translate", str(RUN), str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (tmp_path / "out").open("w") as out, (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors, env=environment, start_new_session=True)
        try:
            end = time.monotonic() + 120
            while not (tmp_path / "out").stat().st_size:
                assert process.poll() is None and time.monotonic() < end, (tmp_path / "errors").read_text()
                time.sleep(0.1)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(children[-1]), signal.SIGKILL)
            assert process.wait(120) != 0
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    answered = (tmp_path / "out").read_text().splitlines()
    assert 0 < len(answered) < len(LINES) * 200
    assert answered[:5] == alone("translate", RUN, path, "--device", "cpu").splitlines()[:5]


def test_documented_multi_machine_command_runs(tmp_path: Path, lines: Path) -> None:
    """Two launchers on this machine run the command of the page with one process each."""
    text = (Path(__file__).parents[3] / "docs" / "how-to" / "cluster.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"```bash\ntorchrun (.*?) > answers.txt\n```", text, re.S)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    there = {"--nproc-per-node 4": "--nproc-per-node 1", "node1:29500": f"127.0.0.1:{port}"}
    for name, own in (there | {"runs/words": str(RUN), "/shared/new.tsv": f"{lines} --device cpu"}).items():
        assert command.count(name) == 1
        command = command.replace(name, own)
    arguments = [sys.executable, "-m", "torch.distributed.run", *shlex.split(command.replace("\\\n", ""))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    launchers = [
        subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    try:
        done = [launcher.communicate(timeout=PATIENCE) for launcher in launchers]
    finally:
        for launcher in launchers:
            launcher.terminate()
    assert [launcher.returncode for launcher in launchers] == [0, 0], done
    assert sorted(out for out, _ in done) == ["", alone("translate", RUN, lines, "--device", "cpu")]
