"""A seeded series of faults against one run, and what must hold after each: the invariants of docs/faults.md.

The same seed breaks the same things on the same nodes, in the same order; at which steps is for the machines to say.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.lab import underway as faults
from tests.lab.conftest import Orch, on_node, running_on
from tests.lab.probe import train
from tests.lab.underway import EVERY, FOLDER, LOOK_S, PROBE, Program, Record, Reported, records, underway

TAKES_LINES_ALONG = ("container crashed", "container killed by hand", "engine killed", "machine off and on")
"""Faults after which the last lines of a rank were not read."""
QUICK = ("--env", "ORCH_FROZEN_S=6", "--env", "ORCH_SILENCE_S=10", "--max-restarts", "20")
BACK_S = 240.0
"""Longest time until the next step after a fault; machines of a lab share cores."""
PASSING = ("container frozen", "cut off", "launched twice", "supervisor killed")
"""Faults that need not break the run."""
LINK = "20mbit"
"""Steps wait for the network, not for a processor: what an undisturbed run repeats is a third as long."""
DISK = "160m"
"""A small one, for the runs of rank 0's node. It is empty after a reboot, and so that machine is not switched off."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    what: str
    node: str
    step: int
    """The newest then told."""
    back_s: float
    """Seconds until the next step."""
    lost: int
    """Steps taken twice."""


