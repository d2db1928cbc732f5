"""Facts about the processes of ranks, read from /proc: CPU time and bytes over a window, state, sockets."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from contract.rank_signs import IDLE, RankSigns
from trainer.agent import connections, processes
from trainer.agent.processes import Process

LATE_S = 10.0
"""Delay of a look from which this agent was stopped, too, and so were the ranks, as in a paused container."""
WINDOW_S = 2.0
"""Time over which CPU time and bytes are counted, at least: the kernel counts in hundredths of a second."""


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """Counters of a rank at a look."""

    started: str
    at: float
    own_cpu_s: float
    cpu_s: float
    io_bytes: int
    """Bytes in files, and on connections that are read and written like files, as gloo does."""
    sent_bytes: int | None
    stood_s: float
    sleeps: bool


class RankProcesses:
    """Adds what the kernel says about the process of each rank to its signs, look by look."""

    def __init__(self, every_s: float) -> None:
        """`every_s`: time between two looks."""
        self._every_s = every_s
        self._looked = 0.0
        self._before: dict[int, tuple[_Reading, ...]] = {}
        """Readings of each process: the newest, and those back to the beginning of the window."""

    def look(self, found: Collection[RankSigns], live: dict[int, Process], now: float) -> list[RankSigns]:
        """Look at the process of each rank. `live`: all processes below this one, by number."""
        late = now - self._looked > LATE_S + self._every_s
        self._looked = now
        held = connections.connections()
        signs = [self._with_process(one, live, held, now, late=late) for one in found]
        self._before = {one.process: self._before[one.process] for one in signs}
        return signs

    def _with_process(
        self,
        signs: RankSigns,
        live: dict[int, Process],
        held: dict[int, connections.TcpConnection] | None,
        now: float,
        *,
        late: bool,
    ) -> RankSigns:
        own = live[signs.process]
        family = [own, *processes.below(own.pid, live.values())]
        cpu_s, io_bytes = sum(one.cpu_s for one in family), sum(processes.io_bytes(one.pid) for one in family)
        sockets = set().union(*(connections.inodes(one.pid) for one in family))
        sent_bytes = _sent(held, sockets, signs.store_port)
        before = tuple(one for one in self._before.get(own.pid, ()) if one.started == own.started)
        first, last = _window(before, now), before[-1] if before else None
        cpu, io_bytes_s, stood_s = None, 0.0, 0.0
        if first and last and now > last.at:
            passed = now - first.at
            cpu = max(0.0, cpu_s - first.cpu_s) / passed
            sent = (sent_bytes or 0) - (first.sent_bytes or 0)  # NCCL and downloads use recv and send
            io_bytes_s = (max(0, io_bytes - first.io_bytes) + max(0, sent)) / passed
            stands = (own.cpu_s - first.own_cpu_s) / passed < IDLE and not late
            stood_s = last.stood_s + now - last.at if stands else 0.0
        sleeps = "nanosleep" in processes.proc_text(own.pid, "wchan")
        reading = _Reading(
            started=own.started, at=now, own_cpu_s=own.cpu_s, cpu_s=cpu_s, io_bytes=io_bytes, sent_bytes=sent_bytes,
            stood_s=stood_s, sleeps=sleeps,
        )  # fmt: skip
        self._before[own.pid] = (*(one for one in before if first and one.at >= first.at), reading)
        may_serve = not signs.optimizer_steps and cpu is not None and cpu < IDLE
        return replace(
            signs,
            cpu=cpu,
            stood_s=stood_s,
            io_bytes_s=io_bytes_s,
            sent_bytes=sent_bytes,
            state=own.state,
            sleeps=sleeps or any(one.sleeps for one in before),  # a signal may interrupt it for a moment
            listens=may_serve and bool(sockets & connections.listening()),
        )


def _window(readings: Sequence[_Reading], now: float) -> _Reading | None:
    """The newest reading that is old enough, otherwise the oldest."""
    return next((one for one in reversed(readings) if now - one.at >= WINDOW_S), readings[0] if readings else None)


def local_rank_of(process: int) -> str:
    """LOCAL_RANK in the environment that it was started with; empty: there is none."""
    for variable in processes.proc_text(process, "environ").split("\0"):
        name, _, value = variable.partition("=")
        if name == "LOCAL_RANK" and value.isdecimal() and len(value) < 6:
            return value
    return ""


def _sent(
    held: dict[int, connections.TcpConnection] | None, sockets: Sequence[int] | set[int], port: int
) -> int | None:
    if held is None:
        return None
    return sum(held[one].bytes for one in sockets if one in held and port not in held[one].ports)
