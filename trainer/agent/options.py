"""Command line of a node's agent."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from contract import environment
from contract.run_folder import AGENTS_TOKEN
from trainer.agent.file_lists import ALL, OFF, RESULTS
from trainer.agent.log_pipes import ranks_of
from trainer.agent.place import KINDS, Place, PlaceRequest, find_place


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
    """Time without progress of any rank before collectives that can never complete are reported; the other limits of
    `contract.liveness` are in proportion."""
    folder: Path
    """Folder of the run."""
    command: tuple[str, ...]
    """torchrun with its arguments, or a script of the user's that starts torchrun."""
    hang_s: float = 0.0
    """Time without progress of any rank of the run after which all restart, if they are stuck; 0: they do not."""
    independent: bool = False
    """True if each rank is meant to train its own model."""
    sync_outputs: str = RESULTS
    """Files that are copied between the nodes before a start; see `file_lists`."""
    compares_outputs: bool = False
    """True if the ranks run a script of the user's, which may write files on rank 0's node alone."""
    warm_start: bool = True
    """True if torchrun and the ranks are forked from a process that has imported torch; see `warm_process`."""
    script_ranks: int = 0
    """Ranks that this script starts on the node; 0: the command is torchrun."""
    save_s: float = 60.0
    """Time for a last checkpoint of ranks that were asked to stop."""
    sample_s: float = 2.0
    """Time between two samples of the node's resources; 0: none are taken."""
    check_data_mib_s: float = 8.0
    """Rate at which the run's data is read to be compared with its sums; 0: it is not."""
    place: Place | None = None
    """Place that was bound in a job; None: the command line says it."""
    place_folder: Path = Path()
    """Folder for the files about this place."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of this place for the ranks, in addition to those of the agent."""
    interface: str = ""
    """Network interface towards the other nodes, to listen on if `address` is not this machine's; empty: unknown."""
    token: Path | None = None
    """File with the agents' token; None: it is in the folder of the run."""

    @property
    def node(self) -> str:
        return self.names[self.node_rank]

    @property
    def report_s(self) -> float:
        """Time between two reports on the ranks to the coordinator."""
        return min(10.0, self.stuck_s / 3)

    @property
    def token_file(self) -> Path:
        return self.token or self.folder / AGENTS_TOKEN


def read(argv: Sequence[str], environ: Mapping[str, str]) -> AgentOptions:
    """Parse the command line and bind this agent to its place in a job; argparse ends the process if it is invalid.
    ConfigurationError: the scheduler's environment does not say the place, or no address is found."""
    return complete(parse(argv, environ), environ)


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> argparse.Namespace:
    """Parse the command line alone."""
    parser = build_parser(environ)
    given = parser.parse_args(argv)
    if given.place == "fixed":
        words = {"--nodes": given.nodes, "--node-rank": given.node_rank, "--address": given.address}
        if missing := [word for word, value in words.items() if value is None]:
            parser.error(f"the following arguments are required: {', '.join(missing)}")
        if not 0 <= given.node_rank < len(given.nodes.split(",")):
            parser.error(f"--node-rank {given.node_rank} does not fit --nodes {given.nodes}")
    return given


