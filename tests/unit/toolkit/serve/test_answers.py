"""Served answers equal those of the library's functions, in batches and alone."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tsallis.analysis import beam_tree, read_model, record, teacher_forced_supports
from tsallis.errors import InputError, OptionError
from tsallis.search import SearchOptions, beam_search, sample
from tsallis.search.sampling import line_seed
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.inference import open_run
from tsallis.toolkit.inference.proofs import AT_LEAST, Rule
from tsallis.toolkit.inference.suggestions import Completer
from tsallis.toolkit.serve.answers import MIN_TIME, ServedRun, _time_shares
from tsallis.toolkit.serve.limits import Limits, Refusal
from tsallis.toolkit.serve.requests import (
    AttentionRequest,
    ProveRequest,
    StepsRequest,
    SuggestRequest,
    TranslateRequest,
)
from tsallis.toolkit.tasks.registry import task_of
from tsallis.toolkit.training import load_run

from .conftest import no_check, sources

LINES = ["scan\tV;PST", "trap\tV;3;SG;PRS", "ape\tV.PTCP;PRS"]
LIMITS = ("prefix", "pattern", "min_length", "max_length", "length_penalty")


def translate(served: ServedRun, *requests: dict[str, Any]) -> list[list[dict[str, Any]]]:
    schemas = [TranslateRequest(**request) for request in requests]
    return [content["answers"] for content in served.translate(schemas, no_check)]


def test_requests_override_the_end_rule_of_the_run(served: ServedRun) -> None:
    competing = replace(served, search=SearchOptions(beam_size=1, end_rule="competing"))
    best = {}
    for ends in (True, False):
        results = beam_search(*sources(served, *LINES), beam_size=1, end_rule="competing" if ends else "every")
        best[ends] = [result.best and list(result.best.tokens) for result in results]
    for more, ends in (({}, True), ({"end_rule": "every"}, False)):
        (answers,) = translate(competing, {"sources": LINES, **more})
        hypotheses = [answer["hypotheses"] for answer in answers]
        assert [list(part[0]["tokens"]) if part else None for part in hypotheses] == best[ends]


def test_requests_default_to_the_limits_of_the_run(served: ServedRun) -> None:
    limits = {"min_length": 2, "max_length": 4, "length_penalty": 0.5}
    limited = replace(served, search=SearchOptions(beam_size=3, **limits))
    plain = replace(served, search=SearchOptions(beam_size=3))
    request = {"sources": LINES, "n_best": 3}
    assert translate(limited, request) == translate(plain, {**request, **limits}) != translate(plain, request)
    own = {"min_length": 0, "max_length": 9, "length_penalty": 0.0}
    assert translate(limited, {**request, **own}) == translate(plain, {**request, **own})
    draws = {"sources": LINES, "mode": "sample", "num_samples": 3}
    assert translate(limited, draws) == translate(plain, {**draws, "max_length": 4})
    for name, value in (("min_length", 5), ("max_length", 1)):
        with pytest.raises(OptionError, match=f"^{name} {value} is (above|below) the run's search"):
            translate(limited, {**request, name: value})


@pytest.mark.parametrize("limits", [{}, {"min_length": 2, "max_length": 9, "length_penalty": 0.5}])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_best": 4, "tree": True},
        {"beam_size": 2, "end_rule": "competing"},
        {"prefix": "s", "max_length": 4},
        {"pattern": ".*[ae].*", "n_best": 2},
        {"pattern": "[^e]*", "mode": "exact", "budget": 40},
        {"min_length": 3, "length_penalty": 1.0, "n_best": 2},
        {"mode": "exact", "n_best": 2, "budget": 40, "tree": True},
        {"mode": "all", "budget": 40},
        {"mode": "all", "n_best": 2, "mass": 0.5, "min_length": 1, "budget": 40},
        {"mode": "all", "time_limit": 0.0},
        {"mode": "sample", "num_samples": 3, "seed": 4},
        {"mode": "sample", "num_samples": 2, "prefix": "s", "max_length": 8, "temperature": 0.5},
        {"min_risk": True},
        {"min_risk": True, "tree": True},
        {"mode": "sample", "num_samples": 4, "min_risk": True},
    ],
)
def test_answers_match_the_command(served: ServedRun, options: dict[str, Any], limits: dict[str, Any]) -> None:
    """The API also returns trees and the numbers of symbols."""
    run, defaults = open_run(served.run.folder), SearchOptions(beam_size=3, **limits)
    vars(run)["search_options"] = defaults  # instead of those in its folder
    if options.get("mode") == "sample":
        limits = {"max_length": limits["max_length"]} if limits else {}
    elif options.get("min_risk"):
        limits = {name: value for name, value in limits.items() if name != "length_penalty"}
    for line in [*LINES[:2], "q\tV;X"]:  # the last line has unknown symbols
        ((answer,),) = translate(replace(served, search=defaults), {"sources": [line], **options})
        (expected,) = run.translate([line], SearchOptions(**{k: v for k, v in options.items() if k != "tree"}))
        assert ("tree" in answer) == ("tree" in options)
        model, src, _ = sources(served, line)
        if (tree := answer.pop("tree", None)) is not None:
            assert tree == beam_tree(model, src, expected.result, served.run.tgt_vocab).to_dict()
        for output, own in zip(answer.get("hypotheses", answer.get("draws")), expected.outputs, strict=True):
            assert output is None or re.fullmatch(options.get("pattern", ".*"), output["text"])
            assert output is None or output.pop("tokens") == own.hypothesis.tokens
        assert answer == expected.to_dict()
        assert answer.get("limits", {}) == {**limits, **{name: options[name] for name in LIMITS if name in options}}


def test_samples_match_the_library(served: ServedRun) -> None:
    ((first, second),) = translate(served, {"sources": LINES[:2], "mode": "sample", "num_samples": 5, "seed": 7})
    draws = sample(*sources(served, *LINES[:2]), 5, seeds=[line_seed(7, line) for line in (1, 2)])
    for answer, expected in zip((first, second), draws, strict=True):
        assert [draw and draw["tokens"] for draw in answer["draws"]] == [draw and draw.tokens for draw in expected]


def test_batched_requests_match_single_requests(served: ServedRun) -> None:
    requests = [{"sources": LINES[:1]}, {"sources": LINES[1:]}, {"sources": LINES[::-1]}]
    together = translate(served, *requests)
    for request, answers in zip(requests, together, strict=True):
        (alone,) = translate(served, request)
        for one, other in zip(answers, alone, strict=True):
            assert one["certificate"] == other["certificate"]
            assert [h["tokens"] for h in one["hypotheses"]] == [h["tokens"] for h in other["hypotheses"]]
            for a, b in zip(one["hypotheses"], other["hypotheses"], strict=True):
                assert a["log_prob"] == pytest.approx(b["log_prob"], abs=1e-5)


def test_suggestions_match_the_completer(served: ServedRun) -> None:
    (content,) = served.suggest([SuggestRequest(source=LINES[0], typed="sc", n_best=3)], no_check)
    source = served.task.read(LINES[:1], "here", served.run, False).corpus.batch([0])
    expected = Completer(served.run, served.task, 3).suggest(source, "sc").to_dict()
    assert content == {"run": "verbs", **expected}


@pytest.mark.parametrize("rule", [{"never": ".*[aeiou]{2}.*"}, {"always": ["a", "e"]}, {"never": "x", "budget": 3}])
def test_proofs_match_the_library(served: ServedRun, rule: dict[str, Any]) -> None:
    (content,) = served.prove([ProveRequest(sources=[*LINES, ""], **rule)], no_check)
    options = SearchOptions(mode="all", budget=rule.pop("budget", None))
    checked = Rule.of(rule.get("never"), rule.get("always"), AT_LEAST, options)
    batch = served.task.read(LINES, "here", served.run, False).corpus.batch([0, 1, 2])
    proofs = checked.prove(served.run, served.task, batch, [1, 2, 3], SearchOptions(max_length=served.limits.longest))
    assert content["answers"] == [proof.to_dict() for proof in proofs]


def test_a_time_limit_of_zero_stops_proofs_at_once(served: ServedRun) -> None:
    (content,) = served.prove([ProveRequest(sources=LINES, never="a", time_limit=0.0)], no_check)
    assert [answer["stopped_by"] for answer in content["answers"]] == ["time"] * len(LINES)


def test_proofs_need_a_normalized_model_with_outputs(served: ServedRun) -> None:
    request = ProveRequest(sources=LINES, never="a")
    relu: Any = SimpleNamespace(model=SimpleNamespace(output=SimpleNamespace(normalized=False)))
    with pytest.raises(Refusal, match="those of alpha-ReLU do not"):
        replace(served, run=relu).prove([request], no_check)
    speaker: Any = SimpleNamespace(searched=False)
    with pytest.raises(Refusal, match="prove can't be used with a language model"):
        replace(served, task=speaker).prove([request], no_check)


@pytest.mark.parametrize("blank", ["", " \t "])
def test_blank_sources_have_no_possible_output(served: ServedRun, blank: str) -> None:
    (suggested,) = served.suggest([SuggestRequest(source=blank, typed="sc")], no_check)
    (expected,) = open_run(served.run.folder).suggest([blank], ["sc"])
    assert suggested == {"run": "verbs", **expected.to_dict()} and not suggested["possible"]
    (steps,) = served.steps([StepsRequest(source=blank)], no_check)
    assert not steps["possible"] and steps["steps"] == [] and steps["tokens"] == []
    (attention,) = served.attention([AttentionRequest(source=blank)], no_check)
    assert attention["heads"] == [] and attention["output"] == ""


def test_steps_match_teacher_forced_supports(served: ServedRun) -> None:
    (content,) = served.steps([StepsRequest(source=LINES[0], output="scaned", n_best=4)], no_check)
    source = served.task.read(LINES[:1], "here", served.run, False).corpus.src[0]
    corpus = Corpus([source], [served.task.spell("scaned", served.run)])
    [(_, expected)] = teacher_forced_supports(served.run.model, corpus.batches(1), served.run.tgt_vocab, 4)
    assert content["output"] == "scaned" and content["vocabulary"] == len(served.run.tgt_vocab)
    for step, other in zip(content["steps"], expected, strict=False):
        assert (step["symbol"], step["support"]) == (other.gold, other.support)
        assert step["prob"] == pytest.approx(other.prob, abs=1e-5)
        assert [word["symbol"] for word in step["words"]] == [word for word, _ in other.words]
        assert all(word["prob"] == pytest.approx(math.exp(word["log_prob"])) for word in step["words"])
    assert content["possible"] == (len(content["steps"]) == 7 and content["steps"][-1]["prob"] > 0)


def test_steps_end_at_the_first_impossible_symbol(served: ServedRun) -> None:
    (content,) = served.steps([StepsRequest(source=LINES[0], tokens=[3, 4])], no_check)  # 3: unknown
    assert not content["possible"] and content["log_prob"] is None and len(content["steps"]) == 1
    assert content["steps"][0]["prob"] == 0 and content["steps"][0]["words"]


def test_steps_default_to_the_best_output(served: ServedRun) -> None:
    (result,) = beam_search(*sources(served, LINES[0]), beam_size=3, n_best=1)
    assert result.best is not None
    (content,) = served.steps([StepsRequest(source=LINES[0])], no_check)
    assert tuple(content["tokens"]) == result.best.tokens
    assert content["log_prob"] == pytest.approx(result.best.log_prob, abs=1e-5)


def test_attention_rows_match_nonzero_recorded_weights(served: ServedRun) -> None:
    (content,) = served.attention([AttentionRequest(source=LINES[0], output="scaned")], no_check)
    run, (head,) = served.run, content["heads"]
    source = served.task.read(LINES[:1], "here", run, False).corpus.src[0]
    corpus = Corpus([source], [served.task.spell("scaned", run)])
    (sentence,) = record(read_model(run.model, run.src_vocab, run.tgt_vocab), corpus.batches(1))
    dense = sentence.weights[0].dense()[0]
    assert head["name"] == "cross.1.1" and head["causal"] is False and head["keys"] == sentence.text.source
    assert head["queries"] == (*"scaned", "</s>") and len(head["rows"]) == 7
    for row, weights in zip(head["rows"], dense, strict=True):
        assert dict(row) == {key: weight for key, weight in enumerate(weights.tolist()) if weight > 0}


@pytest.mark.parametrize(
    ("method", "schema", "message"),
    [
        ("steps", StepsRequest(source=LINES[0], tokens=[2]), "tokens must be from 3 to"),
        ("steps", StepsRequest(source=LINES[0], tokens=[10**6]), "tokens must be from 3 to"),
        ("attention", AttentionRequest(source=LINES[0], heads=["cross.2.1"]), "got 'cross.2.1'"),
        ("translate", TranslateRequest(sources=LINES[:1], prefix="é"), "prefix: the text 'é' contains symbols"),
        ("translate", TranslateRequest(sources=LINES[:1], prefix="scan", max_length=3), "'scan' .* 3 symbols, got 4"),
    ],
)
def test_invalid_tokens_heads_and_prefixes_raise(served: ServedRun, method: str, schema: Any, message: str) -> None:
    with pytest.raises((Refusal, InputError), match=message):
        getattr(served, method)([schema], no_check)


def test_invalid_sources_are_rejected_with_their_line_number(served: ServedRun) -> None:
    with pytest.raises(InputError, match="sources:2: expected source<TAB>features"):
        translate(served, {"sources": [LINES[0], "scan"]})
    with pytest.raises(InputError, match=r"sources:1: expected at most 5 symbols, found 6"):
        translate(replace(served, limits=Limits(symbols=5)), {"sources": ["scan\tV;PST"]})


def test_invalid_languages_are_rejected_without_cli_terms(served: ServedRun) -> None:
    named = replace(served, task=replace(served.task, languages=["deu", "eng"]))  # type: ignore[type-var]
    cases = [
        (served, {"language": "x"}, "language can't be used with a run without languages, got 'x'"),
        (named, {"language": "x"}, "language must be one of deu, eng, got 'x'"),
        (named, {}, "language must be one of deu, eng, got none"),
    ]
    for one, values, message in cases:
        with pytest.raises(Refusal) as refusal:
            translate(one, {"sources": [LINES[0]], **values})
        assert refusal.value.status == 400 and refusal.value.message.startswith(message)
        assert "--" not in refusal.value.message and str(served.run.folder) not in refusal.value.message


def test_default_number_of_choices_respects_the_output_limit(served: ServedRun) -> None:
    for limit, count in ((4, 4), (100, 10)):
        limited = replace(served, limits=Limits(outputs=limit))
        (suggestion,) = limited.suggest([SuggestRequest(source=LINES[0])], no_check)
        assert len(suggestion["next"]) == min(count, suggestion["support"])
        (content,) = limited.steps([StepsRequest(source=LINES[0], output="s")], no_check)
        assert len(content["steps"][0]["words"]) == min(count, content["steps"][0]["support"])


def test_facts_describe_the_run(served: ServedRun) -> None:
    facts = served.facts
    assert (facts["name"], facts["task"], facts["columns"]) == ("verbs", "strings", ["source", "features"])
    assert facts["model"] == "rnn" and facts["arguments"]["d_model"] == 8
    assert facts["parameters"] == sum(p.numel() for p in served.run.model.parameters())
    assert facts["attention"] == [{"kind": "cross", "layer": 1, "alphas": (1.5,)}]
    assert all(value is None or math.isfinite(value) for value in facts["metrics"].values())


def test_min_risk_is_rejected_for_language_models() -> None:
    run = load_run(Path(__file__).parents[3] / "fixtures" / "version1" / "language" / "run")
    texts = ServedRun("texts", run, task_of(run.task), SearchOptions(), Limits())
    with pytest.raises(Refusal, match="min_risk can't be used with a language model"):
        translate(texts, {"sources": ["one"], "mode": "sample", "num_samples": 3, "min_risk": True})


def test_length_limits_above_the_server_limit_can_be_lowered(served: ServedRun) -> None:
    long = replace(served, search=SearchOptions(min_length=600, max_length=1000))
    (answers,) = translate(long, {"sources": LINES[:1], "min_length": 1, "max_length": 5})
    assert len(answers[0]["hypotheses"][0]["tokens"]) in range(1, 6)
    with pytest.raises(OptionError, match="min_length must be at most max_length"):
        translate(long, {"sources": LINES[:1]})


def test_a_search_that_overruns_its_time_shortens_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.0, 4.0, 4.5, 9.0])
    monkeypatch.setattr("tsallis.toolkit.serve.answers.time.monotonic", lambda: next(clock))
    assert [*_time_shares(8.0, 4)] == [2.0, pytest.approx(4 / 3), 1.75, MIN_TIME]


def test_more_heads_than_allowed_are_rejected(served: ServedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tsallis.toolkit.serve.answers.MAX_HEADS", 0)
    with pytest.raises(Refusal, match="at most 0 heads, got 1"):
        served.attention([AttentionRequest(source=LINES[0], output="scan", heads=["all"])], no_check)
