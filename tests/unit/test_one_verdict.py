"""One stream of facts, one verdict: the same phase, severity and condition codes on every surface."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from orchestrator.cli.status import status_data, status_messages
from orchestrator.render.prometheus import exposition
from orchestrator.render.runs import run_table, runs_table
from orchestrator.state.condition import SEVERITIES, Code
from orchestrator.state.facts import Fact, RunFound
from orchestrator.state.fleet_figures import FleetFigures
from orchestrator.state.phase import Phase
from orchestrator.state.progress import progress_of
from orchestrator.state.reduce import apply
from orchestrator.state.run_state import RunState
from orchestrator.state.verdict import verdict
from orchestrator.watch.fleet_view import FleetView
from orchestrator.watch.live import LiveState
from orchestrator.watch.run_lines import run_lines
from tests.each_case import failures_of
from tests.run_streams import CASES, NAMES, RUN_ID, T0, Expected, Stream, restarted_by_its_engine


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


def test_a_failed_run_has_failed_once_though_its_engine_starts_its_containers_again() -> None:
    state, phases = RunState(run_id=RUN_ID), list[str]()
    for fact in restarted_by_its_engine().facts:
        apply(state, fact)
        phases.append(verdict(state, fact.seen).phase.value)
    assert list(dict.fromkeys(phases)) == [one for one, _ in groupby(phases)] == ["launching", "running", "failed"]


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


def view_of(state: RunState, now: float) -> FleetView:
    live = LiveState(NAMES, clock=lambda: now)
    live.add(RunFound(state=state))
    return live.view()


def of_page(state: RunState, now: float) -> Shown:
    """The data that the page and `orch monitor --json` show."""
    run = view_of(state, now).data()["run"]
    assert (run["step"], run["restarts"]) == (progress_of(state, Phase(run["state"]), now).step, state.restarts)
    return run["state"], run["severity"], frozenset(one["code"] for one in run["conditions"])


def of_status(state: RunState, now: float) -> Shown:
    """`orch status --json`, and the items of `orch runs --json`; the title and the messages are the same in words."""
    judged = verdict(state, now)
    data = json.loads(json.dumps(status_data(state, judged, now)))
    title = rendered(run_table(state, judged, now)).splitlines()[0]
    assert title.startswith(f"run {RUN_ID}  {data['state']}"), title
    message = status_messages(judged, RUN_ID, now)
    if judged.phase is Phase.FAILED:
        assert message[0].startswith(f"! failed: {judged.reason}" if judged.reason else "! failed"), message
    else:
        shown = [one["severity"] in ("warning", "error") for one in data["conditions"]]
        assert [line.startswith("!") for line in message] == shown, message
    assert (data["progress"]["step"], data["restarts"]) == (progress_of(state, judged.phase, now).step, state.restarts)
    return data["state"], data["severity"], frozenset(one["code"] for one in data["conditions"])


def of_runs(state: RunState, now: float) -> Shown | None:
    """The list of runs, which shows the phase of those on nodes."""
    judged = verdict(state, now)
    if state.run is None:
        return None
    text = rendered(runs_table([(state.run, judged)]))
    assert f"{RUN_ID}  {judged.phase.value} " in text, text
    return judged.phase.value, judged.severity, frozenset(judged.codes)


def rendered(view: RenderableType) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(view)
    return out.getvalue()


SURFACES: Mapping[str, Callable[[RunState, float], Shown | None]] = {
    "metrics": of_metrics, "page": of_page, "status": of_status, "runs": of_runs,
}  # fmt: skip
"""Functions that show a state at a time on a surface; None where it shows nothing of such a run."""


def test_every_surface_shows_the_same() -> None:
    def check(make: Callable[[], Stream], expected: Expected) -> None:
        state, wanted = state_of(make().facts), (expected.phase, expected.severity, frozenset(expected.codes))
        shown = {name: surface(state, T0 + expected.at) for name, surface in SURFACES.items()}
        differs = {name: one for name, one in shown.items() if one not in (None, wanted)}
        assert differs == {}, f"{make.__name__}: {differs}, not {wanted}"

    assert failures_of(check, CASES) == []


def test_the_monitor_has_words_for_the_verdict() -> None:
    """The phase is in its title, and a line with `!` shows that something is wrong, and nothing else does."""

    def check(make: Callable[[], Stream], expected: Expected) -> None:
        view = view_of(state_of(make().facts), T0 + expected.at)
        title, *lines = (line.plain for line in run_lines(view, 200))
        assert title.startswith(f"run {RUN_ID}  {expected.phase}"), title
        is_wrong = any(line.startswith("!") for line in lines)
        assert is_wrong == (expected.severity in ("warning", "error")), f"{make.__name__}: {lines}"
        assert view.health.severity in (expected.severity, "info"), make.__name__

    assert failures_of(check, CASES) == []


@pytest.mark.source
def test_every_phase_and_condition_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs/watching.md").read_text("utf-8").partition("## Phase and conditions")[2]
    missing = [word.value for word in (*Phase, *Code) if f"`{word.value}`" not in text]
    assert missing == []
