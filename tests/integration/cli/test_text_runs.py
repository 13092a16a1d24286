"""Runs opened in Python give exactly the output of the commands; temperatures, symbols and alignments."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from flags import flags
from integration.cli.conftest import json_lines, train_here
from integration.cli.runs import translation
from tsallis.errors import InputError
from tsallis.search import SearchOptions
from tsallis.toolkit.cli.output import print_json
from tsallis.toolkit.inference import TextRun, open_run

VERBS = ["walk\tV;PST", "bake\tV;V.PTCP;PRS", "rebel\tV;FOO", "rebel\tV;PST"]
NUMBERS = ["dreiundzwanzig", "", "sieben", "   ", "hundert q"]
STDIN = "".join(f"{line}\n" for line in VERBS)


@pytest.fixture(scope="module")
def verbs(trained: Path) -> TextRun:
    return open_run(trained)


@pytest.fixture(scope="module")
def numbers(translator: Path) -> TextRun:
    return open_run(translator)


@pytest.fixture(scope="module")
def softmax(tmp_path_factory: pytest.TempPathFactory) -> TextRun:
    """Train a run that finds an output for every line: softmax makes every output and every ending possible."""
    folder = tmp_path_factory.mktemp("softmax")
    options = ("model.output=softmax", "search.end_rule=every", "training.updates=2")
    return open_run(train_here(translation(folder / "data"), folder / "run", *options))


def printed(capsys: pytest.CaptureFixture[str], contents: list[dict[str, Any]]) -> str:
    capsys.readouterr()
    for content in contents:
        print_json(content)
    return capsys.readouterr().out


def assert_same_but_for_rounding(ours: str, theirs: str) -> None:
    """Assert that JSON lines of the translator are equal; calls may round sums over segmentations differently."""
    real = re.compile(r"-?\d+\.\d+(?:e-?\d+)?|\d+e-\d+")
    assert real.sub("", ours) == real.sub("", theirs)
    numbers, others = ([float(number) for number in real.findall(text)] for text in (ours, theirs))
    assert numbers == pytest.approx(others, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "details"),
    [
        ({}, {}),
        ({"beam_size": 3}, {}),
        ({"n_best": 4}, {}),
        ({"mode": "exact", "budget": 300}, {}),
        ({"mode": "all", "budget": 300, "n_best": 3, "mass": 0.7}, {}),
        ({"mode": "sample", "num_samples": 3, "seed": 4}, {}),
        ({"mode": "sample", "num_samples": 3, "temperature": 0.5}, {}),
        ({"mode": "sample", "num_samples": 5, "min_risk": True}, {}),
        ({"min_risk": True}, {}),
        ({"end_rule": "competing"}, {}),
        ({"end_rule": "every", "n_best": 2}, {}),
        ({"prefix": "w", "min_length": 2}, {}),
        ({"length_penalty": 0.6, "max_length": 6, "n_best": 2}, {}),
        ({"n_best": 2}, {"tokens": True}),
        ({"mode": "sample", "num_samples": 2, "temperature": 2}, {"tokens": True}),
        ({"n_best": 2}, {"alignment": "support"}),
        ({"min_risk": True}, {"alignment": "largest"}),
    ],
    ids=lambda value: " ".join(f"{name}={value[name]}" for name in value),
)
def test_python_translate_matches_the_command(
    tsallis, trained: Path, verbs: TextRun, capsys, options: dict[str, Any], details: dict[str, Any]
) -> None:
    done = tsallis("translate", trained, *flags(**options, **details), "--json", stdin=STDIN)
    answers = verbs.translate(VERBS, SearchOptions(**options), **details)
    assert printed(capsys, [answer.to_dict() for answer in answers]) == done.stdout
    assert [answer.line for answer in answers] == [1, 2, 3, 4] and sum(answer.unknown for answer in answers) > 0
    if "mode" not in options and "alignment" not in details:
        plain = {name: value for name, value in options.items() if name != "n_best"}
        text = tsallis("translate", trained, *flags(**plain), stdin=STDIN).stdout
        assert [answer.text for answer in verbs.translate(VERBS, SearchOptions(**plain))] == text.splitlines()


def test_translations_in_several_blocks_match_the_command(tsallis, translator: Path, numbers: TextRun, capsys) -> None:
    lines = NUMBERS * 14  # 70 lines in blocks of 64; 28 lines are blank
    stdin = "".join(f"{line}\n" for line in lines)
    short = SearchOptions(max_length=6)
    best = numbers.translate(lines, short)
    text = tsallis("translate", translator, *flags(**short.given), stdin=stdin).stdout
    assert [answer.text for answer in best] == text.removesuffix("\n").split("\n")
    empty = best[1]
    assert (empty.text, empty.score, empty.certificate, empty.tokens, empty.outputs) == ("", None, "none", (), ())
    for answer in best:
        assert answer.best is None or answer.text == numbers.run.tgt_vocab.decode(answer.best.hypothesis.tokens)
    drawn = SearchOptions(mode="sample", num_samples=2, max_length=6)
    draws = tsallis("translate", translator, *flags(**drawn.given), "--json", stdin=stdin).stdout
    answers = numbers.translate(lines, drawn)
    assert_same_but_for_rounding(printed(capsys, [answer.to_dict() for answer in answers]), draws)


def test_python_prefixes_match_the_prefix_column(tsallis, trained: Path, verbs: TextRun, capsys) -> None:
    prefixes = ["wa", "", "re", "r"]
    stdin = "".join(f"{line}\t{prefix}\n" for line, prefix in zip(VERBS, prefixes, strict=True))
    done = tsallis("translate", trained, "--prefix-column", "--json", stdin=stdin)
    answers = verbs.translate(VERBS, prefixes=prefixes)
    assert printed(capsys, [answer.to_dict() for answer in answers]) == done.stdout
    with pytest.raises(InputError, match=r"^prefixes:2: the text '1' contains symbols that"):
        verbs.translate(VERBS[:2], prefixes=["wa", "1"])


def test_python_scores_match_the_command(tsallis, trained: Path, translator: Path, verbs, numbers, capsys) -> None:
    forms = ["walked", "baking", "1", ""]
    lines = [line.replace("\t", f"\t{form}\t") for line, form in zip(VERBS, forms, strict=True)]
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
    assert_same_but_for_rounding(printed(capsys, [score.to_dict() for score in numbers.score(*sides)]), done.stdout)


@pytest.mark.parametrize(
    "options",
    [
        {"n_best": 3},
        {"mode": "all", "budget": 300, "mass": 0.9},
        {"mode": "sample", "num_samples": 4, "temperature": 0.6},
    ],
)
def test_token_log_probs_sum_to_the_output_log_prob(tsallis, trained: Path, options: dict[str, Any]) -> None:
    done = tsallis("translate", trained, *flags(**options), "--json", "--tokens", stdin=STDIN)
    count = 0
    for content in json_lines(done.stdout):
        for output in content.get("hypotheses") or [draw for draw in content["draws"] if draw]:
            assert "".join(token["symbol"] for token in output["tokens"]) == output["text"] + "</s>"
            assert sum(token["log_prob"] for token in output["tokens"]) == pytest.approx(output["log_prob"], abs=1e-4)
            assert [token["support"] for token in output["tokens"]] == output["support"]
            count += 1
    assert count > 0


@pytest.mark.parametrize("kind", ["verbs", "numbers", "softmax"])
def test_alignments_match_the_weights_of_look(tsallis, request: pytest.FixtureRequest, kind: str) -> None:
    """Alignments link each symbol to the source by its largest weight or by all weights above zero."""
    run, lines = (request.getfixturevalue(kind), VERBS if kind == "verbs" else NUMBERS)
    stdin = "".join(f"{line}\n" for line in lines)
    looks = json_lines(tsallis("look", run.run.folder, "--weights", stdin=stdin).stdout)
    count = 0
    for links in ("largest", "support"):
        done = tsallis("translate", run.run.folder, "--alignment", links, "--json", "--tokens", stdin=stdin)
        contents = json_lines(done.stdout)
        columns = tsallis("translate", run.run.folder, "--alignment", links, stdin=stdin).stdout.split("\n")
        for look, line, text in zip(looks, contents, columns, strict=False):
            if not line["hypotheses"]:
                assert text == "\t" and look["text"] is None
                continue
            (output,) = line["hypotheses"]
            words, _, alignment = text.rpartition("\t")
            assert words == output["text"] and line["source"] == look["source"]
            if [token["symbol"] for token in output["tokens"]] != look["target"]:
                continue  # `look` shows another segmentation of the same text
            matrix: dict[int, dict[int, float]] = {}
            for row, column, weight in look["attention"][0]["weights"]:
                matrix.setdefault(row, {})[column] = weight
            end = len(look["target"]) - 1
            for shown in (alignment, output["alignment"]):
                pairs = [(int(t), int(s)) for s, t in (pair.split("-") for pair in shown.split())]
                assert all(t < end for t, _ in pairs)
                if links == "support":  # calls may round weights near zero differently
                    differing = {*pairs} ^ {(t, s) for t, own in matrix.items() if t < end for s in own}
                    assert all(matrix[t].get(s, 0) < 1e-5 for t, s in differing)
                else:
                    assert [t for t, _ in pairs] == list(range(end))
                    assert all(matrix[t][s] > max(matrix[t].values()) - 1e-5 for t, s in pairs)
            count += 1
        assert ["source" in content for content in contents] == [bool(line.strip()) for line in lines]
    assert kind != "softmax" or count == 2 * sum(bool(line.strip()) for line in lines)


def test_alignments_are_printed_in_the_last_column(tsallis, trained: Path) -> None:
    for options, columns in ((("--n-best", 2), 5), (("--mode", "sample", "--num-samples", 2), 4), (("--min-risk",), 2)):
        done = tsallis("translate", trained, *options, "--alignment", "largest", stdin="walk\tV;PST\n")
        assert all(line.count("\t") == columns - 1 and "-0" in line for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("options", "details", "words"),
    [
        ({"prefix": "a"}, {"prefixes": ["a"] * 4}, "use either prefix or prefixes, not both: got prefix 'a'"),
        ({}, {"prefixes": ["a"]}, "prefixes must have one text per line, got 1 texts for 4 lines"),
        ({"prefix": "1"}, {}, "prefix: the text '1' contains symbols that"),
        ({}, {"prefixes": ["1"] * 4}, "prefixes:1: the text '1' contains symbols that"),
        ({}, {"language": "dutch"}, "language can't be used with a run without languages, got 'dutch'"),
        ({}, {"alignment": "all"}, "alignment must be 'largest' or 'support', got 'all'"),
    ],
)
def test_python_errors_use_python_argument_names(
    verbs: TextRun, options: dict[str, Any], details: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError) as error:
        verbs.translate(VERBS, SearchOptions(**options), **details)
    assert words in str(error.value) and "--" not in str(error.value)


def test_search_options_as_keywords_raise(verbs: TextRun) -> None:
    with pytest.raises(TypeError, match="n_best"):
        verbs.translate(VERBS, n_best=2)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("walk\tV;PST", "lines must be a list of texts, got a single text"),
        (["walk\tV;PST", 5], "lines:2: expected a text, found 5"),
        (["walk\tV;\nPST"], "lines:1: expected one line, found a line break"),
        (["walk\tV;PST", "\ud800\tN"], "lines:2: expected text, found a lone surrogate"),
        (["walk\tV;PST", "bake"], "lines:2: expected source<TAB>features"),
    ],
)
def test_invalid_lines_are_rejected(verbs: TextRun, lines: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        verbs.translate(lines)


def test_score_requires_one_target_per_source(verbs: TextRun) -> None:
    assert verbs.translate([]) == [] == verbs.score([], [])
    for targets, words in ((["walked"], "got 1 targets for 4 sources"), (["a\tb"] * 4, "targets:1: expected")):
        with pytest.raises(InputError, match=words):
            verbs.score(VERBS, targets)
    with pytest.raises(InputError, match=r"^sources:2: expected source<TAB>target<TAB>features"):
        verbs.score(["walk\tV;PST", "walk"], ["walked", "walked"])


def test_alignments_do_not_depend_on_training_mode(trained: Path) -> None:
    run = open_run(trained)
    before = [answer.best.alignment for answer in run.translate(VERBS, alignment="support") if answer.best]
    torch.nn.Module.train(run.run.model)
    for module in run.run.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.9
    after = [answer.best.alignment for answer in run.translate(VERBS, alignment="support") if answer.best]
    assert before and before == after and run.run.model.training


@pytest.mark.parametrize("ensemble_with", ["runs/x", Path("runs/x")])
def test_a_single_path_for_an_ensemble_is_rejected(trained: Path, ensemble_with: Any) -> None:
    with pytest.raises(InputError, match=r"ensemble_with must be a list of run folders, got a single one: .*runs/x"):
        open_run(trained, ensemble_with=ensemble_with)
