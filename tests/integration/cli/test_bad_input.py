"""Mistakes give a one-line error with the location, exit status 2, and no changed file."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tsallis.errors import InputError
from tsallis.search import Certificate, Hypothesis, Result, SearchOptions
from tsallis.toolkit.cli import main
from tsallis.toolkit.cli.input import _split_last
from tsallis.toolkit.cli.output import check_writable, print_json
from tsallis.toolkit.cli.translate import _print
from tsallis.toolkit.data import Vocabulary
from tsallis.toolkit.data.io import Ignored
from tsallis.toolkit.inference.answers import Answer, Form, Output
from tsallis.toolkit.tasks.language import Language

from .conftest import command, environment


@pytest.mark.parametrize(
    ("redirection", "words"),
    [
        (">/dev/full", "standard output: No space left on device"),
        (">&-", "standard output is closed: keep it open, or redirect it to a file"),
        ("| head -c 0", ""),
    ],
)
def test_full_or_closed_stdout_gives_a_one_line_error(redirection: str, words: str) -> None:
    line = f"{shlex.join(command('data', 'list'))} {redirection}"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, env=environment())
    assert done.returncode == (2 if words else 0), done.stderr
    assert done.stderr == (f"tsallis: {words}\n" if words else "")


def test_closed_stdin_or_stderr_exits_with_status_2(trained: Path) -> None:
    closed = shlex.join(command("translate", trained)) + " <&-", "tsallis: standard input is closed: pass a file\n"
    silent = shlex.join(command("translate")) + " 2>&-", ""  # the run is missing
    for line, errors in (closed, silent):
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=environment())
        assert (done.returncode, done.stdout, done.stderr) == (2, "", errors)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("translate", "run", "--n-best", "9999"), "'--n-best': expected a whole number from 1 to 1000, found '9999'"),
        (("translate", "run", "--budget", str(10**18)), f"from 1 to 1000000, found '{10**18}'"),
        (("translate", "run", "--beam-size", "0"), "'--beam-size': expected a whole number from 1 to 1000, found '0'"),
        (("evaluate", "run", "--beam-size", "5000"), "expected a whole number from 1 to 1000, found '5000'"),
        (("evaluate", "run", "--beam-size", "1.5"), "expected a whole number from 1 to 1000, found '1.5'"),
        (("analyze", "run", "--limit", "none"), "'--limit': expected a whole number of at least 1, found 'none'"),
        (("serve", "run", "--time", "nan"), "'--time': expected a number from 0.1 to 3600, found 'nan'"),
        (("translate", "run", "--mass", "2"), "--mass must be above 0 and below 1, got 2.0"),
        (("translate", "run", "--n-best", "x" * 10**5), "expected a whole number from 1 to 1000, found 'xxx"),
        (("translate",), "Missing argument 'RUN' (see tsallis translate --help)"),
        (("translate", "run", "--\x1b[2J"), "No such option: --\\x1b[2J"),
        (("\x1b[2J",), "No such command"),
        (("translate", "\x1b[2J" * 1000), "\\x1b[2J"),
        (("train", "c\x1b[2J\nd"), "can't be read: No such file"),
    ],
)
def test_invalid_arguments_give_one_line_errors(tsallis, arguments: tuple[str, ...], words: str) -> None:
    text = tsallis(*arguments, status=2).stderr
    assert words in text
    assert text.count("\n") == 1 and text.startswith("tsallis: ") and len(text) <= 2001 and "\x1b" not in text


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(28, "No space left on device", "runs/x"), "tsallis: runs/x: No space left on device\n"),
        (MemoryError(), "tsallis: the data of this command does not fit into memory\n"),
        (InputError("name '\x1b[2J'\n" + "x" * 5000), None),
    ],
)
def test_exceptions_of_commands_become_short_errors(capsys, error: Exception, text: str | None) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(SystemExit) as leave:
        main(fail)
    shown = capsys.readouterr().err
    assert leave.value.code == 2 and (shown == text if text else len(shown) == 2001 and "\x1b" not in shown)


def test_control_characters_of_outputs_are_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Symbols of the training data may contain control characters."""
    vocabulary = Vocabulary(["\x1b[2J", "\x9b", "\ud800", "ş\u200d"])
    hypothesis = Hypothesis((4, 5, 6, 7), -0.5, (1,), (1,), None)
    result = Result((hypothesis,), Certificate("optimal", 0.0))
    output = Output(str(vocabulary.decode(hypothesis.tokens)), (), -0.5, hypothesis)
    for as_json, options in ((False, SearchOptions()), (False, SearchOptions(n_best=2)), (True, SearchOptions())):
        answer = Answer(1, (output,), result, _form=Form(vocabulary, options))
        print_json(answer.to_dict()) if as_json else _print(answer, options.returns, False)
        shown = capsys.readouterr().out.removesuffix("\n")
        assert not set(shown) & set("\x1b\x9b\ud800\n") and "ş\u200d" in shown
        assert not as_json or json.loads(shown)["hypotheses"][0]["text"] == "\x1b[2J\x9b\ud800ş\u200d"


def test_two_outputs_to_the_same_file_are_rejected(tmp_path: Path) -> None:
    check_writable(tmp_path / "a", None, tmp_path / "b")
    with pytest.raises(InputError, match="two outputs would be written to this file"):
        check_writable(tmp_path / "a", tmp_path / "folder" / ".." / "a")


def test_pipes_are_rejected_as_output_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="expected a file to write, found a device or a pipe"):
        check_writable(tmp_path / "pipe")


def test_trailing_carriage_returns_are_removed() -> None:
    for gold in (True, False):
        assert list(Language().number_lines(["ab\r"], gold, Ignored())) == [(0, "ab")]
    assert list(_split_last(["ab\tR\tb\r"], 2, "{}", 0, optional=False)) == [("ab\tR", "b")]


def test_overflowing_probabilities_become_the_largest_float() -> None:
    assert Hypothesis((), 1000.0, (), ()).prob == pytest.approx(sys.float_info.max)
