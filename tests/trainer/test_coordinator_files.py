"""Copies of files between the nodes before a start, as the coordinator orders them."""

from __future__ import annotations

from dataclasses import replace

from contract.events import OutputsMissing
from contract.result_files import COPY_LIMIT_BYTES, ResultFile, ResultFiles
from tests.trainer.test_coordinator import DONE, KILLED, LOST, NAMES, Meeting
from trainer.agent.coordinator import (
    LONG_SETTLE_S,
    Coordinator,
    CopyFiles,
    EndRun,
    Notice,
    Order,
    RestartPolicy,
    RestartRanks,
    StartRanks,
)
from trainer.agent.file_lists import COPY_TRIES

LAST = ResultFile(path="code/out/last.pt", size=12_000_000, modified_us=1)


def files(*listed: ResultFile) -> ResultFiles:
    return ResultFiles(files=listed)


def ready(meeting: Meeting, *lists: ResultFiles | None) -> list[Order]:
    return [order for rank, one in enumerate(lists) for order in meeting.coordinator.ready(rank, 0, meeting.now, one)]


def test_nodes_get_the_files_of_rank_0_before_the_start() -> None:
    meeting = Meeting()
    missing, *copies = ready(meeting, files(LAST), files(), files())
    assert isinstance(missing, Notice)
    assert isinstance(missing.event, OutputsMissing)
    assert (missing.event.path, missing.event.nodes, missing.event.why_not) == ("out/last.pt", NAMES[1:], None)
    assert copies == [CopyFiles(node_rank=rank, files=(LAST,)) for rank in (1, 2)]
    copied = files(replace(LAST, copied=True))
    assert meeting.coordinator.ready(1, 0, meeting.now, copied) == []
    assert meeting.after(100, 1, 2) == []  # a copy takes its time: gamma is not absent
    assert meeting.coordinator.ready(2, 0, meeting.now, copied) == [StartRanks(generation=1)]


def test_equal_files_are_no_matter() -> None:
    for lists in ([files(LAST)] * 3, [None, files(LAST), files()], [files(LAST), None, None], [files()] * 3):
        assert ready(Meeting(), *lists) == [StartRanks(generation=1)]


def test_a_copy_that_fails_or_never_ends_delays_the_start_and_is_not_repeated() -> None:
    meeting = Meeting()
    ready(meeting, files(LAST), files(), files(LAST))
    assert meeting.coordinator.ready(1, 0, meeting.now, files()) == [StartRanks(generation=1)]
    meeting = Meeting()
    ready(meeting, files(LAST), files(), files(LAST))
    *_, over = [order for _ in range(200) for order in meeting.after(10, 1, 2)]
    assert isinstance(over, EndRun)
    assert over.rank_exit.node == "beta"


def test_a_link_that_drops_during_every_copy_does_not_delay_the_start_for_ever() -> None:
    """Three tries, and the node starts without the files; after the next end they are tried again."""
    for mode, lists, source, node in (
        ("results", (files(LAST), files(), files(LAST)), "alpha", "beta"),
        ("all", (files(), files(LAST), files()), "beta", "alpha"),
    ):
        meeting = Meeting(Coordinator(names=NAMES, policy=RestartPolicy(restarts=2, sync_outputs=mode)))
        orders = ready(meeting, *lists)
        for _ in range(COPY_TRIES):
            assert orders[-1] == CopyFiles(node_rank=1, files=(LAST,), upload=mode == "all")
            meeting.coordinator.gone(1, meeting.now)
            orders = meeting.coordinator.ready(1, 0, meeting.now, lists[1])
        notice, start = orders
        assert isinstance(notice, Notice)
        assert isinstance(notice.event, OutputsMissing)
        assert (notice.event.source, notice.event.nodes, notice.event.why_not) == (source, (node,), "connection")
        assert start == StartRanks(generation=1)
        meeting.ended(1, KILLED)
        meeting.after(LONG_SETTLE_S, 1, 2)
        assert any(isinstance(order, CopyFiles) for order in ready(meeting, *lists))


def test_nodes_with_a_good_link_get_the_files_that_another_cannot_get() -> None:
    meeting = Meeting()
    ready(meeting, files(LAST), files(), files(LAST))
    for rank in (1,) * (COPY_TRIES - 1) + (2, 1):
        meeting.coordinator.gone(rank, meeting.now)
        orders = meeting.coordinator.ready(rank, 0, meeting.now, files())
    *notices, copy = orders
    events = [notice.event for notice in notices if isinstance(notice, Notice)]
    assert [(event.nodes, event.why_not) for event in events if isinstance(event, OutputsMissing)] == [
        (("beta",), "connection"),
        (("gamma",), None),
    ]
    assert copy == CopyFiles(node_rank=2, files=(LAST,))


def test_a_slow_copy_is_waited_for_as_long_as_bytes_arrive() -> None:
    meeting = Meeting()
    ready(meeting, files(LAST), files(), files(LAST))
    for _ in range(200):
        meeting.coordinator.copying(1, meeting.now)
        assert meeting.after(10, 1, 2) == []
    copied = files(replace(LAST, copied=True))
    assert meeting.coordinator.ready(1, 0, meeting.now, copied) == [StartRanks(generation=1)]
    meeting.coordinator.copying(1, meeting.now)  # of a thread that is late
    assert meeting.coordinator.gone(1, meeting.now) != [StartRanks(generation=2)]


def test_a_node_that_returns_during_a_copy_is_compared_again() -> None:
    meeting = Meeting()
    ready(meeting, files(LAST), files(), files(LAST))
    meeting.coordinator.gone(1, meeting.now)
    *_, copy = meeting.coordinator.ready(1, 0, meeting.now, files())
    assert copy == CopyFiles(node_rank=1, files=(LAST,))


def test_too_much_is_named_and_not_copied() -> None:
    meeting = Meeting()
    missing, start = ready(meeting, files(replace(LAST, size=COPY_LIMIT_BYTES + 1)), files(), files())
    assert isinstance(missing, Notice)
    assert isinstance(missing.event, OutputsMissing)
    assert missing.event.why_not == "limit"
    assert start == StartRanks(generation=1)


def test_ranks_that_only_lost_each_other_after_a_start_with_different_files() -> None:
    """Soon after the start, and only where none has a reason of its own."""
    for seconds, exits, cause in (
        (5, (DONE, replace(LOST, node="beta")), "start.files_differ"),
        (70, (DONE, replace(LOST, node="beta")), ""),
        (5, (LOST, KILLED), ""),
    ):
        meeting = Meeting(Coordinator(names=NAMES, policy=RestartPolicy(restarts=2, sync_outputs="off")))
        ready(meeting, files(LAST), files(), files())
        meeting.now += seconds
        orders = [order for rank in (1, 2) for order in meeting.coordinator.alive(rank, meeting.now)]
        orders += [order for rank, how in enumerate(exits) for order in meeting.ended(rank, how)]
        orders += meeting.after(LONG_SETTLE_S, 1, 2)
        (decided,) = (order for order in orders if isinstance(order, RestartRanks))
        assert decided.cause.cause == cause
        assert ("out/last.pt" in decided.cause.reason) is bool(cause)
