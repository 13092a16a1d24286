"""Searches from the command line: proofs, samples, limits, ensembles, and combinations of options."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from process_fork import Child, command
from small_run import replace
from tsallis.search import SearchOptions
from tsallis.toolkit.cli.input import LineReader
from tsallis.toolkit.inference import open_run

from .conftest import json_lines, train_here

ASKED = "walk\tV;PST\nbake\tV;V.PTCP;PRS\nrebel\tV;PST\n"
Answers = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def second(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a run with softmax on the same data."""
    changes = ["training.epochs=1", "training.seed=9", "model.output=softmax"]
    return train_here(small_data / "config.yaml", tmp_path_factory.mktemp("second") / "run", *changes)


@pytest.fixture
def answers(tsallis, trained: Path) -> Answers:
    def call(*options: object, stdin: str = ASKED, run: Path = trained) -> list[dict[str, Any]]:
        return json_lines(tsallis("translate", run, *options, "--json", stdin=stdin).stdout)

    return call


@pytest.mark.parametrize(
    "options", [("--all", "--budget", 40), ("--exact", "--n-best", 3), ("--n-best", 3), ("--exact",)]
)
def test_each_list_has_one_certificate(answers: Answers, tsallis, second: Path, options: tuple[object, ...]) -> None:
    """The certificate is printed once, for the whole list: "optimal" would be wrong for less probable outputs."""
    shown = [line.split("\t") for line in tsallis("translate", second, *options, stdin=ASKED).stdout.splitlines()]
    expected = [
        [str(answer["line"]), output["text"], f"{output['prob']:.6g}", answer["certificate"] if first else ""]
        for answer in answers(*options, run=second)
        for first, output in zip([True, *[False] * 10**4], answer["hypotheses"], strict=False)
    ]
    assert shown == expected and len(shown) >= len(ASKED.splitlines())


def test_samples_depend_on_the_seed_but_not_the_batch(answers: Answers, tsallis, trained: Path, second: Path) -> None:
    def forms(*found: dict[str, Any]) -> list[str]:  # a truncated sample has no text
        return [draw["text"] if draw else "" for answer in found for draw in answer["draws"]]

    draws = answers("--mode", "sample", "--num-samples", 5, run=second)
    assert [len(answer["draws"]) for answer in draws] == [5] * 3
    assert draws == answers("--mode", "sample", "--num-samples", 5, "--seed", 0, run=second)
    (alone,) = answers("--mode", "sample", "--num-samples", 5, stdin=ASKED.split("\n")[0] + "\n", run=second)
    assert forms(alone) == forms(draws[0])
    # With softmax, fifteen samples are almost never the same with another seed, whatever the run has learned.
    assert draws != answers("--mode", "sample", "--num-samples", 5, "--seed", 1, run=second)
    text = tsallis("translate", second, "--mode", "sample", "--num-samples", 5, stdin=ASKED).stdout.splitlines()
    assert [line.split("\t")[1] for line in text] == forms(*draws)
    short = "--mode", "sample", "--num-samples", 2, "--max-length", 1  # one symbol is too short for a form
    assert tsallis("translate", trained, *short, stdin="walk\tV;PST\n").stdout == "1\t\t\n" * 2


def test_prefixes_apply_to_all_lines_or_per_line(answers: Answers) -> None:
    for answer in answers("--prefix", "wa", "--n-best", 3):
        assert answer["limits"] == {"prefix": "wa"}
        assert all(h["text"].startswith("wa") for h in answer["hypotheses"])
    each = answers("--prefix-column", "--exact", stdin="walk\tV;PST\twe\nwalk\tV;PST\t\n")
    assert [a.get("limits") for a in each] == [{"prefix": "we"}, None]
    (alone,) = answers("--exact", stdin="walk\tV;PST\n")
    assert each[1]["hypotheses"][0]["text"] == alone["hypotheses"][0]["text"]
    assert all(h["text"].startswith("we") for h in each[0]["hypotheses"])


