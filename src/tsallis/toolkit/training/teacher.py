"""Stored distributions of a teacher for the training data: `tsallis distill` writes them, `tsallis train` reads them.

teacher.json                what the distributions belong to; the digests of all parts once they are complete
part-00000000.safetensors   distributions of the first rows of the training data, and so on
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor

from tsallis.errors import InputError
from tsallis.functional import SparseRows
from tsallis.models.batch import Batch, has_loss
from tsallis.models.protocol import device_of
from tsallis.ops.sparse_rows import CsrRows, concatenate_rows, row_numbers
from tsallis.search.step import eval_mode
from tsallis.symbols import IGNORE_INDEX
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.data.io import read_bytes, remove_leftovers, write_atomic
from tsallis.toolkit.evaluation.teacher_forcing import AT_ONCE
from tsallis.toolkit.training.lock import locked
from tsallis.toolkit.training.schema import TeacherRecord, as_json, read_record

MANIFEST = "teacher.json"
PART_ROWS = 1024  # number of rows per part
BATCH_ROWS = 64


@dataclass(frozen=True)
class Teacher:
    """Distributions of a teacher for every target symbol of the training data.

    Args:
        rows: Distributions of all symbols, in the order of the data.
        starts: Number of the first symbol of each row of the data, and the number of symbols [rows + 1].
        weight: Share of the teacher in the targets; the reference has the rest.
        digest: Digest of all distributions.
    """

    rows: SparseRows
    starts: Tensor
    weight: float
    digest: str

    def targets(self, batch: Batch) -> SparseRows:
        """Return the target of each position of a batch, in the order of `tgt_out.flatten()`.

        Positions without a loss are empty.
        """
        index = torch.tensor(batch.index)
        first, counted = self.starts[index], batch.tgt_out != IGNORE_INDEX
        if not torch.equal(self.starts[index + 1] - first, counted.sum(1)):
            raise InputError("the teacher's distributions do not fit the lengths of the training data")
        known = has_loss(batch.tgt_out)
        position = first.unsqueeze(1) + counted.cumsum(1) - 1
        rows = self.rows[torch.where(known, position, -1).flatten()]
        if self.weight == 1:
            return rows
        reference, known = batch.tgt_out.flatten(), known.flatten()
        row = row_numbers(rows.offsets, len(rows.indices))
        same = rows.indices == reference[row]
        probs = rows.probs * self.weight + same * (1 - self.weight)
        missing = known.index_fill(0, row[same], False)
        added = F.pad(missing.cumsum(0), (1, 0)), reference[missing].int(), probs.new_full((int(missing.sum()),), 1.0)
        added[2].mul_(1 - self.weight)
        offsets, indices, probs = concatenate_rows(CsrRows(rows.offsets, rows.indices, probs), CsrRows(*added))
        return SparseRows(indices, probs, offsets)


def write_teacher(
    model: Any,
    corpus: Corpus,
    vocabulary: str,
    teachers: list[str],
    folder: Path,
    watch: Callable[[int], None] = lambda rows: None,
) -> TeacherRecord:
    """Write the distributions of a model for every target symbol, with teacher forcing.

    If the folder contains parts of the same distributions, only the missing parts are computed.

    Args:
        model: Model or ensemble.
        corpus: Training data.
        vocabulary: Fingerprint of the target vocabulary.
        teachers: Digest of the parameters of each model.
        folder: Folder of the distributions.
        watch: Function that is called with the number of rows that are complete, after each part.

    Raises:
        InputError: If the probabilities do not sum to 1, the data differ in every epoch, or the folder contains
            other distributions.
    """
    if not model.output.normalized:
        raise InputError("the probabilities of an alpha-ReLU teacher do not sum to 1: use a teacher with entmax")
    _check_data(corpus)
    record = TeacherRecord(data=corpus.digest(), vocabulary=vocabulary, rows=len(corpus), teachers=teachers)
    with locked(folder):
        if (folder / MANIFEST).exists():
            before = read_record(folder / MANIFEST, TeacherRecord)
            of_parts: dict[str, Any] = {"entries": None, "tokens": None, "parts": None}
            if before.model_copy(update=of_parts) != record:
                raise InputError(f"{folder}: holds distributions of other teachers or data: choose another folder")
            if before.parts is not None:
                return before
        else:
            _write_record(folder, record)
        starts = range(0, len(corpus), PART_ROWS)
        names = {f"part-{start:08}.safetensors": start for start in starts}
        remove_leftovers(folder, names)
        digests, entries, tokens = {}, 0, 0
        for name, start in names.items():
            stop = min(start + PART_ROWS, len(corpus))
            if not (folder / name).exists():
                write_atomic(folder / name, safetensors.torch.save(_distributions(model, corpus, start, stop)))
            blob = read_bytes(folder / name, None)
            part = _read_part(folder / name, blob)
            digests[name] = hashlib.sha256(blob).hexdigest()
            entries, tokens = entries + len(part["indices"]), tokens + len(part["counts"])
            watch(stop)
        record = record.model_copy(update={"entries": entries, "tokens": tokens, "parts": digests})
        _write_record(folder, record)
    return record


def _check_data(corpus: Corpus) -> None:
    if not corpus.same_every_epoch:
        raise InputError("the training data differ in every epoch: set data.subwords.sample to 0, or read files")


def _write_record(folder: Path, record: TeacherRecord) -> None:
    write_atomic(folder / MANIFEST, f"{json.dumps(as_json(record), indent=1)}\n")


@torch.no_grad()
def _distributions(model: Any, corpus: Corpus, start: int, stop: int) -> dict[str, Tensor]:
    """Return the symbols, their probabilities, the entries per symbol and the symbols per row of some rows."""
    device, parts, lengths = device_of(model), [], []
    with eval_mode(model):
        for first in range(start, stop, BATCH_ROWS):
            batch = corpus.batch(range(first, min(first + BATCH_ROWS, stop)))
            hidden = model(batch.src.to(device), batch.src_lengths.to(device), batch.tgt_in.to(device)).hidden
            mask = batch.tgt_out != IGNORE_INDEX
            hidden = hidden[mask.to(device)]  # [symbols, d_model]
            width = max(1, AT_ONCE // model.output.scores(hidden[:1]).shape[-1])
            for piece in hidden.split(width):
                parts.append(SparseRows.from_dense(model.output.probs(model.output.scores(piece)).cpu()))
            lengths.append(mask.sum(1))
    return {
        "indices": torch.cat([part.indices for part in parts]),
        "probs": torch.cat([part.probs for part in parts]),
        "counts": torch.cat([part.offsets.diff() for part in parts]).int(),
        "lengths": torch.cat(lengths).int(),
    }


def _read_part(path: Path, blob: bytes) -> Mapping[str, Tensor]:
    """Return the tensors of a part."""
    try:
        part = safetensors.torch.load(blob)
        if set(part) == {"indices", "probs", "counts", "lengths"}:
            return part
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError):
        pass
    raise InputError(f"{path}: not a part of a teacher's distributions: remove it and run tsallis distill again")


def read_teacher(folder: Path, corpus: Corpus, vocabulary: str, weight: float) -> Teacher:
    """Read the distributions of a teacher.

    Args:
        folder: Folder that `tsallis distill` wrote.
        corpus: Training data.
        vocabulary: Fingerprint of the target vocabulary.
        weight: Share of the teacher in the targets.

    Raises:
        InputError: If the distributions are incomplete or damaged, or belong to other data or another vocabulary.
    """
    _check_data(corpus)
    record = read_record(folder / MANIFEST, TeacherRecord)
    if record.parts is None:
        raise InputError(f"{folder}: incomplete: run tsallis distill again, which resumes")
    if record.vocabulary != vocabulary:
        raise InputError(f"{folder}: written for another target vocabulary than that of the data")
    if record.data != corpus.digest():
        raise InputError(f"{folder}: written for other training data ({record.rows} rows, found {len(corpus)})")
    columns: dict[str, list[Tensor]] = {"indices": [], "probs": [], "counts": [], "lengths": []}
    for name, digest in record.parts.items():
        blob = read_bytes(folder / name, None)
        if hashlib.sha256(blob).hexdigest() != digest:
            raise InputError(f"{folder / name}: damaged: its digest is not that of {MANIFEST}")
        for key, value in _read_part(folder / name, blob).items():
            columns[key].append(value)
    values = {key: torch.cat(parts) for key, parts in columns.items()}
    offsets, starts = (F.pad(values[key].long().cumsum(0), (1, 0)) for key in ("counts", "lengths"))
    try:
        rows = SparseRows(values["indices"], values["probs"], offsets)
    except (TypeError, ValueError) as error:
        raise InputError(f"{folder}: {error}") from error
    digest = hashlib.sha256(f"{sorted(record.parts.items())} {weight!r}".encode()).hexdigest()
    return Teacher(rows, starts, weight, digest)
