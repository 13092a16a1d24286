"""Store the distributions of a teacher in a folder, and read them as targets of a student.

teacher.json                what the distributions belong to; the digests of all parts once they are complete
part-00000000.safetensors   distributions of the first rows of the data, and so on
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tsallis.errors import InputError, check_real
from tsallis.functional import SparseRows
from tsallis.ops.sparse_rows import CsrRows, concatenate_rows, row_numbers

MANIFEST = "teacher.json"
PART_ROWS = 1024  # number of rows per part
AGAIN = "; remove the folder and write it again"
RENEW = "; remove the file and repeat the distillation"


class Distributions(NamedTuple):
    """Stored distributions of a teacher for every target symbol of the data.

    Args:
        rows: Distributions of all symbols, in the order of the data.
        starts: Number of the first symbol of each row of the data, and the number of symbols [rows + 1].
        symbols: Symbols [symbols] that replace those of the data; None if the teacher read those of the data.
        digest: Digest of the distributions.
    """

    rows: SparseRows
    starts: Tensor
    symbols: Tensor | None
    digest: str

    def mixed(self, reference: Tensor, weight: float) -> SparseRows:
        """Return the distributions with this weight, mixed with the symbols [symbols] of a reference.

        Empty distributions stay empty.
        """
        weight = check_real("weight", weight, 0, 1)
        rows = self.rows
        if weight == 1:
            return rows
        row = row_numbers(rows.offsets, len(rows.indices))
        is_reference = rows.indices == reference[row]
        missing = (rows.offsets.diff() > 0).index_fill(0, row[is_reference], False)
        probs = rows.probs * weight + is_reference * (1 - weight)
        added = probs.new_full((int(missing.sum()),), 1 - weight)
        offsets, indices, probs = concatenate_rows(
            CsrRows(rows.offsets, rows.indices, probs),
            CsrRows(F.pad(missing.cumsum(0), (1, 0)), reference[missing].int(), added),
        )
        return SparseRows(indices, probs, offsets, None if rows.tail is None else rows.tail * weight)


def part_columns(rows: Sequence[SparseRows], lengths: Tensor, symbols: Tensor | None = None) -> dict[str, Tensor]:
    """Return the tensors of a part: the distributions of its symbols, and the number of symbols of each row."""
    columns = {
        "indices": torch.cat([part.indices for part in rows]),
        "probs": torch.cat([part.probs for part in rows]),
        "counts": torch.cat([part.offsets.diff() for part in rows]).int(),
        "lengths": lengths.int(),
    }
    tails = [part.tail for part in rows if part.tail is not None]
    if tails:
        columns["tail"] = torch.cat(tails)
    return columns if symbols is None else {**columns, "symbols": symbols.int()}


def write_distributions(
    folder: Path,
    facts: Mapping[str, Any],
    rows: int,
    compute: Callable[[int, int], dict[str, Tensor]],
) -> dict[str, Any]:
    """Write the distributions of all rows in parts, and return the manifest.

    If the folder contains parts of the same distributions, only the missing parts are computed.

    Args:
        folder: Folder of the distributions.
        facts: What determines the distributions, for the manifest: digests and settings.
        rows: Number of rows of the data.
        compute: Function that returns the part (see :func:`part_columns`) from one row up to another.

    Raises:
        InputError: If the folder contains other distributions, or a damaged part.
    """
    from safetensors.torch import save

    facts = {"format": 1, "rows": rows, **facts}
    if (folder / MANIFEST).exists():
        previous = read_manifest(folder)
        if mismatched := [name for name, value in facts.items() if previous.get(name) != value]:
            expected = f"expected distributions of the same {' and '.join(mismatched)}, found others"
            raise InputError(f"{folder / MANIFEST}: {expected}; choose another folder")
    elif any(not path.name.startswith(".") for path in folder.glob("*")):
        raise InputError(f"{folder}: the folder is not empty and contains no distributions; choose another folder")
    else:
        previous = {}
    known: dict[str, str] = previous.get("parts") or {}
    parts, entries, tokens = {}, 0, 0
    for start in range(0, rows, PART_ROWS):
        path, stop = folder / f"part-{start:08}.safetensors", min(start + PART_ROWS, rows)
        if not path.exists():
            blob = save(compute(start, stop))
            if not previous:  # not earlier: a call that fails leaves the folder as it was
                folder.mkdir(parents=True, exist_ok=True)
                _replace(folder / MANIFEST, json.dumps(facts, indent=1).encode())
                previous = facts
            _replace(path, blob)
            known.pop(path.name, None)
        parts[path.name], part = _read_part(path)
        if known.get(path.name, parts[path.name]) != parts[path.name]:
            raise InputError(f"{path}: expected the digest in {MANIFEST}, found {parts[path.name]}{RENEW}")
        entries, tokens = entries + len(part["indices"]), tokens + len(part["counts"])
    manifest = {**facts, "entries": entries, "tokens": tokens, "parts": parts}
    _replace(folder / MANIFEST, json.dumps(manifest, indent=1).encode())
    return manifest


def _replace(path: Path, blob: bytes) -> None:
    """Write a file atomically. A killed process leaves a file that the next one overwrites."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_bytes(blob)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise InputError(f"{path}: can't be written: {error.strerror or error}") from error


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the content of `teacher.json`; raise an InputError if it is missing or damaged."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror or error}; run the distillation first") from error
    except (ValueError, RecursionError):
        manifest = None
    parts = manifest.get("parts") or {} if isinstance(manifest, dict) else None
    valid_names = isinstance(parts, dict) and all(re.fullmatch(r"part-\d{8}\.safetensors", name) for name in parts)
    if not isinstance(manifest, dict) or manifest.get("format") != 1 or not valid_names:
        raise InputError(f"{path}: not a manifest of distributions{AGAIN}")
    return manifest


