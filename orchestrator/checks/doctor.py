"""All that `orch doctor` looks at, by area: what it saw of the fleet in, findings out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from orchestrator.checks import (
    consistency,
    engine,
    firewall,
    gpu,
    network,
    orphans,
    power,
    preflight,
    reach,
    resources,
)
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.finding import Finding, Severity, heaviest_first
from orchestrator.specs.gpus import NodeGpus, SmiAnswer
from orchestrator.specs.node_report import Examined

Check = Callable[[Sequence[Examined]], Iterator[Finding]]
QuickCheck = Callable[[Sequence[NodeFacts]], Iterator[Finding]]


def _quick(area: str) -> Iterator[Check]:
    """The checks that need no more than a launch's facts."""
    for check in preflight.AREAS[area]:
        yield partial(_on_facts, check)


def _on_facts(check: QuickCheck, fleet: Sequence[Examined]) -> Iterator[Finding]:
    return check([node.facts for node in fleet if node.facts and not node.facts.assumed])


def _gpus(fleet: Sequence[Examined]) -> Iterator[Finding]:
    yield from gpu.gpu_findings([gpus for node in fleet if (gpus := node.gpus or _as_told(node))])


def _as_told(node: Examined) -> NodeGpus | None:
    """State of a node's GPUs according to the facts of a launch: their fault; None where they have none."""
    facts = node.facts
    if facts is None or facts.gpu_fault is None:
        return None
    answer = SmiAnswer(gpus=facts.gpus, fault=facts.gpu_fault, detail=facts.gpu_detail)
    return NodeGpus(node=node.name, device=node.spec.device, host=answer)


ENGINE = "engine"
AREAS: Mapping[str, tuple[Check, ...]] = {
    "reach": (*reach.CHECKS, *_quick("reach")),
    "engine": (*_quick("engine"), *engine.CHECKS),
    "gpu": (_gpus, *gpu.CHECKS),
    "network": (*_quick("network"), *network.CHECKS, *firewall.CHECKS),
    "consistency": (*_quick("consistency"), *consistency.CHECKS),
    "resources": (*_quick("resources"), *resources.CHECKS, *orphans.CHECKS),
    "power": power.CHECKS,
}


NEEDED_PARTS: Mapping[str, frozenset[str]] = {
    "reach": frozenset(),
    "engine": frozenset({"host", "container"}),
    "gpu": frozenset({"host", "gpu"}),
    "network": frozenset({"ways to its peers", "network"}),
    "consistency": frozenset({ENGINE, "host", "container"}),
    "resources": frozenset({ENGINE, "host", "container"}),
    "power": frozenset({"host"}),
}
"""Parts of a node without which the checks of an area say nothing, by area."""


def diagnose(fleet: Sequence[Examined], only: Sequence[str] = ()) -> Mapping[str, tuple[Finding, ...]]:
    """Findings by area, errors first in each. `only` names areas, ids, or what ids begin with: `gpu`, `clock.skew`.

    What could not be looked at is found whatever `only` says: without it, no finding would read as no fault.
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
    gaps = {area: {node.name: why for node in fleet if (why := _gap(node, area))} for area in AREAS if area in areas}
    return {area: nodes for area, nodes in gaps.items() if nodes}


def _gap(node: Examined, area: str) -> str:
    """Why this area is not known, or not all of it, on this node; empty where it is."""
    if area == "reach":
        return ""
    if node.out_of_reach:
        return "out of reach"
    silent = {**node.silent, **({ENGINE: node.engine_error} if node.engine_error else {})}
    missing = [part for part in silent if part in NEEDED_PARTS[area]]
    return f"no answer about its {', '.join(missing)}" if missing else ""


def is_wanted(area: str, id: str, only: Sequence[str]) -> bool:
    """Whether one of these words means this finding."""
    return any(word in (area, id) or id.startswith(f"{word}.") for word in only)


def areas_of(only: Sequence[str]) -> frozenset[str]:
    """Areas that must be looked at for these words; all of them where one is an id, which does not tell its area."""
    return frozenset(only) if only and all(word in AREAS for word in only) else frozenset(AREAS)


def quick(fleet: Sequence[Examined]) -> tuple[Finding, ...]:
    """Findings from these facts alone, errors first: for a launch, which asks no more and has no use for notes."""
    found = [finding for findings in diagnose(fleet).values() for finding in findings]
    return heaviest_first(finding for finding in found if finding.severity is not Severity.INFO)
