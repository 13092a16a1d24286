"""Make the C library reuse the large memory blocks that an update frees."""

from __future__ import annotations

import ctypes
import os

SWITCH = "TSALLIS_REUSE_MEMORY"
# Variables that glibc reads; if one is set, keep it.
SETTINGS = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")
TUNABLES = "GLIBC_TUNABLES"
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h
NEVER = 2**31 - 1


def reuse_memory() -> bool:
    """Make the C library hold on to memory that is freed, until the process ends.

    glibc gives large blocks back when they are freed, and the next update gets them page by page, filled with zeros.
    Gradients of large embeddings and scores of large vocabularies are such blocks. The setting is of the whole process,
    so that only programs make it, such as `tsallis train`. It is left as it is where `TSALLIS_REUSE_MEMORY` is 0, where
    an environment variable of glibc decides, and with another C library.

    Returns:
        True where it was set.

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
        library.gnu_get_libc_version  # noqa: B018 (other libraries may have a mallopt of other parameters)
        mallopt = library.mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, NEVER))
