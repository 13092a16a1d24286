"""Sweeps: the setting in which runs differ, and the scores for each of its values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tsallis.analysis.histories import ValueHistory
from tsallis.errors import InputError
from tsallis.toolkit.run_analysis import SweepRun, sweep


def run(name: str, scores: list[float], seed: int = 1, **settings: Any) -> SweepRun:
    steps = tuple(10 * (i + 1) for i in range(len(scores)))
    model = {f"model.{key}": value for key, value in settings.items()}
    values: dict[str, Any] = {"dev_loss": tuple(1 / score for score in scores), "dev_bleu": tuple(scores)}
    return SweepRun(name, {"training.seed": seed, "model.layers": 2, **model}, ValueHistory(steps, values))


def test_sweep_groups_scores_by_alpha_across_seeds() -> None:
    runs = [
        run("c", [1.0, 5.0, 3.0], 1, output="entmax", output_alpha=1.5),
        run("a", [2.0, 4.0], 1, output="softmax", output_alpha=1.5),  # softmax has alpha 1 and ignores the setting
        run("d", [7.0], 2, output="entmax", output_alpha=1.5),
        run("e", [9.0], 1, output="sparsemax", output_alpha=1.5),
    ]
    result = sweep(runs)
    assert (result.setting, result.score) == ("model.output_alpha", "dev_bleu")
    assert [point.value for point in result.points] == [1.0, 1.5, 2.0]
    middle = result.points[1]
    assert (middle.runs, middle.seeds, middle.scores["dev_bleu"]) == (("c", "d"), (1, 2), (5.0, 7.0))
    assert middle.mean("dev_bleu") == 6 and middle.deviation("dev_bleu") == pytest.approx(2**0.5)
    assert middle.scores["dev_loss"] == (1 / 5, 1 / 7)  # from the same validation
    assert result.points[0].deviation("dev_bleu") is None and result.points[0].mean("none") is None
    assert middle.steps == ((10, 20, 30), (10,)) and middle.curves["dev_bleu"] == ((1.0, 5.0, 3.0), (7.0,))
    spread = json.loads(json.dumps(result.to_dict()))["points"][1]["spread"]["dev_bleu"]
    assert spread["mean"] == 6


def test_attention_and_output_are_swept_together() -> None:
    runs = [run("a", [1.0], attention="entmax", output="entmax", attention_alpha=a, output_alpha=a) for a in (1.2, 1.7)]
    result = sweep(runs)
    assert result.setting == "model.attention_alpha and model.output_alpha"
    assert [point.value for point in result.points] == [1.2, 1.7]


def relu_run(tau: float | str, logged: float, **settings: Any) -> SweepRun:
    settings = {"model.output": "alpha_relu", "model.tau": tau, **settings}
    return SweepRun(f"{tau} {settings}", settings, ValueHistory((10,), {"dev_bleu": (1.0,), "tau": (logged,)}))


def test_estimated_taus_are_read_from_the_log() -> None:
    swept = sweep([relu_run(0.5, 0.5), relu_run("auto", 0.25), relu_run("formula", 1.5), relu_run(1, 1.0)])
    assert swept.setting == "model.tau" and [point.value for point in swept.points] == [0.25, 0.5, 1.0, 1.5]


def test_taus_are_not_swept_if_all_are_estimated() -> None:
    swept = sweep([relu_run("auto", size / 10, **{"model.d": size}) for size in (1, 2)])
    assert swept.setting == "model.d" and [point.value for point in swept.points] == [1, 2]
    with pytest.raises(InputError, match="found no difference except seeds"):
        sweep([relu_run("auto", seed / 10, **{"training.seed": seed}) for seed in (1, 2)])


@pytest.mark.parametrize(("select", "best"), [("levenshtein", 2), ("loss", 2), ("accuracy", 3), (None, 3)])
def test_sweep_uses_the_selection_score_of_training(select: str | None, best: int) -> None:
    values: dict[str, Any] = {
        "dev_loss": (3.0, 1.0, 2.0),
        "dev_accuracy": (0.1, 0.2, 0.3),
        "dev_levenshtein": (3.0, 1.0, 2.0),
        "step": (1.0, 2.0, 3.0),
    }
    runs = [SweepRun(str(i), {"model.d": i}, ValueHistory((1, 2, 3), values, select=select)) for i in (1, 2)]
    swept = sweep(runs)
    assert swept.score == f"dev_{select or 'accuracy'}" and swept.points[0].scores["step"] == (best,)


def test_ties_are_broken_by_the_lowest_loss() -> None:
    history = ValueHistory((1, 2), {"dev_loss": (2.0, 1.0), "dev_bleu": (3.0, 3.0), "output_support": (9.0, 4.0)})
    runs = [SweepRun(str(i), {"model.d": i}, history) for i in (1, 2)]
    assert sweep(runs).points[0].scores["output_support"] == (4.0,)


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([run("a", [1.0])], "at least two runs, got 1"),
        ([run("a", [1.0], 1), run("b", [1.0], 2)], "found no difference except seeds"),
        (
            [run("a", [1.0], d=1, e=1), run("b", [1.0], d=2, e=2)],
            r"one setting, found differences in model\.d, model\.e",
        ),
        (
            [run("a", [1.0], output="entmax"), run("b", [1.0], output="alpha_relu", tau=1)],
            "differ in exactly one setting",
        ),
        ([run("a", [1.0], norm="pre"), run("b", [1.0], norm="post")], r"model\.norm with the values \['pre', 'post'\]"),
        (
            [
                run("a", [1.0], d=1),
                SweepRun("b", {"model.layers": 2, "model.d": 2}, ValueHistory((1,), {"dev_x": (1.0,)})),
            ],
            "b: expected a run validated by dev_bleu, like a, found dev_x",
        ),
    ],
)
def test_runs_that_do_not_form_a_sweep_raise(runs: list[SweepRun], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        sweep(runs)
    assert "\n" not in str(error.value)
