"""Choice of torch's CUDA build for the GPUs of a fleet. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.specs.cuda import DEFAULT_BUILD, TORCH_BUILDS, minimum_driver, runs, too_old
from orchestrator.specs.errors import PreflightError
from orchestrator.specs.facts import GpuFacts

AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class CudaChoice:
    """The CUDA build of each node, and the reason."""

    by_node: Mapping[str, str]
    reason: str
    """Empty if every node has the default build."""


def choose_cuda(fleet: Mapping[str, Sequence[GpuFacts]], wanted: str = AUTO) -> CudaChoice:
    """Choose the newest build that serves all nodes; if there is none, the newest for each node.

    `fleet`: the GPUs of each node that gets a CUDA image; a node without known GPUs takes any build. One build for all
    is better, as each has another NCCL, and NCCL works only with its own version (NVIDIA/nccl#286). PreflightError: a
    card that no build serves, or that `wanted` does not; each with its node, driver and what to do.
    """
    refused = {(node, cuda): _refusal(gpus, cuda) for node, gpus in fleet.items() for cuda in TORCH_BUILDS}
    served = {node: [cuda for cuda in TORCH_BUILDS if not refused[node, cuda]] for node in fleet}
    if wanted != AUTO:
        if unfit := [f"{node}: {refused[node, wanted]}" for node in fleet if wanted not in served[node]]:
            raise PreflightError(
                f"CUDA {wanted} does not serve {'; '.join(unfit)}",
                hint="orch build --cuda auto   # chooses by the GPUs",
            )
        return CudaChoice(by_node=dict.fromkeys(fleet, wanted), reason="")
    if unfit := [f"{node}: {_nearest(fleet[node])}" for node in fleet if not served[node]]:
        raise PreflightError(
            f"no CUDA build of torch serves {'; '.join(unfit)}",
            hint="upgrade the driver (Ubuntu: sudo ubuntu-drivers install) and reboot; for a card that is too old,"
            " write device: cpu for its node in inventory.yaml",
        )
    shared = [cuda for cuda in TORCH_BUILDS if all(cuda in able for able in served.values())]
    if shared:
        reasons = [f"{refused[node, DEFAULT_BUILD]} on {node}" for node in fleet if refused[node, DEFAULT_BUILD]]
        return CudaChoice(
            by_node=dict.fromkeys(fleet, shared[0]),
            reason=f"CUDA {shared[0]} for all: {'; '.join(reasons)}" if shared[0] != DEFAULT_BUILD else "",
        )
    each = {node: able[0] for node, able in served.items()}
    listed = ", ".join(f"{node} {cuda}" for node, cuda in each.items())
    return CudaChoice(
        by_node=each,
        reason=f"no CUDA serves all nodes: {listed}; ranks of different builds talk through gloo, not NCCL",
    )


def _refusal(gpus: Sequence[GpuFacts], cuda: str) -> str:
    """Reason why this build does not run on these GPUs; empty if it does on all of them."""
    for gpu in gpus:
        if too_old(gpu.driver_version, gpu.cuda_version, cuda):
            return f"driver {gpu.driver_version} (CUDA {cuda} needs {minimum_driver(cuda)})"
        capability = gpu.compute_capability
        if capability and not runs(TORCH_BUILDS[cuda], capability):
            major, minor = capability
            return f"{gpu.name}, compute capability {major}.{minor} (torch for CUDA {cuda} has no code for it)"
    return ""


def _nearest(gpus: Sequence[GpuFacts]) -> str:
    """The reasons of all builds, the same one once."""
    return " and ".join(dict.fromkeys(_refusal(gpus, cuda) for cuda in TORCH_BUILDS))
