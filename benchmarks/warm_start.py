"""Start and restart of ranks with a warm process and without: nodes that are processes on loopback, one rank each.

    python -m benchmarks.warm_start [--nodes 2] [--rounds 5]
    python -m benchmarks.warm_start --kills 20

A round is one run with the warm process and one without; the figures are medians (minimum to maximum). `--kills` kills
the warm process, torchrun, a rank and the agent so often each, and counts the processes that are left.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from contract.run_folder import AGENTS_TOKEN
from trainer.agent.processes import Process, all_processes, descendants, proc_text

SCRIPT = """
import os
print("BEGUN", os.environ["ORCH_GENERATION"], os.environ["RANK"], os.getpid(), flush=True)
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
step = 0
while not os.path.exists("enough"):
    dist.all_reduce(torch.ones(1))
    step += 1
    print("STEP", os.environ["ORCH_GENERATION"], os.environ["RANK"], step, flush=True)
    time.sleep(0.02)
dist.destroy_process_group()
"""
KILLED = {"warm process": "warm_process.py", "torchrun": "agent.torchrun", "rank": "-u\0script.py"}
"""Processes below the agent, with a part of their command lines."""
PATIENCE_S = 120.0
BATCH = 4
"""Restarts in one run: before each further one the pause is longer."""
ROOT = Path(__file__).parents[1]


class LoopbackNodes:
    """The agents of a run, and the lines that they write, each with its time."""

    def __init__(self, folder: Path, nodes: int, *options: str) -> None:
        self.folder = folder
        (folder / "script.py").write_text(SCRIPT)
        (folder / AGENTS_TOKEN).write_text("ab" * 32)
        self.lines: list[tuple[float, str]] = []
        ports = [str(_free_port()), str(_free_port())]
        self.agents = [self._agent(rank, nodes, ports, options) for rank in range(nodes)]
        self._readers = [threading.Thread(target=self._read, args=(agent,), daemon=True) for agent in self.agents]
        for reader in self._readers:
            reader.start()

    def _agent(self, rank: int, nodes: int, ports: list[str], options: tuple[str, ...]) -> subprocess.Popen[str]:
        names = ",".join(f"node{number}" for number in range(nodes))
        return subprocess.Popen(
            [
                sys.executable, "-m", "trainer.agent", "--nodes", names, "--node-rank", str(rank), "--first-rank",
                str(rank), "--address", "127.0.0.1", "--port", ports[0], "--restarts", "999", *options, "--",
                "torchrun", "--nnodes", str(nodes), "--node-rank", str(rank), "--nproc-per-node", "1",
                "--master-addr", "127.0.0.1", "--master-port", ports[1], "--max-restarts", "0", "script.py",
            ],
            env={
                **os.environ, "PYTHONPATH": str(ROOT), "ORCH_RUN_DIR": str(self.folder), "OMP_NUM_THREADS": "1",
                "MASTER_PORT": ports[1],
            },
            cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def _read(self, agent: subprocess.Popen[str]) -> None:
        with agent.stdout or io.StringIO() as lines:
            for line in lines:
                self.lines.append((time.monotonic(), line.rstrip()))

    def find(self, pattern: str, after: float = 0.0, number: int = 1) -> tuple[float, re.Match[str]]:
        """Wait for so many lines with this pattern after this time; return the last of them with its time."""

        def found() -> list[tuple[float, re.Match[str]]]:
            matches = ((at, re.search(pattern, line)) for at, line in list(self.lines) if at > after)
            return [(at, match) for at, match in matches if match][number - 1 :]

        until(found, lambda: f"{pattern} not in " + "\n".join(line for _, line in self.lines[-30:]))
        return found()[0]

    def end(self) -> list[int]:
        """End the run; return the exit codes of the agents."""
        (self.folder / "enough").touch()
        return [agent.wait(PATIENCE_S) for agent in self.agents]

    def wait(self) -> None:
        """Wait for the agents and the end of their output."""
        for agent, reader in zip(self.agents, self._readers, strict=True):
            agent.wait()
            reader.join()

    def processes(self) -> list[Process]:
        """All processes of the run, with the agents."""
        mark = f"ORCH_RUN_DIR={self.folder}\0"
        return [one for one in all_processes() if one.state != "Z" and mark in proc_text(one.pid, "environ")]

    def commands(self) -> list[str]:
        """Their command lines."""
        return [proc_text(one.pid, "cmdline") for one in self.processes()]

    def below(self, agent: int, word: str) -> Process:
        """The process of an agent with this word in its command line."""

        def found() -> list[Process]:
            each = descendants(self.agents[agent].pid)
            return [one for one in each if one.state != "Z" and word in proc_text(one.pid, "cmdline")]

        until(found, lambda: f"no process with {word}")
        return found()[0]


@contextlib.contextmanager
def loopback_nodes(nodes: int, *options: str) -> Iterator[LoopbackNodes]:
    """The agents of a run, all of whose processes are killed at the end."""
    with tempfile.TemporaryDirectory() as folder:
        run = LoopbackNodes(Path(folder), nodes, *options)
        try:
            yield run
        finally:
            while left := run.processes():
                for one in left:
                    one.kill()
                for agent in run.agents:
                    agent.poll()
                time.sleep(0.05)
            run.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kills", type=int, default=0, metavar="N")
    given = parser.parse_args()
    if given.kills:
        left = 0
        for name in (*KILLED, "agent"):
            batches = [min(BATCH, given.kills - done) for done in range(0, given.kills, BATCH)]
            number = sum(kill_within_a_run(name, times) if name in KILLED else kill_agents(times) for times in batches)
            print(f"{name}: killed {given.kills} times, {number} processes left", flush=True)
            left += number
        return int(left > 0)
    found: dict[str, list[dict[str, float]]] = {"warm": [], "without": []}
    for _ in range(given.rounds):
        for name, options in (("warm", ()), ("without", ("--no-warm-start",))):
            found[name].append(measure(given.nodes, *options))
            print(f"load {os.getloadavg()[0]:.1f}: {name} {json.dumps(found[name][-1])}", file=sys.stderr, flush=True)
    print("| s | with a warm process | without | ratio |\n|---|---|---|---|")
    for figure in found["warm"][0]:
        warm, without = ([one[figure] for one in found[name]] for name in ("warm", "without"))
        ratio = statistics.median(warm) / statistics.median(without)
        print(f"| {figure} | {_text(warm)} | {_text(without)} | {ratio:.2f} |")
    return 0


def measure(nodes: int, *options: str) -> dict[str, float]:
    """Seconds of a start and of a restart."""
    began = time.monotonic()
    with loopback_nodes(nodes, *options) as run:
        met, _ = run.find('"event": "generation"')
        first, _ = run.find("BEGUN 1 ", number=nodes)
        step, _ = run.find("STEP 1 0 1$")
        time.sleep(1.0)
        _, rank = run.find("BEGUN 1 0 ([0-9]+)")
        killed = time.monotonic()
        os.kill(int(rank[1]), signal.SIGKILL)
        again, _ = run.find('Restarting|"event": "restarting"', killed)
        next_step, _ = run.find("STEP 2 0 1$", killed)
        if any(run.end()):
            raise RuntimeError("\n".join(line for _, line in run.lines))
    return {
        "from the start of the agents to the first line of all ranks": first - began,
        "from the agents' meeting to the first line of all ranks": first - met,
        "from the agents' meeting to the first step": step - met,
        "from the kill of a rank to the decision to restart": again - killed,
        "from the kill of a rank to the next step": next_step - killed,
    }


def kill_within_a_run(name: str, times: int) -> int:
    """Kill the warm process, torchrun or the rank so often in one run, each followed by a restart; return the number of
    processes that were left by then and after the end of the run."""
    with loopback_nodes(1) as run:
        run.find("STEP 1 0 2$")
        before = run.commands()
        for number in range(1, times + 1):
            run.find(f"STEP {number} 0 2$")
            run.below(0, KILLED[name]).kill()
            if name == "warm process":  # the ranks continue without it
                run.below(0, KILLED["torchrun"]).kill()
        run.find(f"STEP {times + 1} 0 2$")
        more = len(run.commands()) - len(before)
        if any(run.end()):
            raise RuntimeError("\n".join(line for _, line in run.lines[-30:]))
        return more + len(run.processes())


def kill_agents(times: int) -> int:
    """Kill so many agents, each at another moment of its start or run; return the number of processes left."""
    left = 0
    for number in range(times):
        with loopback_nodes(1) as run:
            if number % 2:
                run.find("STEP 1 0 2$")
            else:
                time.sleep(random.Random(number).uniform(0.2, 4.0))  # noqa: S311  # moments, not secrets
            run.agents[0].kill()
            run.agents[0].wait()
            with contextlib.suppress(TimeoutError):
                until(lambda run=run: not run.processes(), str)
            left += len(run.processes())
    return left


def until(true: Callable[[], object], why: Callable[[], str]) -> None:
    """Wait until it is true. TimeoutError: it has not become so; `why` says more."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(why())
        time.sleep(0.02)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _text(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


if __name__ == "__main__":
    sys.exit(main())
