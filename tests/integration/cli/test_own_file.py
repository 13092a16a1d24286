"""Train a model on a table, and check the effects of invalid lines and wrong columns."""

from __future__ import annotations

import bz2
import gzip
import json
import shutil
from pathlib import Path

import pytest

from integration.cli.conftest import Run, json_lines
from tsallis.toolkit.evaluation.text_scores import LineScore
from tsallis.toolkit.inference import open_run
from tsallis.toolkit.tasks.strings import english_verbs

WORDS = ("word", "map", "pam", "row", "door", "mop", "warm", "room", "prom", "drop")
SMALL = ("model.d_model=16", "model.layers=1", "training.updates=4", "training.validate_updates=4")


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a table of words and their letters separated by spaces."""
    monkeypatch.chdir(tmp_path)
    verbs = english_verbs()["dev"][:160:4]
    Path("words.tsv").write_text("".join(f"{e.source}\t{' '.join(e.source)}\n" for e in verbs), encoding="utf-8")
    return Path("words.tsv")


def test_train_and_evaluate_accept_a_table(words: Path, tsallis: Run) -> None:
    printed = tsallis("train", words, *SMALL).stdout
    assert "columns: source<TAB>target; as the model sees them:" in printed
    assert "36 examples to train on, 4 to validate on" in printed
    first = words.read_text().partition("\t")[0]
    assert f"  {' '.join(first)}  ->  {' '.join(first)}" in printed
    run = Path("runs/words")
    assert "on: dev split (4 lines)" in tsallis("evaluate", run).stdout  # there is no test file
    assert "The run is finished" in tsallis("train", words, *SMALL).stdout
    compared = json.loads(tsallis("evaluate", run, run, words, "--json").stdout)
    assert compared["runs"] == [str(run)] * 2 and compared["samples"] == 40
    for score in compared["scores"].values():
        assert score["first"] == score["second"] and score["difference"] == 0 and score["interval"] == [0, 0]
    lines = tsallis("evaluate", run, words).stdout.splitlines()
    assert any(line.startswith("symbol error rate") and " 95 %: " in line for line in lines)
    refused = tsallis("evaluate", run, run, words, "--out", "o", status=2).stderr
    assert "--out and --manifest support only one run" in refused
    assert "pass a file" in tsallis("evaluate", run, run, "-", status=2).stderr  # standard input can be read only once
    words.write_text("\n" + words.read_text(encoding="utf-8"), encoding="utf-8")
    assert json.loads(tsallis("evaluate", run, run, words, "--json").stdout)["samples"] == 40  # without the blank line


def test_dry_run_shows_columns_and_held_out_of_a_table(words: Path, tsallis: Run) -> None:
    plan = tsallis("train", words, "--dry-run", "data.held_out=0.25", "training.seed=3").stdout
    assert "# 30 examples to train on, 10 to validate on" in plan and "\n  tgt_symbols: spaces\n" in plan
    assert not Path("runs").exists()
    swapped = "".join(f"{e.source}\t{';'.join(e.features)}\t{e.target}\n" for e in english_verbs()["dev"][:80])
    Path("verbs.tsv").write_text(swapped, encoding="utf-8")
    error = tsallis("train", "verbs.tsv", status=2).stderr
    assert "data.columns='{source: 1, target: 3, features: 2}'" in error and not Path("runs").exists()
    columns = "data.columns={source: 1, target: 3, features: 2}"
    assert "columns: source<TAB>features<TAB>target" in tsallis("train", "verbs.tsv", columns, "--dry-run").stdout


BAD = b"walk\tV;PST\nbad line\n\xff\tV;PST\n\nwalk\tV;PST\twalked\nrun\tV;PST\n"


def test_invalid_lines_are_skipped_on_stdin_but_stop_files(trained: Path, tsallis: Run, tmp_path: Path) -> None:
    done = tsallis("translate", trained, stdin=BAD, status=1)
    answers = done.stdout.split("\n")
    assert len(answers) == 7 and [bool(answer) for answer in answers] == [True, False, False, False, False, True, False]
    places = [error.split(":")[1:3] for error in done.stderr.splitlines()[:3]]
    assert places == [[" standard input", number] for number in "325"]
    (tmp_path / "lines").write_bytes(BAD)
    stopped = tsallis("translate", trained, tmp_path / "lines", status=2)
    assert stopped.stdout == f"{answers[0]}\n"
    skipped = tsallis("translate", trained, tmp_path / "lines", "--on-error", "skip", status=1)
    assert skipped.stdout == done.stdout
    assert tsallis("translate", trained, "--on-error", "stop", stdin=BAD, status=2).stdout == stopped.stdout
    gold = b"walk\twalked\tV;PST\nwalk\nrun\tran\tV;PST\n"
    scores = tsallis("score", trained, stdin=gold, status=1).stdout.split("\n")
    assert len(scores) == 4 and scores[1] == "" and scores[0] and scores[2]


def test_invalid_options_are_not_treated_as_invalid_lines(trained: Path, tsallis: Run) -> None:
    refused = tsallis("translate", trained, "--language", "eo", stdin=BAD, status=2)
    assert refused.stdout == "" and "--language can't be used with a run without languages" in refused.stderr


def test_lines_after_a_bad_one_are_answered(trained: Path, tsallis: Run) -> None:
    """`prove` stops, because it can't prove anything about a skipped line."""
    for command in ("suggest", "look"):
        done = tsallis(command, trained, *(["--weights"] if command == "look" else []), stdin=BAD, status=1)
        numbers = [
            json.loads(line)["line"] if command == "look" else int(line.split("\t")[0])
            for line in done.stdout.splitlines()
        ]
        assert sorted(set(numbers)) == [1, 2, 3, 4, 5, 6]
    assert tsallis("prove", trained, "--never", "x", stdin=BAD, status=2).stdout.count("\n") == 1


