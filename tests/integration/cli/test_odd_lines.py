"""Unusual input lines: blank lines, separators at the end, byte order marks, and invalid lines."""

from __future__ import annotations

import gzip
import json
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tsallis.toolkit.cli as cli
from tsallis.errors import IgnoredInputWarning
from tsallis.search import SearchOptions
from tsallis.toolkit.data.word_vectors import read_word_vectors
from tsallis.toolkit.serve.answers import ServedRun
from tsallis.toolkit.serve.limits import Limits
from tsallis.toolkit.serve.requests import TranslateRequest
from tsallis.toolkit.tasks.prepared import prepare
from tsallis.toolkit.tasks.registry import load_config, task_of_run
from tsallis.toolkit.training import load_run

MARK = b"\xef\xbb\xbf"


FILES = Path(__file__).parents[2] / "fixtures" / "version1"  # a small run per task, with its data
ANSWERED = ("strings", "translation", "classification", "visual")


def lines_of(name: str, file: str) -> list[str]:
    """Return the lines of a task's file without the header."""
    lines = (FILES / name / file).read_text(encoding="utf-8").splitlines()
    return lines[lines[0].startswith("image\t") :]


# Three lines per task, without and with references.
PLAIN = {name: lines_of(name, "input.txt") for name in ANSWERED}
GOLD = {name: lines_of(name, "dev.tsv")[:3] for name in ANSWERED if name != "translation"}
SIDES = (lines_of("translation", f"dev.{side}")[:3] for side in ("de", "en"))
GOLD["translation"] = ["\t".join(pair) for pair in zip(*SIDES, strict=True)]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that returns the run folder of a task; the folder is next to the task's data."""
    folder = Path(shutil.copytree(FILES, tmp_path_factory.mktemp("odd") / "runs"))
    return lambda name: folder / name / "run"


class Done(NamedTuple):
    status: int
    lines: list[str]
    notes: list[str]


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def run(*arguments: object, stdin: bytes = b"") -> Done:
        (tmp_path / "stdin").write_bytes(stdin)
        monkeypatch.chdir(Path(str(arguments[1])).parent)  # paths of the data are relative to this folder
        capfd.readouterr()
        with (tmp_path / "stdin").open() as stream, pytest.raises(SystemExit) as leave:
            monkeypatch.setattr("sys.stdin", stream)
            cli.main(lambda: cli.app([*map(str, arguments)], standalone_mode=False))
        out, errors = capfd.readouterr()
        notes = [line for line in errors.splitlines() if "are unknown to" not in line]
        return Done(int(leave.value.code or 0), out.splitlines(), notes)

    return run


