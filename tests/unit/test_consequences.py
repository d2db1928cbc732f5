"""One rank dies, and the others lose it: what is shown of that, by logs that were recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.render.consequences import Consequences, peers
from orchestrator.specs.run_events import RunLine
from tests import lan
from tests.cases.why.reading import LOGS, read_case
from tests.unit.conftest import THREE

NAMES = {"127.0.0.1": "gamma"}


def shown(lines: tuple[RunLine, ...]) -> list[str]:
    fold = Consequences(NAMES)
    return [entry.text for line in lines for entry in fold.hear(line)] + [entry.text for entry in fold.rest()]


def case(name: str, node: str = "") -> tuple[RunLine, ...]:
    lines = read_case(LOGS / f"{name}.log").evidence.lines
    return tuple(line for line in lines if node in ("", line.node))


def ranks_lines(*texts: str, rank: int | None = 1) -> tuple[RunLine, ...]:
    return tuple(RunLine(time=lan.moment(1), node="beta", node_rank=1, rank=rank, text=text) for text in texts)


def test_a_rank_that_lost_another_says_so_in_a_line() -> None:
    lines = shown(case("network.peer_lost", "alpha"))
    assert lines[:2] == ["rank 0 joined", "lost gamma: Connection closed by peer"]
    assert len(lines) == 2  # nothing of torchrun: its line, traceback and summary repeat the end of a rank


def test_a_c_stack_below_it_goes_with_it() -> None:
    lost = "[W1122 02:22:09.207 TCPStore.cpp:138] [c10d] recvValue failed: Connection was likely closed"
    lines = ranks_lines(lost, "Exception raised from recvBytes at Utils.hpp:787", "frame #0: c10::Error", "", "step 4")
    assert shown(lines) == [lost, "step 4"]


def test_torchruns_exit_barrier_is_nobodys_failure() -> None:
    """Ranks there had ended; who leaves first takes the store along."""
    lines = case("network.peer_lost", "beta")
    assert any("Error waiting on exit barrier" in line.text for line in lines)
    assert shown(lines) == ["rank 1 joined"]


def test_an_agent_that_lost_the_store_before_that_says_so() -> None:
    lost = "[W1122 02:22:09.207 TCPStore.cpp:138] [c10d] recvValue failed: Connection was likely closed"
    assert shown(ranks_lines(lost, "frame #0: c10::Error", rank=None)) == [lost]
    own = "E1122 02:22:10.618000 17506 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -6)"
    assert shown(ranks_lines(lost, own, rank=None)) == [lost, own]


def test_after_rank_0_is_done_the_first_to_leave_is_not_reported() -> None:
    done = RunLine(time=lan.moment(1), node="alpha", node_rank=0, rank=0, text='@orch {"event": "done", "rank": 0}')
    raised = ("Traceback (most recent call last):", "  f", "torch.distributed.DistNetworkError: Failed to recv")
    assert shown((done, *ranks_lines(*raised, "bye"))) == [done.text, "bye"]
    assert shown(ranks_lines(*raised)) == ["lost another rank: Failed to recv"]


def test_torchruns_summary_of_the_rank_that_failed_is_folded_too() -> None:
    """Its own traceback stays; torchrun's and the summary say the same again on every node."""
    lines = case("code.exception")
    folded = [entry.text for entry in lines if entry.text not in shown(lines)]
    assert len(folded) > 60
    own = [entry.text for entry in lines if entry.rank == read_case(LOGS / "code.exception.log").rank]
    assert set(own) <= set(shown(lines))
    assert not any("ChildFailedError" in line or "Root Cause" in line for line in shown(lines))


def test_what_was_raised_from_a_lost_peer_goes_with_it() -> None:
    lost = ("Traceback (most recent call last):", "  f", "RuntimeError: Connection closed by peer")
    chain = ("", "During handling of the above exception, another exception occurred:", "")
    own = ("Traceback (most recent call last):", "  g", "SyncError: the step could not be averaged")
    assert shown(ranks_lines(*lost, *chain, *own)) == ["lost another rank: Connection closed by peer"]
    assert shown(ranks_lines(*lost, *own))[1:] == list(own)


def test_a_lost_peer_is_reported_once_by_each_rank() -> None:
    timed_out = "[E626 06:24:44.9 ProcessGroupNCCL.cpp:616] collective operation timeout: WorkNCCL(OpType=ALLREDUCE)"
    assert shown(ranks_lines(timed_out, timed_out, "  what():  NCCL " + timed_out, "step 2")) == [timed_out, "step 2"]


def test_a_line_of_the_trainer_is_not_printed_twice() -> None:
    lines = shown(case("memory.killed.trainer", "alpha"))
    assert sum("Connection reset by peer" in line for line in lines if not line.startswith("@orch ")) == 1
    assert not any("Traceback" in line for line in lines)


def test_the_first_failure_is_shown_whole() -> None:
    died = case("code.assertion")
    own = [line.text for line in died if line.rank == read_case(LOGS / "code.assertion.log").rank]
    assert set(own) <= set(shown(died))


@pytest.mark.parametrize("path", sorted(LOGS.glob("code.*.log")), ids=lambda path: path.stem)
def test_an_exception_of_its_own_is_shown_whole(path: Path) -> None:
    case_ = read_case(path)
    own = tuple(line for line in case_.evidence.lines if line.rank == case_.rank)
    assert shown(own) == [line.text for line in own]


def test_each_epoch_tells_its_own_losses() -> None:
    lost = ranks_lines("Traceback (most recent call last):", "  f", "RuntimeError: Connection closed by peer")
    epoch = ranks_lines('@orch {"event": "generation", "generation": 2}', rank=None)
    line = "lost another rank: Connection closed by peer"
    assert shown((*lost, *lost, *epoch, *lost)) == [line, epoch[0].text, line]


def test_a_traceback_without_an_end_is_printed() -> None:
    lines = ranks_lines("Traceback (most recent call last):", '  File "a.py", line 1, in f')
    fold = Consequences(NAMES)
    assert [entry for line in lines for entry in fold.hear(line)] == []
    assert tuple(fold.rest()) == lines
    assert tuple(fold.rest()) == ()


def test_writers_are_distinguished() -> None:
    begin, frame, end = ranks_lines(
        "Traceback (most recent call last):", "  f", "ValueError: Connection closed by peer"
    )
    other = ranks_lines("step 3", rank=2)[0]
    fold = Consequences({})
    assert [*fold.hear(begin), *fold.hear(other), *fold.hear(frame)] == [other]
    assert [line.text for line in fold.hear(end)] == ["lost another rank: Connection closed by peer"]


def test_peers_by_address() -> None:
    plan = lan.plan(THREE)
    assert peers(plan) == {part.address: part.node for part in plan.nodes}
    assert peers(None) == {}
