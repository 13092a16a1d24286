"""Define plain records for results, which convert to JSON, and to tables if pandas is installed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


class Record:
    """Base class of results: frozen dataclasses of numbers, names and other records.

    Example:
        >>> @dataclass(frozen=True)
        ... class Share(Record):
        ...     name: str
        ...     value: float
        >>> Share("zeros", 0.5).to_dict()
        {'name': 'zeros', 'value': 0.5}
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary that JSON can represent."""
        return {field.name: plain(getattr(self, field.name)) for field in fields(self)}  # type: ignore[arg-type]


def plain(value: Any) -> Any:
    """Convert records to dictionaries, and arrays and tuples to lists."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(part) for part in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return {f.name: plain(getattr(value, f.name)) for f in fields(value)} if is_dataclass(value) else value


def to_pandas(records: Iterable[Record]) -> Any:
    """Return records as a table.

    Args:
        records: Records of one class.

    Returns:
        A `pandas.DataFrame` with one row per record.

    Raises:
        ImportError: pandas is not installed.

    Example:
        >>> to_pandas(densities.heads)  # doctest: +SKIP
              kind  layer  head  alpha  density
        0  encoder      0     0    1.5     0.25
    """
    try:
        import pandas  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise ImportError("to_pandas needs pandas: pip install pandas") from error
    return pandas.DataFrame([record.to_dict() for record in records])


@dataclass(frozen=True)
class Histogram(Record):
    """Counts of values between edges. A bin includes its lower edge; the last bin includes both edges.

    Args:
        edges: Edges [bins + 1].
        counts: Number of values per bin [bins].

    Example:
        >>> Histogram.of([0.0, 0.5, 0.6, 1.0], bins=2).counts
        (1, 3)
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, values: ArrayLike, bins: int, low: float = 0.0, high: float = 1.0) -> Histogram:
        """Count values in bins of equal width from `low` to `high`.

        Raises:
            ValueError: A value is outside this range.
        """
        numbers = np.asarray(values, np.float64).reshape(-1)
        counts, edges = np.histogram(numbers, bins, (low, high))
        if counts.sum() != len(numbers):
            outlier = numbers[~((numbers >= low) & (numbers <= high))][0]
            raise ValueError(f"values must be from {low:g} to {high:g}, got {outlier:g}")
        return cls(tuple(edges.tolist()), tuple(counts.tolist()))

    def coarser(self, bins: int) -> Histogram:
        """Merge neighbouring bins, and return a histogram with at most `bins` bins.

        Example:
            >>> Histogram((0.0, 1.0, 2.0, 3.0), (4, 5, 6)).coarser(2)
            Histogram(edges=(0.0, 2.0, 3.0), counts=(9, 6))
        """
        size = max(1, -(-len(self.counts) // bins))
        counts = tuple(sum(self.counts[first : first + size]) for first in range(0, len(self.counts), size))
        return Histogram((*self.edges[:-1:size], *self.edges[-1:]), counts)


class Bins:
    """Histogram of values in an unknown range. Bins are centred on the multiples of their width.

    Example:
        >>> bins = Bins(0.5)
        >>> bins.add(np.array([1.0, 1.2, 2.1]))
        >>> bins.histogram()
        Histogram(edges=(0.75, 1.25, 1.75, 2.25), counts=(2, 0, 1))
    """

    def __init__(self, width: float) -> None:
        self.width = width
        self.counts: dict[int, int] = {}

    def add(self, values: ArrayLike) -> None:
        """Count finite values of any shape."""
        array = np.asarray(values, np.float64)
        numbers, counts = np.unique(np.rint(array[np.isfinite(array)] / self.width), return_counts=True)
        for number, count in zip(numbers.astype(int).tolist(), counts.tolist(), strict=True):
            self.counts[number] = self.counts.get(number, 0) + count

    def histogram(self) -> Histogram:
        """Return the counts from the first to the last non-empty bin."""
        if not self.counts:
            return Histogram((), ())
        numbers = range(min(self.counts), max(self.counts) + 1)
        edges = tuple((number - 0.5) * self.width for number in (*numbers, numbers[-1] + 1))
        return Histogram(edges, tuple(self.counts.get(number, 0) for number in numbers))
