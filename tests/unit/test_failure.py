"""First failed rank, found in what torchrun really wrote (tests/fixtures/torchrun)."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from contract.log_lines import split_rank
from orchestrator.checks.failure import SHOWN_LINES, EndedBadly, root_cause

RECORDED = Path(__file__).parents[1] / "fixtures" / "torchrun"
ANY_ORDER = list(permutations((0, 1)))


def ended(recording: str, node: int, *, ranks: int = 1) -> EndedBadly:
    """A node of a recording, as the follower saw it end."""
    lines = (RECORDED / f"{recording}__node{node}.log").read_text().splitlines()
    return EndedBadly(
        node=("alpha", "beta")[node],
        node_rank=node,
        first_rank=node * ranks,
        exit_code=1,
        oom_killed=False,
        lines=tuple(map(split_rank, lines)),
    )


@pytest.mark.parametrize("order", ANY_ORDER)
@pytest.mark.parametrize(
    ("recording", "ranks", "rank", "code", "reason", "last"),
    [
        ("sigkill", 1, 1, -9, "ended by SIGKILL", "step 10"),
        ("exit3", 1, 1, 3, "exit code 3", "no data here"),
        ("exception", 1, 1, 1, "ValueError: loss is nan at step 12", "ValueError: loss is nan at step 12"),
        ("two_ranks", 2, 3, 1, "ValueError: loss is nan at step 12", "ValueError: loss is nan at step 12"),
    ],
)
def test_the_rank_that_failed_is_named_whoever_ended_first(
    recording: str, ranks: int, rank: int, code: int, reason: str, last: str, order: tuple[int, int]
) -> None:
    failure = root_cause([ended(recording, node, ranks=ranks) for node in order])
    assert failure is not None
    assert (failure.node, failure.rank, failure.exit_code) == ("beta", rank, code)
    assert failure.reason == reason
    assert failure.lines[-1] == last
    assert not any("torchrun" in line or "====" in line or "Root Cause" in line for line in failure.lines)


def test_lines_are_the_ranks_own_and_the_last_ones() -> None:
    failure = root_cause([ended("two_ranks", 1, ranks=2)])
    assert failure is not None
    assert len(failure.lines) <= SHOWN_LINES
    assert failure.lines[-3:] == (
        '  File "/workspace/code/train.py", line 24, in <module>',
        '    raise ValueError("loss is nan at step 12")',
        "ValueError: loss is nan at step 12",
    )


def test_where_the_rank_wrote_nothing_torchruns_error_and_summary_are_no_words_of_it() -> None:
    silent = ended("sigkill", 1)
    silent = replace(silent, lines=tuple((rank, text) for rank, text in silent.lines if rank is None))
    failure = root_cause([silent])
    assert failure is not None
    assert failure.cause is not None
    assert (failure.rank, failure.lines) == (1, ())
    assert (failure.reason, failure.cause.id, failure.cause.owner) == (
        "ended by SIGKILL", "memory.killed", "infrastructure",
    )  # fmt: skip


@pytest.mark.parametrize("order", ANY_ORDER)
def test_a_node_asked_to_stop_is_not_the_cause(order: tuple[int, int]) -> None:
    """Peers are stopped a moment after the first failure: what they say then explains nothing."""
    both = (ended("exception", 1), replace(ended("sigterm", 0), node="gamma", node_rank=2, first_rank=2))
    failure = root_cause([both[index] for index in order])
    assert failure is not None
    assert failure.node == "beta"


def test_among_consequences_alone_the_first_is_shown() -> None:
    failure = root_cause([ended("sigkill", 0), replace(ended("sigkill", 0), node="gamma")])
    assert failure is not None
    assert (failure.node, failure.rank) == ("alpha", 0)
    assert "Connection reset by peer" in failure.lines[-1]


@pytest.mark.parametrize("order", ANY_ORDER)
def test_out_of_memory(order: tuple[int, int]) -> None:
    """The engine's word counts more than that the rank lost a peer."""
    both = (replace(ended("sigkill", 0), oom_killed=True), ended("exit3", 0))
    failure = root_cause([both[index] for index in order])
    assert failure is not None
    assert failure.reason == "out of memory: the container reached its limit"


@pytest.mark.parametrize("order", ANY_ORDER)
def test_a_lost_node_is_the_cause_whatever_its_connection_says(order: tuple[int, int]) -> None:
    lost = EndedBadly(
        node="beta", node_rank=1, first_rank=1, exit_code=None, oom_killed=False, lines=((1, "step 10"),),
        reported="the connection broke: Connection reset by peer",
    )  # fmt: skip
    both = (ended("sigkill", 0), lost)
    failure = root_cause([both[index] for index in order])
    assert failure is not None
    assert (failure.node, failure.exit_code, failure.reason) == ("beta", None, lost.reported)
    assert failure.lines == ("step 10",)


def test_the_ranks_own_report_is_the_reason() -> None:
    failure = root_cause([replace(ended("exception", 1), reported="ValueError: loss is nan")])
    assert failure is not None
    assert failure.reason == "ValueError: loss is nan"


def test_a_report_of_a_lost_peer_makes_a_consequence() -> None:
    reported = replace(ended("exit3", 1), node="gamma", reported="RuntimeError: Connection closed by peer")
    failure = root_cause([reported, ended("exception", 1)])
    assert failure is not None
    assert failure.node == "beta"


@pytest.mark.parametrize(("code", "name"), [(-11, "SIGSEGV"), (-6, "SIGABRT"), (-64, "SIGRTMAX"), (-99, "signal 99")])
def test_signals_have_names(code: int, name: str) -> None:
    died = replace(ended("exit3", 1), exit_code=code, lines=())
    failure = root_cause([died])
    assert failure is not None
    assert failure.reason == f"ended by {name}"


def test_nothing_failed() -> None:
    assert root_cause([]) is None
