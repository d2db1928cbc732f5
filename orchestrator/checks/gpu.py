"""Faults of the GPUs of a fleet: on each node, between nodes, in the kernel's log and in running containers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from orchestrator.checks.consistency import grouped, listed
from orchestrator.checks.gpu_container import CONTAINER_CHECKS
from orchestrator.checks.gpu_host import HOST_CHECKS
from orchestrator.specs.facts import GpuFacts
from orchestrator.specs.finding import Finding, heaviest_first
from orchestrator.specs.gpus import NodeGpus
from orchestrator.specs.node_report import Examined


def gpu_findings(nodes: Sequence[NodeGpus]) -> tuple[Finding, ...]:
    """All findings, the heaviest first, otherwise in order of the nodes."""
    found = [finding for node in nodes for check in (*HOST_CHECKS, *CONTAINER_CHECKS) for finding in check(node)]
    found += [*cards_differ(nodes), *drivers_differ(nodes)]
    return heaviest_first(found)


def cards_differ(nodes: Sequence[NodeGpus]) -> Iterator[Finding]:
    """Unequal cards train at the speed, and with the batch, of the smallest."""
    gpus = [gpu for node in nodes if node.host for gpu in node.host.gpus]
    complete = all(gpu.compute_capability for gpu in gpus)  # drivers before 510 do not tell it
    groups = grouped((name, _card(gpu, capability=complete)) for name, gpu in _wanted(nodes))
    if len(groups) > 1:
        yield Finding.of("gpu.cards_differ", "", groups=listed(groups))


def drivers_differ(nodes: Sequence[NodeGpus]) -> Iterator[Finding]:
    """Different drivers work, as the image has its own CUDA; worth knowing if one node alone fails."""
    groups = grouped((name, f"driver {gpu.driver_version}") for name, gpu in _wanted(nodes) if gpu.driver_version)
    if len(groups) > 1:
        yield Finding.of("gpu.drivers_differ", "", groups=listed(groups))


def _card(gpu: GpuFacts, *, capability: bool) -> str:
    words = [gpu.name]
    if capability and gpu.compute_capability:
        words.append(f"{gpu.compute_capability[0]}.{gpu.compute_capability[1]}")
    if gpu.memory_total_mib is not None:
        words.append(f"{gpu.memory_total_mib} MiB")
    return ", ".join(words) if gpu.name else ""


def _wanted(nodes: Sequence[NodeGpus]) -> Iterator[tuple[str, GpuFacts]]:
    """GPUs that a run may use, each with the name of its node."""
    return ((node.node, gpu) for node in nodes if node.host and node.device != "cpu" for gpu in node.host.gpus)


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


def xid(node: Examined) -> Iterator[Finding]:
    """Faults that the driver wrote into the kernel's log since boot: one finding for each kind."""
    newest: dict[int, str] = {}
    for line in node.host.xid if node.host else ():
        if match := _XID.search(line):
            newest[int(match["code"])] = line[match.start() :]
    for code, line in newest.items():
        case = "card" if code in _GRAVE else "program"
        meaning = _MEANING.get(code, "a fault of a GPU or of a program on it")
        yield Finding.of("gpu.xid", node.name, case=case, code=code, meaning=meaning, line=line[:160])


def lost_in_run(node: Examined) -> Iterator[Finding]:
    """A running container that began with GPUs and lost them."""
    for run_id in node.blind_runs:
        yield Finding.of("gpu.lost_in_run", node.name, run_id=run_id)


def persistence(node: Examined) -> Iterator[Finding]:
    """A driver that unloads between programs takes seconds at each start, and forgets a power limit."""
    cards = [gpu for gpu in _used(node) if gpu.persistence is False]
    # a desktop keeps the driver loaded by itself
    if cards and not (node.host and node.host.desktop):
        listing = ", ".join(f"GPU {gpu.index}" for gpu in cards)
        yield Finding.of("gpu.persistence_off", node.name, cards=listing)


def power_lowered(node: Examined) -> Iterator[Finding]:
    """A power limit below the card's default, by a laptop's power profile or by hand."""
    for gpu in _used(node):
        limit, default = gpu.power_limit_w, gpu.power_default_w
        if limit and default and limit < LOWERED * default:
            yield Finding.of(
                "gpu.power_lowered", node.name, gpu=gpu.index, power_limit_w=limit, power_default_w=default
            )


def _used(node: Examined) -> tuple[GpuFacts, ...]:
    """Cards that a run would use."""
    return node.gpus.host.gpus if node.gpus and node.gpus.host and node.spec.device != "cpu" else ()


NODE_CHECKS = (xid, lost_in_run, persistence, power_lowered)
