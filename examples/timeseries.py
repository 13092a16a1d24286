"""Irregular time series: continuous attention to raw time stamps beside discrete attention to a grid of hours.

A folder holds the data of the PhysioNet / Computing in Cardiology Challenge 2012, stays in an intensive care unit: for
each set its observations `set-a.csv` (RecordID,minute,parameter,value; plain or packed by xz or gzip) and what became
of the patients, `Outcomes-a.csv`. A value of -1 is unknown. The first set trains, without a share that says when to
stop; the second one tests. What is to be told is the column In-hospital_death.

    python examples/timeseries.py --data data/physionet2012 --model continuous --transform sparsemax --out result.json

`--model discrete`: each parameter's last value, whether it was observed and for how long it was not, hour by hour,
read by a GRU with attention to its states. `--model continuous`: no grid and no recurrence. Each parameter is a signal
fitted to its observations at their own times, and densities read it; the result says where they look, in hours, and
`--page FILE` draws them.

Writes what came out as JSON, also to the standard output; progress goes to the standard error. Seconds are those of the
processor; with the default sizes either model takes less than half a minute of one core, most of it to read the data.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from timeseries_data import (
    Events,
    IrregularSeries,
    Scaling,
    descriptors,
    read_events,
    read_labels,
)
from timeseries_models import GridClassifier, SignalClassifier, fitted
from torch import Tensor, nn

import tsallis
from tsallis.analysis import SignalDensity, signal_densities
from tsallis.continuous import ValueFunction, gaussian_grid
from tsallis.errors import InputError
from tsallis.report import build_page
from tsallis.toolkit.data.io import find_packed, write_atomic
from tsallis.toolkit.data.splits import hold_out

MINUTES = 2880  # of the first 48 hours
MEASURED_ONCE = ("Age", "Gender", "Height")
UNIT = "ICUType"  # a category
UNKNOWN = -1
TESTED = 512  # series of a batch without gradients
DENSITIES = {"softmax": "gaussian", "entmax": 1.5, "sparsemax": "truncated_parabola"}


class Split(NamedTuple):
    """Some of the stays."""

    series: IrregularSeries  # scaled
    static: Tensor  # [rows, descriptors]
    labels: Tensor  # [rows] 0 or 1


class Inputs(NamedTuple):
    """What a model reads."""

    x: Tensor  # [rows, steps, 3 * channels], or coefficients [rows, channels, functions, d]
    static: Tensor  # [rows, descriptors]
    labels: Tensor  # [rows]


class Scores(NamedTuple):
    """A model on a split."""

    auroc: float
    auprc: float
    loss: float


def load(options: argparse.Namespace) -> dict[str, Split]:
    """The splits of a folder."""
    first, labels = read_set(options.data, options.train, options.label)
    rest, dev = hold_out(sorted(labels), options.share, options.split_seed, stratify=labels.__getitem__)
    if options.rows is not None:
        rest = rest[:: max(1, len(rest) // options.rows)][: options.rows]
    others, test_labels = read_set(options.data, options.test, options.label)
    channels = [name for name in first.names if name not in (*MEASURED_ONCE, UNIT)]
    scaling = IrregularSeries(first, channels, rest).scaling()
    describe = Descriptions(first, rest)
    splits = {}
    for name, events, result, ids in (
        ("train", first, labels, rest),
        ("dev", first, labels, dev),
        ("test", others, test_labels, sorted(test_labels)),
    ):
        expected = torch.tensor([float(result[i]) for i in ids])
        if not 0 < float(expected.mean()) < 1:
            raise InputError(f"{options.data}: {options.label} must be 0 for some and 1 for others of the {name} split")
        splits[name] = Split(IrregularSeries(events, channels, ids).scaled(scaling), describe(events, ids), expected)
    return splits


def read_set(folder: Path, name: str, label: str) -> tuple[Events, dict[int, int]]:
    """Observations whose value is known, in the time that counts, and labels."""
    paths = [find_packed(folder / f"{kind}-{name}.csv") for kind in ("set", "Outcomes")]
    for path, kind in zip(paths, ("set", "Outcomes"), strict=True):
        if path is None:
            raise InputError(f"{folder}: there is no {kind}-{name}.csv, packed or not")
    assert paths[0] is not None and paths[1] is not None
    events = read_events(paths[0])
    labels = read_labels(paths[1], label)
    if not set(labels.values()) <= {0, 1}:
        raise InputError(f"{paths[1]}: {label} must be 0 or 1, got {max(labels.values(), key=lambda x: abs(x - 0.5))}")
    return events.only((events.values != UNKNOWN) & (events.times >= 0) & (events.times <= MINUTES)), labels


class Descriptions:
    """Numbers that describe a stay as a whole, by those of a training set."""

    def __init__(self, events: Events, ids: list[int]) -> None:
        known = descriptors(events, MEASURED_ONCE, ids)
        rows, columns = np.nonzero(~np.isnan(known))
        self.scaling = Scaling.of(known[rows, columns], columns, known.shape[1])
        units = descriptors(events, [UNIT], ids)
        self.units = np.unique(units[~np.isnan(units)])

    def __call__(self, events: Events, ids: list[int]) -> Tensor:
        """[rows, descriptors]: scaled, whether unknown, and one column for each unit."""
        result = descriptors(events, MEASURED_ONCE, ids)
        unknown = np.isnan(result)
        columns = np.broadcast_to(np.arange(result.shape[1]), result.shape)
        scaled = np.where(unknown, 0, self.scaling(np.where(unknown, 1, result), columns))
        unit = descriptors(events, [UNIT], ids) == self.units
        return torch.from_numpy(np.concatenate([scaled, unknown, unit], 1)).float()


def on_grid(split: Split, steps: int) -> Inputs:
    """Last values, whether there was one in the step, and the steps since, of equal steps."""
    values, observed, since = split.series.grid(steps, MINUTES)
    return Inputs(torch.cat([values, observed.float(), since.log1p() / 3], -1), split.static, split.labels)


def as_signals(split: Split, fit: ValueFunction) -> Inputs:
    """Coefficients of each channel's signal, which gives 1 (how much is known there), the value and its square.

    What is too low and what is too high may both be bad, which no sum of values tells.
    """
    result = []
    for channel in range(len(split.series.names)):
        times, values, mask = split.series.channel(channel)
        observed = torch.stack([torch.ones_like(values), values, values.square() - 1], -1)  # [rows, length, 3]
        result.append(fitted(fit, observed, times / MINUTES, mask))
    return Inputs(torch.stack(result, 1), split.static, split.labels)


def build(splits: dict[str, Split], options: argparse.Namespace) -> tuple[nn.Module, dict[str, Inputs]]:
    """A model and what it reads."""
    if options.model == "discrete":
        inputs = {name: on_grid(split, options.steps) for name, split in splits.items()}
        sizes = inputs["train"].x.shape[2], inputs["train"].static.shape[1]
        return GridClassifier(*sizes, options.d_model, options.transform, dropout=options.dropout), inputs
    fit = ValueFunction(gaussian_grid(options.num_basis, options.width), options.ridge)
    inputs = {name: as_signals(split, fit) for name, split in splits.items()}
    channels, _, d_values = inputs["train"].x.shape[1:]
    model = SignalClassifier(
        fit.basis,
        channels,
        d_values,
        inputs["train"].static.shape[1],
        options.heads,
        options.hidden,
        options.dropout,
        DENSITIES.get(options.transform, options.transform),
    )
    return model, inputs


def train(model: nn.Module, inputs: dict[str, Inputs], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Epochs of AdamW until the loss of the dev split has not fallen for some; the model of the best one."""
    data = inputs["train"]
    batches = math.ceil(len(data.labels) / options.batch_size)
    updates = options.epochs * batches
    optimizer = torch.optim.AdamW(model.parameters(), options.learning_rate, weight_decay=options.weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / updates)
    order = torch.Generator().manual_seed(options.seed)
    history: list[dict[str, Any]] = []
    best: tuple[float, int, dict[str, Tensor]] = (math.inf, 0, {})
    for epoch in range(1, options.epochs + 1):
        began, total = time.process_time(), 0.0
        model.train()
        for rows in torch.randperm(len(data.labels), generator=order).split(options.batch_size):
            scores = model(data.x[rows], data.static[rows])
            loss = nn.functional.binary_cross_entropy_with_logits(scores, data.labels[rows])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), options.clip)
            optimizer.step()
            schedule.step()
            total += loss.item() * len(rows)
        seconds = time.process_time() - began
        result = test(model, inputs["dev"])
        mean = total / len(data.labels)
        history.append({"epoch": epoch, "loss": mean, "seconds": seconds, "dev": result._asdict()})
        pace = seconds / batches * 1e3
        print(
            f"epoch {epoch}: loss {mean:.4f}, dev {result.loss:.4f}, AUROC {result.auroc:.4f}, {pace:.1f} ms an update",
            file=sys.stderr,
        )
        if result.loss < best[0]:
            best = result.loss, epoch, copy.deepcopy(model.state_dict())
        elif epoch - best[1] >= options.patience:
            break
    if not best[2]:
        raise InputError("the loss of the dev split was never a number: try a lower --learning-rate")
    model.load_state_dict(best[2])
    return history


