"""The kinds of devices on which the kernels are known to be right: there no self-check runs.

An entry is what :func:`tsallis.ops.triton.device_kind` says of a device where `make test-gpu` passed and rows of
`benchmarks/results` were committed; `tsallis info --check` prints it. What an entry leaves out (the driver, say) may be
anything. The digest of the kernels' sources is part of it: an entry ends when a kernel changes.
"""

from __future__ import annotations

from collections.abc import Mapping

EVIDENCE: tuple[Mapping[str, str], ...] = ()


def has_evidence(kind: Mapping[str, str]) -> bool:
    """Tell whether an entry is about this kind of devices."""
    return any(entry and all(kind.get(name) == value for name, value in entry.items()) for entry in EVIDENCE)
