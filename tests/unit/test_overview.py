"""`orch` alone: what the records of this computer show, and the command that comes next."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from contract.event_lines import encode_event
from contract.event_values import RankPosition
from contract.events import Event, OutputProgress, ResourcesSampled
from contract.resources import ResourceUsage
from orchestrator.cli import overview
from orchestrator.nodes.state_files import replace_file
from orchestrator.specs.run_events import RunLine
from orchestrator.store.doctor_record import record_file
from orchestrator.store.run_record import RunRecord
from orchestrator.watch.report import report_of
from tests import lan
from tests.unit.conftest import Orch, Ran

Alone = Callable[..., Ran]
HOUR_S = 3600
USAGE = ResourceUsage(cpu_percent=40.0, cpus=2.0, ram_used_mib=1024, ram_limit_mib=4096)


class NoLan(lan.Lan):
    """A LAN that must not be asked."""

    def connect(self, spec: object) -> object:  # type: ignore[override]  # nothing is ever connected
        raise AssertionError(f"{spec} is asked")


@pytest.fixture
def alone(orch: Orch, monkeypatch: pytest.MonkeyPatch) -> Alone:
    """`orch` without a command, on a terminal."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "120")

    def run(*argv: str) -> Ran:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        return orch(*argv, on=NoLan())

    return run


def recorded(run_id: str, outcome: str = "", *, age_s: float = 0.0, command: str = "train.py") -> RunRecord:
    """A run of three nodes that was launched so long ago, at step 3 of 9."""
    record = RunRecord(run_id)
    record.save_plan(replace(lan.plan(lan.NAMES[:3]), run_id=run_id, command=(command,)))
    write(record, lan.moment(1))
    if outcome:
        record.save_outcome(outcome, "a reason")
    entries = [json.loads(entry) for entry in (record.folder / "record.jsonl").read_text().splitlines()]
    aged = [json.dumps({**entry, "at": entry["at"] - age_s}) + "\n" for entry in entries]
    (record.folder / "record.jsonl").write_text("".join(aged))
    at = record.touched_at() - age_s
    for file in record.folder.rglob("*"):
        os.utime(file, (at, at))
    return record


STEP = '@orch {"event": "step", "rank": 0, "step": 1003, "loss": 2.0, "final_step": 9000, "t": 1.0}'


def write(record: RunRecord, time: str, text: str = STEP) -> None:
    """A line of rank 0 with this time."""
    with record.open_log("alpha", "c1") as log:
        log.add(RunLine(time=time, node="alpha", node_rank=0, rank=0, text=text))


def commands(ran: Ran) -> list[str]:
    return [line.partition("→ ")[2].partition("   #")[0] for line in ran.err.splitlines() if "→" in line]


