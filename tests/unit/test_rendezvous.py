"""Nodes that have reached the master, as a launch and `orch test` report them."""

from __future__ import annotations

from dataclasses import replace

from contract.events import GroupJoined
from orchestrator.cli.launching.connectivity import _Stages
from orchestrator.fleet.supervise.rendezvous import Arrivals
from orchestrator.specs.run_events import Replanned, Tick
from orchestrator.state.reduce import apply
from orchestrator.state.run_state import RunState
from tests.run_streams import NAMES, PLAN, RUN_ID, Stream, begun


def feed(stream: Stream, state: RunState) -> None:
    while stream.facts:
        apply(state, stream.facts.pop(0))


def join(stream: Stream, at: float) -> None:
    for rank, name in enumerate(stream.names):
        stream.event(at, name, GroupJoined(world_size=len(stream.names)), rank)


def test_nodes_of_the_next_attempt_arrive_when_its_ranks_start() -> None:
    stream, state, reports = begun(), RunState(run_id=RUN_ID), list[str]()
    stages = _Stages(Arrivals({}, PLAN, state), PLAN, reports.append)
    join(stream, 5)
    feed(stream, state)
    stages.hear(Tick())
    first = [f"· {', '.join(NAMES)} reached the master (3 of 3)"]
    first += ["· all 3 ranks joined; testing collectives and links"]
    assert reports == first
    plan = replace(PLAN, attempt=1)
    stages.hear(Replanned(plan=plan))
    stages.hear(Replanned(plan=plan))
    assert reports == first
    stream.claim(60, 1, "replan")
    stream.start(61, 1)
    feed(stream, state)
    stages.hear(Tick())
    assert reports == first
    join(stream, 70)
    feed(stream, state)
    stages.hear(Tick())
    assert reports == [*first, first[0]]
