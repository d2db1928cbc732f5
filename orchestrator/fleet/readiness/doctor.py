"""`orch doctor`: look at every node at once, in stages with a deadline each, so that no node hides another.

A stage asks one node, and returns fields of `Examined`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from orchestrator.fleet.fan_out import begin, fan_out
from orchestrator.fleet.readiness.check_gpus import GpuCheck, ask_node
from orchestrator.fleet.readiness.pair_probe import probe_pairs
from orchestrator.nodes.interface import Node
from orchestrator.nodes.probes import data_probe, host_probe, inside_probe, network_probe, probe
from orchestrator.nodes.sudo import root_prefix
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.container_limits import limits_of
from orchestrator.specs.errors import (
    CommandFailedError,
    DeadlineError,
    EngineError,
    EngineRefusedError,
    NodeUnreachableError,
    OrchError,
)
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.finding import Finding, Fix
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.labels import LABEL_NODE, LABEL_PROJECT, LABEL_RUN
from orchestrator.specs.node_report import Examined, OutOfReach
from orchestrator.specs.reach import Reach
from orchestrator.specs.request import LaunchRequest
from orchestrator.specs.run import State

Parts = Mapping[str, Any]
"""Fields of `Examined` by name."""

BLIND = ("nvidia-smi", "-L")


@dataclass(frozen=True, kw_only=True)
class ProbeTarget:
    """A node, and what a stage needs to ask it."""

    spec: NodeSpec
    node: Node
    request: LaunchRequest
    peers: Sequence[str]
    """Addresses of all nodes."""
    suffix: str
    """Makes the names of probe containers unique."""
    seen: Examined
    """Answers to earlier stages."""

    @property
    def name(self) -> str:
        return self.spec.name


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One thing that is asked of all nodes at once."""

    name: str
    ask: Callable[[ProbeTarget], Parts]
    deadline_s: float
    """Seconds for all nodes together, as they are asked at once."""


def reach(target: ProbeTarget) -> Parts:
    """Connect, time a round trip, and ask for the facts of a launch."""
    own = target.node.address
    target.node.open()
    took = []
    for _ in range(3):
        began = time.monotonic()
        target.node.run(["true"], timeout_s=10)
        took.append(time.monotonic() - began)
    facts = probe.ask(
        target.node,
        workspace=target.spec.workspace,
        project=target.request.project,
        peers=[peer for peer in target.peers if peer != own],
    )
    return {"facts": facts, "round_trip_ms": min(took) * 1000}


def engine(target: ProbeTarget) -> Parts:
    """Its engine, its image, and the containers of runs that it holds."""
    facts = _facts(target)
    described = target.node.engine.facts()
    # as for a launch, except if the inventory promises a GPU that is missing: a finding reports that
    cuda = target.spec.device == "cuda" or (target.spec.device == "auto" and facts.gpus)
    image = target.node.engine.image(target.request.image_tag("cuda" if cuda else "cpu"))
    held = tuple(target.node.engine.containers({LABEL_RUN: ""}))
    blind = []
    for container in held if facts.gpus else ():
        if container.state is State.RUNNING:
            with suppress(OrchError):  # it ended just now
                if target.node.engine.execute(container.id, BLIND).exit_code not in (0, 126, 127):
                    blind.append(container.labels[LABEL_RUN])
    facts = replace(facts, engine=described, image=image, reference=target.request.image)
    return {"facts": facts, "held": held, "blind_runs": tuple(blind)}


def host(target: ProbeTarget) -> Parts:
    """Ask its host for more than the facts of a launch."""
    facts, manifests = host_probe.ask(
        target.node,
        workspace=target.spec.workspace,
        project=target.request.project,
        port=target.request.master_port,
    )
    return {"host": facts, "manifests": manifests}


def inside(target: ProbeTarget) -> Parts:
    """Ask a container of the training image what it sees, under the limits of a run."""
    facts = _facts(target)
    if facts.image is None or target.spec.engine != "docker":
        return {}
    limits = limits_of(target.spec, facts)
    container = ContainerSpec(
        name=f"{target.request.project}-doctor-{target.name}-{target.suffix}",  # two names may be one machine
        image=facts.image.id,
        command=inside_probe.PROBE,
        environment={},
        labels={LABEL_PROJECT: target.request.project, LABEL_NODE: target.name},
        working_dir="/",
        user=f"{facts.uid}:{facts.gid}",
        network="none",
        **asdict(limits),
    )
    answer = target.node.engine.run_once(container, timeout_s=INSIDE.deadline_s)
    return {"inside": inside_probe.parse(answer)}