def build_parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    """Build the parser; the environment has some defaults."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.agent",
        description="Run torchrun on this node; restart and end it together with those of the other nodes.",
        epilog="python -m trainer.agent --nodes alpha,beta --node-rank 0 --address 10.0.0.11 --port 12356 -- …",
    )
    _add_place(parser)
    parser.add_argument("--restarts", type=int, default=3, metavar="N", help="restarts without a new checkpoint")
    parser.add_argument(
        "--script-ranks", type=int, default=0, metavar="N", help="the command is a script whose torchrun starts N ranks"
    )
    parser.add_argument(
        "--end-with-stdin", action="store_true", help="the end of standard input is a request to stop, as SIGTERM"
    )
    parser.add_argument(
        "--end-with-parent", action="store_true", help="the end of the process that started it is one, too"
    )
    parser.add_argument("--independent", action="store_true", help="each rank trains its own model, as intended")
    parser.add_argument(
        "--no-warm-start", dest="warm_start", action="store_false", help="each rank is a start of Python of its own"
    )
    parser.add_argument("--stamp-lines", action="store_true", help="write the time in UTC before each line")
    parser.add_argument(
        "--sync-outputs", choices=(OFF, RESULTS, ALL), default=RESULTS,
        help="before a restart, copy files of rank 0's node to the others; all: those of other ranks, too",
    )  # fmt: skip
    for name, default, text in (
        ("silence", float(environ.get("ORCH_SILENCE_S") or 60), "without a message a node counts as lost"),
        ("absence", 900.0, "time to wait for a lost node"),
        ("frozen", float(environ.get("ORCH_FROZEN_S") or 60), "without a heartbeat and CPU time a rank is killed"),
        ("hang", 0.0, "without progress all ranks that are stuck restart; 0: they do not"),
        (
            "stuck",
            float(environ.get("ORCH_STUCK_S") or 30),
            "without progress a deadlock is reported; other limits in proportion",
        ),
    ):
        parser.add_argument(f"--{name}", dest=f"{name}_s", type=float, default=default, metavar="S", help=text)
    parser.add_argument("command", nargs="+", metavar="-- torchrun …")
    return parser


def _add_place(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--place", choices=KINDS, default="fixed", help="where nodes, rank and address come from; fixed: these words")
    add("--nodes", metavar="NAMES", help="all nodes by node_rank: alpha,beta")
    add("--node-rank", type=int, metavar="N")
    add("--first-rank", type=int, default=0, metavar="N", help="global rank of this node's first rank")
    add("--address", metavar="IPV4", help="address of rank 0's node")
    add("--port", type=int, required=True, metavar="PORT", help="port of its agent; in a job torchrun's, and the next")
    add("--interface", default="", metavar="NAME", help="in a job: network interface towards the other nodes")
    add("--attempt-base", type=int, default=0, metavar="N", help="in a job: number of its first life's attempt")
    add("--place-folder", metavar="DIR", help="in a job: folder for the files about its place (default: the run's)")


def complete(given: argparse.Namespace, environ: Mapping[str, str]) -> AgentOptions:
    """Options from the parsed command line and the environment. ConfigurationError: see `read`."""
    values = vars(given).copy()
    kind, interface = values.pop("place"), values.pop("interface")
    attempt_base, place_folder = values.pop("attempt_base"), values.pop("place_folder")
    del values["stamp_lines"], values["end_with_stdin"], values["end_with_parent"]
    run_id, folder = environ.get(environment.RUN_ID, ""), Path(environ.get(environment.RUN_DIR) or ".")
    if kind == "fixed":
        names, command = tuple(values.pop("nodes").split(",")), tuple(values.pop("command"))
        attempt, place, ours = environ.get(environment.ATTEMPT, "0"), None, {}
    else:
        request = PlaceRequest(
            kind=kind, port=values["port"], interface=interface, attempt_base=attempt_base,
            patience_s=values["absence_s"],
        )  # fmt: skip
        place = find_place(request, environ)
        script_ranks, argv = values["script_ranks"], values.pop("command")
        names, attempt = place.names, str(place.attempt)
        command = tuple(argv) if script_ranks else place.command(argv)
        ours = place.environment(run_id, of_script=script_ranks > 0)
        values |= {
            "node_rank": place.node_rank,
            "first_rank": place.node_rank * (script_ranks or ranks_of(command)),
            "address": place.address,
            "port": place.port + 1,
        }
        del values["nodes"]
    return AgentOptions(
        run=f"{run_id}.{attempt}",
        names=names,
        command=command,
        **values,
        folder=folder,
        place=place,
        place_folder=Path(place_folder) if place_folder else folder,
        environment=ours,
        sample_s=float(environ.get("ORCH_SAMPLE_S") or 2),
        check_data_mib_s=float(environ.get(environment.CHECK_DATA_MIB_S) or 8),
        compares_outputs=environment.RESUME in environ,
        save_s=float(environ.get(environment.SHUTDOWN_TIMEOUT_S) or 60),
        token=Path(environ[environment.TOKEN_FILE]) if environ.get(environment.TOKEN_FILE) else None,
        interface={**environ, **ours}.get("GLOO_SOCKET_IFNAME", ""),
    )