def test_first_lines_equal_to_column_names_are_answered(tsallis: Run, tmp_path: Path) -> None:
    lines = [f"{word}\t{' '.join(word)}" for word in WORDS]
    (tmp_path / "named.tsv").write_text("\n".join(["word\tpronunciation", *lines]), encoding="utf-8")
    tsallis("train", tmp_path / "named.tsv", *SMALL, "data.held_out=0.2", "--run-dir", tmp_path / "run")
    answers = json_lines(tsallis("translate", tmp_path / "run", "--json", stdin="word\nmap\n").stdout)
    assert all(answer["certificate"] != "none" for answer in answers)
    (tmp_path / "gold").write_text("word\tpronunciation\nmap\tm a p\n", encoding="utf-8")
    assert tsallis("score", tmp_path / "run", tmp_path / "gold").stdout.count("\n") == 2


def test_too_few_sources_are_rejected(tsallis: Run, tmp_path: Path) -> None:
    (tmp_path / "one.tsv").write_text("a\tb\n" * 30, encoding="utf-8")
    refused = tsallis("train", tmp_path / "one.tsv", status=2).stderr
    assert "one.tsv: holding out 0.1 of the sources" in refused and "found 1 different source:" in refused


@pytest.mark.parametrize(
    ("name", "folder"), [(".words.tsv", "words"), ("v1.5 words.tsv", "v1.5 words"), ("words.en.tsv.gz", "words.en")]
)
def test_run_folder_is_named_after_the_file(words: Path, tsallis: Run, name: str, folder: str) -> None:
    pack = gzip.compress if name.endswith(".gz") else bytes
    Path(name).write_bytes(pack(words.read_bytes()))
    assert f"# {Path('runs', folder)}: a new run" in tsallis("train", name, "--dry-run").stdout


def test_inner_byte_order_marks_are_ignored(words: Path, tsallis: Run) -> None:
    marked = b"\xef\xbb\xbf" + words.read_bytes()
    Path("joined.tsv").write_bytes(marked + marked)
    plan = [tsallis("train", name, "--dry-run").stdout for name in (words, "joined.tsv")]
    assert plan[0].splitlines()[1] == plan[1].splitlines()[1]  # this line has the numbers of symbols