@torch.no_grad()
def test(model: nn.Module, data: Inputs) -> Scores:
    """How well a model tells the classes apart."""
    model.eval()
    parts = zip(data.x.split(TESTED), data.static.split(TESTED), strict=True)
    scores = torch.cat([model(x, static) for x, static in parts])
    loss = nn.functional.binary_cross_entropy_with_logits(scores, data.labels)
    return Scores(auroc(scores, data.labels), auprc(scores, data.labels), loss.item())


def auroc(scores: Tensor, labels: Tensor) -> float:
    """The probability that a positive one has a higher score than a negative one, where equal scores count half.

    By the sum of ranks (Mann and Whitney), for scores and labels of 0 and 1, both [rows].
    """
    _, location, counts = scores.unique(return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0).double() - (counts.double() - 1) / 2)[location]  # of equal scores their mean
    positive = labels > 0
    ones, zeros = int(positive.sum()), int((~positive).sum())
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def auprc(scores: Tensor, labels: Tensor) -> float:
    """Average precision: that at each threshold, weighted by the recall it adds. Equal scores are one threshold."""
    thresholds, index = (-scores).unique(return_inverse=True)
    right = torch.zeros(len(thresholds), dtype=torch.float64).index_add_(0, index, (labels > 0).double())
    chosen = torch.zeros_like(right).index_add_(0, index, torch.ones_like(labels, dtype=torch.float64))
    precision = right.cumsum(0) / chosen.cumsum(0)
    return float((precision * right).sum() / right.sum())


