"""Checks of differences between nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from orchestrator.checks.images import image_differs
from orchestrator.specs.data import DamagedFile
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.finding import Finding
from orchestrator.specs.node_report import Examined
from orchestrator.specs.run import State

_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Names of architectures: Docker's, and the kernel's."""


def torch(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Images of CPU and GPU nodes with different torch. Within one profile, `image.differs` reports it."""
    if any(image_differs([node.facts for node in fleet if node.facts])):
        return
    yield from _differ(
        "consistency.torch", ((node.name, node.inside.torch.partition("+")[0] if node.inside else "") for node in fleet)
    )


def nccl(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """NCCL speaks only with its own version (NVIDIA/nccl#286)."""
    yield from _differ("consistency.nccl", ((node.name, node.inside.nccl if node.inside else "") for node in fleet))


def architecture(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Processors of different kinds: no one image serves them."""
    yield from _differ(
        "consistency.architecture", ((node.name, node.facts.architecture if node.facts else "") for node in fleet)
    )


def image_architecture(node: Examined) -> Iterator[Finding]:
    """An image that was built for another processor does not start."""
    image = node.facts.image if node.facts else None
    if node.facts is None or image is None or not image.architecture or not node.facts.architecture:
        return
    built = _ARCHITECTURES.get(image.architecture, image.architecture)
    if built != node.facts.architecture:
        yield Finding.of("consistency.image_architecture", node.name, built=built, architecture=node.facts.architecture)


def cpu_capability(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Vector instructions that torch uses, where ranks compute on processors."""
    vectors = [(node.name, _vectors(node)) for node in fleet if node.facts and not node.facts.gpus]
    yield from _differ("consistency.cpu_capability", vectors)
    for name, word in vectors:
        if word == "no AVX2":
            yield Finding.of("consistency.no_avx2", name)


def kernel(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Worth knowing where one node alone misbehaves."""
    yield from _differ(
        "consistency.kernel",
        ((node.name, ".".join(node.facts.kernel.split(".")[:2]) if node.facts else "") for node in fleet),
    )


def damaged_data(node: Examined) -> Iterator[Finding]:
    """Copies of data that are not what was sent; those that a run may read are not replaced now."""
    by_copy = dict[str, list[DamagedFile]]()
    for one in node.data.damaged if node.data else ():
        by_copy.setdefault(one.data, []).append(one)
    is_read = any(one.state is State.RUNNING for one in node.held)
    for data, files in by_copy.items():
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        what, case = f"{files[0].text}{more}", "in_use" if is_read else "idle"
        yield Finding.of("data.damaged", node.name, case=case, fixable=not is_read, data=data, what=what)


def datasets(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Data under one name with different content: the ranks would train on different data."""
    for folder in sorted({folder for node in fleet for folder in node.manifests}):
        held = {node.name: node.manifests[folder] for node in fleet if folder in node.manifests}
        groups = grouped((name, f"manifest {digest[:12]}") for name, digest in held.items())
        missing = [node.name for node in fleet if node.host and folder not in node.manifests]
        if len(groups) > 1:
            yield Finding.of("data.differs", _names(groups), folder=folder, groups=listed(groups))
        elif missing:
            yield Finding.of("data.missing", ", ".join(missing), case="some", folder=folder, holders=tuple(held))


def data_missing(fleet: Sequence[NodeFacts], make: str) -> Iterator[Finding]:
    """Report nodes without data for a run that brings none. `make`: the command that prepares it."""
    without = [facts.name for facts in fleet if facts.has_data is False]
    if without:
        yield Finding.of("data.missing", ", ".join(without), case="everywhere", make=make)


def _vectors(node: Examined) -> str:
    if node.inside is None or not node.inside.cpu_capability:
        return ""
    word = {"DEFAULT": "no AVX2"}.get(node.inside.cpu_capability, node.inside.cpu_capability)
    return f"{word} and AMX" if node.host and "amx_tile" in node.host.cpu_flags else word


def grouped(words: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Names of nodes by word, each once, from pairs of a node's name and its word; empty words do not count."""
    groups: dict[str, list[str]] = {}
    for name, word in dict.fromkeys(words):
        if word:
            groups.setdefault(word, []).append(name)
    return groups


def _differ(id: str, words: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """The finding of this id if nodes have different words."""
    groups = grouped(words)
    if len(groups) > 1:
        yield Finding.of(id, _names(groups), groups=listed(groups))


def _names(groups: dict[str, list[str]]) -> str:
    return ", ".join(name for names in groups.values() for name in names)


def listed(groups: dict[str, list[str]]) -> str:
    return "; ".join(f"{', '.join(names)}: {word}" for word, names in groups.items())


NODE_CHECKS = (image_architecture, damaged_data)
CHECKS = (torch, nccl, architecture, cpu_capability, kernel, datasets)
