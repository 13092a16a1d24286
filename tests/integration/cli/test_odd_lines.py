"""Lines of published files and pipes: blank lines, separators at their ends, byte order marks, and bad lines.

The runs are not trained: only the lines matter here.
"""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import tsallis.toolkit.cli as cli
from task_runs import config_of, start
from tsallis.errors import IgnoredInputWarning
from tsallis.search import SearchOptions
from tsallis.toolkit.data.word_vectors import read_word_vectors
from tsallis.toolkit.serve.answers import ServedRun
from tsallis.toolkit.serve.limits import Limits
from tsallis.toolkit.serve.requests import TranslateRequest
from tsallis.toolkit.tasks.prepared import prepare
from tsallis.toolkit.tasks.registry import load_config, task_of_run
from tsallis.toolkit.training import Checkpoints, load_run

MARK = b"\xef\xbb\xbf"


class Sample(NamedTuple):
    """Lines of a task: without their outputs, and with them."""

    plain: list[str]
    gold: list[str]
    bad: str  # a malformed line, without its output


SAMPLES = {
    "strings": Sample(
        ["walk\tV;PST", "run\tV;PRS", "talk\tV;PST"],
        ["walk\twalked\tV;PST", "run\truns\tV;PRS", "talk\ttalked\tV;PST"],
        "walk",
    ),
    "translation": Sample(
        ["ein Hut", "das Haus", "ein Haus"],
        ["ein Hut\ta hat", "das Haus\tthe house", "ein Haus\ta house"],
        "ein " * 2000,
    ),
    "classification": Sample(
        ["a fine film", "a dull film", "dull"], ["pos\ta fine film", "neg\ta dull film", "neg\tdull"], ""
    ),
    "visual": Sample(
        ["0\twhat is it?", "1\tis it red?", "2\tis it red?"],
        ["0\twhat is it?\tbox", "1\tis it red?\tno", "2\tis it red?\tbox"],
        "7\twhat is it?",
    ),
    "language": Sample(["the cat", "a dog", "the dog"], ["the cat", "a dog", "the dog"], ""),
}
ANSWERED = ("strings", "translation", "classification", "visual")
DATA = {
    "strings": {},
    "translation": {"src": "de", "tgt": "en", "subwords": {"kind": "word", "size": 20}, "cache": "cache"},
    "classification": {"min_count": 1},
    "visual": {"images": "images.npy"},
    "language": {"length": 8},
}
MODELS = {
    "strings": {"architecture": "rnn", "d_model": 4, "layers": 1},
    "translation": {"architecture": "rnn", "d_model": 4, "layers": 1},
    "classification": {"architecture": "classifier", "d_model": 4, "num_basis": 8},
    "visual": {"architecture": "answerer", "d_model": 4, "heads": 1, "layers": 1, "stages": 1, "num_basis": 4},
    "language": {"architecture": "language", "d_model": 4, "heads": 1, "layers": 1, "d_ff": 4},
}


def write_data(folder: Path, name: str, change: Callable[[str], bytes] = str.encode) -> None:
    """Write the data of a task; `change` makes the bytes of a file out of its text."""
    folder.mkdir(exist_ok=True)
    gold = SAMPLES[name].gold
    files = {f"{split}.tsv": gold for split in ("train", "dev", "test")}
    if name == "translation":
        columns = zip(*(line.split("\t") for line in gold), strict=True)
        sides = dict(zip(("de", "en"), columns, strict=True))
        files = {f"{split}.tsv.{side}": list(sides[side]) for split in ("train", "dev", "test") for side in sides}
    for file, lines in files.items():
        (folder / file).write_bytes(change("".join(f"{line}\n" for line in lines)))
    np.save(folder / "images.npy", np.arange(3 * 8 * 8 * 3, dtype=np.uint8).reshape(3, 8, 8, 3))


