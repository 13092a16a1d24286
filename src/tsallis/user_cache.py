"""The folder where the package caches what is costly to compute again."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """Return the folder `tsallis` in the user's cache folder, `XDG_CACHE_HOME` or `~/.cache`.

    Raises:
        RuntimeError: nobody knows the user's home.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tsallis"
