"""What keeps a container of the training's image from using the GPUs that the host has."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.checks.cuda_driver import minimum_driver, runs, too_old
from orchestrator.specs.finding import Finding, Severity
from orchestrator.specs.gpus import NodeGpus

CONFIGURE_RUNTIME = "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"


def engine_silent(node: NodeGpus) -> Iterator[Finding]:
    """The host answered, its container engine did not."""
    if node.host is not None and node.error:
        yield _error(node, "gpu.engine", node.error, fix=node.hint)


def image_missing(node: NodeGpus) -> Iterator[Finding]:
    """No image to look into."""
    if node.container and node.container.found is None:
        yield _error(
            node,
            "gpu.image_missing",
            f"no image {node.container.image}, so the container half is unknown",
            fix="orch build --profile cuda",
        )


def no_toolkit(node: NodeGpus) -> Iterator[Finding]:
    """Driver on the host, but the engine cannot hand a GPU to a container."""
    if node.container is None or not node.container.refused:
        return
    if node.engine and "nvidia" in node.engine.runtimes:
        yield _error(
            node,
            "gpu.container_refused",
            f"the engine does not start a container with GPUs: {node.container.refused}",
            cause="the NVIDIA Container Toolkit is there and fails",
            fix=f"nvidia-container-cli info; then {CONFIGURE_RUNTIME}",
        )
    else:
        yield _error(
            node,
            "gpu.no_toolkit",
            f"driver but no NVIDIA Container Toolkit: {node.container.refused}",
            cause="the container engine has no nvidia runtime",
            fix=f"install the package nvidia-container-toolkit, then {CONFIGURE_RUNTIME}",
        )


def image_without_cuda(node: NodeGpus) -> Iterator[Finding]:
    """A CPU image on a GPU node: training would run, on the CPU, without a word."""
    torch = node.container.torch if node.container else None
    if torch and torch.version and not torch.cuda:
        yield _error(
            node,
            "gpu.image_without_cuda",
            f"the image holds torch {torch.version} without CUDA",
            cause="it is a CPU image under the name of the CUDA one",
            fix="orch build --profile cuda",
        )


def driver_too_old(node: NodeGpus) -> Iterator[Finding]:
    """The image's CUDA needs a newer driver. Where torch does use CUDA (compatibility package), it is right."""
    cuda = node.container.cuda if node.container else ""
    if not cuda or _torch_works(node) or not (node.host and node.host.gpus):
        return
    gpu = node.host.gpus[0]
    if too_old(gpu.driver_version, gpu.cuda_version, cuda):
        minimum = minimum_driver(cuda)
        yield _error(
            node,
            "gpu.driver_too_old",
            f"driver {gpu.driver_version} is too old for the image's CUDA {cuda}"
            + (f", which needs {minimum} or newer" if minimum else ""),
            cause=f"this driver serves CUDA {gpu.cuda_version} and older" if gpu.cuda_version else "",
            fix="upgrade the driver (Ubuntu: sudo ubuntu-drivers install) and reboot that machine",
        )


def not_in_container(node: NodeGpus) -> Iterator[Finding]:
    """Cards of the host that nvidia-smi does not find in the container."""
    container = node.container
    if container is None or container.refused or container.smi is None or node.host is None:
        return
    if container.smi.absent and _torch_works(node):
        return  # torch has its cards; only the program is not mounted (NVIDIA_DRIVER_CAPABILITIES without utility)
    inside = {gpu.uuid for gpu in container.smi.gpus}
    lacking = [gpu for gpu in node.host.gpus if gpu.uuid not in inside]
    if not lacking:
        return
    cards = ", ".join(f"GPU {gpu.index} ({gpu.name})" for gpu in lacking)
    said = f" (nvidia-smi there: {container.smi.detail})" if container.smi.detail else ""
    yield _error(
        node,
        "gpu.not_in_container",
        f"on the host and not in the container: {cards}{said}",
        cause="the container was started without its devices, or lost them to a systemctl daemon-reload"
        " (NVIDIA/nvidia-docker#1730)",
        fix=CONFIGURE_RUNTIME,
    )


def torch_blind(node: NodeGpus) -> Iterator[Finding]:
    """nvidia-smi works in the container and torch does not."""
    torch = node.container.torch if node.container else None
    if torch is None or torch.available or (torch.version and not torch.cuda):
        return
    if any(driver_too_old(node)) or any(not_in_container(node)):
        return  # said already, with its cause
    yield _error(
        node,
        "gpu.torch_blind",
        "torch in the container cannot use CUDA" + (f": {torch.error}" if torch.error else ""),
        cause="the image's libraries, or a driver that was changed under running programs",
        fix="orch build --profile cuda; where that does not help, reboot that machine",
    )


def arch_not_in_image(node: NodeGpus) -> Iterator[Finding]:
    """The image's torch has no code for this card."""
    torch = node.container.torch if node.container else None
    if torch is None or not torch.architectures or node.host is None:
        return
    seen = {device.uuid: device.compute_capability for device in torch.devices}
    for gpu in node.host.gpus:
        capability = gpu.compute_capability or seen.get(gpu.uuid)
        if capability and not runs(torch.architectures, capability):
            yield _error(
                node,
                "gpu.arch_not_in_image",
                f"GPU {gpu.index} ({gpu.name}) has compute capability {capability[0]}.{capability[1]}, and torch"
                f" {torch.version} is built for {', '.join(torch.architectures)}",
                cause="the card is older, or newer, than this build of torch",
                fix="build with a torch whose CUDA serves this card, or write device: cpu in inventory.yaml",
            )


def _torch_works(node: NodeGpus) -> bool:
    return bool(node.container and node.container.torch and node.container.torch.available)


def _error(node: NodeGpus, id: str, message: str, *, cause: str = "", fix: str = "") -> Finding:
    return Finding(id=id, severity=Severity.ERROR, node=node.node, message=message, cause=cause, fix=fix)


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
