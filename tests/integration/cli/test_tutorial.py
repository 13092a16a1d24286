"""The first part of the tutorial, trained as it stands: what its commands print has the form that the page shows.

Numbers, and now and then an answer, are of the machine that printed them; fields and labels are not.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from integration.cli.conftest import environment

ROOT = Path(__file__).parents[3]
PART = "## Train a model that can prove its answers"
CERTIFICATES = ("complete", "optimal", "bounded")


def shown(part: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a part of the page, each with the lines that it is shown to print."""
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    text = page[page.index(part) + len(part) :].split("\n## ")[0]
    commands: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", text, re.S):
        for line in block.splitlines():
            if line.startswith("$ "):
                commands.append((line.removeprefix("$ "), []))
            else:
                commands[-1][1].append(line)
    return commands


def form(line: str) -> tuple[str, ...]:
    """Return the fields of a line: labels as they are, numbers and answers by their kind."""
    fields = line.split("\t") if "\t" in line else re.split(r" {2,}", line)

    def kind(field: str) -> str:
        if re.fullmatch(r"-?(\d+(\.\d+)?(e-?\d+)?|inf)%?", field):
            return "percent" if field.endswith("%") else "number"
        if field in CERTIFICATES:
            return "certificate"
        return field if " " in field else "word"

    return tuple(kind(field) for field in fields)


def test_forms_of_lines() -> None:
    assert form("1\ttravelled\t0.724609\tcomplete") == ("number", "word", "number", "certificate")
    assert form("-inf") == ("number",) and form("walks") == ("word",)
    assert form("all mass on one hypothesis       33.6%") == ("all mass on one hypothesis", "percent")
    commands = shown(PART)
    assert commands[0] == ("tsallis train recipes/tiny/strings.yaml --run-dir runs/english-verbs", [])
    assert sum(bool(lines) for _, lines in commands) >= 6


@pytest.mark.slow
def test_commands_print_what_the_page_shows(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    script = tmp_path / "tsallis"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m tsallis "$@"\n')
    script.chmod(0o755)
    paths = {**environment(), "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    for command, lines in shown(PART):
        done = subprocess.run(["/bin/sh", "-c", command], cwd=tmp_path, env=paths, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        if not lines:
            continue
        whole = "..." not in lines
        expected = [form(line) for line in lines if line != "..."]
        printed = [form(line) for line in done.stdout.splitlines()]
        if whole:  # there may be more answers elsewhere, or fewer
            assert set(printed) == set(expected), f"{command}: {done.stdout}"
        else:
            assert printed[: len(expected)] == expected, f"{command}: {done.stdout}"
