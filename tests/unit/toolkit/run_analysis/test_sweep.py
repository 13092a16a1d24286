"""Sweeps: the setting in which runs differ, and the scores for each of its values."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest

from tsallis.analysis.histories import ValueHistory
from tsallis.errors import IgnoredInputWarning, InputError
from tsallis.toolkit.run_analysis import SweepRun, sweep
from tsallis.toolkit.run_analysis.sweep import ranking_score


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
    scores = {"loss": (3.0, 1.0, 2.0), "accuracy": (0.1, 0.2, 0.3), "levenshtein": (3.0, 1.0, 2.0)}
    values: dict[str, Any] = {**{f"dev_{name}": x for name, x in scores.items()}, "step": (1.0, 2.0, 3.0)}
    runs = [SweepRun(str(i), {"model.d": i}, ValueHistory((1, 2, 3), values, select=select)) for i in (1, 2)]
    swept = sweep(runs)
    assert swept.score == f"dev_{select or 'accuracy'}" and swept.points[0].scores["step"] == (best,)


TEXT = {"dev_loss": (2.0, 1.0), "dev_epsilon_perplexity": (9.0, 8.0), "dev_sparsemax_score": (0.5, 0.6)}
SEARCHED = {"dev_loss": (2.0, 1.0), "dev_accuracy": (0.3, 0.2), "dev_levenshtein": (3.0, 2.0)}
ENTMAX, RELU = {"model.output": "entmax"}, {"model.output": "alpha_relu"}


@pytest.mark.parametrize(
    ("values", "settings", "selects", "score"),
    [
        (TEXT, ({"model.output": "softmax"}, {"model.output": "sparsemax"}), ("loss", "loss"), "sparsemax_score"),
        (TEXT, ({**ENTMAX, "model.output_alpha": 1.2}, ENTMAX), ("loss", "loss"), "sparsemax_score"),
        (TEXT, ({**RELU, "model.tau": 0.1}, {**RELU, "model.tau": 0.2}), ("loss", "loss"), "sparsemax_score"),
        (TEXT, ({"model.tau": 0.1}, {"model.tau": 0.2}), ("loss", "loss"), None),  # only alpha-ReLU uses tau
        (TEXT, ({"model.d": 1}, {"model.d": 2}), ("loss", "loss"), None),
        (SEARCHED, ({"model.output": "softmax"}, {"model.output": "entmax"}), ("loss", "loss"), "accuracy"),
        (SEARCHED, ({"model.output": "softmax"}, {"model.output": "entmax"}), ("levenshtein", "levenshtein"), None),
        (SEARCHED, ({"model.d": 1}, {"model.d": 1}), ("loss", "accuracy"), "accuracy"),
    ],
)
def test_runs_are_compared_by_a_comparable_score(
    values: dict[str, Any], settings: Any, selects: tuple[str, str], score: str | None
) -> None:
    runs = [SweepRun(s, x, ValueHistory((1, 2), values, select=s)) for x, s in zip(settings, selects, strict=True)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        chosen = ranking_score(runs)
    assert chosen == f"dev_{score or selects[0]}" and len(caught) == (score is not None)
    assert all(f"compared by {chosen.removeprefix('dev_')}" in str(warning.message) for warning in caught)


def test_a_sweep_shows_a_comparable_score_of_the_selected_checkpoints() -> None:
    runs = [
        SweepRun(output, {"model.output": output}, ValueHistory((1, 2), SEARCHED, select="loss"))
        for output in ("softmax", "sparsemax")
    ]
    with pytest.warns(IgnoredInputWarning, match=r"model\.tau: compared by accuracy"):
        swept = sweep(runs)
    assert swept.score == "dev_accuracy" and swept.points[0].scores["dev_accuracy"] == (0.2,)


def test_ties_are_broken_by_the_lowest_loss() -> None:
    history = ValueHistory((1, 2), {"dev_loss": (2.0, 1.0), "dev_bleu": (3.0, 3.0), "output_support": (9.0, 4.0)})
    runs = [SweepRun(str(i), {"model.d": i}, history) for i in (1, 2)]
    assert sweep(runs).points[0].scores["output_support"] == (4.0,)


OTHER_SCORE = SweepRun("b", {"model.layers": 2, "model.d": 2}, ValueHistory((1,), {"dev_x": (1.0,)}))


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([run("a", [1.0])], "at least two runs, got 1"),
        ([run("a", [1.0], 1), run("b", [1.0], 2)], "found no difference except seeds"),
        ([run("a", [1.0], d=1, e=1), run("b", [1.0], d=2, e=2)], r"found differences in model\.d, model\.e"),
        ([run("a", [1.0], output="entmax"), run("b", [1.0], output="alpha_relu", tau=1)], "in exactly one setting"),
        ([run("a", [1.0], norm="pre"), run("b", [1.0], norm="post")], r"model\.norm with the values \['pre', 'post'\]"),
        ([run("a", [1.0], d=1), OTHER_SCORE], "validated by different scores, bleu, x; expected another score"),
    ],
)
def test_runs_that_do_not_form_a_sweep_raise(runs: list[SweepRun], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        sweep(runs)
    assert "\n" not in str(error.value)
