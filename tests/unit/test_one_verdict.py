"""One stream of facts, one verdict: the same phase, severity and condition codes on every surface."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from orchestrator.render.prometheus import exposition
from orchestrator.state.condition import SEVERITIES
from orchestrator.state.facts import Fact
from orchestrator.state.fleet_figures import FleetFigures
from orchestrator.state.progress import progress_of
from orchestrator.state.reduce import apply
from orchestrator.state.run_state import RunState
from orchestrator.state.verdict import verdict
from tests.each_case import failures_of
from tests.run_streams import CASES, NAMES, RUN_ID, T0, Expected, Stream


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


Shown = tuple[str, str, frozenset[str]]
"""Phase, severity and codes of the conditions."""


def of_metrics(state: RunState, now: float) -> Shown | None:
    """An active run; one that has ended is only counted."""
    text = exposition(FleetFigures(nodes=NAMES, unreachable={}, runs=(state,), at=now, seconds=0.1))
    counted = re.findall(r'^orch_runs\{state="(\w+)"\} 1$', text, re.M)
    shown = re.findall(r'^orch_run_phase\{run="[^"]+",phase="(\w+)"\} 1$', text, re.M)
    assert shown in ([], counted)
    if not shown:
        return None
    conditions = re.findall(r'^orch_run_condition\{run="[^"]+",code="(\w+)",severity="(\w+)"', text, re.M)
    severity = max(("ok", *(severity for _, severity in conditions)), key=SEVERITIES.index)
    return shown[0], "error" if shown[0] == "lost" else severity, frozenset(code for code, _ in conditions)


SURFACES: Mapping[str, Callable[[RunState, float], Shown | None]] = {"metrics": of_metrics}
"""What a surface shows of a state at a time; None where it shows nothing of such a run."""


def test_every_surface_shows_the_same() -> None:
    def check(make: Callable[[], Stream], expected: Expected) -> None:
        state, wanted = state_of(make().facts), (expected.phase, expected.severity, frozenset(expected.codes))
        shown = {name: surface(state, T0 + expected.at) for name, surface in SURFACES.items()}
        differs = {name: one for name, one in shown.items() if one not in (None, wanted)}
        assert differs == {}, f"{make.__name__}: {differs}, not {wanted}"

    assert failures_of(check, CASES) == []
