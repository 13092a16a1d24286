"""Subwords learned from files once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from tsallis.data.cache import fingerprint, key_of, locked
from tsallis.data.parallel import stream_lines
from tsallis.data.subwords import Subwords
from tsallis.errors import InputError


def cached_subwords(
    cache_folder: Path | str,
    paths: Sequence[Path | str],
    size: int,
    kind: str = "bpe",
    coverage: float = 1.0,
    split_digits: bool = False,
) -> Subwords:
    """Subwords of some texts together: from the cache where the same files gave some before, or learned now.

    Several processes may ask at once: one of them learns, the others wait for it.

    Raises:
        InputError: as :func:`stream_lines` and :meth:`Subwords.train`; a cache that can't be written.
    """
    cache = Path(cache_folder)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        options = {"kind": kind, "coverage": coverage, "split_digits": split_digits}
        made_from = {"files": [fingerprint(Path(p), cache) for p in paths], "size": size, **options}
        key = key_of(made_from)
        path = cache / f"{key}.model"
        with locked(cache / f"{key}.lock"):
            if path.exists():
                return Subwords.load(path)
            subwords = Subwords.train(chain(*map(stream_lines, paths)), size, kind, coverage, split_digits=split_digits)
            subwords.save(path)
            return subwords
    except OSError as error:
        raise InputError(f"{cache}: can't be used as a cache: {error.strerror or error}") from error