def test_mixed_unicode_forms_suggest_normalization(words: Path, tsallis: Run) -> None:
    Path("mixed.tsv").write_text("".join(f"b\u00e9{i}\te\nbe\u0301{i}\te\n" for i in range(40)), encoding="utf-8")
    hint = "data.src_normalization=NFC makes them equal"
    assert hint in tsallis("train", "mixed.tsv", "--dry-run").stdout
    assert hint not in tsallis("train", "mixed.tsv", "data.src_normalization=NFC", "--dry-run").stdout
    assert hint not in tsallis("train", words, "--dry-run").stdout


def test_inputs_are_not_replaced_by_outputs(words: Path, tsallis: Run) -> None:
    tsallis("train", words, *SMALL)
    Path("other.tsv").write_bytes(words.read_bytes())
    Path("link").symlink_to("other.tsv")
    before = {path: path.read_bytes() for path in sorted(Path().rglob("*")) if path.is_file()}
    run = Path("runs/words")
    checkpoint = next(path for path in before if path.suffix == ".safetensors")
    for command in (
        ("evaluate", run, "other.tsv", "--out", "link"),
        ("evaluate", run, "other.tsv", "--manifest", "other.tsv"),
        ("evaluate", run, "--out", words),
        ("evaluate", run, "--out", run / "config.yaml"),
        ("evaluate", run, "--with", run, "--manifest", checkpoint),
        ("look", run, "other.tsv", "-o", "./other.tsv"),
        ("analyze", run, "--text", "other.tsv", "-o", "page.html", "--json", "other.tsv"),
        ("analyze", run, "--sweep", "-o", run / "log.jsonl"),
    ):
        assert "write to a different file" in tsallis(*command, status=2).stderr, command
    assert before == {path: path.read_bytes() for path in sorted(Path().rglob("*")) if path.is_file()}


def test_invalid_table_settings_are_rejected(words: Path, tsallis: Run) -> None:
    Path("other.tsv").write_text("a\tb\n" * 20)
    for change, message in (
        ("data.train=other.tsv", "data.train can't be changed for a data file"),
        ("data.languages=[words,words]", "a language must not be repeated, found 'words'"),
        (".model=3", "expected key=value"),
        ("data.columns={source: 1", "input should be keys and values, found"),
    ):
        assert message in tsallis("train", words, change, "--dry-run", status=2).stderr
    assert "the list repeats a value" in tsallis("sweep", words, "model.dropout=[0.1,0.1]", status=2).stderr
    quoted = "".join('"{}"\t"{}"\n'.format(*line.split("\t")) for line in words.read_text().splitlines())
    Path("quoted.tsv").write_text(quoted)
    assert "all columns are in quotation marks" in tsallis("train", "quoted.tsv", "--dry-run").stderr
    assert "quotation marks" not in tsallis("train", words, "--dry-run").stderr


def test_missing_test_file_is_noted_and_can_be_changed(words: Path, tsallis: Run) -> None:
    shutil.copy(words, "held-out.tsv")
    noted = tsallis("train", words, *SMALL, "data.test=nothere.tsv").stderr
    assert "note: data.test: nothere.tsv: no such file" in noted
    assert "nothere.tsv" in tsallis("evaluate", "runs/words", status=2).stderr
    corrected = tsallis("train", words, *SMALL, "data.test=held-out.tsv")
    assert "data.test: changed from nothere.tsv to held-out.tsv" in corrected.stdout + corrected.stderr
    assert "note: data.test" not in corrected.stderr
    assert "on: test split (40 lines)" in tsallis("evaluate", "runs/words").stdout


