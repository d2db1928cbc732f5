"""Who stands still and who waits for it, from the stacks that supervisors tell."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.checks.hang import BACKWARD, describe_hang, rank_stacks, rank_waited_for, ranks
from orchestrator.checks.postmortem import Evidence, write_postmortem
from orchestrator.render.recovery import recovery_line
from orchestrator.render.why import why_data, why_lines
from orchestrator.specs.run import ContainerFacts
from orchestrator.specs.run_events import RunLine
from tests import lan
from tests.unit.conftest import THREE

PACKAGES = "/opt/venv/lib/python3.11/site-packages"
IN_ALL_REDUCE = (
    f"{PACKAGES}/torch/distributed/distributed_c10d.py:3252 in all_reduce",
    f"{PACKAGES}/torch/distributed/c10d_logger.py:83 in wrapper",
    "/workspace/code/train.py:14 in main",
)
IN_LOAD = ("/usr/local/lib/python3.11/threading.py:327 in wait", "/workspace/code/user.py:42 in load")
IN_BACKWARD = (f"{PACKAGES}/torch/autograd/graph.py:900 in _engine_run_backward", "/workspace/code/train.py:20 in main")


def told(second: int, node: str, kind: str, /, **values: Any) -> RunLine:
    text = f"@orch {json.dumps({'event': kind, 'rank': None, 'node': node, **values})}"
    return RunLine(time=lan.moment(second), node=node, node_rank=lan.NAMES.index(node), rank=None, text=text)


def stuck(second: int, node: str, *frames: str, **more: Any) -> RunLine:
    """The only rank of this node."""
    place = {"rank": lan.NAMES.index(node), "frames": list(frames), "state": "S", **more}
    return told(second, node, "stuck", seconds=31, ranks=[place])


def words(*lines: RunLine) -> list[str]:
    return list(describe_hang(rank_stacks(lines), lan.plan(THREE)))


def test_the_one_in_the_users_code_is_named_and_the_others_wait() -> None:
    lines = (stuck(1, "alpha", *IN_ALL_REDUCE), stuck(2, "beta", *IN_LOAD), stuck(3, "gamma", *IN_ALL_REDUCE))
    assert words(*lines) == [
        "rank 1 on beta is stuck at /workspace/code/user.py:42 in load, for 31 s",
        "ranks 0, 2 wait for it in all_reduce",
    ]
    found = rank_waited_for(rank_stacks(lines))
    assert found is not None
    assert (found[0].node, found[0].at) == ("beta", "/workspace/code/user.py:42 in load")


def test_what_the_trainer_says_of_itself_is_told() -> None:
    """Its collectives may be another thread's, of which the main thread's stack knows nothing."""
    assert words(
        stuck(1, "alpha", *IN_LOAD, step=120, part="exchange", exchange="all_to_all"),
        stuck(2, "beta", *IN_LOAD, step=120, part="data", exchange=""),
    ) == [
        "rank 1 on beta is stuck at /workspace/code/user.py:42 in load (step 120, data), for 31 s",
        "rank 0 waits for it in all_to_all (step 120)",
    ]


def test_a_backward_pass_counts_as_waiting_where_another_stands_elsewhere() -> None:
    lines = (stuck(1, "alpha", *IN_BACKWARD), stuck(2, "beta", *IN_LOAD))
    assert words(*lines)[1] == f"rank 0 waits for it in {BACKWARD}"


@pytest.mark.parametrize(
    ("state", "why"), [("T", "it is stopped"), ("D", "the kernel holds it: a disk, "), ("R", "in time")]
)
def test_who_does_not_answer_is_named(state: str, why: str) -> None:
    (first, *_) = words(stuck(1, "alpha", *IN_ALL_REDUCE), stuck(2, "gamma", state=state))
    assert first.startswith(f"rank 2 on gamma is stuck and does not answer ({why}")


def test_all_in_one_collective_is_the_networks_matter() -> None:
    lines = [stuck(1, node, *IN_ALL_REDUCE) for node in THREE]
    assert words(*lines) == [
        "ranks 0-2 wait in all_reduce",
        "all wait for one another in the same place: the network between them, orch test",
    ]
    assert rank_waited_for(rank_stacks(lines)) is None


def test_different_collectives_never_meet() -> None:
    in_broadcast = IN_ALL_REDUCE[0].replace("all_reduce", "broadcast")
    found = words(*(stuck(1, node, *IN_ALL_REDUCE) for node in ("alpha", "beta")), stuck(1, "gamma", in_broadcast))
    assert found[:2] == ["ranks 0-1 wait in all_reduce", "rank 2 waits in broadcast"]
    assert found[2].startswith("they are in different collectives")


def test_the_missing_one_may_be_at_work() -> None:
    """Its node tells of progress: an evaluation of its own, say."""
    assert words(stuck(1, "alpha", *IN_ALL_REDUCE), stuck(1, "beta", *IN_ALL_REDUCE)) == [
        "ranks 0-1 wait in all_reduce",
        "rank 2 is not known to be stuck: perhaps computing",
    ]


def test_long_work_of_all_is_no_standstill() -> None:
    assert words(*(stuck(1, node, *IN_LOAD) for node in THREE)) == []


def test_who_moves_again_or_starts_anew_does_not_stand() -> None:
    lines = (stuck(1, "alpha", *IN_LOAD), told(2, "alpha", "moving", seconds=40), stuck(1, "beta", *IN_LOAD))
    assert [place.node for place in rank_stacks(lines)] == ["beta"]
    assert rank_stacks((*lines, told(3, "beta", "epoch"))) == ()
    assert [place.node for place in rank_stacks(lines, until=lan.moment(1))] == ["alpha", "beta"]


def test_a_rank_that_was_left_out_holds_nobody_up() -> None:
    assert words(
        *(stuck(1, node, *IN_ALL_REDUCE) for node in ("alpha", "beta")),
        stuck(1, "gamma", *IN_LOAD, exchange="left-out"),
    )[0].startswith("ranks 0-1 wait")


@pytest.mark.parametrize("ranks_", [None, "x", [1], [{"rank": "a"}], [{"rank": 1, "frames": 3, "step": "x"}]])
def test_what_only_looks_like_such_an_event_breaks_nothing(ranks_: object) -> None:
    found = rank_stacks([told(1, "alpha", "stuck", seconds="long", ranks=ranks_)])
    assert all(place.frames == () for place in found)


def test_ranks_are_folded() -> None:
    assert ranks([3]) == "rank 3"
    assert ranks([4, 0, 2, 1]) == "ranks 0-2, 4"


def story_of(*lines: RunLine, **more: Any) -> Any:
    return write_postmortem(Evidence(run_id="r1", plan=lan.plan(THREE), lines=lines, **more))


def test_a_run_that_hangs_right_now() -> None:
    held = ContainerFacts(id="c", name="c", image="", labels={}, status="running")
    lines = [stuck(1, node, *(IN_LOAD if node == "gamma" else IN_ALL_REDUCE)) for node in THREE]
    told_ = story_of(*lines, containers=dict.fromkeys(THREE, held))
    text = "\n".join(why_lines(told_))
    assert told_.state == "running"
    assert "  · rank 2 on gamma is stuck at /workspace/code/user.py:42 in load, for 31 s" in text
    assert "  · ranks 0-1 wait for it in all_reduce" in text
    (one,) = [place for place in why_data(told_)["places"] if place["rank"] == 2]
    assert one["frames"][0].startswith("/usr/local/lib/python3.11/threading.py")


def test_a_frozen_rank_keeps_its_cause_and_tells_its_place() -> None:
    why = "frozen: local rank 0 sent no heartbeat for 61 s, nor did it answer (it is stopped)"
    over = {"class": "infrastructure", "node": "gamma", "rank": 2, "exit_code": -9, "reason": why}
    lines = [stuck(1, "alpha", *IN_ALL_REDUCE), stuck(1, "gamma", state="T")]
    told_ = story_of(*lines, told(5, "alpha", "over", **over))
    assert told_.failure.cause.id == "node.frozen"
    assert why in "\n".join(why_lines(told_))
    assert told_.waits[0].startswith("rank 2 on gamma is stuck and does not answer (it is stopped)")


def test_who_follows_is_told_of_a_long_one_alone() -> None:
    short = stuck(1, "beta", *IN_LOAD)
    long = told(1, "beta", "stuck", seconds=62, ranks=[])
    assert recovery_line(short) == ""
    assert recovery_line(long) == "! no progress on beta for 62 s; position of each rank: orch why"
