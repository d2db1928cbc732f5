"""Faults of the GPUs of a fleet: on each node, between nodes, in the kernel's log and in running containers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from orchestrator.checks.gpu_container import CONTAINER_CHECKS
from orchestrator.checks.gpu_host import HOST_CHECKS
from orchestrator.specs.facts import GpuFacts
from orchestrator.specs.finding import Finding, heaviest_first
from orchestrator.specs.gpus import NodeGpus
from orchestrator.specs.node_report import Examined


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


LOWERED = 0.9
"""Share of its own power limit below which a card is noticeably slower."""

_XID = re.compile(r"NVRM: Xid \((?P<device>[^)]*)\): (?P<code>\d+)")
# NVIDIA, "Xid Errors" (docs.nvidia.com/deploy/xid-errors): the ones that mean the card or its driver, not the program
_MEANING = {
    31: "a program touched memory that was not its own",
    43: "the driver ended a program's work after a fault of that program",
    48: "a memory error that could not be corrected",
    62: "the card's own controller stopped",
    63: "a row of its memory was retired",
    64: "a row of its memory could not be retired",
    74: "an error on NVLink",
    79: "the card fell off the bus",
    94: "a contained memory error",
    95: "a memory error that was not contained",
    119: "the card's own processor (GSP) gives no answer",
}
_GRAVE = {48, 62, 64, 79, 95, 119}


def xid(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Faults that the driver wrote into the kernel's log since boot: one finding for each kind."""
    for node in fleet:
        newest: dict[int, str] = {}
        for line in node.host.xid if node.host else ():
            if match := _XID.search(line):
                newest[int(match["code"])] = line[match.start() :]
        for code, line in newest.items():
            grave = code in _GRAVE
            yield Finding.of(
                "gpu.xid",
                node.name,
                case="card" if grave else "program",
                code=code,
                meaning=_MEANING.get(code, "a fault of a GPU or of a program on it"),
                line=line[:160],
            )


def lost_in_run(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A running container that began with GPUs and lost them."""
    for node in fleet:
        for run_id in node.blind_runs:
            yield Finding.of("gpu.lost_in_run", node.name, run_id=run_id)


def persistence(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A driver that unloads between programs: seconds at each start, and a power limit that is forgotten."""
    for node in fleet:
        cards = [gpu for gpu in _used(node) if gpu.persistence is False]
        # a desktop keeps the driver loaded by itself
        if cards and not (node.host and node.host.desktop):
            yield Finding.of("gpu.persistence_off", node.name, cards=_cards(cards))


def power_lowered(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A card whose limit is below its own: a laptop's power profile, or somebody's doing."""
    for node in fleet:
        for gpu in _used(node):
            if gpu.power_limit_w and gpu.power_default_w and gpu.power_limit_w < LOWERED * gpu.power_default_w:
                yield Finding.of(
                    "gpu.power_lowered",
                    node.name,
                    gpu=gpu.index,
                    power_limit_w=gpu.power_limit_w,
                    power_default_w=gpu.power_default_w,
                )


def _used(node: Examined) -> tuple[GpuFacts, ...]:
    """Cards that a run would use."""
    return node.gpus.host.gpus if node.gpus and node.gpus.host and node.spec.device != "cpu" else ()


def _cards(gpus: Sequence[GpuFacts]) -> str:
    return ", ".join(f"GPU {gpu.index}" for gpu in gpus)


CHECKS = (xid, lost_in_run, persistence, power_lowered)
