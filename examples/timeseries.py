"""Classify irregular time series with continuous attention to raw times, or discrete attention to an hourly grid.

The data are stays in an intensive care unit, from the PhysioNet / Computing in Cardiology Challenge 2012. Each set
consists of observations, `set-a.csv` (RecordID,minute,parameter,value; plain or compressed by xz or gzip), and patient
outcomes, `Outcomes-a.csv`. A value of -1 is unknown. One set is for training; a share of it is held out for early
stopping. Another set is for testing. The models predict the column In-hospital_death.

    python examples/timeseries.py --data data/physionet2012 --model continuous --transform sparsemax --out result.json

`--model discrete`: A GRU reads, for each hour, the last value of each parameter, whether it was observed, and the time
since its last observation. Attention reads the GRU's states. `--model continuous`: There is no grid and no recurrence.
A continuous signal is fitted to the observations of each parameter at their exact times, and attention densities read
it. The result contains the position of the densities in hours, and `--page FILE` draws them.

The result is printed to the standard output as JSON and written to `--out`; progress goes to the standard error. Times
are processor time. With the default sizes, each model takes less than half a minute on one CPU core, most of it for
reading the data.
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
from option_types import number_or_name, positive_int
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

MINUTES = 2880  # the first 48 hours of a stay
MEASURED_ONCE = ("Age", "Gender", "Height")
UNIT = "ICUType"  # categorical: the type of the care unit
UNKNOWN = -1
TESTED = 512  # batch size for evaluation, in series
DENSITIES = {"softmax": "gaussian", "entmax": 1.5, "sparsemax": "truncated_parabola"}


class Split(NamedTuple):
    """The series, descriptors and labels of a split."""

    series: IrregularSeries  # scaled
    static: Tensor  # [rows, descriptors]
    labels: Tensor  # [rows] 0 or 1


class Inputs(NamedTuple):
    """The inputs of a model, and the labels."""

    x: Tensor  # [rows, steps, 3 * channels], or coefficients [rows, channels, functions, d]
    static: Tensor  # [rows, descriptors]
    labels: Tensor  # [rows]


class Scores(NamedTuple):
    """The scores of a model on a split."""

    auroc: float
    auprc: float
    loss: float


def load(options: argparse.Namespace) -> dict[str, Split]:
    """Load the splits of a folder; all are scaled with statistics of the training split."""
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
    """Return the known observations of the first 48 hours, and the labels."""
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
    """Compute static descriptors of stays, scaled with the statistics of a training set."""

    def __init__(self, events: Events, ids: list[int]) -> None:
        known = descriptors(events, MEASURED_ONCE, ids)
        rows, columns = np.nonzero(~np.isnan(known))
        self.scaling = Scaling.of(known[rows, columns], columns, known.shape[1])
        units = descriptors(events, [UNIT], ids)
        self.units = np.unique(units[~np.isnan(units)])

    def __call__(self, events: Events, ids: list[int]) -> Tensor:
        """Return [rows, descriptors]: scaled values, flags of unknown values, and the one-hot unit."""
        result = descriptors(events, MEASURED_ONCE, ids)
        unknown = np.isnan(result)
        columns = np.broadcast_to(np.arange(result.shape[1]), result.shape)
        scaled = np.where(unknown, 0, self.scaling(np.where(unknown, 1, result), columns))
        unit = descriptors(events, [UNIT], ids) == self.units
        return torch.from_numpy(np.concatenate([scaled, unknown, unit], 1)).float()


def on_grid(split: Split, steps: int) -> Inputs:
    """Resample series to equal steps: last value, whether one was observed in the step, and steps since then."""
    values, observed, since = split.series.grid(steps, MINUTES)
    return Inputs(torch.cat([values, observed.float(), since.log1p() / 3], -1), split.static, split.labels)


def as_signals(split: Split, fit: ValueFunction) -> Inputs:
    """Fit a signal of three components to each channel: 1 (how much is known there), the value and its square.

    The square matters because both low and high values may be harmful, which a linear function can't express.
    """
    result = []
    for channel in range(len(split.series.names)):
        times, values, mask = split.series.channel(channel)
        observed = torch.stack([torch.ones_like(values), values, values.square() - 1], -1)  # [rows, length, 3]
        result.append(fitted(fit, observed, times / MINUTES, mask))
    return Inputs(torch.stack(result, 1), split.static, split.labels)


def build(splits: dict[str, Split], options: argparse.Namespace) -> tuple[nn.Module, dict[str, Inputs]]:
    """Return a model and the inputs of all splits."""
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
    """Train with AdamW and early stopping by dev loss, load the best epoch, and return the history."""
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
    """Compute AUROC, AUPRC and loss."""
    model.eval()
    parts = zip(data.x.split(TESTED), data.static.split(TESTED), strict=True)
    scores = torch.cat([model(x, static) for x, static in parts])
    loss = nn.functional.binary_cross_entropy_with_logits(scores, data.labels)
    return Scores(auroc(scores, data.labels), auprc(scores, data.labels), loss.item())


def auroc(scores: Tensor, labels: Tensor) -> float:
    """Return the area under the ROC curve, computed from rank sums (Mann and Whitney).

    It is the probability that a positive example has a higher score than a negative one; ties count half. Scores and
    labels (0 or 1) are both [rows].
    """
    _, location, counts = scores.unique(return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0).double() - (counts.double() - 1) / 2)[location]  # tied scores share their mean rank
    positive = labels > 0
    ones, zeros = int(positive.sum()), int((~positive).sum())
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def auprc(scores: Tensor, labels: Tensor) -> float:
    """Return the average precision: precision at each distinct score, weighted by the recall that it adds."""
    thresholds, index = (-scores).unique(return_inverse=True)
    right = torch.zeros(len(thresholds), dtype=torch.float64).index_add_(0, index, (labels > 0).double())
    chosen = torch.zeros_like(right).index_add_(0, index, torch.ones_like(labels, dtype=torch.float64))
    precision = right.cumsum(0) / chosen.cumsum(0)
    return float((precision * right).sum() / right.sum())


@torch.no_grad()
def look(model: nn.Module, inputs: Inputs, series: IrregularSeries) -> dict[str, Any]:
    """Return where a model attends, in hours; `attended` is the share of time with non-zero weight or density."""
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
    """Load the data, train and test a model; return the result and the densities (none for the grid model)."""
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


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder with the sets")
    add("--train", default="a", help="name of the training set")
    add("--test", default="b", help="name of the test set")
    add("--label", default="In-hospital_death", help="column of the outcomes to predict")
    add("--share", type=float, default=0.2, help="share of the training set held out for early stopping")
    add("--split-seed", type=int, default=0, help="random seed of the held-out split")
    add("--rows", type=positive_int, help="maximum number of training stays, for quick tests")
    add("--model", choices=("discrete", "continuous"), default="continuous")
    add(
        "--transform", type=number_or_name, default="sparsemax", help="function: softmax, sparsemax, entmax or an alpha"
    )
    add("--dropout", type=float, default=0.3)
    add("--steps", type=positive_int, default=48, help="discrete: number of steps of the grid")
    add("--d-model", type=positive_int, default=48, help="discrete: size of the states")
    add("--num-basis", type=positive_int, default=8, help="continuous: number of basis functions per signal")
    add("--width", type=float, default=0.2, help="continuous: width of a basis function; all 48 hours are 1")
    add("--ridge", type=float, default=1.0, help="continuous: penalty of the ridge regression")
    add("--heads", type=positive_int, default=2, help="continuous: number of densities per parameter")
    add("--hidden", type=int, default=12, help="continuous: size of the hidden layer; 0: no hidden layer")
    add("--epochs", type=positive_int, default=30, help="maximum number of epochs")
    add("--patience", type=positive_int, default=6, help="stop after this many epochs without a lower dev loss")
    add("--batch-size", type=positive_int, default=128)
    add("--learning-rate", type=float, default=3e-3)
    add("--weight-decay", type=float, default=1e-4)
    add("--clip", type=float, default=1.0)
    add("--seed", type=int, default=1)
    add("--out", type=Path, help="output file (JSON)")
    add("--page", type=Path, help="continuous: output file for a page that draws the densities")
    options = parser.parse_args()
    if options.page is not None and options.model != "continuous":
        parser.error("--page draws densities, which --model discrete has none of")
    for path in (options.out, options.page):
        if path is not None and path.is_dir():
            parser.error(f"expected a file to write, got the folder {path}")
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
