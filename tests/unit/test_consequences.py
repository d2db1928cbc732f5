"""One rank dies, and the others lose it: what is shown of that, by logs that were recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.render.consequences import Consequences, peers
from orchestrator.specs.happening import Said
from tests import lan
from tests.cases.why.reading import LOGS, read_case
from tests.unit.conftest import THREE

NAMES = {"127.0.0.1": "gamma"}


def shown(lines: tuple[Said, ...]) -> list[str]:
    fold = Consequences(NAMES)
    return [said.text for line in lines for said in fold.hear(line)] + [said.text for said in fold.rest()]


def case(name: str, node: str = "") -> tuple[Said, ...]:
    lines = read_case(LOGS / f"{name}.log").evidence.lines
    return tuple(said for said in lines if node in ("", said.node))


def ranks_lines(*texts: str, rank: int | None = 1) -> tuple[Said, ...]:
    return tuple(Said(time=lan.moment(1), node="beta", node_rank=1, rank=rank, text=text) for text in texts)


def test_a_rank_that_lost_another_says_so_in_a_line() -> None:
    lines = shown(case("network.peer_lost", "alpha"))
    assert lines[:2] == ["rank 0 joined", "lost gamma: Connection closed by peer"]
    assert len(lines) == 3  # torchrun's own line, without its traceback and summary
    assert "failed (exitcode: 1) local_rank: 0" in lines[2]


def test_a_c_stack_below_it_goes_with_it() -> None:
    lines = shown(case("network.peer_lost", "beta"))
    assert any("recvValueWithTimeout failed" in line for line in lines)
    assert not any(line.startswith(("frame #", "Exception raised from")) for line in lines)


def test_what_the_trainer_said_in_a_line_is_not_said_twice() -> None:
    lines = shown(case("memory.killed.trainer", "alpha"))
    assert sum("Connection reset by peer" in line for line in lines if not line.startswith("@orch ")) == 1
    assert not any("Traceback" in line for line in lines)


def test_the_first_failure_is_shown_whole() -> None:
    died = case("memory.killed.trainer", "beta")
    assert shown(died) == [said.text for said in died]


@pytest.mark.parametrize("path", sorted(LOGS.glob("code.*.log")), ids=lambda path: path.stem)
def test_an_exception_of_its_own_is_shown_whole(path: Path) -> None:
    case_ = read_case(path)
    own = tuple(said for said in case_.evidence.lines if said.rank == case_.rank)
    assert shown(own) == [said.text for said in own]


def test_each_epoch_begins_anew() -> None:
    lost = case("network.peer_lost", "alpha")
    epoch = ranks_lines('@orch {"event": "epoch", "epoch": 2}', rank=None)[0]
    own = [said for said in case("memory.killed.trainer", "beta") if said.rank is None]
    fold = Consequences(NAMES)
    for said in lost:
        fold.hear(said)
    again = [Said(**{**vars(said), "node": "alpha"}) for said in (epoch, *own)]
    assert [said for line in again for said in fold.hear(line)] == again


def test_a_traceback_without_an_end_is_not_kept_back() -> None:
    lines = ranks_lines("Traceback (most recent call last):", '  File "a.py", line 1, in f')
    fold = Consequences(NAMES)
    assert [said for line in lines for said in fold.hear(line)] == []
    assert tuple(fold.rest()) == lines
    assert tuple(fold.rest()) == ()


def test_writers_are_told_apart() -> None:
    begin, frame, end = ranks_lines(
        "Traceback (most recent call last):", "  f", "ValueError: Connection closed by peer"
    )
    other = ranks_lines("step 3", rank=2)[0]
    fold = Consequences({})
    assert [*fold.hear(begin), *fold.hear(other), *fold.hear(frame)] == [other]
    assert [said.text for said in fold.hear(end)] == ["lost another rank: Connection closed by peer"]


def test_peers_by_address() -> None:
    plan = lan.plan(THREE)
    assert peers(plan) == {part.address: part.node for part in plan.nodes}
    assert peers(None) == {}
