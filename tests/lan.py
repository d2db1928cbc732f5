"""A LAN that exists in memory alone: its inventory, its facts, and machines that answer like real ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contract.log_lines import EVENT_MARK
from orchestrator.nodes.fake import FakeEngine, FakeNode, UnexpectedCallError
from orchestrator.nodes.interface import Completed
from orchestrator.nodes.probes import (
    checkpoint_probe,
    host_probe,
    inside_probe,
    network_probe,
    probe,
    reach_program,
    usage_probe,
)
from orchestrator.plan.launch import plan_launch
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.data import DataFolder
from orchestrator.specs.errors import NodeUnreachableError
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


DIGEST = "0123456789abcdef"


def data(digest: str = DIGEST, origin: object = "", **values: Any) -> tuple[DataFolder, ...]:
    """Data of a run, as a request and a plan have it."""
    return (DataFolder(**{"name": "Data", "digest": digest, "origin": str(origin), **values}),)


USED = "".join(
    f"up={up}\tcpu={busy} 0 0 {idle} 0 0 0 0\tcpus=4\tMemTotal=16384000\tMemAvailable=8192000\tnetwork={sent} {sent}\n"
    for up, busy, idle, sent in ((100, 0, 0, 0), (102, 200, 600, 4 << 20))
)
"""Two samples of the resources in use: a quarter of the CPU, half of the memory, 2 MiB/s."""


def plan_of(*specs: NodeSpec) -> Plan:
    """A plan for nodes of one's own making."""
    asked = LaunchRequest(project="orch", nodes=specs)
    return plan_launch(asked, {one.name: facts(one.name) for one in specs}, IDENTITY)


def moment(second: float, fraction: int = 0) -> str:
    """A log line's time."""
    return f"2026-01-02T15:{int(second) // 60:02d}:{int(second) % 60:02d}.{fraction:09d}Z"


def event(kind: str, rank: int = 0, **values: object) -> str:
    """A line of a rank that carries an event, as the container's log has it."""
    return f"[rank{rank}]: {EVENT_MARK}{json.dumps({'event': kind, 'rank': rank, **values})}"


def forecast(**changes: object) -> dict[str, Any]:
    """Make a trainer's forecast for three nodes of which the last is left out, as the values of its event."""
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
    """A container that, once started, prints its lines and ends (or continues, where `ends_with` is None)."""

    says: tuple[str, ...] = ()
    ends_with: int | None = 0
    shut: tuple[str, ...] = ()
    """Names of machines that the pair probe, run here, does not reach."""

    def start(self, container: str) -> None:
        super().start(container)
        for second, text in enumerate(self.says):
            self.write(container, moment(second), text)
        if self.ends_with is not None:
            self.finish(container, self.ends_with)

    def execute(self, container: str, argv: Sequence[str]) -> Completed:
        """The program of the pair probe."""
        self._called("execute", container, *argv)
        return Completed(node=self.node, argv=tuple(argv), exit_code=0, stdout=dialled(argv, self.shut), stderr="")


def dialled(argv: Sequence[str], shut: Sequence[str] = ()) -> str:
    """Answer as the program of the pair probe does on a LAN where everything passes, but to the machines in `shut`."""
    program, what, *words = argv[2:]
    assert program == Path(reach_program.__file__).read_text("utf-8")
    if what == "listen":
        answer: object = {"ports": [int(words[1]), 40001], "taken": False, "pid": 7}
    elif what == "dial":
        targets = (target.rpartition(":") for target in words[1:])
        walls = [address_of(name) for name in shut]
        answer = [[at, int(port), "timed out" if at in walls else "ok", 0.4, ""] for at, _, port in targets]
    else:
        answer = {"ended": True}
    return json.dumps(answer)


def on_the_host(argv: Sequence[str], _stdin: bytes = b"", _timeout_s: float = 0) -> tuple[int, str, str]:
    """Answer for that program run by the host's Python, where there is no image."""
    if argv[:2] != ("python3", "-c"):
        raise UnexpectedCallError(str(argv)[:200])
    return 0, dialled(argv), ""