def text_of(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


# For each name: a function that converts three lines to bytes, the resulting number of lines, and the indices of the
# three lines among them.
ODDITIES: dict[str, tuple[Callable[[list[str]], bytes], int, list[int]]] = {
    "mark": (lambda lines: MARK + text_of(*lines), 3, [0, 1, 2]),
    "returns": (lambda lines: text_of(*lines).replace(b"\n", b"\r\n"), 3, [0, 1, 2]),
    "no last end": (lambda lines: text_of(*lines)[:-1], 3, [0, 1, 2]),
    "blank": (lambda lines: text_of("", lines[0], " ", "\t", *lines[1:], "", "\r"), 8, [1, 4, 5]),
    "mark, blank": (lambda lines: MARK + text_of("", *lines), 4, [1, 2, 3]),
    "tabs": (lambda lines: text_of(*(f"{line}\t" for line in lines)), 3, [0, 1, 2]),
    "tabs, returns": (lambda lines: text_of(*(f"{line}\t\t\r" for line in lines)), 3, [0, 1, 2]),
    "spaces": (lambda lines: text_of(*(f"{line}  " for line in lines)), 3, [0, 1, 2]),
}
TAGS = {
    "separator": (lambda lines: text_of(f"{lines[0]};", *lines[1:]), 3, [0, 1, 2]),
    "separators": (lambda lines: text_of(*(f"{line};; \t" for line in lines)), 3, [0, 1, 2]),
}
CASES = [(name, oddity) for name in ANSWERED for oddity in ODDITIES] + [("strings", oddity) for oddity in TAGS]


FEW = [case for case in CASES if case[1] in ("blank", "tabs, returns", "separators")]


def odd(oddity: str, lines: list[str]) -> tuple[bytes, int, list[int]]:
    make, count, places = (ODDITIES | TAGS)[oddity]
    return make(lines), count, places


def check(call, command: str, run: Path, lines: list[str], oddity: str, nothing: dict[str, Any]) -> Done:
    """Compare the answers for unusual lines with those for plain lines; return the result for the unusual ones."""
    blob, count, places = odd(oddity, lines)
    expected, done = (call(command, run, "--json", stdin=stdin) for stdin in (text_of(*lines), blob))
    assert done.status == 0 and len(done.lines) == count
    for number, answer in enumerate(map(json.loads, done.lines)):
        other = json.loads(expected.lines[places.index(number)]) if number in places else {**answer, **nothing}
        assert answer == {**other, "line": number + 1}
    return done


def check_texts(call, command: str, run: Path, lines: list[str], oddity: str, *options: str) -> None:
    """Compare plain-text answers as `check` does; an empty line must give an empty line."""
    blob, count, places = odd(oddity, lines)
    texts = call(command, run, *options, stdin=blob).lines
    assert [texts[place] for place in places] == call(command, run, *options, stdin=text_of(*lines)).lines
    assert len(texts) == count and not any(text for number, text in enumerate(texts) if number not in places)


@pytest.mark.parametrize(("name", "oddity"), CASES)
def test_translate_accepts_odd_lines(runs, call, name: str, oddity: str) -> None:
    nothing = {"certificate": "none", "hypotheses": [], "unknown": 0}
    done = check(call, "translate", runs(name), PLAIN[name], oddity, nothing)
    ends = 3 * (oddity in ("tabs", "tabs, returns", "separators")) + (oddity == "separator")
    note = f"tsallis: standard input: ignored separators at the end of lines ({ends})"
    assert [text for text in done.notes if "unknown to" not in text] == ([note] if ends else [])
    if oddity == "blank":
        check_texts(call, "translate", runs(name), PLAIN[name], oddity)


@pytest.mark.parametrize(("name", "oddity"), FEW)
def test_score_accepts_odd_lines(runs, call, name: str, oddity: str) -> None:
    run, gold = runs(name), GOLD[name]
    check(call, "score", run, gold, oddity, {"possible": None, "log_prob": None, "tokens": [], "impossible": None})
    for options in ((), ("--tokens",)):
        check_texts(call, "score", run, gold, oddity, *options)


@pytest.mark.parametrize(("name", "oddity"), FEW)
def test_suggest_accepts_odd_lines(runs, call, name: str, oddity: str) -> None:
    run, plain = runs(name), PLAIN[name]
    check(call, "suggest", run, plain, oddity, {"next": [], "possible": False, "log_prob": None})
    blob, count, places = odd(oddity, plain)
    texts = call("suggest", run, "--n-best", "1", stdin=blob).lines
    assert all(texts[number] == f"{number + 1}\t\t0\t" for number in set(range(count)) - {*places})


@pytest.mark.parametrize("name", ANSWERED)
def test_look_and_evaluate_accept_odd_lines(runs, call, name: str, tmp_path: Path) -> None:
    run, gold = runs(name), GOLD[name]
    blob, count, places = odd("blank", PLAIN[name])
    shown = [json.loads(line) for line in call("look", run, "--weights", stdin=blob).lines]
    assert [look["line"] for look in shown] == list(range(1, count + 1))
    assert [number for number, look in enumerate(shown) if look["attention"]] == places
    (tmp_path / "plain").write_bytes(text_of(*gold))
    expected = json.loads(call("evaluate", run, tmp_path / "plain", "--json").lines[0])
    oddities = {"mark": 0, "blank": 5, "tabs, returns": 3} | ({"separators": 3} if name == "strings" else {})
    for oddity, number in oddities.items():
        for ending, pack in {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}.items():
            path = tmp_path / f"odd{ending}"
            path.write_bytes(pack(odd(oddity, gold)[0]))
            done = call("evaluate", run, path, "--json", "--out", tmp_path / "out")
            report = json.loads(done.lines[0])
            same = expected.keys() - {"seconds", "speed", "on"}
            assert {key: report[key] for key in same} == {key: expected[key] for key in same}
            what = {"blank": "blank lines"}.get(oddity, "separators at the end of lines")
            assert done.notes == ([f"tsallis: {path}: ignored {what} ({number})"] if number else [])
            written = [json.loads(line)["line"] for line in (tmp_path / "out").read_text().splitlines()]
            assert written == [place + 1 for place in odd(oddity, gold)[2]]


def test_language_models_accept_odd_lines(runs, call, tmp_path: Path) -> None:
    """For a language model, a blank line is a prompt but not a text."""
    run = runs("language")
    assert len(call("generate", run, stdin=MARK + b"the\n\n \r\n").lines) == 3
    spaces = call("generate", run, stdin=b"the  \n").lines
    assert spaces[0].startswith("the  ")  # prompts are not stripped
    plain = call("score", run, stdin=text_of("the cat", "a dog")).lines
    assert call("score", run, stdin=MARK + text_of("", "the cat", " ", "a dog\r")).lines == ["", plain[0], "", plain[1]]
    (tmp_path / "text").write_bytes(MARK + text_of("the cat", "", "a dog"))
    done = call("evaluate", run, tmp_path / "text")
    assert done.notes == [f"tsallis: {tmp_path / 'text'}: ignored blank lines (1)"] and "(3 lines)" in done.lines[0]


def test_documents_without_words_get_no_label(runs, call) -> None:
    done = call("translate", runs("classification"), "--n-best", "2", stdin=b"<br />\n\n")
    assert done.lines == ["1\t\t0\tnone", "2\t\t0\tnone"]


BAD = [
    ("strings", b"walk", None),
    ("visual", b"99\twhat is it?", None),
    ("translation", b"eins " * 2000, None),
    ("strings", b"w" * 300 + b"\tV", None),
    ("strings", b"wal\xff\tV", None),
    ("classification", b"\xff", None),
    ("strings", "walk\tV;PST\tå".encode(), "--prefix-column"),
    ("strings", b"walk\tV;PST", "--prefix-column"),
]


@pytest.mark.parametrize("place", [0, 2, 70])
@pytest.mark.parametrize(("name", "bad", "option"), BAD)
def test_lines_before_a_bad_one_are_answered(runs, call, name: str, bad: bytes, option: str | None, place: int) -> None:
    run, plain = runs(name), PLAIN[name]
    lines = [f"{line}\t" if option else line for line in (plain * 30)[:place]]
    good = text_of(*lines)
    options = ["--json", *([option] if option else [])]
    expected = call("translate", run, *options, stdin=good).lines if place else []
    done = call("translate", run, *options, "--on-error", "stop", stdin=good + bad + b"\n" + text_of(*plain))
    assert done.status == 2 and done.lines == expected and len(done.lines) == place
    assert len(done.notes) == 1 and f"standard input:{place + 1}: " in done.notes[0], done.notes
    if not option:
        for command in (("suggest", "--n-best", "1", "--json"), ("look", "--weights")):
            done = call(command[0], run, *command[1:], stdin=good + bad + b"\n" + text_of(*plain))
            numbers = [*range(1, place + 2 + len(plain))]
            assert done.status == 1 and [json.loads(line)["line"] for line in done.lines] == numbers
            assert any(f"standard input:{place + 1}: " in note for note in done.notes)


@pytest.mark.parametrize("place", [0, 2, 70])
@pytest.mark.parametrize("name", ["strings", "translation", "classification", "visual"])
def test_score_stops_at_the_first_invalid_line(runs, call, name: str, place: int, tmp_path: Path) -> None:
    run, gold = runs(name), GOLD[name]
    good = text_of(*(gold * 30)[:place])
    for pack, ending in ((bytes, ""), (gzip.compress, ".gz")):
        (tmp_path / f"lines{ending}").write_bytes(pack(good + b"x\n" + text_of(*gold)))
        done = call("score", run, tmp_path / f"lines{ending}")
        assert done.status == 2 and len(done.lines) == place
        assert f"lines{ending}:{place + 1}: " in done.notes[0]
    assert call("evaluate", run, tmp_path / "lines", "--out", tmp_path / "out").status == 2
    assert not (tmp_path / "out").exists()


def test_truncated_gzip_files_end_with_an_error(runs, call, tmp_path: Path) -> None:
    lines = [f"{line}{number}" for number, line in enumerate(PLAIN["classification"] * 3000)]
    packed = gzip.compress(text_of(*lines))
    (tmp_path / "lines.gz").write_bytes(packed[: len(packed) * 2 // 3])
    done = call("score", runs("classification"), tmp_path / "lines.gz")
    assert done.status == 2  # the first line is not a labelled example
    done = call("translate", runs("classification"), tmp_path / "lines.gz")
    assert done.status == 2 and "can't be unpacked as .gz" in done.notes[-1] and len(done.lines) > 64


@pytest.mark.parametrize("name", [*ANSWERED, "language"])
def test_odd_lines_do_not_change_training_data(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blank lines and separators at line ends do not change the examples; aligned files keep their blank lines."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ends = {"strings": ";\t \r\n", "language": " \r\n"}.get(name, "\t \r\n")
    blank = "" if name == "translation" else "\n"
    folder = Path(shutil.copytree(FILES / name, tmp_path / "data", ignore=shutil.ignore_patterns("run")))
    for path in (path for path in folder.iterdir() if path.stem in ("train", "dev") and path.suffix != ".npy"):
        text = "".join(f"{line}{ends}" for line in lines_of(name, path.name))
        path.write_bytes(MARK + f"{blank}{text} \n".encode())
    (folder / "config.yaml").write_bytes(MARK + (folder / "config.yaml").read_bytes())
    monkeypatch.chdir(FILES / name)
    expected = prepare(load_config("config.yaml")).data
    monkeypatch.chdir(folder)
    if name == "translation":
        found = prepare(load_config("config.yaml")).data
        assert found.train.counts is not None and (found.train.counts.read, found.train.counts.empty) == (65, 1)
    else:
        with pytest.warns(IgnoredInputWarning, match="train.*: ignored blank lines"):
            found = prepare(load_config("config.yaml")).data
    assert found.train.digest() == expected.train.digest() and found.dev.corpus.digest() == expected.dev.corpus.digest()


def test_word_vectors_accept_odd_lines(tmp_path: Path) -> None:
    (tmp_path / "vectors").write_bytes(MARK + b"2 2\r\n\r\nthe 0.5 1 \r\n\nhouse 2 0.25\t\r\n")
    with pytest.warns(IgnoredInputWarning, match=r"ignored blank lines \(2\) and separators at the end of lines \(1\)"):
        vectors = read_word_vectors(tmp_path / "vectors", {"the": 4, "house": 5})
    assert vectors.matrix.tolist() == [[0.5, 1.0], [2.0, 0.25]]


def test_run_folders_accept_byte_order_marks(runs, call, tmp_path: Path) -> None:
    """An editor may add byte order marks; the run must stay the same."""
    run = Path(shutil.copytree(runs("strings").parent, tmp_path / "strings")) / "run"
    for name in ("config.yaml", "task.json", "model.json", "src.vocab.json"):
        (run / name).write_bytes(MARK + (run / name).read_bytes())
    assert call("translate", run, stdin=text_of(*PLAIN["strings"])).status == 0
    prepared = prepare(load_config(run / "config.yaml"), run)
    assert prepared.folder == run and prepared.changes is None


@pytest.mark.parametrize("name", ["strings", "translation", "classification"])
def test_served_runs_accept_odd_sources(runs, name: str) -> None:
    run = load_run(runs(name))
    served = ServedRun(name, run, task_of_run(run), SearchOptions(beam_size=2, max_length=4), Limits())
    plain = PLAIN[name]
    sources = [plain[0], "", f"{plain[1]}\t", " \r"]
    (odd_lines,), (expected,) = (
        served.translate([TranslateRequest(run=name, sources=part)], lambda: None) for part in (sources, plain[:2])
    )
    answers = odd_lines["answers"]
    assert [answers[0], {**answers[2], "line": 2}] == expected["answers"]
    assert all(answers[number]["certificate"] == "none" and not answers[number]["hypotheses"] for number in (1, 3))


def test_files_with_cr_line_ends_are_rejected(runs, call, tmp_path: Path) -> None:
    """A file whose lines end with CR only would be read as one line."""
    (tmp_path / "mac.tsv").write_bytes(text_of(*GOLD["strings"]).replace(b"\n", b"\r"))
    for command in ("evaluate", "score", "translate"):
        done = call(command, runs("strings"), tmp_path / "mac.tsv")
        assert done.status == 2 and not done.lines
        assert any("mac.tsv:1: lines must end with LF or CRLF, found CR alone" in note for note in done.notes)
    done = call("train", tmp_path / "mac.tsv", "--run-dir", tmp_path / "run")
    assert done.status == 2 and "CR alone" in done.notes[-1] and not (tmp_path / "run").exists()


def test_evaluate_names_the_unknown_symbols_of_a_file(runs, tsallis, tmp_path: Path) -> None:
    line = GOLD["strings"][0].split("\t")
    (tmp_path / "unknown.tsv").write_text("\t".join(["ж" + line[0], *line[1:]]) + "\n", encoding="utf-8")
    done = tsallis("evaluate", runs("strings"), tmp_path / "unknown.tsv")
    assert "1 source symbol is unknown to" in done.stderr and "read as <unk>: 'ж' on line 1" in done.stderr


@pytest.mark.parametrize("command", ["score", "evaluate"])
def test_unknown_symbols_of_outputs_are_named(runs, tsallis, tmp_path: Path, command: str) -> None:
    fields = GOLD["strings"][0].split("\t")
    known, unknown = "\t".join(fields), "\t".join([fields[0], fields[1] + "ж", *fields[2:]])
    (tmp_path / "unknown.tsv").write_text("\n".join([known, *[unknown] * 6]) + "\n", encoding="utf-8")
    notes = tsallis(command, runs("strings"), tmp_path / "unknown.tsv").stderr
    assert "unknown.tsv: 6 outputs have symbols that are unknown to" in notes
    assert "predict them: line 2, line 3, line 4, line 5, line 6, ..." in notes


def test_lines_without_an_output_are_named(runs, tsallis) -> None:
    lines = "\n".join(["", *PLAIN["strings"][:2]])
    done = tsallis("translate", runs("strings"), "--pattern", "1", stdin=lines)
    assert done.stdout == "\n\n\n"
    assert "standard input: the search found no output: line 2, line 3" in done.stderr
