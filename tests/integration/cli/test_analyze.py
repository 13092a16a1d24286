"""`tsallis analyze`: the files that it writes, and its error messages."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import tsallis.toolkit.cli as cli
from integration.cli.conftest import Run, train_here
from run_seed import SEED
from tsallis.analysis import density, output_statistics, read_model, record
from tsallis.errors import InputError
from tsallis.toolkit.tasks.registry import load_config, task_of
from tsallis.toolkit.training import load_run

LABELS = {"neg": "bad", "pos": "fine"}


def analyze(*arguments: object) -> Any:
    return cli.app(["analyze", *map(str, arguments)], standalone_mode=False)


def data_of(page: Path) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert match
    return dict(json.loads(match[1]))


def test_page_and_json_match_python_functions(translator: Path, report: tuple[Path, list[dict[str, Any]]]) -> None:
    run = load_run(translator)
    corpus = task_of(run.task).split(run, load_config(translator / "config.yaml").data, "dev").corpus
    recording = record(read_model(run.model, run.src_vocab, run.tgt_vocab), corpus.batches(32))
    exact = density(recording).heads
    outputs = output_statistics(run.model, corpus.batches(32))
    page, (summary, _) = report
    shown, _ = data_of(page)["runs"]
    assert [head["density"] for head in summary["heads"]] == pytest.approx([head.density for head in exact], abs=1e-12)
    assert [head["density"] for head in shown["heads"]] == pytest.approx([head.density for head in exact], abs=1e-8)
    assert summary["outputs"]["support"] == outputs.support
    assert summary["corpus"]["sentences"] == len(corpus) == len(summary["sentences"])
    assert summary["importance"][0] > 0 and all(head["increase"] is not None for head in summary["heads"])
    dense = {sentence.text.index: sentence for sentence in recording}
    for sentence in summary["sentences"]:
        for weights, own in zip(sentence["weights"], dense[sentence["text"]["index"]].weights, strict=True):
            assert weights["columns"] == own.columns.tolist()
            assert np.allclose(weights["values"], own.values, atol=1e-6)
        assert len(sentence["steps"]) == len(sentence["text"]["target"])


def test_runs_with_equal_folder_names_get_distinct_names(translator: Path, tmp_path: Path) -> None:
    """The page and the JSON file must use different names for them; the page is written to the target of a link."""
    runs = [Path(shutil.copytree(translator, tmp_path / name / "run")) for name in "ab"]
    (tmp_path / "page.html").symlink_to(tmp_path / "pages" / "report.html")
    sizes = "--sentences", 1, "--limit", 2
    analyze(*runs, "-o", tmp_path / "page.html", "--json", tmp_path / "all.json", *sizes)
    assert (tmp_path / "page.html").is_symlink()
    data, records = data_of(tmp_path / "pages" / "report.html"), json.loads((tmp_path / "all.json").read_text())
    for content in (data, records):
        assert [run["name"] for run in content["runs"]] == ["a/run", "b/run"]
        assert [(both["first"], both["second"]) for both in content["comparisons"]] == [("a/run", "b/run")]


def test_text_without_targets_uses_answers_of_the_first_run(translator: Path, tmp_path: Path, capsys: Any) -> None:
    text = tmp_path / "text"
    text.write_text("zweiundzwanzig\n\nelf §\n", encoding="utf-8")
    analyze(translator, "-o", tmp_path / "page.html", "--text", text)
    (run,) = data_of(tmp_path / "page.html")["runs"]
    assert run["corpus"]["name"] == f"{text} (targets: answers of run)" and run["corpus"]["sentences"] == 2
    warning = capsys.readouterr().err
    assert re.fullmatch(rf"tsallis: .*: unknown symbols \(\d+\) of {translator} are shown as <unk>\n", warning)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{run}", "--split", "dev", "--text", "{run}/config.yaml"], "use either --split or --text, not both"),
        (["{run}", "--split", "other"], "split must be train, dev or test, got 'other'"),
        (["{run}", "-o", "{run}"], "expected a file to write, found a folder"),
        (["{run}", "-o", "{run}/config.yaml/page.html"], "config.yaml: expected a folder, found a file"),
        (["{run}/none"], "not a run folder"),
        (["{run}", "--text", "{run}/none"], "can't be read"),
    ],
)
def test_invalid_input_writes_nothing(translator: Path, tmp_path: Path, arguments: list[str], words: str) -> None:
    if "-o" not in arguments:
        arguments = [*arguments, "-o", str(tmp_path / "page.html")]
    before = {path: path.stat().st_mtime_ns for path in translator.rglob("*")}
    with pytest.raises(InputError, match=re.escape(words)) as error:
        analyze(*(argument.format(run=translator) for argument in arguments))
    assert "\n" not in str(error.value) and list(tmp_path.iterdir()) == []
    assert {path: path.stat().st_mtime_ns for path in translator.rglob("*")} == before


@pytest.fixture
def swept(translator: Path, tmp_path: Path) -> list[Path]:
    """Create three runs with different scores; they differ in output alpha, two of them only in their seeds."""
    folder, runs = tmp_path / "runs", []
    for number, (alpha, seed, bleu) in enumerate([(1.2, 1, 30.0), (1.2, 2, 32.0), (1.5, 1, 40.0)]):
        run = folder / f"run{number}"
        shutil.copytree(translator, run)
        config = yaml.safe_load((run / "config.yaml").read_text())
        config["model"]["output_alpha"] = alpha
        config["training"]["seed"] = seed
        (run / "config.yaml").write_text(yaml.safe_dump(config))
        events = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
        events = [{**event, "dev_bleu": bleu} if "dev_bleu" in event else event for event in events]
        (run / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        runs.append(run)
    return runs


def test_sweep_scores_are_grouped_by_the_varied_setting(swept: list[Path], tmp_path: Path) -> None:
    options = ["--sweep", "--json", tmp_path / "all.json"]
    for run in swept:  # a sweep needs no model
        shutil.rmtree(run / "checkpoints")
    analyze(*swept, "-o", tmp_path / "page.html", *options)
    content = json.loads((tmp_path / "all.json").read_text())
    assert content["runs"] == [] and content["sweep"]["setting"] == "model.output_alpha"
    first, second = content["sweep"]["points"]
    assert (first["value"], first["seeds"], first["scores"]["dev_bleu"]) == (1.2, [1, 2], [30.0, 32.0])
    assert first["spread"]["dev_bleu"]["mean"] == 31 and second["spread"]["dev_bleu"] == {"mean": 40, "deviation": None}
    assert data_of(tmp_path / "page.html")["sweep"]["points"][1]["value"] == 1.5


def test_the_folder_of_a_sweep_stands_for_its_runs(swept: list[Path], tmp_path: Path) -> None:
    folder, (named, whole) = swept[0].parent, (tmp_path / "named.html", tmp_path / "whole.html")
    (folder / "sweep.json").write_text("[]")
    (folder / "empty").mkdir()
    analyze(*swept, "-o", named, "--sweep")
    analyze(folder, "-o", whole, "--sweep")
    assert data_of(whole) == data_of(named)
    for runs, out, words in ((folder, swept[0] / "log.jsonl", "log.jsonl"), (folder / "empty", whole, "empty: ")):
        with pytest.raises(InputError, match=words):
            analyze(runs, "-o", out, "--sweep")


def test_sweep_runs_with_equal_folder_names_get_distinct_names(swept: list[Path], tmp_path: Path) -> None:
    runs = [Path(shutil.move(run, tmp_path / f"{run.name}s" / "run")) for run in swept]
    analyze(*runs, "-o", tmp_path / "page.html", "--sweep")
    points = data_of(tmp_path / "page.html")["sweep"]["points"]
    assert [point["runs"] for point in points] == [["run0s/run", "run1s/run"], ["run2s/run"]]


def test_analyze_detects_runs_that_form_a_sweep(swept: list[Path], tmp_path: Path) -> None:
    analyze(*swept[1:], "-o", tmp_path / "page.html", "--sentences", 2, "--limit", 4)
    data = data_of(tmp_path / "page.html")
    assert len(data["runs"]) == 2 and [point["value"] for point in data["sweep"]["points"]] == [1.2, 1.5]
    assert data["comparisons"][0]["kinds"][0]["mean"] == 0  # both runs have the same model


REVIEWS = """\
version: 1
data: {{task: classification, folder: {folder}, train: train, dev: dev, min_count: 1}}
model: {{d_model: 8, num_basis: 8}}
training: {{epochs: 1, batch_size: 8, seed: {seed}}}
"""


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    folder = tmp_path / "reviews"
    folder.mkdir()
    lines = [f"{label}\ta {word} film {'indeed ' * i}.\n" for i in range(12) for label, word in LABELS.items()]
    for split in ("train", "dev"):
        (folder / split).write_text("".join(lines))
    (folder / "config.yaml").write_text(REVIEWS.format(folder=folder, seed=SEED))
    return train_here(folder / "config.yaml", folder / "run")


def test_classifier_runs_get_a_page_of_densities(classifier: Path, translator: Path, tmp_path: Path) -> None:
    page, records = tmp_path / "page.html", tmp_path / "all.json"
    twin = shutil.copytree(classifier, tmp_path / "twins" / "run")
    analyze(classifier, twin, "-o", page, "--json", records, "--limit", 10, "--sentences", 4)
    one, other = data_of(page)["densities"]
    assert (one["name"], other["name"]) == ("reviews/run", "twins/run")
    assert one["shown"] == other["shown"] and len(one["shown"]) == 4 and one["examples"] == 10
    (first, _) = json.loads(records.read_text())["densities"]
    assert first["size"] == pytest.approx(one["size"]) and first["shown"][0]["words"][:2] == ["a", "bad"]
    text = tmp_path / "text"
    text.write_text("a fine film\nanother one\n")
    analyze(classifier, "-o", page, "--text", text)
    (run,) = data_of(page)["densities"]
    assert run["accuracy"] is None and run["shown"][0]["gold"] == ""
    with pytest.raises(InputError, match=r"expected a run of the task classification, like .*, found translation"):
        analyze(classifier, translator, "-o", tmp_path / "other.html")
    assert not (tmp_path / "other.html").exists()


def test_rare_tokens_need_the_training_data(translator: Path, tmp_path: Path, capsys: Any) -> None:
    analyze(translator, "-o", tmp_path / "page.html", "--limit", 4)
    (run,) = data_of(tmp_path / "page.html")["runs"]
    assert run["training_pairs"] == 120 and all(head["scores"]["rare"] is not None for head in run["heads"])
    other = tmp_path / "other"
    shutil.copytree(translator, other)
    config = yaml.safe_load((other / "config.yaml").read_text())
    config["data"]["train"] = "elsewhere"
    (other / "config.yaml").write_text(yaml.safe_dump(config))
    capsys.readouterr()
    analyze(other, "-o", tmp_path / "page.html", "--limit", 4)
    (run,) = data_of(tmp_path / "page.html")["runs"]
    assert run["training_pairs"] is None and all(head["scores"]["rare"] is None for head in run["heads"])
    assert re.fullmatch(r"tsallis: rare tokens get no score.*elsewhere.*\n", capsys.readouterr().err)


def test_interrupted_analyze_keeps_existing_files(
    translator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    import tsallis.report.page as page

    def interrupt(*_: Any, **__: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(page, "build_page", interrupt)
    (tmp_path / "page.html").write_text("before")
    result = analyze(translator, "-o", tmp_path / "page.html", "--json", tmp_path / "all.json", "--limit", 2)
    assert result == 130 and capsys.readouterr().err == "tsallis: interrupted, nothing was written\n"
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert (tmp_path / "page.html").read_text() == "before"


def test_damaged_logs_give_a_warning(translator: Path, tsallis: Run, tmp_path: Path) -> None:
    run = Path(shutil.copytree(translator, tmp_path / "run"))
    files = "-o", tmp_path / "page.html", "--json", tmp_path / "all.json", "--limit", 2, "--sentences", 1
    events = (run / "log.jsonl").read_text().splitlines()
    last = max(n for n, line in enumerate(events) if "dev_loss" in line)
    events[last] = re.sub('"dev_loss": [^,]+', '"dev_loss": NaN', events[last])
    (run / "log.jsonl").write_text("\n".join(events) + "\n")
    assert "log.jsonl" not in tsallis("analyze", run, *files).stderr
    (content,) = json.loads((tmp_path / "all.json").read_text(), parse_constant=pytest.fail)["runs"]
    assert content["values"]["values"]["dev_loss"][-1] is None
    (run / "log.jsonl").write_text("\n".join([*events, "garbage"]) + "\n")
    notes = tsallis("analyze", run, *files).stderr
    assert f"{run / 'log.jsonl'}" in notes and "the report has no history of this run" in notes


def test_importance_of_recurrent_models_is_refused(trained: Path, tsallis: Run) -> None:
    assert "--importance needs a Transformer" in tsallis("analyze", trained, "--importance", 2, status=2).stderr


def test_searched_option_limits_the_number_of_answers(translator: Path, tsallis: Run, tmp_path: Path) -> None:
    files = "-o", tmp_path / "page.html", "--json", tmp_path / "all.json"
    for searched in (3, 0):
        tsallis("analyze", translator, *files, "--searched", searched, "--sentences", 2)
        (run,) = json.loads((tmp_path / "all.json").read_text())["runs"]
        assert [answer["index"] for answer in run["answers"]] == list(range(searched))
        assert run["empty"] is None if not searched else run["empty"]["sentences"] == searched


def test_text_with_outputs_on_later_lines_is_refused(translator: Path, tsallis: Run, tmp_path: Path) -> None:
    """If a reference were read as part of the source, the answer would change without a warning."""
    (tmp_path / "text").write_text("zwei\nelf\televen\n")
    for command in (("analyze", translator, "--text"), ("look", translator), ("translate", translator)):
        message = tsallis(*command, tmp_path / "text", status=2).stderr
        assert "text:2: expected text, found 2 columns: 'elf\\televen'" in message
    message = tsallis("look", translator, "--weights", stdin="elf\televen\n", status=1).stderr
    assert "standard input:1: expected text, found 2 columns" in message
