"""The commands on a language model: training, scores, sampling, beam search, and rejected input."""

from __future__ import annotations

import itertools
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from flags import flags
from integration.cli.conftest import train_here
from pages import DOCS
from run_seed import SEED
from tsallis.errors import InputError
from tsallis.search import Certificate, Result, SearchOptions
from tsallis.toolkit.inference import open_run

CONFIG = """\
version: 1
data: {task: language, embedded: german-numbers, length: 64}
model: {d_model: 16, heads: 2, layers: 1, d_ff: 16, alpha: learned}
training: {epochs: 100, updates: 60, max_tokens: 512, learning_rate: 0.01, validate_updates: 30, checkpoint_every: 20,
  seed: SEED}
"""


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speaker")
    (folder / "config.yaml").write_text(CONFIG.replace("SEED", str(SEED)))
    return train_here(folder / "config.yaml", folder / "run")


def test_validation_logs_language_model_scores(speaker: Path) -> None:
    events = [json.loads(line) for line in (speaker / "log.jsonl").read_text().splitlines()]
    scores = [event for event in events if "dev_loss" in event]
    assert len(scores) == 2
    for event in scores:
        assert event["dev_epsilon_perplexity"] > 1 and 0 < event["dev_sparsemax_score"] < 1
        assert 0 < event["dev_gold_in_support"] <= 1 and "perplexity" not in event


def test_evaluate_scores_texts_without_search(tsallis, speaker: Path, tmp_path: Path) -> None:
    whole = json.loads(tsallis("evaluate", speaker, "--json", "--manifest", tmp_path / "m.json").stdout)
    assert whole["epsilon_perplexity"] > 1 and "perplexity" not in whole and "beam_size" not in whole
    assert "beam_size" not in json.loads((tmp_path / "m.json").read_text())["evaluation"]
    table = tsallis("evaluate", speaker, "--split", "dev", "--length", 200).stdout
    assert "epsilon-perplexity" in table and "sparsemax score" in table
    rows = json.loads(tsallis("evaluate", speaker, "--split", "dev", "--length", 200, "--json").stdout)
    assert rows["length"] == 200 and rows["samples"] > 1
    (tmp_path / "texts").write_text("am\nder\n")
    assert json.loads(tsallis("evaluate", speaker, tmp_path / "texts", "--json").stdout)["samples"] == 2
    for options in (("--beam-size", 2), ("--mode", "beam"), ("--mode", "exact"), ("--exact",), ("--out", "out.jsonl")):
        assert f"leave out {options[0]}\n" in tsallis("evaluate", speaker, *options, status=2).stderr
    errors = tsallis("evaluate", speaker, tmp_path / "texts", "--length", 9, status=2).stderr
    assert "--length applies only to a split" in errors


def test_generate_samples_texts_after_prompts(tsallis, speaker: Path) -> None:
    options = ("--num-samples", 3, "--max-length", 12)
    drawn = tsallis("generate", speaker, *options, stdin="am\n\nder\n").stdout.split("\n")[:-1]
    assert len(drawn) == 9
    numbers, drawn = ([line.split("\t")[column] for line in drawn] for column in range(2))
    assert numbers == [number for number in "123" for _ in range(3)]
    assert all(text.startswith("am") for text in drawn[:3]) and all(text.startswith("der") for text in drawn[6:])
    assert drawn[:3] == tsallis("generate", speaker, *options, "--prefix", "am").stdout.split("\n")[:-1]
    others = tsallis("generate", speaker, *options, "--seed", 1, stdin="am\n\nder\n").stdout.split("\n")[:-1]
    assert drawn != [line.split("\t")[1] for line in others]
    (line,) = tsallis("generate", speaker, *options, "--prefix", "am", "--json").stdout.splitlines()
    content = json.loads(line)
    assert content["line"] == 1 and [text["text"] for text in content["texts"]] == drawn[:3]
    for text in content["texts"]:
        assert len(text["support"]) == len(text["text"]) - 2 + text["ended"] and text["log_prob"] <= 0


