"""Signs of life of a node's ranks: the status that each writes, and its process, read from /proc."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from contract.json_reader import from_json
from contract.liveness import IDLE, RankSigns
from trainer.agent import connections, processes, rank_status
from trainer.agent.heartbeat import RESTING
from trainer.agent.processes import Process

MOST_BYTES = 64 * 1024
"""Maximum size of a status: its rank writes it, which is the user's program."""
MOST_RANKS = 256
"""Maximum number of ranks of a node."""
LONGEST = 200
"""Characters of a text of a status."""
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
    """In files, and on connections that are read and written like files, as gloo does."""
    sent_bytes: int | None
    stood_s: float


class RankSignsReader:
    """Reads the signs of the ranks below this process."""

    def __init__(self, folder: Path, node: str, first_rank: int, every_s: float) -> None:
        """`folder`: where the ranks write. `every_s`: time between two looks."""
        self._folder, self._node, self._first_rank, self._every_s = folder, node, first_rank, every_s
        self._before: dict[int, tuple[_Reading, ...]] = {}
        """Readings of each process: the newest, and those back to the beginning of the window."""
        self._looked = 0.0
        self._sent: dict[int, int | None] = {}
        """Bytes that each rank had sent at the newest look."""

    def read(self, lines: int) -> tuple[RankSigns, ...]:
        """Signs of the ranks that live, by rank. `lines`: that they have written so far."""
        now = time.monotonic()
        late = now - self._looked > LATE_S + self._every_s
        self._looked = now
        live = {one.pid: one for one in processes.descendants(os.getpid())}
        found = {one.rank: one for one in self._statuses(now) if one.process in live}
        # Ranks below other ranks are their workers, which inherit the variables.
        for rank, process in self._without_status(live, {one.process for one in found.values()}):
            found.setdefault(rank, RankSigns(rank=rank, process=process))
        held = connections.connections()
        signs = [self._with_process(one, live, held, now, late=late) for one in found.values()]
        self._before = {one.process: self._before[one.process] for one in signs}
        self._sent |= {one.rank: one.sent_bytes for one in signs}
        return tuple(sorted((replace(one, lines=lines) for one in signs), key=lambda one: one.rank))

    def final(self, lines: int) -> tuple[RankSigns, ...]:
        """The last status of each rank, whether or not its process is still there."""
        found = sorted(self._statuses(time.monotonic()), key=lambda one: one.rank)
        return tuple(replace(one, lines=lines, node=self._node, sent_bytes=self._sent.get(one.rank)) for one in found)

    def _statuses(self, now: float) -> list[RankSigns]:
        """One of each rank, that of a member of the process group before others: workers inherit the variables."""
        found: dict[int, tuple[bool, int, RankSigns]] = {}
        for path in sorted(self._folder.glob(f"*{rank_status.SUFFIX}"))[:MOST_RANKS]:
            if (status := _read(path)) is None:
                continue
            with contextlib.suppress(ValueError):
                signs = self._signs(status, now)
                key = (signs.in_group, -_whole(status.get("parent")))
                if signs.rank not in found or key > found[signs.rank][:2]:
                    found[signs.rank] = (*key, signs)
        return [signs for *_, signs in found.values()]

    def _signs(self, status: dict[str, Any], now: float) -> RankSigns:
        """The signs of one status. ValueError: it is none, or of a process that is no rank."""
        at, rank, local_rank = status.get("at"), status.get("rank"), str(status.get("local_rank", ""))
        if rank is None and local_rank.isdecimal():
            rank = self._first_rank + int(local_rank)
        if not isinstance(at, int | float) or not isinstance(rank, int):
            raise ValueError("no rank")
        port = str(status.get("store_port", ""))
        values = {**status, "rank": rank, "age_s": max(0.0, now - at), "store_port": int(port) if port.isdigit() else 0}
        signs = bounded(from_json(RankSigns, values))
        return replace(signs, left_out=signs.exchange == RESTING)

    def _without_status(self, live: dict[int, Process], known: set[int]) -> Iterable[tuple[int, int]]:
        """Ranks whose Python has started without torch so far, or is one that reads no `sitecustomize`."""
        for process in live.values():
            if process.parent in live and _local_rank(process.parent):
                continue
            if process.pid not in known and (local_rank := _local_rank(process.pid)):
                yield self._first_rank + int(local_rank), process.pid

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
        cpu_s, io_bytes = sum(one.cpu_s for one in family), sum(_io_bytes(one.pid) for one in family)
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
        reading = _Reading(
            started=own.started, at=now, own_cpu_s=own.cpu_s, cpu_s=cpu_s, io_bytes=io_bytes, sent_bytes=sent_bytes,
            stood_s=stood_s,
        )  # fmt: skip
        self._before[own.pid] = (*(one for one in before if first and one.at >= first.at), reading)
        may_serve = not signs.optimizer_steps and cpu is not None and cpu < IDLE
        return replace(
            signs,
            node=self._node,
            cpu=cpu,
            stood_s=stood_s,
            io_bytes_s=io_bytes_s,
            sent_bytes=sent_bytes,
            state=own.state,
            sleeps="nanosleep" in _text(Path(f"/proc/{own.pid}/wchan")),
            listens=may_serve and bool(sockets & connections.listening()),
        )


def _window(readings: Sequence[_Reading], now: float) -> _Reading | None:
    """The newest reading that is old enough, otherwise the oldest."""
    return next((one for one in reversed(readings) if now - one.at >= WINDOW_S), readings[0] if readings else None)


def bounded(signs: RankSigns) -> RankSigns:
    """The same, with texts of bounded length. ValueError: a number is out of bounds."""
    if signs.rank < 0 or signs.process < 0 or any(len(pair) != 2 for pair in signs.groups.values()):
        raise ValueError("not the signs of a rank")
    texts = {name: getattr(signs, name)[:LONGEST] for name in ("node", "call", "line", "importing", "part", "exchange")}
    return replace(signs, **texts, libraries=tuple(name[:LONGEST] for name in signs.libraries[:8]))


def _read(path: Path) -> dict[str, Any] | None:
    """A status; None where it is cut: it was written at the same moment, or by another program."""
    try:
        with path.open("rb") as file:
            values = json.loads(file.read(MOST_BYTES).split(b"\n", 1)[0])
    except (OSError, ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _local_rank(process: int) -> str:
    """LOCAL_RANK in the environment that it was started with; empty: there is none."""
    for variable in _text(Path(f"/proc/{process}/environ")).split("\0"):
        name, _, value = variable.partition("=")
        if name == "LOCAL_RANK" and value.isdecimal() and len(value) < 6:
            return value
    return ""


def _io_bytes(process: int) -> int:
    """Bytes read and written so far, in files and on connections (proc(5))."""
    rows = dict(line.split(": ", 1) for line in _text(Path(f"/proc/{process}/io")).splitlines() if ": " in line)
    return sum(int(rows[name]) for name in ("rchar", "wchar") if rows.get(name, "").isdecimal())


def _sent(
    held: dict[int, connections.TcpConnection] | None, sockets: Sequence[int] | set[int], port: int
) -> int | None:
    if held is None:
        return None
    return sum(held[one].bytes for one in sockets if one in held and port not in held[one].ports)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