def test_data_may_move_but_not_change_before_a_run_is_resumed(words: Path, tsallis: Run) -> None:
    tsallis("train", words, *SMALL)
    moved = Path("elsewhere") / words.name
    moved.parent.mkdir()
    words.rename(moved)
    resume = ("train", moved, *SMALL[:2], "--run-dir", "runs/words", "training.validate_updates=4")
    assert "data.folder: changed from . to elsewhere" in tsallis(*resume, "training.updates=6").stdout
    stored = Path("runs/words/config.yaml").read_bytes()
    first, *others = moved.read_text().splitlines()
    moved.write_text("\n".join([*others, first]))
    assert "data has changed" in tsallis(*resume, "training.updates=8", "data.test=x", status=2).stderr
    assert Path("runs/words/config.yaml").read_bytes() == stored


def test_patterns_and_prefixes_have_the_form_of_outputs(words: Path, tsallis: Run) -> None:
    """Outputs in NFD never contain the composed letter, so a proof about this letter would say nothing."""
    composed, decomposed = "\u0151", "o\u030b"
    words.write_text("".join(f"er{composed}{i}\ter{composed}{i}t\n" for i in range(40)), encoding="utf-8")
    tsallis("train", words, *SMALL, "data.tgt_normalization=NFD", "model.monotonic=null")
    for rule in (("--never", f".*{composed}.*"), ("--never", r".*\u0151"), ("--always", f"[^{composed}]*")):
        refused = tsallis("prove", "runs/words", *rule, stdin="er1\n", status=2).stderr
        assert r"write 'o\u030b' instead of '\u0151'" in refused
    run = open_run("runs/words")
    first, second = ([p.to_dict() for p in run.prove(["er1"], never=[x])] for x in (composed, decomposed))
    assert {**first[0], "seconds": 0} == {**second[0], "seconds": 0}
    outputs = [run.translate(["er1"], prefixes=[f"er{x}"])[0].text for x in (composed, decomposed)]
    assert outputs[0] == outputs[1] and outputs[0].startswith(f"er{decomposed}")


def test_constant_scores_have_binomial_intervals() -> None:
    assert LineScore([1]).interval() == pytest.approx((0.025, 1.0))
    assert LineScore([0] * 15).interval() == pytest.approx((0.0, 1 - 0.025 ** (1 / 15)))
    assert LineScore([0, 0], [3, 4]).interval() == (0.0, 0.0)  # edits have no binomial distribution


def test_runs_with_and_without_languages_are_not_compared(words: Path, tsallis: Run) -> None:
    shutil.copy(words, "first.tsv")
    tsallis("train", words, *SMALL)
    Path("several.yaml").write_text(
        "version: 1\nrun_dir: runs/several\ndata: {train: '{language}.tsv', languages: [first, words], "
        "columns: {features: null}, tgt_symbols: spaces}\n"
    )
    tsallis("train", "several.yaml", *SMALL)
    message = "can't be used on the data of a run with"
    assert f"no languages {message} several" in tsallis("evaluate", "runs/several", "runs/words", status=2).stderr
    assert f"several languages {message} none" in tsallis("evaluate", "runs/words", "runs/several", status=2).stderr


def test_unknown_symbols_of_a_split_are_noted(words: Path, tsallis: Run) -> None:
    Path("dev.tsv").write_text("ωω\tw\nwalk\tw a l k\n", encoding="utf-8")
    tsallis("train", words, *SMALL, "data.dev=dev.tsv")
    assert "dev split: 2 source symbols are unknown" in tsallis("evaluate", "runs/words").stderr


def test_unsupported_encodings_and_compressions_are_rejected(words: Path, tsallis: Run) -> None:
    tsallis("train", words, *SMALL)
    text = "walk\nrun\nbake\n"
    for name, content, message in (
        ("utf16", text.encode("utf-16-le"), "utf16:1: expected UTF-8 text, found a null character"),
        ("packed.bz2", bz2.compress(text.encode()), "compressed by bzip2; .gz and .xz are supported"),
        ("packed.txt", gzip.compress(text.encode()), "compressed by gzip; the name of such a file must end in .gz"),
    ):
        Path(name).write_bytes(content)
        assert message in tsallis("translate", "runs/words", name, status=2).stderr
    Path("bad.tsv").write_bytes("wωlk\n".encode() * 64 + b"\xff\n")
    error = tsallis("translate", "runs/words", "bad.tsv", status=2).stderr
    assert "64 source symbols are unknown" in error and "bad.tsv:65" in error


