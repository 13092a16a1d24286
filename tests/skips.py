"""Turn skips that are not allowed into failures: a skip counts as a success, even if it skips a whole module.

The reason of a skip names the missing requirement: `needs NAME: ...`, or the message of `pytest.importorskip`. If the
environment variable TSALLIS_MAY_SKIP is set, only the comma-separated names in it may be missing; if empty, none may.
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
    """Return the name of the missing requirement in a skip's reason, or None if the reason names none."""
    match = _MISSING.match(reason)
    return match and (match[1] or match[2])


def judge(report: Report) -> Report:
    """Turn a skip that is not allowed into a failure."""
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
