"""The second training of `tsallis demo` runs in a process of its own."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import typer

from tsallis.toolkit.cli import demo

PROGRAM = """#!{python}
import sys
sys.stderr.write("x" * 200_000 + "the end")
sys.stderr.flush()
open({done!r}, "w").close()
sys.exit({status})
"""


@pytest.mark.parametrize("status", [0, 3])
def test_a_process_with_many_warnings_never_waits_for_the_demo(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipe that nobody reads would stop the process after 64 KiB."""
    program, done = tmp_path / "program", tmp_path / "done"
    program.write_text(PROGRAM.format(python=sys.executable, done=str(done), status=status))
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    code = 0
    try:
        with demo._training_in_background([]):
            end = time.monotonic() + 30
            while not done.exists() and time.monotonic() < end:
                time.sleep(0.02)
            assert done.exists()
    except typer.Exit as error:
        code = error.exit_code
    assert code == status
    assert capsys.readouterr().err.endswith("the end") == (status != 0)
