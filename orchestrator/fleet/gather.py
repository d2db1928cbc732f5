"""Facts of the machines that a plan needs, asked once and in parallel."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import asdict, replace

from orchestrator.fleet.fan_out import Outcome, begin, fan_out
from orchestrator.nodes.interface import Node
from orchestrator.nodes.probes import image_probe, probe
from orchestrator.plan.container import IMAGE_ENVIRONMENT
from orchestrator.plan.ranks import device_of
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.container_limits import limits_of
from orchestrator.specs.errors import EngineRefusedError
from orchestrator.specs.facts import ImageContents, ImageFacts, NodeFacts
from orchestrator.specs.image import OUR_PACKAGES
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.labels import LABEL_CONTENT, LABEL_CUDA, LABEL_NODE, LABEL_PROJECT, LABEL_TORCH
from orchestrator.specs.request import LaunchRequest

TIMEOUT_S = 30.0
IMAGE_TIMEOUT_S = 90.0
"""Torch with its CUDA libraries takes long to load from a cold disk."""


def gather_facts(
    nodes: Sequence[Node], request: LaunchRequest, *, resume: str = ""
) -> tuple[Outcome[Node, NodeFacts], ...]:
    """One outcome per node, in order: its facts, or why there are none. `resume` names a run to resume."""
    specs = {spec.name: spec for spec in request.nodes}
    # resolved here once; a name that has no address becomes an outcome when its node is asked
    addresses = [outcome.result for outcome in fan_out(nodes, lambda node: node.address, timeout_s=TIMEOUT_S)]

    def ask(node: Node) -> NodeFacts:
        own = node.address
        node.open()  # first, so that the clock's round trip is a short one

        engine = begin(node.engine.facts)
        host = probe.ask(
            node,
            workspace=specs[node.name].workspace,
            project=request.project,
            peers=[peer for peer in addresses if peer and peer != own],
            resume=resume,
        )
        tag = request.image_tag(device_of(specs[node.name], host))
        return replace(host, engine=engine.result(), image=node.engine.image(tag))

    outcomes = fan_out(nodes, ask, timeout_s=TIMEOUT_S)
    return _with_contents(outcomes, request) if request.image else outcomes


def _with_contents(
    outcomes: Sequence[Outcome[Node, NodeFacts]], request: LaunchRequest
) -> tuple[Outcome[Node, NodeFacts], ...]:
    """Add the facts of the run's image, from a container of it on every node that has it."""
    specs = {spec.name: spec for spec in request.nodes}
    suffix = secrets.token_hex(3)

    def look(outcome: Outcome[Node, NodeFacts]) -> NodeFacts:
        facts, spec = outcome.value(), specs[outcome.item.name]
        facts = replace(facts, reference=request.image if spec.engine == "docker" else "")
        if facts.image is None or not facts.reference:
            return facts
        contents = _contents(outcome.item, spec, facts, request, suffix)
        return replace(facts, contents=contents, image=_described(facts.image, contents))

    looked = fan_out(outcomes, look, timeout_s=IMAGE_TIMEOUT_S + TIMEOUT_S)
    return tuple(Outcome(item=one.item.item, result=one.result, error=one.error) for one in looked)


def _contents(node: Node, spec: NodeSpec, facts: NodeFacts, request: LaunchRequest, suffix: str) -> ImageContents:
    assert facts.image is not None, node.name  # noqa: S101  # the caller has looked, for the type checker
    limits, device = limits_of(spec, facts), device_of(spec, facts)
    wanted = request.program.needs
    container = ContainerSpec(
        name=f"{request.project}-image-{node.name}-{suffix}",  # two names may be one machine
        image=facts.image.id,
        command=image_probe.command((*OUR_PACKAGES, *wanted)),
        environment=IMAGE_ENVIRONMENT,
        labels={LABEL_PROJECT: request.project, LABEL_NODE: node.name},
        working_dir="/",
        user=f"{facts.uid}:{facts.gid}",
        network="none",
        **asdict(limits),
    )
    try:
        answer = node.engine.run_once(container, timeout_s=IMAGE_TIMEOUT_S)
    except EngineRefusedError as error:  # there is no python3
        return ImageContents(reference=request.image, device=device, error=error.message)
    contents = image_probe.parse(answer, reference=request.image, device=device)
    return replace(contents, missing=tuple(name for name in wanted if name not in contents.modules))


def _described(image: ImageFacts, contents: ImageContents) -> ImageFacts:
    """The image with labels as orch's own images have them: those that it has itself may be of the image below it."""
    content = f"torch {contents.torch}" if contents.torch else image.id
    labels = {LABEL_TORCH: contents.torch, LABEL_CUDA: contents.cuda, LABEL_CONTENT: content}
    return replace(image, labels=labels)


def assumed_facts(node: NodeSpec) -> NodeFacts:
    """Facts of a machine that was not asked, from the inventory alone."""
    return NodeFacts(name=node.name, address=node.address, user=node.user or "", assumed=True)