@torch.no_grad()
def look(model: nn.Module, inputs: Inputs, series: IrregularSeries) -> dict[str, Any]:
    """What a model attends to, in hours; `attended` is the share of the time with a weight or a density above zero."""
    model.eval()
    hours = MINUTES / 60
    if isinstance(model, GridClassifier):
        weights = torch.cat([model.read(x)[1] for x in inputs.x.split(TESTED)])  # [rows, steps]
        middle = (torch.arange(weights.shape[1]) + 0.5) * (hours / weights.shape[1])
        shares = [round(w, 4) for w in weights.mean(0).tolist()]
        num_attended = float((weights > 0).float().mean())
        return {"attended": num_attended, "mean": float((weights @ middle).mean()), "mean_weights": shares}
    assert isinstance(model, SignalClassifier)
    reach = [x.T * hours for x in model.reach()]  # [channels, heads] each
    mean, std, lower, upper = reach[0], reach[1], reach[2].clamp(0, hours), reach[3].clamp(0, hours)
    times = torch.from_numpy(series.times)[:, None] / 60  # [observations, 1]
    own = torch.from_numpy(series.channels)
    observed = float(((times >= lower[own]) & (times <= upper[own])).float().mean())
    result = {"mean": mean, "std": std, "lower": lower, "upper": upper}
    channels = {
        name: {what: [round(number, 2) for number in x[i].tolist()] for what, x in result.items()}
        for i, name in enumerate(series.names)
    }
    share = float(((upper - lower) / hours).mean())
    return {"attended": share, "observations_attended": observed, "mean": float(mean.mean()), "channels": channels}


