"""Parts of a report that the command combines: several runs use the same targets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from small_run import SRC, TGT
from tsallis.report import page
from tsallis.report.page import build_page
from tsallis.search import SearchOptions
from tsallis.toolkit.cli.analyze import _write
from tsallis.toolkit.cli.report_parts import Report, Text, summarize_all
from tsallis.toolkit.data import Vocabulary
from tsallis.toolkit.evaluation.search_results import search_corpus
from tsallis.toolkit.run_analysis import Options
from tsallis.toolkit.tasks.base import Task
from tsallis.toolkit.tasks.registry import task_of
from tsallis.toolkit.training.run_folder import Run, build_model

TASK = {"task": "strings", "languages": None}
LINES = ["scan\tV;PST", "trap\tV;3;SG;PRS", "ape\tV.PTCP;PRS"]


def untrained(folder: Path, seed: int, tgt: Vocabulary = TGT) -> tuple[Run, Task]:
    """Create a run with short outputs, and different parameters for each seed."""
    folder.mkdir()
    sizes = {"src_vocab": len(SRC), "tgt_vocab": len(tgt), "d_model": 8, "heads": 2, "layers": 1, "d_ff": 8}
    description = {"class": "transformer", "arguments": sizes}
    (folder / "model.json").write_text(json.dumps(description))
    (folder / "config.yaml").write_text("version: 1\ndata: {task: strings, train: none.tsv, dev: none.tsv}\n")
    torch.manual_seed(seed)
    return Run(folder, build_model(description).eval(), SRC, tgt, TASK, {}), task_of(TASK)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "lines"
    path.write_text("".join(f"{line}\n" for line in LINES))
    return path


def answers_of(run: Run, task: Task) -> list[list[int]]:
    corpus = task.read(LINES, "lines", run, False).corpus
    results = search_corpus(run.model, corpus, SearchOptions(beam_size=2))
    return [list(result.best.tokens) if result.best else [] for result in results]


def test_all_runs_use_the_first_runs_answers_as_targets(tmp_path: Path, text: Path) -> None:
    runs = [untrained(tmp_path / name, seed) for seed, name in enumerate(("one", "other"))]
    answers = [answers_of(*run) for run in runs]
    assert answers[0] != answers[1]
    summaries, comparisons = summarize_all(runs, "dev", Text.read(text), {}, Options(beam_size=2))
    expected = [("<s>", *(TGT.name(token) for token in answer)) for answer in answers[0]]
    for summary in summaries:
        assert [sentence.text.target for sentence in summary.sentences] == expected
        assert summary.corpus.target_run == "one"
        assert summary.corpus.name == f"{text} (targets: answers of one)"
    assert len(comparisons) == 1  # both runs spell the sentences in the same way
    assert '"target_run":"one"' in build_page(summaries, comparisons)


def test_targets_are_encoded_with_each_runs_vocabulary(tmp_path: Path, text: Path) -> None:
    symbols = [TGT.name(number) for number in range(4, len(TGT))]
    runs = [untrained(tmp_path / "one", 0), untrained(tmp_path / "other", 1, Vocabulary(symbols[::-1]))]
    summaries, _ = summarize_all(runs, "dev", Text.read(text), {}, Options(beam_size=2))
    first, second = ([sentence.text.target for sentence in summary.sentences] for summary in summaries)
    assert first == second


def test_outputs_in_the_lines_are_used_as_references(tmp_path: Path, text: Path) -> None:
    text.write_text("".join(line.replace("\t", "\tscan\t") + "\n" for line in LINES))
    run = untrained(tmp_path / "one", 0)
    (summary,), _ = summarize_all([run], "dev", Text.read(text), {}, Options(beam_size=2))
    assert summary.corpus.target_run is None and summary.corpus.name == str(text)
    assert replace(summary.corpus, target_run="x").to_dict()["target_run"] == "x"


def test_the_command_says_how_many_sentences_are_left_out(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text.write_text("".join(line.replace("\t", "\tscan\t") + "\n" for line in LINES))
    report = Report(*summarize_all([untrained(tmp_path / "one", 0)], "dev", Text.read(text), {}, Options(beam_size=2)))
    out = tmp_path / "page.html"
    capsys.readouterr()
    for most, message in ((10**6, ""), (0, f"tsallis: {out}: the page shows only 1 of 3 sentences")):
        monkeypatch.setattr(page, "NON_ZEROS", most)
        _write(report, out, None)
        errors = capsys.readouterr().err
        assert errors.startswith(message) and bool(errors) == bool(message)
