"""Three machines that exist in memory alone, with a run: plugs are pulled and put back, and time passes by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Condition
from typing import Any

from orchestrator.fleet.runs.find_runs import RunningContainer
from orchestrator.fleet.runs.launch import launch
from orchestrator.fleet.supervise.attempt import Callbacks
from orchestrator.fleet.supervise.loop import Supervision, supervise
from orchestrator.fleet.supervise.replan import NodePool
from orchestrator.nodes.fake import FakeNode
from orchestrator.nodes.interface import Completed, LogLine, Node, Progress
from orchestrator.specs.errors import NodeUnreachableError
from orchestrator.specs.plan import Plan
from orchestrator.specs.run_events import RunLine, Tick
from orchestrator.state.recovery import Update
from orchestrator.state.run_outcome import RunOutcome
from orchestrator.store.run_record import RunRecord
from tests import lan
from tests.lan import event

THREE = lan.NAMES[:3]
JOINED = event("joined", samples_per_step=6)


class Time:
    """Passes while nothing happens, ten seconds a tick."""

    def __init__(self) -> None:
        self.now = 0.0
        self._changed = Condition()

    def pass_(self, seconds: float) -> None:
        with self._changed:
            self.now += seconds
            self._changed.notify_all()

    def pause(self, seconds: float) -> None:
        with self._changed:
            until = self.now + seconds
            self._changed.wait_for(lambda: self.now >= until, timeout=20)


@dataclass
class Plugged(lan.Actor):
    """An engine on a machine whose plug can be pulled: its streams break, and nothing answers."""

    pulled: bool = False
    hung_up: bool = False

    def hang_up(self) -> None:
        """The stream that is open ends as if there were no more."""
        with self.changed:
            self.hung_up = True
            self.changed.notify_all()

    def pull(self) -> None:
        with self.changed:
            self.pulled = True
            self.changed.notify_all()

    def put_back(self) -> None:
        with self.changed:
            self.pulled = False
            self.changed.notify_all()

    def wait(self, container: str) -> Any:
        with self.changed:
            self.changed.wait_for(lambda: self.pulled or not self._is_running(container))
        self._called("wait")
        return super().wait(container)

    def _called(self, *call: str) -> None:
        if self.pulled:
            raise NodeUnreachableError("no answer in 5 s", node=self.node)
        super()._called(*call)

    def _news(self, container: str, shown: int) -> list[LogLine]:
        def reported() -> bool:
            lines = len(self.lines[container]) > shown
            return self.pulled or self.hung_up or lines or not self._is_running(container)

        with self.changed:
            self.changed.wait_for(reported)
            if self.pulled:
                raise NodeUnreachableError("the connection broke", node=self.node)
            if self.hung_up:
                self.hung_up = False
                return []
            return self.lines[container][shown:]


class Machine(FakeNode):
    def run(self, argv: Sequence[str], **how: Any) -> Completed:
        self.engine._called("run")
        return super().run(argv, **how)


@dataclass
class Scene:
    """Three machines with a run, and what a test does while it continues."""

    nodes: dict[str, FakeNode] = field(default_factory=dict)
    engines: dict[str, Plugged] = field(default_factory=dict)
    time: Time = field(default_factory=Time)
    updates: list[Update] = field(default_factory=list)
    copies: list[tuple[list[str], int]] = field(default_factory=list)
    says: dict[str, tuple[str, ...]] = field(default_factory=dict)
    brought: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        here = lan.Lan()
        for name in THREE:
            plain = here.add(name)
            engine = Plugged(name, held=plain.engine.held, description=plain.engine.description,
                             says=(JOINED,), ends_with=None)  # fmt: skip
            node = Machine(name, address=plain.address, answers=plain.answers, programs=plain.programs, engine=engine)
            self.nodes[name], self.engines[name] = node, engine

    def begin(self, **changes: Any) -> tuple[Plan, tuple[RunningContainer, ...]]:
        values = {"max_restarts": 2, "node_timeout_s": 120, "command": ("gpt2", "--batch-size", "2"), **changes}
        self.request = lan.request(THREE, **values)
        plan = lan.plan(THREE, **values)
        return plan, launch(self.nodes, plan)

    def watch(
        self, plan: Plan, containers: Sequence[RunningContainer], then: Callable[[Update], object], **how: Any
    ) -> RunOutcome:
        def hear(update: Update) -> None:
            self.updates.append(update)
            if isinstance(update, Tick):
                self.time.pass_(10)
            then(update)

        pool = NodePool(nodes=self.nodes, request=self.request, now=lambda: datetime(2026, 1, 3, tzinfo=UTC))

        def copy(nodes: Sequence[Node], _plan: Plan, step: int) -> None:
            self.copies.append(([node.name for node in nodes], step))

        def notify(node: str, progress: Progress) -> None:
            self.brought.append(f"{node}: {progress.text}")

        callbacks = Callbacks(update=hear, checkpoint=copy, notify=notify)
        values = {"no_answer_s": 600.0, "clock": lambda: self.time.now, "pause": self.time.pause,
                  "rest": self.time.pass_, "tick_s": 0.005, **how}  # fmt: skip
        return supervise(Supervision(pool=pool, callbacks=callbacks, **values), plan, containers)

    def container(self, name: str) -> str:
        """The one that holds the node's lock."""
        return next(facts.id for _, facts in self.engines[name].made.values() if facts.name == "orch-run")

    def finish(self, code: int = 0, names: Sequence[str] = THREE) -> None:
        for name in names:
            self.engines[name].finish(self.container(name), code)

    def say(self, name: str, text: str) -> None:
        self.engines[name].write(self.container(name), lan.moment(self.time.now % 3000), text)

    def record(self, step: int) -> None:
        """A checkpoint that was reported before."""
        text = lan.written(step).partition(": ")[2]
        line = RunLine(time=lan.moment(0), node="alpha", node_rank=0, rank=0, text=text)
        RunRecord(lan.IDENTITY.run_id).note_report(line, self.container("alpha"))

    def updates_of(self, *kinds: type) -> list[Update]:
        return [each for each in self.updates if isinstance(each, kinds)]
