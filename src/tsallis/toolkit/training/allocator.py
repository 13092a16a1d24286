"""Make the C library reuse the large memory blocks that an update frees."""

from __future__ import annotations

import ctypes
import os

SWITCH = "TSALLIS_REUSE_MEMORY"
# Environment variables that configure glibc. If the user has set any, nothing is changed.
SETTINGS = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")
TUNABLES = "GLIBC_TUNABLES"
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # constants of malloc.h
NEVER = 2**31 - 1


def reuse_memory() -> bool:
    """Make the C library keep freed memory for reuse until the process ends.

    By default, glibc returns large freed blocks to the system. The next update gets them back page by page, filled with
    zeros, which is slow. Gradients of large embeddings and scores of large vocabularies are such blocks. The setting
    affects the whole process, so only programs such as `tsallis train` change it. Nothing is changed if
    `TSALLIS_REUSE_MEMORY` is 0, if an environment variable configures glibc, or if the C library is not glibc.

    Returns:
        Whether the setting was changed.

    Example:
        >>> reuse_memory() in (True, False)
        True
    """
    if os.environ.get(SWITCH) == "0" or "malloc" in os.environ.get(TUNABLES, ""):
        return False
    if any(name in os.environ for name in SETTINGS):
        return False
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 (in other C libraries, mallopt may have other parameters)
        mallopt = library.mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, NEVER))
