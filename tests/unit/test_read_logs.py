"""The lines of a run, wherever they are, and the filters on them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from orchestrator.fleet.runs.launch import launch
from orchestrator.fleet.runs.read_logs import LogSource, collect_logs, resolve_logs, select_lines
from orchestrator.specs.errors import ConfigError, EngineError, OrchError
from orchestrator.specs.request import RunIdentity
from orchestrator.specs.run_events import RunLine
from orchestrator.store.line_filter import Filter
from orchestrator.store.line_log import LineLog
from orchestrator.store.run_record import RunRecord
from orchestrator.store.run_store import RunStore
from tests import lan

TWO = lan.NAMES[:2]
SAYS = ("[rank0]: one", "[rank1]: two", "agent three")


def source(run_id: str = "r1", **acting: Any) -> Any:
    here = lan.lan(*TWO, says=SAYS, **acting)
    launch(here.nodes, lan.plan(TWO, RunIdentity(run_id=run_id, user="ana", started_at=lan.IDENTITY.started_at)))
    return resolve_logs(list(here.nodes.values()), None)


def texts(lines: list[RunLine]) -> list[tuple[str, str]]:
    return [(line.node, line.text) for line in lines]


def gather_lines(found: LogSource, wanted: Filter) -> list[RunLine]:
    return [line for line, _ in select_lines(found, wanted)]


ALL = [(name, text) for text in ("one", "two", "agent three") for name in TWO]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Filter(), ALL),
        (Filter(nodes=frozenset({"beta"})), [line for line in ALL if line[0] == "beta"]),
        (Filter(rank=1), [("alpha", "two"), ("beta", "two")]),
        (Filter(since=lan.moment(1)), [("alpha", "agent three"), ("beta", "agent three")]),
        (Filter(grep=re.compile("o(ne)?$")), [line for line in ALL if "three" not in line[1]]),
        (Filter(tail=1), [("alpha", "agent three"), ("beta", "agent three")]),
        (Filter(tail=2), ALL[2:]),
        (Filter(tail=3), ALL),
        (Filter(tail=4), ALL),
        (Filter(tail=99), ALL),
        (Filter(tail=0), []),
        (Filter(tail=1, grep=re.compile("one"), nodes=frozenset({"alpha"})), [("alpha", "one")]),
        (Filter(nodes=frozenset({"gamma"})), []),
    ],
)
def test_filters(wanted: Filter, expected: list[tuple[str, str]]) -> None:
    assert texts(gather_lines(source(), wanted)) == expected


def test_a_tail_counts_the_lines_that_people_see() -> None:
    message = (lan.event("started"), "[rank0]: one", "[rank0]: two", *(lan.event("step", step=n) for n in range(9)))
    here = lan.lan("alpha", says=message)
    launch(here.nodes, lan.plan(("alpha",)))
    found = resolve_logs(list(here.nodes.values()), None)
    shown = [text for _, text in texts(gather_lines(found, Filter(tail=1))) if not text.startswith("@orch")]
    assert shown == ["two"]
    assert len(gather_lines(found, Filter(tail=1, events=True))) == 1


def test_a_running_run_can_be_followed() -> None:
    found = source(ends_with=None)
    assert (found.run_id, found.running, found.names) == ("r1", True, TWO)
    assert not source(run_id="r2").running


def test_lines_outlive_the_containers() -> None:
    found = source()
    gather_lines(found, Filter())
    for container in found.containers:
        container.node.engine.remove(container.id)
    RunRecord("r1").save_plan(lan.plan())

    nodes = [one.node for one in found.containers]
    for wanted in (None, "r1", "r"):
        saved = resolve_logs(nodes, wanted)
        assert (saved.run_id, saved.running, saved.names) == ("r1", False, TWO)
        assert texts(gather_lines(saved, Filter())) == ALL


def test_a_run_on_the_nodes_comes_before_a_remembered_one() -> None:
    RunRecord("r0").save_plan(lan.plan())
    assert source().run_id == "r1"


def test_a_node_that_does_not_answer_leaves_what_is_on_record() -> None:
    found = source()
    gather_lines(found, Filter())
    beta = found.containers[1].node
    beta.engine.failures["logs"] = EngineError("no answer", node="beta")
    with RunRecord("r1").open_log("alpha") as log:
        log.add(RunLine(time=lan.moment(9), node="alpha", node_rank=0, rank=0, text="nine"))
    assert texts(gather_lines(found, Filter())) == [*ALL, ("alpha", "nine")]


class CutShort(RunStore):
    """A folder on which a collection of lines ends in the middle."""

    def open_log(self, node: str, container: str = "", since: str | None = None) -> LineLog:
        log = super().open_log(node, container, since)
        add = log.add

        def ends(line: RunLine) -> None:
            add(line)
            raise MemoryError

        log.add = ends  # type: ignore[method-assign]  # the process ends while it stores
        return log


def test_a_checkpoint_is_on_record_before_its_line_is_stored() -> None:
    """A collection that is cut short after the line would not read it again."""
    here = lan.lan("alpha", says=(lan.written(40),))
    plan = lan.plan(("alpha",))
    containers, record = launch(here.nodes, plan), RunRecord(plan.run_id)
    (cut,) = collect_logs(containers, record, CutShort(record.folder))
    assert isinstance(cut.error, OrchError)
    collect_logs(containers, record)
    assert [one.step for one in record.journal.checkpoints] == [40]


def test_an_unknown_run() -> None:
    with pytest.raises(ConfigError, match="no run nope on any node or on record"):
        resolve_logs(list(lan.lan("alpha").nodes.values()), "nope")
