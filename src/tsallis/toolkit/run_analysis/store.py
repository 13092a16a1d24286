"""Recordings in folders, in parts that are read one at a time.

manifest.json               format, layers, and the size and SHA-256 of each part; its presence makes the folder whole
part-00000.safetensors      of some sentences, one after the other:
    texts     uint8    UTF-8 of JSON: [[index, [source pieces], [target pieces]], ...]
    shapes    int32    [sentences * layers, 3]: heads, queries, keys
    support   int32    non-zeros of each row [rows]
    columns   int32    [non-zeros]
    values    float32  [non-zeros]
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from tsallis.analysis.record import Recording
from tsallis.analysis.weights import AttentionLayer, Sentence, SparseWeights, Text
from tsallis.errors import InputError
from tsallis.toolkit.data.io import read_bytes, read_json, write_atomic

FORMAT, MANIFEST = 1, "manifest.json"
NON_ZEROS = 1 << 20  # of a part, from which on the next sentence goes to a new one
SENTENCES = 4096  # of a part, at most


def save_recording(recording: Recording, folder: Path | str) -> None:
    """Write a recording to a new folder, sentence by sentence; the folder is there only when it is whole.

    Args:
        recording: of a model.
        folder: one that does not exist.

    Raises:
        InputError: a path that is taken, or no sentences.

    Example:
        >>> recording = Recording([AttentionLayer("encoder", 0, (1.5,))], [Sentence.of([[[1, 0], [0.5, 0.5]]])])
        >>> folder = Path(tempfile.mkdtemp()) / "recording"
        >>> save_recording(recording, folder)
        >>> [sentence.weights[0].columns.tolist() for sentence in load_recording(folder)]
        [[0, 0, 1]]
    """
    folder = Path(folder)
    if folder.exists():
        raise InputError(f"{folder}: is there already; choose another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        parts = [_write_part(temporary, number, part) for number, part in enumerate(_parts(recording))]
        if not parts:
            raise InputError(f"{folder}: there are no sentences to save")
        layers = [asdict(layer) for layer in recording.layers]
        write_atomic(temporary / MANIFEST, json.dumps({"format": FORMAT, "layers": layers, "parts": parts}, indent=1))
        umask = os.umask(0)  # a temporary folder is private; this one is shared like any other of its user
        os.umask(umask)
        os.chmod(temporary, 0o777 & ~umask)
        os.rename(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def load_recording(folder: Path | str) -> Recording:
    """Open a saved recording; its parts are read, and checked, when it is iterated over.

    Args:
        folder: of the recording.

    Returns:
        The recording, whose sentences are read anew at each iteration.

    Raises:
        InputError: a folder that is no recording, or one that is damaged.

    Example:
        >>> folder = Path(tempfile.mkdtemp()) / "recording"
        >>> layer = AttentionLayer("encoder", 0, (1.5,))
        >>> save_recording(Recording([layer], [Sentence.of([[[1, 0], [0.5, 0.5]]])]), folder)
        >>> load_recording(folder).layers == (layer,)
        True
    """
    folder = Path(folder)
    path = folder / MANIFEST
    manifest = read_json(path)
    if manifest.get("format") != FORMAT:
        raise InputError(f"{path}: recording format {manifest.get('format')!r}, this program reads {FORMAT}")
    try:
        layers = [
            AttentionLayer(str(x["kind"]), int(x["layer"]), tuple(map(float, x["alphas"])), bool(x["causal"]))
            for x in manifest["layers"]
        ]
        parts = [_Part(str(x["name"]), int(x["size"]), str(x["sha256"])) for x in manifest["parts"]]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not the manifest of a recording: {error}") from error
    return Recording(layers, _SavedSentences(folder, layers, parts))


@dataclass(frozen=True)
class _Part:
    """A file of the folder."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class _SavedSentences:
    """Sentences that are read from a folder when they are iterated over."""

    folder: Path
    layers: list[AttentionLayer]
    parts: list[_Part]

    def __iter__(self) -> Iterator[Sentence]:
        for part in self.parts:
            path = self.folder / Path(part.name).name
            blob = read_bytes(path)
            if len(blob) != part.size or hashlib.sha256(blob).hexdigest() != part.sha256:
                raise InputError(f"{path}: not the file the manifest describes: it was changed or cut")
            try:
                yield from _unpack(safetensors.numpy.load(blob), self.layers)
            except (safetensors.SafetensorError, KeyError, TypeError, ValueError, IndexError) as error:
                raise InputError(f"{path}: not a part of a recording: {error}") from error


def _parts(recording: Recording) -> Iterator[list[Sentence]]:
    part: list[Sentence] = []
    size = 0
    for sentence in recording:
        part.append(sentence)
        size += sum(len(weights.values) for weights in sentence.weights)
        if size >= NON_ZEROS or len(part) == SENTENCES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _write_part(folder: Path, number: int, sentences: list[Sentence]) -> dict[str, Any]:
    name = f"part-{number:05d}.safetensors"
    blob = safetensors.numpy.save(_pack(sentences))
    write_atomic(folder / name, blob)
    return asdict(_Part(name, len(blob), hashlib.sha256(blob).hexdigest()))


def _pack(sentences: list[Sentence]) -> dict[str, NDArray[Any]]:
    weights = [weights for sentence in sentences for weights in sentence.weights]
    texts = json.dumps([[s.text.index, s.text.source, s.text.target] for s in sentences], ensure_ascii=False)
    return {
        "texts": np.frombuffer(texts.encode("utf-8"), np.uint8),
        "shapes": np.array([w.shape for w in weights], np.int32).reshape(-1, 3),
        "support": np.concatenate([np.diff(w.offsets) for w in weights]).astype(np.int32),
        "columns": np.concatenate([w.columns for w in weights]),
        "values": np.concatenate([w.values for w in weights]),
    }


def _unpack(arrays: dict[str, NDArray[Any]], layers: list[AttentionLayer]) -> Iterator[Sentence]:
    texts = json.loads(arrays["texts"].tobytes().decode("utf-8"))
    shapes, support = arrays["shapes"], arrays["support"].astype(np.int64)
    if len(shapes) != len(texts) * len(layers) or len(arrays["columns"]) != support.sum():
        raise ValueError("its arrays do not belong together")
    row = first = 0
    for number, (index, source, target) in enumerate(texts):
        weights = []
        for heads, queries, keys in shapes[number * len(layers) : (number + 1) * len(layers)].tolist():
            offsets = np.concatenate([[0], support[row : row + heads * queries].cumsum()])
            part = slice(first, first + int(offsets[-1]))
            columns, values = arrays["columns"][part], arrays["values"][part]
            weights.append(SparseWeights(offsets, columns, values, (heads, queries, keys)))
            row, first = row + heads * queries, part.stop
        yield Sentence(Text(int(index), tuple(source), tuple(target)), tuple(weights))
