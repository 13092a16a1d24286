"""Read irregular time series, whose channels are observed at different times, and resample them to a grid.

A file of observations has a header and one observation per line: `series,time,channel,value`. All fields are numbers
except the channel, which is a name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from tsallis.errors import InputError, describe, shorten
from tsallis.toolkit.data.io import number_lines, read_examples

LINE_FORMAT = "series,time,channel,value"
COMMAS = partial(number_lines, separators=",")  # commas at the end of a line are ignored
FIELDS = np.dtype([("series", "i8"), ("time", "f8"), ("channel", "O"), ("value", "f8")])
SKEW_LIMIT = 1.0  # channels of positive values with a higher skewness are replaced by their logarithm

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Events(NamedTuple):
    """The observations of a file, in the order of its lines."""

    series: Ints  # [events] the id of each series
    times: Floats  # [events]
    channels: Ints  # [events] indices into `names`
    values: Floats  # [events]
    names: list[str]  # channel names, in code-point order

    def only(self, keep: NDArray[np.bool_]) -> Events:
        """Select observations by a boolean mask, and keep all channel names."""
        return Events(self.series[keep], self.times[keep], self.channels[keep], self.values[keep], self.names)


def read_events(path: Path | str) -> Events:
    """Return the observations of a UTF-8 file, plain, `.gz` or `.xz`.

    Raises:
        InputError: If the file is missing, empty or damaged, or a line is malformed; the message has the place.
    """
    lines = read_examples(path, LINE_FORMAT, COMMAS)
    origin, header = next(lines)
    if header.count(",") != 3 or any(map(_is_number, header.split(","))):
        raise InputError(f"{origin}: expected a header such as {LINE_FORMAT}, found {shorten(header)}")
    places = list(lines)
    rows = [row for _, row in places]
    if not rows:
        raise InputError(f"{path}: there is no observation after the header")
    try:
        table = np.loadtxt(rows, FIELDS, delimiter=",", comments=None, ndmin=1)
    except ValueError:
        raise _first_bad(path, places) from None
    if len(table) != len(rows) or not (np.isfinite(table["time"]).all() and np.isfinite(table["value"]).all()):
        raise _first_bad(path, places)
    names = sorted(set(table["channel"]))
    numbers = {name: i for i, name in enumerate(names)}
    channels = np.fromiter((numbers[name] for name in table["channel"]), np.int64, len(rows))
    series, times, values = (np.ascontiguousarray(table[name]) for name in ("series", "time", "value"))
    return Events(series, times, channels, values, names)


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _first_bad(path: Path | str, places: Sequence[tuple[str, str]]) -> InputError:
    for origin, row in places:
        fields = row.split(",")
        try:
            if len(fields) == 4 and math.isfinite(float(fields[1])) and math.isfinite(float(fields[3])):
                int(fields[0])
                continue
        except ValueError:
            pass
        return InputError(f"{origin}: expected {LINE_FORMAT}, found {shorten(row)}")
    return InputError(f"{path}: expected lines of {LINE_FORMAT}")


def read_labels(path: Path | str, column: str, series: str | None = None) -> dict[int, int]:
    """Return a mapping from the column `series` (default: the first column) to another column of integers.

    Raises:
        InputError: If the file is missing, empty or damaged, lacks a column, has a malformed line, or repeats a series.
    """
    lines = read_examples(path, "a table", COMMAS)
    place, header = next(lines)
    names = header.strip().split(",")
    series = names[0] if series is None else series
    for name in (series, column):
        if name not in names:
            raise InputError(f"{place}: there is no column {describe(name)}, only {', '.join(names[:20])}")
    key, position = names.index(series), names.index(column)
    labels: dict[int, int] = {}
    for place, line in lines:
        fields = line.split(",")
        try:
            identity, label = int(fields[key]), int(fields[position])
        except (ValueError, IndexError):
            raise InputError(
                f"{place}: expected whole numbers in {series} and {column}, found {shorten(line)}"
            ) from None
        if identity in labels:
            raise InputError(f"{place}: {series} {identity} is there twice")
        labels[identity] = label
    return labels


class ChannelObservations(NamedTuple):
    """The observations of one channel in several series, padded to the same length."""

    times: Tensor  # [rows, length], ascending where the mask is True; float64
    values: Tensor  # [rows, length]
    mask: Tensor  # [rows, length] boolean; True is an observation


class Grid(NamedTuple):
    """Series resampled to equal steps of time."""

    values: Tensor  # [rows, steps, channels] last value known at the end of each step; 0 before the first observation
    observed: Tensor  # [rows, steps, channels] boolean: whether there is an observation in the step
    since: Tensor  # [rows, steps, channels] steps since the last observation; before the first one, since the start


@dataclass(frozen=True)
class Scaling:
    """The standardisation of each channel to mean 0 and variance 1, fitted to a training set.

    Values are clipped to the 0.5% and 99.5% quantiles, so that typing errors and wrong units don't determine the scale.
    A channel of positive values that is strongly skewed to the right is replaced by its logarithm.
    """

    low: Floats  # [channels]
    high: Floats  # [channels]
    logarithm: NDArray[np.bool_]  # [channels]
    mean: Floats  # [channels]
    std: Floats  # [channels]

    @classmethod
    def of(cls, values: ArrayLike, channels: ArrayLike, count: int) -> Scaling:
        """Fit a scaling to values [observations] with channel indices [observations] of `count` channels.

        >>> scaling = Scaling.of([1.0, 2.0, 3.0, 50.0], [0, 0, 0, 1], 2)
        >>> scaling(np.array([2.0, 50.0]), np.array([0, 1])).tolist()
        [0.0, 0.0]
        """
        x, channel = np.asarray(values, np.float64), np.asarray(channels, np.int64)
        statistics = np.zeros((5, count))
        statistics[4] = 1
        for c in range(count):
            own = x[channel == c]
            if not own.size:
                continue
            low, high = np.quantile(own, (0.005, 0.995))
            own = np.clip(own, low, high)
            use_log = low > 0 and _skewness(own) > SKEW_LIMIT
            own = np.log(own) if use_log else own
            statistics[:, c] = low, high, use_log, own.mean(), own.std() or 1
        return cls(statistics[0], statistics[1], statistics[2] > 0, statistics[3], statistics[4])

    def __call__(self, values: Floats, channels: Ints) -> Floats:
        """Scale values with channel indices of the same shape."""
        x = np.clip(values, self.low[channels], self.high[channels])
        use_log = self.logarithm[channels]
        x = np.where(use_log, np.log(np.where(use_log, x, 1)), x)
        scaled: Floats = (x - self.mean[channels]) / self.std[channels]
        return scaled


def _skewness(x: Floats) -> float:
    std = x.std()
    return float((((x - x.mean()) / std) ** 3).mean()) if std > 0 else 0.0


class IrregularSeries:
    """Series of several channels, each observed at different times; a series may have no observations.

    Args:
        events: Observations, in any order.
        channels: Names of the channels to keep, in this order; observations of other channels are dropped.
        series: Ids of the series to keep, in this order; observations of other series are dropped. Default: all series,
            in ascending order.

    Raises:
        ValueError: If a series or a channel appears twice.

    >>> events = Events(np.array([7, 7, 9]), np.array([2.0, 1.0, 0.0]), np.array([0, 0, 1]), np.arange(3.0), ["a", "b"])
    >>> series = IrregularSeries(events, ["a", "b"])
    >>> len(series), series.counts.tolist(), series.channel(0).values.tolist()
    (2, [[2, 0], [0, 1]], [[1.0, 0.0], [0.0, 0.0]])
    """

    def __init__(self, events: Events, channels: Sequence[str], series: Sequence[int] | None = None) -> None:
        ids = np.unique(events.series) if series is None else np.asarray(series, np.int64)
        for what, names in (("channels", list(channels)), ("series", ids.tolist())):
            if len(set(names)) != len(names):
                raise ValueError(f"{what} must differ, got {next(x for x in names if names.count(x) > 1)!r} twice")
        self.ids, self.names = ids, list(channels)
        numbers = {name: i for i, name in enumerate(self.names)}
        to_place = np.array([numbers.get(name, -1) for name in events.names] or [-1], np.int64)
        order = np.argsort(ids)
        at = np.searchsorted(ids, events.series, sorter=order).clip(max=max(len(ids) - 1, 0))
        row = order[at] if len(ids) else at
        channel = to_place[events.channels]
        keep = (channel >= 0) & (ids[row] == events.series if len(ids) else False)
        row, channel, times = row[keep], channel[keep], events.times[keep]
        cell = row * len(self.names) + channel
        by = np.lexsort((times, cell))
        self.rows, self.channels = row[by], channel[by]  # [observations]
        self.times, self.values = times[by], events.values[keep][by]  # [observations]
        counts = np.bincount(cell, minlength=len(ids) * len(self.names))
        self.counts: Ints = counts.reshape(len(ids), len(self.names)).astype(np.int64)  # [rows, channels]

    def __len__(self) -> int:
        return len(self.ids)

    def scaling(self) -> Scaling:
        """Return the scaling fitted to all observations."""
        return Scaling.of(self.values, self.channels, len(self.names))

    def scaled(self, scaling: Scaling) -> IrregularSeries:
        """Return a copy of the series with scaled values."""
        return self._with(scaling(self.values, self.channels))

    def _with(self, values: Floats) -> IrregularSeries:
        new = object.__new__(IrregularSeries)
        new.__dict__.update(self.__dict__)
        new.values = values
        return new

    def channel(self, number: int) -> ChannelObservations:
        """Return the observations of one channel in all series, padded to the longest."""
        own = self.channels == number
        row, counts = self.rows[own], self.counts[:, number]
        column = np.arange(len(row)) - (np.cumsum(counts) - counts)[row]
        shape = (len(self), int(counts.max(initial=0)))
        times, values = np.zeros(shape), np.zeros(shape)
        times[row, column], values[row, column] = self.times[own], self.values[own]
        mask = np.arange(shape[1]) < counts[:, None]
        return ChannelObservations(torch.from_numpy(times), torch.from_numpy(values).float(), torch.from_numpy(mask))

    def grid(self, steps: int, end: float) -> Grid:
        """Resample to `steps` equal steps of the time from 0 to `end`, with the last known value at each step's end.

        If a step has several observations, the last one counts. An observation at `end` belongs to the last step.
        Observations outside 0 to `end` are ignored.

        Raises:
            ValueError: If `steps` is less than 1, or `end` is not positive.

        >>> events = Events(np.array([1, 1]), np.array([1.0, 1.5]), np.zeros(2, int), np.array([5.0, 7.0]), ["a"])
        >>> values, observed, since = IrregularSeries(events, ["a"]).grid(4, 4.0)
        >>> values[0, :, 0].tolist(), observed[0, :, 0].tolist(), since[0, :, 0].tolist()
        ([0.0, 7.0, 7.0, 7.0], [False, True, False, False], [1.0, 0.0, 1.0, 2.0])
        """
        if steps < 1 or not end > 0:
            raise ValueError(f"a grid needs a step or more and a positive end, got {steps} and {end:g}")
        inside = (self.times >= 0) & (self.times <= end)
        step = np.minimum((self.times[inside] * (steps / end)).astype(np.int64), steps - 1)
        row, channel = self.rows[inside], self.channels[inside]
        ends = _changes(row, channel, step)[1:] - 1  # the last observation of each step
        last = np.full((len(self), steps, len(self.names)), -1, np.int64)
        last[row[ends], step[ends], channel[ends]] = np.flatnonzero(inside)[ends]
        observed = last >= 0
        latest = np.maximum.accumulate(np.where(observed, np.arange(steps)[:, None], -1), 1)
        last_values = np.maximum.accumulate(last, 1)  # ascending within a row and channel
        values = np.where(last_values >= 0, np.append(self.values, 0)[last_values], 0)
        since = np.arange(steps)[:, None] - latest
        return Grid(
            torch.from_numpy(values).float(), torch.from_numpy(observed), torch.from_numpy(since.astype(np.float32))
        )


def _changes(*columns: Ints) -> Ints:
    """Return the start of each run of equal rows across the columns, and the end of the last run."""
    differ = np.any([column[1:] != column[:-1] for column in columns], 0)
    edges = np.flatnonzero(differ) + 1
    return np.concatenate([[0], edges, [len(columns[0])]] if len(columns[0]) else [[0]]).astype(np.int64)


def descriptors(events: Events, names: Sequence[str], series: Sequence[int]) -> Floats:
    """Return the first value of each channel in each series [series, names], or NaN if it has no observation.

    >>> events = Events(np.array([1, 1]), np.array([3.0, 0.0]), np.zeros(2, int), np.array([5.0, 4.0]), ["age"])
    >>> descriptors(events, ["age", "height"], [1, 2]).tolist()
    [[4.0, nan], [nan, nan]]
    """
    observations = IrregularSeries(events, names, series)
    first = np.full((len(observations), len(names)), np.nan)
    begins = _changes(observations.rows, observations.channels)[:-1]
    first[observations.rows[begins], observations.channels[begins]] = observations.values[begins]
    return first
