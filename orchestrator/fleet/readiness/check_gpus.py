"""`orch check-gpus`: ask every node for its GPUs, on the host and inside a container of the image that would run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from orchestrator.checks.gpu import gpu_findings
from orchestrator.fleet.fan_out import fan_out
from orchestrator.nodes.interface import Completed, Node
from orchestrator.nodes.probes import nvidia_smi
from orchestrator.nodes.probes.torch_probe import PROBE, parse_probe
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.container_limits import ContainerLimits, container_limits
from orchestrator.specs.errors import DeadlineError, EngineError
from orchestrator.specs.facts import ImageFacts, SmiFault
from orchestrator.specs.gpus import ContainerAnswer, GpuReport, NodeGpus, SmiAnswer
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.labels import LABEL_NODE, LABEL_PROJECT

PROBE_TIMEOUT_S = 120.0
"""Torch with its CUDA libraries takes long to load from a cold disk."""

_CONTAINER_ID = re.compile(r" container [0-9a-f]{12,64}\b")
"""Id of a removed probe container; without it, the same refusal of several nodes reads the same."""


@dataclass(frozen=True, kw_only=True)
class GpuCheck:
    """Options of a GPU check."""

    project: str
    image: str
    """Image that a training on GPUs would run."""
    suffix: str
    """Makes the names of the probe containers unique, so that two people can check at the same time."""
    container: bool = True
    """True to look inside a container too."""


def check_gpus(specs: Sequence[NodeSpec], nodes: Sequence[Node], check: GpuCheck) -> GpuReport:
    """Ask all nodes in parallel; `nodes` are those of `specs`, in order. A node that cannot be reached is a finding."""
    pairs = tuple(zip(specs, nodes, strict=True))
    outcomes = fan_out(pairs, lambda pair: ask_node(*pair, check), timeout_s=3 * PROBE_TIMEOUT_S)
    answers = []
    for outcome in outcomes:
        if error := outcome.error:
            spec = outcome.item[0]
            answers.append(NodeGpus(node=spec.name, device=spec.device, error=error.message, hint=error.hint))
        else:
            answers.append(outcome.value())
    return GpuReport(nodes=tuple(answers), findings=gpu_findings(answers))


def ask_node(spec: NodeSpec, node: Node, check: GpuCheck) -> NodeGpus:
    """GPUs of one node: on the host, and inside a container if a run would use them there."""
    host = nvidia_smi.ask(node.run)
    answer = NodeGpus(node=spec.name, device=spec.device, host=host)
    # no container check where no GPU is used or every rank is a process of the host
    if not (check.container and host.gpus and spec.device != "cpu" and spec.engine == "docker"):
        return answer
    try:
        engine = node.engine.facts()
        image = node.engine.image(check.image)
    except EngineError as error:
        return replace(answer, error=error.message, hint=error.hint)
    if image is None:
        return replace(answer, engine=engine, container=ContainerAnswer(image=check.image))
    limits = container_limits(spec.limits, cpus=engine.cpus, memory_mib=engine.memory_mib, gpus=len(host.gpus))
    container = _ask_container(node, check, image, limits)
    # drivers before 510 do not report the compute capability: torch does
    seen = {device.uuid: device.compute_capability for device in container.torch.devices} if container.torch else {}
    gpus = tuple(replace(gpu, compute_capability=gpu.compute_capability or seen.get(gpu.uuid)) for gpu in host.gpus)
    return replace(answer, host=replace(host, gpus=gpus), engine=engine, container=container)


def _ask_container(node: Node, check: GpuCheck, image: ImageFacts, limits: ContainerLimits) -> ContainerAnswer:
    """Torch first: an image may lack nvidia-smi, but it has Python, so a refusal is then about the GPUs."""
    answer = ContainerAnswer(image=check.image, found=image)

    spec_of = partial(
        ContainerSpec,
        name=f"{check.project}-check-gpus-{check.suffix}",
        image=image.id,
        environment={},
        labels={LABEL_PROJECT: check.project, LABEL_NODE: node.name},
        working_dir="/",
        gpus=True,
        network="none",
        **asdict(limits),
    )

    def run(argv: Sequence[str]) -> Completed:
        return node.engine.run_once(spec_of(command=tuple(argv)), timeout_s=PROBE_TIMEOUT_S)

    try:
        torch = parse_probe(run(PROBE))
    except (EngineError, DeadlineError) as error:
        return replace(answer, refused=_CONTAINER_ID.sub("", error.message))
    try:
        smi = nvidia_smi.ask(run, capability=False)
    except (EngineError, DeadlineError) as error:
        smi = SmiAnswer(fault=SmiFault.ABSENT, detail=error.message)
    return replace(answer, torch=torch, smi=smi)
