"""Every option of a command has an effect or is rejected; none is ignored."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tsallis.toolkit.cli as cli
from integration.cli.conftest import json_lines
from run_seed import SEED
from tsallis.errors import InputError
from tsallis.search import SearchOptions

# An argument for each option of the commands that use a run; "FILE" is input from a file.
# Tests here and in test_text_runs.py check that the options of `translate` and `score` act as in Python.
FILE = "FILE"
USE = {"--checkpoint": "average", "--language": "bb", "--images": "{other}"}
COMMANDS = {
    "evaluate": {FILE: "{known}", "--split": "train", "--beam-size": "1", **USE},
    "look": {FILE: "{asked}", "--heads": "cross.1.1", "--beam-size": "1", **USE},
}

LETTERS = "abcd"
WORDS = ["".join(word) for word in itertools.product(LETTERS, repeat=3)]
IMAGE_LINES = [("1\twhat a?", "b"), ("2\twhat b?", "a"), ("7\twhat a?", "c")]
FORM_LINES = [(word, word[1:], "N") for word in WORDS[::9]]
FORMS = """\
version: 1
data:
  {{folder: {folder}, train: "{{language}}-train", dev: "{{language}}-dev", test: "{{language}}-test", languages: all}}
model: {{d_model: 8, layers: 1, dropout: 0.0, output: softmax}}
training: {{epochs: 4, batch_size: 4, learning_rate: 0.005, keep: 3, seed: {seed}}}
search: {{beam_size: 4}}
"""
QUESTIONS = """\
version: 1
data: {{task: visual, folder: {folder}, train: train.tsv, test: test.tsv, images: {{train: train.npy, test: test.npy}}}}
model: {{architecture: answerer, d_model: 8, heads: 2, layers: 1, stages: 1, num_basis: 4, output: entmax}}
training: {{epochs: 3, batch_size: 8, learning_rate: 0.003, keep: 3, seed: {seed}}}
search: {{beam_size: 4}}
"""


def called(*arguments: object, stdin: str = "") -> str:
    out, before = io.StringIO(), sys.stdin
    sys.stdin = SimpleNamespace(buffer=io.BytesIO(stdin.encode()))  # type: ignore[assignment]
    try:
        with contextlib.redirect_stdout(out):
            cli.app([str(argument) for argument in arguments], standalone_mode=False)
    finally:
        sys.stdin = before
    return out.getvalue()


def trained(folder: Path, config: str) -> Path:
    (folder / "config.yaml").write_text(config.format(folder=folder, seed=SEED), encoding="utf-8")
    called("train", folder / "config.yaml", "--run-dir", folder / "run", "--device", "cpu")
    called("average", folder / "run")
    return folder / "run"


def write(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forms")
    for shift, language in enumerate(("aa", "bb")):
        forms = [f"{word}\t{word[shift:]}{'d' * shift}\tN" for word in WORDS]
        for split, start in (("train", 0), ("dev", 1), ("test", 2)):
            write(folder / f"{language}-{split}", forms[start :: 3 if split == "train" else 12])
    write(folder / "asked", [f"{word}\tN" for word in WORDS[1::9]])
    write(folder / "known", ["dca\tca\tN", "bad\tbad\tN"])
    return trained(folder, FORMS)


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("questions")
    for seed, name in enumerate(("train", "test", "other")):
        images = np.random.default_rng(seed).integers(0, 255, (24, 4, 4, 3)).astype(np.uint8)
        np.save(folder / f"{name}.npy", images)
        write(folder / f"{name}.tsv", [f"{i}\twhat {'ab'[i % 2]}?\t{LETTERS[i % 4]}" for i in range(24)])
    write(folder / "asked", ["3\twhat b?", "5\twhat a?"])
    write(folder / "known", ["3\twhat b?\ta", "5\twhat a?\tb"])
    return trained(folder, QUESTIONS)


def ask(line: tuple[str, ...]) -> tuple[str, ...]:
    """Return a line without its second column, the reference."""
    return line[:1] + line[2:]


@pytest.fixture
def compute(forms: Path, questions: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that runs a command with or without an option, on a run that supports the option.

    Its result is the reproducible part of the output, and the arguments of searches: the outputs may be equal,
    depending on what a run has learned.
    """
    from tsallis.toolkit.evaluation import search_results
    from tsallis.toolkit.tasks import attention_weights

    searches: list[Any] = []

    def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            searches.append({name: value for name, value in options.items() if isinstance(value, int)})
            return function(*arguments, **options)

        return call

    for module, name in ((attention_weights, "describe_attention"), (search_results, "beam_search")):
        monkeypatch.setattr(module, name, recorded(getattr(module, name)))

    def call(name: str, option: str, given: bool) -> Any:
        searches.clear()
        run = questions if option == "--images" else forms
        places = {"asked": run.parent / "asked", "known": run.parent / "known", "other": run.parent / "other.npy"}
        argument = COMMANDS[name][option].format(**places)
        arguments = ([argument] if option == FILE else [option, argument]) if given else []
        if run == forms and "--language" not in arguments and (name == "look" or option == FILE):
            arguments += ["--language", "aa"]  # lines of a run with several languages need this option
        lines = IMAGE_LINES if run == questions else FORM_LINES
        stdin = "".join("\t".join(ask(line)) + "\n" for line in lines)
        if name == "look":
            return called(name, run, *arguments, "--weights", stdin=stdin), [*searches]
        report = json.loads(called(name, run, *arguments, "--json", stdin=stdin))
        differing = ("run", "on", "language", "images", "seconds", "speed")
        return {key: value for key, value in report.items() if key not in differing}, [*searches]

    return call


