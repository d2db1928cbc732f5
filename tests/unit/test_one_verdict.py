"""One stream of facts, one verdict: the same phase, severity and condition codes on every surface."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.state.facts import Fact
from orchestrator.state.progress import progress_of
from orchestrator.state.reduce import apply
from orchestrator.state.run_state import RunState
from orchestrator.state.verdict import verdict
from tests.each_case import failures_of
from tests.run_streams import CASES, RUN_ID, T0, Expected, Stream


def state_of(facts: Sequence[Fact]) -> RunState:
    state = RunState(run_id=RUN_ID)
    for fact in facts:
        apply(state, fact)
    return state


def test_each_stream_gets_its_verdict() -> None:
    def check(make: Callable[[], Stream], expected: Expected) -> None:
        state, now = state_of(make().facts), T0 + expected.at
        shown = verdict(state, now)
        found = (
            shown.phase.value, shown.severity, shown.codes,
            progress_of(state, shown.phase, now).step, state.restarts,
        )  # fmt: skip
        wanted = (expected.phase, expected.severity, expected.codes, expected.step, expected.restarts)
        assert found == wanted, f"{make.__name__}: {found}, not {wanted}"

    assert failures_of(check, CASES) == []
