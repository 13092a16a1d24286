"""Texts with several segmentations into subwords, compared with probabilities in closed form."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from task_runs import untrained_run
from tsallis.search import Ensemble, SearchOptions
from tsallis.symbols import EOS
from tsallis.toolkit.evaluation.outputs import output_records
from tsallis.toolkit.inference import TextRun
from tsallis.toolkit.tasks.attention_weights import describe_attention
from tsallis.toolkit.tasks.registry import task_of
from tsallis.toolkit.tasks.scoring import evaluate_outputs

LINES = ["low lower", "new newer", "low new"] * 4
# Probabilities of every step, independent of the previous steps.
PROBS = {"</s>": 0.4, "▁low": 0.2, "low": 0.1, "▁": 0.1, "l": 0.1, "o": 0.05, "w": 0.05}
# Leading spaces are not visible in a text. Any number of them sums to a factor of 1 / (1 - 0.1).
FIRST, LATER = (0.2 + 0.1 + 0.1 * 0.05 * 0.05) / 0.9, 0.2 + 0.1 * (0.1 + 0.1 * 0.05 * 0.05)
KNOWN = {"": 0.4 / 0.9, "low": FIRST * 0.4, "low low": FIRST * LATER * 0.4, "l": 0.1 / 0.9 * 0.4, "low ": FIRST * 0.04}
SOURCE = "low lower"


def set_probs(model: Any, vocabulary: Any, probs: dict[str, float]) -> None:
    """Set the same probabilities for every step; sparsemax leaves a distribution unchanged."""
    numbers = {vocabulary.name(number): number for number in range(len(vocabulary))}
    with torch.no_grad():
        model.output.weight.zero_()
        model.output.bias.fill_(-10)
        for name, prob in probs.items():
            model.output.bias[numbers[name]] = prob


@pytest.fixture(scope="module")
def make_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TextRun]:
    folder = tmp_path_factory.mktemp("texts")
    for name in ("train.de", "train.en", "dev.de", "dev.en"):
        (folder / name).write_text("".join(f"{line}\n" for line in LINES))
    text = "version: 1\ndata: {task: translation, embedded: german-english-numbers}\nsearch: {end_rule: every}\n"
    (folder / "config.yaml").write_text(text)
    inputs = {"task": "translation", "train": "train", "dev": "dev", "cache": str(folder / "cache")}
    data = {**inputs, "subwords": {"size": 24, "joint": False}}

    def make(*members: dict[str, float]) -> TextRun:
        runs = [untrained_run(folder, data, {"d_model": 4, "layers": 1, "output": "sparsemax"}) for _ in members]
        for run, probs in zip(runs, members, strict=True):
            set_probs(run.model, run.tgt_vocab, probs)
        model = runs[0].model if len(runs) == 1 else Ensemble([run.model for run in runs])
        return TextRun(replace(runs[0], model=model), task_of(runs[0].task))

    return make


@pytest.fixture(params=["one", "ensemble"])
def run(request: pytest.FixtureRequest, make_run: Callable[..., TextRun]) -> TextRun:
    if request.param == "one":
        return make_run(PROBS)
    other = {**PROBS, "▁low": 0.3, "</s>": 0.3}
    return make_run(other, {name: 2 * prob - other[name] for name, prob in PROBS.items()})


OPTIONS = [
    {},
    {"n_best": 6, "beam_size": 30},
    {"mode": "exact", "n_best": 2},
    {"mode": "all", "budget": 200, "n_best": 8},
    {"mode": "all", "n_best": 2, "mass": 0.6},
    {"mode": "sample", "num_samples": 9, "seed": 3},
    {"min_risk": True, "beam_size": 8},
    {"prefix": "low", "n_best": 4},
    {"min_length": 2, "n_best": 4},
    {"length_penalty": 0.5, "n_best": 4},
    {"end_rule": "competing", "n_best": 3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
def test_text_probabilities_sum_over_all_segmentations(run: TextRun, options: dict[str, Any]) -> None:
    (answer,) = run.translate([SOURCE], SearchOptions(**options), tokens=True, alignment="largest")
    outputs = [output for output in answer.outputs if output is not None]
    texts = [output.text for output in outputs]
    assert outputs and ("num_samples" in options or len(set(texts)) == len(texts))
    known = [output for output in outputs if output.text in KNOWN]
    assert known
    for output in known:
        assert output.prob == pytest.approx(KNOWN[output.text], rel=1e-5)
        assert run.run.tgt_vocab.decode(output.hypothesis.tokens) == output.text
    for output, score in zip(outputs, run.score([SOURCE] * len(texts), texts), strict=True):
        assert score.possible and score.exact and output.log_prob == pytest.approx(score.log_prob, abs=1e-5)
    if answer.result is not None and answer.result.certificate.proves_best and not options.get("length_penalty"):
        assert texts[0] == ""  # the most probable text
    content = json.loads(json.dumps(answer.to_dict()))
    for output in [*content.get("hypotheses", []), *content.get("draws", [])]:
        total = math.fsum(math.exp(part["log_prob"]) for part in output["segmentations"])
        assert output["prob"] == pytest.approx(total)


def test_exact_search_proves_the_most_probable_text(run: TextRun) -> None:
    (answer,) = run.translate([SOURCE], SearchOptions(mode="exact"))
    assert answer.text == "" and answer.certificate == "optimal"
    (answer,) = run.translate([SOURCE], SearchOptions(mode="exact", prefix="low"))
    assert answer.text == "low" and answer.certificate in ("bounded", "none")  # without a prefix, another is best


@pytest.mark.parametrize("options", [{"beam_size": 60}, {"mode": "exact"}, {"mode": "all", "budget": 600}])
@pytest.mark.parametrize("prefix", ["", "l", "lo", "low ", "low l"])
def test_prefixes_may_end_inside_a_subword(run: TextRun, prefix: str, options: Any) -> None:
    options = SearchOptions(n_best=9, **options)
    (whole,) = run.translate([SOURCE], options)
    (answer,) = run.translate([SOURCE], replace(options, prefix=prefix))
    expected = {text: prob for text, prob in KNOWN.items() if text.startswith(prefix)}
    found = {output.text: output.prob for output in answer.outputs if output is not None}
    assert found and all(text.startswith(prefix) for text in found)
    assert {text: found[text] for text in expected} == pytest.approx(expected, rel=1e-5)
    assert prefix or found == {output.text: output.prob for output in whole.outputs}


@pytest.mark.parametrize("prefix", ["lo", "low low l"])
def test_draws_start_with_the_text_of_the_prefix(run: TextRun, prefix: str) -> None:
    (answer,) = run.translate([SOURCE], SearchOptions(mode="sample", num_samples=50, prefix=prefix))
    texts = [output.text for output in answer.outputs if output is not None]
    assert len(texts) == 50 and all(text.startswith(prefix) for text in texts)


def test_prefixes_longer_than_the_default_length_are_followed(run: TextRun) -> None:
    prefix = " ".join(["low"] * 40)
    (answer,) = run.translate([SOURCE], SearchOptions(prefix=prefix))
    assert answer.text.startswith(prefix)


def test_prefixes_of_lines_are_independent(run: TextRun) -> None:
    options, prefixes = SearchOptions(n_best=4, beam_size=9), ["low", "", "l", "low"]
    answers = run.translate([SOURCE] * 4, options, prefixes=prefixes)
    for answer, prefix in zip(answers, prefixes, strict=True):
        (alone,) = run.translate([SOURCE], options, prefixes=[prefix])
        assert [(x.text, x.prob) for x in answer.outputs] == [(x.text, x.prob) for x in alone.outputs]


def test_scores_of_texts_match_closed_forms(run: TextRun) -> None:
    texts = [*KNOWN, "new", "x", "lo"]
    scores = run.score([SOURCE] * len(texts), texts)
    expected = [math.log(KNOWN[text]) if text in KNOWN else -math.inf for text in texts[:-1]]
    expected.append(math.log(0.1 * 0.05 / 0.9 * 0.4))
    assert [score.log_prob for score in scores] == pytest.approx(expected, abs=1e-5)
    # The model has no subwords of `new`, but any number of spaces may precede it. The search stops without a proof.
    assert [score.possible for score in scores] == [True] * len(KNOWN) + [None, False, True]
    for score in scores:
        content = score.to_dict()
        assert content["exact"] is (score.possible is not None) and content["possible"] is score.possible
        assert content["missing"] < 1e-8 and (content["impossible"] is None) is (score.possible is True)
    # The tokens are those of the most probable segmentation.
    assert scores[1].tokens == ("▁low", "</s>") and scores[1].scores.log_prob < scores[1].log_prob


def test_texts_are_possible_if_any_segmentation_is(make_run: Callable[..., TextRun]) -> None:
    """The vocabulary encodes `low` as one subword, which this model never outputs."""
    run = make_run({"</s>": 0.5, "low": 0.25, "l": 0.15, "o": 0.05, "w": 0.05})
    prob = (0.25 + 0.15 * 0.05 * 0.05) * 0.5
    (score,) = run.score([SOURCE], ["low"])
    assert [run.run.tgt_vocab.name(number) for number in run.run.tgt_vocab.encode("low")] == ["▁low"]
    assert score.possible and score.log_prob == pytest.approx(math.log(prob), abs=1e-6)
    (answer,) = run.suggest([SOURCE], ["lo"])
    assert answer.possible and math.exp(answer.log_prob) == pytest.approx(0.25 + 0.15 * 0.05)
    assert {s.text for s in answer.next} >= {"low"} and len({(s.text, s.ends) for s in answer.next}) == len(answer.next)
    assert not run.suggest([SOURCE], ["new"])[0].possible

    lines = run.task.read([f"{SOURCE}\tlow", f"{SOURCE}\tnew", f"{SOURCE}\t"], "lines", run.run, gold=True, empty=True)
    report, results = evaluate_outputs(run.task, run.run, lines, SearchOptions(beam_size=5))
    assert report["gold_possible"] == pytest.approx(2 / 3) and report["empty_possible"] == 1
    answers = [[reference] for reference in lines.references]
    records = [*output_records(run.run.model, run.run.tgt_vocab, lines.corpus, answers, results)]
    assert [record["reference"]["possible"] for record in records] == [True, False, True]
    assert records[0]["reference"]["log_prob"] == pytest.approx(math.log(prob), abs=1e-6)
    for record in records:  # each probability sums over all segmentations
        (of_text,) = run.score([SOURCE], [record["output"]["text"]])
        assert record["output"]["log_prob"] == pytest.approx(of_text.log_prob, abs=1e-6)
    assert records[2]["output"]["right"] and records[2]["empty"]["log_prob"] == pytest.approx(math.log(0.5))


def test_next_characters_match_enumeration_of_all_outputs(make_run: Callable[..., TextRun]) -> None:
    """The typed text may end inside a subword."""
    probs, longest = {"</s>": 0.8, "▁low": 0.08, "low": 0.04, "▁": 0.03, "l": 0.03, "o": 0.01, "w": 0.01}, 5
    run = make_run(probs)
    vocabulary: Any = run.run.tgt_vocab
    numbers = {number: probs.get(vocabulary.name(number), 0.0) for number in range(EOS + 1, len(vocabulary))}
    allowed = [number for number, prob in numbers.items() if prob]
    texts: dict[str, float] = {}
    for length in range(longest + 1):
        for tokens in itertools.product(allowed, repeat=length):
            text = vocabulary.decode(tokens)
            texts[text] = texts.get(text, 0.0) + math.prod(numbers[token] for token in tokens) * 0.8
    for typed in ("", "l", "lo", "low", "low ", "low l"):
        joint: dict[str, float] = {}
        for text, prob in texts.items():
            if text.startswith(typed):
                character = text[len(typed) : len(typed) + 1]
                joint[character] = joint.get(character, 0.0) + prob
        total = math.fsum(joint.values())
        (found,) = run.suggest([SOURCE], [typed])
        assert found.characters is not None and math.exp(found.log_prob) == pytest.approx(total, abs=1e-4)
        expected = {character: prob / total for character, prob in joint.items()}
        longer = 0.2 ** (longest + 1) / total  # upper bound on the share of longer outputs
        assert found.characters.missing < 1e-6 and found.characters.probs == pytest.approx(expected, abs=longer)
        content = json.loads(json.dumps(found.to_dict()))["characters"]
        assert content == {"probs": found.characters.probs, "missing": found.characters.missing}


def test_all_commands_return_the_same_best_text(run: TextRun) -> None:
    (answer,) = run.translate([SOURCE])
    read = run.task.read([SOURCE], "lines", run.run, gold=False)
    options: Any = {"beam_size": 5}
    shown = describe_attention(run.task, run.run, read, **options)
    assert [content["text"] for _, content in shown] == [answer.text]
    gold = run.task.read([f"{SOURCE}\tlow"], "lines", run.run, gold=True)
    _, (result,) = evaluate_outputs(run.task, run.run, gold, SearchOptions(beam_size=5))
    assert run.run.tgt_vocab.decode(result.best.tokens) == answer.text


def test_labels_and_characters_are_not_ambiguous(make_run: Callable[..., TextRun]) -> None:
    from tsallis.toolkit.data import Vocabulary
    from tsallis.toolkit.tasks.classification import Classification
    from tsallis.toolkit.tasks.strings import Strings

    labels, characters = Vocabulary(["good", "goodness"]), Vocabulary(["a", "b", "ä"])
    assert Classification.ambiguous_text(object.__new__(Classification), labels) is None
    assert Strings(None).ambiguous_text(characters) is None
    assert make_run(PROBS).text is not None


def test_served_log_probs_match_text_scores(make_run: Callable[..., TextRun]) -> None:
    pytest.importorskip("starlette")
    from tsallis.toolkit.serve.answers import ServedRun
    from tsallis.toolkit.serve.limits import Limits
    from tsallis.toolkit.serve.requests import StepsRequest, TranslateRequest

    run = make_run(PROBS)
    served = ServedRun("run", run.run, run.task, SearchOptions(beam_size=5, end_rule="every"), Limits())
    for options in ({"n_best": 4}, {"mode": "sample", "num_samples": 4, "seed": 1}, {"n_best": 2, "tree": True}):
        (content,) = served.translate([TranslateRequest(sources=[SOURCE], **options)], lambda: None)
        (answer,) = content["answers"]
        outputs = answer.get("hypotheses") or answer["draws"]
        for output in outputs:
            (score,) = run.score([SOURCE], [output["text"]])
            assert output["log_prob"] == pytest.approx(score.log_prob, abs=1e-5) and output["segmentations"]
        assert len({output["text"] for output in outputs}) == len(outputs) or "draws" in answer
    (content,) = served.steps([StepsRequest(source=SOURCE, output="low")], lambda: None)
    assert content["output"] == "low" and content["text"]["exact"]
    assert content["text"]["log_prob"] == pytest.approx(math.log(KNOWN["low"]), abs=1e-5)
    assert [step["symbol"] for step in content["steps"]] == ["▁low", "</s>"]


def test_continuations_sum_over_segmentations_of_one_text(make_run: Callable[..., TextRun]) -> None:
    from tsallis.toolkit.inference.continuations import continue_prompt, search_texts

    run = make_run(PROBS)
    batch = run.task.read([SOURCE], "lines", run.run, gold=False).corpus.batch([0])
    vocabulary = run.run.tgt_vocab
    prompt = vocabulary.encode("low")  # replaces the source: the model with constant probabilities ignores it
    batch = replace(batch, src=torch.tensor([prompt]), src_lengths=torch.tensor([len(prompt)]))
    options = SearchOptions(beam_size=40, max_length=3)
    (result,) = search_texts(run.run, run.task, batch, options, run.search_options)
    text = continue_prompt(run.run, "low", prompt, result.best).text
    assert text == "low" and result.best.prob == pytest.approx(0.4) and result.certificate.proves_best
    spelled = {vocabulary.decode([*prompt, *sequence.tokens]) for sequence in result.best.segmentations}
    assert spelled == {"low"}  # a space after a prompt is visible


@pytest.mark.parametrize(
    ("log_probs", "missing", "fields"),
    [
        ((-1.0, -2.0), 0.0, [f"{math.log(math.exp(-1) + math.exp(-2)):.6f}"]),
        ((-1.0,), 1e-9, ["-1.000000"]),
        ((-1.0,), 0.01, ["-1.000000", "lower bound"]),
        ((), 0.01, [f"{math.log(0.01):.6f}", "upper bound"]),
        ((), 0.0, ["-inf"]),
    ],
)
def test_printed_bounds_are_labelled(log_probs: tuple[float, ...], missing: float, fields: list[str]) -> None:
    from tsallis.search import Hypothesis, TokenScores
    from tsallis.search.texts import TextProbability
    from tsallis.toolkit.cli.score import _total
    from tsallis.toolkit.inference import TextScore

    sequences = tuple(Hypothesis((7 + i,), log_prob, (1, 1), (1, 1)) for i, log_prob in enumerate(log_probs))
    scores = TokenScores((7, 2), (-1.0, 0.0), (1, 1), None)
    score = TextScore(1, ("a", "</s>"), scores, TextProbability(sequences, math.log(missing) if missing else -math.inf))
    assert _total(score) == fields
