"""A container of a plan without what only its scheduler knows: rank, names, addresses. The agent binds them in it.

One text serves all nodes of a cluster. `python -m trainer.agent --place …` reads the rank and the names from the
scheduler's environment, and sets the variables that are left out here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from contract import environment
from orchestrator.specs.container import ContainerSpec

AGENT_OPTIONS = ("--nodes", "--node-rank", "--first-rank", "--address", "--port")
TORCHRUN_OPTIONS = ("--node-rank", "--master-addr", "--master-port")
VARIABLES = (
    "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", environment.NODE, environment.NODE_RANK, environment.ATTEMPT,
    "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT",
)  # fmt: skip
SET_IN_JOB = (*VARIABLES, "NNODES", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "PET_RDZV_ID")
"""Variables that the agent sets to its place in the job: a user's value would be lost."""
_RENDEZVOUS = "--rdzv-id"


def late_bound(spec: ContainerSpec, *options: str) -> ContainerSpec:
    """The same container with these options of the agent, `--place …`, in place of what it binds.

    The rendezvous is named by the run alone: the attempt is known to the agent only.
    """
    agent, started = parts_of(spec.command)
    first = next(place for place, word in enumerate(agent) if word.startswith("--"))  # after `python -c …` or `-m …`
    if started[0] == "torchrun":
        started = tuple(_without(started, TORCHRUN_OPTIONS))
        value = started.index(_RENDEZVOUS) + 1
        started = (*started[:value], _without_attempt(started[value]), *started[value + 1 :])
    early = {name: value for name, value in spec.environment.items() if name not in VARIABLES}
    return replace(
        spec,
        command=(*agent[:first], *options, *_without(agent[first:], AGENT_OPTIONS), "--", *started),
        environment={
            name: _without_attempt(value) if name == "PET_RDZV_ID" else value for name, value in early.items()
        },
    )


def lost_variables(given: Mapping[str, str], *, interface: str = "leave it out") -> list[str]:
    """Problems of the user's variables that the agent replaces in the job. `interface`: what to do about those of the
    network interface."""
    return [
        f"--env {name}: the agent in the job sets it; {interface if 'IFNAME' in name else 'leave it out'}"
        for name in given
        if name in SET_IN_JOB
    ]


def parts_of(command: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The words of the agent, and those of torchrun or of a script, without the `--` between them."""
    end = command.index("--")
    return command[:end], command[end + 1 :]


def _without_attempt(name: str) -> str:
    return name.rpartition(".")[0]


def _without(words: Iterable[str], options: tuple[str, ...]) -> Iterator[str]:
    """Leave out these options with their values: each occurs once, before words of the user's."""
    left, words = list(options), iter(words)
    for word in words:
        if word in left:
            left.remove(word)
            next(words, None)
        else:
            yield word
