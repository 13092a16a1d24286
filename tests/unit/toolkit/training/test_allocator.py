"""Freed memory blocks are reused without page faults, unless the user configures the allocator."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from tsallis.toolkit.training import allocator

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc: its allocator alone is set")
CODE = """\
import ctypes, resource, runpy, sys

if sys.argv[1] == "call":
    print(runpy.run_path(sys.argv[2])["reuse_memory"]())
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def use():
    block = libc.malloc(64 << 20)
    ctypes.memset(block, 1, 64 << 20)
    libc.free(block)

use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def run(what: str, **environment: str) -> list[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    own.pop("LD_PRELOAD", None)
    command = [sys.executable, "-c", CODE, what, str(allocator.__file__)]
    done = subprocess.run(command, env=own | environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


@glibc
def test_reused_blocks_avoid_page_faults() -> None:
    (fresh,) = run("leave")
    said, reused = run("call")
    assert said == "True"
    assert int(fresh) > 100 > int(reused)  # a block has 16,384 pages of 4 KB or at least 32 huge ones


@glibc
@pytest.mark.parametrize(
    "environment",
    [
        {"TSALLIS_REUSE_MEMORY": "0"},
        {"MALLOC_MMAP_MAX_": "65536"},
        {"MALLOC_TRIM_THRESHOLD_": "131072"},
        {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"},
    ],
    ids=str,
)
def test_user_settings_disable_reuse_memory(environment: dict[str, str]) -> None:
    said, faults = run("call", **environment)
    assert said == "False" and int(faults) > 100


def test_reuse_memory_returns_false_without_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: object())
    assert allocator.reuse_memory() is False
