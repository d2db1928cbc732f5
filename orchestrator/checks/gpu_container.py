"""Checks of faults that keep a container of the training image from using the GPUs that the host has, such as a driver
that is too old for its CUDA."""

from __future__ import annotations

from collections.abc import Iterator

from contract.failures.classify import FailedRank, classify
from orchestrator.checks.causes import Cause
from orchestrator.specs.cuda import minimum_driver, runs, too_old
from orchestrator.specs.finding import Finding
from orchestrator.specs.gpus import NodeGpus

ENGINE_REFUSED = 125
"""Exit code of an engine that did not start a container."""
NO_DEVICE_DRIVER = "could not select device driver"
"""Docker's words where it has no toolkit at all."""


def engine_silent(node: NodeGpus) -> Iterator[Finding]:
    """The host answered, its container engine did not."""
    if node.host is not None and node.error:
        yield Finding.of("gpu.engine", node.node, error=node.error, hint=node.hint)


def image_missing(node: NodeGpus) -> Iterator[Finding]:
    if node.container and node.container.found is None:
        yield Finding.of("gpu.image_missing", node.node, image=node.container.image)


def no_toolkit(node: NodeGpus) -> Iterator[Finding]:
    """Driver on the host, but the engine cannot hand a GPU to a container: by the text of its refusal."""
    if node.container is None or not node.container.refused:
        return
    refused = node.container.refused
    found = classify(FailedRank(agent=refused.splitlines(), exit_code=ENGINE_REFUSED))
    has_toolkit = node.engine is not None and "nvidia" in node.engine.runtimes
    if found and found.id == "gpu.no_cdi":
        yield Finding.of("gpu.no_cdi", node.node, refused=refused)
    elif found and found.signature.area == "gpu" and (has_toolkit or NO_DEVICE_DRIVER not in refused):
        cause = Cause.of(found, job=None, node=node.node, rank="0", run="RUN")
        fix = "; ".join(cause.fix)
        yield Finding.of("gpu.container_refused", node.node, refused=refused, cause=cause.explanation, fix=fix)
    else:
        yield Finding.of("gpu.no_toolkit", node.node, refused=refused)


def image_without_cuda(node: NodeGpus) -> Iterator[Finding]:
    """A CPU image on a GPU node: training would silently run on the CPU."""
    torch = node.container.torch if node.container else None
    if torch and torch.version and not torch.cuda:
        yield Finding.of("gpu.image_without_cuda", node.node, version=torch.version)


def driver_too_old(node: NodeGpus) -> Iterator[Finding]:
    """The image's CUDA needs a newer driver, unless torch can use CUDA (compatibility package)."""
    cuda = node.container.cuda if node.container else ""
    if not cuda or _torch_works(node) or not (node.host and node.host.gpus):
        return
    gpu = node.host.gpus[0]
    if too_old(gpu.driver_version, gpu.cuda_version, cuda):
        minimum = minimum_driver(cuda)
        yield Finding.of(
            "gpu.driver_too_old",
            node.node,
            case="known" if gpu.cuda_version else "unknown",
            driver_version=gpu.driver_version,
            cuda=cuda,
            needed=f", which needs {minimum} or newer" if minimum else "",
            cuda_version=gpu.cuda_version,
        )


def not_in_container(node: NodeGpus) -> Iterator[Finding]:
    """Cards of the host that nvidia-smi does not find in the container."""
    container = node.container
    if container is None or container.refused or container.smi is None or node.host is None:
        return
    if container.smi.absent and _torch_works(node):
        return  # torch has its cards; only the program is not mounted (NVIDIA_DRIVER_CAPABILITIES without utility)
    inside = {gpu.uuid for gpu in container.smi.gpus}
    missing = [gpu for gpu in node.host.gpus if gpu.uuid not in inside]
    if not missing:
        return
    cards = ", ".join(f"GPU {gpu.index} ({gpu.name})" for gpu in missing)
    detail = f" (nvidia-smi there: {container.smi.detail})" if container.smi.detail else ""
    yield Finding.of("gpu.not_in_container", node.node, cards=cards, said=detail)


def torch_blind(node: NodeGpus) -> Iterator[Finding]:
    """nvidia-smi works in the container, and torch finds no GPU."""
    torch = node.container.torch if node.container else None
    if torch is None or torch.available or (torch.version and not torch.cuda):
        return
    if any(driver_too_old(node)) or any(not_in_container(node)):
        return  # reported already, with its cause
    yield Finding.of("gpu.torch_blind", node.node, error=f": {torch.error}" if torch.error else "")


def arch_not_in_image(node: NodeGpus) -> Iterator[Finding]:
    """The image's torch has no code for this card."""
    torch = node.container.torch if node.container else None
    if torch is None or not torch.architectures or node.host is None:
        return
    seen = {device.uuid: device.compute_capability for device in torch.devices}
    for gpu in node.host.gpus:
        capability = gpu.compute_capability or seen.get(gpu.uuid)
        if capability and not runs(torch.architectures, capability):
            yield Finding.of(
                "gpu.arch_not_in_image",
                node.node,
                gpu=gpu.index,
                card=gpu.name,
                major=capability[0],
                minor=capability[1],
                version=torch.version,
                architectures=torch.architectures,
            )


def _torch_works(node: NodeGpus) -> bool:
    return bool(node.container and node.container.torch and node.container.torch.available)


CONTAINER_CHECKS = (
    engine_silent,
    image_missing,
    no_toolkit,
    image_without_cuda,
    driver_too_old,
    not_in_container,
    torch_blind,
    arch_not_in_image,
)
