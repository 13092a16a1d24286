"""Standard input as the file `-`, and commands whose standard output is closed or full."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from integration.cli.runs import strings
from process_fork import Ended, command, run_forked
from small_run import contents
from tsallis.toolkit.cli.output import print_json
from tsallis.toolkit.optional_output import OptionalOutput
from tsallis.toolkit.training.progress import TrainingDisplay

ASKED = "walk\tV;PST\nbake\tV;V.PTCP;PRS\n"
KNOWN = "walk\twalked\tV;PST\nbake\tbaking\tV;V.PTCP;PRS\nrebel\trebelled\tV;PST\n"
Run = Callable[..., Ended]


def unbuffered(handle: int) -> io.TextIOWrapper:
    """Return an unbuffered text stream: each write can fail, as on a terminal or with PYTHONUNBUFFERED."""
    return io.TextIOWrapper(os.fdopen(handle, "wb", 0), write_through=True)


@pytest.fixture
def unread() -> Run:
    """Return a function that runs a command whose standard output is a closed pipe or a full device."""

    def run(*arguments: object, full: bool = False, stdin: str = "") -> Ended:
        work = command(*arguments)

        def with_other_output() -> None:
            if full:
                handle = os.open("/dev/full", os.O_WRONLY)
            else:
                reading, handle = os.pipe()
                os.close(reading)
            sys.stdout = unbuffered(handle)
            work()

        return run_forked(with_other_output, stdin.encode(), seconds=300)

    return run


def test_evaluate_accepts_a_dash_as_standard_input(tsallis, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "known.tsv").write_text(KNOWN)
    of_file = tsallis("evaluate", trained, tmp_path / "known.tsv").stdout.splitlines()
    of_input = tsallis("evaluate", trained, "-", stdin=KNOWN).stdout.splitlines()
    assert of_file[0] == f"on: {tmp_path / 'known.tsv'} (3 lines)" and of_input[0] == "on: standard input (3 lines)"
    speed = [line.startswith("symbols per second") for line in of_file].index(True)
    assert of_file[1:speed] == of_input[1:speed] and of_file[speed + 1 :] == of_input[speed + 1 :]
    assert of_file[1].split() == ["examples", "3"]
    assert json.loads(tsallis("evaluate", trained, "-", "--json", stdin=KNOWN).stdout)["on"] == "standard input"
    # Without a file name, standard input is not read, and the first line of the table names the split.
    whole = tsallis("evaluate", trained, stdin=KNOWN).stdout.splitlines()
    assert whole[0] == "on: test split (24 lines)"
    assert tsallis("evaluate", trained, "--split", "dev").stdout.startswith("on: dev split (24 lines)\n")
    manifest = tsallis("evaluate", trained, "-", "--manifest", tmp_path / "m.json", stdin=KNOWN, status=2).stderr
    assert "FILE must be a file, got standard input" in manifest
    errors = tsallis("evaluate", trained, "-", "--split", "dev", stdin=KNOWN, status=2).stderr
    assert "use either --split or FILE, not both: got dev and standard input" in errors


def test_every_command_accepts_a_dash_as_standard_input(tsallis, trained: Path, tmp_path: Path) -> None:
    for name, text in (("translate", ASKED), ("suggest", ASKED), ("score", KNOWN)):
        assert tsallis(name, trained, "-", stdin=text).stdout == tsallis(name, trained, stdin=text).stdout != ""
    pages = [tmp_path / "named.html", tmp_path / "unnamed.html"]
    for page, name in zip(pages, (["-"], []), strict=True):
        assert tsallis("look", trained, *name, "--out", page, stdin=ASKED).stdout == f"{page}\n"
    assert pages[0].read_text() == pages[1].read_text()
    tsallis("analyze", trained, trained, "--text", "-", "-o", tmp_path / "page.html", stdin=KNOWN)
    assert (tmp_path / "page.html").exists()


@pytest.mark.parametrize("full", [False, True])
def test_files_are_written_if_stdout_is_closed_or_full(unread: Run, trained: Path, tmp_path: Path, full: bool) -> None:
    out, manifest = tmp_path / "o.jsonl", tmp_path / "m.json"
    done = unread("evaluate", trained, "--out", out, "--manifest", manifest, full=full)
    assert done.status == (2 if full else 0) and ("No space left" in done.errors) == full
    assert len(out.read_text().splitlines()) == 24 and json.loads(manifest.read_text())["format"] == 2
    page, numbers = tmp_path / "page.html", tmp_path / "numbers.json"
    done = unread("analyze", trained, "-o", page, "--json", numbers, full=full)
    assert done.status == (2 if full else 0) and page.exists() and numbers.exists()


@pytest.mark.parametrize("full", [False, True])
def test_training_continues_without_its_display(unread: Run, tsallis, tmp_path: Path, full: bool) -> None:
    config = strings(tmp_path / "data")
    done = unread("train", config, "--run-dir", tmp_path / "run", full=full)
    reason = "No space left on device" if full else "closed"
    message = f"can't write to standard output ({reason}); the training continues without a display"
    assert (done.status, done.errors) == (0, f"tsallis: {message}\n")
    tsallis("train", config, "--run-dir", tmp_path / "other")
    whole, other = contents(tmp_path / "run"), contents(tmp_path / "other")
    assert whole.keys() == other.keys()
    assert all(whole[name] == other[name] for name in whole if name.startswith("checkpoints/step"))


def test_closed_stdout_ends_a_command_silently(unread: Run, trained: Path) -> None:
    done = unread("translate", trained, stdin=ASKED)
    assert (done.status, done.errors) == (0, "")


def test_json_is_valid_on_streams_that_are_not_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    """PYTHONIOENCODING=ascii, or a locale without UTF-8."""
    for encoding in ("ascii", "latin-1", "utf-8"):
        for text in ("😀 wölk\x7f", "\ud800 alone"):
            stream = io.TextIOWrapper(io.BytesIO(), encoding, "backslashreplace")
            monkeypatch.setattr("sys.stdout", stream)
            print_json({"text": text})
            stream.flush()
            assert json.loads(stream.buffer.getvalue().decode(encoding)) == {"text": text}  # type: ignore[attr-defined]


def test_closed_stderr_does_not_end_a_command(trained: Path, tmp_path: Path) -> None:
    """Standard error may be the same closed pipe: `tsallis analyze ... 2>&1 | head -1`."""
    (tmp_path / "lines").write_text("wölk\tV;PST\n")
    work = command("analyze", trained, "--text", tmp_path / "lines", "-o", tmp_path / "page.html")

    def without_readers() -> None:
        reading, handle = os.pipe()
        os.close(reading)
        sys.stdout, sys.stderr = unbuffered(handle), unbuffered(os.dup(handle))
        work()

    assert run_forked(without_readers, b"").status == 0 and (tmp_path / "page.html").exists()


class Broken:
    """A stream whose writes fail after the first one."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.texts: list[str] = []

    def write(self, text: str) -> int:
        if self.texts:
            raise BrokenPipeError
        self.texts.append(text)
        return len(text)

    def flush(self) -> None:
        pass