def test_runs_nodes_and_the_next_command(alone: Alone) -> None:
    recorded("0101-0000-aaaa", "failed", age_s=HOUR_S)
    recorded("0101-0000-bbbb", age_s=2 * HOUR_S)
    recorded("0101-0000-cccc", "succeeded", age_s=3 * HOUR_S, command="\x1b[2Jgpt2")
    ran = alone()
    assert ran.code == 0
    rows = [line.split() for line in ran.out.splitlines()]
    assert [row[:3] for row in rows[1:]] == [
        ["0101-0000-aaaa", "failed", "1,003/9,000"],
        ["0101-0000-bbbb", "unknown", "1,003/9,000"],
        ["0101-0000-cccc", "succeeded", "1,003/9,000"],
    ]
    assert rows[3][-2:] == ["3", "'gpt2'"]
    assert commands(ran) == ["orch why 0101-0000-aaaa"]
    assert "nodes of inventory.yaml: alpha, beta, gamma\n" in ran.err
    recorded("0101-0000-dddd", age_s=4 * HOUR_S)
    write(RunRecord("0101-0000-dddd"), datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
    ran = alone()
    assert ran.out.splitlines()[1].split()[:2] == ["0101-0000-dddd", "running"]
    assert report_of(RunRecord("0101-0000-dddd")).state == "running"
    assert report_of(RunRecord("0101-0000-bbbb")).state == "unknown"
    assert commands(ran) == ["orch monitor", "orch logs 0101-0000-dddd -f"]


@pytest.mark.parametrize(
    ("event", "shown"),
    [
        (OutputProgress(rank=0, epoch=3, epochs=10, step=7, steps=400), "epoch 3/10"),
        (OutputProgress(rank=0, epoch=2.5), "epoch 2.5"),
        (OutputProgress(rank=0, step=1200, steps=4000), "1,200/4,000"),
        (ResourcesSampled(usage=USAGE, positions=(RankPosition(rank=0, step=1204, steps_per_s=3.0),)),
         "at least 1,204 steps"),
    ],
)  # fmt: skip
def test_progress_of_a_script_that_reports_no_steps(alone: Alone, event: Event, shown: str) -> None:
    record = RunRecord("0101-0000-aaaa")
    record.save_plan(replace(lan.plan(lan.NAMES[:3]), run_id=record.run_id))
    write(record, lan.moment(1), encode_event(event))
    record.save_outcome("succeeded", "")
    assert f"succeeded  {shown:>{len('progress')}}  " in alone().out


def test_a_run_that_is_being_stopped(alone: Alone) -> None:
    recorded("0101-0000-aaaa").mark_stopping()
    ran = alone()
    assert ran.out.splitlines()[1].split()[:2] == ["0101-0000-aaaa", "stopping"]
    assert commands(ran) == ["orch status 0101-0000-aaaa"]


@pytest.mark.parametrize(
    ("outcome", "command"), [("stopped", "runs rerun"), ("succeeded", "report"), ("", "status"), ("lost", "status")]
)
def test_the_next_command_after_a_run(alone: Alone, outcome: str, command: str) -> None:
    recorded("0101-0000-aaaa", outcome, age_s=HOUR_S)
    assert commands(alone())[0] == f"orch {command} 0101-0000-aaaa"


def test_a_stopped_run_with_a_checkpoint_is_resumed(alone: Alone) -> None:
    record = recorded("0101-0000-aaaa", age_s=HOUR_S)
    write(record, lan.moment(1), lan.written(40).partition(": ")[2])
    record.save_outcome("stopped", "")
    assert commands(alone())[0] == "orch resume 0101-0000-aaaa"


def test_before_the_first_run(alone: Alone) -> None:
    ran = alone()
    assert (ran.code, ran.out, commands(ran)) == (0, "", ["orch doctor"])
    replace_file(record_file(), "{}")
    assert [line.split()[1] for line in commands(alone())] == ["build", "launch"]
    Path("other.yaml").write_text("nodes: {here: {address: 127.0.0.1, connection: local, engine: process}}\n")
    ran = alone("-i", "other.yaml")
    assert commands(ran)[0].startswith("orch -i other.yaml launch")
    assert "nodes of other.yaml: here\n" in ran.err


def test_many_runs_cost_as_much_as_a_few(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        recorded(f"0101-0000-{number:04x}", "succeeded", age_s=HOUR_S - number)
    monkeypatch.setattr(overview, "LOOKED_AT", 10)
    read = set[str]()
    journal = RunRecord.journal.fget
    assert journal

    def counted(record: RunRecord) -> object:
        read.add(record.run_id)
        return journal(record)

    monkeypatch.setattr(RunRecord, "journal", property(counted))
    ran = alone()
    assert [line.split()[0] for line in ran.out.splitlines()[1:]] == [f"0101-0000-{n:04x}" for n in range(19, 13, -1)]
    assert len(read) == 10


def test_the_help_without_a_terminal_or_an_inventory(orch: Orch, alone: Alone) -> None:
    """The exit code and stderr are those of a command line that is not complete."""
    recorded("0101-0000-aaaa", "failed")
    piped = orch()
    assert (piped.code, piped.out, piped.err.startswith("Usage: orch")) == (2, "", True)
    Path("inventory.yaml").rename("elsewhere.yaml")
    ran = alone()
    assert (ran.code, ran.out, ran.err) == (piped.code, piped.out, piped.err)


def test_an_inventory_with_an_error(alone: Alone) -> None:
    Path("inventory.yaml").write_text("nodes: 3\n")
    ran = alone()
    assert (ran.code, ran.err.startswith("error: ")) == (3, True)
