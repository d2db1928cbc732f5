"""Command line of a node's agent."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contract import environment


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    run: str
    """Run and attempt; messages of another one are refused."""
    names: tuple[str, ...]
    """Names of all nodes, in order of node_rank."""
    node_rank: int
    first_rank: int
    address: str
    """IPv4 address of rank 0's node, on which its agent listens."""
    port: int
    restarts: int
    silence_s: float
    absence_s: float
    frozen_s: float
    stuck_s: float
    """Time without progress of any rank of this node before the position of each is reported."""
    folder: Path
    """Folder of the run."""
    command: tuple[str, ...]
    """torchrun with its arguments."""
    save_s: float = 60.0
    """Time for a last checkpoint of ranks that were asked to stop."""
    interface: str = ""
    """Network interface towards the other nodes; empty: unknown."""

    @property
    def node(self) -> str:
        return self.names[self.node_rank]


def read(argv: Sequence[str], environ: Mapping[str, str]) -> AgentOptions:
    """Parse the command line; argparse ends the process if it is invalid."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.agent",
        description="Run torchrun on this node; restart and end it together with those of the other nodes.",
        epilog="python -m trainer.agent --nodes alpha,beta --node-rank 0 --address 10.0.0.11 --port 12356 -- …",
    )
    parser.add_argument("--nodes", required=True, metavar="NAMES", help="all nodes by node_rank: alpha,beta")
    parser.add_argument("--node-rank", type=int, required=True, metavar="N")
    parser.add_argument("--first-rank", type=int, default=0, metavar="N", help="global rank of this node's first rank")
    parser.add_argument("--address", required=True, metavar="IPV4", help="address of rank 0's node")
    parser.add_argument("--port", type=int, required=True, metavar="PORT", help="port of its agent")
    parser.add_argument("--restarts", type=int, default=3, metavar="N", help="restarts without a new checkpoint")
    silence, frozen = (float(environ.get(name) or 60) for name in ("ORCH_SILENCE_S", "ORCH_FROZEN_S"))
    stuck = float(environ.get("ORCH_STUCK_S") or 30)
    parser.add_argument(
        "--silence", type=float, default=silence, metavar="S", help="without a message a node counts as lost"
    )
    parser.add_argument("--absence", type=float, default=900.0, metavar="S", help="time to wait for a lost node")
    parser.add_argument(
        "--frozen", type=float, default=frozen, metavar="S", help="without a heartbeat a rank is killed"
    )
    parser.add_argument(
        "--stuck", type=float, default=stuck, metavar="S", help="without progress the stacks are reported"
    )
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