def test_two_runs_keep_their_search_settings(words: Path, tsallis: Run) -> None:
    """Each run must be scored with its own settings, so that the order of the runs does not change the result."""
    alone = []
    for name, settings in (("narrow", ["search.beam_size=1"]), ("long", ["search.beam_size=2", "search.min_length=9"])):
        tsallis("train", words, *SMALL, *settings, "--run-dir", f"runs/{name}")
        alone.append(json.loads(tsallis("evaluate", f"runs/{name}", "--json").stdout)["symbol_error_rate"])
    assert alone[0] != alone[1]
    for pair, expected in ((("narrow", "long"), alone), (("long", "narrow"), alone[::-1])):
        compared = json.loads(tsallis("evaluate", *(f"runs/{name}" for name in pair), "--json").stdout)
        score = compared["scores"]["symbol_error_rate"]
        assert [score["first"], score["second"]] == pytest.approx(expected)
    twice = "runs/long: this run was given twice; it counts twice"
    assert twice in tsallis("evaluate", "runs/long", "--with", "runs/long").stderr
    assert twice in tsallis("distill", "runs/long", "runs/narrow", "runs/long", "-o", "teacher").stderr


def test_evaluate_rejects_other_tasks_and_counts_unknown_labels(words: Path, tsallis: Run) -> None:
    tsallis("train", words, *SMALL)
    Path("texts.tsv").write_text("".join(f"{'pos' if n % 2 else 'neg'}\tgood {n} film\n" for n in range(40)))
    Path("labels.yaml").write_text(
        "version: 1\nrun_dir: runs/labels\ndata: {task: classification, train: texts.tsv, test: texts.tsv}\n"
        "model: {architecture: classifier, d_model: 4}\ntraining: {updates: 4, validate_updates: 2, keep: 2}\n"
    )
    tsallis("train", "labels.yaml")
    for first, second, message in (
        ("labels", "words", "runs/words: expected a run of the task classification, found strings"),
        ("words", "labels", "runs/labels: expected a run of the task strings, found classification"),
    ):
        assert message in tsallis("evaluate", f"runs/{first}", f"runs/{second}", status=2).stderr
    scores = json.loads(tsallis("evaluate", "runs/labels", "-", "--json", stdin="POS\tgood\nother\tbad\n").stdout)
    assert "loss" not in scores and scores["unknown_symbols"] == 2
    one = json.loads(tsallis("evaluate", "runs/labels", "-", "--json", stdin="pos\tgood\nother\tbad\n").stdout)
    assert one["loss"] > 0 and one["unknown_symbols"] == 1

    tsallis("average", "runs/labels")
    note = "training has continued since this average"
    assert note not in tsallis("evaluate", "runs/labels", "--checkpoint", "average").stderr
    tsallis("train", "labels.yaml", "training.updates=8")
    assert note in tsallis("evaluate", "runs/labels", "--checkpoint", "average").stderr
    tsallis("average", "runs/labels")
    assert note not in tsallis("evaluate", "runs/labels", "--checkpoint", "average").stderr


def test_left_out_examples_are_reported_once(tmp_path: Path, tsallis: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("words.tsv").write_text("".join(f"{a}{b}\t{b}{a}\n" for a in "abcde" for b in "xyz") + f"{'a' * 300}\tb\n")
    train = "train", "words.tsv", "model.d_model=4", "training.updates=1", "--device", "cpu"
    for arguments in ([*train, "--dry-run"], train):
        assert tsallis(*arguments).stdout.lower().count("left out of ") == 1
