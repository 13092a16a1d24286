"""Tilings that split small rows like long ones, for tests of the row kernels for GPUs."""

from __future__ import annotations

from collections.abc import Callable

from tsallis.ops.triton import maps

ALPHAS = [1.0, 1 + 1e-6, 1.001, 1.05, 1.25, 4 / 3, 1.5, 1.9, 2.0]
LISTS = maps.Long(lanes=32, width=32, depth=6, room=128, warps=1, stages=1, programs=2, parts=1)
PATHS = {
    "short": None,
    "lists": LISTS,
    "full": LISTS._replace(depth=1),  # the lists become full
    "parts": LISTS._replace(lanes=16, width=16, parts=2),
}
# For tests that are slow in the interpreter: two paths have four alphas. The other paths have only 1.25, which needs
# general powers, and 1.5, which needs none.
PATHS_AND_ALPHAS = [("short", 1.0), ("short", 2.0), ("lists", 1.0), ("lists", 2.0)]
PATHS_AND_ALPHAS += [(path, alpha) for path in PATHS for alpha in (1.25, 1.5)]


def tiling(path: str) -> Callable[..., maps.Short | maps.Long]:
    """Return a replacement for the `tiling` function of the kernels."""

    def cut(rows: int, d: int, *_: int) -> maps.Short | maps.Long:
        width = maps.pad_size(d)
        short = maps.Short(2, width, width // 4 if width >= 8 else width, 1)
        return short if d == 1 else PATHS[path] or short  # Triton 3.6 can't compile a sweep of rows of one score

    return cut
