"""Simulate a few machines on a slow LAN on one machine: `with Rig(nodes) as rig: outcomes = rig.run(commands)`.

Needs root, `ip` and `tc`. A node is a network namespace with a shaped link and a cgroup with a quota of processor time,
so that five nodes on two cores behave like five machines, and one node is as fast alone as among five.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any

from benchmarks.slow_lan.network import INTERFACE, Network, others_at_work, remove_stale, sent_and_received
from benchmarks.slow_lan.processors import Processors

ROOT = Path(__file__).parents[2]
ENTER = 'echo $$ > "$1" || exit 97; shift; exec ip netns exec "$@"'
"""A process must enter its cgroup first; in a namespace, which has its own /sys, cgroups are not visible."""
EVENT = "@orch "


@dataclass(frozen=True, kw_only=True)
class Node:
    cores: float
    """Cores of processor time; 0.36 of a core is a machine a third as fast."""
    bits_per_s: float | None = None
    """Rate of its link in both directions; None: unlimited."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """An event line of a node, with time and counters at its arrival."""

    fields: Mapping[str, Any]
    at: float
    """Seconds, on the rig's monotonic clock."""
    sent: tuple[int, ...]
    """Bytes sent by each node until then, from the counters of its interface."""


@dataclass(kw_only=True)
class Outcome:
    """Outcome of one node's command."""

    rank: int
    code: int | None = None
    """Exit code; None: it was killed because another node failed or the deadline passed."""
    out: list[str] = field(default_factory=list)
    err: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    sent_bytes: int = 0
    seconds: float = 0.0

    def named(self, event: str) -> list[Event]:
        return [one for one in self.events if one.fields["event"] == event]


class RunFailed(RuntimeError):
    """A node's command failed; names it and its last lines."""


class Rig:
    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = tuple(nodes)
        self.network = Network([node.bits_per_s for node in nodes])
        self.processors = Processors([node.cores for node in nodes])
        self._port = 29400
        self._before: Any = None

    def __enter__(self) -> Rig:
        if problem := cannot_run():
            raise OSError(problem)
        remove_stale()
        if others_at_work():
            print(
                "another benchmark of slow_lan runs on this machine: the timings of both are invalid",
                file=sys.stderr,
                flush=True,
            )
        self._before = signal.signal(signal.SIGTERM, _as_interrupt)
        try:
            self.network.open()
            self.processors.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C must not interrupt the cleanup
            self.processors.close()
        self.network.close()
        signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)

    def run(
        self,
        commands: Sequence[Sequence[str]],
        *,
        environ: Mapping[str, str] | None = None,
        timeout_s: float = 300,
        limit_from: str = "",
        apart: bool = False,
    ) -> tuple[Outcome, ...]:
        """One command per node, the first nodes of the rig; ends when all have ended.

        The first that fails ends the others. `limit_from`: the event from which a node has no more than its cores
        (before it, five processes import torch at full speed; empty: from the start). `apart`: each node trains alone,
        with a world size of 1.

        Raises RunFailed, which names the rank, the exit code and the last lines of stderr.
        """
        self._port += 1  # a socket of the last run may still linger
        watch = _Watch(self, limit_from)
        before = [self.network.sent(rank) for rank in range(len(commands))]
        try:
            for rank, command in enumerate(commands):
                if limit_from:
                    self.processors.free(rank)
                else:
                    self.processors.limit(rank)
                world = (0, 1) if apart else (rank, len(commands))
                watch.start(rank, command, self._environ(rank, world) | dict(environ or {}))
            outcomes = watch.ended(timeout_s)
            for outcome in outcomes:
                outcome.sent_bytes = self.network.sent(outcome.rank) - before[outcome.rank]
            return outcomes
        finally:
            watch.kill()

    def _environ(self, number: int, world: tuple[int, int]) -> dict[str, str]:
        """Environment that torchrun and the orchestrator would set on that node."""
        rank, world_size = world
        master = self.network.address(number if world_size == 1 else 0)
        return os.environ | {
            "RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": master, "MASTER_PORT": str(self._port), "GLOO_SOCKET_IFNAME": INTERFACE,
            "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "CUDA_VISIBLE_DEVICES": "",
            "ORCH_EVENTS": "1", "ORCH_NODE": f"node{number}", "ORCH_NODE_RANK": str(number), "ORCH_BACKEND": "gloo",
            "ORCH_PG_TIMEOUT_S": "120", "RIG_ADDRESS": self.network.address(number),
            "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1",
        }  # fmt: skip


