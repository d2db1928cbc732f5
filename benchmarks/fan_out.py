"""The controller with many nodes: processor time, time, memory, threads and open files of each path.

The nodes are those of the shipped fake interface (`orchestrator/nodes/fake.py`), each with a latency of its own and one
open file for its connection, as an SSH connection has a socket. All else is what the commands run. `node's shell` is no
simulation: the facts script on this machine, asked for its ways to so many peers.

    python -m benchmarks.fan_out --out DIR              # 50, 200 and 1,000 nodes: about three minutes
    python -m benchmarks.fan_out --out DIR --path plan facts
    python -m benchmarks.fan_out --out DIR --rehearse   # 4 and 8 nodes, to test that everything runs

Each row is measured in a process of its own and kept in DIR/rows.json at once: the same command continues with those
that are missing. Exit code 1: a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address
from math import log
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Lock, Thread
from typing import Any

from contract.cost_model.capacity import Query, plan_capacity
from contract.cost_model.measurement import Measurement, NodeSpeed, SyncCost
from contract.event_lines import encode_event
from contract.events import ResourcesSampled, StepDone
from contract.log_lines import rank_prefix
from contract.resources import ResourceUsage
from orchestrator.checks.doctor import diagnose
from orchestrator.cli.launching.launch import launch as orch_launch
from orchestrator.cli.launching.order import LaunchOrder
from orchestrator.cli.options import OutputMode
from orchestrator.fleet.connect import connecting_by
from orchestrator.fleet.fan_out import fan_out
from orchestrator.fleet.gather import gather_facts
from orchestrator.fleet.monitor import FleetWatch
from orchestrator.fleet.readiness.pair_probe import probe_pairs
from orchestrator.fleet.readiness.quick_look import quick_look
from orchestrator.fleet.runs.find_runs import RunningContainer, find_runs, run_on_nodes
from orchestrator.fleet.runs.launch import launch
from orchestrator.fleet.runs.load_state import load_state
from orchestrator.fleet.runs.read_logs import resolve_logs, select_lines
from orchestrator.fleet.runs.stop import stop_run
from orchestrator.fleet.supervise.attempt import follow_attempt
from orchestrator.fleet.supervise.followed import FollowedRun
from orchestrator.nodes.fake import Answer, FakeNode
from orchestrator.nodes.local import LocalNode
from orchestrator.nodes.probes import probe, usage_probe
from orchestrator.plan.launch import plan_launch
from orchestrator.plan.lines import plan_lines
from orchestrator.render.log_lines import log_line
from orchestrator.render.runs import run_table
from orchestrator.specs.facts import EngineFacts, NodeFacts, Route
from orchestrator.specs.inventory import Inventory
from orchestrator.specs.inventory_files.inventory_file import read_inventory
from orchestrator.specs.launch_options import LaunchOptions
from orchestrator.specs.node_report import Examined
from orchestrator.specs.plan import Plan
from orchestrator.specs.plan_json import to_json
from orchestrator.specs.request import LaunchRequest
from orchestrator.specs.run_events import Tick
from orchestrator.state.facts import LineRead, NodeAnswered
from orchestrator.state.verdict import verdict
from orchestrator.store.line_filter import Filter
from orchestrator.store.run_record import RunRecord
from orchestrator.watch.live import LiveState
from orchestrator.watch.node_table import node_table
from orchestrator.watch.run_lines import run_lines
from tests import lan

NODES, REHEARSED = (50, 200, 1000), (4, 8)
GOAL_S = 5.0
"""Seconds of processor time, and of waiting, to plan the largest number of nodes."""
LINEAR = 1.25
"""Largest exponent of growth between the two largest numbers of nodes that counts as linear: times vary."""
LEAST_CPU_S = 0.05
"""CPU time below which a row is too short to show how it grows."""
FIRST_ADDRESS = IPv4Address("10.1.0.1")
LINES = 20
"""Log lines of each node."""
DRAWN_EVERY_S = 2.0
"""Seconds between two refreshes of the monitor's screen, as by default."""
SAMPLED = 3
"""Samples of each node that are watched."""
MIB = 1 << 20
Row = dict[str, float]


