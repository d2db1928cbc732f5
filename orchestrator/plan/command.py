"""Commands in the container of a run: torchrun around the words after `--`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.specs.errors import UsageError
from orchestrator.specs.program import Program

if TYPE_CHECKING:  # the command line loads this module for its help
    from orchestrator.specs.request import LaunchRequest

CONTAINER_WORKSPACE = "/workspace"
CONTAINER_DATA = f"{CONTAINER_WORKSPACE}/Data"
HF_HOME = f"{CONTAINER_WORKSPACE}/cache/huggingface"
"""Cache of `transformers` and `datasets`."""
TORCH_HOME = f"{CONTAINER_WORKSPACE}/cache/torch"
"""Cache of `torch.hub`, which torchvision's weights use."""
COMPILED = f"{CONTAINER_WORKSPACE}/cache/inductor"
"""Cache of torch.compile."""
TEST_RENDEZVOUS_S = 90
"""Seconds that the nodes of a test wait for each other: torch loads in 2 to 30 s."""
TEST_PROCESS_GROUP_S = 20
"""Seconds that a rank of a test waits for the others; its messages take half a second on any link."""


def in_miniature(request: LaunchRequest, backend: str = "auto") -> LaunchRequest:
    """Return the request with the connectivity test in place of a training, and short timeouts."""
    if backend not in ("auto", "gloo", "nccl"):
        raise UsageError(f"--backend {backend}: expected auto, gloo or nccl")
    return replace(
        request,
        command=("test-ddp", "--backend", backend),
        environment={**request.environment, "PET_RDZV_CONF": f"timeout={TEST_RENDEZVOUS_S}"},
        process_group_timeout_s=TEST_PROCESS_GROUP_S,
        max_restarts=0,
        absence_s=TEST_RENDEZVOUS_S,
    )


@dataclass(frozen=True, kw_only=True)
class TorchrunPlace:
    """Place of one node's ranks in an attempt, and where they meet the others.

    Static rendezvous: NODE_RANK takes effect only there, and rank 0 is where the checkpoints lie. No restarts of
    torchrun's own: two nodes race for them and burn two attempts for one failure.
    """

    nnodes: int
    node_rank: int
    nproc_per_node: int
    world_size: int
    master_addr: str
    master_port: int
    run: str
    """Name of this attempt."""

    def options(self) -> dict[str, str]:
        """Options of torchrun with their values, without dashes."""
        return {
            "nnodes": str(self.nnodes),
            "node-rank": str(self.node_rank),
            "nproc-per-node": str(self.nproc_per_node),
            "master-addr": self.master_addr,
            "master-port": str(self.master_port),
            "rdzv-id": self.run,
            "max-restarts": "0",
        }


def torchrun_command(program: Program, place: TorchrunPlace) -> tuple[str, ...]:
    """One node's torchrun line."""
    options = (word for name, value in place.options().items() for word in (f"--{name}", value))
    return ("torchrun", *options, *program.rank_words())


def script_environment(place: TorchrunPlace) -> dict[str, str]:
    """Variables for a shell script that starts torchrun: torchrun takes an option that it does not get from PET_…."""
    own = {f"PET_{name.replace('-', '_').upper()}": value for name, value in place.options().items()}
    return {
        "NPROC_PER_NODE": str(place.nproc_per_node),
        "WORLD_SIZE": str(place.world_size),
        "PET_RDZV_BACKEND": "static",
        **own,
    }
