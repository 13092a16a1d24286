"""The table of backends. A backend is imported when it is first needed."""

from __future__ import annotations

import functools
import importlib
from typing import NamedTuple, cast

from tsallis.ops.protocol import AttentionKernels, Backend, Capabilities
from tsallis.ops.tracing import constant


class Entry(NamedTuple):
    """A line of the table of backends."""

    module: str
    devices: tuple[str, ...]  # the types of devices on which "auto" means this backend; of several the first usable one
    self_check: bool = False  # whether "auto" means only what agrees with PyTorch's operations; after all without one


BACKENDS = {
    "eager": Entry("tsallis.ops.eager", ()),
    "cpu": Entry("tsallis.ops.cpu", ("cpu",)),
    "triton": Entry("tsallis.ops.triton", ("cuda",), self_check=True),
}


@functools.cache
def load(name: str) -> Backend:
    """Return a backend by its name; Triton's is imported here, and only here."""
    return cast(Backend, importlib.import_module(BACKENDS[name].module))


@functools.cache
def load_attention(name: str) -> AttentionKernels:
    """Return a backend's attention by the backend's name."""
    return cast(AttentionKernels, importlib.import_module(f"{BACKENDS[name].module}.attention"))


@constant
def capabilities(name: str) -> Capabilities:
    """Return what a backend computes and how."""
    return load(name).CAPABILITIES
