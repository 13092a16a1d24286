"""`tsallis prove` and `--pattern`: their output, their exit statuses, and the commands of the page."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from integration.cli.conftest import json_lines
from tsallis.errors import InputError
from tsallis.search import SearchOptions
from tsallis.toolkit.inference import TextRun, open_run

ASKED = "walk\tV;PST\n\nbake\tV;V.PTCP;PRS\n"
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "prove.md"


@pytest.fixture(scope="module")
def opened(trained: Path) -> TextRun:
    return open_run(trained)


def proofs(tsallis: Any, trained: Path, *options: object, status: int) -> list[dict[str, Any]]:
    done = tsallis("prove", trained, *options, "--json", stdin=ASKED, status=status)
    return json_lines(done.stdout)


@pytest.mark.parametrize(
    ("rule", "result", "status"),
    [
        *((("--never", ".*[0-9].*"), "proved", 0), (("--always", "[^0-9]*"), "proved", 0)),
        *((("--never", ".*"), "refuted", 1), (("--always", ".*[0-9].*"), "refuted", 1)),
    ],
)
def test_prove_prints_results_and_sets_exit_status(
    tsallis: Any, trained: Path, opened: TextRun, rule: tuple[str, str], result: str, status: int
) -> None:
    """No output contains a digit, because the vocabulary contains none."""
    shown = proofs(tsallis, trained, *rule, status=status)
    assert [(line["line"], line["result"]) for line in shown] == [(1, result), (3, result)]
    assert all(line["absolute"] == (result == "proved") for line in shown)
    rows = [row.split("\t") for row in tsallis("prove", trained, *rule, stdin=ASKED, status=status).stdout.splitlines()]
    assert [row[:2] for row in rows] == [["1", result], ["3", result]]
    for row, line in zip(rows, shown, strict=True):
        assert [float(x) for x in row[2:4]] == pytest.approx([line["lower"], line["upper"]], rel=1e-5)
        assert row[4] == (line["witness"]["text"] if line["witness"] else "")
    written = [proof.to_dict() for proof in opened.prove(ASKED.splitlines(), **{rule[0][2:]: rule[1]})]
    assert json.loads(json.dumps(written)) == shown
    if status:
        sources = [line for line in ASKED.splitlines() if line]
        scored = opened.score(sources, [line["witness"]["text"] for line in shown])
        assert [score.log_prob for score in scored] == pytest.approx(
            [proof.match.witness.log_prob for proof in opened.prove(sources, **{rule[0][2:]: rule[1]})], abs=1e-6
        )


def test_small_budgets_give_unknown_with_status_3(tsallis: Any, trained: Path) -> None:
    (walk, bake) = proofs(tsallis, trained, "--never", ".*eeee", "--at-least", 0, "--budget", 1, status=3)
    assert walk["result"] == bake["result"] == "unknown" and walk["stopped_by"] == "budget"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(((), "--never or --always"), (("--never", "a", "--always", "b"), "--never or --always")),
        *((("--never", "(?=a)"), "look-around"), (("--never", "a", "--at-least", "2"), "at-least")),
    ],
)
def test_invalid_options_have_status_2(tsallis: Any, trained: Path, options: tuple[str, ...], message: str) -> None:
    assert message in tsallis("prove", trained, *options, stdin=ASKED, status=2).stderr


def test_prove_rejects_empty_input(tsallis: Any, trained: Path) -> None:
    assert "at least one line" in tsallis("prove", trained, "--never", "a", stdin="\n", status=2).stderr


def test_python_prove_takes_string_lists_and_checks_options(opened: TextRun) -> None:
    (proof,) = opened.prove(["walk\tV;PST"], never=["0", "17"])
    assert proof.result == "proved" and proof.absolute and proof.witness is None
    with pytest.raises(InputError, match="n_best can't be used in a proof"):
        opened.prove(["walk\tV;PST"], never="a", options=SearchOptions(mode="all", n_best=3))
    with pytest.raises(InputError, match="at least one string"):
        opened.prove(["walk\tV;PST"], never=[])


@pytest.mark.parametrize("mode", ["beam", "exact", "all", "sample"])
def test_translations_match_the_pattern(tsallis: Any, trained: Path, mode: str) -> None:
    regex = ".*e.*"
    limits = ("--budget", 300) if mode in ("exact", "all") else ("--num-samples", 20) if mode == "sample" else ()
    shown = tsallis("translate", trained, "--mode", mode, *limits, "--pattern", regex, "--json", stdin=ASKED)
    answers, outputs = json_lines(shown.stdout), "draws" if mode == "sample" else "hypotheses"
    texts = [output["text"] for answer in answers for output in answer[outputs] if output]
    assert texts and all(re.fullmatch(regex, text) for text in texts)
    assert answers[0]["limits"]["pattern"] == regex
    refused = tsallis("translate", trained, "--pattern", "(a", stdin=ASKED, status=2).stderr
    assert "--pattern" in refused and "'(a'" in refused


def test_documented_commands_run(tsallis: Any, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PAGE.read_text(encoding="utf-8")
    commands = re.findall(r"^\$ tsallis (.*)$", text, re.M)
    assert len(commands) >= 3
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "english-verbs").symlink_to(trained)
    (tmp_path / "verbs.tsv").write_text(ASKED, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for command in commands:
        arguments, *_ = command.partition("  #")
        tsallis(*shlex.split(arguments), status=0)


def test_a_wrong_pattern_is_refused_before_the_run_is_read(tsallis: Any, tmp_path: Path) -> None:
    errors = tsallis("prove", tmp_path / "missing", "--never", "(", status=2).stderr
    assert "--never: '(' is not a regular expression" in errors
