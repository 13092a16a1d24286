"""What the commands refuse to write, and what they read of lines from other systems."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tsallis.errors import InputError
from tsallis.search.certificate import Hypothesis
from tsallis.toolkit.cli.input import _split
from tsallis.toolkit.cli.output import check_writable
from tsallis.toolkit.data.io import Ignored
from tsallis.toolkit.tasks.language import Language


def test_two_outputs_of_one_name_are_refused(tmp_path: Path) -> None:
    check_writable(tmp_path / "a", None, tmp_path / "b")
    with pytest.raises(InputError, match="two outputs can't be one file"):
        check_writable(tmp_path / "a", tmp_path / "folder" / ".." / "a")


def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="expected a file to write, found a device or a pipe"):
        check_writable(tmp_path / "pipe")


def test_a_carriage_return_at_the_end_of_a_line_is_no_text() -> None:
    for gold in (True, False):
        assert list(Language().number_lines(["ab\r"], gold, Ignored())) == [(0, "ab")]
    assert list(_split(["ab\tR\tb\r"], 2, "{}", 0, optional=False)) == [("ab\tR", "b")]


def test_a_value_beyond_all_floats_is_the_largest() -> None:
    assert Hypothesis((), 1000.0, (), ()).prob == pytest.approx(sys.float_info.max)