@dataclass
class Chaos:
    orch: Orch
    program: Program
    nodes: Sequence[str]
    run_id: str
    chance: random.Random
    small_disk: bool
    faults: list[Fault] = field(default_factory=list)
    newest_sound: int = 0
    losses: dict[int, float] = field(default_factory=dict)
    """All events that were reported, once it is stopped."""
    supervisors: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """Those that it has begun itself."""

    @property
    def record(self) -> Record:
        return Record(self.orch, self.run_id)

    def kinds(self) -> dict[str, tuple[Callable[[str], float | None], Sequence[str]]]:
        """List the faults, and the nodes of each."""
        first, lasting = self.nodes[0], self.nodes[1:] if self.small_disk else self.nodes
        kinds: dict[str, tuple[Callable[[str], float | None], Sequence[str]]] = {
            "rank killed": (lambda node: faults.send(node, "KILL", faults.RANK), self.nodes),
            "container crashed": (faults.crash_container, self.nodes),
            "container killed by hand": (faults.kill_container, self.nodes),
            "rank frozen": (lambda node: faults.send(node, "STOP", faults.RANK), self.nodes),
            "container frozen": (self._freeze, self.nodes),
            "engine killed": (self._kill_engine, self.nodes),
            "cut off": (self._cut, self.nodes),
            "checkpoint damaged": (self._damage, [first]),
            "supervisor killed": (self._kill_supervisor, [first]),
            "launched twice": (self._launch_twice, [first]),
            "machine off and on": (faults.reboot, lasting),
        }
        if self.program is not PROBE:
            kinds["torchrun killed"] = lambda node: faults.send(node, "KILL", faults.TORCHRUN), self.nodes
        return {**kinds, "disk full": (self._fill, [first])} if self.small_disk else kinds

    def break_something(self, what: str) -> Fault:
        """Break it, wait for the next step, and look at what must hold."""
        act, where = self.kinds()[what]
        node = self.chance.choice(where)
        begun_at, more = self.record.step(), self.chance.randint(1, 2 * EVERY)
        until(lambda: self.record.step() >= begun_at + more, "a step to break it at", BACK_S)
        at, step = time.time(), self.record.step()
        at = act(node) or at
        until(lambda: self._next_step(what, at), f"a step after: {what} on {node}", BACK_S)
        back = self._next_step(what, at)
        assert back
        fault = Fault(what=what, node=node, step=step, back_s=back.at - at, lost=self._lost(at))
        # What was being written when it broke is lost with the interval before; so is a copy that was damaged.
        assert fault.lost <= (3 if what == "checkpoint damaged" else 2) * EVERY, fault
        self.faults.append(fault)
        self.check()
        return fault

    def check(self) -> None:
        """Each node has one container of the run, as reported; no other runs, no step of a checkpoint is lost."""
        reported = {member["node"]: member for member in self.status()["members"]}
        for name in self.nodes:
            of_the_run = ("--filter", f"label=orch.run_id={self.run_id}", "--format", "{{.ID}}")
            found = on_node(name, "docker", "ps", "-a", "--filter", "name=^orch-run$", *of_the_run).split()
            assert len(found) == 1, f"{len(found)} containers of the run hold {name}"
            running = on_node(name, "docker", "ps", *of_the_run).split()
            assert running in ([], found), f"{running} run on {name}, and {found} holds it"
            words = '{{index .Config.Labels "orch.node_rank"}} {{.State.Status}}'
            rank, state = on_node(name, "docker", "inspect", "-f", words, found[0]).split()
            assert (reported[name]["node_rank"], reported[name]["state"]) == (int(rank), state), name
        verified = self.orch("checkpoints", "verify", self.run_id, "--json")
        assert verified.code in (0, 1), verified.err
        sound = max((one["step"] for one in verified.json["checkpoints"] if not one["problem"]), default=0)
        assert sound >= self.newest_sound, f"the newest sound checkpoint fell from {self.newest_sound} to {sound}"
        self.newest_sound = sound

    def status(self) -> Any:
        done = self.orch("status", self.run_id, "--json")
        assert done.code in (0, 1, 5), done.err
        return done.json

    def stop(self) -> None:
        """Gracefully."""
        done = self.orch("stop", self.run_id, "--timeout", "60")
        assert done.code == 0, done.err
        stopped = self.record.events("stopped")
        assert stopped, "it was not stopped at a step"
        self.losses = self.record.losses()

    def _next_step(self, what: str, at: float) -> Reported | None:
        """The first after a fault; where it broke the run, the first after the new start."""
        broken = [event.at for event in self.record.events("restarting", "finished") if event.at > at]
        if not broken and what not in PASSING:
            return None
        since = next((event.at for event in self.record.events("resumed") if broken and event.at > broken[-1]), None)
        after = since if broken else at + 1.0  # what was under way is reported a moment later
        return next((event for event in self.record.events("step") if after and event.at > after), None)

    def _lost(self, at: float) -> int:
        resumed = next((event for event in self.record.events("resumed") if event.at > at), None)
        if resumed is None:
            return 0
        before = [int(event.values["step"]) for event in self.record.events("step") if event.at < resumed.at]
        return max(0, before[-1] - int(resumed.values["step"]))

    # ── Faults of several acts ────────────────────────────────────────────────────────────────────────────────────────

    def _freeze(self, node: str) -> float:
        on_node(node, "docker", "pause", "orch-run")
        at = time.time()
        time.sleep(self.chance.uniform(2, 15))
        on_node(node, "docker", "unpause", "orch-run")
        return at

    def _kill_engine(self, node: str) -> float:
        at = faults.kill_dockerd(node)
        time.sleep(self.chance.uniform(0, 3))
        faults.start_dockerd(node)
        return at

    def _cut(self, node: str) -> float:
        assert self.orch("lab", "cut", node).code == 0
        at = time.time()
        time.sleep(self.chance.uniform(2, 20))
        assert self.orch("lab", "heal", node).code == 0
        return at

    def _damage(self, first: str) -> None:
        """The newest of rank 0's node, which is then needed. Others hold a sound copy, or it costs an interval."""
        faults.send(first, "STOP", faults.RANK)
        faults.flip_a_bit(first, self.run_id)
        self.newest_sound = max(0, self.newest_sound - EVERY)

    def _fill(self, first: str) -> None:
        """The run ends, and nothing of the last sound checkpoint is lost; with room again, it is taken up again."""
        on_node(first, "sh", "-c", f"dd if=/dev/zero of={FOLDER}/runs/filled bs=1M 2>/dev/null || true")
        at = time.time()
        until(lambda: not any(running_on(name) for name in self.nodes), "all down", BACK_S)
        over = [event for event in self.record.events("finished") if event.at > at]
        assert over, "no node has said why"
        assert over[-1].values["outcome"] == "configuration", over[-1]
        assert "No space left on device" in over[-1].values["reason"], over[-1]
        on_node(first, "rm", f"{FOLDER}/runs/filled")
        resumed = self.orch("resume", self.run_id, "--yes", "--detach")
        assert resumed.code == 0, resumed.err

    def _kill_supervisor(self, _node: str) -> None:
        kill_supervisor(self.orch, self.run_id)
        supervisor = subprocess.Popen(
            self.orch.argv(("supervise", self.run_id)), cwd=self.orch.folder, env=self.orch.environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self.supervisors.append(supervisor)

    def _launch_twice(self, _node: str) -> None:
        refused = self.orch("launch", "--yes", "--nodes", ",".join(self.nodes), *self.program.until(1))
        assert refused.code == 6, refused.err
        assert self.run_id in refused.err


@contextmanager
def a_run(orch: Orch, program: Program, nodes: Sequence[str], seed: int, *, small_disk: bool) -> Iterator[Chaos]:
    """A run without end that a supervisor in the background follows; nothing of it is left afterwards."""
    first = nodes[0]
    if small_disk:
        mount = f"mount -t tmpfs -o size={DISK},mode=777 tmpfs {FOLDER}/runs"
        on_node(first, "sh", "-c", f"su orch -c 'mkdir -p {FOLDER}/runs' && {mount}")
    words = ("--nodes", ",".join(nodes), "--master", first, "--name", f"chaos{seed}", *QUICK, "--detach", "--yes")
    try:
        assert orch("lab", "link", LINK, *nodes).code == 0
        launched = orch("launch", *words, *program.until(1_000_000))
        assert launched.code == 0, launched.err
        run_id = launched.out.split()[0]
        chance = random.Random(f"chaos {seed}")  # noqa: S311  # faults are to be the same again
        chaos = Chaos(orch, program, nodes, run_id, chance, small_disk)
        try:
            yield chaos
        finally:
            orch("stop", run_id, "--timeout", "5")
            kill_supervisor(orch, run_id)
            for supervisor in chaos.supervisors:
                supervisor.kill()
                supervisor.wait()
            orch("clean", run_id)
        for name in nodes:
            left = on_node(
                name,
                "sh",
                "-c",
                f"docker ps -aq --filter label=orch.run_id={run_id}; pgrep -f '[t]rainer|[t]rain.py'; :",
            )
            assert left == "", f"left on {name}: {left}"
    finally:
        orch("lab", "link", "off", *nodes)
        if small_disk:
            on_node(first, "umount", f"{FOLDER}/runs")


def play(chaos: Chaos, acts: Iterator[str], say: Callable[[str], None]) -> None:
    """Break one thing after the other, and stop."""
    until(lambda: chaos.record.step() > EVERY, "the first checkpoint", BACK_S)
    for what in acts:
        fault = chaos.break_something(what)
        say(
            f"{fault.what:<25} {fault.node:<8} at step {fault.step:>5}: next step after {fault.back_s:5.1f} s,"
            f" {fault.lost:>2} steps again"
        )
    chaos.stop()


def shuffled(chaos: Chaos, seconds: float) -> Iterator[str]:
    """All kinds in an order of chance, and again, for so long."""
    deadline = time.monotonic() + seconds
    while True:
        for what in chaos.chance.sample(sorted(chaos.kinds()), len(chaos.kinds())):
            if time.monotonic() > deadline:
                return
            yield what


def as_undisturbed(chaos: Chaos) -> str:
    """Compare all losses with those of an undisturbed run of as many steps, once the nodes are free again."""
    seen, steps = chaos.losses, max(chaos.losses)
    if chaos.program is PROBE:
        losses = train.losses([len(chaos.nodes)] * steps)
    else:
        with underway(chaos.orch, *chaos.program.until(steps), nodes=",".join(chaos.nodes), name="peace") as calm:
            assert calm.end(1800) == 0, calm.log_text()
            losses = calm.losses()
    different = sorted(step for step in seen if seen[step] != losses[step])
    assert not different, f"{len(different)} of {len(seen)} losses differ, from step {different[0]} on"
    ended_mute = [fault for fault in chaos.faults if fault.what in TAKES_LINES_ALONG]
    assert steps - len(seen) <= EVERY * len(ended_mute), f"{steps - len(seen)} steps were never told"
    return f"{len(chaos.faults)} faults; the losses of {len(seen)} of {steps} steps, all as undisturbed, bit for bit"


def kill_supervisor(orch: Orch, run_id: str) -> None:
    lock = records(orch) / run_id / "supervisor.lock"
    written = lock.read_text("ascii").strip() if lock.exists() else ""
    if written.isdecimal():
        try:
            os.kill(int(written), signal.SIGKILL)
        except ProcessLookupError:
            return


def until(true: Callable[[], object], what: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(LOOK_S)
