"""All checks of `orch doctor` by area: examined nodes in, findings out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from orchestrator.checks import (
    clock,
    consistency,
    engine,
    firewall,
    gpu,
    images,
    network,
    orphans,
    power,
    reach,
    resources,
)
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.finding import Finding, Severity, heaviest_first
from orchestrator.specs.gpus import NodeGpus, SmiAnswer
from orchestrator.specs.node_report import Examined

Check = Callable[[Sequence[Examined]], Iterator[Finding]]
NodeCheck = Callable[[Examined], Iterator[Finding]]
QuickCheck = Callable[[Sequence[NodeFacts]], Iterator[Finding]]


def _quick(fleet: Sequence[Examined], check: QuickCheck) -> Iterator[Finding]:
    return check([node.facts for node in fleet if node.facts and not node.facts.assumed])


def _each_node(fleet: Sequence[Examined], check: NodeCheck) -> Iterator[Finding]:
    return (finding for node in fleet for finding in check(node))


LAUNCH_CHECKS: Mapping[str, tuple[QuickCheck, ...]] = {
    "reach": reach.LAUNCH_CHECKS,
    "engine": engine.LAUNCH_CHECKS,
    "network": network.LAUNCH_CHECKS,
    "consistency": (*images.LAUNCH_CHECKS, *clock.LAUNCH_CHECKS),
    "resources": resources.LAUNCH_CHECKS,
}
"""Checks of a launch, by area: for faults that forbid it or should be known."""


def _checks(area: str, of_one: Sequence[NodeCheck] = (), of_all: Sequence[Check] = ()) -> tuple[Check, ...]:
    """The checks of a launch in this area, of a single node, and of the fleet."""
    quick = (partial(_quick, check=check) for check in LAUNCH_CHECKS.get(area, ()))
    return (*quick, *(partial(_each_node, check=check) for check in of_one), *of_all)


def _gpus(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Findings of the GPUs, of nodes without an answer from the fault in the facts of a launch."""
    known = []
    for node in fleet:
        facts = node.facts
        if node.gpus:
            known.append(node.gpus)
        elif facts and facts.gpu_fault:
            answer = SmiAnswer(gpus=facts.gpus, fault=facts.gpu_fault, detail=facts.gpu_detail)
            known.append(NodeGpus(node=node.name, device=node.spec.device, host=answer))
    yield from gpu.gpu_findings(known)


ENGINE = "engine"
AREAS: Mapping[str, tuple[Check, ...]] = {
    "reach": _checks("reach", reach.NODE_CHECKS, reach.CHECKS),
    "engine": _checks("engine", engine.NODE_CHECKS, engine.CHECKS),
    "gpu": (_gpus, *_checks("gpu", gpu.NODE_CHECKS)),
    "network": _checks("network", network.NODE_CHECKS, (*network.CHECKS, *firewall.CHECKS)),
    "consistency": _checks("consistency", (*consistency.NODE_CHECKS, *clock.NODE_CHECKS), consistency.CHECKS),
    "resources": _checks(
        "resources", (*resources.NODE_CHECKS, *orphans.NODE_CHECKS), (*resources.CHECKS, *orphans.CHECKS)
    ),
    "power": _checks("power", power.NODE_CHECKS),
}
NEEDED_PARTS: Mapping[str, frozenset[str]] = {
    "reach": frozenset(),
    "engine": frozenset({"host", "container"}),
    "gpu": frozenset({"host", "gpu"}),
    "network": frozenset({"ways to its peers", "network"}),
    "consistency": frozenset({ENGINE, "host", "container", "data"}),
    "resources": frozenset({ENGINE, "host", "container"}),
    "power": frozenset({"host"}),
}
"""Parts of a node without which the checks of an area say nothing, by area."""


def diagnose(fleet: Sequence[Examined], only: Sequence[str] = ()) -> Mapping[str, tuple[Finding, ...]]:
    """Findings by area, errors first in each. `only` names areas, ids, or what ids begin with: `gpu`, `clock.skew`.

    Parts that could not be examined are reported whatever `only` is: without them, no finding would read as no fault.
    """
    found = {
        area: tuple(
            finding
            for check in checks
            for finding in check(fleet)
            if not only or check in reach.UNSEEN or is_wanted(area, finding.id, only)
        )
        for area, checks in AREAS.items()
    }
    return {area: heaviest_first(findings) for area, findings in found.items() if findings or not only or area in only}


def not_checked(fleet: Sequence[Examined], areas: Collection[str]) -> Mapping[str, Mapping[str, str]]:
    """Reason why the checks of an area say nothing, or not all, about a node, by area and node.

    `reach` is never among them: that a node is out of reach is what it finds.
    """
    checked = [area for area in AREAS if area in areas and area != "reach"]
    gaps = {area: {node.name: why for node in fleet if (why := _gap(node, area))} for area in checked}
    return {area: nodes for area, nodes in gaps.items() if nodes}


def _gap(node: Examined, area: str) -> str:
    if node.out_of_reach:
        return "out of reach"
    silent = {**node.silent, **({ENGINE: node.engine_error} if node.engine_error else {})}
    missing = [part for part in silent if part in NEEDED_PARTS[area]]
    return f"no answer about its {', '.join(missing)}" if missing else ""


def is_wanted(area: str, id: str, only: Sequence[str]) -> bool:
    """Return whether one of these words selects this finding."""
    return any(word in (area, id) or id.startswith(f"{word}.") for word in only)


def areas_of(only: Sequence[str]) -> frozenset[str]:
    """Areas to examine for these words; all of them if one is an id, which does not name its area."""
    return frozenset(only) if only and all(word in AREAS for word in only) else frozenset(AREAS)


def quick(fleet: Sequence[Examined]) -> tuple[Finding, ...]:
    """Findings for a launch, errors first, without notes."""
    found = (finding for findings in diagnose(fleet).values() for finding in findings)
    return heaviest_first(finding for finding in found if finding.severity is not Severity.INFO)
