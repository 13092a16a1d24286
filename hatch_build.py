"""The build hook: a kernel for this machine goes into the wheel where a compiler is, else the wheel is pure Python."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

FOLDER = "tsallis/ops/cpu"
NAME = "_kernel.so"


class KernelBuildHook(BuildHookInterface[BuilderConfig]):
    """TSALLIS_KERNEL=0 or "pure" (a wheel for all platforms) leaves the kernel out; 1 raises if it can't be built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        wish = os.environ.get("TSALLIS_KERNEL", "")
        if wish not in ("", "0", "1", "pure"):
            raise ValueError(f"TSALLIS_KERNEL is 0 or pure (no kernel), 1 (an error without it) or unset, not {wish!r}")
        if version == "editable":
            kernel = Path(self.root, "src", FOLDER, NAME)
        else:
            # Removed when the hook is, which is after the wheel is written.
            self._folder = tempfile.TemporaryDirectory(prefix="tsallis-")
            kernel = Path(self._folder.name, NAME)

        builder = _builder(Path(self.root, "src", FOLDER, "build.py"))
        note = kernel.with_name(builder.NO_KERNEL)
        # An editable installation keeps a kernel of the same sources, which takes minutes to compile.
        reuse = version == "editable" and builder.is_current(kernel) and not _loading_problem(kernel)
        problem = self._problem(builder, kernel, wish, reuse)
        # What an earlier installation left would be taken as if it were of this one.
        (kernel if problem else note).unlink(missing_ok=True)
        if problem:
            note.write_text(problem + "\n", encoding="utf-8")
        if version != "editable":
            made = note if problem else kernel
            build_data["force_include"][str(made)] = f"{FOLDER}/{made.name}"
            if not problem:
                build_data["pure_python"] = False
                build_data["tag"] = f"py3-none-{_platform()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._folder.cleanup()

    def _problem(self, builder: ModuleType, kernel: Path, wish: str, reuse: bool) -> str:
        """Build the kernel if need be; show what prevents it, and return that in one line, empty if nothing does."""
        if wish == "pure":  # not the user's choice, so the library warns that it is slower
            return "not part of the wheel for all platforms; install tsallis from source with a C++ compiler"
        if wish == "0":
            self.app.display_warning("tsallis: built without its CPU kernel, as TSALLIS_KERNEL=0 asks")
            return f"{builder.LEFT_OUT}, as TSALLIS_KERNEL=0 asked"
        if reuse:
            return ""
        try:
            builder.build(kernel)
            problem = _loading_problem(kernel)
        except (builder.BuildError, OSError) as refusal:
            problem = str(refusal)
        if problem and wish == "1":
            raise RuntimeError(f"TSALLIS_KERNEL=1, but the CPU kernel cannot be built: {problem}")
        if problem:
            self.app.display_warning(
                "tsallis: built WITHOUT its CPU kernel. Everything works, with PyTorch's operations, but slower. "
                f"With a C++ compiler on PATH or in CXX, install again for the kernel. The reason:\n{problem}"
            )
            return f"not compiled: {problem.splitlines()[0][:200]}; install again with a C++ compiler on PATH or in CXX"
        return ""


def _builder(path: Path) -> ModuleType:
    """The module at a path, without the package around it, which needs torch."""
    spec = importlib.util.spec_from_file_location("tsallis_kernel_build", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _loading_problem(kernel: Path) -> str:
    """Why this Python cannot load a library, such as one for another machine; empty if it can."""
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, str(kernel)], capture_output=True, text=True)
    return f"it does not load: {done.stderr.strip() or done.returncode}" if done.returncode else ""


def _platform() -> str:
    """The platform's tag; manylinux ones promise more than a build for this machine keeps."""
    return next(tag for tag in platform_tags() if not tag.startswith(("manylinux", "musllinux")))
