"""Runs that copy symbols: their vocabularies, and unknown symbols in inputs and outputs."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from task_runs import config_of, evaluate, train, untrained_run
from tsallis.errors import InputError
from tsallis.models.copying import CopyOutput
from tsallis.search import Certificate, Ensemble, Hypothesis, Result, SearchOptions
from tsallis.symbols import UNK
from tsallis.toolkit.cli.analyze import report_runs
from tsallis.toolkit.cli.input import read_all
from tsallis.toolkit.cli.suggest import _converse
from tsallis.toolkit.data import Vocabulary
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.inference import TextRun
from tsallis.toolkit.inference.suggestions import Completer
from tsallis.toolkit.serve.answers import ServedRun
from tsallis.toolkit.serve.limits import Limits
from tsallis.toolkit.serve.requests import AttentionRequest, StepsRequest, SuggestRequest, TranslateRequest
from tsallis.toolkit.tasks.copying import copied_symbols, copy_unknown, extended, read_unknown
from tsallis.toolkit.tasks.prepared import prepare
from tsallis.toolkit.tasks.registry import task_of
from tsallis.toolkit.tasks.translation import Translation
from tsallis.toolkit.tasks.types import Lines
from tsallis.toolkit.training import Run

TRAIN = "abx\tbad\tV\nba\tab\tV;PST\nxab\tabd\tV\n"  # x occurs only in sources, d only in targets
DEV = "aλb\txλ\tV\n"  # λ is unknown
DATA = {"train": "train", "dev": "dev"}
MODEL = {"d_model": 8, "layers": 1, "dropout": 0.0, "copy": True}
TRANSFORMER = {"architecture": "transformer", "d_model": 8, "heads": 2, "d_ff": 8, "dropout": 0.0, "copy": True}
TRANSFORMER |= {"encoder_layers": 1, "decoder_layers": 1}
ARCHITECTURES = {"rnn": MODEL, "transformer": TRANSFORMER}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train").write_text(TRAIN, encoding="utf-8")
    (tmp_path / "dev").write_text(DEV, encoding="utf-8")
    (tmp_path / "config.yaml").write_text("version: 1\ndata: {embedded: english-verbs}\n", encoding="utf-8")
    return tmp_path


def content_of(folder: Path, model: dict[str, Any]) -> dict[str, Any]:
    data = {"folder": str(folder), **DATA}
    return {"version": 1, "data": data, "model": model, "training": {"epochs": 1, "batch_size": 2}}


def copier(folder: Path, gate: float = 0.0, **model: Any) -> TextRun:
    """Return an untrained run with softmax attention, whose gate has a constant logit."""
    settings = {**MODEL, "attention": "softmax", "output": "sparsemax", **model}
    run = untrained_run(folder, DATA, settings)
    with torch.no_grad():
        run.model.output.gate.weight.zero_()
        run.model.output.gate.bias.fill_(gate)
    return TextRun(run, task_of(run.task))


def test_target_vocabulary_includes_source_symbols_without_tags(folder: Path) -> None:
    run = copier(folder).run
    assert set(run.tgt_vocab.symbols) == {"a", "b", "d", "x"}
    targets = run.model.output.targets.tolist()
    assert len(targets) == len(run.src_vocab)
    for number, target in enumerate(targets):
        name = run.src_vocab.name(number)
        assert (target == -1) == name.startswith("<") and (target == -1 or run.tgt_vocab.name(target) == name)


def test_dev_data_is_encoded_with_the_extended_vocabulary(folder: Path) -> None:
    for copy, unknown in ((True, 0), (False, 2)):
        prepared = prepare(config_of(content_of(folder, {**MODEL, "copy": copy})))
        corpus = prepared.data.dev.corpus
        source, target = ([int(symbol) for symbol in side[0]] for side in (corpus.src, corpus.tgt))
        assert target.count(3) == unknown and source.count(3) == int(not copy)
        assert "λ" not in prepared.data.vocabularies.tgt and "λ" not in prepared.data.vocabularies.src
        if copy:
            model = prepared.build()
            assert model.output.unknown == (target[1],) == (len(prepared.data.vocabularies.tgt),)
            found = Result((Hypothesis(tuple(target), 0.0, (1, 1, 1), (1, 1, 1)),), Certificate("complete", -math.inf))
            measure = prepared.measure()
            assert measure is not None and measure([found])["levenshtein"] == 0


def test_the_target_is_the_first_of_several_answers(folder: Path) -> None:
    (folder / "dev").write_text("aλb\txλ/ab\tV\n", encoding="utf-8")
    data = {"folder": str(folder), **DATA, "answer_separator": "/"}
    prepared = prepare(config_of({"version": 1, "data": data, "model": MODEL}))
    assert [int(symbol) for symbol in prepared.data.dev.corpus.tgt[0]][1:] == [len(prepared.data.vocabularies.tgt)]


def test_symbols_that_cannot_be_copied_are_excluded() -> None:
    characters, phones = Vocabulary(["a"]), Vocabulary(["a"], " ")
    symbols = ["<tag:V>", "uː", "b", "<", "a"]
    assert extended(characters, symbols).symbols == ("a", "b", "<")
    assert extended(phones, symbols).symbols == ("a", "uː", "b", "<")
    assert copied_symbols(Vocabulary(["b", "a"]), characters) == [-1] * 5 + [4]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_trained_copy_run_reopens_and_evaluates(folder: Path, architecture: str) -> None:
    config = config_of(content_of(folder, ARCHITECTURES[architecture]))
    prepared = prepare(config)
    run = train(prepared, folder / "run")
    assert isinstance(run.model.output, CopyOutput) and run.tgt_vocab == prepared.data.vocabularies.tgt
    again = prepare(config, folder / "run")
    assert again.description == prepared.description and again.folder is not None
    task = task_of(run.task)
    report = evaluate(run, task.split(run, config.data, "dev"), beam_size=2)
    assert math.isfinite(report["loss"]) and report["unknown_symbols"] == 1  # the vocabulary of these lines lacks λ
    wide, lines = copy_unknown(task, run, task.split(run, config.data, "dev"))
    assert evaluate(wide, lines, beam_size=2)["unknown_symbols"] == 0


def test_an_unknown_symbol_of_the_source_can_be_output(folder: Path) -> None:
    opened = copier(folder, gate=3.0)
    lines = ["aλb\tV", "ab\tV", "λøλ\tV"]
    plain = copier(folder, gate=3.0)
    options = SearchOptions(mode="sample", num_samples=60, max_length=5, seed=1)
    answers = opened.translate(lines, options)
    drawn = [{symbol for output in answer.outputs if output for symbol in output.text} for answer in answers]
    assert "λ" in drawn[0] and not drawn[1] & {"λ", "ø"} and {"λ", "ø"} <= drawn[2]
    for answer, alone in zip(opened.translate(lines), [plain.translate([line])[0] for line in lines], strict=True):
        assert answer.text == alone.text and answer.certificate == alone.certificate and answer.unknown == 0
        assert answer.score == pytest.approx(alone.score, abs=1e-6)


def test_only_unknown_symbols_of_the_same_source_are_possible(folder: Path) -> None:
    """A symbol of the same source is possible. A symbol of no source or of another one is unknown."""
    opened = copier(folder)
    sources, targets = ["aλb\tV", "aøb\tV", "ab\tV", "λøa\tV"], ["λa", "λa", "øa", "øλ"]
    scores = opened.score(sources, targets)
    assert [score.possible for score in scores] == [True, False, False, True]
    assert scores[0].tokens[0] == "λ" and scores[1].tokens == ("<unk>",) and scores[3].tokens[:2] == ("ø", "λ")
    assert scores[0].log_prob > -math.inf and scores[1].log_prob == -math.inf
    for score, source, target in zip(scores, sources, targets, strict=True):
        (alone,) = opened.score([source], [target])
        assert alone.log_prob == pytest.approx(score.log_prob, abs=1e-6)


def test_copy_probability_of_unknown_symbols_is_their_attention(folder: Path) -> None:
    opened = copier(folder, gate=0.0)
    with torch.no_grad():
        opened.run.model.attention.bilinear.weight.zero_()  # attention is uniform
    (score,) = opened.score(["λaλ\tV"], ["λ"])
    assert score.scores is not None
    # The copy gate has probability 1/2, and two of four source positions have the symbol.
    assert score.scores.log_probs[0] == pytest.approx(math.log(0.25), abs=1e-6)


def test_only_unknown_symbols_extend_the_vocabularies(folder: Path) -> None:
    opened = copier(folder)
    run, lines = copy_unknown(opened.task, opened.run, opened.task.read(["ab\tV"], "x", opened.run, False))
    assert run is opened.run and lines.count == 1
    path = folder / "lines"
    path.write_text("ab\taλ\tV\naλ\taλ\tV;λ\n", encoding="utf-8")
    run, lines = read_all(opened.run, opened.task, path, True)
    assert len(run.src_vocab) == len(opened.run.src_vocab) + 1 and run.tgt_vocab.name(8) == "λ"
    assert [row[1] for row in lines.corpus.tgt] == [3, 8]
    assert opened.task.count_unknown(lines.corpus.src[1]) == 1  # the unknown tag


def test_symbols_known_only_to_the_target_are_copied(folder: Path) -> None:
    opened = copier(folder, gate=30.0)
    (score,) = opened.score(["d\tV"], ["d"])
    assert score.possible and score.tokens[0] == "d"


def test_ensembles_copy_if_every_model_does(folder: Path) -> None:
    opened = copier(folder)
    both = replace(opened, run=replace(opened.run, model=Ensemble([opened.run.model, copier(folder).run.model])))
    assert both.score(["λ\tV"], ["λ"])[0].possible and not opened.score(["a\tV"], ["λ"])[0].possible


def test_density_and_copying_exclude_each_other(folder: Path) -> None:
    with pytest.raises(InputError, match="found density: gaussian; leave density out"):
        untrained_run(folder, DATA, {**MODEL, "density": "gaussian"})


def test_alpha_relu_tau_is_reproducible_when_copying(folder: Path) -> None:
    taus = [untrained_run(folder, DATA, {**MODEL, "output": "alpha_relu"}).model.output.tau for _ in range(2)]
    assert taus[0] == taus[1] and 0 < abs(taus[0]) < 10


def test_any_task_of_sequences_can_copy() -> None:
    """A task without features and with one answer per source needs no code for copying."""
    task, letters = Translation("de", "en"), Vocabulary(["a"], " ")
    lines = Lines(Corpus([[4, UNK]], [[4, UNK]]), ["a z"], ["a z"], [0], 1)
    run, targets, read = read_unknown(task, Run(Path(), None, letters, letters, {}, {}), lines)
    assert run.src_vocab.symbols == run.tgt_vocab.symbols == ("a", "z") and targets == [5]
    assert [list(side[0]) for side in (read.corpus.src, read.corpus.tgt)] == [[4, 5], [4, 5]]


def test_a_served_run_copies_unknown_symbols(folder: Path) -> None:
    """Answers match those of the command, and unknown symbols have the same numbers in all requests."""
    opened = copier(folder, gate=3.0)
    served = ServedRun("x", opened.run, opened.task, SearchOptions(), Limits())
    lines = ["aλb\tV", "ab\tV", "λøλ\tV", "øλ\tV"]
    options: dict[str, Any] = {"mode": "sample", "num_samples": 20, "max_length": 5, "seed": 1}
    requests = [TranslateRequest(sources=part, **options) for part in (lines, lines[2:])]
    answers, others = (content["answers"] for content in served.translate(requests, lambda: None))
    drawn = [{c for draw in answer["draws"] if draw for c in draw["text"]} for answer in answers]
    assert "λ" in drawn[0] and not drawn[1] & {"λ", "ø"} and {"λ", "ø"} <= drawn[2] & drawn[3]
    assert [answer["line"] for answer in others] == [1, 2]
    for line, answer in zip(lines, answers, strict=True):
        assert answer["unknown"] == 0
        for draw in [draw for draw in answer["draws"] if draw]:
            (steps,) = served.steps([StepsRequest(source=line, tokens=[*draw["tokens"]])], lambda: None)
            assert steps["output"] == draw["text"] and steps["possible"]
            assert steps["log_prob"] == pytest.approx(opened.score([line], [draw["text"]])[0].log_prob, abs=1e-6)
    exact = served.translate([TranslateRequest(sources=lines, mode="exact", max_length=3)], lambda: None)[0]["answers"]
    for answer, expected in zip(exact, opened.translate(lines, SearchOptions(mode="exact", max_length=3)), strict=True):
        assert answer["hypotheses"][0]["text"] == expected.text
    (typed,) = served.suggest([SuggestRequest(source="λb\tV", typed="λ")], lambda: None)
    (heads,) = served.attention([AttentionRequest(source="λb\tV", output="λ")], lambda: None)
    assert typed["possible"] and heads["heads"][0]["keys"][1] == "λ"


def test_a_report_shows_copied_symbols(folder: Path) -> None:
    run = train(prepare(config_of(content_of(folder, {**MODEL, "attention": "softmax"}))), folder / "run")
    opened, out, text = TextRun(run, task_of(run.task)), folder / "report.html", folder / "lines"
    text.write_text("aλb\tλ\tV\n", encoding="utf-8")
    report_runs([opened], SearchOptions(beam_size=3), out, text=text, records=folder / "report.json")
    report_runs([opened], SearchOptions(beam_size=3), folder / "dev.html", records=folder / "dev.json")
    for name in ("report", "dev"):
        (sentence,) = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))["runs"][0]["sentences"]
        assert "λ" in sentence["text"]["source"] and "λ" in sentence["text"]["target"]
        assert "λ" in [step["gold"] for step in sentence["steps"]]


def test_suggest_conversation_copies_unknown_symbols(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, typed, printed = copier(folder, gate=3.0), iter(["λ<TAB>V", "λ", ""]), []
    monkeypatch.setattr("builtins.input", lambda _: next(typed, None) or (_ for _ in ()).throw(EOFError))
    monkeypatch.setattr("tsallis.toolkit.cli.suggest.print_fields", lambda *fields: printed.append(fields))
    _converse(Completer(opened.run, opened.task, 3), {})
    assert any(fields[1].startswith("λ") and fields[3] != "impossible" for fields in printed)
