"""A run of the lab under way: what it has said so far, and the ways to break it. Every fault is made for real."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from orchestrator.specs.run_events import RunLine
from orchestrator.store.run_store import RunStore
from tests.lab.conftest import LAB, Orch, on_node
from tests.lab.probe import train

FOLDER = "/home/orch/orch/lab"
TORCHRUN, RANK, SUPERVISOR = "torchrun", "rank", "supervisor"
"""Kinds of processes."""
_PROCESSES = {
    "docker-init": "",
    "trainer.agent --nodes": SUPERVISOR,
    "trainer.agent.torchrun": TORCHRUN,
    "-m trainer gpt2": RANK,
    "python train.py": RANK,
}
"""Kind of a process by words of its command line; the first that are found count."""
LOOK_S = 0.2
EVERY = 20
"""Steps between checkpoints."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """Program that the ranks of a run execute."""

    command: tuple[str, ...]
    options: tuple[str, ...] = ()
    """Options of the launch."""

    def until(self, step: int, *more: str) -> tuple[str, ...]:
        """Last lines of a launch."""
        return (*self.options, "--", *self.command, str(step), *more)


EXACT = (
    "gpt2", "--preset", "tiny", "--no-amp", "--batch-size", "2", "--seed", "7", "--sync", "int8", "--shares", "equal",
)  # fmt: skip
"""Program that depends on no measurement: the same again, bit for bit."""
TORCH = Program(
    command=(
        *EXACT, "--no-compile", "--schedule", "constant", "--log-every", "1", "--checkpoint-every", str(EVERY),
        "--prompt", "", "--max-steps",
    ),
)  # fmt: skip
"""Program with a constant rate: a step's loss does not depend on where the training ends."""
PROBE = Program(
    command=("sh", "-c", 'exec python train.py "$@"', "rank"),
    options=("--workdir", str(Path(train.__file__).parent)),
)
"""A rank without torch, for what is to be known of agents, supervisor and controller alone."""


@dataclass(frozen=True)
class Reported:
    """An event, with the time and the node of its line."""

    at: float
    node: str
    kind: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Record:
    """Record of a run, as the controller has stored it."""

    orch: Orch
    run_id: str

    def events(self, *kinds: str) -> list[Reported]:
        """List events in order of time; all kinds where none is named."""
        found = []
        for line in RunStore(records(self.orch) / self.run_id).lines():
            if each := _event(line):
                found.append(each)
        return sorted((each for each in found if each.kind in kinds or not kinds), key=lambda each: each.at)

    def step(self) -> int:
        """The newest that rank 0 has told."""
        steps = self.events("step")
        return int(steps[-1].values["step"]) if steps else 0

    def losses(self) -> dict[int, float]:
        """Collect the last reported loss of each step: a resumed run reports some of them again."""
        return {int(event.values["step"]): event.values["loss"] for event in self.events("step")}


@dataclass
class Underway:
    """A run that a launch of the test's follows."""

    orch: Orch
    run_id: str
    process: subprocess.Popen[str]
    log: Path
    """Output of the launch."""

    @property
    def record(self) -> Record:
        return Record(self.orch, self.run_id)

    def events(self, *kinds: str) -> list[Reported]:
        return self.record.events(*kinds)

    def losses(self) -> dict[int, float]:
        return self.record.losses()

    def until(self, true: Callable[[], object], what: str, timeout_s: float = 180) -> None:
        deadline = time.monotonic() + timeout_s
        while not true():
            assert self.process.poll() is None, f"it ended before {what}:\n{self.log_text()}"
            assert time.monotonic() < deadline, f"{what} did not come:\n{self.log_text()}"
            time.sleep(LOOK_S)

    def until_step(self, step: int) -> None:
        self.until(lambda: self.record.step() >= step, f"step {step}")

    def back_after(self, at: float, timeout_s: float = 180) -> float:
        """Seconds from a fault at this time to the first step that was taken after it, in a new start."""
        self.until(lambda: self._first_step(at), "a step after the fault", timeout_s)
        first = self._first_step(at)
        assert first
        return first.at - at

    def _first_step(self, at: float) -> Reported | None:
        resumed = next((event for event in self.events("resumed") if event.at > at), None)
        return next((event for event in self.events("step") if resumed and event.at >= resumed.at), None)

    def end(self, timeout_s: float = 240) -> int:
        """Its exit code."""
        return self.process.wait(timeout_s)

    def log_text(self) -> str:
        return self.log.read_text("utf-8", "replace")[-6000:]


