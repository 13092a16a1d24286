"""Make a skipped test fail where it has to run: a skip passes for a success, however many tests it takes along.

A reason to skip names what is missing: `needs NAME: ...`, or that of `pytest.importorskip`. Where the environment
variable TSALLIS_MAY_SKIP is set, only the names in it, separated by commas, may be missing; empty, none may.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from typing import TypeVar

import pytest

VARIABLE = "TSALLIS_MAY_SKIP"
_MISSING = re.compile(r"(?:Skipped: )?(?:needs ([\w-]+): |could not import '(\w+))")
Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def missing(reason: str) -> str | None:
    """Return the name of what a skip's reason misses, None for a reason that names nothing."""
    match = _MISSING.match(reason)
    return match and (match[1] or match[2])


def judge(report: Report) -> Report:
    """Turn a skip that may not be into a failure that says so."""
    allowed = os.environ.get(VARIABLE)
    if allowed is None or not report.skipped or hasattr(report, "wasxfail"):
        return report
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if missing(reason) not in allowed.split(","):
        report.outcome = "failed"
        report.longrepr = f"{VARIABLE}={allowed} does not allow this skip. {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return judge((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return judge((yield))
