"""Machines and their run, watched: samples, the run's lines and ends, and silence, on machines in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from threading import Event

import pytest

from orchestrator.fleet.monitor import FleetWatch
from orchestrator.fleet.runs.launch import launch
from orchestrator.nodes.interface import Node
from orchestrator.nodes.probes import usage_probe
from orchestrator.specs.errors import ConfigError, NodeUnreachableError
from orchestrator.specs.run_events import Tick
from orchestrator.state.facts import Fact, RunFound
from orchestrator.store.run_record import RunRecord
from orchestrator.watch.fleet_view import FleetView
from orchestrator.watch.live import LiveState
from tests import lan
from tests.lan import event

THREE = lan.NAMES[:3]


class Watching:
    """A watch, with the state that its facts make."""

    def __init__(self, here: lan.Lan, run: str | None = None) -> None:
        self.here, self.state = here, LiveState(here.nodes)
        nodes: list[Node] = list(here.nodes.values())
        specs = {name: lan.spec(name) for name in here.nodes}
        closed = Event()
        self.watch = FleetWatch(nodes, specs, run, tick_s=0.02, pause=lambda seconds: closed.wait(min(seconds, 0.05)))
        self.facts: list[Fact | RunFound] = []
        self._reading = self.watch.facts()

    def until(self, true: Callable[[FleetView], object]) -> FleetView:
        deadline = time.monotonic() + 20
        for fact in self._reading:
            if not isinstance(fact, Tick):
                self.state.add(fact)
                self.facts.append(fact)
            if true(shown := self.state.view()):
                return shown
            assert time.monotonic() < deadline, shown
        raise AssertionError("it has ended")


@pytest.fixture
def made() -> Iterator[list[Watching]]:
    watchings: list[Watching] = []
    yield watchings
    for one in watchings:
        one.watch.close()


def begun(made: list[Watching], here: lan.Lan, run: str | None = None) -> Watching:
    made.append(Watching(here, run))
    return made[-1]


def test_a_fleet_without_a_run(made: list[Watching]) -> None:
    watching = begun(made, lan.lan(*THREE))
    shown = watching.until(lambda shown: shown.looked and all(node.usage for node in shown.nodes))
    assert shown.run is None
    assert {node.state for node in shown.nodes} == {"idle"}
    assert {node.usage and node.usage.cpu_percent for node in shown.nodes} == {25.0}
    assert [call for node in watching.here.nodes.values() for call in node.engine.calls if call[0] == "run_once"] == []


def test_a_run_that_is_launched_later_is_found(made: list[Watching]) -> None:
    here = lan.lan(*THREE, ends_with=None, says=(event("step", step=7, loss=2.5),))
    watching = begun(made, here)
    watching.until(lambda shown: shown.looked)
    launch(here.nodes, lan.plan(THREE))
    shown = watching.until(lambda shown: shown.run and shown.run.progress.step and shown.run.phase == "running")
    assert shown.run is not None
    assert (shown.run.run_id, shown.run.phase, shown.run.progress.step) == (lan.IDENTITY.run_id, "running", 7)


def test_lines_come_live_and_the_end_is_seen(made: list[Watching]) -> None:
    here = lan.lan(*THREE, ends_with=None)
    launch(here.nodes, lan.plan(THREE))
    watching = begun(made, here)
    watching.until(lambda shown: shown.run)
    ids = {name: next(iter(node.engine.made)) for name, node in here.nodes.items()}
    here.nodes["alpha"].engine.write(ids["alpha"], lan.moment(50), event("step", step=9, loss=1.5))
    watching.until(lambda shown: shown.run and shown.run.progress.step == 9)
    for name, node in here.nodes.items():
        node.engine.finish(ids[name], 1 if name == "beta" else 0)
    shown = watching.until(lambda shown: {node.state for node in shown.nodes} == {"failed", "succeeded"})
    assert shown.run is not None
    assert shown.run.phase == "failed"
    record = RunRecord(lan.IDENTITY.run_id)
    assert [line.text for line in record.lines()] != []  # what was seen is on record, as with `orch logs -f`


def test_the_agents_file_is_read_while_the_run_holds_the_node(made: list[Watching]) -> None:
    here = lan.lan(*THREE, ends_with=None)
    plan = lan.plan(THREE)
    launch(here.nodes, plan)
    watching = begun(made, here)

    def asked(node: str) -> list[str]:
        return [call[6] for call in here.nodes[node].calls if call[2:3] == (usage_probe.SCRIPT,)]

    wanted = f"{plan.nodes[2].folder}/runs/{plan.run_id}/resources-2.jsonl"
    watching.until(lambda _shown: wanted in asked("gamma"))
    assert asked("gamma")[0] in ("", wanted)  # the first command may begin before the run is found


def test_a_silent_node_is_reported_and_comes_back(made: list[Watching]) -> None:
    here = lan.lan(*THREE)
    key = ("sh", "-c", usage_probe.SCRIPT, "*")
    gamma = here.nodes["gamma"]
    good, gamma.answers[key] = gamma.answers[key], NodeUnreachableError("no answer in 5 s", node="gamma")
    watching = begun(made, here)
    shown = watching.until(lambda shown: shown.nodes[2].silent and shown.nodes[0].usage)
    assert (shown.nodes[2].state, shown.nodes[2].problem) == ("no answer", "no answer in 5 s")
    gamma.answers[key] = good
    shown = watching.until(lambda shown: not shown.nodes[2].silent)
    assert shown.nodes[2].problem == ""


def test_an_unexpected_error_of_one_node_leaves_the_others(made: list[Watching]) -> None:
    here = lan.lan(*THREE)
    here.nodes["beta"].stream = _broken  # type: ignore[method-assign]  # an error that is no OrchError
    shown = begun(made, here).until(lambda shown: shown.nodes[1].silent and shown.nodes[2].usage)
    assert "broken" in shown.nodes[1].problem


def test_a_run_that_is_not_there(made: list[Watching]) -> None:
    watching = begun(made, lan.lan(*THREE), "nowhere")
    with pytest.raises(ConfigError, match="no run nowhere on any node"):
        watching.until(lambda _shown: False)


def test_a_run_that_a_silent_node_may_hold_is_looked_for_again(made: list[Watching]) -> None:
    here = lan.lan(*THREE)
    here.nodes["gamma"].engine.failures["containers"] = NodeUnreachableError("no answer in 5 s", node="gamma")
    watching = begun(made, here, "r1")
    watching.until(lambda shown: shown.looked)
    assert next(one.unreachable for one in watching.facts if isinstance(one, RunFound)) == ("gamma",)
    looks = len([one for one in watching.facts if isinstance(one, RunFound)])
    watching.until(lambda _shown: len([one for one in watching.facts if isinstance(one, RunFound)]) > looks)


def test_a_run_that_only_this_computer_knows(made: list[Watching]) -> None:
    here = lan.lan(*THREE)
    launch(here.nodes, lan.plan(THREE))
    RunRecord(lan.IDENTITY.run_id).save_outcome("failed", "rank 1: ValueError")
    for node in here.nodes.values():
        node.engine.made.clear()
    shown = begun(made, here).until(lambda shown: shown.run)
    assert shown.run is not None
    assert (shown.run.phase, shown.run.reason) == ("failed", "rank 1: ValueError")


def _broken(argv: object, *, timeout_s: float = 0) -> Iterator[bytes]:
    raise ZeroDivisionError("broken")


def test_a_launch_that_is_under_way_is_looked_at_again(made: list[Watching]) -> None:
    """The first node's container is made alone: a watch that follows it would show the others as lost to the end."""
    here = lan.lan(*THREE, ends_with=None)
    parts = {part.node: part.container for part in lan.plan(THREE).nodes}
    first, *others = THREE
    ids = {first: here.nodes[first].engine.create(parts[first])}
    watching = begun(made, here)
    watching.until(lambda shown: shown.run and shown.run.phase == "launching")
    ids |= {name: here.nodes[name].engine.create(parts[name]) for name in others}
    for name, id in ids.items():
        here.nodes[name].engine.start(id)
    shown = watching.until(lambda shown: {node.state for node in shown.nodes} == {"running"})
    assert shown.run is not None
    assert shown.run.phase in ("starting", "running")