def run(options: argparse.Namespace) -> tuple[dict[str, Any], tuple[SignalDensity, ...]]:
    """Do everything from the folder to the result and the densities of the signals, of which a grid has none."""
    began = time.process_time()
    splits = load(options)
    read = time.process_time()
    torch.manual_seed(options.seed)
    model, inputs = build(splits, options)
    built = time.process_time()
    sizes = {name: len(split.labels) for name, split in splits.items()}
    print(f"{sizes} stays, {read - began:.1f} s to read, {built - read:.1f} s to prepare", file=sys.stderr)
    history = train(model, inputs, options)
    trained = time.process_time()
    dev, result = test(model, inputs["dev"]), test(model, inputs["test"])
    updates = len(history) * math.ceil(sizes["train"] / options.batch_size)
    example = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    names = splits["test"].series.names
    densities = signal_densities(model.density(), names) if isinstance(model, SignalClassifier) else ()
    scores = {
        **result._asdict(),
        "dev": dev._asdict(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "attention": look(model, inputs["test"], splits["test"].series),
        "stays": sizes,
        "deaths": {name: int(split.labels.sum()) for name, split in splits.items()},
        "updates": updates,
        "seconds": {
            "read": read - began,
            "prepare": built - read,
            "train": trained - built,
            "update": sum(epoch["seconds"] for epoch in history) / updates,
        },
        "epochs": history,
        "options": example,
        "versions": {"torch": torch.__version__, "tsallis": tsallis.__version__},
    }
    return scores, densities


def save(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, text)


def number_or_name(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder with the sets")
    add("--train", default="a", help="the set to train with")
    add("--test", default="b", help="the set to test")
    add("--label", default="In-hospital_death", help="column of the outcomes")
    add("--share", type=float, default=0.2, help="of the training set that says when to stop")
    add("--split-seed", type=int, default=0, help="decides which")
    add("--rows", type=int, help="stays to train with, at most: for a quick try")
    add("--model", choices=("discrete", "continuous"), default="continuous")
    add("--transform", type=number_or_name, default="sparsemax", help="softmax, sparsemax, entmax or an alpha")
    add("--dropout", type=float, default=0.3)
    add("--steps", type=int, default=48, help="discrete: steps of the grid")
    add("--d-model", type=int, default=48, help="discrete: size of the states")
    add("--num-basis", type=int, default=8, help="continuous: basis functions of a signal")
    add("--width", type=float, default=0.2, help="continuous: of a basis function, where all of the time is 1")
    add("--ridge", type=float, default=1.0, help="continuous: penalty of the ridge regression")
    add("--heads", type=int, default=2, help="continuous: densities a parameter")
    add("--hidden", type=int, default=12, help="continuous: rectified units before the score; 0 is none")
    add("--epochs", type=int, default=30, help="at most")
    add("--patience", type=int, default=6, help="epochs without a lower loss of the dev split, then it ends")
    add("--batch-size", type=int, default=128)
    add("--learning-rate", type=float, default=3e-3)
    add("--weight-decay", type=float, default=1e-4)
    add("--clip", type=float, default=1.0)
    add("--seed", type=int, default=1)
    add("--out", type=Path, help="file for the result")
    add("--page", type=Path, help="continuous: file for a page of the densities")
    options = parser.parse_args()
    if options.page is not None and options.model != "continuous":
        parser.error("--page draws densities, which --model discrete has none of")
    return options


def main() -> int:
    options = arguments()
    try:
        scores, densities = run(options)
        result = json.dumps(scores, indent=1)
        print(result)
        if options.out is not None:
            save(options.out, result + "\n")
        if options.page is not None:
            note = f"{options.transform}, seed {options.seed}; from 0 to 1 are {MINUTES // 60} hours"
            save(options.page, build_page([], signals=densities, title="Densities over time", note=note))
    except (InputError, OSError, ValueError) as error:
        print(f"timeseries: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
