"""The nodes of `benchmarks.alarms`: agents on loopback, with the lines that a user reads."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.alarm_cases import CUT, Case, script
from contract import environment
from contract.events import Finished
from contract.log_lines import split_rank
from contract.run_folder import AGENTS_TOKEN
from orchestrator.specs.run_events import RunLine
from orchestrator.watch.timeline import agent_line
from trainer.agent import processes

NAMES = ("alpha", "beta", "gamma")
ADDRESS = "127.0.0.1"
ROOT = Path(__file__).parents[1]


@dataclass
class Seen:
    """Line for the user, at a time."""

    at: float
    text: str


class Node:
    """One agent with its own folder, in the network namespace of a process where it has one."""

    def __init__(
        self, case: Case, rank: int, scale: float, *, folder: Path, ports: tuple[int, int], within: int
    ) -> None:
        self.name, self.ports, self._within = NAMES[rank], ports, within
        self.folder = folder / self.name
        if case.project:
            shutil.copytree(case.project, self.folder, ignore=shutil.ignore_patterns(".git"))
        else:
            self.folder.mkdir()
            (self.folder / "alarm_scripts.py").write_text(script(), "utf-8")
        (self.folder / AGENTS_TOKEN).write_text("ab" * 32)
        self.seen: list[Seen] = []
        self.output: list[str] = []
        self.signs = self.folder / "signs.jsonl"
        torchrun = (
            "torchrun", "--nnodes", str(case.nodes), "--node-rank", str(rank), "--nproc-per-node",
            str(case.ranks_per_node), "--master-addr", ADDRESS, "--master-port", str(ports[1]), "--rdzv-id", "alarms",
            "--max-restarts", "0", *case.launcher, *(case.command or ("alarm_scripts.py", case.script)),
        )  # fmt: skip
        words = (
            "--nodes", ",".join(NAMES[: case.nodes]), "--node-rank", str(rank), "--first-rank",
            str(rank * case.ranks_per_node), "--address", ADDRESS, "--port", str(ports[0]), "--stuck", str(30 * scale),
            "--frozen", str(60 * scale), *case.agent,
        )  # fmt: skip
        self.agent = subprocess.Popen(
            (*self._prefix, sys.executable, "-m", "benchmarks.alarm_signs", str(self.signs), *words, "--", *torchrun),
            cwd=self.folder,
            env=self._environment(case, scale),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._rank = rank
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def _prefix(self) -> tuple[str, ...]:
        return ("nsenter", "--target", str(self._within), "--net") if self._within else ()

    def _environment(self, case: Case, scale: float) -> dict[str, str]:
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
        return {
            **os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo", environment.RUN_ID: "alarms", environment.ATTEMPT: "0",
            environment.NODE: self.name, environment.RUN_DIR: str(self.folder), environment.SHUTDOWN_TIMEOUT_S: "2",
            "ALARMS_SCALE": str(scale), **case.variables,
        }  # fmt: skip

    def _read(self) -> None:
        """Turn each line into one for the user, as the launch screen does."""
        assert self.agent.stdout  # noqa: S101  # a pipe
        with self.agent.stdout as lines:
            for text in lines:
                rank, own = split_rank(text.rstrip("\n"))
                line = RunLine(time="", node=self.name, node_rank=self._rank, rank=rank, text=own)
                if line.event is None:
                    self.output.append(f"{self.name}: {text.rstrip()}")
                    continue
                shown = agent_line(line.event, line.node, line.node_rank) or self._last_line(line)
                if shown and not shown.startswith("…"):
                    self.seen.append(Seen(time.time(), shown))

    def _last_line(self, line: RunLine) -> str:
        """The sentence about a run that has ended well."""
        return (line.event.note or "") if isinstance(line.event, Finished) and not self._rank else ""

    def cut(self) -> None:
        """Drop all packets between ranks; those of the agents and of torchrun's store pass."""
        (self.folder / f"hangs-{self._rank}").touch()
        table = (*self._prefix, "iptables", "--append", "OUTPUT", "--protocol", "tcp")
        for port in self.ports:
            for side in ("--dport", "--sport"):
                subprocess.run((*table, side, str(port), "--jump", "ACCEPT"), check=True)
        subprocess.run((*table, "--jump", "DROP"), check=True)

    def marks(self, name: str) -> list[float]:
        return [path.stat().st_mtime for path in self.folder.glob(f"{name}-*")]

    def code(self) -> int | None:
        """Exit code, once all its output was read; None while it runs."""
        if (code := self.agent.poll()) is not None:
            self._reader.join(10.0)
        return code

    def end(self) -> None:
        """Kill the agent and all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.agent.pid, signal.SIGSTOP)  # otherwise it starts others in their place
        for process in processes.descendants(self.agent.pid):
            process.kill()
        self.agent.kill()
        self.agent.wait()
        self._reader.join(10.0)


@contextmanager
def nodes_of(case: Case, folder: Path, scale: float) -> Iterator[list[Node]]:
    """Agents of a case, which are killed at the end with all that they have started."""
    nodes: list[Node] = []
    with contextlib.ExitStack() as stack:
        within = stack.enter_context(_namespace()) if case.script == CUT else 0
        ports = _free_port(), _free_port()
        try:
            for rank in range(case.nodes):
                nodes.append(Node(case, rank, scale, folder=folder, ports=ports, within=within))
            yield nodes
        finally:
            for node in nodes:
                node.end()


@contextmanager
def _namespace() -> Iterator[int]:
    """A process in a network namespace of its own: what is cut there, is cut nowhere else."""
    words = ("unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec sleep infinity")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        try:
            if not holder.stdout or holder.stdout.readline() != "up\n":
                raise PermissionError("a network namespace needs root")
            yield holder.pid
        finally:
            holder.kill()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind((ADDRESS, 0))
        return int(free.getsockname()[1])
