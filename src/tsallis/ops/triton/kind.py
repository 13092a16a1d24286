"""The kind of a device: all that decides whether kernels which are right on one device are right on another."""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path

import torch

from tsallis.ops.triton import language

DRIVER = Path("/proc/driver/nvidia/version")


@functools.cache
def device_kind(device: torch.device) -> dict[str, str]:
    """Return names and versions of a GPU, or of the interpreter that stands for one."""
    versions = {"torch": torch.__version__, "triton": language.version(), "sources": sources_digest()}
    if device.type != "cuda":
        return {"device": "Triton's interpreter", "capability": "", "driver": "", **versions}
    properties = torch.cuda.get_device_properties(device)
    capability = f"{properties.major}.{properties.minor}"
    return {"device": properties.name, "capability": capability, "driver": driver_version(), **versions}


def driver_version() -> str:
    """Return the version of the driver, and the newest CUDA that it knows, as far as the system tells them."""
    try:
        numbers = re.findall(r"\d+\.\d+(?:\.\d+)?", DRIVER.read_text(encoding="utf-8"))
    except OSError:
        numbers = []
    newest = getattr(torch._C, "_cuda_getDriverVersion", lambda: "")()
    return f"{numbers[0] if numbers else ''} CUDA {newest}".strip()


@functools.cache
def sources_digest() -> str:
    """Return a digest of the kernels' own sources."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
