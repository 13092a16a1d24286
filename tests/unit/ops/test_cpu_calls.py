"""Tests that Python and C++ declare the same structures, and that a library with different ones is not called."""

from __future__ import annotations

import ctypes
import re
import subprocess
from ctypes import c_double, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path

import pytest
import torch

from tsallis.ops import cpu
from tsallis.ops.cpu import build, structs
from unit.ops.test_backend import TRY, python

FOLDER = Path(cpu.__file__).parent
HEADER = re.sub(r"//[^\n]*", "", (FOLDER / "csrc" / "api.h").read_text(encoding="utf-8"))
NUMBERS = {"int32_t": c_int32, "int64_t": c_int64, "uint64_t": c_uint64, "double": c_double}
# The structures of the header and their counterparts in Python.
STRUCTURES = {"Layout": structs.Layout, "Heads": structs.Heads} | {
    "".join(word.capitalize() for word in name.removesuffix("_gradient" * name.startswith("attention")).split("_"))
    + "Call": call
    for name, call in structs.CALLS.items()
    if name not in ("begin", "screened")  # these calls use the structures of "beam" and "screen"
}


def fields(structure: str) -> list[tuple[str, type]]:
    """Return the names and types of a structure's fields, as declared in the header."""
    (body,) = re.findall(rf"struct {structure} {{(.*?)}};", HEADER, re.DOTALL)
    result: list[tuple[str, type]] = []
    for declaration in filter(None, map(str.strip, body.split(";"))):
        kind, names = re.fullmatch(r"(?:const )?(\w+)(.*)", declaration, re.DOTALL).groups()  # type: ignore[union-attr]
        for name, length in re.findall(r"(\w+)(?:\[(\d+)\])?", names):
            own = {**NUMBERS, **STRUCTURES}.get(kind)
            one = c_void_p if "*" in declaration else own
            assert one is not None, declaration
            result.append((name, one * int(length) if length else one))
    return result


@pytest.mark.parametrize("structure", STRUCTURES)
def test_structure_fields_match_the_header(structure: str) -> None:
    ours = [(name, kind) for name, kind, *_ in STRUCTURES[structure]._fields_]
    assert ours == fields(structure)


def test_constants_match_the_header() -> None:
    assert re.search(r"constexpr int STATS = (\d+);", HEADER)[1] == str(structs.STATS)  # type: ignore[index]
    assert re.search(r"constexpr int PANEL_COLUMNS = (\d+);", HEADER)[1] == str(structs.PANEL_COLUMNS)  # type: ignore[index]
    columns = re.search(r"enum StateColumns {(.*?)}", HEADER)[1].replace(" ", "").split(",")  # type: ignore[index]
    assert columns.index("FIRST_ADDRESS") == structs.FIRST_ADDRESS == len(columns) - 1
    source, prefixes, history, values = (
        re.search(rf"enum {name} {{(.*?)}}", HEADER)[1].lower().replace(" ", "").split(",")[:-1]  # type: ignore[index]
        for name in ("BeamSource", "PrefixColumns", "HistoryColumns", "HistoryValues")
    )
    assert tuple(source) == structs.BEAM_SOURCE
    assert (tuple(prefixes), tuple(values)) == (structs.PREFIX_COLUMNS, structs.HISTORY_VALUES)
    assert (*prefixes, history[0].removesuffix("=prefix_columns"), *history[1:]) == structs.HISTORY_COLUMNS
    names = re.search(r"enum Storage {(.*?)}", HEADER)[1].replace(" ", "").split(",")  # type: ignore[index]
    dtypes = {"F32": torch.float32, "F64": torch.float64, "BF16": torch.bfloat16, "F16": torch.float16}
    assert {dtypes[name.removeprefix("STORE_")]: number for number, name in enumerate(names)} == cpu.STORAGE


def test_structure_sizes_match_the_library() -> None:
    assert set(structs.sizes()) == {"layout", "heads", "stats", *structs.CALLS}
    if not cpu.status().available:
        pytest.skip(f"needs kernel: {cpu.status().reason}")
    library = ctypes.CDLL(cpu.status().path)
    library.tsallis_size.restype = c_int64
    assert {name: library.tsallis_size(name.encode()) for name in structs.sizes()} == structs.sizes()
    assert library.tsallis_size(b"another") == 0


LIBRARY = """
#include <cstdint>
#include <cstring>
extern "C" const char* tsallis_source() { return "SOURCE"; }
extern "C" const char* tsallis_isa() { return "fake"; }
extern "C" int64_t tsallis_size(const char* name) {
    struct { const char* name; int64_t size; } sizes[] = {SIZES};
    for (auto& one : sizes) if (!std::strcmp(one.name, name)) return one.size;
    return 0;
}
"""


@pytest.mark.parametrize(("name", "size"), [("attention", 8), ("stats", -1), ("drop", None)])
def test_library_with_wrong_structure_sizes_is_not_used(tmp_path: Path, name: str, size: int | None) -> None:
    """Check a library that is valid except for one size, which is wrong or missing."""
    try:
        compiler = build.find_compiler()
    except build.BuildError as reason:
        pytest.skip(f"needs compiler: {reason}")
    sizes = structs.sizes()
    theirs = 0 if size is None else sizes[name] + size
    rows = ", ".join(f'{{"{key}", {theirs if key == name else value}}}' for key, value in sizes.items())
    source, out = tmp_path / "fake.cpp", tmp_path / "fake.so"
    source.write_text(LIBRARY.replace("SOURCE", build.source_hash()).replace("SIZES", rows))
    subprocess.run([*compiler.command, "-shared", "-fPIC", "-std=c++17", str(source), "-o", str(out)], check=True)
    done = python(TRY, TSALLIS_KERNEL_PATH=str(out))
    available, values, explained = done.stdout.splitlines()
    assert available == "False" and values == "[0.75, 0.25, 0.0]", done.stderr
    said = f"fake.so was compiled with size {theirs} for '{name}', expected {sizes[name]}: reinstall tsallis"
    assert explained == f"eager ({said})"
