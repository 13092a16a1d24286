"""Sweeps: scores of runs that differ in one setting, as a function of this setting, with the spread over seeds."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tsallis.analysis.histories import ON_DEV, Sweep, SweepPoint, ValueHistory
from tsallis.analysis.score_names import rank_score
from tsallis.errors import IgnoredInputWarning, InputError
from tsallis.nn.output import MAP_ALPHAS

SEEDS = ("training.seed", "run_dir")  # settings that may differ between runs with the same value
OUTPUT, ATTENTION, TAU = "model.output", "model.attention", "model.tau"
LOSS = f"{ON_DEV}loss"
SHARED_ALPHA = "model.attention_alpha and model.output_alpha"


@dataclass(frozen=True)
class SweepRun:
    """Run of a sweep.

    Args:
        name: Name of the run's folder.
        settings: Settings of its configuration by path, such as "model.output_alpha".
        history: Logged values over the training.
    """

    name: str
    settings: Mapping[str, Any]
    history: ValueHistory


def sweep(runs: Sequence[SweepRun]) -> Sweep:
    r"""Compute the scores of runs as a function of the one setting in which the runs differ.

    Runs with the same value may differ only in their seeds, which give the spread. Figure 8 of Tezekbayev et al. 2022
    and figure 4 of Peters et al. 2019 are such sweeps. A sweep of alpha can include softmax (:math:`\alpha = 1`) and
    sparsemax (:math:`\alpha = 2`). Attention and output can be swept together, with the same alpha. The scores of a run
    come from its best validation. The score that selected the checkpoint determines the best validation.

    Args:
        runs: Runs of the same task, at least two.

    Returns:
        The points of the sweep.

    Raises:
        InputError: If the runs do not differ in exactly one numeric setting, or have no score in common.

    Example:
        >>> runs = []
        >>> for seed, alpha, bleu in ((1, 1.2, 30.0), (2, 1.2, 31.0), (1, 1.5, 33.0)):
        ...     settings = {"model.output": "entmax", "model.output_alpha": alpha, "training.seed": seed}
        ...     runs.append(SweepRun(f"{alpha}-{seed}", settings, ValueHistory((10,), {"dev_bleu": (bleu,)})))
        >>> swept = sweep(runs)
        >>> swept.setting, [(point.value, point.mean("dev_bleu")) for point in swept.points]
        ('model.output_alpha', [(1.2, 30.5), (1.5, 33.0)])
    """
    if len(runs) < 2:
        raise InputError(f"a sweep needs at least two runs, got {len(runs)}")
    setting, values = _find_setting(runs)
    score = ranking_score(runs)
    points = []
    for value in sorted(set(values)):
        points.append(
            _make_point(value, [run for run, run_value in zip(runs, values, strict=True) if run_value == value])
        )
    return Sweep(setting, score, tuple(points))


def _find_setting(runs: Sequence[SweepRun]) -> tuple[str, list[float]]:
    """Return the one setting in which runs differ, and its value in each run."""
    run_settings = [_effective_settings(run) for run in runs]
    # If tau is "auto" in all runs, its values count as equal, although the estimates differ.
    if len({settings.get(TAU) for settings in run_settings}) > 1:
        for settings, run in zip(run_settings, runs, strict=True):
            if isinstance(settings.get(TAU), str):
                settings[TAU] = run.history.last("tau")
    names = dict.fromkeys(name for settings in run_settings for name in settings)
    differing = [
        name for name in names if any(settings.get(name) != run_settings[0].get(name) for settings in run_settings)
    ]
    alphas = [f"{ATTENTION}_alpha", f"{OUTPUT}_alpha"]
    if sorted(differing) == sorted(alphas) and all(
        settings[alphas[0]] == settings[alphas[1]] for settings in run_settings
    ):
        return SHARED_ALPHA, [settings[alphas[0]] for settings in run_settings]
    if len(differing) != 1:
        found = f"differences in {', '.join(differing)}" if differing else "no difference except seeds"
        raise InputError(f"a sweep needs runs that differ in exactly one setting, found {found}")
    values: list[Any] = [settings.get(differing[0]) for settings in run_settings]
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
        raise InputError(
            f"a sweep needs a setting whose values are numbers, found {differing[0]} with the values {values}"
        )
    return differing[0], list(map(float, values))


def _effective_settings(run: SweepRun) -> dict[str, Any]:
    """Return the settings without seeds. Softmax and sparsemax become alphas; tau is kept only for alpha-ReLU."""
    settings = {name: value for name, value in run.settings.items() if name not in SEEDS}
    for part in (OUTPUT, ATTENTION):
        name = settings.get(part)
        if name in MAP_ALPHAS:
            settings |= {part: "entmax", f"{part}_alpha": MAP_ALPHAS[name]}
    if settings.get(OUTPUT) != "alpha_relu":
        settings.pop(TAU, None)
    return settings


def ranking_score(runs: Sequence[SweepRun]) -> str:
    """Return the logged score for comparing runs: the one that selects their best validation, if it is comparable.

    Scores with different names can't be compared, and neither can losses of different output functions. A warning then
    reports the first other score that all runs have, or that there is none.

    Raises:
        InputError: If the runs have no score in common.
    """
    names = sorted({score_name(run).removeprefix(ON_DEV) for run in runs})
    settings = [_effective_settings(run) for run in runs]
    outputs = {tuple(run.get(name) for name in (OUTPUT, f"{OUTPUT}_alpha", TAU)) for run in settings}
    if len(names) > 1:
        reason = f"the runs are validated by different scores, {', '.join(names)}"
    elif names == ["loss"] and len(outputs) > 1:
        reason = f"losses can't be compared between different values of {OUTPUT}, {OUTPUT}_alpha or {TAU}"
    else:
        return ON_DEV + names[0]
    # The epsilon-perplexity of sparse outputs depends mainly on epsilon.
    shared = [name for name in runs[0].history.values if all(name in run.history.values for run in runs)]
    for name in shared:
        if name.startswith(ON_DEV) and name not in (LOSS, f"{ON_DEV}epsilon_perplexity"):
            warnings.warn(f"{reason}: compared by {name.removeprefix(ON_DEV)}", IgnoredInputWarning, stacklevel=2)
            return name
    if LOSS not in shared:
        raise InputError(f"{reason}; expected another score that all runs have, found none")
    warnings.warn(f"{reason}, but the runs have no other score in common", IgnoredInputWarning, stacklevel=2)
    return LOSS


def score_name(run: SweepRun) -> str:
    """Return the logged score that selects the best validation; default: the first score except the loss."""
    if run.history.select is not None:
        return ON_DEV + run.history.select
    names = [name for name in run.history.values if name.startswith(ON_DEV) and name != LOSS]
    return names[0] if names else LOSS


def _make_point(value: float, runs: Sequence[SweepRun]) -> SweepPoint:
    best = [best_validation(run) for run in runs]
    names = dict.fromkeys(name for run in runs for name in run.history.values)
    curves = {
        name: tuple(run.history.values.get(name, (None,) * len(run.history.steps)) for run in runs) for name in names
    }
    return SweepPoint(
        value,
        tuple(run.name for run in runs),
        tuple(run.settings.get(SEEDS[0]) for run in runs),
        {name: tuple(column[i] for column, i in zip(curves[name], best, strict=True)) for name in names},
        tuple(run.history.steps for run in runs),
        curves,
    )


def best_validation(run: SweepRun) -> int:
    """Return the index of the validation that selects the checkpoint; ties go to the lowest loss."""
    score = score_name(run)
    scores, losses = (run.history.values.get(name, ()) for name in (score, LOSS))

    def judge(number: int) -> tuple[float, float]:
        value = scores[number] if number < len(scores) else None
        other = losses[number] if number < len(losses) else None
        rank = -float("inf") if value is None else rank_score(score.removeprefix(ON_DEV), value)
        return rank, 0.0 if other is None else -other

    return max(range(len(run.history.steps)), key=judge)