def test_temperature_changes_samples(tsallis, speaker: Path) -> None:
    def texts(*options: object) -> list[dict[str, Any]]:
        done = tsallis("generate", speaker, "--prefix", "", "--num-samples", 8, "--max-length", 12, "--json", *options)
        drawn: list[dict[str, Any]] = json.loads(done.stdout)["texts"]
        return drawn

    plain, cold, hot = texts(), texts("--temperature", 1e-9), texts("--temperature", 4)
    assert texts("--temperature", 1.0) == plain
    assert len({text["text"] for text in cold}) == 1 and {*cold[0]["support"]} == {1} and cold[0]["log_prob"] == 0
    assert all(drawn["support"][0] >= plain[0]["support"][0] for drawn in hot)
    assert {text["text"] for text in hot} != {text["text"] for text in plain}
    for options, words in (
        (("--mode", "beam", "--temperature", 0.5), "--temperature applies only to --mode sample, got --mode beam"),
        (("--temperature", 0), "--temperature must be above 0 and finite, got 0"),
    ):
        assert words in tsallis("generate", speaker, *options, stdin="a\n", status=2).stderr


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_samples": 3, "seed": 4},
        {"num_samples": 2, "max_length": 5, "temperature": 0.5},
        {"mode": "beam", "max_length": 60},
        {"mode": "beam", "beam_size": 2, "max_length": 60, "end_rule": "competing"},
        {"mode": "beam", "beam_size": 1, "max_length": 1, "end_rule": "every"},
    ],
)
def test_python_generate_matches_the_command(tsallis, speaker: Path, options: dict[str, Any]) -> None:
    prompts = ["am", "", "der @"]
    stdin = "".join(f"{p}\n" for p in prompts)
    lines = tsallis("generate", speaker, *flags(**options), "--json", stdin=stdin).stdout
    answers = open_run(speaker).generate(prompts, SearchOptions(**{"mode": "sample", **options}))
    assert json.loads(json.dumps([answer.to_dict() for answer in answers])) == [*map(json.loads, lines.splitlines())]
    assert [answer.prompt for answer in answers] == prompts
    for answer in answers:
        assert answer.text == (answer.texts[0].text if answer.texts else "")
        assert (answer.certificate == "none") == (answer.result is None or answer.result.best is None)
        for text in answer.texts:
            assert len(text.support) == len(text.tokens) + text.ended
            assert text.text == answer.prompt + "".join(text.tokens)


def test_python_generate_supports_no_prompt_and_many_prompts(speaker: Path) -> None:
    run = open_run(speaker)
    (answer,) = run.generate(options=SearchOptions(mode="sample", num_samples=2))
    assert answer.line == 1 and len(answer.texts) == 2
    short = SearchOptions(mode="sample", max_length=3)
    many = run.generate([""] * 70, short)
    assert [answer.line for answer in many] == [*range(1, 71)]
    assert many[0].text == run.generate(options=short)[0].text and len({answer.text for answer in many}) > 5
    assert run.generate([]) == []
    run.__dict__["search_options"] = SearchOptions(max_length=2)  # the configuration may set this
    assert max(len(text.tokens) for answer in run.generate([""] * 9) for text in answer.texts) == 2


