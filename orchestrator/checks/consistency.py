"""What differs between nodes that have to be alike, or where a difference should be known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from orchestrator.checks.preflight import image_differs
from orchestrator.specs.finding import Finding, Fix, Severity
from orchestrator.specs.node_report import Examined

_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Docker's words and the kernel's for the same."""


def torch(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Images of CPU and GPU nodes with different torch. Within one profile, that the images differ says it already."""
    if any(image_differs([node.facts for node in fleet if node.facts])):
        return
    groups = _grouped(fleet, lambda node: node.inside.torch.partition("+")[0] if node.inside else "")
    if len(groups) > 1:
        yield Finding(
            id="consistency.torch",
            severity=Severity.ERROR,
            node=_names(groups),
            message=f"the images hold different torch: {_listed(groups)}",
            cause="ranks of different torch hang in a collective, or disagree about its sizes",
            fix="orch build",
        )


def nccl(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """NCCL speaks only with its own version (NVIDIA/nccl#286)."""
    groups = _grouped(fleet, lambda node: node.inside.nccl if node.inside else "")
    if len(groups) > 1:
        yield Finding(
            id="consistency.nccl",
            severity=Severity.ERROR,
            node=_names(groups),
            message=f"the images hold different NCCL: {_listed(groups)}",
            cause="NCCL needs one version everywhere; its error names neither version nor node",
            fix="orch build --profile cuda",
        )


def architecture(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Processors of different kinds: no one image serves them."""
    groups = _grouped(fleet, lambda node: node.facts.architecture if node.facts else "")
    if len(groups) > 1:
        yield Finding(
            id="consistency.architecture",
            severity=Severity.WARNING,
            node=_names(groups),
            message=f"the processors are of different kinds: {_listed(groups)}",
            cause="an image is built for one of them",
            fix="orch build --each-node",
        )


def image_architecture(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """An image that was built for another processor does not start."""
    for node in fleet:
        image = node.facts.image if node.facts else None
        if node.facts is None or image is None or not image.architecture or not node.facts.architecture:
            continue
        built = _ARCHITECTURES.get(image.architecture, image.architecture)
        if built != node.facts.architecture:
            yield Finding(
                id="consistency.image_architecture",
                severity=Severity.ERROR,
                node=node.name,
                message=f"its image was built for {built}, and the machine is {node.facts.architecture}",
                cause="the image came from a machine with another processor",
                fix="orch build --each-node",
            )


def cpu_capability(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Vector instructions that torch uses, where ranks compute on processors."""
    computing = [node for node in fleet if node.facts and not node.facts.gpus]
    groups = _grouped(computing, _vectors)
    if len(groups) > 1:
        yield Finding(
            id="consistency.cpu_capability",
            severity=Severity.INFO,
            node=_names(groups),
            message=f"the processors compute with different instructions: {_listed(groups)}",
            cause="they differ in speed, and in the last bits of what they compute; training takes both",
            fix="orch launch --forecast shows what each node adds",
        )
    for name in groups.get("no AVX2", ()):
        yield Finding(
            id="consistency.no_avx2",
            severity=Severity.WARNING,
            node=name,
            message="its processor has no AVX2: torch computes there several times slower",
            cause="a processor from before 2013, or a virtual machine that hides what its host can do",
            fix="in a virtual machine: give it the host's CPU model (QEMU: -cpu host); else leave the node out",
        )


def kernel(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Worth knowing where one node alone misbehaves."""
    groups = _grouped(fleet, lambda node: ".".join(node.facts.kernel.split(".")[:2]) if node.facts else "")
    if len(groups) > 1:
        yield Finding(
            id="consistency.kernel",
            severity=Severity.INFO,
            node=_names(groups),
            message=f"the kernels differ: {_listed(groups)}",
            cause="harmless by itself",
        )


def clock_kept(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A clock that nobody sets runs off by seconds a week."""
    for node in fleet:
        if node.host and node.host.ntp == "no":
            yield Finding(
                id="clock.not_kept",
                severity=Severity.WARNING,
                node=node.name,
                message="its clock is not kept by a time server",
                cause="it will run off, and torch tells dead ranks from slow ones by wall clocks",
                fix="on it: sudo timedatectl set-ntp true (Debian: sudo apt install systemd-timesyncd first)",
                auto_fix=Fix(
                    what=f"let a time server keep the clock of {node.name}",
                    on_node=("sudo", "-n", "timedatectl", "set-ntp", "true"),
                ),
            )


def datasets(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Data under one name with different content: the ranks would train on different things."""
    for folder in sorted({folder for node in fleet for folder in node.manifests}):
        held = {node.name: node.manifests[folder] for node in fleet if folder in node.manifests}
        groups: dict[str, list[str]] = {}
        for name, digest in held.items():
            groups.setdefault(f"manifest {digest[:12]}", []).append(name)
        lacking = [node.name for node in fleet if node.host and folder not in node.manifests]
        if len(groups) > 1:
            yield Finding(
                id="data.differs",
                severity=Severity.ERROR,
                node=_names(groups),
                message=f"{folder} holds different data: {_listed(groups)}",
                cause="it was prepared on each machine, or changed on one of them since",
                fix="prepare it once here (orch prepare), then: orch launch --data ./Data brings it to all",
            )
        elif lacking:
            yield Finding(
                id="data.missing",
                severity=Severity.WARNING,
                node=", ".join(lacking),
                message=f"{', '.join(lacking)} lack {folder}, which {', '.join(held)} hold",
                cause="it was prepared on some machines alone",
                fix="orch launch --data ./Data brings it to all",
            )


def _vectors(node: Examined) -> str:
    if node.inside is None or not node.inside.cpu_capability:
        return ""
    word = {"DEFAULT": "no AVX2"}.get(node.inside.cpu_capability, node.inside.cpu_capability)
    return f"{word} and AMX" if node.host and "amx_tile" in node.host.cpu_flags else word


def _grouped(fleet: Sequence[Examined], word: Callable[[Examined], str]) -> dict[str, list[str]]:
    """Names of nodes by their word; who has none does not count."""
    groups: dict[str, list[str]] = {}
    for node in fleet:
        groups.setdefault(word(node), []).append(node.name)
    groups.pop("", None)
    return groups


def _names(groups: dict[str, list[str]]) -> str:
    return ", ".join(name for names in groups.values() for name in names)


def _listed(groups: dict[str, list[str]]) -> str:
    return "; ".join(f"{', '.join(names)}: {word}" for word, names in groups.items())


CHECKS = (torch, nccl, architecture, image_architecture, cpu_capability, kernel, clock_kept, datasets)
