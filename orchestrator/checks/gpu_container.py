"""Checks of faults that keep a container of the training image from using the GPUs that the host has, such as a driver
that is too old for its CUDA."""

from __future__ import annotations

import re
from collections.abc import Iterator

from orchestrator.specs.finding import Finding
from orchestrator.specs.gpus import NodeGpus

MINIMUM_DRIVER: dict[tuple[int, int], tuple[int, ...]] = {
    (13, 0): (580, 65, 6),
    (12, 0): (525, 60, 13),
    (11, 1): (450, 80, 2),
    (11, 0): (450, 36, 6),
    (10, 2): (440, 33),
    (10, 1): (418, 39),
    (10, 0): (410, 48),
}
"""Oldest Linux driver that runs programs built with this CUDA and later ones of the same major version.

Source: NVIDIA, CUDA Toolkit Release Notes, table "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor
Version Compatibility", and CUDA Compatibility, "Minor Version Compatibility"
(docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html).
"""


def engine_silent(node: NodeGpus) -> Iterator[Finding]:
    """The host answered, its container engine did not."""
    if node.host is not None and node.error:
        yield Finding.of("gpu.engine", node.node, error=node.error, hint=node.hint)


def image_missing(node: NodeGpus) -> Iterator[Finding]:
    if node.container and node.container.found is None:
        yield Finding.of("gpu.image_missing", node.node, image=node.container.image)


def no_toolkit(node: NodeGpus) -> Iterator[Finding]:
    """Driver on the host, but the engine cannot hand a GPU to a container."""
    if node.container is None or not node.container.refused:
        return
    if node.engine and "nvidia" in node.engine.runtimes:
        yield Finding.of("gpu.container_refused", node.node, refused=node.container.refused)
    else:
        yield Finding.of("gpu.no_toolkit", node.node, refused=node.container.refused)


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
    lacking = [gpu for gpu in node.host.gpus if gpu.uuid not in inside]
    if not lacking:
        return
    cards = ", ".join(f"GPU {gpu.index} ({gpu.name})" for gpu in lacking)
    said = f" (nvidia-smi there: {container.smi.detail})" if container.smi.detail else ""
    yield Finding.of("gpu.not_in_container", node.node, cards=cards, said=said)


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


def version(text: str) -> tuple[int, ...]:
    """`525.60.13` and `12.8` as numbers; empty where it is not a version."""
    return tuple(int(part) for part in text.split(".")) if re.fullmatch(r"\d+(\.\d+)*", text) else ()


def minimum_driver(cuda: str) -> str:
    """Oldest driver for this CUDA; empty where the table does not know it."""
    wanted = version(cuda)[:2]
    known = [entry for entry in MINIMUM_DRIVER if wanted and entry[0] == wanted[0] and entry <= wanted]
    if not known:
        return ""
    return ".".join(f"{part:02d}" if place else str(part) for place, part in enumerate(MINIMUM_DRIVER[max(known)]))


def too_old(driver: str, driver_cuda: str, cuda: str) -> bool:
    """Whether this driver cannot run programs of this CUDA.

    For a CUDA newer than the table, the driver's own report decides: its major version or older runs.
    """
    minimum = minimum_driver(cuda)
    if minimum and version(driver):
        return version(driver) < version(minimum)
    serves, wanted = version(driver_cuda)[:1], version(cuda)[:1]
    return bool(serves and wanted) and serves < wanted


def runs(architectures: tuple[str, ...], capability: tuple[int, int]) -> bool:
    """Whether a program built for these runs on such a card.

    Machine code (`sm_80`) runs on cards of the same major version and the same or a later minor one; intermediate code
    (`compute_90`) runs on all later cards; a suffix (`sm_90a`) ties it to that card alone.
    """
    for name in architectures:
        if match := re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", name):
            built = (int(match[2]), int(match[3]))
            later = not match[4] and built < capability
            if built == capability or (later and (match[1] == "compute" or built[0] == capability[0])):
                return True
    return False


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