def gpu(target: ProbeTarget) -> Parts:
    """Its GPUs, as `orch check-gpus` asks. The container half only where its engine and image are there."""
    facts = _facts(target)
    project, image = target.request.project, target.request.image_tag("cuda")
    check = GpuCheck(project=project, image=image, suffix=target.suffix, container=facts.image is not None)
    return {"gpus": ask_node(target.spec, target.node, check)}


def network(target: ProbeTarget) -> Parts:
    """Its interfaces, routes and packet filter, after the pairs were probed: the kernel then knows its neighbours."""
    own = _facts(target).address
    peers = [peer for peer in target.peers if peer != own]
    return {"network": network_probe.ask(target.node, project=target.request.project, peers=peers)}


def data(target: ProbeTarget) -> Parts:
    """Compare its data with what was sent."""
    return {"data": data_probe.ask(target.node, f"{target.spec.workspace}/{target.request.project}")}


REACH = Stage(name="reach", ask=reach, deadline_s=22)
ENGINE = Stage(name="engine", ask=engine, deadline_s=15)
HOST = Stage(name="host", ask=host, deadline_s=20)
INSIDE = Stage(name="container", ask=inside, deadline_s=30)
GPU = Stage(name="gpu", ask=gpu, deadline_s=45)
"""Torch with its CUDA libraries takes long to load from a cold disk."""
NETWORK = Stage(name="network", ask=network, deadline_s=20)
DATA = Stage(name="data", ask=data, deadline_s=data_probe.DEEP_S)
"""Reads all data: on request alone."""


def failed(stage: Stage, error: OrchError) -> Parts:
    """Fields of `Examined` for a stage without an answer."""
    if stage.name == REACH.name:
        why = Reach.NO_ANSWER if isinstance(error, DeadlineError) else Reach.OTHER
        why = error.reach if isinstance(error, NodeUnreachableError) else why
        return {"out_of_reach": OutOfReach(why=why, message=error.message, hint=error.hint)}
    if stage.name == ENGINE.name:
        return {"engine_error": error.message, "engine_runs": isinstance(error, (DeadlineError, EngineRefusedError))}
    return {"silent": {stage.name: error.message}}


def _facts(target: ProbeTarget) -> NodeFacts:
    """Those of the first stage, which comes before all others."""
    assert target.seen.facts is not None, target.name  # noqa: S101  # the order of stages, for the type checker
    return target.seen.facts


OnStep = Callable[[str, str, str], None]
"""Callback with node, stage and state: `asked`, `done` or `failed`."""

WAVES: tuple[tuple[Stage, ...], ...] = ((REACH,), (ENGINE, HOST), (INSIDE, GPU), (NETWORK,))
"""Stages of one wave run at the same time, and need the answers of the waves before. The pairs of nodes are probed
before the last wave, while nothing else runs: their deadlines are short."""
DEEP = (*WAVES, (DATA,))
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


def needs_sudo(finding: Finding, fix: Fix, seen: Mapping[str, Examined]) -> bool:
    """Return whether the fix is a command that only root may run, and the user of the node is not root."""
    facts = seen[finding.node].facts
    return fix.on_node[: len(SUDO)] == SUDO and not (facts and facts.uid == 0)


def asks_for_password(node: Node) -> bool:
    """Return whether sudo asks for a password there; one that does not answer is not asked."""
    try:
        return node.run([*SUDO, "true"], timeout_s=FIX_TIMEOUT_S).exit_code != 0
    except OrchError:
        return False


def apply_fix(finding: Finding, fix: Fix, nodes: Mapping[str, Node], seen: Mapping[str, Examined]) -> None:
    """Run the finding's command on its node, without sudo if the user is root, with the password where the node has
    it. CommandFailedError: it fails, such as when sudo asks for a password; its hint is the line to paste."""
    argv, node = fix.on_node, nodes[finding.node]
    if needs_sudo(finding, fix, seen):
        argv = (*(root_prefix(node) or SUDO), *argv[len(SUDO) :])
    elif argv[: len(SUDO)] == SUDO:
        argv = argv[len(SUDO) :]
    answer = node.run(argv, timeout_s=FIX_TIMEOUT_S)
    answer.check(f"to {fix.what}", hint=finding.fix)