def config_text(folder: Path, name: str) -> str:
    data = {"task": name, "folder": str(folder), "train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}
    data |= DATA[name] | ({"cache": str(folder / "cache")} if name == "translation" else {})
    return json.dumps({"version": 1, "data": data, "model": MODELS[name], "search": {"max_length": 4}})


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the run folder of a task, made when it is first asked for."""
    root, made = tmp_path_factory.mktemp("odd"), dict[str, Path]()

    def run_of(name: str) -> Path:
        if name not in made:
            folder = root / name
            write_data(folder, name)
            made[name] = make_run(folder / "run", config_text(folder, name))
        return made[name]

    return run_of


def make_run(folder: Path, text: str) -> Path:
    prepared = prepare(config_of(json.loads(text)))
    start(prepared, folder)
    facts = {"step": 1, "epoch": 1, "metrics": {}}
    Checkpoints(folder / "checkpoints").save(prepared.build().state_dict(), {}, facts, best=True, finished=True)
    return folder


class Done(NamedTuple):
    status: int
    lines: list[str]
    notes: list[str]


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Run a command in this process, with standard input from a file."""

    def run(*arguments: object, stdin: bytes = b"") -> Done:
        (tmp_path / "stdin").write_bytes(stdin)
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


# Bytes of three lines, the number of lines, and the places of the three among them.
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
    """Compare the answers of odd lines with those of plain ones; return what was said of the odd ones."""
    blob, count, places = odd(oddity, lines)
    expected, done = (call(command, run, "--json", stdin=stdin) for stdin in (text_of(*lines), blob))
    assert done.status == 0 and len(done.lines) == count
    for number, answer in enumerate(map(json.loads, done.lines)):
        other = json.loads(expected.lines[places.index(number)]) if number in places else {**answer, **nothing}
        assert answer == {**other, "line": number + 1}
    return done


def check_texts(call, command: str, run: Path, lines: list[str], oddity: str, *options: str) -> None:
    """As `check`, of plain text: a line that holds nothing has an empty one."""
    blob, count, places = odd(oddity, lines)
    texts = call(command, run, *options, stdin=blob).lines
    assert [texts[place] for place in places] == call(command, run, *options, stdin=text_of(*lines)).lines
    assert len(texts) == count and not any(text for number, text in enumerate(texts) if number not in places)


@pytest.mark.parametrize(("name", "oddity"), CASES)
def test_translate(runs, call, name: str, oddity: str) -> None:
    nothing = {"certificate": "none", "hypotheses": [], "unknown": 0}
    done = check(call, "translate", runs(name), SAMPLES[name].plain, oddity, nothing)
    ends = 3 * (oddity in ("tabs", "tabs, returns", "separators")) + (oddity == "separator")
    note = f"tsallis: standard input: ignored separators at the end of lines ({ends})"
    assert done.notes == ([note] if ends else [])
    if oddity == "blank":
        check_texts(call, "translate", runs(name), SAMPLES[name].plain, oddity)


@pytest.mark.parametrize(("name", "oddity"), FEW)
def test_score(runs, call, name: str, oddity: str) -> None:
    run, gold = runs(name), SAMPLES[name].gold
    check(call, "score", run, gold, oddity, {"possible": None, "log_prob": None, "tokens": [], "impossible": None})
    for options in ((), ("--tokens",)):
        check_texts(call, "score", run, gold, oddity, *options)


@pytest.mark.parametrize(("name", "oddity"), FEW)
def test_suggest(runs, call, name: str, oddity: str) -> None:
    run, plain = runs(name), SAMPLES[name].plain
    check(call, "suggest", run, plain, oddity, {"next": [], "possible": False, "log_prob": None})
    blob, count, places = odd(oddity, plain)
    texts = call("suggest", run, "--n-best", "1", stdin=blob).lines
    assert all(texts[number] == f"{number + 1}\t\t0\tnone" for number in set(range(count)) - {*places})


@pytest.mark.parametrize("name", ANSWERED)
def test_look_and_an_evaluation(runs, call, name: str, tmp_path: Path) -> None:
    run, sample = runs(name), SAMPLES[name]
    blob, count, places = odd("blank", sample.plain)
    shown = [json.loads(line) for line in call("look", run, "--weights", stdin=blob).lines]
    assert [look["line"] for look in shown] == list(range(1, count + 1))
    assert [number for number, look in enumerate(shown) if look["attention"]] == places
    (tmp_path / "plain").write_bytes(text_of(*sample.gold))
    expected = json.loads(call("evaluate", run, tmp_path / "plain", "--json").lines[0])
    oddities = {"mark": 0, "blank": 5, "tabs, returns": 3} | ({"separators": 3} if name == "strings" else {})
    for oddity, number in oddities.items():
        for ending, pack in {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}.items():
            path = tmp_path / f"odd{ending}"
            path.write_bytes(pack(odd(oddity, sample.gold)[0]))
            done = call("evaluate", run, path, "--json", "--out", tmp_path / "out")
            report = json.loads(done.lines[0])
            same = expected.keys() - {"seconds", "speed", "on"}
            assert {key: report[key] for key in same} == {key: expected[key] for key in same}
            what = {"blank": "blank lines"}.get(oddity, "separators at the end of lines")
            assert done.notes == ([f"tsallis: {path}: ignored {what} ({number})"] if number else [])
            written = [json.loads(line)["line"] for line in (tmp_path / "out").read_text().splitlines()]
            assert written == [place + 1 for place in odd(oddity, sample.gold)[2]]


def test_texts(runs, call, tmp_path: Path) -> None:
    """A blank line is a prompt of a language model, and no text."""
    run = runs("language")
    assert len(call("generate", run, stdin=MARK + b"the\n\n \r\n").lines) == 3
    spaces = call("generate", run, stdin=b"the  \n").lines
    assert spaces[0].startswith("the  ")  # as it was given
    plain = call("score", run, stdin=text_of("the cat", "a dog")).lines
    assert call("score", run, stdin=MARK + text_of("", "the cat", " ", "a dog\r")).lines == ["", plain[0], "", plain[1]]
    (tmp_path / "text").write_bytes(MARK + text_of("the cat", "", "a dog"))
    done = call("evaluate", run, tmp_path / "text")
    assert done.notes == [f"tsallis: {tmp_path / 'text'}: ignored blank lines (1)"] and "(3 lines)" in done.lines[0]


def test_documents_without_words(runs, call) -> None:
    done = call("translate", runs("classification"), "--n-best", "2", stdin=b"<br />\n\n")
    assert done.lines == ["1\t\t0\tnone", "2\t\t0\tnone"]


BAD = [
    *((name, bad, None) for name in ("strings", "visual", "translation") for bad in (SAMPLES[name].bad.encode(),)),
    ("strings", b"w" * 300 + b"\tV", None),
    ("strings", b"wal\xff\tV", None),
    ("classification", b"\xff", None),
    ("strings", "walk\tV;PST\tå".encode(), "--prefix-column"),
    ("strings", b"walk\tV;PST", "--prefix-column"),
]


@pytest.mark.parametrize("place", [0, 2, 70])
@pytest.mark.parametrize(("name", "bad", "option"), BAD)
def test_lines_before_a_bad_one_are_answered(runs, call, name: str, bad: bytes, option: str | None, place: int) -> None:
    run, plain = runs(name), SAMPLES[name].plain
    lines = [f"{line}\t" if option else line for line in (plain * 30)[:place]]
    good = text_of(*lines)
    options = ["--json", *([option] if option else [])]
    expected = call("translate", run, *options, stdin=good).lines if place else []
    done = call("translate", run, *options, stdin=good + bad + b"\n" + text_of(*plain))
    assert done.status == 2 and done.lines == expected and len(done.lines) == place
    assert len(done.notes) == 1 and f"standard input:{place + 1}: " in done.notes[0], done.notes
    if not option:
        for command in (("suggest", "--n-best", "1", "--json"), ("look", "--weights")):
            done = call(command[0], run, *command[1:], stdin=good + bad + b"\n")
            assert done.status == 2 and [json.loads(line)["line"] for line in done.lines] == [*range(1, place + 1)]


@pytest.mark.parametrize("place", [0, 2, 70])
@pytest.mark.parametrize("name", ["strings", "translation", "classification", "visual"])
def test_scores_before_a_bad_line(runs, call, name: str, place: int, tmp_path: Path) -> None:
    run, gold = runs(name), SAMPLES[name].gold
    good = text_of(*(gold * 30)[:place])
    for pack, ending in ((bytes, ""), (gzip.compress, ".gz")):
        (tmp_path / f"lines{ending}").write_bytes(pack(good + b"x\n" + text_of(*gold)))
        done = call("score", run, tmp_path / f"lines{ending}")
        assert done.status == 2 and len(done.lines) == place
        assert f"lines{ending}:{place + 1}: " in done.notes[0]
    assert call("evaluate", run, tmp_path / "lines", "--out", tmp_path / "out").status == 2
    assert not (tmp_path / "out").exists()


def test_a_file_that_breaks_off(runs, call, tmp_path: Path) -> None:
    """What is unpacked before the damage is answered."""
    lines = [f"{line}{number}" for number, line in enumerate(SAMPLES["classification"].plain * 3000)]
    packed = gzip.compress(text_of(*lines))
    (tmp_path / "lines.gz").write_bytes(packed[: len(packed) * 2 // 3])
    done = call("score", runs("classification"), tmp_path / "lines.gz")
    assert done.status == 2  # the first line is no example
    done = call("translate", runs("classification"), tmp_path / "lines.gz")
    assert done.status == 2 and "can't be unpacked as .gz" in done.notes[-1] and len(done.lines) > 64


@pytest.mark.parametrize("name", DATA)
def test_training_data(runs, name: str, tmp_path: Path) -> None:
    """The examples are the same with blank lines and odd ends; aligned files keep their blank lines."""

    def mangle(text: str) -> bytes:
        ends = {"strings": ";\t\r\n", "language": " \r\n"}.get(name, "\t \r\n")
        if name == "translation":
            return MARK + text.replace("\n", ends).encode() + b"\n"  # a pair of empty sentences
        return MARK + f"\n{text}\n  \n".replace("\n", ends if name != "strings" else "\n").encode()

    folder = tmp_path / "data"
    write_data(folder, name, mangle)
    if name == "strings":
        lines = [f"{line};\t \r\n" for line in SAMPLES[name].gold]
        for split in ("train", "dev", "test"):
            (folder / f"{split}.tsv").write_bytes(MARK + "\n".join(["", *lines, " \n"]).encode())
    (tmp_path / "config.yaml").write_bytes(MARK + config_text(folder, name).encode())
    expected = prepare(load_config(runs(name) / "config.yaml")).data
    config = load_config(tmp_path / "config.yaml")
    if name == "translation":
        found = prepare(config).data
        assert found.train.counts is not None and (found.train.counts.read, found.train.counts.empty) == (4, 1)
    else:
        with pytest.warns(IgnoredInputWarning, match="train.tsv: ignored blank lines"):
            found = prepare(config).data
    assert found.train.digest() == expected.train.digest() and found.dev.corpus.digest() == expected.dev.corpus.digest()


def test_word_vectors(tmp_path: Path) -> None:
    (tmp_path / "vectors").write_bytes(MARK + b"2 2\r\n\r\nthe 0.5 1 \r\n\nhouse 2 0.25\t\r\n")
    with pytest.warns(IgnoredInputWarning, match=r"ignored blank lines \(2\) and separators at the end of lines \(1\)"):
        vectors = read_word_vectors(tmp_path / "vectors", {"the": 4, "house": 5})
    assert vectors.matrix.tolist() == [[0.5, 1.0], [2.0, 0.25]]


def test_a_run_folder_with_marks(runs, call, tmp_path: Path) -> None:
    """An editor that writes them makes no other run of it."""
    run = runs("strings")
    for name in ("config.yaml", "task.json", "model.json", "src.vocab.json"):
        (run / name).write_bytes(MARK + (run / name).read_bytes())
    try:
        assert call("translate", run, stdin=text_of(*SAMPLES["strings"].plain)).status == 0
        prepared = prepare(load_config(run / "config.yaml"), run)
        assert prepared.folder == run and prepared.changes is None
    finally:
        for name in ("config.yaml", "task.json", "model.json", "src.vocab.json"):
            (run / name).write_bytes((run / name).read_bytes().removeprefix(MARK))


@pytest.mark.parametrize("name", ["strings", "translation", "classification"])
def test_served_sources(runs, name: str) -> None:
    run = load_run(runs(name))
    served = ServedRun(name, run, task_of_run(run), SearchOptions(beam_size=2, max_length=4), Limits())
    plain = SAMPLES[name].plain
    sources = [plain[0], "", f"{plain[1]}\t", " \r"]
    (odd_lines,), (expected,) = (
        served.translate([TranslateRequest(run=name, sources=part)], lambda: None) for part in (sources, plain[:2])
    )
    answers = odd_lines["answers"]
    assert [answers[0], {**answers[2], "line": 2}] == expected["answers"]
    assert all(answers[number]["certificate"] == "none" and not answers[number]["hypotheses"] for number in (1, 3))
