"""Bring the nodes' logs to the controller's record, each line once."""

from __future__ import annotations

from collections.abc import Sequence

from contract.log_lines import split_rank
from orchestrator.fleet.fan_out import Outcome, fan_out
from orchestrator.fleet.runs.launch import Seated
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.fleet.runs.secrets import veil_at
from orchestrator.nodes.interface import LogLine
from orchestrator.specs.errors import UnkeptError
from orchestrator.specs.run_events import RunLine
from orchestrator.specs.secret import Veil


def said_of(seat: Seated, line: LogLine, veil: Veil) -> RunLine:
    """A container's line, with whose it is, and without what nobody is to read."""
    rank, text = split_rank(line.text)
    return RunLine(time=line.time, node=seat.node.name, node_rank=seat.node_rank, rank=rank, text=veil.hide(text))


def collect_logs(seated: Sequence[Seated], record: RunRecord) -> tuple[Outcome[Seated, int], ...]:
    """Append what each container wrote since the line of it that was kept last; the number of new lines. The outcome is
    an `UnkeptError` where they could not be written down."""

    def bring(seat: Seated) -> int:
        last = record.last_time(seat.node.name, seat.container)
        with record.open_log(seat.node.name, seat.container) as kept:
            veil = veil_at(seat.node, seat.secrets, record.veil)
            number = 0
            for line in seat.node.engine.logs(seat.container, since=last):
                kept.keep(said_of(seat, line, veil))
                number += 1
        if kept.problem:
            raise UnkeptError(kept.problem)
        return number

    return fan_out(seated, bring)
