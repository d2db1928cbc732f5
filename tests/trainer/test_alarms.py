"""Three of the runs of `benchmarks.alarms`, with shorter limits: real agents, torchrun and gloo."""

from __future__ import annotations

import pytest

from benchmarks.alarm_cases import CASES
from benchmarks.alarms import run_all

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SCALE = 0.3
SCRIPTS = ("silent", "hang_read", "hang_two_groups")


def test_a_silent_script_is_healthy_and_two_hangs_are_named() -> None:
    cases = [case for case in CASES if case.name in SCRIPTS]
    outcomes = run_all(cases, scale=SCALE, cores=3.0, record=None)
    assert {one.case.name: one.faults for one in outcomes} == {name: [] for name in SCRIPTS}
    assert all(one.reported_s is not None for one in outcomes if one.case.is_hang)
