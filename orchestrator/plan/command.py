"""The command of a container: torchrun around a workload of the trainer or around the user's script."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.specs.errors import UsageError
from orchestrator.specs.plan import Plan

CONTAINER_WORKSPACE = "/workspace"
CONTAINER_DATA = f"{CONTAINER_WORKSPACE}/Data"
HF_HOME = f"{CONTAINER_WORKSPACE}/cache/huggingface"
"""Cache of `transformers` and `datasets`."""
SHUTDOWN_TIMEOUT_S = 60
"""Seconds that torchrun gives ranks for their last checkpoint after SIGTERM (its default: 30)."""
STOP_TIMEOUT_S = SHUTDOWN_TIMEOUT_S + 15


def launch_words(plan: Plan) -> tuple[str, ...]:
    """The launch of this plan as one types it: nodes, folders and the words after `--`."""
    folders = (("--workdir", plan.code_origin if plan.own_code else ""), ("--data", plan.data_origin))
    given = (word for option, folder in folders if folder for word in (option, folder))
    return ("orch", "launch", "--nodes", ",".join(part.node for part in plan.nodes), *given, "--", *plan.command)


def is_own_script(command: Sequence[str]) -> bool:
    """Whether this runs the user's code rather than the trainer."""
    return bool(command) and (command[0] in ("python", "python3") or command[0].endswith(".py"))


def brings_own_code(command: Sequence[str]) -> bool:
    """Whether a folder of the user's goes to the nodes: for a script, or for the module that `custom` trains."""
    return is_own_script(command) or list(command[:1]) == ["custom"]


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
