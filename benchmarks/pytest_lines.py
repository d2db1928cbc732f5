"""A pytest plugin that writes one line of JSON per test when it ends: a test run that is cut keeps its outcomes.

`-p benchmarks.pytest_lines`, with the file's name in ORCH_TEST_LINES.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

LETTERS = 300


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write a report; under pytest-xdist the controller receives all of them, and workers write none."""
    counts = report.when == "call" or report.outcome != "passed"
    if not counts or (report.when == "teardown" and report.skipped) or "PYTEST_XDIST_WORKER" in os.environ:
        return
    why = ""
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        why = str(crash.message if crash else report.longrepr)[:LETTERS]
    line = json.dumps(
        {"test": report.nodeid, "outcome": report.outcome, "why": why, "seconds": round(report.duration, 2)}
    )
    with Path(os.environ["ORCH_TEST_LINES"]).open("a", encoding="utf-8") as file:
        file.write(line + "\n")
