"""Commands of a run: the words after `--`, for a measurement too, and torchrun around them in a container."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.specs.errors import UsageError
from orchestrator.specs.image import TRAINER_NEEDS
from orchestrator.specs.measurement import option, without_options

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
SHUTDOWN_TIMEOUT_S = 60
"""Seconds that torchrun gives ranks for their last checkpoint after SIGTERM (its default: 30)."""
STOP_TIMEOUT_S = SHUTDOWN_TIMEOUT_S + 15
SHELLS = ("bash", "sh", "dash")
"""Shells of the image."""
FORECAST = "--forecast"
"""Option of the trainer: measure, predict, end."""
TEST_RENDEZVOUS_S = 90
"""Seconds that the nodes of a test wait for each other: torch loads in 2 to 30 s."""
TEST_PROCESS_GROUP_S = 20
"""Seconds that a rank of a test waits for the others; its messages take half a second on any link."""
STEP, ACCUMULATION = ("--global-batch-size",), ("--grad-accum", "--gradient-accumulation-steps")


def is_own_script(command: Sequence[str]) -> bool:
    """Whether this runs the user's code rather than the trainer."""
    is_python = bool(command) and (command[0] in ("python", "python3") or command[0].endswith(".py"))
    return is_python or is_shell_script(command)


def is_shell_script(command: Sequence[str]) -> bool:
    """Whether this runs once per node and starts torchrun itself."""
    return bool(command) and (command[0] in SHELLS or command[0].endswith((".sh", ".bash")))


def script_of(command: Sequence[str]) -> str:
    """File of a shell script; empty for `bash -c`. UsageError: a shell without a script."""
    if command[0] not in SHELLS:
        return command[0]
    words = list(command[1:])
    while words and words[0][:1] in ("-", "+"):
        option = words.pop(0)
        if words and option != "--" and not option.startswith("--") and "c" in option:
            return ""
        if option[-1:] in ("o", "O") and not option.startswith("--"):  # such as -o pipefail
            words = words[1:]
    if not words:
        raise UsageError(
            f"`{' '.join(command)}` needs a script, or -c with commands", hint="orch launch -- bash run.sh"
        )
    return words[0]


def brings_own_code(command: Sequence[str]) -> bool:
    """Whether a folder of the user is copied to the nodes: for what it trains, or for a reporter."""
    return trains_own_code(command) or option(command, "--reporter") is not None


def trains_own_code(command: Sequence[str]) -> bool:
    """Whether a script of the user is trained, or the module of `custom`."""
    return is_own_script(command) or list(command[:1]) == ["custom"]


def trainer_needs(command: Sequence[str]) -> tuple[str, ...]:
    """Return the modules, besides torch, that an image must have for this command; none for the user's own script."""
    if is_own_script(command):
        return ()
    return ("numpy",) if list(command[:1]) == ["test-ddp"] else TRAINER_NEEDS


def worker_command(command: Sequence[str]) -> tuple[str, ...]:
    """Return the words that torchrun starts for each rank: a script or `-m MODULE`, with its arguments."""
    if not command:
        raise UsageError("no command to run", hint="orch launch -- gpt2 --epochs 1")
    if not is_own_script(command):
        return ("-m", "trainer", *command)
    words = tuple(command[1:] if command[0] in ("python", "python3") else command)
    while words and words[0] == "-u":  # the image sets PYTHONUNBUFFERED
        words = words[1:]
    if words and words[0].startswith("-") and words[0] != "-m":
        raise UsageError(
            f"torchrun starts a script or a module, not `python {words[0]}`",
            hint="orch launch --workdir ./mine -- python train.py --lr 1e-3",
        )
    if not words or words == ("-m",):
        raise UsageError("`python` needs a script or `-m MODULE`", hint="orch launch -- python train.py")
    return words


def measuring(command: Sequence[str]) -> tuple[str, ...]:
    """Return the trainer's command with --forecast. UsageError: the command is the user's own script."""
    if is_own_script(command):
        raise UsageError(
            f"--forecast measures workloads of the trainer, and `{' '.join(command[:2])}` is your own script",
            hint="orch launch --forecast -- gpt2 …, or your model: -- custom --module my_file.py:build",
        )
    return tuple(command) if FORECAST in command else (*command, FORECAST)


def same_step(command: tuple[str, ...], samples_per_step: int | None) -> tuple[str, ...]:
    """Return the command with --global-batch-size: a fixed batch per rank would shrink the step with fewer nodes.

    Unchanged: the user's own script, a command with its own --global-batch-size, any command if the size is unknown.
    """
    if not samples_per_step or is_own_script(command) or option(command, *STEP):
        return command
    return (*without_options(command, ACCUMULATION), STEP[0], str(samples_per_step))


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


def torchrun_command(command: Sequence[str], place: TorchrunPlace) -> tuple[str, ...]:
    """One node's torchrun line."""
    options = (word for name, value in place.options().items() for word in (f"--{name}", value))
    return ("torchrun", *options, *worker_command(command))


def script_environment(place: TorchrunPlace) -> dict[str, str]:
    """Variables for a shell script that starts torchrun: torchrun takes an option that it does not get from PET_…."""
    own = {f"PET_{name.replace('-', '_').upper()}": value for name, value in place.options().items()}
    return {
        "NPROC_PER_NODE": str(place.nproc_per_node),
        "WORLD_SIZE": str(place.world_size),
        "PET_RDZV_BACKEND": "static",
        **own,
    }