def read_distributions(folder: Path, data: str, vocabulary: str) -> Distributions:
    """Read the distributions of a teacher.

    Args:
        folder: Folder of the distributions.
        data: Digest of the data.
        vocabulary: Fingerprint of the target vocabulary.

    Raises:
        InputError: If the distributions are incomplete or damaged, or belong to other data or another vocabulary.
    """
    manifest = read_manifest(folder)
    for name, value in (("vocabulary", vocabulary), ("data", data)):
        if manifest.get(name) != value:
            kind = {"vocabulary": "target vocabulary", "data": "training data"}[name]
            raise InputError(
                f"{folder / MANIFEST}: expected distributions for this {kind}, found others; write new ones"
            )
    if not manifest.get("parts"):
        raise InputError(f"{folder / MANIFEST}: the folder is unfinished; repeat the distillation")
    columns: dict[str, list[Tensor]] = {}
    for name, digest in manifest["parts"].items():
        found, part = _read_part(folder / name)
        if found != digest:
            raise InputError(f"{folder / name}: expected the digest in {MANIFEST}, found {found}{RENEW}")
        for key, column in part.items():
            columns.setdefault(key, []).append(column)
    values = {key: torch.cat(parts) for key, parts in columns.items()}
    offsets, starts = (F.pad(values[key].long().cumsum(0), (1, 0)) for key in ("counts", "lengths"))
    try:
        rows = SparseRows(values["indices"], values["probs"], offsets, values.get("tail"))
    except (TypeError, ValueError) as error:
        raise InputError(f"{folder}: expected sparse rows, found: {error}{AGAIN}") from error
    if int(starts[-1]) != len(rows):
        raise InputError(f"{folder}: expected {int(starts[-1])} distributions, found {len(rows)}{AGAIN}")
    digest = hashlib.sha256(f"{sorted(manifest['parts'].items())}".encode()).hexdigest()
    return Distributions(rows, starts, values.get("symbols"), digest)


def _read_part(path: Path) -> tuple[str, dict[str, Tensor]]:
    """Return the digest and the tensors of a part."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        blob = path.read_bytes()
        part = load(blob)
        if {"indices", "probs", "counts", "lengths"} <= set(part):
            return hashlib.sha256(blob).hexdigest(), part
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror or error}; repeat the distillation") from error
    except (SafetensorError, ValueError, KeyError, TypeError):
        pass
    raise InputError(f"{path}: not a file of distributions{RENEW}")
