"""What is wrong with the GPUs of a fleet: every check on every node, then what differs between nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from orchestrator.checks.gpu_container import CONTAINER_CHECKS
from orchestrator.checks.gpu_host import HOST_CHECKS
from orchestrator.specs.facts import GpuFacts
from orchestrator.specs.finding import Finding, heaviest_first
from orchestrator.specs.gpus import NodeGpus


def gpu_findings(nodes: Sequence[NodeGpus]) -> tuple[Finding, ...]:
    """All findings, the heaviest first, else in order of the nodes."""
    found = [finding for node in nodes for check in (*HOST_CHECKS, *CONTAINER_CHECKS) for finding in check(node)]
    found += [*cards_differ(nodes), *drivers_differ(nodes)]
    return heaviest_first(found)


def cards_differ(nodes: Sequence[NodeGpus]) -> Iterator[Finding]:
    """Unequal cards train together at the pace, and with the batch, of the least of them."""
    gpus = [gpu for node in nodes if node.host for gpu in node.host.gpus]
    complete = all(gpu.compute_capability for gpu in gpus)  # drivers before 510 do not tell it
    groups = _grouped(nodes, lambda gpu: _card(gpu, capability=complete))
    if len(groups) > 1:
        yield Finding.of("gpu.cards_differ", "", groups=_listed(groups))


def drivers_differ(nodes: Sequence[NodeGpus]) -> Iterator[Finding]:
    """Works, as the image brings its own CUDA; worth knowing where one node alone misbehaves."""
    groups = _grouped(nodes, lambda gpu: f"driver {gpu.driver_version}" if gpu.driver_version else "")
    if len(groups) > 1:
        yield Finding.of("gpu.drivers_differ", "", groups=_listed(groups))


def _card(gpu: GpuFacts, *, capability: bool) -> str:
    words = [gpu.name]
    if capability and gpu.compute_capability:
        words.append(f"{gpu.compute_capability[0]}.{gpu.compute_capability[1]}")
    if gpu.memory_total_mib is not None:
        words.append(f"{gpu.memory_total_mib} MiB")
    return ", ".join(words) if gpu.name else ""


def _grouped(nodes: Sequence[NodeGpus], word: Callable[[GpuFacts], str]) -> dict[str, list[str]]:
    """Names of nodes by what this word says of their GPUs; nodes whose GPU is not to be used do not count."""
    groups: dict[str, list[str]] = {}
    for node in nodes:
        for gpu in node.host.gpus if node.host and node.device != "cpu" else ():
            names = groups.setdefault(word(gpu), [])
            if node.node not in names:
                names.append(node.node)
    groups.pop("", None)
    return groups


def _listed(groups: dict[str, list[str]]) -> str:
    return "; ".join(f"{', '.join(names)}: {word}" for word, names in groups.items())
