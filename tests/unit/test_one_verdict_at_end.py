"""One stream of facts, one phase: at the end of a launch, in variables of its hooks, in `orch why` and the report."""

from __future__ import annotations

from collections.abc import Callable

from contract.events import TrainingStopped
from orchestrator.fleet.supervise.hooks import outcome_variables
from orchestrator.state.facts import ContainerSeen, LineRead
from orchestrator.state.journal_entries import StopEntry
from orchestrator.state.phase import Phase, has_ended
from orchestrator.state.postmortem import Evidence, write_postmortem
from orchestrator.state.recovery import End
from orchestrator.state.run_outcome import RunOutcome, outcome_of
from tests.each_case import failures_of
from tests.run_streams import CASES, NAMES, PLAN, RUN_ID, T0, Expected, Stream, begun
from tests.unit.test_one_verdict import state_of


def test_the_end_of_a_launch_and_the_variables_of_its_hooks_say_the_same() -> None:
    def check(make: Callable[[], Stream], expected: Expected) -> None:
        state = state_of(make().facts)
        if not all(has_ended(one) for one in state.members) or not state.members:
            return
        outcome = outcome_of(state, PLAN, End(), NAMES)
        variables = outcome_variables(PLAN, outcome)
        found = outcome.phase.value, variables["STATE"], variables["STEP"]
        assert found == (expected.phase, expected.phase, expected.step), f"{make.__name__}: {found}"
        assert (outcome.failure is not None) == (outcome.phase is Phase.FAILED)

    assert failures_of(check, CASES) == []


def test_why_and_the_report_say_the_same() -> None:
    def check(make: Callable[[], Stream], expected: Expected) -> None:
        facts = make().facts
        state = state_of(facts)
        read = (one for one in facts if isinstance(one, LineRead))
        evidence = Evidence(
            run_id=RUN_ID,
            plan=state.plan,
            journal=state.journal,
            attempt=state.attempt,
            lines=tuple(one.line for one in read if one.line.attempt == state.attempt),
            containers={one.name: one.container for one in state.members if one.container and not one.error},
            silent=tuple(one.name for one in state.members if one.silent_since is not None),
            asked=state.was_looked_for,
            now=T0 + expected.at,
        )
        shown = write_postmortem(evidence)
        assert shown.state == expected.phase, f"{make.__name__}: {shown.state}, not {expected.phase}"
        assert not shown.failure or shown.state not in ("succeeded", "stopped")

    assert failures_of(check, CASES) == []


def test_a_run_of_which_all_containers_were_removed_has_not_ended_well() -> None:
    def removed(s: Stream) -> RunOutcome:
        s.facts += [ContainerSeen(seen=T0 + 200, node=name, facts=None) for name in NAMES]
        return outcome_of(state_of(s.facts), PLAN, End())

    by_hand = removed(begun())
    assert by_hand.phase is Phase.FAILED
    assert by_hand.failure
    assert by_hand.failure.reason == "its containers were removed"
    stopped, reported = begun(), begun()
    stopped.record(100, StopEntry(by="ana@desk"))
    reported.event(100, "beta", TrainingStopped(step=7), 1)
    assert [removed(one).phase for one in (stopped, reported)] == [Phase.STOPPED, Phase.STOPPED]
