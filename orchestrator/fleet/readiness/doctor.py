"""`orch doctor`: look at every node at once, in stages with a deadline each, so that no node hides another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from orchestrator.fleet.fan_out import begin, fan_out
from orchestrator.fleet.readiness.pair_probe import probe_pairs
from orchestrator.fleet.readiness.stages import (
    ENGINE,
    GPU,
    HOST,
    INSIDE,
    NETWORK,
    REACH,
    Parts,
    ProbeTarget,
    Stage,
    failed,
)
from orchestrator.nodes.interface import Node
from orchestrator.specs.errors import CommandFailedError, EngineError, EngineRefusedError
from orchestrator.specs.finding import Finding, Fix
from orchestrator.specs.node_report import Examined
from orchestrator.specs.request import LaunchRequest

OnStep = Callable[[str, str, str], None]
"""Callback with node, stage and state: `asked`, `done` or `failed`."""

WAVES: tuple[tuple[Stage, ...], ...] = ((REACH,), (ENGINE, HOST), (INSIDE, GPU), (NETWORK,))
"""Stages of one wave run at the same time, and need the answers of the waves before. The pairs of nodes are probed
before the last wave, while nothing else runs: their deadlines are short."""
WAYS = "ways"
NEEDED: Mapping[str, frozenset[str]] = {
    "reach": frozenset({"reach", "engine"}),
    "engine": frozenset({"reach", "engine", "host", "container"}),
    "gpu": frozenset({"reach", "engine", "host", "gpu"}),
    "network": frozenset({"reach", "engine", WAYS, "network"}),
    "consistency": frozenset({"reach", "engine", "host", "container"}),
    "resources": frozenset({"reach", "engine", "host", "container"}),
    "power": frozenset({"reach", "host"}),
}
"""Stages that each area of checks depends on."""


def stages_of(areas: Iterable[str]) -> frozenset[str]:
    """All that these areas depend on."""
    return frozenset().union(*(NEEDED[area] for area in areas))


@dataclass(frozen=True, kw_only=True)
class Examination:
    """The fleet as it was seen, and how long each stage took."""

    nodes: tuple[Examined, ...]
    seconds: Mapping[str, float]


def examine(
    nodes: Sequence[Node],
    request: LaunchRequest,
    *,
    suffix: str,
    stages: frozenset[str] = stages_of(NEEDED),
    on_step: OnStep = lambda _node, _stage, _state: None,
    waves: Sequence[Sequence[Stage]] = WAVES,
) -> Examination:
    """Look at all nodes of the request (`nodes` are those of its specs, in their order), as far as these stages do.

    Raises no error of a node: a missing answer is kept with its reason. `suffix` makes the names of probe containers
    unique, so that two people can run it at the same time.
    """
    addresses = [one.result for one in fan_out(nodes, lambda node: node.address, timeout_s=REACH.deadline_s)]
    peers = [address for address in addresses if address]
    targets = [
        ProbeTarget(spec=spec, node=node, request=request, peers=peers, suffix=suffix, seen=Examined(spec=spec))
        for spec, node in zip(request.nodes, nodes, strict=True)
    ]
    seconds: dict[str, float] = {}
    for wave in waves:
        if NETWORK in wave and WAYS in stages:
            targets, seconds[WAYS] = _try_ways(targets, on_step)
        able = [target for target in targets if target.seen.out_of_reach is None]
        asked = [stage for stage in wave if stage.name in stages]
        running = [begin(partial(_carry_out, stage, able, on_step)) for stage in asked]
        for stage, future in zip(asked, running, strict=True):
            parts, seconds[stage.name] = future.result()
            targets = [replace(one, seen=_joined(one.seen, parts.get(one.name, {}))) for one in targets]
    return Examination(nodes=tuple(target.seen for target in targets), seconds=seconds)


def _carry_out(stage: Stage, targets: Sequence[ProbeTarget], on_step: OnStep) -> tuple[dict[str, Parts], float]:
    """Run this stage on these nodes at once; the answers by node, and the duration in seconds."""

    def ask(target: ProbeTarget) -> Parts:
        on_step(target.name, stage.name, "asked")
        try:
            answer = _ask_twice(stage, target)
        except Exception:
            on_step(target.name, stage.name, "failed")
            raise
        on_step(target.name, stage.name, "done")
        return answer

    began = time.monotonic()
    outcomes = fan_out(targets, ask, timeout_s=stage.deadline_s)
    parts = {one.item.name: failed(stage, one.error) if one.error else one.value() for one in outcomes}
    return parts, time.monotonic() - began


def _ask_twice(stage: Stage, target: ProbeTarget) -> Parts:
    """Ask again where the first answer was lost: a stage only reads, and a busy machine loses single answers."""
    try:
        return stage.ask(target)
    except EngineRefusedError:
        raise
    except (EngineError, CommandFailedError):
        return stage.ask(target)


def _try_ways(targets: Sequence[ProbeTarget], on_step: OnStep) -> tuple[list[ProbeTarget], float]:
    """Every node dials every other. A node that did not answer before is not dialled, and not reported as cut off."""
    able = [target for target in targets if target.seen.out_of_reach is None]
    images = {one.name: one.seen.facts.image.id for one in able if one.seen.facts and one.seen.facts.image}
    if len(able) < 2:
        return list(targets), 0.0
    began, request = time.monotonic(), able[0].request
    for target in able:
        on_step(target.name, WAYS, "asked")
    specs, nodes = [target.spec for target in able], [target.node for target in able]
    report = probe_pairs(specs, nodes, images, request.master_port, project=request.project)
    for target in able:
        on_step(target.name, WAYS, "failed" if target.name in report.silent else "done")
    # without engine or image the host's Python is used; a node that lacks that too has a finding already
    silent = {name: why for name, why in report.silent.items() if name in images}
    parts: dict[str, Parts] = {
        name: {"paths": paths, "silent": {"ways to its peers": silent[name]} if name in silent else {}}
        for name, paths in report.paths.items()
    }
    probed = [replace(one, seen=_joined(one.seen, parts.get(one.name, {}))) for one in targets]
    return probed, time.monotonic() - began


def _joined(seen: Examined, parts: Parts) -> Examined:
    """Merge these parts; the reasons of missing answers are added to the earlier ones."""
    silent = {**seen.silent, **parts.get("silent", {})}
    return replace(seen, **{**parts, "silent": silent})


SUDO = ("sudo", "-n")
FIX_TIMEOUT_S = 60.0


def fixable(findings: Sequence[Finding]) -> tuple[tuple[Finding, Fix], ...]:
    """Findings with an automatic fix, each with that fix; a fix that several findings share is listed once."""
    by_deed: dict[tuple[str, ...], tuple[Finding, Fix]] = {}
    for finding in findings:
        if fix := finding.auto_fix:
            by_deed.setdefault(fix.orch or (finding.node, *fix.on_node), (finding, fix))
    return tuple(by_deed.values())


def apply_fix(finding: Finding, fix: Fix, nodes: Mapping[str, Node], seen: Mapping[str, Examined]) -> None:
    """Run the finding's command on its node, without sudo if the user is root. CommandFailedError: it fails, such as
    when sudo asks for a password; its hint is the line to paste."""
    argv, facts = fix.on_node, seen[finding.node].facts
    if facts and facts.uid == 0 and argv[: len(SUDO)] == SUDO:
        argv = argv[len(SUDO) :]
    answer = nodes[finding.node].run(argv, timeout_s=FIX_TIMEOUT_S)
    answer.check(f"to {fix.what}", hint=finding.fix)
