"""Command line of a node's agent."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contract import environment
from contract.run_folder import AGENTS_TOKEN


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
    """torchrun with its arguments, or a script of the user's that starts torchrun."""
    hang_s: float = 0.0
    """Time without progress of any rank of the run after which all restart; 0: they do not."""
    script_ranks: int = 0
    """Ranks that this script starts on the node; 0: the command is torchrun."""
    save_s: float = 60.0
    """Time for a last checkpoint of ranks that were asked to stop."""
    sample_s: float = 2.0
    """Time between two samples of the node's resources; 0: none are taken."""
    end_with_stdin: bool = False
    """Whether the end of standard input means that the program which carries this one is gone, and is a request to
    stop."""
    interface: str = ""
    """Network interface towards the other nodes, to listen on if `address` is not this machine's; empty: unknown."""
    token: Path | None = None
    """File with the agents' token; None: it is in the folder of the run."""

    @property
    def node(self) -> str:
        return self.names[self.node_rank]

    @property
    def token_file(self) -> Path:
        return self.token or self.folder / AGENTS_TOKEN


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
    parser.add_argument(
        "--script-ranks", type=int, default=0, metavar="N", help="the command is a script whose torchrun starts N ranks"
    )
    parser.add_argument(
        "--end-with-stdin", action="store_true", help="the end of standard input is a request to stop, as SIGTERM"
    )
    for name, default, text in (
        ("silence", float(environ.get("ORCH_SILENCE_S") or 60), "without a message a node counts as lost"),
        ("absence", 900.0, "time to wait for a lost node"),
        ("frozen", float(environ.get("ORCH_FROZEN_S") or 60), "without a heartbeat a rank is killed"),
        ("hang", 0.0, "without progress on any node all ranks restart; 0: they do not"),
        ("stuck", float(environ.get("ORCH_STUCK_S") or 30), "without progress the stacks are reported"),
    ):
        parser.add_argument(f"--{name}", dest=f"{name}_s", type=float, default=default, metavar="S", help=text)
    parser.add_argument("command", nargs="+", metavar="-- torchrun …")
    given = vars(parser.parse_args(argv))
    nodes, node_rank = given.pop("nodes"), given["node_rank"]
    names = tuple(nodes.split(","))
    if not 0 <= node_rank < len(names):
        parser.error(f"--node-rank {node_rank} does not fit --nodes {nodes}")
    return AgentOptions(
        run=f"{environ.get(environment.RUN_ID, '')}.{environ.get(environment.ATTEMPT, '0')}",
        names=names,
        command=tuple(given.pop("command")),
        **given,
        folder=Path(environ.get(environment.RUN_DIR) or "."),
        sample_s=float(environ.get("ORCH_SAMPLE_S") or 2),
        save_s=float(environ.get(environment.SHUTDOWN_TIMEOUT_S) or 60),
        interface=environ.get("GLOO_SOCKET_IFNAME", ""),
        token=Path(environ[environment.TOKEN_FILE]) if environ.get(environment.TOKEN_FILE) else None,
    )
