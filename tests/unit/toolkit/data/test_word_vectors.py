"""Files of word vectors: vectors of a vocabulary, and errors with their location."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tsallis.errors import InputError
from tsallis.toolkit.data.word_vectors import read_word_vectors

SYMBOLS = {"red": 4, "green": 5, ". .": 6, "blue": 7}


def write(folder: Path, text: str) -> Path:
    path = folder / "vectors.txt"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("header", ["", "4 3\n"])
@pytest.mark.parametrize("end", ["\n", " \n"])
def test_glove_and_word2vec_text_is_read(tmp_path: Path, header: str, end: str) -> None:
    """Text files of GloVe and word2vec have words with spaces, repeated words, and spaces at line ends."""
    lines = ["red 1 2 3", ". . 4 5 6e-1", "other 0 0 0", "blue -1 .5 7", "red 9 9 9"]
    path = write(tmp_path, header + "".join(line + end for line in lines))
    vectors = read_word_vectors(path, SYMBOLS)
    assert vectors.numbers == (4, 6, 7)
    assert vectors.matrix.tolist() == torch.tensor([[1, 2, 3], [4, 5, 0.6], [-1, 0.5, 7]]).tolist()
    packed = tmp_path / "vectors.txt.xz"
    packed.write_bytes(lzma.compress(path.read_bytes()))
    assert read_word_vectors(packed, SYMBOLS).matrix.equal(vectors.matrix)


def test_words_may_be_unicode_whitespace(tmp_path: Path) -> None:
    words = ["\x85", "\xa0", "\u3000", "\x0b"]
    path = write(tmp_path, "".join(f"{word} {i} 1\r\n" for i, word in enumerate(words)))
    vectors = read_word_vectors(path, {word: i + 4 for i, word in enumerate(words)})
    assert vectors.numbers == (4, 5, 6, 7) and vectors.matrix[:, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("red 1 2\nblue 1\n", r"vectors\.txt:2: expected a word and 2 numbers, .* found 'blue 1'"),
        ("red 1 x\n", r"vectors\.txt:1: expected a word and its numbers.*'x'"),
        ("red 1 nan\n", r"vectors\.txt: the vector of 'red' must be finite"),
        ("red\n", r"vectors\.txt:1: expected a word and its numbers"),
        ("yellow 1 2\n", r"vectors\.txt: contains no vector for any of the 4 symbols, such as 'red', 'green', '\. \.'"),
        ("", r"vectors\.txt: the file is empty"),
    ],
)
def test_invalid_text_raises(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_word_vectors(write(tmp_path, text), SYMBOLS)


def test_safetensors_with_a_word_list_are_read(tmp_path: Path) -> None:
    path, words = tmp_path / "m.safetensors", tmp_path / "words.txt"
    matrix = torch.randn(4, 3, dtype=torch.float16)
    save_file({"embedding": matrix, "position": torch.zeros(3)}, path)
    words.write_text("blue\nother\nred\nblue\n")
    vectors = read_word_vectors(path, SYMBOLS, words)
    assert vectors.numbers == (4, 7) and vectors.matrix.equal(matrix[[2, 0]].float())
    words.write_text("blue\nred\n")
    with pytest.raises(InputError, match=r"words\.txt: expected 4 words, .*, found 2"):
        read_word_vectors(path, SYMBOLS, words)


def test_safetensors_rows_match_the_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    matrix = torch.randn(8, 2)
    save_file({"a": matrix, "b": torch.zeros(2, 2), "c": torch.zeros(8, 2, dtype=torch.long)}, path)
    assert read_word_vectors(path, SYMBOLS, tensor="a").matrix.equal(matrix[4:])
    for tensor, message in (
        (None, "expected one matrix, found a, b, c; set tensor"),
        ("d", "expected a matrix 'd', found a, b, c"),
        ("b", "expected 8 rows, one per symbol, found 2; set words"),
        ("c", "expected a matrix of floating-point numbers, found torch.int64"),
    ):
        with pytest.raises(InputError, match=message):
            read_word_vectors(path, SYMBOLS, tensor=tensor)
    matrix[5, 1] = torch.inf
    save_file({"a": matrix}, path)
    with pytest.raises(InputError, match="must be finite"):
        read_word_vectors(path, SYMBOLS)


def test_invalid_vector_files_raise(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    with pytest.raises(InputError, match="can't be read: No such file"):
        read_word_vectors(path, SYMBOLS)
    path.write_bytes(b"x" * 100)
    with pytest.raises(InputError, match="not a safetensors file"):
        read_word_vectors(path, SYMBOLS)
    with pytest.raises(InputError, match=r"words and tensor apply only to \.safetensors files"):
        read_word_vectors(write(tmp_path, "red 1\n"), SYMBOLS, tensor="a")
