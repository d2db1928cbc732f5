"""A LAN that exists in memory alone: its inventory, its facts, and machines that answer like real ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.nodes import probe
from orchestrator.nodes.fake import FakeEngine, FakeNode
from orchestrator.plan.launch import plan_launch
from orchestrator.specs.errors import NodeUnreachableError
from orchestrator.specs.event import MARK
from orchestrator.specs.facts import EngineFacts, GpuFacts, ImageFacts, NodeFacts, Route
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.plan import Plan
from orchestrator.specs.request import LaunchRequest, RunIdentity

NAMES = ("alpha", "beta", "gamma", "delta", "epsilon")
IMAGE = ImageFacts(id="sha256:" + "1a" * 32, tags=("orch/orch:cpu",), labels={"orch.profile": "cpu"})
IDENTITY = RunIdentity(run_id="0102-1504-ab12", user="ana", started_at="2026-01-02T15:04:05+00:00")


def address_of(name: str) -> str:
    return f"10.0.0.{11 + NAMES.index(name)}"


def spec(name: str, **changes: Any) -> NodeSpec:
    return NodeSpec(**{"name": name, "address": address_of(name), **changes})


def facts(name: str, *, peers: Sequence[str] = NAMES, **changes: Any) -> NodeFacts:
    """A machine in health, with a way to every peer."""
    values: dict[str, Any] = {
        "name": name,
        "address": address_of(name),
        "hostname": name,
        "user": "ana",
        "home": "/home/ana",
        "architecture": "x86_64",
        "cpus": 4,
        "memory_mib": 16000,
        "disk_free_mib": 90000,
        "routes": {address_of(peer): Route(interface="eth0", source="") for peer in peers if peer != name},
        "engine": EngineFacts(kind="docker", version="20.10.24", id=f"engine-of-{name}", architecture="x86_64"),
        "image": IMAGE,
    }
    return NodeFacts(**{**values, **changes})


def gpus(count: int) -> tuple[GpuFacts, ...]:
    return tuple(GpuFacts(index=n, uuid=f"GPU-{n}", name="RTX 3050", driver_version="570.1") for n in range(count))


def request(names: Sequence[str] = NAMES[:2], **changes: Any) -> LaunchRequest:
    return LaunchRequest(**{"project": "orch", "nodes": tuple(spec(name) for name in names), **changes})


def plan(names: Sequence[str] = NAMES[:2], identity: RunIdentity = IDENTITY, **changes: Any) -> Plan:
    return plan_launch(request(names, **changes), {name: facts(name) for name in names}, identity)


def plan_of(*specs: NodeSpec) -> Plan:
    """A plan for nodes of one's own making."""
    asked = LaunchRequest(project="orch", nodes=specs)
    return plan_launch(asked, {one.name: facts(one.name) for one in specs}, IDENTITY)


def moment(second: float, fraction: int = 0) -> str:
    """A log line's time."""
    return f"2026-01-02T15:{int(second) // 60:02d}:{int(second) % 60:02d}.{fraction:09d}Z"


def event(kind: str, rank: int = 0, **values: object) -> str:
    """A line of a rank that carries an event, as the container's log has it."""
    return f"[rank{rank}]: {MARK}{json.dumps({'event': kind, 'rank': rank, **values})}"


