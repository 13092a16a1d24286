"""Memory-mapped rows of integers in a folder. Opening millions of rows takes almost no memory and time.

manifest.json   number of rows, dtype and digest; written last
tokens.bin      all rows, concatenated, little-endian
offsets.bin     start of each row and end of the last row, int64, little-endian
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from tsallis.errors import InputError
from tsallis.toolkit.data.io import read_json, write_atomic

MANIFEST, TOKENS, OFFSETS = "manifest.json", "tokens.bin", "offsets.bin"
TYPES = ("<u1", "<u2", "<u4")
CHUNK = 4096  # number of rows hashed at once

Row = NDArray[Any]


def type_for(symbols: int) -> str:
    """Return the smallest dtype for numbers below `symbols`.

    >>> type_for(256), type_for(32_000), type_for(65_536), type_for(65_537)
    ('<u1', '<u2', '<u2', '<u4')
    """
    if not 1 <= symbols <= 1 << 32:
        raise ValueError(f"symbols must be from 1 to 2^32, got {symbols}")
    return "<u1" if symbols <= 1 << 8 else "<u2" if symbols <= 1 << 16 else "<u4"


class RaggedRows(Sequence[Row]):
    """Sequence of integer rows of any lengths. Indexing returns a view of a row, not a copy.

    Args:
        tokens: All rows, concatenated.
        offsets: [rows + 1] Start of each row in `tokens`, and the end of the last row.
        digest: Hash of the rows, if known.

    >>> rows = RaggedRows.of([[4, 5, 6], [], [7]])
    >>> rows[0].tolist(), len(rows), rows.lengths.tolist()
    ([4, 5, 6], 3, [3, 0, 1])
    >>> tokens, lengths = rows.rows([2, 0])
    >>> tokens.tolist(), lengths.tolist()
    ([7, 4, 5, 6], [1, 3])
    """

    def __init__(self, tokens: NDArray[Any], offsets: NDArray[np.int64], digest: str | None = None) -> None:
        self.tokens = tokens
        self.offsets = offsets
        self._digest = digest

    @classmethod
    def of(cls, rows: Iterable[ArrayLike], dtype: DTypeLike = np.int64) -> RaggedRows:
        """Create rows in memory."""
        arrays = [np.asarray(row, dtype) for row in rows]
        return cls(np.concatenate([np.empty(0, dtype), *arrays]), np.cumsum([0, *map(len, arrays)], dtype=np.int64))

    @classmethod
    def open(cls, folder: Path | str) -> RaggedRows:
        """Map the rows that :class:`RaggedWriter` wrote into memory, and check the file sizes.

        Raises:
            InputError: If a file is missing or has another size. A missing manifest means that the rows are incomplete.
        """
        folder = Path(folder)
        manifest = read_json(folder / MANIFEST)
        match [manifest.get(key) for key in ("format", "dtype", "rows", "symbols", "digest")]:
            case [1, str(dtype), int(rows), int(symbols), str(digest)] if dtype in TYPES:
                return cls(
                    _memory_map(folder / TOKENS, dtype, symbols), _memory_map(folder / OFFSETS, "<i8", rows + 1), digest
                )
        raise InputError(f"{folder / MANIFEST}: not a manifest of token files")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Row:  # type: ignore[override]
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"index must be a row from 0 to {len(self) - 1}, got {index}")
        return self.tokens[self.offsets[position] : self.offsets[position + 1]]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(other) != len(self):
            return False
        return all(np.array_equal(a, b) for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The lengths [rows] of all rows."""
        return np.diff(self.offsets)

    @property
    def digest(self) -> str:
        """Hash of the rows, from the manifest if there is one."""
        return self._digest or digest_of(self)

    def rows(self, index: ArrayLike) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the concatenated symbols of the given rows, and the lengths of these rows."""
        indices = np.asarray(index, np.int64)
        starts = self.offsets[indices]
        lengths = self.offsets[indices + 1] - starts
        before = np.cumsum(lengths) - lengths
        return self.tokens[np.repeat(starts - before, lengths) + np.arange(lengths.sum())], lengths


Rows = Sequence[Sequence[int]] | RaggedRows


class RaggedWriter:
    """Writer of rows to a new folder. The folder is valid only after :meth:`finish`.

    Args:
        folder: New folder.
        dtype: Dtype of the symbols, which must be large enough for all symbols; see :func:`type_for`.

    >>> import contextlib, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp()) / "rows"
    >>> with contextlib.closing(RaggedWriter(folder, type_for(300))) as writer:
    ...     writer.extend([[299, 4], [5]])
    ...     writer.finish()
    >>> rows = RaggedRows.open(folder)
    >>> rows == [[299, 4], [5]], rows.tokens.dtype
    (True, dtype('uint16'))
    """

    def __init__(self, folder: Path, dtype: str) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.dtype = dtype
        self.count = self.symbols = 0
        self._digest = _Digest()
        self._tokens = (folder / TOKENS).open("wb")
        self._offsets = (folder / OFFSETS).open("wb")
        self._offsets.write(np.zeros(1, "<i8").tobytes())

    def close(self) -> None:
        """Close the files."""
        self._tokens.close()
        self._offsets.close()

    def extend(self, rows: Sequence[ArrayLike]) -> None:
        """Append rows."""
        part = RaggedRows.of(rows, self.dtype)
        self._digest.update(part.tokens, part.lengths)
        self._tokens.write(part.tokens.tobytes())
        self._offsets.write((self.symbols + part.offsets[1:]).astype("<i8").tobytes())
        self.count += len(part)
        self.symbols += len(part.tokens)

    def finish(self) -> None:
        """Flush the files to the disk, close them, and write the manifest."""
        for stream in (self._tokens, self._offsets):
            stream.flush()
            os.fsync(stream.fileno())
        self.close()
        facts = {"format": 1, "dtype": self.dtype, "rows": self.count, "symbols": self.symbols}
        write_atomic(self.folder / MANIFEST, json.dumps({**facts, "digest": self._digest.hex()}, indent=1))


def digest_of(rows: Rows) -> str:
    """Return a hash of rows. The hash depends on the numbers, but not on their dtype or storage.

    >>> digest_of([[4, 5], [6]]) == digest_of(RaggedRows.of([[4, 5], [6]], np.uint16)) != digest_of([[4], [5, 6]])
    True
    """
    digest = _Digest()
    for start in range(0, len(rows), CHUNK):
        part = RaggedRows.of([rows[i] for i in range(start, min(start + CHUNK, len(rows)))])
        digest.update(part.tokens, part.lengths)
    return digest.hex()


class _Digest:
    """Hash of rows, computed from separate hashes of symbols and lengths."""

    def __init__(self) -> None:
        self._tokens, self._lengths = hashlib.sha256(), hashlib.sha256()

    def update(self, tokens: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        self._tokens.update(tokens.astype("<i8").tobytes())
        self._lengths.update(lengths.astype("<i8").tobytes())

    def hex(self) -> str:
        return hashlib.sha256(self._tokens.digest() + self._lengths.digest()).hexdigest()


def _memory_map(path: Path, dtype: str, count: int) -> NDArray[Any]:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}") from error
    expected = count * np.dtype(dtype).itemsize
    if size != expected:
        raise InputError(f"{path}: truncated or changed: expected {expected} bytes, found {size}")
    # An empty file can't be mapped. Slicing a plain array is several times faster than slicing a np.memmap.
    return np.asarray(np.memmap(path, dtype, "r", shape=(count,))) if count else np.empty(0, dtype)
