"""The example of the page on clusters gives the same answers with two Ray Data workers as with one process."""

from __future__ import annotations

import csv
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tsallis.search import SearchOptions
from tsallis.toolkit.inference import open_run

TESTS = Path(__file__).parents[2]
RUN = TESTS / "fixtures" / "version1" / "strings" / "run"
LINES = [f"{verb}\tV;PST" for verb in ("walk", "play", "jump", "open", "visit")] * 30


@pytest.mark.slow
def test_two_ray_workers_match_one_process(tmp_path: Path) -> None:
    pytest.importorskip("ray.data", exc_type=ImportError)
    text = (TESTS.parent / "docs" / "how-to" / "cluster.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    start = "ray.init()"
    assert code.count(start) == 1
    # Two workers and the reader need three CPUs, and this machine may have fewer.
    (tmp_path / "answer.py").write_text(code.replace(start, "ray.init(num_cpus=3, include_dashboard=False)"))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "words").symlink_to(RUN)
    (tmp_path / "new.tsv").write_text("".join(f"{line}\n" for line in LINES))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    process = subprocess.Popen(
        [sys.executable, "answer.py"], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        _, errors = process.communicate(timeout=400)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        pytest.fail("Ray hangs")
    assert process.returncode == 0, errors.decode()
    rows = [row for path in sorted((tmp_path / "answers").iterdir()) for row in csv.DictReader(path.open(newline=""))]
    answers = open_run(RUN).translate(LINES, SearchOptions(mode="exact", n_best=1))
    assert sorted((row["text"], row["answer"], row["certificate"]) for row in rows) == sorted(
        (line, answer.text, answer.certificate) for line, answer in zip(LINES, answers, strict=True)
    )
