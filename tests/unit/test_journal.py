"""The record of a run: its entries, what they add up to, and the file that holds them through crashes and races."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from threading import Thread

import pytest

from contract.checkpoint import StartPoint
from orchestrator.state.journal import Journal, fold
from orchestrator.state.journal_entries import (
    CheckpointEntry,
    ClaimEntry,
    CopiedEntry,
    DataEntry,
    EndEntry,
    ForecastEntry,
    HookEntry,
    JournalEntry,
    RefusedEntry,
    RunEntry,
    StartedEntry,
    StopEntry,
    TakeoverEntry,
    decode_entry,
    encode_entry,
)
from orchestrator.store.record_file import RecordFile

A, B, C = "aa" * 32, "bb" * 32, "cc" * 32


def claimed(attempt: int, base: int | None = None, id: str = "") -> ClaimEntry:
    return ClaimEntry(attempt=attempt, base=base, id=id or f"id-{attempt}", nodes=("alpha", "beta"))


def started(attempt: int, step: int | None = None, sha256: str = A) -> StartedEntry:
    resumes = None if step is None else StartPoint(step=step, sha256=sha256)
    return StartedEntry(attempt=attempt, containers={"alpha": f"alpha-{attempt}"}, resumes=resumes)


def written(attempt: int, step: int, sha256: str = A) -> CheckpointEntry:
    return CheckpointEntry(attempt=attempt, step=step, sha256=sha256, node="alpha")


def lineage(*entries: JournalEntry) -> list[tuple[int, str]]:
    return [one.identity for one in fold(entries).lineage()]


EVERY_KIND = (
    RunEntry(run_id="r1", user="ana", host="desk", project="p", command=("python", "x.py")),
    claimed(0),
    RefusedEntry(attempt=0, reason="beta: no space left on device"),
    started(0, 40),
    written(0, 60, B),
    CopiedEntry(step=60, sha256=B, node="beta"),
    DataEntry(attempt=0, node="beta", data="d" * 16, file="a.bin", wrong="content", offset=7, found_at=2, intact_at=1),
    StopEntry(by="ana@desk"),
    EndEntry(attempt=0, state="stopped", reason="checkpoint of step 60"),
    ForecastEntry(forecast="{}"),
    HookEntry(mark="ended-0"),
    TakeoverEntry(source="alpha", attempt=3, by="eve@desk"),
)


def test_every_entry_is_read_as_it_was_written() -> None:
    assert {entry.kind for entry in EVERY_KIND} == set(JournalEntry.kinds)
    assert [decode_entry(encode_entry(entry)) for entry in EVERY_KIND] == list(EVERY_KIND)


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", "7", '"claim"', '{"kind": 7}', '{"kind": "of a later version"}', '{"kind": "claim"}', "[" * 100_000,
     '{"kind": "claim", "attempt": "1", "id": "x"}', '{"kind": "checkpoint", "attempt": 0, "step": NaN}'],
)  # fmt: skip
def test_a_line_that_is_no_entry_is_none(line: str) -> None:
    assert decode_entry(line) is None
    assert fold([decode_entry(line), claimed(0), started(0)]).current is not None


def test_the_current_attempt_is_the_one_started_last() -> None:
    journal = fold([claimed(0), started(0), claimed(1, base=0)])
    assert journal.current is not None
    assert journal.pending is not None
    assert (journal.current.number, journal.pending.number, journal.next_number) == (0, 1, 2)
    undone = fold([claimed(0), started(0), claimed(1, base=0), RefusedEntry(attempt=1)])
    assert undone.current is not None
    assert (undone.current.number, undone.pending, undone.next_number) == (0, None, 2)
    assert (undone.attempt_of("alpha-0"), undone.attempt_of("planted")) == (0, None)
    begun = fold([claimed(0)])
    assert (begun.current, begun.pending) == (None, begun.attempt(0))


def test_an_attempt_after_the_stop_overrules_it_and_one_claimed_before_it_does_not() -> None:
    """A supervisor that claimed an attempt a moment before `orch stop` does not undo the stop."""
    stopped = [claimed(0), started(0), StopEntry(), EndEntry(attempt=0, state="stopped")]
    assert fold(stopped).stop is not None
    assert fold([*stopped, claimed(1), RefusedEntry(attempt=1)]).stop is not None
    resumed = fold([*stopped, claimed(1), started(1)])
    assert (resumed.stop, resumed.end) == (None, None)
    assert fold([claimed(0), started(0), claimed(1), StopEntry(), started(1)]).stop is not None
    assert fold([EndEntry(state="failed")]).end is not None


def test_marks_and_forecast_belong_to_their_attempt() -> None:
    marks = [claimed(0), started(0), HookEntry(mark="node_lost-beta"), ForecastEntry(forecast='{"a": 1}')]
    assert (set(fold(marks).hooks), fold(marks).forecast) == ({"node_lost-beta"}, '{"a": 1}')
    later = fold([*marks, HookEntry(mark="node_lost-beta", over=True), claimed(1), started(1)])
    assert (set(later.hooks), later.forecast) == (set(), "")


# ── Lineage ──


def test_the_lineage_follows_the_attempts_back() -> None:
    base = [claimed(0), started(0), written(0, 20), written(0, 40)]
    assert lineage(*base) == [(40, A), (20, A)]
    assert lineage(*base, claimed(1, base=0), started(1, 40), written(1, 60, B)) == [(60, B), (40, A), (20, A)]


def test_an_abandoned_branch_is_not_in_the_lineage() -> None:
    """The user went back from step 60 to step 20, or to the beginning: a node that was off may still have 60."""
    base = [claimed(0), started(0), written(0, 20), written(0, 40), written(0, 60)]
    went_back = [*base, claimed(1, base=0), started(1, 20)]
    assert lineage(*went_back) == [(20, A)]
    assert lineage(*went_back, written(1, 40, B)) == [(40, B), (20, A)]
    assert lineage(*base, claimed(1, base=0), started(1)) == []
    twice = [*went_back, written(1, 40, B), claimed(2, base=1), started(2, 40, B), written(2, 60, C)]
    assert lineage(*twice) == [(60, C), (40, B), (20, A)]


def test_of_one_step_the_newest_report_counts() -> None:
    assert lineage(claimed(0), started(0), written(0, 20), written(0, 40), written(0, 20, B)) == [(40, A), (20, B)]


def test_a_claim_that_was_not_started_changes_no_lineage() -> None:
    base = [claimed(0), started(0), written(0, 20)]
    assert lineage(*base, claimed(1, base=0), RefusedEntry(attempt=1), written(1, 40)) == [(20, A)]


def test_attempts_that_name_each_other_as_base_end() -> None:
    rounds = [claimed(0, base=1), started(0, 40), claimed(1, base=0), started(1, 60), written(0, 50), written(1, 70)]
    assert lineage(*rounds) == [(70, A), (60, A), (50, A), (40, A)]


def test_a_checkpoint_that_a_person_accepted_is_in_the_lineage_of_the_attempt_that_resumed_from_it() -> None:
    base = [claimed(0), started(0), written(0, 20)]
    accepted = [*base, claimed(1, base=0), started(1, 60, B)]
    assert lineage(*accepted) == [(60, B), (20, A)]
    assert lineage(*accepted, written(1, 80)) == [(80, A), (60, B), (20, A)]


# ── The file ──


def test_entries_are_on_the_disk_in_order_with_their_time(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "r1" / "record.jsonl", clock=lambda: 7.0)
    assert file.journal() == Journal()
    file.append(claimed(0), started(0))
    file.append(written(0, 20))
    assert [json.loads(line)["at"] for line in file.path.read_text().splitlines()] == [7.0, 7.0, 7.0]
    assert [one.step for one in file.journal().lineage()] == [20]
    assert [one.step for one in RecordFile(file.path).journal().lineage()] == [20]
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_a_record_cut_at_any_byte_keeps_all_whole_lines_and_is_continued(tmp_path: Path) -> None:
    entries = [claimed(0), started(0), written(0, 20), written(0, 40)]
    whole = "".join(map(encode_entry, entries)).encode()
    ends = [sum(len(encode_entry(one)) for one in entries[: number + 1]) for number in range(4)]
    growing = RecordFile(tmp_path / "growing.jsonl")
    for cut in range(len(whole)):
        path = tmp_path / f"{cut}.jsonl"
        path.write_bytes(whole[:cut])
        left = sum(end - 1 <= cut for end in ends)  # the newline may be missing
        with growing.path.open("ab") as grown:
            grown.write(whole[max(0, cut - 1) : cut])
        assert growing.journal() == fold(entries[:left]), cut
        file = RecordFile(path)
        assert file.journal() == fold(entries[:left]), cut
        file.append(HookEntry(mark="ended-0"))
        assert file.journal().hooks == {"ended-0"}
        assert file.journal().checkpoints == fold(entries[:left]).checkpoints


def test_only_what_was_appended_is_read(tmp_path: Path) -> None:
    """A run with 10,000 checkpoints would read them all for each new one."""
    file = RecordFile(tmp_path / "record.jsonl")
    file.append(claimed(0), started(0), written(0, 20))
    before = file.journal()
    with file.path.open("r+b") as damaged:
        damaged.write(b"x" * len(encode_entry(claimed(0))))  # as long as what it replaces
    RecordFile(file.path).append(written(0, 40))
    assert file.journal().attempts == before.attempts
    assert [one.step for one in file.journal().checkpoints] == [20, 40]
    assert file.append_if(lambda journal: len(journal.checkpoints) == 2, written(0, 60))


def test_a_record_that_was_replaced_is_read_from_its_beginning(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "record.jsonl")
    file.append(claimed(0), started(0), written(0, 20))
    assert len(file.journal().checkpoints) == 1
    for entries in ([claimed(0), started(0)], [claimed(0), started(0), *(written(0, step) for step in range(9))]):
        file.path.write_text("".join(map(encode_entry, entries)))
        assert file.journal() == fold(entries)


def test_entries_of_later_versions_stay_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    path.write_text('{"kind": "of a later version"}\n')
    RecordFile(path).append(claimed(0))
    assert path.read_text().startswith('{"kind": "of a later version"}\n')


def test_a_full_disk_leaves_the_record_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RecordFile(tmp_path / "record.jsonl")
    file.append(claimed(0))
    before = file.path.read_bytes()

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        file.append(started(0))
    assert file.path.read_bytes() == before
    assert file.journal().current is None


def test_of_many_writers_each_entry_is_there_once_and_one_wins(tmp_path: Path) -> None:
    path, won = tmp_path / "record.jsonl", list[int]()

    def write(number: int) -> None:
        file = RecordFile(path)
        for step in range(20):
            file.append(written(number, step))
        if file.append_if(lambda journal: "ended-0" not in journal.hooks, HookEntry(mark="ended-0")):
            won.append(number)

    threads = [Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(RecordFile(path).journal().checkpoints) == 80
    assert len(won) == 1