@pytest.mark.parametrize(("name", "option"), [(name, x) for name, options in COMMANDS.items() for x in options])
def test_every_option_changes_the_result(compute: Callable[..., Any], name: str, option: str) -> None:
    assert compute(name, option, True) != compute(name, option, False)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("evaluate", ["asked", "--split", "train"], "--split"),
        ("look", ["--out", "page.html", "--weights"], "--out"),
        ("look", ["--heads", "cross.1.1"], "^--heads cross.1.1 needs --weights"),
    ],
)
def test_conflicting_options_are_rejected(
    forms: Path, monkeypatch: pytest.MonkeyPatch, name: str, options: list[str], words: str
) -> None:
    monkeypatch.chdir(forms.parent)
    with pytest.raises(InputError, match=words):
        called(name, forms, *options, stdin="abc\tN\n")


def test_look_at_images_rejects_heads_and_beam_size(questions: Path, tmp_path: Path) -> None:
    for options in (["--heads", "cross.1.1", "--weights"], ["--beam-size", "2", "--out", tmp_path / "page.html"]):
        with pytest.raises(InputError, match=str(options[0])):
            called("look", questions, *options, stdin="1\twhat a?\n")
    with pytest.raises(InputError, match=r"--heads all can't be used .* the task visual.*leave --heads out"):
        called("look", questions, "--heads", "all", "--weights", stdin="")


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("prove", "run", "--never", "A", "--never", "B"), "--never"),
        (("prove", "run", "--always=A", "--json", "--always=A"), "--always"),
        (("translate", "run", "--pattern", "A", "--pattern", "B"), "--pattern"),
        (("look", "run", "-o", "a", "--out", "b"), "--out"),
        (("data", "list", "--language", "de", "--language", "en"), "--language"),
    ],
)
def test_repeated_options_are_rejected(tsallis: Any, arguments: tuple[str, ...], option: str) -> None:
    assert f"tsallis: {option} can be given only once (see tsallis " in tsallis(*arguments, status=2).stderr
    rest = tsallis("translate", "no", "--with", "a", "--with", "b", "--json", "--json", status=2).stderr
    assert rest == "tsallis: no: not a run folder (it has no model.json)\n"


def test_every_command_refuses_repeated_options() -> None:
    commands = [*cli.app.registered_commands, *cli.data.app.registered_commands]
    assert len(commands) > 15 and all(command.cls is cli.Command for command in commands)


