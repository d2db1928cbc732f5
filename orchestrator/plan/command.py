"""Commands of a run: the words after `--`, for a measurement too, and torchrun around them in a container."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.specs.errors import UsageError
from orchestrator.specs.image import TRAINER_NEEDS
from orchestrator.specs.measurement import option, without_options
from orchestrator.specs.plan import Plan
from orchestrator.specs.request import LaunchRequest

CONTAINER_WORKSPACE = "/workspace"
CONTAINER_DATA = f"{CONTAINER_WORKSPACE}/Data"
HF_HOME = f"{CONTAINER_WORKSPACE}/cache/huggingface"
"""Cache of `transformers` and `datasets`."""
SHUTDOWN_TIMEOUT_S = 60
"""Seconds that torchrun gives ranks for their last checkpoint after SIGTERM (its default: 30)."""
STOP_TIMEOUT_S = SHUTDOWN_TIMEOUT_S + 15
FORECAST = "--forecast"
"""Option of the trainer: measure, predict, end."""
TEST_RENDEZVOUS_S = 90
"""Seconds that the nodes of a test wait for each other: torch loads in 2 to 30 s."""
TEST_PROCESS_GROUP_S = 20
"""Seconds that a rank of a test waits for the others; its messages take half a second on any link."""
STEP, ACCUMULATION = ("--global-batch-size",), ("--grad-accum", "--gradient-accumulation-steps")


def launch_words(plan: Plan) -> tuple[str, ...]:
    """The launch of this plan as one types it: nodes, folders and the words after `--`."""
    folders = (("--workdir", plan.code_origin if plan.own_code else ""), ("--data", plan.data_origin))
    given = (word for option, folder in folders if folder for word in (option, folder))
    return ("orch", "launch", "--nodes", ",".join(part.node for part in plan.nodes), *given, "--", *plan.command)


def is_own_script(command: Sequence[str]) -> bool:
    """Whether this runs the user's code rather than the trainer."""
    return bool(command) and (command[0] in ("python", "python3") or command[0].endswith(".py"))


def brings_own_code(command: Sequence[str]) -> bool:
    """Whether a folder of the user is copied to the nodes: for a script, or for the module that `custom` trains."""
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


def torchrun_command(
    command: Sequence[str], *, nnodes: int, node_rank: int, nproc_per_node: int, master: tuple[str, int], run: str
) -> tuple[str, ...]:
    """One node's torchrun line. `master` is address and port; `run` names this attempt.

    Static rendezvous: NODE_RANK takes effect only there, and rank 0 is where the checkpoints lie. No restarts of
    torchrun's own: two nodes race for them and burn two attempts for one failure.
    """
    return (
        "torchrun",
        "--nnodes", str(nnodes),
        "--node-rank", str(node_rank),
        "--nproc-per-node", str(nproc_per_node),
        "--master-addr", master[0],
        "--master-port", str(master[1]),
        "--rdzv-id", run,
        "--max-restarts", "0",
        *worker_command(command),
    )  # fmt: skip