@contextmanager
def underway(orch: Orch, *words: str, nodes: str, name: str) -> Iterator[Underway]:
    """`orch launch … -- words`, attached; whatever happens, nothing of it is left."""
    log = orch.folder / f"{name}.log"
    before = {path.name for path in records(orch).glob("*")}
    options = ("--yes", "--nodes", nodes, "--name", name)
    with log.open("w") as file:
        process = subprocess.Popen(
            orch.argv(("launch", *options, *words)),
            cwd=orch.folder, env=orch.environment, stdout=file, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
    run = Underway(orch, "", process, log)
    try:
        run.until(lambda: _new(orch, before, name), "the run's record", 60)
        run.run_id = _new(orch, before, name)
        yield run
    finally:
        if process.poll() is None:
            orch("stop", run.run_id, "--timeout", "5")
            process.kill()
            process.wait()
        orch("clean", run.run_id)


def records(orch: Orch) -> Path:
    return Path(orch.environment["XDG_STATE_HOME"]) / "orch" / "runs"


def _new(orch: Orch, before: set[str], name: str) -> str:
    return next(
        (path.parent.name for path in records(orch).glob(f"{name}-*/plan-0.json") if path.parent.name not in before), ""
    )


def _event(line: RunLine) -> Reported | None:
    try:
        values = json.loads(line.text.partition("@orch ")[2])
        at = datetime.fromisoformat(line.time[:26].rstrip("Z") + "+00:00").timestamp()
        return Reported(at=at, node=line.node, kind=values["event"], values=values)
    except (ValueError, KeyError, TypeError):
        return None


# ── Faults ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def pids(node: str, kind: str) -> list[str]:
    """Processes of this kind in the run's container there, in the node's own numbers."""
    lines = on_node(node, "docker", "top", "orch-run", "-eo", "pid,args").splitlines()[1:]
    kinds = {line.split()[0]: next((of for words, of in _PROCESSES.items() if words in line), "") for line in lines}
    return [pid for pid, of in kinds.items() if of == kind]


def send(node: str, signal: str, kind: str) -> float:
    """A signal to these processes; the time just before."""
    found = pids(node, kind)
    assert found, f"{node} runs no {kind}"
    at = time.time()
    on_node(node, "kill", f"-{signal}", *found)
    return at


def kill_container(node: str) -> float:
    """Kill the container by hand, which Docker takes for a request."""
    at = time.time()
    on_node(node, "docker", "kill", "orch-run")
    return at


def crash_container(node: str) -> float:
    """Its first process dies: Docker's own policy starts it again."""
    return send(node, "KILL", SUPERVISOR)


def kill_dockerd(node: str) -> float:
    at = time.time()
    on_node(node, "sh", "-c", "kill -9 $(pgrep -x dockerd) $(pgrep -x containerd)")
    return at


def start_dockerd(node: str) -> None:
    """The engine again, as an init system would."""
    on_node(node, "sh", "-c", "rm -f /var/run/docker.pid; (setsid dockerd >/var/log/dockerd.log 2>&1 &)")
    until_docker(node)


def until_docker(node: str, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while _quiet(node, "docker", "info"):
        assert time.monotonic() < deadline, f"{node}'s engine does not come"
        time.sleep(LOOK_S)


def reboot(node: str) -> float:
    """Switch the power off without notice, and on again."""
    at = time.time()
    subprocess.run(["docker", "kill", f"orch-{LAB}-{node}"], check=True, capture_output=True, timeout=60)
    subprocess.run(["docker", "start", f"orch-{LAB}-{node}"], check=True, capture_output=True, timeout=60)
    return at


def flip_a_bit(node: str, run_id: str) -> str:
    """Flip a bit in the middle of the newest checkpoint's state; return its name."""
    newest = on_node(node, "sh", "-c", f"ls -d {FOLDER}/runs/{run_id}/checkpoints/step-* | tail -1").strip()
    program = "open F, '+<', $ARGV[0] or die; $at = (-s F) >> 1; seek F, $at, 0; read F, $b, 1; seek F, $at, 0;"
    on_node(node, "perl", "-e", program + " print F chr(ord($b) ^ 16)", f"{newest}/state.pt")
    return newest.rpartition("/")[2]


def _quiet(node: str, *argv: str) -> bool:
    """Return whether it fails."""
    return (
        subprocess.run(
            ["docker", "exec", f"orch-{LAB}-{node}", *argv], capture_output=True, timeout=60, check=False
        ).returncode
        != 0
    )
