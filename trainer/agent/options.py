"""What the command line tells a node's agent."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contract import environment


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    run: str
    """Run and attempt: what another run says is not listened to."""
    names: tuple[str, ...]
    """Of the nodes, in order of node_rank."""
    node_rank: int
    first_rank: int
    address: str
    """Of rank 0's node, where its agent listens."""
    port: int
    restarts: int
    silence_s: float
    absence_s: float
    frozen_s: float
    stuck_s: float
    """Without progress of any rank here, until it is told where each stands."""
    folder: Path
    """Of the run."""
    command: tuple[str, ...]
    """torchrun with its arguments."""
    save_s: float = 60.0
    """That ranks which are told to stop may take for a last checkpoint."""
    interface: str = ""
    """Towards the other nodes; empty where it was not asked."""

    @property
    def node(self) -> str:
        return self.names[self.node_rank]


def read(argv: Sequence[str], environ: Mapping[str, str]) -> AgentOptions:
    """argparse ends the process where the words are not understood."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.agent",
        description="Run torchrun here, start it again with the other nodes' where one fails, and end with them.",
        epilog="python -m trainer.agent --nodes alpha,beta --node-rank 0 --address 10.0.0.11 --port 12356 -- …",
    )
    parser.add_argument("--nodes", required=True, metavar="NAMES", help="all nodes by node_rank: alpha,beta")
    parser.add_argument("--node-rank", type=int, required=True, metavar="N")
    parser.add_argument("--first-rank", type=int, default=0, metavar="N", help="global rank of this node's first")
    parser.add_argument("--address", required=True, metavar="IPV4", help="of the node of rank 0")
    parser.add_argument("--port", type=int, required=True, metavar="PORT", help="where its agent listens")
    parser.add_argument("--restarts", type=int, default=3, metavar="N", help="without a checkpoint in between")
    silence, frozen = (float(environ.get(name) or 60) for name in ("ORCH_SILENCE_S", "ORCH_FROZEN_S"))
    stuck = float(environ.get("ORCH_STUCK_S") or 30)
    parser.add_argument("--silence", type=float, default=silence, metavar="S", help="of a node, then it counts as lost")
    parser.add_argument("--absence", type=float, default=900.0, metavar="S", help="that a lost node is waited for")
    parser.add_argument("--frozen", type=float, default=frozen, metavar="S", help="without a sign of life: killed")
    parser.add_argument("--stuck", type=float, default=stuck, metavar="S", help="without progress: places are told")
    parser.add_argument("command", nargs="+", metavar="-- torchrun …")
    given = parser.parse_args(argv)
    names = tuple(given.nodes.split(","))
    if not 0 <= given.node_rank < len(names):
        parser.error(f"--node-rank {given.node_rank} does not fit --nodes {given.nodes}")
    return AgentOptions(
        run=f"{environ.get(environment.RUN_ID, '')}.{environ.get(environment.ATTEMPT, '0')}",
        names=names,
        node_rank=given.node_rank,
        first_rank=given.first_rank,
        address=given.address,
        port=given.port,
        restarts=given.restarts,
        silence_s=given.silence,
        absence_s=given.absence,
        frozen_s=given.frozen,
        stuck_s=given.stuck,
        folder=Path(environ.get(environment.RUN_DIR) or "."),
        command=tuple(given.command),
        save_s=float(environ.get(environment.SHUTDOWN_TIMEOUT_S) or 60),
        interface=environ.get("GLOO_SOCKET_IFNAME", ""),
    )
