"""Irregular time series: each channel of each series is observed at times of its own.

A file of observations has one a line, after a header: `series,time,channel,value`, numbers but for the channel's name.
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
SKEW_LIMIT = 1.0  # a channel that leans to the right by more is taken by its logarithm

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Events(NamedTuple):
    """The observations of a file, in its order."""

    series: Ints  # [events] the number each series is known by
    times: Floats  # [events]
    channels: Ints  # [events] places in `names`
    values: Floats  # [events]
    names: list[str]  # of the channels, in code-point order

    def only(self, keep: NDArray[np.bool_]) -> Events:
        """Select some of the observations; the channel names stay."""
        return Events(self.series[keep], self.times[keep], self.channels[keep], self.values[keep], self.names)


def read_events(path: Path | str) -> Events:
    """Return the observations of a UTF-8 file, plain, `.gz` or `.xz`.

    Raises:
        InputError: a file that is missing, empty or damaged, or a malformed line, each with its place.
    """
    lines = read_examples(path, LINE_FORMAT, COMMAS)
    origin, header = next(lines)
    if header.count(",") != 3:
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
    """Return one column of whole numbers of a table with a header, by the column `series`, by default the first one.

    Raises:
        InputError: a file that is missing, empty or damaged, a column it lacks, a malformed line, or a series twice.
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
    """One channel of some series, padded."""

    times: Tensor  # [rows, length], ascending where they count; float64
    values: Tensor  # [rows, length]
    mask: Tensor  # [rows, length] boolean; True is an observation


class Grid(NamedTuple):
    """Series resampled to equal steps of time."""

    values: Tensor  # [rows, steps, channels] the last one known at the end of each step; 0 before the first one
    observed: Tensor  # [rows, steps, channels] boolean: whether something was observed in the step
    since: Tensor  # [rows, steps, channels] steps since the last observation; since the start before the first one


@dataclass(frozen=True)
class Scaling:
    """The standardisation of each channel to mean 0 and variance 1, fitted to a training set.

    What lies outside the 0.5% and 99.5% quantiles is moved there, and a channel of positive values that leans far to
    the right is taken by its logarithm: typing errors and wrong units don't decide about the scale.
    """

    low: Floats  # [channels]
    high: Floats  # [channels]
    logarithm: NDArray[np.bool_]  # [channels]
    mean: Floats  # [channels]
    std: Floats  # [channels]

    @classmethod
    def of(cls, values: ArrayLike, channels: ArrayLike, count: int) -> Scaling:
        """Return the scaling of values [observations] of the channels [observations], of which there are `count`.

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
        """Return values of channels, both [...], scaled."""
        x = np.clip(values, self.low[channels], self.high[channels])
        use_log = self.logarithm[channels]
        x = np.where(use_log, np.log(np.where(use_log, x, 1)), x)
        scaled: Floats = (x - self.mean[channels]) / self.std[channels]
        return scaled


def _skewness(x: Floats) -> float:
    std = x.std()
    return float((((x - x.mean()) / std) ** 3).mean()) if std > 0 else 0.0


class IrregularSeries:
    """Series of several channels, each observed at times of its own; one may have no observation at all.

    Args:
        events: the observations, in any order.
        channels: names of those that are taken, in this order; others are left out.
        series: which ones, in this order; those of the events in ascending order by default. Events of others are left
            out.

    Raises:
        ValueError: a series or a channel named twice.

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
        """That of all observations."""
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
        """Return all series' observations in one channel, padded to the longest."""
        own = self.channels == number
        row, counts = self.rows[own], self.counts[:, number]
        column = np.arange(len(row)) - (np.cumsum(counts) - counts)[row]
        shape = (len(self), int(counts.max(initial=0)))
        times, values = np.zeros(shape), np.zeros(shape)
        times[row, column], values[row, column] = self.times[own], self.values[own]
        mask = np.arange(shape[1]) < counts[:, None]
        return ChannelObservations(torch.from_numpy(times), torch.from_numpy(values).float(), torch.from_numpy(mask))

    def grid(self, steps: int, end: float) -> Grid:
        """Return the last value known at the end of each of `steps` equal steps of the time from 0 to `end`.

        Several observations in a step: the last one counts. What is at `end` belongs to the last step; what is outside
        is left out.

        Raises:
            ValueError: steps below 1, or an end that is not positive.

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
        ends = _changes(row, channel, step)[1:] - 1  # the last one of each step
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
    """Return the offsets of runs of equal rows across the columns, and the end of the last run."""
    differ = np.any([column[1:] != column[:-1] for column in columns], 0)
    edges = np.flatnonzero(differ) + 1
    return np.concatenate([[0], edges, [len(columns[0])]] if len(columns[0]) else [[0]]).astype(np.int64)


def descriptors(events: Events, names: Sequence[str], series: Sequence[int]) -> Floats:
    """Return the first value of each of the channels of each series [series, names]; NaN where there is none.

    >>> events = Events(np.array([1, 1]), np.array([3.0, 0.0]), np.zeros(2, int), np.array([5.0, 4.0]), ["age"])
    >>> descriptors(events, ["age", "height"], [1, 2]).tolist()
    [[4.0, nan], [nan, nan]]
    """
    observations = IrregularSeries(events, names, series)
    first = np.full((len(observations), len(names)), np.nan)
    begins = _changes(observations.rows, observations.channels)[:-1]
    first[observations.rows[begins], observations.channels[begins]] = observations.values[begins]
    return first