def test_optional_output_drops_text_after_a_write_error(capsys: pytest.CaptureFixture[str]) -> None:
    stream = Broken()
    output = OptionalOutput(stream, "we go on")
    assert output.encoding == "utf-8"
    for text in ("one\n", "two\n", "three\n"):
        assert output.write(text) == len(text)
    output.flush()
    assert stream.texts == ["one\n"]
    assert capsys.readouterr().err == "tsallis: can't write to standard output (closed); we go on\n"


def test_lost_display_is_reported_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", Broken())
    with TrainingDisplay(Path("run"), resumed=False, epochs=1) as display:
        display.print_lines(["a", "b", "c"])
    assert capsys.readouterr().err.count("continues without a display") == 1


@pytest.mark.process
@pytest.mark.parametrize(("module", "arguments"), [("typer", ["--help"]), ("torch", ["info"])])
def test_ctrl_c_during_imports_exits_with_one_line(module: str, arguments: list[str], tmp_path: Path) -> None:
    """A package of this name sends the signal while it is imported, and is still importing afterwards."""
    text = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    (tmp_path / f"{module}.py").write_text(text)
    line = [sys.executable, "-m", "tsallis", *arguments]
    options: dict[str, Any] = {"capture_output": True, "text": True, "env": {**os.environ, "PYTHONPATH": str(tmp_path)}}
    # A shell's background jobs ignore SIGINT, and their processes inherit this.
    done = subprocess.run(line, **options, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "tsallis: interrupted\n")


@pytest.mark.parametrize("is_command", [True, False])
def test_ctrl_c_exits_with_one_line(
    is_command: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tsallis.toolkit.cli import app, main

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["tsallis", "info"])
    monkeypatch.setattr("tsallis.ops.choice.explain", interrupt)
    with pytest.raises(SystemExit) as leave:
        main(app if is_command else interrupt)
    assert leave.value.code == 130 and capsys.readouterr().err == "tsallis: interrupted\n"


def test_missing_results_are_not_a_proof(unread: Run, trained: Path) -> None:
    assert unread("prove", trained, "--never", "0", stdin=ASKED).status == 3
    assert unread("prove", trained, "--never", ".*", stdin=ASKED).status == 1


def test_notes_are_printed_unless_the_command_fails(tsallis: Run, trained: Path) -> None:
    asked = "prove", trained, "--with", trained, "--never", ".*"
    assert "this run was given twice" in tsallis(*asked, stdin="walk\tV;PST\n", status=1).stderr
    failed = tsallis(*asked, "--language", "eo", stdin="walk\tV;PST\n", status=2).stderr
    assert "given twice" not in failed and len(failed.splitlines()) == 1
