"""Checks of differences between nodes that have to be alike, or where a difference should be known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from orchestrator.checks.preflight import image_differs
from orchestrator.specs.finding import Finding
from orchestrator.specs.node_report import Examined

_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Docker's words and the kernel's for the same."""


def torch(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Images of CPU and GPU nodes with different torch. Within one profile, that the images differ says it already."""
    if any(image_differs([node.facts for node in fleet if node.facts])):
        return
    groups = _grouped(fleet, lambda node: node.inside.torch.partition("+")[0] if node.inside else "")
    if len(groups) > 1:
        yield Finding.of("consistency.torch", _names(groups), groups=_listed(groups))


def nccl(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """NCCL speaks only with its own version (NVIDIA/nccl#286)."""
    groups = _grouped(fleet, lambda node: node.inside.nccl if node.inside else "")
    if len(groups) > 1:
        yield Finding.of("consistency.nccl", _names(groups), groups=_listed(groups))


def architecture(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Processors of different kinds: no one image serves them."""
    groups = _grouped(fleet, lambda node: node.facts.architecture if node.facts else "")
    if len(groups) > 1:
        yield Finding.of("consistency.architecture", _names(groups), groups=_listed(groups))


def image_architecture(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """An image that was built for another processor does not start."""
    for node in fleet:
        image = node.facts.image if node.facts else None
        if node.facts is None or image is None or not image.architecture or not node.facts.architecture:
            continue
        built = _ARCHITECTURES.get(image.architecture, image.architecture)
        if built != node.facts.architecture:
            yield Finding.of(
                "consistency.image_architecture", node.name, built=built, architecture=node.facts.architecture
            )


def cpu_capability(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Vector instructions that torch uses, where ranks compute on processors."""
    computing = [node for node in fleet if node.facts and not node.facts.gpus]
    groups = _grouped(computing, _vectors)
    if len(groups) > 1:
        yield Finding.of("consistency.cpu_capability", _names(groups), groups=_listed(groups))
    for name in groups.get("no AVX2", ()):
        yield Finding.of("consistency.no_avx2", name)


def kernel(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Worth knowing where one node alone misbehaves."""
    groups = _grouped(fleet, lambda node: ".".join(node.facts.kernel.split(".")[:2]) if node.facts else "")
    if len(groups) > 1:
        yield Finding.of("consistency.kernel", _names(groups), groups=_listed(groups))


def clock_kept(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A clock that no time service sets drifts by seconds a week."""
    for node in fleet:
        if node.host and node.host.ntp == "no":
            yield Finding.of("clock.not_kept", node.name)


def datasets(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Data under one name with different content: the ranks would train on different things."""
    for folder in sorted({folder for node in fleet for folder in node.manifests}):
        held = {node.name: node.manifests[folder] for node in fleet if folder in node.manifests}
        groups: dict[str, list[str]] = {}
        for name, digest in held.items():
            groups.setdefault(f"manifest {digest[:12]}", []).append(name)
        lacking = [node.name for node in fleet if node.host and folder not in node.manifests]
        if len(groups) > 1:
            yield Finding.of("data.differs", _names(groups), folder=folder, groups=_listed(groups))
        elif lacking:
            yield Finding.of("data.missing", ", ".join(lacking), case="some", folder=folder, holders=tuple(held))


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
