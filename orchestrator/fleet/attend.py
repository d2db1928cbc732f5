"""Stay with a run until it ends: the first failure is named, and the rest is stopped within seconds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from orchestrator.checks.failure import EndedBadly, Failure, root_cause
from orchestrator.fleet.fan_out import fan_out
from orchestrator.fleet.follow import follow
from orchestrator.fleet.launch import Seated
from orchestrator.fleet.records import RunRecord
from orchestrator.specs.event import Event, parse_event
from orchestrator.specs.forecast import Forecast, read_forecast
from orchestrator.specs.happening import Ended, Happening, Lost, Said, Tick
from orchestrator.specs.plan import Plan
from orchestrator.specs.run import State

SETTLE_S = 1.5
"""After the first failure, time for its peers to say what they saw, before they are stopped."""
STOP_S = 4
KEPT_LINES = 200
"""Enough for a rank's traceback and, after it, torchrun's summary of eight ranks."""


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """How a run ended."""

    state: State
    failure: Failure | None = None
    stopped: bool = False
    """Whether it was asked to stop and did."""
    last_event: Event | None = None
    forecast: Forecast | None = None
    """What it was expected to do."""
    of_forecast: float | None = None
    """The share of this speed that it had at last."""


@dataclass
class _Watch:
    """What is known so far."""

    plan: Plan
    record: RunRecord
    tails: dict[str, deque[tuple[int | None, str]]] = field(default_factory=dict)
    reported: dict[str, str] = field(default_factory=dict)
    failed: list[EndedBadly] = field(default_factory=list)
    still_running: set[str] = field(default_factory=set)
    stopped: bool = False
    last_event: Event | None = None
    forecast: Forecast | None = None
    of_forecast: float | None = None

    def hear(self, said: Said) -> None:
        event = parse_event(said.text, said.rank)
        if event is None:
            self.tails.setdefault(said.node, deque(maxlen=KEPT_LINES)).append((said.rank, said.text))
            return
        if event.kind == "failed" and said.node not in self.reported:
            self.reported[said.node] = f"{event.values.get('error', 'error')}: {event.values.get('message', '')}"
        self.stopped |= event.kind == "stopped"
        if event.kind == "forecast" and event.rank == 0 and (forecast := read_forecast(event.values)):
            self.forecast = forecast
            self.record.save_forecast(forecast)  # at once: `orch status` shows it while the run goes on
        if event.kind in ("step", "evaluation", "checkpoint", "stopped", "done"):
            self.last_event = event
            self.of_forecast = event.values.get("of_forecast", self.of_forecast)

    def see_end(self, happening: Ended | Lost) -> None:
        self.still_running.discard(happening.node)
        container = happening.container if isinstance(happening, Ended) else None
        if container is not None and container.state is State.SUCCEEDED:
            return
        part = next(part for part in self.plan.nodes if part.node == happening.node)
        lost = happening.error.message if isinstance(happening, Lost) else ""
        self.failed.append(
            EndedBadly(
                node=happening.node,
                node_rank=happening.node_rank,
                first_rank=part.first_rank,
                exit_code=container.exit_code if container else None,
                oom_killed=container.oom_killed if container else False,
                lines=tuple(self.tails.get(happening.node, ())),
                reported=lost or self.reported.get(happening.node, ""),
            )
        )


def attend(
    seated: Sequence[Seated],
    plan: Plan,
    record: RunRecord,
    *,
    on: Callable[[Happening], None] = lambda _happening: None,
    clock: Callable[[], float] = time.monotonic,
) -> RunOutcome:
    """Follow until all have ended. The first failure stops the rest: a dead rank leaves its peers hanging for 300 s."""
    watch = _Watch(plan=plan, record=record, still_running={seat.node.name for seat in seated})
    since, ending = None, False
    for happening in follow(seated, record):
        on(happening)
        if isinstance(happening, Said):
            watch.hear(happening)
        elif not isinstance(happening, Tick):
            watch.see_end(happening)
        if watch.failed and not watch.stopped and since is None:
            since = clock()
        if since is not None and not ending and clock() - since > SETTLE_S:
            ending = True
            for lost in _end(seated, watch.still_running):
                watch.see_end(lost)
        if not watch.still_running:
            break
    outcome = _outcome(watch)
    state = "stopped" if outcome.stopped else outcome.state.value
    record.save_outcome(state, outcome.failure.reason if outcome.failure else "")
    return outcome


def _end(seated: Sequence[Seated], names: set[str]) -> list[Lost]:
    """All at once: one node stopped alone leaves the others in torchrun's exit barrier.

    A node that cannot be told is lost: its log stream may stay silent for as long as its connection is thought alive.
    """
    left = [seat for seat in seated if seat.node.name in names]
    outcomes = fan_out(left, lambda seat: seat.node.engine.stop(seat.container, STOP_S), timeout_s=STOP_S + 30)
    return [Lost(node=o.item.node.name, node_rank=o.item.node_rank, error=o.error) for o in outcomes if o.error]


def _outcome(watch: _Watch) -> RunOutcome:
    # torchrun exits 1 after a clean stop too: the ranks' own word counts
    failure = None if watch.stopped else root_cause(watch.failed)
    return RunOutcome(
        state=State.FAILED if failure else State.SUCCEEDED,
        failure=failure,
        stopped=watch.stopped,
        last_event=watch.last_event,
        forecast=watch.forecast,
        of_forecast=watch.of_forecast,
    )