def test_invalid_backend_gives_a_one_line_error(tsallis: Any, forms: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TSALLIS_BACKEND", "banana")
    done = tsallis("translate", forms, "--language", "aa", stdin="abc\tN\n", status=2)
    assert "tsallis: TSALLIS_BACKEND must be one of auto, " in done.stderr and done.stderr.count("\n") == 1


def test_n_best_of_all_outputs_is_certified_optimal(forms: Path) -> None:
    """A list cut to its best outputs is not complete: its bound includes the outputs that were cut off."""
    options = ("--all", "--budget", 150, "--language", "aa", "--json")
    stdin = "".join("\t".join(ask(line)) + "\n" for line in FORM_LINES)
    alone, some = (
        json_lines(called("translate", forms, *options, *more, stdin=stdin)) for more in ((), ("--n-best", 2))
    )
    assert len(alone) == len(some) > 1
    for every, best in zip(alone, some, strict=True):
        assert len(best["hypotheses"]) == 2 < len(every["hypotheses"]) and best["certificate"] == "optimal"
        result, rest = ([h["log_prob"] for h in part] for part in (best["hypotheses"], every["hypotheses"][2:]))
        first = [h["log_prob"] for h in every["hypotheses"][:2]]
        assert result == pytest.approx(first, abs=1e-5)
        assert result[-1] >= best["bound"] - 1e-6 and best["bound"] >= max(rest) - 1e-6


@pytest.mark.parametrize("name", ["translate", "evaluate", "score", "look"])
def test_options_unsupported_by_a_run_are_rejected(questions: Path, forms: Path, name: str) -> None:
    for run, arguments, words in (
        (questions, ["--language", "aa"], "--language can't be used with a run of the task visual, got 'aa'"),
        (forms, ["--images", "x"], "--images can't be used with a run of the task strings, got 'x'"),
        (forms, ["--language", "cc"], "--language must be one of aa, bb, got 'cc'"),
    ):
        with pytest.raises(InputError, match=words):
            called(name, run, *arguments, stdin="1\tN\tN\n")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--language", "aa"], "--language can't be used with a run of the task visual, got 'aa'"),
        (["--beam-size", "2"], "leave out --beam-size"),
        (["--importance", "1"], "leave out --importance"),
        (["--sweep", "--beam-size", "2", "--limit", "5"], "leave out --beam-size, --limit"),
        (["--sweep", "--checkpoint", "last", "--device", "cpu"], "leave out --checkpoint, --device"),
    ],
)
def test_analyze_rejects_idle_options(questions: Path, tmp_path: Path, options: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        called("analyze", questions, questions, "-o", tmp_path / "page.html", *options)


def test_python_answers_match_commands_for_several_tasks(questions: Path, forms: Path) -> None:
    from tsallis.toolkit.inference import open_run

    others = questions.parent / "other.npy"
    cases: list[tuple[Path, list[Any], list[str], dict[str, Any], list[object]]] = [
        (questions, IMAGE_LINES, ["b", "a", "c"], {}, []),
        (questions, IMAGE_LINES, ["b", "a", "c"], {"images": others}, ["--images", others]),
        (forms, FORM_LINES, [line[1] for line in FORM_LINES], {"language": "bb"}, ["--language", "bb"]),
    ]
    for run, lines, targets, keywords, options in cases:
        opened = open_run(run, "average")
        sources = ["\t".join(line if run == questions else ask(line)) for line in lines]
        sources = [source.rpartition("\t")[0] for source in sources] if run == questions else sources
        known = ["\t".join(line) for line in lines]
        answers = opened.translate(sources, SearchOptions(n_best=2), tokens=True, **keywords)
        scores = opened.score(sources, targets, **keywords)
        for command, stdin, contents in (
            (["translate", run, "--n-best", "2", "--tokens"], sources, [answer.to_dict() for answer in answers]),
            (["score", run], known, [score.to_dict() for score in scores]),
        ):
            text = "".join(f"{line}\n" for line in stdin)
            said = called(*command, *options, "--checkpoint", "average", "--json", stdin=text)
            assert json_lines(said) == json.loads(json.dumps(contents))
    with pytest.raises(InputError, match="--alignment can't be used with a run of the task"):
        called("translate", questions, "--alignment", "largest", stdin="1\twhat a?\n")


def test_ensembles_of_different_image_grids_are_rejected(questions: Path, tmp_path: Path) -> None:
    config = (questions.parent / "config.yaml").read_text(encoding="utf-8")
    (tmp_path / "config.yaml").write_text(config, encoding="utf-8")
    run = tmp_path / "run"
    called("train", tmp_path / "config.yaml", "model.stages=2", "training.updates=1", "--run-dir", run)
    with pytest.raises(InputError, match=r"can't be in an ensemble with .* grid of images differs"):
        called("translate", questions, "--with", run, stdin="1\twhat a?\n")
    assert called("translate", questions, "--with", questions, stdin="1\twhat a?\n")


def test_evaluate_rejects_files_without_examples(questions: Path, tmp_path: Path) -> None:
    for text in ("image\tquestion\tanswer\n", "\n \n\n"):
        (tmp_path / "none.tsv").write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=r"none\.tsv: expected lines of image<TAB>question<TAB>answer, found none"):
            called("evaluate", questions, tmp_path / "none.tsv")


def test_manifest_of_a_pipe_is_rejected_before_evaluation(forms: Path, tmp_path: Path) -> None:
    """A pipe can be read only once, so it has no digest for a manifest. The error must precede the evaluation."""
    os.mkfifo(tmp_path / "pipe")  # nothing writes to it, so reading it would hang
    with pytest.raises(InputError, match="pipe: can't be read: expected a file, found a pipe or a device"):
        called("evaluate", forms, tmp_path / "pipe", "--language", "aa", "--manifest", tmp_path / "m.json")


def test_languages_added_after_training_are_not_evaluated(forms: Path) -> None:
    write(forms.parent / "zz-train", ["abc\tabc\tN"])
    try:
        report = json.loads(called("evaluate", forms, "--json"))
    finally:
        (forms.parent / "zz-train").unlink()
    assert [*report["languages"]] == ["aa", "bb"]
