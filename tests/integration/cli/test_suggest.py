"""Completions as lines, as JSON, and in an interactive terminal."""

from __future__ import annotations

import math
import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tsallis.errors import InputError
from tsallis.toolkit.inference import open_run

from .conftest import command, environment, json_lines

SOURCE = "walk\tV;PST"


def suggestions(tsallis, run: Path, *lines: str, options: tuple[object, ...] = ()) -> list[dict[str, Any]]:
    text = "".join(f"{line}\n" for line in lines)
    return json_lines(tsallis("suggest", run, "--json", *options, stdin=text).stdout)


def test_suggestions_extend_the_typed_text_and_sum_to_1(tsallis, trained: Path) -> None:
    start, typed, impossible = suggestions(tsallis, trained, SOURCE, f"{SOURCE}\ta", f"{SOURCE}\t#")
    assert [s["line"] for s in (start, typed, impossible)] == [1, 2, 3]
    assert not impossible["possible"] and impossible["log_prob"] is None and impossible["next"] == []
    for content in (start, typed):
        assert content["possible"] and content["mass"] == pytest.approx(1, abs=1e-6) and content["missing"] == 0
        probs = [choice["prob"] for choice in content["next"]]
        assert probs == sorted(probs, reverse=True) and len(probs) == min(10, content["support"])
        assert all(choice["text"].startswith(content["text"]) for choice in content["next"])
        assert content["text"].startswith(content["typed"])
    # Typed symbols have the log-probability that `score` prints.
    (scored,) = json_lines(tsallis("score", trained, "--json", stdin="walk\ta\tV;PST\n").stdout)
    assert typed["log_prob"] == pytest.approx(scored["tokens"][0]["log_prob"], abs=1e-5)


def test_plain_suggestions_match_json(tsallis, trained: Path) -> None:
    (content,) = suggestions(tsallis, trained, f"{SOURCE}\ta", options=("--n-best", 2))
    lines = tsallis("suggest", trained, "--n-best", 2, stdin=f"{SOURCE}\ta\n{SOURCE}\t#\n").stdout.splitlines()
    fields = [line.split("\t") for line in lines]
    assert [f[:2] for f in fields] == [["1", c["text"]] for c in content["next"]] + [["2", "#"]]
    assert fields[-1][2:] == ["0", "impossible"]


def test_suggest_completes_partial_words(tsallis, translator: Path) -> None:
    """With subwords, the last typed word may be incomplete, but the words before it are complete."""
    whole, part, space = suggestions(tsallis, translator, "am", "am\tt", "am\tthe ")
    assert whole["mass"] == pytest.approx(1, abs=1e-5)
    assert part["possible"] and 0 < part["mass"] <= 1 + 1e-6
    assert all(choice["text"].startswith("t") for choice in part["next"])
    assert all(choice["text"].startswith("the ") for choice in space["next"])


def test_python_suggest_matches_the_command(tsallis, trained: Path) -> None:
    run = open_run(trained)
    typed = ["", "a", "#"]
    command_answers = suggestions(tsallis, trained, *(f"{SOURCE}\t{text}" for text in typed), options=("--n-best", 3))
    answers = run.suggest([SOURCE] * 3, typed, n_best=3)
    assert [answer.to_dict() for answer in answers] == command_answers
    assert [answer.possible for answer in answers] == [True, True, False]
    assert all(len(answer.next) <= 3 for answer in answers) and answers[2].log_prob == -math.inf
    numbered = run.suggest([SOURCE] * 70, ["#"] * 69 + ["a"])  # more than a block
    assert [answer.line for answer in numbered] == list(range(1, 71))
    assert [answer.typed for answer in numbered] == ["#"] * 69 + ["a"]
    (alone,) = run.suggest([SOURCE], ["a"])
    assert numbered[-1].next == alone.next
    assert run.suggest([]) == []


def test_blank_lines_get_no_suggestions_but_are_numbered(tsallis, translator: Path) -> None:
    answers = open_run(translator).suggest(["", "am", " "])
    assert [answer.line for answer in answers] == [1, 2, 3] and not answers[0].next and not answers[2].next
    assert [answer.to_dict() for answer in answers] == suggestions(tsallis, translator, "", "am", " ")


@pytest.mark.parametrize(
    ("arguments", "keywords", "words"),
    [
        (([SOURCE], ["a", "b"]), {}, "typed must have one text per line, got 2 texts for 1 lines"),
        (([SOURCE], "a"), {}, "typed must be a list of texts, got a single text"),
        (([SOURCE],), {"n_best": 0}, "n_best must be a whole number from 1 to 1000, got 0"),
    ],
)
def test_python_suggest_rejects_invalid_arguments(
    trained: Path, arguments: tuple[Any, ...], keywords: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        open_run(trained).suggest(*arguments, **keywords)


@pytest.mark.process
def test_suggest_answers_a_terminal_line_by_line(trained: Path) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        command("suggest", trained), stdin=slave, stdout=slave, stderr=slave, env=environment(), start_new_session=True
    )
    os.close(slave)
    screen = Screen(master)
    try:
        screen.wait_for("Ctrl-D: end")
        os.write(master, b"walk\n")
        screen.wait_for("expected")  # one column is missing
        os.write(master, b"walk<TAB>V;PST\n")
        screen.wait_for("\r\n1\t")  # the possible first symbols of an output
        screen.wait_for("output: ")
        os.write(master, b"a\n")
        screen.wait_for("\r\n1\ta")
        screen.wait_for("output: ")
        os.write(master, b"#\n")
        screen.wait_for("1\t#\t0\timpossible")
        screen.wait_for("output: ")
        os.write(master, b"\n")
        screen.wait_for("source<TAB>features: ")
        os.write(master, b"\x04")  # the end of the input
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)


class Screen:
    def __init__(self, master: int) -> None:
        self.master, self.text = master, ""

    def parts(self) -> Iterator[str]:
        end = time.monotonic() + 120
        yield ""  # check the text that was read before
        while time.monotonic() < end:
            if select.select([self.master], [], [], 1)[0]:
                yield os.read(self.master, 4096).decode(errors="replace")

    def wait_for(self, *words: str) -> None:
        """Wait until one of the words appears, and drop the text before it."""
        for part in self.parts():
            self.text += part
            places = [self.text.find(word) for word in words if word in self.text]
            if places:
                self.text = self.text[min(places) + 1 :]
                return
        raise AssertionError(f"none of {words} in {self.text[-500:]!r}")
