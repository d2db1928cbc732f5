"""What forbids a launch, or should be known before one: facts of all nodes in, findings out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.finding import Finding, Fix, Severity

CLOCK_WARN_S = 1.0
CLOCK_ERROR_S = 30.0
"""Liveness in torch's stores compares wall clocks."""
DISK_NEEDED_MIB = 1024


def same_machine(fleet: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Two names for one machine: two ranks would share its limits and its lock."""
    seen: dict[str, str] = {}
    for facts in fleet:
        engine = facts.engine.id if facts.engine and facts.engine.kind == "docker" else ""
        if not engine:
            continue
        if engine in seen:
            yield Finding(
                id="inventory.same_machine",
                severity=Severity.ERROR,
                node=facts.name,
                message=f"{facts.name} and {seen[engine]} are one machine: both reach the engine {engine[:14]}…",
                fix=f"remove one from the inventory; for two ranks there: nproc_per_node: 2 on {seen[engine]}",
            )
        seen.setdefault(engine, facts.name)


def image_missing(fleet: Sequence[NodeFacts]) -> Iterator[Finding]:
    """A node without the image."""
    for facts in fleet:
        if facts.image is None and facts.engine and facts.engine.kind == "docker":
            yield Finding(
                id="image.missing",
                severity=Severity.ERROR,
                node=facts.name,
                message=f"{facts.name} does not have the image of this project",
                fix="orch build",
                auto_fix=Fix(what="build the image and bring it to the nodes that lack it", orch=("build", "--yes")),
            )


def torch_missing(fleet: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Nodes that are processes run the torch of this Python, which the controller does not need otherwise."""
    engines = {facts.name: facts.engine for facts in fleet if facts.engine and facts.engine.kind == "process"}
    without = [name for name, engine in engines.items() if not engine.version]
    if without:
        yield Finding(
            id="engine.no_torch",
            severity=Severity.ERROR,
            node=", ".join(without),
            message=f"{', '.join(without)}: processes of this computer, whose Python has no torch",
            fix="pip install 'orch[trainer]'",
        )


def image_differs(fleet: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Nodes of one profile with different images: another torch or another trainer hangs the run, or worse."""
    for profile in sorted({_profile(facts) for facts in fleet if facts.image}):
        images = {facts.name: facts.image for facts in fleet if facts.image and _profile(facts) == profile}
        held = {name: image.id for name, image in images.items()}
        # `orch build --each-node` gives each node an id of its own, of the same content.
        contents = {image.labels.get("orch.content", image.id) for image in images.values()}
        if len(set(held.values())) > 1 and len(contents) > 1:
            table = ", ".join(f"{name} {id.removeprefix('sha256:')[:12]}" for name, id in held.items())
            yield Finding(
                id="image.differs",
                severity=Severity.ERROR,
                node=", ".join(held),
                message=f"the nodes have different {profile or 'images'} images: {table}",
                fix="orch build",
            )


def docker_desktop(fleet: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Docker Desktop's host network is that of its own virtual machine."""
    for facts in fleet:
        if facts.engine and facts.engine.docker_desktop:
            yield Finding(
                id="engine.docker_desktop",
                severity=Severity.ERROR,
                node=facts.name,
                message=f"{facts.name} runs Docker Desktop, whose containers no other machine reaches",
                cause="its host network is that of its own virtual machine",
                fix="install Docker Engine in Linux or in WSL2 with mirrored networking",
            )


def clock_skew(fleet: Sequence[NodeFacts]) -> Iterator[Finding]:
    """A clock that is off. Where all nodes agree with each other, it is this computer's, which no rank reads."""
    offsets = [facts.clock_offset_s for facts in fleet]
    if len(fleet) > 1 and max(offsets) - min(offsets) <= CLOCK_WARN_S < min(map(abs, offsets)):
        yield Finding(
            id="clock.controller",
            severity=Severity.WARNING,
            node="",
            message=f"the clock of this computer is {_off(-offsets[0])}: all nodes agree on another time",
            cause="ranks go by the clocks of the nodes; times that are shown here do not fit theirs",
            fix="here: sudo timedatectl set-ntp true",
        )
        return
    for facts in fleet:
        off = facts.clock_offset_s
        if abs(off) > CLOCK_WARN_S:
            yield Finding(
                id="clock.skew",
                severity=Severity.ERROR if abs(off) > CLOCK_ERROR_S else Severity.WARNING,
                node=facts.name,
                message=f"the clock of {facts.name} is {_off(off)}",
                cause="torch tells dead ranks from slow ones by wall clocks",
                fix="on it: sudo timedatectl set-ntp true",
                auto_fix=Fix(
                    what=f"let a time server set the clock of {facts.name}",
                    on_node=("sudo", "-n", "timedatectl", "set-ntp", "true"),
                ),
            )


def disk_room(fleet: Sequence[NodeFacts]) -> Iterator[Finding]:
    """No room for checkpoints."""
    for facts in fleet:
        if facts.disk_free_mib is not None and facts.disk_free_mib < DISK_NEEDED_MIB:
            yield Finding(
                id="disk.full",
                severity=Severity.ERROR,
                node=facts.name,
                message=f"{facts.name} has {facts.disk_free_mib} MiB free for its workspace, needs {DISK_NEEDED_MIB}",
                fix="make room, or set `workspace` in the inventory to a larger disk",
            )


def memory_limit(fleet: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Less memory than a container is promised at the least."""
    for facts in fleet:
        if 0 < facts.memory_mib < 1024:
            yield Finding(
                id="memory.small",
                severity=Severity.WARNING,
                node=facts.name,
                message=f"{facts.name} has {facts.memory_mib} MiB of memory: torch alone takes most of it",
            )


def loopback_address(fleet: Sequence[NodeFacts]) -> Iterator[Finding]:
    """An address that leads each of the others to itself."""
    loopback = [facts for facts in fleet if facts.address.startswith("127.")]
    if len(loopback) < len(fleet):
        for facts in loopback:
            yield Finding(
                id="network.loopback",
                severity=Severity.ERROR,
                node=facts.name,
                message=f"{facts.name} has the address {facts.address}, by which no other machine reaches it",
                fix=f"write its address on the LAN to nodes.{facts.name}.address; on it: ip -4 address shows it",
            )


def data_missing(fleet: Sequence[NodeFacts], make: str) -> Iterator[Finding]:
    """Nodes where a run finds nothing to read, as none is brought. `make`: the command that prepares it."""
    without = [facts.name for facts in fleet if facts.has_data is False]
    if without:
        yield Finding(
            id="data.missing",
            severity=Severity.ERROR,
            node=", ".join(without),
            message=f"no prepared data here in ./Data, nor on {', '.join(without)}: there is nothing to train on",
            fix=f"{make}   # data that lies elsewhere: --data FOLDER",
        )


AREAS: Mapping[str, tuple[Callable[[Sequence[NodeFacts]], Iterator[Finding]], ...]] = {
    "reach": (same_machine,),
    "engine": (docker_desktop, torch_missing),
    "network": (loopback_address,),
    "consistency": (image_missing, image_differs, clock_skew),
    "resources": (disk_room, memory_limit),
}
"""By the area of the doctor's that they belong to."""


def _off(seconds: float) -> str:
    return f"{abs(seconds):.0f} s {'ahead' if seconds > 0 else 'behind'}"


def _profile(facts: NodeFacts) -> str:
    return facts.image.labels.get("orch.profile", "") if facts.image else ""