# ── Simulated nodes ───────────────────────────────────────────────────────────────────────────────


@dataclass
class Wire:
    """The connection to one node: its latency, and the file that it holds open."""

    latency_s: float
    sent: int = 0
    """Bytes of stdin."""
    descriptor: int = -1
    lock: Lock = field(default_factory=Lock)

    def wait(self) -> None:
        """One round trip; the first opens the connection, which takes three more."""
        with self.lock:
            trips = 1 if self.descriptor >= 0 else 4
            if self.descriptor < 0:
                self.descriptor = os.open(os.devnull, os.O_RDONLY)
        time.sleep(trips * self.latency_s)

    def close(self) -> None:
        with self.lock:
            if self.descriptor >= 0:
                os.close(self.descriptor)
            self.descriptor = -1


@dataclass(kw_only=True)
class DistantEngine(lan.Actor):
    """A container engine that answers after its latency."""

    wire: Wire

    def _called(self, *call: str) -> None:
        super()._called(*call)
        self.wire.wait()


@dataclass(kw_only=True)
class DistantNode(FakeNode):
    """A node that answers after its latency."""

    wire: Wire

    def run(self, argv: Sequence[str], **options: Any) -> Any:
        self.wire.wait()
        self.wire.sent += len(options.get("stdin", b""))
        return super().run(argv, **options)

    def stream(self, argv: Sequence[str], **options: Any) -> Iterator[bytes]:
        self.wire.wait()
        if argv[2] != usage_probe.SCRIPT:
            yield from super().stream(argv, **options)
            return
        for number in range(SAMPLED + 1):
            yield f"up={number}\tcpu={number * 50} 0 0 {number * 50} 0 0 0 0\tcpus=4\tMemTotal=9\n".encode()
            time.sleep(0.1)
        Event().wait(60)  # the monitor ends before

    def close(self) -> None:
        self.wire.close()


def address_of(number: int) -> str:
    return str(FIRST_ADDRESS + number)


def answers_of(name: str, address: str) -> Callable[[Sequence[str], bytes, float], Answer]:
    """Answers of a node in health to all commands of these paths."""
    facts = lan.probe_answer("alpha").split("route=")[0].replace("alpha", name)

    def run(argv: Sequence[str], _stdin: bytes, _timeout_s: float) -> Answer:
        if argv[0] == "python3":
            return 0, dialled(argv), ""
        if probe.SCRIPT in argv:
            return 0, facts + ways(argv[7:], address), ""
        return 0, "", ""

    return run


def ways(peers: Sequence[str], own: str) -> str:
    """The facts script's line about its peers, all of which are in one network."""
    return f"route=dev eth0 src {own} uid 1000 \\    cache|{' '.join(peers)}\n"


def dialled(argv: Sequence[str]) -> str:
    """The answer of the pair probe's program on a LAN where everything passes."""
    what, *words = argv[3:]
    if what == "listen":
        return json.dumps({"ports": [int(words[1]), 40001, 40002, 40003, 40004], "taken": False, "pid": 7})
    if what == "dial":
        targets = (word.rpartition(":") for word in words[1:])
        return json.dumps([[at, int(port), "ok", 0.4, ""] for at, _, port in targets])
    return json.dumps({"ended": True})


