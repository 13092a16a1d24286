"""Runs opened from Python give what the commands print, byte for byte; temperatures, symbols and alignments."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest

from integration.cli.conftest import train_here
from integration.cli.runs import translation
from tsallis.cli.output import print_json
from tsallis.errors import InputError
from tsallis.inference import TextRun, open_run

VERBS = ["walk\tV;PST", "bake\tV;V.PTCP;PRS", "rebel\tV;FOO", "rebel\tV;PST"]
NUMBERS = ["dreiundzwanzig", "", "sieben", "   ", "hundert q"]


@pytest.fixture(scope="module")
def verbs(trained: Path) -> TextRun:
    return open_run(trained)


@pytest.fixture(scope="module")
def numbers(translator: Path) -> TextRun:
    return open_run(translator)


@pytest.fixture(scope="module")
def softmax(tmp_path_factory: pytest.TempPathFactory) -> TextRun:
    """A run that finds an output for every line: softmax gives every output a probability, and every ending counts."""
    folder = tmp_path_factory.mktemp("softmax")
    options = ("model.output=softmax", "search.competing_ends=false", "training.updates=2")
    return open_run(train_here(translation(folder / "data"), folder / "run", *options))


def printed(capsys: pytest.CaptureFixture[str], contents: list[dict[str, Any]]) -> str:
    capsys.readouterr()
    for content in contents:
        print_json(content)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "keywords"),
    [
        ((), {}),
        (("--beam", 3), {"beam_size": 3}),
        (("--nbest", 4), {"n_best": 4}),
        (("--exact", "--budget", 300), {"exact": True, "budget": 300}),
        (
            ("--all", "--budget", 300, "--nbest", 3, "--mass", 0.7),
            {"exhaustive": True, "budget": 300, "n_best": 3, "mass": 0.7},
        ),
        (("--sample", 3, "--seed", 4), {"sample": 3, "seed": 4}),
        (("--sample", 3, "--temperature", 0.5), {"sample": 3, "temperature": 0.5}),
        (("--sample", 5, "--mbr"), {"sample": 5, "mbr": True}),
        (("--mbr",), {"mbr": True}),
        (("--competing-ends",), {"competing_ends": True}),
        (("--every-end", "--nbest", 2), {"competing_ends": False, "n_best": 2}),
        (("--prefix", "w", "--min-length", 2), {"prefix": "w", "min_length": 2}),
        (
            ("--length-penalty", 0.6, "--max-length", 6, "--nbest", 2),
            {"length_penalty": 0.6, "max_length": 6, "n_best": 2},
        ),
        (("--tokens", "--nbest", 2), {"tokens": True, "n_best": 2}),
        (("--tokens", "--sample", 2, "--temperature", 2), {"tokens": True, "sample": 2, "temperature": 2}),
        (("--alignment", "support", "--nbest", 2), {"alignment": "support", "n_best": 2}),
        (("--alignment", "largest", "--mbr"), {"alignment": "largest", "mbr": True}),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_python_gives_what_the_command_prints(
    tsallis, trained: Path, verbs: TextRun, capsys, options: tuple[object, ...], keywords: dict[str, Any]
) -> None:
    done = tsallis("translate", trained, *options, "--json", stdin="".join(f"{line}\n" for line in VERBS))
    answers = verbs.translate(VERBS, **keywords)
    assert printed(capsys, [answer.to_dict() for answer in answers]) == done.stdout
    assert [answer.line for answer in answers] == [1, 2, 3, 4] and sum(answer.unknown for answer in answers) > 0
    best = verbs.translate(VERBS, **{key: value for key, value in keywords.items() if key not in ("tokens", "n_best")})
    if not {"exhaustive", "exact", "sample", "alignment"} & set(keywords):
        plain = [*options]
        for option, values in (("--tokens", 0), ("--nbest", 1)):
            if option in plain:
                del plain[plain.index(option) : plain.index(option) + 1 + values]
        text = tsallis("translate", trained, *plain, stdin="".join(f"{line}\n" for line in VERBS)).stdout
        assert [answer.text for answer in best] == text.splitlines()


def test_translations_are_those_of_the_command_over_several_blocks(
    tsallis, translator: Path, numbers: TextRun, capsys
) -> None:
    lines = NUMBERS * 14  # 70 in blocks of 64, of which 28 hold nothing
    stdin = "".join(f"{line}\n" for line in lines)
    short = ("--max-length", 6)
    best = numbers.translate(lines, max_length=6)
    text = tsallis("translate", translator, *short, stdin=stdin).stdout
    assert [answer.text for answer in best] == text.removesuffix("\n").split("\n")
    empty = best[1]
    assert (empty.text, empty.score, empty.certificate, empty.tokens, empty.outputs) == ("", None, "none", (), ())
    for answer in best:
        assert answer.best is None or answer.text == numbers.run.tgt_vocab.decode(answer.best.hypothesis.tokens)
    draws = tsallis("translate", translator, "--sample", 2, "--json", *short, stdin=stdin).stdout
    assert printed(capsys, [answer.to_dict() for answer in numbers.translate(lines, sample=2, max_length=6)]) == draws


def test_prefixes_are_a_column(tsallis, trained: Path, verbs: TextRun, capsys) -> None:
    prefixes = ["wa", "", "re", "r"]
    stdin = "".join(f"{line}\t{prefix}\n" for line, prefix in zip(VERBS, prefixes, strict=True))
    done = tsallis("translate", trained, "--prefix-column", "--json", stdin=stdin)
    answers = verbs.translate(VERBS, prefixes=prefixes)
    assert printed(capsys, [answer.to_dict() for answer in answers]) == done.stdout
    with pytest.raises(InputError, match=r"^prefixes:2: the beginning '1' holds symbols that"):
        verbs.translate(VERBS[:2], prefixes=["wa", "1"])


def test_scores_are_those_of_the_command(tsallis, trained: Path, translator: Path, verbs, numbers, capsys) -> None:
    forms = ["walked", "baking", "1", ""]
    lines = [
        "\t".join((line.split("\t")[0], form, line.split("\t")[1])) for line, form in zip(VERBS, forms, strict=True)
    ]
    done = tsallis("score", trained, "--json", stdin="".join(f"{line}\n" for line in lines))
    scores = verbs.score(VERBS, forms)
    assert printed(capsys, [score.to_dict() for score in scores]) == done.stdout
    assert [score.to_dict() for score in verbs.score(lines)] == [score.to_dict() for score in scores]
    assert not scores[2].possible and scores[2].log_prob == -math.inf and scores[2].tokens[-1] == "<unk>"
    text = tsallis("score", trained, stdin="".join(f"{line}\n" for line in lines)).stdout.split()
    assert text == [f"{score.log_prob:.6f}" if score.possible else "-inf" for score in scores]
    pairs = ["sieben\tseven", "hundert\tone hundred"] * 33
    done = tsallis("score", translator, "--json", stdin="".join(f"{line}\n" for line in pairs))
    sides = zip(*(pair.split("\t") for pair in pairs), strict=True)
    assert printed(capsys, [score.to_dict() for score in numbers.score(*sides)]) == done.stdout


def test_a_search_reports_the_score_of_its_output(verbs: TextRun) -> None:
    answers = verbs.translate(VERBS, n_best=2)
    for answer, score in zip(answers, verbs.score(VERBS, [answer.text for answer in answers]), strict=True):
        assert score.possible and score.log_prob == pytest.approx(answer.score, abs=1e-4)
        assert score.tokens == (*answer.tokens, "</s>")


@pytest.mark.parametrize(
    "options", [("--nbest", 3), ("--all", "--budget", 300, "--mass", 0.9), ("--sample", 4, "--temperature", 0.6)]
)
def test_symbols_have_log_probabilities_that_sum_up(tsallis, trained: Path, options: tuple[object, ...]) -> None:
    done = tsallis("translate", trained, *options, "--json", "--tokens", stdin="".join(f"{line}\n" for line in VERBS))
    count = 0
    for line in done.stdout.splitlines():
        content = json.loads(line)
        for output in content.get("hypotheses") or [draw for draw in content["draws"] if draw]:
            assert "".join(token["symbol"] for token in output["tokens"]) == output["text"] + "</s>"
            assert sum(token["log_prob"] for token in output["tokens"]) == pytest.approx(output["log_prob"], abs=1e-4)
            assert [token["support"] for token in output["tokens"]] == output["support"]
            count += 1
    assert count > 0


@pytest.mark.parametrize("kind", ["verbs", "numbers", "softmax"])
def test_alignments_are_the_weights_that_look_prints(tsallis, request: pytest.FixtureRequest, kind: str) -> None:
    """Alignments of translations and of forms, by the largest weight of each symbol or by all above zero."""
    run, lines = (request.getfixturevalue(kind), VERBS if kind == "verbs" else NUMBERS)
    stdin = "".join(f"{line}\n" for line in lines)
    looks = [json.loads(x) for x in tsallis("look", run.run.folder, "--weights", stdin=stdin).stdout.splitlines()]
    count = 0
    for links in ("largest", "support"):
        done = tsallis("translate", run.run.folder, "--alignment", links, "--json", stdin=stdin).stdout.splitlines()
        columns = tsallis("translate", run.run.folder, "--alignment", links, stdin=stdin).stdout.split("\n")
        for look, line, text in zip(looks, map(json.loads, done), columns, strict=False):
            if "source" in line:  # the line has something to read
                assert line["source"] == look["source"]
            if not line["hypotheses"]:
                assert text == "\t"
                continue
            (output,) = line["hypotheses"]
            assert text == f"{output['text']}\t{output['alignment']}" and "source" in line
            matrix: dict[int, dict[int, float]] = {}
            for row, column, weight in look["attention"][0]["weights"]:
                matrix.setdefault(row, {})[column] = weight
            end = len(look["target"]) - 1
            pairs = [tuple(map(int, pair.split("-"))) for pair in output["alignment"].split()]
            assert all(target < end for _, target in pairs)
            if links == "support":
                assert {(s, t) for s, t in pairs} == {(c, r) for r, own in matrix.items() if r < end for c in own}
            else:
                assert [target for _, target in pairs] == list(range(end))
                assert all(matrix[t][s] == max(matrix[t].values()) for s, t in pairs)
            count += 1
        assert [i for i, line in enumerate(map(json.loads, done)) if "source" in line] == [
            i for i, line in enumerate(lines) if line.strip()
        ]
    assert kind != "softmax" or count == 2 * sum(bool(line.strip()) for line in lines)


def test_lists_have_an_alignment_in_the_last_column(tsallis, trained: Path) -> None:
    for options, columns in ((("--nbest", 2), 5), (("--sample", 2), 4), (("--mbr",), 2)):
        done = tsallis("translate", trained, *options, "--alignment", "largest", stdin="walk\tV;PST\n")
        assert all(line.count("\t") == columns - 1 and "-0" in line for line in done.stdout.splitlines())


def test_an_ensemble_scores_and_aligns(tsallis, translator: Path, capsys) -> None:
    both = open_run(translator, others=[translator])
    options = ("--with", translator, "--tokens", "--alignment", "support", "--json")
    done = tsallis("translate", translator, *options, stdin="sieben\n")
    answers = both.translate(["sieben"], tokens=True, alignment="support")
    assert printed(capsys, [answer.to_dict() for answer in answers]) == done.stdout


def test_a_low_temperature_draws_what_is_most_probable(tsallis, trained: Path) -> None:
    def draws(*options: object) -> list[dict[str, Any]]:
        done = tsallis("translate", trained, "--sample", 8, "--json", *options, stdin="walk\tV;PST\n")
        content = json.loads(done.stdout)
        assert content.get("temperature") == (options[1] if options else None)
        return [draw for draw in content["draws"] if draw]

    cold, plain, hot = draws("--temperature", 1e-6), draws(), draws("--temperature", 3)
    # A draw can be cut off at the greatest length, and then it is left out.
    assert all({*draw["support"]} == {1} and draw["prob"] == pytest.approx(1) for draw in cold)
    assert len({draw["text"] for draw in cold}) <= 1
    assert draws("--temperature", 1) == plain
    sizes = [{draw["support"][0] for draw in drawn} for drawn in (cold, plain, hot)]  # one first step, one support
    assert all(len(size) <= 1 for size in sizes)
    assert sorted(itertools.chain(*sizes)) == [*itertools.chain(*sizes)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--temperature", 0.5), "--temperature is for --sample"),
        (("--temperature", 1), "--temperature is for --sample"),
        (("--temperature", 0, "--sample", 1), "--temperature must be above 0 and finite, got 0"),
        (("--temperature", "nan", "--sample", 1), "--temperature must be above 0 and finite, got nan"),
        (("--tokens",), "--tokens is for --json"),
        (("--alignment", "all"), "'all' is not one of"),
    ],
)
def test_mistakes(tsallis, trained: Path, options: tuple[object, ...], words: str) -> None:
    errors = tsallis("translate", trained, *options, stdin="walk\tV;PST\n", status=2).stderr
    assert words in errors, errors


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"beam_size": 0}, "beam_size must be a whole number from 1 to 1000, got 0"),
        ({"beam_size": "5"}, "beam_size must be a whole number from 1 to 1000, got '5'"),
        ({"n_best": True}, "n_best must be a whole number"),
        ({"beam_size": 2, "exhaustive": True}, "beam_size is for beam search: exhaustive searches without a beam"),
        ({"seconds": 1}, "seconds is for exhaustive and exact"),
        ({"seconds": -1.0, "exact": True}, "seconds must be at least 0 and finite, got -1.0"),
        ({"length_penalty": 101}, "length_penalty must be from 0 to 100, got 101"),
        ({"length_penalty": "1"}, "length_penalty must be a number, got '1'"),
        ({"mass": 1, "exhaustive": True}, "mass must be above 0 and below 1, got 1"),
        ({"temperature": 0.5}, "temperature is for sample"),
        ({"temperature": math.inf, "sample": 1}, "temperature must be above 0 and finite, got inf"),
        ({"competing_ends": False, "sample": 1}, "competing_ends=False is for beam search"),
        ({"prefix": "a", "prefixes": ["a"] * 4}, "prefix is for all lines, prefixes for each its own"),
        ({"prefixes": ["a"]}, "prefixes: there must be one a line, got 1 for 4 lines"),
        ({"prefix": "1"}, "prefix: the beginning '1' holds symbols that"),
        ({"min_length": 5, "max_length": 4}, "min_length 5 is above max_length 4"),
        ({"language": "dutch"}, "the run knows no languages, 'dutch' was given"),
        ({"images": "x"}, "a strings run takes no images, 'x' was given"),
        ({"alignment": "all"}, "alignment must be largest or support, got 'all'"),
    ],
)
def test_python_refuses_by_its_own_names(verbs: TextRun, keywords: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as error:
        verbs.translate(VERBS, **keywords)
    assert words in str(error.value) and "--" not in str(error.value)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("walk\tV;PST", "lines: expected several texts, found one"),
        (["walk\tV;PST", 5], "lines:2: expected a text, found 5"),
        (["walk\tV;\nPST"], "lines:1: expected one line, found a line break"),
        (["walk\tV;PST", "\ud800\tN"], "lines:2: expected text, found half a surrogate pair"),
        (["walk\tV;PST", "bake"], "lines:2: expected lemma<TAB>tags"),
    ],
)
def test_what_are_no_lines_is_refused(verbs: TextRun, lines: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        verbs.translate(lines)


def test_known_outputs_are_one_a_line(verbs: TextRun) -> None:
    assert verbs.translate([]) == [] == verbs.score([], [])
    for targets, words in (
        (["walked"], "one target a source, got 1 for 4 sources"),
        (["a\tb"] * 4, "targets:1: expected"),
    ):
        with pytest.raises(InputError, match=words):
            verbs.score(VERBS, targets)
    with pytest.raises(InputError, match=r"^sources:2: expected lemma<TAB>form<TAB>tags"):
        verbs.score(["walk\tV;PST", "walk"], ["walked", "walked"])