def test_end_rule_defaults_to_the_run_configuration(tsallis, trained: Path, answers: Answers, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    config = (run / "config.yaml").read_text(encoding="utf-8")
    assert "end_rule: every" in config
    (run / "config.yaml").write_text(config.replace("\n  end_rule: every", "\n  end_rule: competing"))
    assert answers("--beam-size", 1, run=run) == answers("--beam-size", 1, "--end-rule", "competing")
    assert open_run(run).search_options == SearchOptions(beam_size=5, end_rule="competing")
    old = config.replace("\n  end_rule: every", "\n  competing_ends: true")  # the name in earlier versions
    (run / "config.yaml").write_text(old)
    assert answers("--beam-size", 1, run=run) == answers("--beam-size", 1, "--end-rule", "competing")


def test_length_settings_default_to_those_of_the_run(tsallis, trained: Path, answers: Answers, tmp_path: Path) -> None:
    """Length settings in a run's configuration must act like the options; options override them."""
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    config = (run / "config.yaml").read_text(encoding="utf-8")
    for name, value in (("min_length: 0", 3), ("max_length: null", 7), ("length_penalty: 0.0", 2.0)):
        assert f"\n  {name}\n" in config
        config = config.replace(f"\n  {name}\n", f"\n  {name.split(':')[0]}: {value}\n")
    (run / "config.yaml").write_text(config, encoding="utf-8")
    options = "--min-length", 3, "--max-length", 7, "--length-penalty", 2
    own = "--min-length", 5, "--max-length", 6, "--length-penalty", 0
    assert answers("--n-best", 4, run=run) == answers("--n-best", 4, *options) != answers("--n-best", 4, *own)
    assert answers("--n-best", 4, *own, run=run) == answers("--n-best", 4, *own)
    lines = tmp_path / "gold.tsv"
    lines.write_text("walk\twalked\tV;PST\nbake\tbaking\tV;V.PTCP;PRS\n", encoding="utf-8")
    tsallis("evaluate", run, lines, "--out", tmp_path / "out", "--manifest", tmp_path / "m.json")
    texts = [json.loads(line)["output"]["text"] for line in (tmp_path / "out").read_text().splitlines()]
    assert texts == tsallis("translate", run, stdin="walk\tV;PST\nbake\tV;V.PTCP;PRS\n").stdout.splitlines()
    evaluation = json.loads((tmp_path / "m.json").read_text())["evaluation"]
    assert [evaluation[key] for key in ("min_length", "max_length", "length_penalty")] == [3, 7, 2.0]
    failed = tsallis("translate", run, "--min-length", 8, stdin=ASKED, status=2)
    assert "--min-length 8 is above the run's search.max_length 7: set --max-length, too" in failed.stderr


def test_ensembles_translate_score_and_evaluate(
    answers: Answers, tsallis, trained: Path, second: Path, small_data: Path
) -> None:
    gold = "walk\taded\tV;PST\nbake\tading\tV;V.PTCP;PRS\n"
    single = json_lines(tsallis("score", second, "--json", stdin=gold).stdout)
    both = json_lines(tsallis("score", trained, "--with", second, "--json", stdin=gold).stdout)
    assert all(x["possible"] for x in both)  # softmax excludes no output
    assert [x["log_prob"] for x in single] != [x["log_prob"] for x in both]
    (answer,) = answers("--with", second, "--exact", "--min-length", 2, stdin="walk\tV;PST\n")
    form = answer["hypotheses"][0]["text"]
    line = tsallis("score", trained, "--with", second, stdin=f"walk\t{form}\tV;PST\n").stdout
    assert float(line) == pytest.approx(answer["hypotheses"][0]["log_prob"], abs=1e-5)
    report = json.loads(tsallis("evaluate", trained, "--with", second, "--split", "dev", "--json").stdout)
    forms = [line.split("\t")[1] for line in (small_data / "dev.tsv").read_text().splitlines()]
    # All symbols of the vocabulary are possible.
    symbols = sum(len(form) + 1 for form in forms)
    assert report["gold_in_support"] == pytest.approx(1 - report["unknown_symbols"] / symbols)
    assert report["unknown_symbols"] > 0 and report["samples"] == 24


def test_incompatible_ensemble_runs_are_rejected(tsallis, trained: Path, inflector: Path) -> None:
    refused = tsallis("translate", trained, "--with", inflector, stdin=ASKED, status=2).stderr
    assert refused.count("\n") == 1 and "can't be in an ensemble" in refused and "vocabulary" in refused


@pytest.fixture(scope="module")
def decided(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with scores so far apart that every step has only one possible symbol, whatever it learned."""
    run = Path(shutil.copytree(trained, tmp_path_factory.mktemp("decided") / "run"))
    for path in run.glob("checkpoints/step-*/model.safetensors"):
        weights = safetensors.torch.load_file(path)
        weights["output.projection.weight"] *= 1e6
        replace(path, safetensors.torch.save(weights))
    return run


def test_score_says_why_an_output_is_impossible(tsallis, decided: Path) -> None:
    (start,) = json_lines(tsallis("suggest", decided, "--json", stdin="walk\tV;PST\n").stdout)
    symbol = next(letter for letter in "we" if letter not in start["next"][0]["text"][:1])
    gold = f"walk\t{symbol}alked\tV;PST\nwalk\taded\tV;PST\n"
    first, second = json_lines(tsallis("score", decided, "--json", stdin=gold).stdout)
    assert not first["possible"] and first["log_prob"] is None
    excluded = first["impossible"]
    assert excluded["symbol"] == symbol and excluded["gap"] > 0 and excluded["step"] == len(first["tokens"]) == 1
    assert excluded["support"] == len(excluded["instead"]) == 1 and symbol != excluded["instead"][0]["symbol"]
    assert excluded["instead"][0]["prob"] == pytest.approx(1)
    if second["possible"]:
        assert sum(t["log_prob"] for t in second["tokens"]) == pytest.approx(second["log_prob"])
    text = tsallis("score", decided, "--tokens", stdin=gold).stdout.splitlines()
    assert text[0].startswith(f"-inf\t{symbol} impossible, its score") and "below the threshold" in text[0]
    plain = tsallis("score", decided, stdin=gold).stdout.splitlines()
    assert plain[0] == "-inf" and text[1].split("\t")[0] == plain[1]


def test_evaluate_writes_outputs_beside_references(tsallis, trained: Path, small_data: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "outputs.jsonl"
    report = json.loads(tsallis("evaluate", trained, small_data / "dev.tsv", "--out", out, "--json").stdout)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [r["line"] for r in records] == list(range(1, 25))
    assert sum(r["output"]["right"] for r in records) / 24 == pytest.approx(report["accuracy"])
    assert sum(r["empty"]["more_probable"] for r in records) / 24 == report["empty_rate"]
    assert sum(r["empty"]["best_of_all"] == "yes" for r in records) / 24 == report["empty_best"]
    assert sum(r["empty"]["log_prob"] is not None for r in records) / 24 == report["empty_possible"]
    for record in records:
        reference = record["reference"]
        assert reference["possible"] == (reference["impossible"] is None) == (reference["log_prob"] is not None)
        if record["output"]["right"]:
            assert reference["log_prob"] == pytest.approx(record["output"]["log_prob"], abs=1e-4)
    exact = json.loads(tsallis("evaluate", trained, small_data / "dev.tsv", "--exact", "--json").stdout)
    assert exact["optimal"] + exact["complete"] == 1.0
    short = json.loads(tsallis("evaluate", trained, "--exact", "--budget", 1, "--json").stdout)
    assert short["optimal"] + short["complete"] + short["bounded"] + short["none"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("command_name", "options", "words"),
    [
        ("translate", ("--prefix", "aded", "--max-length", 3), "at most max_length 3 symbols, got 4"),
        ("translate", ("--prefix-column", "--on-error", "stop"), "found 2 columns"),
        ("translate", ("--prefix", "a", "--prefix-column"), "use either --prefix or --prefix-column, not both"),
        ("translate", ("--min-length", 5, "--max-length", 4), "--min-length must be at most --max-length 4, got 5"),
        ("translate", ("--budget", 5), "--budget applies only to --mode exact or all, got --mode beam"),
        ("translate", ("--exact", "--all"), "use only one of --exact, --all"),
        ("translate", ("--exact", "--mode", "beam"), "use only one of --mode beam, --exact"),
        ("translate", ("--end-rule", "no"), "'no' is not one of 'every', 'competing'"),
        ("translate", ("--exact", "--mass", 0.5), "--mass 0.5 needs --n-best above 1 or --mode all"),
        ("translate", ("--tokens",), "--tokens needs --json"),
        ("evaluate", ("--mode", "sample"), "'sample' is not one of 'beam', 'exact'"),
        ("evaluate", ("--exact", "--end-rule", "every"), "--end-rule applies only to --mode beam, got --mode exact"),
        ("evaluate", ("--out", "/"), "expected a file to write"),
        ("generate", ("--end-rule", "every"), "--end-rule applies only to --mode beam, got --mode sample"),
    ],
)
def test_invalid_options_give_one_line_errors(
    tsallis, trained: Path, command_name: str, options: tuple[object, ...], words: str
) -> None:
    errors = tsallis(command_name, trained, *options, stdin=ASKED, status=2).stderr
    assert errors.count("\n") == 1 and words in errors, errors


@pytest.mark.parametrize(
    ("options", "certificate"),
    [
        (("--all", "--budget", 1, "--min-length", 3), "none"),
        (("--n-best", 3, "--max-length", 3, "--min-length", 3), "none"),
        (("--all", "--prefix", "zzzz"), "complete"),
        (("--exact", "--prefix", "zzzz"), "complete"),
    ],
)
def test_missing_outputs_are_printed_with_a_certificate(
    tsallis, second: Path, trained: Path, options: tuple[object, ...], certificate: str
) -> None:
    run = trained if certificate == "complete" or "--n-best" in options else second
    objects = tsallis("translate", run, *options, "--json", stdin=ASKED).stdout.splitlines()
    lines = tsallis("translate", run, *options, stdin=ASKED).stdout.splitlines()
    answers = [json.loads(line) for line in objects]
    assert len(answers) == 3 and any(not answer["hypotheses"] for answer in answers)
    for answer in answers:
        own = [line for line in lines if line.startswith(f"{answer['line']}\t")]
        assert len(own) == max(1, len(answer["hypotheses"]))
        if not answer["hypotheses"]:
            assert own == [f"{answer['line']}\t\t0\t{certificate}"]


def test_unknown_symbols_are_counted(tsallis, trained: Path, answers: Answers) -> None:
    lines = "rebel\tV;PST\nrebel\tV;FOO\ncafé\tV;PST;BAR\n"
    done = tsallis("translate", trained, stdin=lines)
    message = f"3 source symbols are unknown to {trained} and read as <unk>: 'FOO' on line 2, 'BAR' on line 3"
    assert done.stderr == f"tsallis: standard input: {message}, 'é' on line 3\n"
    assert [answer["unknown"] for answer in answers(stdin=lines)] == [0, 1, 2]
    assert tsallis("translate", trained, stdin="rebel\tV;PST\n").stderr == ""
    many = tsallis("suggest", trained, stdin="äöü\tV\nßéè\tV\n").stderr
    assert "'é' on line 2, ...\n" in many and many.count(" on line ") == 5
    assert "1 source symbol is unknown" in tsallis("translate", trained, stdin="é\tV;PST\n").stderr


def test_errors_for_missing_tags_show_an_example(tsallis, trained: Path) -> None:
    for name, lines in (("translate", "rebel\n"), ("suggest", "rebel\tV;PST\nrebel\n")):
        message = tsallis(name, trained, stdin=lines, status=1).stderr
        number = lines.count("\n")
        assert f"standard input:{number}: expected source<TAB>features or" in message and message.count("\n") == 1
        assert "found 1 column: 'rebel'; for example rebel<TAB>V (write ';' between features; the training" in message


def test_an_empty_output_has_a_score(tsallis, trained: Path) -> None:
    lines = "walk\t\tV;PST\nwalk\twalked\tV;PST\n"
    empty, form = json_lines(tsallis("score", trained, "--json", stdin=lines).stdout)
    assert [token["symbol"] for token in empty["tokens"]] == ["</s>"] or empty["impossible"]["step"] == 1
    assert form["tokens"]
    assert "found an empty target" in tsallis("evaluate", trained, "-", stdin=lines, status=2).stderr


def test_each_line_is_answered_before_the_next_is_read(trained: Path) -> None:
    """A user who types a line waits for its answer, and so does a program that writes to a pipe."""
    (reading, asked), (answered, writing) = os.pipe(), os.pipe()
    translate = command("translate", trained)

    def work() -> None:
        os.close(asked)
        sys.stdin, sys.stdout = os.fdopen(reading), os.fdopen(writing, "w")
        translate()

    child = Child(work)
    os.close(reading)
    os.close(writing)
    result = []
    with os.fdopen(answered) as answers:
        for part in (b"walk\tV;PST\n", b"bake\tV;PST\nrebel\t", b"V;PST\n"):
            os.write(asked, part)
            result.append(answers.readline())  # hangs if the command waits for more than one line
        os.close(asked)
        assert all(result) and answers.read() == ""
    assert child.ended().status == 0


def test_line_reader_joins_partial_writes() -> None:
    text = b"one\n\ntwo three\n" + b"x" * 200_000 + b"\nlast"
    for size in (1, 7, 100_000):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            for first in range(0, len(text) if size > 1 else 400, size):
                os.write(writing, text[first : first + size])
            os._exit(0)
        os.close(writing)
        reader = LineReader(reading)
        expected = (text if size > 1 else text[:400]).splitlines(keepends=True)
        lines = [reader.readline(1 << 20) for _ in range(len(expected) + 1)]
        assert lines == [*expected, b""]
        assert not reader.ready() and reader.ended
        os.close(reading)
        os.waitpid(child, 0)


def test_line_reader_waits_for_line_ends_and_splits_long_lines() -> None:
    reading, writing = os.pipe()
    reader = LineReader(reading)
    for part in (b"ab", b"cd"):
        os.write(writing, part)
        assert not reader.ready()
    os.write(writing, b"\nabcdef\nef")
    assert reader.ready() and reader.readline() == b"abcd\n"
    assert [reader.readline(4), reader.readline(4)] == [b"abcd", b"ef\n"]
    assert not reader.ready()  # the buffer is empty, and more input may follow
    os.close(writing)
    assert reader.ready() and reader.readline() == b"ef" and not reader.ready()
    os.close(reading)


def test_line_reader_limits_its_buffer_for_endless_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tsallis.toolkit.data.io.LONGEST", 100_000)
    (tmp_path / "line").write_bytes(b"x" * 1_000_000)
    with (tmp_path / "line").open("rb") as stream:
        reader = LineReader(stream.fileno())
        assert reader.ready() and 100_000 < len(reader.buffer) < 200_000
        assert reader.readline(100_001) == b"x" * 100_001


def test_version_and_info_json_report_versions(tsallis) -> None:
    assert tsallis("--version").stdout == "tsallis 0.1.0\n"
    facts = json.loads(tsallis("info", "--json").stdout)
    assert facts["tsallis"] == "0.1.0" and facts["torch"].startswith("2.") and isinstance(facts["threads"], int)