class Fleet:
    """Simulated nodes with their inventory, and what earlier paths have found."""

    def __init__(self, count: int, folder: Path) -> None:
        self.names = [f"node{number:04d}" for number in range(count)]
        self.file = folder / "inventory.yaml"
        nodes = [f"  {name}: {{address: {address_of(at)}, user: ana}}" for at, name in enumerate(self.names)]
        self.file.write_text("\n".join(["project: orch", "nodes:", *nodes, ""]))
        self.nodes = {name: self._node(name, at) for at, name in enumerate(self.names)}

    def _node(self, name: str, number: int) -> DistantNode:
        wire = Wire(latency_s=0.005 + number * 7919 % 41 / 1000)
        says = tuple(line for step in range(LINES // 2) for line in step_line(number, step))
        engine = DistantEngine(name, wire=wire, held={lan.IMAGE.id: lan.IMAGE}, says=says, ends_with=None)
        engine.description = EngineFacts(kind="docker", version="20.10.24", id=name, architecture="x86_64")
        address = address_of(number)
        return DistantNode(name, address=address, engine=engine, wire=wire, programs=answers_of(name, address))

    def inventory(self) -> Inventory:
        return read_inventory(self.file)

    def request(self) -> LaunchRequest:
        return LaunchRequest(project="orch", nodes=self.inventory().nodes)

    def facts(self) -> dict[str, NodeFacts]:
        """Facts without waiting for a node."""
        known = lan.facts("alpha")
        routes = dict.fromkeys(map(address_of, range(len(self.names))), Route(interface="eth0", source=""))
        return {
            name: replace(known, name=name, address=node.address, routes=routes, engine=node.engine.description)
            for name, node in self.nodes.items()
        }

    def plan(self) -> Plan:
        return plan_launch(self.request(), self.facts(), lan.IDENTITY)

    def containers(self) -> list[RunningContainer]:
        """The containers of a running run, made without waiting."""
        plan, made = self.plan(), []
        for part in plan.nodes:
            node = self.nodes[part.node]
            latency, node.wire.latency_s = node.wire.latency_s, 0.0
            id = node.engine.create(part.container)
            node.engine.start(id)
            node.wire.latency_s = latency
            made.append(RunningContainer(node=node, node_rank=part.node_rank, id=id))
        RunRecord(plan.run_id).save_plan(plan)
        return made


def step_line(rank: int, step: int) -> tuple[str, str]:
    """A line of a rank, and one event: of rank 0 a step, of the others what their machine uses."""
    usage = ResourceUsage(cpu_percent=50.0, cpus=4.0, ram_used_mib=900, ram_limit_mib=16000)
    done = StepDone(t=1.0, rank=0, step=step, loss=1.5, per_s=4096.0)
    event = encode_event(ResourcesSampled(rank=rank, usage=usage) if rank else done)
    return f"{rank_prefix(rank)}epoch 1 step {step} loss 1.5", rank_prefix(rank) + event


# ── Paths ─────────────────────────────────────────────────────────────────────────────────────────

Work = Callable[[], object]
"""Function that is measured; all that precedes it is not."""


def all_at_once(fleet: Fleet) -> Work:
    nodes = list(fleet.nodes.values())
    return lambda: [outcome.value() for outcome in fan_out(nodes, lambda node: node.run(["true"]))]


def inventory(fleet: Fleet) -> Work:
    return fleet.inventory


def facts(fleet: Fleet) -> Work:
    request = fleet.request()
    return lambda: [outcome.value() for outcome in gather_facts(list(fleet.nodes.values()), request)]


def nodes_shell(fleet: Fleet) -> Work:
    """The script with the number of peers as the fleet has nodes, by this machine's shell."""
    peers = [node.address for node in fleet.nodes.values()]
    return lambda: probe.ask(LocalNode(), workspace="~/orch", project="orch", peers=peers)


def checks(fleet: Fleet) -> Work:
    specs, known = fleet.inventory().nodes, fleet.facts()
    return lambda: quick_look(specs, known, {})


def pairs(fleet: Fleet) -> Work:
    specs, known = fleet.inventory().nodes, fleet.facts()

    def run() -> None:
        report = probe_pairs(specs, list(fleet.nodes.values()), {}, 12355)
        seen = [Examined(spec=spec, facts=known[spec.name], paths=report.paths[spec.name]) for spec in specs]
        if report.silent or len(report.paths) * (len(specs) - 1) * 5 != sum(len(node.paths) for node in seen):
            raise SystemExit(f"pairs: {report.silent}")
        diagnose(seen)

    return run


def plan(fleet: Fleet) -> Work:
    request, known = fleet.request(), fleet.facts()
    return lambda: plan_launch(request, known, lan.IDENTITY)


def rendered(fleet: Fleet) -> Work:
    made, specs = fleet.plan(), {spec.name: spec for spec in fleet.inventory().nodes}
    return lambda: [to_json(made), "\n".join(plan_lines(made, specs))]


def dry_run(fleet: Fleet) -> Work:
    """`orch launch --dry-run`: all from reading the inventory to the lines that it prints."""

    def run() -> None:
        reached = connecting_by(lambda spec: fleet.nodes[spec.name])
        with reached, Path(os.devnull).open("w") as nothing, redirect_stdout(nothing):
            options, mode = LaunchOptions(command=("gpt2", "train")), OutputMode(dry_run=True)
            orch_launch(LaunchOrder(inventory=fleet.inventory(), options=options, mode=mode))

    return run


def capacity(fleet: Fleet) -> Work:
    """The choice of nodes by the cost model: of unequal speeds, some on slow links."""
    speeds = [
        NodeSpeed(node=name, rank=at, sample_s=0.02 + at * 7919 % 101 / 1000, step_s=0.01,
                  upload=1e8 / (1 + 9 * (at % 10 == 0)), download=1e8)
        for at, name in enumerate(fleet.names)
    ]  # fmt: skip
    costs = tuple(
        SyncCost(sync=sync, bytes_per_parameter=size, codec_s_per_parameter=1e-10, collectives=4, every=every,
                 overlap=0.5, pattern="ring" if sync == "fp32" else "scatter_gather", proven=every == 1)
        for sync, size, every in (("fp32", 4.0, 1), ("fp16", 2.0, 1), ("int8", 1.02, 1), ("int4", 0.52, 1),
                                  ("diloco", 4.0, 50))
    )  # fmt: skip
    measured = Measurement(
        nodes=tuple(speeds), latency_s=0.0005, parameters=124_439_808, samples_per_step=16 * len(speeds),
        units_per_sample=128, unit="tokens", costs=costs,
    )  # fmt: skip
    return lambda: plan_capacity(measured, Query())


def start(fleet: Fleet) -> Work:
    made = fleet.plan()
    return lambda: launch(fleet.nodes, made)


def status(fleet: Fleet) -> Work:
    fleet.containers()

    def run() -> None:
        found, now = find_runs(list(fleet.nodes.values())), time.time()
        state = load_state(run_on_nodes(found, None), found, fleet.nodes, now)
        write(run_table(state, verdict(state, now), now))

    return run


def logs(fleet: Fleet) -> Work:
    fleet.containers()

    def run() -> None:
        source = resolve_logs(list(fleet.nodes.values()), None)
        lines = [line for line, _ in select_lines(source, Filter())]
        if len(lines) != LINES * len(fleet.names):
            raise SystemExit(f"logs: {len(lines)} lines of {LINES * len(fleet.names)}")
        for line in lines:
            log_line(line, width=8)

    return run


def supervise(fleet: Fleet) -> Work:
    """A run that is followed from its first line to its end, as `orch launch` and `orch supervise` do."""
    containers, made = fleet.containers(), fleet.plan()
    record = RunRecord(made.run_id)

    for one in containers:
        fleet.nodes[one.node.name].engine.finish(one.id, 0)

    def run() -> None:
        outcome = follow_attempt(containers, made, FollowedRun(record))
        if outcome.failure:
            raise SystemExit(f"supervise: {outcome.failure}")

    return run


def watch(fleet: Fleet) -> Work:
    """`orch monitor`: each node is sampled and followed, and the whole screen is drawn again every two seconds."""
    fleet.containers()
    specs = {spec.name: spec for spec in fleet.inventory().nodes}

    def run() -> None:
        watching, state = FleetWatch(list(fleet.nodes.values()), specs, None), LiveState(fleet.names)
        samples, lines, drawn = 0, 0, time.monotonic()
        for fact in watching.facts():
            if not isinstance(fact, Tick):
                state.add(fact)
            samples += isinstance(fact, NodeAnswered)
            lines += isinstance(fact, LineRead)
            over = samples >= SAMPLED * len(fleet.names) and lines >= LINES * len(fleet.names)
            if over or time.monotonic() - drawn > DRAWN_EVERY_S:
                drawn = time.monotonic()
                shown = state.view()
                write(*run_lines(shown, 120), node_table(shown.nodes, 120))
            if over:
                watching.close()

    return run


def stop(fleet: Fleet) -> Work:
    fleet.containers()
    return lambda: stop_run(list(fleet.nodes.values()), RunRecord(lan.IDENTITY.run_id), timeout_s=10)


def write(*views: Any) -> None:
    """Render them as for a terminal of 120 columns."""
    from rich.console import Console

    with Path(os.devnull).open("w") as out:
        Console(file=out, width=120, force_terminal=True).print(*views)


PATHS: Mapping[str, tuple[str, Callable[[Fleet], Work]]] = {
    "fan-out": ("one command on each node", all_at_once),
    "inventory": ("`inventory.yaml` is read", inventory),
    "facts": ("facts of all nodes", facts),
    "shell": ("the facts script in the shell of one node", nodes_shell),
    "checks": ("checks of a launch", checks),
    "plan": ("the plan", plan),
    "rendered": ("the plan as JSON and as lines", rendered),
    "dry-run": ("`orch launch --dry-run`, the whole of it", dry_run),
    "capacity": ("`orch plan`: which nodes, by the cost model", capacity),
    "launch": ("folders, plan, tokens and containers", start),
    "status": ("`orch status`", status),
    "logs": ("`orch logs`, 20 lines of each node", logs),
    "supervise": ("a run is followed to its end, 20 lines of each node", supervise),
    "watch": ("`orch monitor` until each node was sampled three times", watch),
    "stop": ("`orch stop`", stop),
    "pairs": ("each node dials each other, and the doctor's checks", pairs),
}
LARGEST = {"pairs": 200}
"""Paths that are quadratic by their nature, with the largest number of nodes that they are measured with."""


# ── Measuring ─────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def most(figures: Row) -> Iterator[None]:
    """Note the most threads and open files, looked at every 20 ms."""
    ended = Event()

    def look() -> None:
        while not ended.wait(0.02):
            threads = int(Path("/proc/self/status").read_text().partition("Threads:")[2].split()[0]) - 2
            figures["threads"] = max(figures.get("threads", 0), threads)
            figures["files"] = max(figures.get("files", 0), len(os.listdir("/proc/self/fd")))  # noqa: PTH208  # cheap

    watcher = Thread(target=look)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def memory_mib(key: str) -> float:
    return int(Path("/proc/self/status").read_text().partition(f"{key}:")[2].split()[0]) / 1024


def row(path: str, count: int) -> Row:
    """Measure one path in this process."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # the monitor's threads still write
        os.environ["XDG_STATE_HOME"] = folder
        fleet = Fleet(count, Path(folder))
        work = PATHS[path][1](fleet)
        before, figures = memory_mib("VmRSS"), Row(threads=0, files=0)
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        with most(figures):
            began, cpu_began = time.monotonic(), time.process_time()
            work()
            wall_s, cpu_s = time.monotonic() - began, time.process_time() - cpu_began
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s += now.ru_utime + now.ru_stime - children.ru_utime - children.ru_stime
        sent = sum(node.wire.sent for node in fleet.nodes.values())
        mib = max(0.0, memory_mib("VmHWM") - before)
        return {**figures, "wall_s": wall_s, "cpu_s": cpu_s, "mib": mib, "sent_mib": sent / MIB}


def measured(path: str, count: int) -> Row:
    """Measure it in a process of its own."""
    words = [sys.executable, "-m", "benchmarks.fan_out", "--row", path, str(count)]
    ran = subprocess.run(words, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"{path} with {count} nodes ended with {ran.returncode}:\n{ran.stderr}")
    return dict(json.loads(ran.stdout.splitlines()[-1]))


# ── Tables ────────────────────────────────────────────────────────────────────────────────────────


def counts(path: str, *, rehearsed: bool) -> list[int]:
    return [count for count in (REHEARSED if rehearsed else NODES) if count <= LARGEST.get(path, count)]


def growth(rows: Mapping[str, Row]) -> float | None:
    """Exponent of the processor time between the two largest numbers of nodes: 1 is linear, 2 quadratic."""
    few, many = sorted(rows, key=int)[-2:]
    least = rows[few]["cpu_s"] >= LEAST_CPU_S
    return log(rows[many]["cpu_s"] / rows[few]["cpu_s"]) / log(int(many) / int(few)) if least else None


def table(saved: Mapping[str, Mapping[str, Row]]) -> Iterator[str]:
    yield "| path | nodes: CPU s | growth | time s | MiB | threads | open files | MiB sent |"
    yield "|---|---|---|---|---|---|---|---|"
    for path, rows in saved.items():
        largest = rows[max(rows, key=int)]
        times = ", ".join(f"{int(count):,}: {row['cpu_s']:.2f}" for count, row in rows.items())
        exponent = growth(rows)
        yield (
            f"| {PATHS[path][0]} | {times} | {'' if exponent is None else f'{exponent:.2f}'} | {largest['wall_s']:.1f}"
            f" | {largest['mib']:.0f} | {largest['threads']:.0f} | {largest['files']:.0f} | {largest['sent_mib']:.1f} |"
        )


def missed(saved: Mapping[str, Mapping[str, Row]]) -> Iterator[str]:
    """The goals that are missed."""
    for path, rows in saved.items():
        exponent = growth(rows)
        if path not in LARGEST and exponent is not None and exponent > LINEAR:
            yield f"{path} grows with the number of nodes to the power {exponent:.2f}, more than {LINEAR:g}"
    if planned := saved.get("dry-run", {}).get(str(max(NODES))):
        for what in ("cpu_s", "wall_s"):
            if planned[what] > GOAL_S:
                yield f"planning {max(NODES):,} nodes took {planned[what]:.1f} s ({what}), more than {GOAL_S:g}"


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fan_out", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("fan-out-benchmarks"), metavar="DIR")
    parser.add_argument("--path", nargs="+", choices=PATHS, default=list(PATHS), help="default: all")
    parser.add_argument("--rehearse", action="store_true", help="4 and 8 nodes, to test that everything runs")
    parser.add_argument("--row", nargs=2, metavar=("PATH", "NODES"), help="measure one row in this process, as JSON")
    given = parser.parse_args(argv)
    if given.row:
        print(json.dumps(row(given.row[0], int(given.row[1]))), flush=True)
        os._exit(0)  # without waiting for the monitor's threads
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / "rows.json"
    saved: dict[str, dict[str, Row]] = json.loads(file.read_text()) if file.exists() else {}
    for path in given.path:
        for count in counts(path, rehearsed=given.rehearse):
            if str(count) not in saved.setdefault(path, {}):
                saved[path][str(count)] = measured(path, count)
                file.write_text(json.dumps(saved, indent=1))
                print(f"{path}, {count} nodes: {saved[path][str(count)]['wall_s']:.1f} s", file=sys.stderr, flush=True)
    shown = {
        path: {str(count): saved[path][str(count)] for count in counts(path, rehearsed=given.rehearse)}
        for path in given.path
    }
    print("# Many nodes\n" + ("\nRehearsal: no figure here means anything.\n" if given.rehearse else ""))
    print(*table(shown), sep="\n")
    problems = [] if given.rehearse else list(missed(shown))
    print("", *(f"✗ {problem}" for problem in problems), sep="\n")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
