"""A test that is skipped where it must run fails: by a mark, a call, a fixture, or a whole file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from skips import VARIABLE, missing

pytestmark = pytest.mark.process

TESTS = Path(__file__).parents[1]
FILES = {
    "conftest.py": "from skips import pytest_make_collect_report, pytest_runtest_makereport",
    "test_calls.py": """
import pytest

@pytest.fixture
def lexicon():
    pytest.skip("needs lexicon: a folder")

@pytest.mark.skipif(True, reason="needs mark: always")
def test_mark(): ...

def test_call(): pytest.skip("needs call: now")

def test_fixture(lexicon): ...

def test_no_name(): pytest.skip("no reason")

@pytest.mark.xfail
def test_known(): assert False

def test_passes(): ...
""",
    "test_file.py": "import pytest\nmodule = pytest.importorskip('no_such_package.part')\ndef test_never(): ...\n",
}


DISALLOWED = [
    pytest.param(None, 0, "1 passed, 5 skipped, 1 xfailed", marks=pytest.mark.slow),
    ("mark", 0, "2 failed, 1 passed, 1 skipped, 1 xfailed, 2 errors"),
    pytest.param("mark", 1, "2 failed, 1 passed, 1 skipped, 1 xfailed, 2 errors", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("allowed", "workers", "outcome"), DISALLOWED)
def test_disallowed_skips_fail(tmp_path: Path, allowed: str | None, workers: int, outcome: str) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    environment = {k: v for k, v in os.environ.items() if k != VARIABLE and not k.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(TESTS)} | ({} if allowed is None else {VARIABLE: allowed})
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    command += ["-n", str(workers)] if workers else []
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1].split(" in ")[0] == outcome, done.stdout
    assert bool(done.returncode) == (allowed is not None)
    if allowed == "mark":
        for words in ("needs call: now", "needs lexicon: a folder", "no reason", "import 'no_such_package.part'"):
            assert re.search(f"{VARIABLE}=mark does not allow this skip.*{re.escape(words)}", done.stdout), words


def test_every_skip_reason_names_its_requirement() -> None:
    calls = re.compile(r"""(?:pytest\.skip\(|skipif\(.*reason=)f?"([^"]*)\"""")
    paths = [path for path in sorted(TESTS.rglob("*.py")) if path != Path(__file__)]
    sites = [(path.name, reason) for path in paths for reason in calls.findall(path.read_text(encoding="utf-8"))]
    assert len(sites) > 10
    assert not [site for site in sites if not missing(site[1])]
