"""Start two processes on CPUs as `torchrun` does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
PATIENCE = 120  # seconds; a launch takes about 10

Launch = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def launch() -> Launch:
    """Return a function that runs a module or script on two processes; a launch that hangs is killed and fails."""

    def run(*arguments: object, status: int | None = 0) -> subprocess.CompletedProcess[str]:
        # The launcher chooses its port: a port chosen by a test could be taken before the launcher binds it.
        options = ("--nproc-per-node", 2, "--standalone", "--local-addr", "127.0.0.1")
        command = [sys.executable, "-m", "torch.distributed.run", *map(str, options), *map(str, arguments)]
        path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "COLUMNS": "200"}
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            out, err = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            pytest.fail(f"hangs: {out}\n{err}")
        assert status is None or process.returncode == status, f"{out}\n{err}"
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    return run


def ours(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the lines that the processes themselves print on standard error, without those of torchrun."""
    return [line for line in done.stderr.split("\n") if line.startswith(("tsallis: ", "tsallis ("))]
