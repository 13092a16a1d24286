"""The scripts for GPUs need no installed package, and lose no result after an error, a time limit or an interrupt."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

Load = Callable[[str], ModuleType]
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
STUBBORN = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Return a function that imports a script."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


@pytest.fixture
def first_run(load: Load) -> ModuleType:
    return load("gpu_first_run")


@pytest.mark.process
@pytest.mark.parametrize("script", ["gpu_first_run", "gpu_translation"])
def test_scripts_import_the_package_of_their_repository(script: str) -> None:
    code = f"import {script}, importlib.util; print(importlib.util.find_spec('tsallis').origin)"
    environment = {name: x for name, x in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-S", "-c", code]  # -S: without installed packages
    done = subprocess.run(command, capture_output=True, text=True, cwd=BENCHMARKS, env=environment)
    assert done.stdout.strip() == str(BENCHMARKS.parent / "src/tsallis/__init__.py"), done.stderr


@pytest.mark.process
def test_processes_share_one_limit(first_run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_run, "LIMITS", {"maps": 0.5, "tests": 0.5})
    monkeypatch.setattr(first_run, "GRACE", 0.6)
    ended: dict[str, str] = {}
    commands = {f"maps-{n}": [sys.executable, "-c", STUBBORN] for n in range(3)}
    start = time.monotonic()
    first_run.run_together({**commands, "tests": [sys.executable, "-c", "raise SystemExit(3)"]}, tmp_path, 1, ended)
    assert time.monotonic() - start < 2.2  # one grace period, not three
    assert ended == {**dict.fromkeys(commands, "killed after 0 s"), "tests": "ended with status 3"}


class Interrupted(subprocess.Popen):  # type: ignore[type-arg]
    """A process; Ctrl-C is pressed while the script waits for it."""

    waits = 0

    def wait(self, timeout: float | None = None) -> int:
        self.waits += 1
        if self.waits == 1:
            raise KeyboardInterrupt
        return super().wait(timeout)


@pytest.mark.process
def test_interrupt_ends_processes_and_saves_results(
    first_run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Interrupted] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *x, **y: started.append(Interrupted(*x, **y)) or started[-1])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(first_run, "GRACE", 0.1)
    monkeypatch.setattr(first_run, "steps", lambda *_: [{"maps": [sys.executable, "-c", STUBBORN]}])
    monkeypatch.setattr(sys, "argv", ["gpu_first_run", "--rehearse", f"--out={tmp_path}"])
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(KeyboardInterrupt):
        first_run.main()
    assert "maps: interrupted" in (tmp_path / "summary.txt").read_text()
    with tarfile.open(tmp_path / "results.tar.gz") as archive:
        assert archive.getnames() == ["maps.log", "summary.txt"]
    assert [process.poll() is None for process in started] == [False]


def test_files_that_were_cut_off_do_not_stop_the_summary(first_run: ModuleType, tmp_path: Path) -> None:
    row = {"group": "maps", "case": "entmax15", "dtype": "float32", "error": 0.0, "in": "result", "right": True}
    line = json.dumps({**row, "seconds": 1.5})
    (tmp_path / "kernels-maps-float32.jsonl").write_text(f"{line}\n{line[:20]}")
    (tmp_path / "machine.json").write_text('{"gpu": "H')
    (tmp_path / "tests.xml").write_text("<testsuites><testsu")
    (tmp_path / "linear.csv").write_text("shape,operation,own\n8x8x8,")
    lines = first_run.save(tmp_path, first_run.STAGES, {})
    assert "kernels maps: 1 of 1 right, 2 s" in lines and "tests: no result (see tests.log)" in lines
    assert any(line.split() == ["8x8x8"] for line in lines) and "rows maps: no result" in lines


def test_chosen_stages_have_commands_and_lines(first_run: ModuleType, tmp_path: Path) -> None:
    names = [list(step) for step in first_run.steps(["tests", "attention"], tmp_path, rehearse=False)]
    assert names == [["machine"], ["tests"], ["attention"]]
    names = [list(step) for step in first_run.steps(["kernels"], tmp_path, rehearse=False)]
    assert len(names[1]) == 12 and "kernels-attention-float16" in names[1]
    assert first_run.summarize(tmp_path, ["linear"], {})[2:] == ["rows linear: no result"]


def test_kernels_stop_if_the_gpu_is_broken(
    load: Load, first_run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")

    def fail(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(load("gpu_cases"), "compare", fail)
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    first_run.check_kernels("losses", "float16", tmp_path, rehearse=False)
    (row,) = map(json.loads, (tmp_path / "kernels-losses-float16.jsonl").read_text().splitlines())
    assert "illegal memory access" in row["in"] and "4 cases did not run" in row["in"] and not row["right"]
    gpu = load("gpu")
    with pytest.raises(SystemExit, match="the GPU fails in the rest of this process"):
        gpu._try(gpu.Case("entmax15", "tsallis", fail), fail)


def test_long_rows_are_checked_with_and_without_parts(load: Load) -> None:
    pytest.importorskip("triton")
    from tsallis.ops.triton import maps

    split, whole = set[int](), set[int]()
    for case in load("gpu_cases").cases("maps", tiny=False):
        tiling = maps.gradient_tiling(*case.inputs[0], processors=132)
        if isinstance(tiling, maps.Long):
            (whole if tiling.parts == 1 else split).add((tiling.warps, bool(case.alphas)))
    assert whole == {(2, False), (2, True), (4, False), (4, True)} and split == {(2, False), (2, True)}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # from NumPy, in Triton's interpreter
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs no-gpu: there is one")
@pytest.mark.parametrize(
    ("group", "name"), [("maps", "a NaN 6x70"), ("attention", "additive mask"), ("attention", "heads of 128")]
)
def test_cases_match_float64(group: str, name: str, load: Load) -> None:
    pytest.importorskip("triton")
    import tsallis

    cases = load("gpu_cases")
    (case,) = [case for case in cases.cases(group, tiny=True) if case.name == name]
    with tsallis.backend("triton"):
        errors = cases.compare(case, "cpu", "float32")
    assert len(errors) == 1 + case.gradients * len(case.inputs) and max(errors.values()) < 2e-5


def test_long_rows_are_measured_before_decoding(load: Load) -> None:
    groups = [setting.group for setting in load("gpu_attention").settings(["decode", "long"], [64], True)]
    assert groups == ["long", "decode"]


def test_translation_names_missing_packages(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = load("gpu_translation")
    monkeypatch.setattr(script, "NEEDED", {"json": "json", "no_such_module": "no-such-package"})
    with pytest.raises(SystemExit, match=r"needs no-such-package: .*--wheels"):
        script.require_packages(tmp_path, tmp_path / "packages")
