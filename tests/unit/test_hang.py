"""The position of each rank, and the rank that others wait for, from the reports of agents and coordinator."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.checks.hang import timestamp
from orchestrator.render.why import why_data, why_lines
from orchestrator.specs.run import ContainerFacts
from orchestrator.specs.run_events import RunLine
from orchestrator.state.postmortem import Evidence, state_of, write_postmortem
from orchestrator.state.rank_places import liveness_reports, rank_places, rank_waited_for
from orchestrator.state.run_state import RunState
from orchestrator.watch.timeline import agent_line
from tests import lan
from tests.unit.conftest import THREE

IN_LOAD = ("/usr/local/lib/python3.11/threading.py:327 in wait", "/workspace/code/user.py:42 in load")
IDLE = "rank 1 on beta has been idle at user.py:42 in load for 61 s; ranks 0, 2 are waiting for it"


def reported(second: int, node: str, kind: str, /, **values: Any) -> RunLine:
    text = f"@orch {json.dumps({'event': kind, 'rank': None, 'node': node, **values})}"
    return RunLine(time=lan.moment(second), node=node, node_rank=lan.NAMES.index(node), rank=None, text=text)


def stacks(second: int, node: str, *frames: str, **more: Any) -> RunLine:
    """The only rank of this node."""
    place = {"rank": lan.NAMES.index(node), "frames": list(frames), "state": "S", **more}
    return reported(second, node, "stacks", ranks=[place])


def sampled(second: int, node: str, **more: Any) -> RunLine:
    usage = {"cpu_percent": 1.0, "cpus": 2.0, "ram_used_mib": 1, "ram_limit_mib": 2}
    return reported(second, node, "resources", **usage, positions=[{"rank": lan.NAMES.index(node), **more}])


def decided(second: int, rule: str = "idle", text: str = IDLE, node: str = "alpha", **more: Any) -> RunLine:
    usual = {"rule": rule, "text": text, "fault": True, "ranks": [1], "nodes": ["beta"], "seconds": 61}
    return reported(second, node, "liveness", **{**usual, **more})


def state(*lines: RunLine) -> RunState:
    return state_of(Evidence(run_id="r1", plan=lan.plan(THREE)), lines)


def test_the_newest_position_of_each_rank_counts_and_keeps_its_stack() -> None:
    lines = (
        sampled(1, "alpha", line="train.py:1 in main", step=7, cpu=0.5),
        sampled(2, "beta", line="user.py:42 in load", step=1204, cpu=0.0),
        stacks(3, "beta", *IN_LOAD, line="user.py:42 in load", step=1204, cpu=0.0),
        sampled(4, "beta", line="user.py:42 in load", step=1204, cpu=0.98),
    )
    alpha, beta = rank_places(state(*lines))
    assert alpha.text == "rank 0 alpha  train.py:1 main  step 7  50 % CPU"
    assert beta.text == "rank 1 beta  user.py:42 load  step 1,204  98 % CPU"
    assert beta.at == "/workspace/code/user.py:42 in load"
    assert [place.rank for place in rank_places(state(*lines, reported(5, "beta", "generation")))] == [0]


def test_a_decision_counts_until_it_is_taken_back_and_only_rank_0s_agent_makes_it() -> None:
    apart = decided(2, "apart", "each rank trains its own model: 127 optimizer steps, nothing exchanged")
    lines = (decided(1), apart)
    assert [one.rule for one in liveness_reports(state(*lines))] == ["idle", "apart"]
    assert [one.rule for one in liveness_reports(state(*lines, decided(3, "")))] == ["apart"]
    assert liveness_reports(state(*lines, reported(3, "alpha", "generation"))) == ()
    assert liveness_reports(state(decided(1, node="beta"))) == ()


def test_the_rank_that_the_others_waited_for_is_named_with_its_line() -> None:
    known = state(decided(1), stacks(2, "beta", *IN_LOAD))
    found = rank_waited_for(liveness_reports(known), rank_places(known))
    assert found is not None
    assert (found[0].node, found[0].at) == ("beta", "/workspace/code/user.py:42 in load")
    assert found[1] == ("stuck for 61 s, at /workspace/code/user.py:42 in load; ranks 0, 2 are waiting for it")
    all_wait = state(decided(1, "network", "all ranks …", ranks=[0, 1, 2]))
    assert rank_waited_for(liveness_reports(all_wait), ()) is None


@pytest.mark.parametrize("ranks_", [None, "x", [1], [{"rank": "a"}], [{"rank": 1, "frames": 3, "step": "x"}]])
def test_what_only_looks_like_such_an_event_breaks_nothing(ranks_: object) -> None:
    found = rank_places(state(reported(1, "alpha", "stacks", ranks=ranks_)))
    assert all(place.frames == () for place in found)
    assert liveness_reports(state(reported(1, "alpha", "liveness", rule=ranks_, ranks=ranks_))) == ()


def story_of(*lines: RunLine, **more: Any) -> Any:
    return write_postmortem(Evidence(run_id="r1", plan=lan.plan(THREE), lines=lines, **more))


HELD = ContainerFacts(id="c", name="c", image="", labels={}, status="running")


def test_a_run_that_hangs_right_now() -> None:
    story = story_of(
        decided(1), *(sampled(2, node, line="train.py:14 in main", cpu=0.0) for node in THREE),
        containers=dict.fromkeys(THREE, HELD), now=timestamp(lan.moment(10)),
    )  # fmt: skip
    lines = list(why_lines(story))
    assert story.state == "running"
    assert f"  ! {IDLE}" in lines
    assert "    rank 1 beta  train.py:14 main  0 % CPU  8 s ago" in lines
    (one,) = [place for place in why_data(story)["places"] if place["rank"] == 1]
    assert one["line"] == "train.py:14 in main"


def test_the_collectives_of_a_step_are_those_of_most_ranks() -> None:
    counts = (1.0, 1.0, 0.0)
    each = [sampled(2, node, collectives_per_step=count) for node, count in zip(THREE, counts, strict=True)]
    containers = dict.fromkeys(THREE, HELD)
    assert "    together: 1.0 collectives per step" in list(why_lines(story_of(*each, containers=containers)))
    none = story_of(*(sampled(2, node) for node in THREE), containers=containers)
    assert "together" not in "\n".join(why_lines(none))


def test_a_healthy_script_of_which_rank_0_alone_prints_is_not_accused() -> None:
    """Two hundred epochs: ranks 1 and 2 have written nothing."""
    lines = [
        RunLine(time=lan.moment(second), node="alpha", node_rank=0, rank=0, text=f"epoch {second}/200 loss 0.1")
        for second in range(1, 50)
    ]
    story = story_of(*lines, containers=dict.fromkeys(THREE, HELD))
    assert story.waits == story.liveness == ()
    text = "\n".join(why_lines(story))
    assert "!" not in text
    assert "rank 1" not in text


def test_a_frozen_rank_keeps_its_cause_and_its_place() -> None:
    why = "frozen: local rank 0 sent no heartbeat for 61 s, nor did it answer (it is stopped)"
    over = {"outcome": "infrastructure", "node": "gamma", "rank": 2, "exit_code": -9, "reason": why}
    stopped = decided(1, "stopped", "rank 2 on gamma is stopped (SIGSTOP)", ranks=[2], nodes=["gamma"])
    story = story_of(stopped, stacks(1, "gamma", state="T"), reported(5, "alpha", "finished", **over))
    assert story.failure.cause.id == "node.frozen"
    assert why in "\n".join(why_lines(story))
    assert story.liveness == ("! rank 2 on gamma is stopped (SIGSTOP)",)


def test_a_decision_is_an_entry_of_the_timeline() -> None:
    def entry(line: RunLine) -> str:
        return agent_line(line.event, line.node, line.node_rank)

    assert entry(decided(1)) == f"! {IDLE}"
    assert entry(decided(1, fault=False)) == f"· {IDLE}"
    assert entry(decided(1, "", "", seconds=70)) == "· progress again after 70 s"
    assert entry(decided(1, node="beta")) == ""
    assert "\x1b" not in entry(decided(1, text="rank 1 \x1b[2J"))
    assert entry(stacks(1, "beta", *IN_LOAD)) == ""
