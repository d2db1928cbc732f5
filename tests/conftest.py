"""What all tests share: the figures that a run measured are printed at its end, and tests are counted by cost."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("house", deadline=None)  # the machine may be busy; what counts is the outcome
settings.load_profile("house")

FIGURES = pytest.StashKey[list[str]]()
ROOT = Path(__file__).parent

Figure = Callable[[str], None]


def pytest_configure(config: pytest.Config) -> None:
    # Where the tests were started in the background, Ctrl-C is ignored, and so it would be in all that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[FIGURES] = []


@pytest.fixture(scope="session")
def figure(request: pytest.FixtureRequest) -> Figure:
    """Note a measured figure, in words with its unit."""
    return request.config.stash[FIGURES].append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    kinds = Counter(Path(report.nodeid).parts[1] for report in reports if report.when == "call")
    terminalreporter.section("figures")
    for text in config.stash[FIGURES]:
        terminalreporter.write_line(text)
    terminalreporter.write_line("tests by kind: " + ", ".join(f"{kind} {n}" for kind, n in sorted(kinds.items())))
