"""Output of a training without a terminal: one line per validation, which is never wrapped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tsallis.toolkit.data.corpus import Counts
from tsallis.toolkit.training import Progress
from tsallis.toolkit.training.progress import TrainingDisplay
from tsallis.toolkit.training.schema import Position

VALIDATION = {"dev_loss": 0.5, "dev_accuracy": 0.25, "attention_support": 3.0, "output_support": 2.0}


def test_display_prints_unwrapped_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    folder = Path("runs") / ("long-" * 20)
    with TrainingDisplay(folder, resumed=True, epochs=7) as display:
        display.update(Progress(Position(epoch=0, update=3, step=3), updates=9, loss=1.25, speed=100.0))
        batch = {"accuracy": 0.9, "supported": 1.5, "num_attended": 2.0}
        display.update(Progress(Position(epoch=1, step=9), 9, 1.0, 1234.5, validation=VALIDATION, **batch))
    lines = capsys.readouterr().out.split("\n")
    assert lines[0] == f"Resuming in {folder}" and lines[2:] == [""]
    for words in ("epoch   1", "loss 1.0000", "dev loss 0.5000", "accuracy 25.00%", "attended 3.00", "symbols 2.00"):
        assert words in lines[1]


def test_display_reports_left_out_examples(capsys: pytest.CaptureFixture[str]) -> None:
    left_out = "Left out of 9 examples: 3 longer than data.max_length, 2 with an empty source or target"
    for counts, words in ((None, []), (Counts(9, 9, 0, 0), []), (Counts(9, 4, 2, 3), [left_out])):
        with TrainingDisplay(Path("[red]\x1b[2J"), resumed=False, epochs=1, counts=counts):
            pass
        first, *rest = capsys.readouterr().out.split("\n")
        assert first == "Training in [red]\\x1b[2J" and rest == [*words, ""]


@pytest.mark.parametrize(
    ("select", "words"),
    [
        ("levenshtein", "levenshtein 1.500"),
        ("macro_levenshtein", "macro levenshtein 2.500"),
        ("chrf", "chrf 41.25"),
        ("symbol_accuracy", "symbol accuracy 50.00%"),
        ("sparsemax_score", "sparsemax score 0.7500"),
        ("f1", "f1 12.50%"),
    ],
)
def test_display_shows_the_selected_score(select: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    scores = {"dev_levenshtein": 1.5, "dev_macro_levenshtein": 2.5, "dev_chrf": 41.25, "dev_symbol_accuracy": 0.5}
    validation = {**VALIDATION, **scores, "dev_sparsemax_score": 0.75, "dev_f1": 0.125, "select": select}
    with TrainingDisplay(Path("run"), resumed=False, epochs=1) as display:
        display.update(Progress(Position(epoch=1, step=9), 9, 1.0, 1.0, validation=validation))
    line = capsys.readouterr().out.split("\n")[1]
    assert f"dev {words}" in line and "dev accuracy 25.00%" in line