def forecast(**changes: object) -> dict[str, Any]:
    """What a trainer forecasts for three nodes of which the last is left out, as the values of its event."""
    row = {"shares": [4], "compute_s": 0.4, "exchange_s": 0.0, "sent_mb": 0.0, "chosen": False, "proven": True}
    both = {**row, "nodes": ["alpha", "beta"], "compute_s": 0.2}
    values = {
        "unit": "tokens",
        "rows": [
            {**row, "sync": "alone", "nodes": ["alpha"], "step_s": 0.4, "per_s": 640.0, "speedup": 1.0},
            {**both, "sync": "fp32", "step_s": 6.97, "exchange_s": 6.77, "per_s": 37.0, "speedup": 0.057,
             "sent_mb": 796.4},
            {**both, "sync": "int4", "step_s": 0.21, "exchange_s": 0.01, "per_s": 1216.4, "speedup": 1.9,
             "sent_mb": 5.9, "chosen": True},
            {**both, "sync": "diloco", "nodes": ["alpha", "beta", "gamma"], "step_s": 0.2, "per_s": 1280.0,
             "speedup": 2.0, "proven": False},
        ],
        "sync": "int4",
        "best_node": "alpha",
        "link_mbit_s": {"alpha": 941.0, "beta": 940.6, "gamma": 94.1},
        "latency_ms": 0.52,
        "left_out": [{"node": "gamma", "why": "its link carries 94 Mbit/s, the others' 941 Mbit/s"}],
        "warnings": ["gamma's link carries 94 Mbit/s: a cable instead of Wi-Fi would help"],
    }  # fmt: skip
    return {**values, **changes}


@dataclass
class Actor(FakeEngine):
    """A container that, once started, says its lines and ends (or goes on, where `ends_with` is None)."""

    says: tuple[str, ...] = ()
    ends_with: int | None = 0

    def start(self, container: str) -> None:
        super().start(container)
        for second, text in enumerate(self.says):
            self.write(container, moment(second), text)
        if self.ends_with is not None:
            self.finish(container, self.ends_with)


@dataclass
class Lan:
    """Nodes by name, each an `Actor`; `connect` is what the commands reach them by."""

    nodes: dict[str, FakeNode] = field(default_factory=dict)

    def add(self, name: str, **acting: Any) -> FakeNode:
        """A machine in health that has the image."""
        engine = Actor(name, held={IMAGE.id: IMAGE}, **acting)
        engine.description = EngineFacts(kind="docker", version="20.10.24", id=name, architecture="x86_64")
        node = FakeNode(name, address=address_of(name), engine=engine)
        node.answers = {
            ("sh", "-c", probe.SCRIPT, "*"): (0, probe_answer(name), ""),
            ("sh", "-c", "*"): (0, "", ""),
            ("cat", "/proc/net/tcp", "/proc/net/tcp6"): (0, "", ""),
        }
        self.nodes[name] = node
        return node

    def connect(self, wanted: NodeSpec) -> FakeNode:
        return self.nodes[wanted.name]

    @property
    def containers(self) -> dict[str, list[str]]:
        """Names of the containers that each node holds."""
        return {
            name: [held.name for _, held in node.engine.made.values()]
            for name, node in self.nodes.items()
            if node.engine.made
        }


def lan(*names: str, **acting: Any) -> Lan:
    """These machines, all acting alike."""
    made = Lan()
    for name in names:
        made.add(name, **acting)
    return made


def silent(name: str) -> FakeNode:
    """A machine that gives no answer."""
    error = NodeUnreachableError("no answer in 5 s", node=name, hint="is it on?")
    node = FakeNode(name, address=address_of(name), answers={("sh", "*"): error})
    for method in ("facts", "containers"):
        node.engine.failures[method] = error
    return node


def probe_answer(name: str, **changes: str) -> str:
    """What the facts script writes on this machine; a clock that nobody can read counts as right."""
    values = {
        "system": f"{name} 6.1 x86_64", "identity": "uid=1000(ana) gid=1000(ana) groups=1000(ana),998(docker)",
        "machine_id": name, "home": "/home/ana", "cpus": "4", "memory_kib": "16384000",
        "disk": "/dev/sda1 98000000 8000000 90000000 9% /home", "clock": "N", "listening": "0016",
    }  # fmt: skip
    lines = [f"{key}={value}" for key, value in {**values, **changes}.items()]
    ways = [f"route={address_of(peer)} {address_of(peer)} dev eth0 src {address_of(name)}" for peer in NAMES]
    return "\n".join([*lines, *ways, ""])