def cannot_run() -> str:
    """Reason why no rig can run on this machine; empty if one can."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    if os.geteuid():
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (Debian: iproute2)"
    tried = subprocess.run(("ip", "netns", "list"), capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"ip netns: {tried.stderr.strip()}"


class _Watch:
    """Processes of one run, and the threads that read their output."""

    def __init__(self, rig: Rig, limit_from: str) -> None:
        self._rig = rig
        self._limit_from = limit_from
        self._processes: list[subprocess.Popen[str]] = []
        self._outcomes: list[Outcome] = []
        self._threads: list[threading.Thread] = []
        self._ended: queue.Queue[int] = queue.Queue()
        self._began = time.monotonic()
        self._last_sent: dict[int, int] = {}

    def start(self, rank: int, command: Sequence[str], environ: Mapping[str, str]) -> None:
        entrance = str(self._rig.processors.entrance(rank))
        space = self._rig.network.spaces[rank]
        process = subprocess.Popen(
            ("sh", "-c", ENTER, "sh", entrance, space, *command),
            env=dict(environ), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
        outcome = Outcome(rank=rank)
        self._processes.append(process)
        self._outcomes.append(outcome)
        for target in (self._read_out, self._read_err):
            self._threads.append(threading.Thread(target=target, args=(process, outcome), daemon=True))
            self._threads[-1].start()

    def ended(self, timeout_s: float) -> tuple[Outcome, ...]:
        deadline = time.monotonic() + timeout_s
        for _ in self._processes:
            try:
                rank = self._ended.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise RunFailed(f"not done after {timeout_s:g} s; {self._last_lines()}") from None
            if self._outcomes[rank].code:
                self.kill()
                raise RunFailed(f"node {rank} failed ({self._outcomes[rank].code}): {self._last_lines(rank)}")
        for thread in self._threads:
            thread.join()
        return tuple(self._outcomes)

    def kill(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()
        for thread in self._threads:
            thread.join(
                timeout=5
            )  # a thread whose pipe a grandchild holds ends with the rig, which kills the grandchild

    def _read_out(self, process: subprocess.Popen[str], outcome: Outcome) -> None:
        for line in _lines(process.stdout):
            if line.startswith(EVENT):
                fields = json.loads(line.removeprefix(EVENT))
                outcome.events.append(Event(fields=fields, at=time.monotonic(), sent=self._sent()))
                if self._limit_from and fields["event"] == self._limit_from:
                    self._rig.processors.limit(outcome.rank)
            else:
                outcome.out.append(line)
        outcome.code = process.wait()
        outcome.seconds = time.monotonic() - self._began
        self._ended.put(outcome.rank)

    @staticmethod
    def _read_err(process: subprocess.Popen[str], outcome: Outcome) -> None:
        outcome.err.extend(_lines(process.stderr))

    def _sent(self) -> tuple[int, ...]:
        """Read through `/proc`: cheap enough for every event, unlike a command in each namespace."""
        for rank, process in enumerate(self._processes):
            try:
                text = Path(f"/proc/{process.pid}/net/dev").read_text()
                self._last_sent[rank] = sent_and_received(text)[0]
            except (OSError, ValueError):  # it has ended, or is not in its namespace yet
                self._last_sent.setdefault(rank, 0)
        return tuple(self._last_sent[rank] for rank in range(len(self._processes)))

    def _last_lines(self, rank: int | None = None) -> str:
        # The reader of stderr may be a moment behind the exit code.
        for thread in self._threads:
            thread.join(timeout=0.5)
        outcomes = self._outcomes if rank is None else [self._outcomes[rank]]
        return "; ".join(f"node {one.rank}: {' ⏎ '.join(one.err[-6:]) or 'no word'}" for one in outcomes)


def _lines(stream: IO[str] | None) -> Iterator[str]:
    with stream or contextlib.nullcontext(()) as lines:
        for line in lines:
            yield line.rstrip("\n")


def _as_interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
