"""List the backends; each is imported when it is first needed."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from tsallis.ops.protocol import OPERATIONS, AttentionKernels, Backend, Capabilities, Status
from tsallis.ops.tracing import constant


class Entry(NamedTuple):
    """Entry of the table of backends."""

    module: str
    devices: tuple[str, ...]  # types of device on which "auto" tries this backend; the first usable entry wins


BACKENDS = {
    "eager": Entry("tsallis.ops.eager", ()),
    "cpu": Entry("tsallis.ops.cpu", ("cpu",)),
    "triton": Entry("tsallis.ops.triton", ("cuda",)),
}


def _always() -> Status:
    return Status(True, "always available")


def _on_cpu(kind: str) -> bool:
    return kind == "cpu"


# Defaults of functions that a backend may omit.
DEFAULTS: dict[str, Callable[..., Any]] = {"status": _always, "usable": lambda: True, "on_device": _on_cpu}


@functools.cache
def load(name: str) -> Backend:
    """Import a backend by its name, and check that it defines the functions of its operations.

    Raises:
        TypeError: A function is missing, or an operation is unknown.
    """
    backend = cast(Backend, importlib.import_module(BACKENDS[name].module))
    operations = backend.CAPABILITIES.operations
    if unknown := set(operations) - set(OPERATIONS):
        raise TypeError(f"backend {name!r}: operations must be among {', '.join(OPERATIONS)}, got {min(unknown)!r}")
    if "output layer" in operations and not {"losses", "alpha-ReLU"} <= set(operations):
        raise TypeError(f"backend {name!r}: 'output layer' needs 'losses' and 'alpha-ReLU', got {operations}")
    for operation in operations:
        if missing := [required for required in OPERATIONS[operation] if not hasattr(backend, required)]:
            raise TypeError(f"backend {name!r}: operation {operation!r} needs a function {missing[0]}")
    for function, default in DEFAULTS.items():
        if not hasattr(backend, function):
            setattr(backend, function, default)
    return backend


@functools.cache
def load_file(name: str, operation: str) -> Any:
    """Import the file with an operation from a backend's folder; return None if the backend has no such operation."""
    if operation not in load(name).CAPABILITIES.operations:
        return None
    return importlib.import_module(f"{BACKENDS[name].module}.{operation}")


def load_attention(name: str) -> AttentionKernels:
    """Import the attention kernels of a backend by its name."""
    return cast(AttentionKernels, load_file(name, "attention"))


@constant
def capabilities(name: str) -> Capabilities:
    """Return the capabilities of a backend by its name."""
    return load(name).CAPABILITIES
