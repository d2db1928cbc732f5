"""Questions of `orch doctor` to one node, stage by stage. Each stage returns fields of `Examined`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from orchestrator.fleet.readiness.check_gpus import GpuCheck, ask_node
from orchestrator.nodes.interface import Node
from orchestrator.nodes.probes import host_probe, inside_probe, network_probe, probe
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.container_limits import limits_of
from orchestrator.specs.errors import DeadlineError, EngineRefusedError, NodeUnreachableError, OrchError
from orchestrator.specs.facts import NodeFacts
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
    """For all nodes together, as they are asked at once."""


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


REACH = Stage(name="reach", ask=reach, deadline_s=22)
ENGINE = Stage(name="engine", ask=engine, deadline_s=15)
HOST = Stage(name="host", ask=host, deadline_s=20)
INSIDE = Stage(name="container", ask=inside, deadline_s=30)
GPU = Stage(name="gpu", ask=gpu, deadline_s=45)
"""Torch with its CUDA libraries takes long to load from a cold disk."""
NETWORK = Stage(name="network", ask=network, deadline_s=20)


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
