"""Compile the CPU kernel: `python build.py [--sanitize] [--out PATH]`.

This file imports only the standard library, because build hooks run it before the package is installed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "csrc"
LIBRARY = HERE / "_kernel.so"
NO_KERNEL = "_no_kernel.txt"  # file in the library's folder that says why there is no library
LEFT_OUT = "left out of this installation"

COMMON = (
    *("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"),
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
)
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-O1", "-g")
UNITS = {"float": ("F32", "BF16", "F16"), "double": ("F64",)}  # storage types that are computed in each C++ type
PORTABLE = {"portable": ()}
# GCC's AVX-512 intrinsics pass an undefined operand, and GCC warns about it in the code that calls them.
FALSE_ALARM = ("-Wno-uninitialized", "-Wno-maybe-uninitialized")
X86 = {
    "avx2": ("-march=x86-64-v3",),
    "avx512": ("-march=x86-64-v4",),
    "avx512bf16": ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni"),
}
BETTER = {"avx512bf16": {"bfloat16": ("BF16",)}}  # compile these sets only for the storage types that they speed up


class BuildError(Exception):
    """Raised if there is no compiler or the compilation fails; the message gives the reason."""


class Compiler(NamedTuple):
    """A C++ compiler that works on this machine."""

    command: tuple[str, ...]
    machine: str
    gnu: bool

    @property
    def x86(self) -> bool:
        return self.machine.split("-")[0] in ("x86_64", "amd64")


def sources(folder: Path = SOURCES) -> list[Path]:
    """Return the C++ files of a folder, sorted by name."""
    return sorted((p for p in folder.iterdir() if p.suffix in (".cpp", ".h")), key=lambda p: p.name)


def source_hash(folder: Path = SOURCES) -> str:
    """Return a hash (16 hex digits) of the names and contents of the sources and of this file."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sources(folder):
        content = path.read_bytes()
        # The length keeps the end of one file and the name of the next apart.
        digest.update(f"{path.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def find_compiler() -> Compiler:
    """Return the compiler named by CXX, or the first of c++, g++ and clang++ that works."""
    chosen = os.environ.get("CXX", "").strip()
    problems = []
    for command in [chosen] if chosen else ["c++", "g++", "clang++"]:
        try:
            return _probe(tuple(shlex.split(command)))
        except (BuildError, ValueError) as problem:
            problems.append(str(problem))
    raise BuildError(f"no C++ compiler{' (CXX is set)' if chosen else ''}: {'; '.join(problems)}")


def is_current(library: Path) -> bool:
    """Return whether a library was compiled from these sources; always False if CXX is set."""
    return "CXX" not in os.environ and library.is_file() and source_hash().encode() in library.read_bytes()


def build(out: Path = LIBRARY, sanitize: bool = False) -> Path:
    """Compile the kernel and write it to `out`; a failed compilation leaves no partial file."""
    compiler = find_compiler()
    out = Path(out).absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f"{out.name}.{os.getpid()}")
    extra = SANITIZE if sanitize else ()
    with tempfile.TemporaryDirectory(prefix="tsallis-") as folder, ThreadPoolExecutor(_processors()) as pool:
        commands = _compilations(compiler, Path(folder), extra)
        try:
            list(pool.map(_run, commands.values()))
            _run((*compiler.command, *_linking(compiler, sanitize), "-o", str(partial), *map(str, commands)))
            os.replace(partial, out)
        finally:
            partial.unlink(missing_ok=True)
    return out


def _processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _compilations(compiler: Compiler, folder: Path, extra: tuple[str, ...]) -> dict[Path, tuple[str, ...]]:
    """Return the command that compiles each object file, in the order of linking."""
    # The portable objects come first: if several objects contain an inline function, the linker keeps the first copy,
    # which must run on every machine.
    library = [f'-DTSALLIS_SOURCE="{source_hash()}"', *(["-DTSALLIS_WITH_X86"] if compiler.x86 else [])]
    units = {"library": ("bindings.cpp", library)}
    for isa, flags in {**PORTABLE, **(X86 if compiler.x86 else {})}.items():
        quiet = FALSE_ALARM if isa.startswith("avx512") and compiler.gnu else ()
        for name, storages in BETTER.get(isa, UNITS).items():
            tables = (f"-DTSALLIS_{storage}" for storage in storages)
            units[f"rows-{isa}-{name}"] = ("isa.cpp", [f"-DTSALLIS_ISA={isa}", *tables, *flags, *quiet])
        units[f"decoding-{isa}"] = ("decoding.cpp", [f"-DTSALLIS_ISA={isa}", *flags, *quiet])
    return {
        folder / f"{name}.o": (
            *(*compiler.command, *COMMON, *extra, *flags),
            *("-c", str(SOURCES / source), "-o", str(folder / f"{name}.o")),
        )
        for name, (source, flags) in units.items()
    }


def _linking(compiler: Compiler, sanitize: bool) -> tuple[str, ...]:
    # Link the shared runtime, because a sanitizer intercepts the calls into it.
    if sanitize:
        return ("-shared", *SANITIZE)
    # Link the runtime statically and hide its symbols: the library neither exports its copy nor uses another.
    own = ("-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL") if compiler.gnu else ()
    return ("-shared", *own)


def _probe(command: tuple[str, ...]) -> Compiler:
    """Return the compiler behind a command; raise if it cannot preprocess C++17 with a standard header."""
    machine = _run((*command, "-dumpmachine"))
    macros = _run((*command, "-std=c++17", "-x", "c++", "-dM", "-E", "-"), text="#include <cstdint>\n")
    return Compiler(command, machine.strip(), gnu="__ELF__" in macros and "__clang__" not in macros)


def _run(command: tuple[str, ...], text: str = "") -> str:
    """Run a command and return its output; print its warnings and raise a BuildError if it fails."""
    try:
        process = subprocess.run(command, input=text, capture_output=True, text=True, errors="replace")
    except OSError as problem:
        raise BuildError(f"{command[0]}: {problem.strerror or problem}") from None
    if process.returncode:
        raise BuildError(f"{shlex.join(command)} failed ({process.returncode}):\n{process.stderr.strip()}")
    sys.stderr.write(process.stderr)
    return process.stdout


def main() -> None:
    """Build the kernel with the options of the command line and print its path."""
    parser = argparse.ArgumentParser(description="Compile the CPU kernel.")
    parser.add_argument("--out", type=Path, help="path of the library (default: the folder of this file)")
    parser.add_argument("--sanitize", action="store_true", help="build with address and undefined behaviour sanitizers")
    options = parser.parse_args()
    if options.sanitize and not options.out:
        # At the default path, every process would load this library and abort without the sanitizer's runtime.
        parser.error("--sanitize needs --out")
    try:
        print(build(options.out or LIBRARY, options.sanitize))
    except BuildError as problem:
        sys.exit(f"kernel not built: {problem}")


if __name__ == "__main__":
    main()