@dataclass
class Lan:
    """Nodes by name, each an `Actor`; `connect` is what the commands reach them by."""

    nodes: dict[str, FakeNode] = field(default_factory=dict)

    def add(self, name: str, **acting: Any) -> FakeNode:
        """A machine in health that has the image."""
        engine = Actor(name, **{"held": {IMAGE.id: IMAGE}, "programs": look_inside, **acting})
        engine.description = EngineFacts(kind="docker", version="20.10.24", id=name, architecture="x86_64")
        node = FakeNode(name, address=address_of(name), engine=engine, programs=on_the_host)
        node.answers = {
            ("sh", "-c", probe.SCRIPT, "*"): (0, probe_answer(name), ""),
            ("sh", "-c", host_probe.SCRIPT, "*"): (0, HOST, ""),
            ("sh", "-c", network_probe.SCRIPT, "*"): (0, network_answer(name), ""),
            ("sh", "-c", usage_probe.SCRIPT, "*"): (0, USED, ""),
            ("sh", "-c", "*"): (0, "", ""),
            ("true",): (0, "", ""),
            ("nvidia-smi", "*"): (127, "", "not found"),
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
    """Answer as the facts script does on this machine; a clock that cannot be read counts as right."""
    values = {
        "system": f"{name} 6.1 x86_64", "identity": "uid=1000(ana) gid=1000(ana) groups=1000(ana),998(docker)",
        "machine_id": name, "home": "/home/ana", "cpus": "4", "memory_kib": "16384000",
        "disk": "/dev/sda1 98000000 8000000 90000000 9% /home", "clock": "N", "listening": "0016",
    }  # fmt: skip
    lines = [f"{key}={value}" for key, value in {**values, **changes}.items()]
    way = f"route=dev eth0 src {address_of(name)} uid 1000|{' '.join(map(address_of, NAMES))}"
    return "\n".join([*lines, way, ""])


MANIFEST_SHA256 = "cd" * 32


def written(step: int, sha256: str = MANIFEST_SHA256, rank: int = 0) -> str:
    """The line that reports a checkpoint as `keep_checkpoint` lays it down."""
    return event("checkpoint", rank=rank, step=step, verified=True, sha256=sha256)


def keep_checkpoint(
    node: FakeNode, run_id: str, step: int, *, damaged: bool = False, manifest_sha256: str = MANIFEST_SHA256
) -> None:
    """Make the machine report from now on that it holds this one of a run."""
    size, digest, name = 3000, "ab" * 32, f"step-{step:08d}"
    folder = f"/home/ana/orch/orch/runs/{run_id}"
    manifest = json.dumps({"step": step, "files": {"state.pt": {"bytes": size, "sha256": digest}}})
    lines = [f"now={step + 10}", f"run={folder}", f"step={name}", f"file={size} {step} state.pt",
             f"file={len(manifest)} {step} manifest.json", f"sha256={manifest_sha256}",
             f"manifest={manifest}"]  # fmt: skip
    place = f"{folder}/checkpoints/{name}"
    state = "00" * 32 if damaged else digest
    sums = f"{state}  {place}/state.pt\n{manifest_sha256}  {place}/manifest.json\n"
    node.answers = {
        ("sh", "-c", checkpoint_probe.SCRIPT, "*"): (0, "\n".join([*lines, ""]), ""),
        ("sha256sum", "--", "*"): (0, sums, ""),
        **node.answers,
    }


def network_answer(name: str) -> str:
    """Answer as the doctor's second script does: a cable, and no packet filter."""
    return (
        f"address=2: eth0    inet {address_of(name)}/24 brd 10.0.0.255 scope global eth0\n"
        f"interface=eth0|1500|0x1003|up|1000|full|1| device|02:00:00:00:00:0{NAMES.index(name)}\n"
        f"own={address_of(name)} STREAM {name}\n"
    )


HOST = """available_kib=12000000
swap_kib=0
writable=yes
open_files=1024
flags= fpu sse2 avx2 fma
docker_program=yes
docker_socket=open
docker_disk=/dev/sda1 98000000 8000000 90000000 9% /
systemd=yes
ntp=yes
sleeps=sleep
sleeps=suspend
idle_action=s "ignore"
reboot=no
throttled=0
throttled=2
"""
"""Output of the doctor's script on a server in health."""

INSIDE = {
    "torch": "2.13.0+cpu", "nccl": "", "python": "3.11.2", "cpu_capability": "AVX2", "cpus": 3.0,
    "memory_mib": 12800, "shm_mib": 3200, "open_files": 1048576, "user": 1000,
}  # fmt: skip
"""Answer of a container of the training image on a machine in health, such as that of `facts`."""


def look_inside(container: ContainerSpec) -> tuple[int, str, str]:
    """A container that is asked what it sees."""
    assert container.command == inside_probe.PROBE
    return 0, json.dumps(INSIDE) + "\n", ""