def test_examples_of_the_run_folder_page_run(
    speaker: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "english-verbs").symlink_to(trained)
    (tmp_path / "runs" / "tiny-language").symlink_to(speaker)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", (DOCS / "run-folder.md").read_text(encoding="utf-8"), re.S):
        exec(block, namespace)
    assert len(namespace["answer"].texts) == 3 and namespace["known"].possible in (True, False)
    assert sum(line.startswith("am ") for line in capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "exact"}, "mode must be 'sample' or 'beam', got 'exact'"),
        ({"mode": "beam", "n_best": 2}, "n_best can't be used with a language model"),
        ({"prefix": "a"}, "prefix can't be used with a language model"),
    ],
)
def test_python_generate_rejects_unsupported_options(speaker: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as refusal:
        open_run(speaker).generate(options=SearchOptions(**{"mode": "sample", **options}))
    assert str(refusal.value) == words


def test_python_generate_rejects_arguments_of_wrong_type(speaker: Path) -> None:
    with pytest.raises(InputError, match="prompts must be a list of texts, got a single text: "):
        open_run(speaker).generate("am")
    with pytest.raises(TypeError, match=r"options must be tsallis\.search\.SearchOptions, got {'seed': 1}"):
        open_run(speaker).generate(options={"seed": 1})


def test_prompts_are_printed_unchanged(tsallis, speaker: Path, tmp_path: Path) -> None:
    prompts = ("am", "am @ zw", "@", "am  zw", "am ", " am", "ab\u2028c")
    for number, (run, prompt) in enumerate(itertools.product((speaker, with_subwords(tmp_path)), prompts)):
        # The options alternate: there are seven prompts and two runs, so each prompt gets both.
        options = ("--mode", "beam", "--beam-size", 2) if number % 2 else ()
        done = tsallis("generate", run, *options, "--max-length", 3, "--prefix", prompt, "--json")
        (line, _) = done.stdout.split("\n")
        content = json.loads(line)
        text = content["text"] if "text" in content else content["texts"][0]["text"]
        assert text.startswith(prompt) or not text, (prompt, text)
        assert "<unk>" not in text and "\u2047" not in text and "am  " not in text.replace("am  zw", "")
    done = tsallis("generate", speaker, stdin="am\n@@\n")
    assert f"2 source symbols are unknown to {speaker} and read as <unk>: '@' on line 2\n" in done.stderr


def test_empty_beam_search_prints_certificate_none(tsallis, speaker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = Result((), Certificate("none", -0.5))
    monkeypatch.setattr("tsallis.search.beam_search", lambda *arguments, **options: [nothing])
    assert tsallis("generate", speaker, "--prefix", "am", "--mode", "beam", "--max-length", 1).stdout == "\t0\tnone\n"


def test_beam_search_and_score_agree(tsallis, speaker: Path) -> None:
    for prefix in ("", "a", "am", "der "):
        options = ("--prefix", prefix, "--mode", "beam", "--beam-size", 2, "--max-length", 60)
        content = json.loads(tsallis("generate", speaker, *options, "--json").stdout)
        assert content["certificate"] in ("optimal", "complete", "bounded", "none")
        text, prob, kind = tsallis("generate", speaker, *options).stdout.rstrip("\n").split("\t")
        assert (text, kind) == (content["text"], content["certificate"])
        if not text:  # the search found no text, or the empty one
            continue
        scored = float(tsallis("score", speaker, stdin=f"{text}\n").stdout)
        own = scored if not prefix else content["log_prob"]  # with a prefix, only the text after it counts
        assert content["log_prob"] == pytest.approx(own, abs=1e-4) and scored <= own + 1e-4
        assert math.log(float(prob)) == pytest.approx(own, abs=1e-4)


def test_end_rule_comes_from_the_run_or_an_option(tsallis, speaker: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(speaker, tmp_path / "run"))
    text = (run / "config.yaml").read_text(encoding="utf-8")
    assert "\n  end_rule: every" in text
    (run / "config.yaml").write_text(text.replace("\n  end_rule: every", "\n  end_rule: competing"))
    options, prompts = ("--mode", "beam", "--beam-size", 1, "--max-length", 60), "\na\nm\nth\n"
    every, competing = (
        tsallis("generate", speaker, *options, "--end-rule", rule, stdin=prompts).stdout
        for rule in ("every", "competing")
    )
    assert tsallis("generate", speaker, *options, stdin=prompts).stdout == every != competing
    assert tsallis("generate", run, *options, stdin=prompts).stdout == competing


def with_subwords(folder: Path) -> Path:
    """Train a run with subwords for one update."""
    (folder / "config.yaml").write_text(CONFIG.replace("SEED", str(SEED)))
    overrides = "data.subwords.size=120", "training.updates=1", "model.output=softmax"
    return train_here(folder / "config.yaml", folder / "run", *overrides)


def test_analyze_writes_a_page_of_heads_and_outputs(tsallis, speaker: Path, tmp_path: Path) -> None:
    options = ("--limit", 12, "--sentences", 3, "--importance", 2, "--json", tmp_path / "all.json")
    tsallis("analyze", speaker, "-o", tmp_path / "page.html", *options)
    assert "decoder" in (tmp_path / "page.html").read_text(encoding="utf-8")
    (run,) = json.loads((tmp_path / "all.json").read_text(encoding="utf-8"))["runs"]
    assert [(head["kind"], head["head"]) for head in run["heads"]] == [("decoder", 0), ("decoder", 1)]
    assert all(head["increase"] is not None for head in run["heads"]) and run["corpus"]["sentences"] == 12
    assert run["outputs"]["steps"] == run["corpus"]["tgt_symbols"] + 12 and run["empty"] is None
    for sentence in run["sentences"]:
        assert sentence["text"]["source"] == [] and len(sentence["steps"]) == len(sentence["text"]["target"])
        assert sentence["answer"] is None and sentence["tree"] is None
    (tmp_path / "texts").write_text("am\nder\n")
    options = ("--text", tmp_path / "texts", "--json", tmp_path / "2.json")
    tsallis("analyze", speaker, "-o", tmp_path / "two.html", *options)
    (run,) = json.loads((tmp_path / "2.json").read_text(encoding="utf-8"))["runs"]
    assert [sentence["text"]["target"] for sentence in run["sentences"]] == [["<s>", *"am"], ["<s>", *"der"]]
    for option in ("--searched", "--beam-size"):
        refusal = tsallis("analyze", speaker, "-o", tmp_path / "no.html", option, 1, status=2).stderr
        assert f"the task language uses no search: leave out {option}" in refusal


def test_unsupported_commands_and_options_are_rejected(tsallis, speaker: Path, trained: Path, tmp_path: Path) -> None:
    for command, words in {
        "translate": "use tsallis generate to continue texts",
        "prove": "use tsallis generate to continue texts",
        "look": "use tsallis analyze --text FILE",
    }.items():
        rule = ("--never", "a") if command == "prove" else ()
        (line,) = tsallis(command, speaker, *rule, status=2).stderr.splitlines()
        expected = f"the command {command} does not support runs of the task language: {words}"
        assert line == f"tsallis: {speaker}: {expected}"
    assert "only language models generate texts" in tsallis("generate", trained, status=2).stderr
    for arguments, words in (
        (("--mode", "beam", "--seed", 1), "--seed applies only to --mode sample"),
        (("f", "--prefix", "a"), "use either --prefix or FILE, not both"),
    ):
        assert words in tsallis("generate", speaker, *arguments, status=2).stderr
