"""Bring the nodes' logs to the controller's record, each line once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from orchestrator.fleet.fan_out import Outcome, fan_out
from orchestrator.fleet.launch import Seated
from orchestrator.fleet.records import RunRecord
from orchestrator.nodes.seam import LogLine
from orchestrator.specs.event import split_rank
from orchestrator.specs.happening import Said


def said_of(seat: Seated, line: LogLine) -> Said:
    """A container's line, with whose it is."""
    rank, text = split_rank(line.text)
    return Said(time=line.time, node=seat.node.name, node_rank=seat.node_rank, rank=rank, text=text)


def as_json(said: Said) -> str:
    """One line of a record's log file."""
    return json.dumps(asdict(said), ensure_ascii=False) + "\n"


def collect_logs(seated: Sequence[Seated], record: RunRecord) -> tuple[Outcome[Seated, int], ...]:
    """Append what each container wrote since the newest line on record; the number of new lines."""

    def bring(seat: Seated) -> int:
        last = record.last_time(seat.node.name)
        with record.open_log(seat.node.name) as kept:
            new = [as_json(said_of(seat, line)) for line in seat.node.engine.logs(seat.container, since=last)]
            kept.writelines(new)
        return len(new)

    return fan_out(seated, bring)
