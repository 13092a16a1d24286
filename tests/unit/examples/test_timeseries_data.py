"""Irregular series: files of observations, channels with separate times, grids, scaling and custom splits."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from timeseries_data import Events, IrregularSeries, Scaling, descriptors, read_events, read_labels

from tsallis.errors import InputError

HEADER = "RecordID,minute,parameter,value\n"
LINES = "7,0,Age,54\n7,7,HR,73\n7,37,HR,77.5\n9,2,pH,-1\n"


def events(*rows: tuple[int, float, str, float]) -> Events:
    names = sorted({name for _, _, name, _ in rows})
    series, times, channels, values = zip(*rows, strict=True)
    numbers = np.array([names.index(name) for name in channels], np.int64)
    return Events(np.array(series, np.int64), np.array(times, np.float64), numbers, np.array(values, np.float64), names)


def some(seed: int, rows: int = 6, count: int = 90) -> Events:
    chance = np.random.default_rng(seed)
    times, values = chance.uniform(0, 10, count).round(1), chance.normal(size=count)
    return Events(chance.integers(0, rows, count), times, chance.integers(0, 3, count), values, ["a", "b", "c"])


def test_read_events_reads_plain_and_compressed_files(tmp_path: Path) -> None:
    (tmp_path / "plain.csv").write_text(HEADER + LINES)
    with lzma.open(tmp_path / "s.csv.xz", "wt") as stream:
        stream.write(HEADER + LINES)
    with gzip.open(tmp_path / "s.csv.gz", "wt") as stream:
        stream.write(HEADER + LINES)
    for name in ("plain.csv", "s.csv.xz", "s.csv.gz"):
        result = read_events(tmp_path / name)
        assert result.names == ["Age", "HR", "pH"] and result.channels.tolist() == [0, 1, 1, 2]
        assert result.series.tolist() == [7, 7, 7, 9] and result.times.tolist() == [0, 7, 37, 2]
        assert result.values.tolist() == [54, 73, 77.5, -1]
    saved = result.only(result.values != -1)
    assert saved.series.tolist() == [7, 7, 7] and saved.names == result.names


MALFORMED = [
    (HEADER + "7,0,HR,73\n7,1,HR\n", r"f.csv:3: expected series,time,channel,value, found '7,1,HR'"),
    (HEADER + "7,0,HR,nan\n", r"f.csv:2: .* found '7,0,HR,nan'"),
    ("minute,value\n7,0\n", r"f.csv:1: expected a header such as .* found 'minute,value'"),
    (HEADER, "there is no observation"),
    (LINES, r"f.csv:1: expected a header such as .* found '7,0,Age,54'"),
    ("x,y,HR,nan\n" + LINES, r"f.csv:1: expected a header such as .* found 'x,y,HR,nan'"),
]


@pytest.mark.parametrize(("content", "message"), MALFORMED)
def test_malformed_observations_raise(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "f.csv"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        read_events(path)


def test_read_labels_selects_columns(tmp_path: Path) -> None:
    path = tmp_path / "o.csv"
    path.write_text("RecordID,SAPS-I,died\n7,6,0\n9,16,1\n")
    assert read_labels(path, "died") == {7: 0, 9: 1}
    assert read_labels(path, "RecordID", "SAPS-I") == {6: 7, 16: 9}


def test_channels_hold_observations_sorted_by_time() -> None:
    result = events((9, 5, "b", 1), (7, 3, "a", 2), (7, 1, "a", 3), (7, 2, "c", 4), (8, 0, "a", 5))
    series = IrregularSeries(result, ["a", "b"], [9, 7, 6])
    assert len(series) == 3 and series.counts.tolist() == [[0, 1], [2, 0], [0, 0]]
    times, values, mask = series.channel(0)
    assert times.dtype == torch.float64 and values.dtype == torch.float32
    assert mask.tolist() == [[False, False], [True, True], [False, False]]
    assert times[1].tolist() == [1, 3] and values[1].tolist() == [3, 2]
    assert series.channel(1).values[0].tolist() == [1]
    absent = IrregularSeries(result, ["z"], [7])
    assert absent.channel(0).values.shape == (1, 0) and not absent.counts.any()
    assert IrregularSeries(result, ["a"]).ids.tolist() == [7, 8, 9]


@given(st.integers(0, 10_000), st.integers(1, 7))
def test_grid_matches_loops(seed: int, steps: int) -> None:
    series = IrregularSeries(some(seed), ["a", "b", "c"], range(7))
    values, observed, since = series.grid(steps, 8.0)
    for row in range(7):
        for channel in range(3):
            own = (series.rows == row) & (series.channels == channel) & (series.times <= 8)
            last, at = 0.0, -1
            for step in range(steps):
                inside = np.minimum(np.floor(series.times[own] * steps / 8), steps - 1) == step
                if inside.any():
                    last, at = series.values[own][inside][-1], step
                assert values[row, step, channel] == np.float32(last)
                assert observed[row, step, channel] == inside.any()
                assert since[row, step, channel] == step - at


def test_scaling_standardizes_each_channel() -> None:
    chance = np.random.default_rng(0)
    values = np.concatenate([chance.lognormal(3, 1, 4000), chance.normal(-5, 2, 4000), np.ones(10)])
    channels = np.repeat([0, 1, 3], [4000, 4000, 10])
    scaling = Scaling.of(values, channels, 4)  # channel 2 has no values
    assert scaling.logarithm.tolist() == [True, False, False, False]
    scaled = scaling(values, channels)
    for c in (0, 1):
        assert abs(scaled[channels == c].mean()) < 1e-9 and abs(scaled[channels == c].std() - 1) < 1e-9
    assert not scaled[channels == 3].any()
    # Values of 0 or less are also valid in a channel of logarithms.
    assert np.isfinite(scaling(np.array([0.0, -3.0]), np.array([0, 0]))).all()
    assert scaling(np.array([5.0]), np.array([2])).tolist() == [0.0]


def test_scaling_clips_other_series_to_fitted_range() -> None:
    series = IrregularSeries(some(1), ["a", "b", "c"], range(6))
    scaled = series.scaled(series.scaling())
    assert not np.array_equal(scaled.values, series.values) and np.array_equal(scaled.times, series.times)
    other = IrregularSeries(some(2), ["a", "b", "c"], range(6)).scaled(series.scaling())
    assert abs(other.values).max() <= abs(scaled.values).max() + 1e-12  # clipped to the range of the first series


def test_descriptors_are_the_first_values() -> None:
    result = descriptors(events((1, 3, "w", 9), (1, 0, "w", 8), (2, 1, "h", 7)), ["h", "w"], [2, 1, 5])
    assert np.array_equal(result, [[7, np.nan], [np.nan, 8], [np.nan, np.nan]], equal_nan=True)


def test_physionet_2012_files_are_read(shared_data: Path) -> None:
    folder = shared_data / "physionet2012"
    if not folder.is_dir():
        pytest.skip(f"needs data: {folder}")
    labels = read_labels(folder / "Outcomes-a.csv", "In-hospital_death")
    assert len(labels) == 4000 and sum(labels.values()) == 554
    result = read_events(folder / "set-a.csv.xz")
    assert len(result.names) == 41 and len(np.unique(result.series)) == 4000 and result.times.max() <= 2880
    series = IrregularSeries(result.only(result.values != -1), ["HR", "Temp"], sorted(labels))
    times, _values, mask = series.channel(0)
    first = result.series[0]
    assert times[sorted(labels).index(int(first))][:3].tolist() == [7, 37, 97]
    assert mask.sum() == series.counts[:, 0].sum() == 228538
