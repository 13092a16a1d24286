"""Read pretrained word vectors for the symbols of a vocabulary from files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tsallis.errors import InputError, describe, shorten
from tsallis.toolkit.data.io import Ignored, check_file, input_errors, number_lines, read_lines

LINE_FORMAT = "a word and its numbers, separated by spaces"


@dataclass(frozen=True)
class WordVectors:
    """Word vectors of some symbols.

    Args:
        numbers: Numbers of the symbols.
        matrix: [symbols, size] Vectors of the symbols.
    """

    numbers: tuple[int, ...]
    matrix: Tensor


def read_word_vectors(
    path: Path | str, symbols: Mapping[str, int], words: Path | str | None = None, tensor: str | None = None
) -> WordVectors:
    r"""Read the word vectors of some symbols from a file.

    Args:
        path: Text file in the format of word2vec, GloVe or fastText (plain, `.gz` or `.xz`), or a `.safetensors` file
            with a matrix. Each line of a text file contains a word and its numbers. A first line with counts is
            optional.
        symbols: Numbers of the symbols by spelling.
        words: For a matrix, a text file with the word of each row, one per line. By default, row i belongs to symbol i.
        tensor: Name of the matrix, if the file has several.

    Returns:
        Vectors in the order of the symbols. If a word occurs twice, its first vector is used.

    Raises:
        InputError: If the file is missing or damaged, a line is malformed, numbers are not finite, or the file contains
            none of the symbols.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "vectors.txt"
        >>> _ = path.write_text("3 2\nthe 0.5 1\nof 0 -1\nhouse 2 0.25\n")
        >>> read_word_vectors(path, {"house": 4, "home": 5, "the": 6})
        WordVectors(numbers=(4, 6), matrix=tensor([[2.0000, 0.2500],
                [0.5000, 1.0000]]))
    """
    if Path(path).name.endswith(".safetensors"):
        rows = _read_matrix(Path(path), symbols, words, tensor)
    elif words is not None or tensor is not None:
        raise InputError(f"{path}: the settings words and tensor apply only to .safetensors files: leave them out")
    else:
        rows = _read_text(path, symbols)
    if not rows:
        examples = ", ".join(map(describe, list(symbols)[:3]))
        raise InputError(f"{path}: contains no vector for any of the {len(symbols)} symbols, such as {examples}")
    for symbol, number in symbols.items():
        if number in rows and not rows[number].isfinite().all():
            raise InputError(f"{path}: the vector of {describe(symbol)} must be finite")
    numbers = tuple(sorted(rows))
    return WordVectors(numbers, torch.stack([rows[number] for number in numbers]))


def _read_text(path: Path | str, symbols: Mapping[str, int]) -> dict[int, Tensor]:
    """Return the first vector of each symbol, by symbol number. Words in the file may contain spaces."""
    rows: dict[int, Tensor] = {}
    size, ignored = 0, Ignored()
    for number, line in number_lines(read_lines(path, LINE_FORMAT), ignored):
        if number == 0 and re.fullmatch(r"\d+ \d+", line):
            continue  # skip the header: the number of words and the vector size
        size = size or line.count(" ")
        word, *values = line.rsplit(" ", size)
        if not size or len(values) < size or not word:
            expected = f"a word and {size} numbers, separated by spaces" if size else LINE_FORMAT
            raise InputError(f"{path}:{number + 1}: expected {expected}, found {shorten(line)}")
        if word in symbols:
            try:
                rows.setdefault(symbols[word], torch.tensor([float(value) for value in values]))
            except ValueError as error:
                raise InputError(f"{path}:{number + 1}: expected {LINE_FORMAT}: {error}") from error
    ignored.warn(str(path))
    return rows


def _read_matrix(
    path: Path, symbols: Mapping[str, int], words: Path | str | None, tensor: str | None
) -> dict[int, Tensor]:
    matrix = _open_matrix(path, tensor)
    if words is None:
        index = {number: number for number in symbols.values()}
        if len(matrix) != max(index) + 1:
            raise InputError(
                f"{path}: expected {max(index) + 1} rows, one per symbol, found {len(matrix)}; set "
                "words to a file with the word of each row"
            )
    else:
        spellings = list(read_lines(words))
        if len(spellings) != len(matrix):
            raise InputError(f"{words}: expected {len(matrix)} words, one per row of {path}, found {len(spellings)}")
        index = {}
        for row, spelling in enumerate(spellings):
            if spelling in symbols:
                index.setdefault(symbols[spelling], row)
    return {number: matrix[row].float() for number, row in index.items()}


def _open_matrix(path: Path, tensor: str | None) -> Tensor:
    from safetensors import SafetensorError, safe_open

    check_file(path)
    try:
        with input_errors(path), safe_open(str(path), "pt") as content:
            shapes = {name: content.get_slice(name).get_shape() for name in content.keys()}  # noqa: SIM118
            names = [name for name, shape in shapes.items() if len(shape) == 2]
            if len(names) != 1 if tensor is None else tensor not in names:
                wanted = "one matrix" if tensor is None else f"a matrix {describe(tensor)}"
                found = f"{', '.join(names[:5])}; set tensor to one of these names" if names else "none"
                raise InputError(f"{path}: expected {wanted}, found {found}")
            matrix: Any = content.get_tensor(tensor or names[0])
    except SafetensorError as error:
        raise InputError(f"{path}: not a safetensors file: {' '.join(str(error).split())}") from error
    if not matrix.is_floating_point():
        raise InputError(f"{path}: expected a matrix of floating-point numbers, found {matrix.dtype}")
    return matrix
