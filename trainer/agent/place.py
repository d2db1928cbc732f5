"""Place of this agent among the nodes of a job, from the environment that a scheduler gives to each of its processes.

A scheduler decides on nodes only when a job starts. So all nodes get the same submitted words, and rank, names and
address are bound here, once, in the job: nothing of it is computed in a shell. The environment is untrusted: it is read
with bounds, and a variable that is missing or does not fit is a configuration error with its name.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from contract import environment
from contract.events import CheckpointWritten, Event, TrainingResumed
from contract.hostlist import MAX_NAMES, HostlistError, expand
from contract.run_folder import LEFT, PROGRESSED, place_file
from trainer.agent.local_network import LocalNetwork
from trainer.errors import ConfigurationError

KINDS = ("fixed", "slurm", "kubernetes")
LONGEST_LIST = 64 * 1024
"""Characters of a list of nodes."""
RETRY_S = 1.0
REPORT_EVERY_S = 10.0
"""Time between two lines about the name that is waited for."""
LOOPBACK = "127.0.0.1"
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?")
_SRUN = "start it by `srun --ntasks-per-node=1`, on all nodes of the job"
_MANIFEST = "`orch export` writes manifests that set it"


@dataclass(frozen=True, kw_only=True)
class Seat:
    """The decisions of a scheduler for this process."""

    names: tuple[str, ...]
    """Names of all nodes, in order of node_rank."""
    node_rank: int
    job: str
    restarts: int
    """Number of times that the scheduler has started the job again."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Place of a node in an attempt: all that a plan for a LAN would have said before the start."""

    names: tuple[str, ...]
    node_rank: int
    attempt: int
    job: str
    restarts: int
    address: str
    """IPv4 address of rank 0's node."""
    port: int
    """Port of torchrun's rendezvous; the agents use the next one."""
    interface: str
    """Network interface towards the other nodes; empty: unknown."""

    def run(self, run_id: str) -> str:
        """Name of this attempt of a run."""
        return f"{run_id}.{self.attempt}"

    def environment(self, run_id: str, *, of_script: bool) -> dict[str, str]:
        """Variables of agent and ranks that differ between nodes or attempts. `of_script`: for a script that starts
        torchrun, which takes an option that it does not get from PET_…, too."""
        interface = {name: self.interface for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if self.interface}
        options = {f"PET_{name.replace('-', '_').upper()}": value for name, value in self.torchrun_options().items()}
        return {
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            "NNODES": str(len(self.names)),
            "NODE_RANK": str(self.node_rank),
            **interface,
            **({**options, "PET_RDZV_ID": self.run(run_id)} if of_script else {}),
            environment.ATTEMPT: str(self.attempt),
            environment.NODE: self.names[self.node_rank],
            environment.NODE_RANK: str(self.node_rank),
        }

    def torchrun_options(self) -> dict[str, str]:
        """Options of torchrun that differ between nodes or jobs, with their values, without dashes."""
        return {"node-rank": str(self.node_rank), "master-addr": self.address, "master-port": str(self.port)}

    def command(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Bind torchrun's words. ConfigurationError: they have a place already, or another number of nodes."""
        given = torchrun_given(argv)
        ours = self.torchrun_options()
        if fixed := sorted(given.keys() & {*ours, "rdzv-endpoint", "standalone"}):
            raise ConfigurationError(f"torchrun has --{', --'.join(fixed)}, which --place decides on in the job")
        nodes = str(len(self.names))
        if (requested := given.get("nnodes", nodes)) != nodes:
            raise ConfigurationError(f"torchrun has --nnodes {requested[:20]}, and the scheduler gave {nodes} nodes")
        ours |= {} if "nnodes" in given else {"nnodes": nodes}
        words = [word for name, value in ours.items() for word in (f"--{name}", value)]
        rest = list(argv[1:])
        if "rdzv-id" in given:  # a later life of the job must not meet processes of an earlier one
            at = rest.index("--rdzv-id") + 1
            rest[at] = self.run(rest[at])
        return (argv[0], *words, *rest)


def torchrun_given(argv: Sequence[str]) -> dict[str, str]:
    """Options of a torchrun line before its script or `-m`, with their values; a flag takes the next word for one."""
    given: dict[str, str] = {}
    words = iter(argv[1:])
    for word in words:
        if not word.startswith("--"):
            break
        name, equals, value = word.removeprefix("--").partition("=")
        given[name.replace("_", "-")] = value if equals else next(words, "")
    return given


@dataclass(frozen=True, kw_only=True)
class PlaceRequest:
    """The submitted words about a place that is known only in the job."""

    kind: str
    """`slurm` or `kubernetes`."""
    port: int
    interface: str = ""
    """Network interface that was asked for; empty: the one of the route to the other nodes."""
    attempt_base: int = 0
    """Attempt of the job's first life."""
    patience_s: float = 120.0
    """Time for the name of rank 0's node to get an address: in Kubernetes it comes with the pod."""


def find_place(request: PlaceRequest, environ: Mapping[str, str], network: LocalNetwork | None = None) -> Place:
    """Bind this agent to its place. ConfigurationError: the environment does not say it, or no address is found."""
    if not 1024 <= request.port <= 65534:
        raise ConfigurationError(f"--port {request.port} is not from 1024 to 65534; the agents use the next one")
    seat = (slurm_seat if request.kind == "slurm" else kubernetes_seat)(environ)
    resolver = Resolver(network or LocalNetwork(), request.patience_s)
    address, interface = resolver.meeting_point(seat, request.interface)
    return Place(
        names=seat.names, node_rank=seat.node_rank, attempt=request.attempt_base + seat.restarts, job=seat.job,
        restarts=seat.restarts, address=address, port=request.port, interface=interface,
    )  # fmt: skip


# ── The environments of schedulers ────────────────────────────────────────────────────────────────────────────────────


def slurm_seat(environ: Mapping[str, str]) -> Seat:
    """Seat of a task of a job step (srun(1), OUTPUT ENVIRONMENT VARIABLES)."""
    try:
        names = expand(_text(environ, "SLURM_JOB_NODELIST", _SRUN))
    except HostlistError as error:
        raise ConfigurationError(f"SLURM_JOB_NODELIST: {str(error)[:300]}") from error
    names = _checked("SLURM_JOB_NODELIST", names)
    job = str(_number(environ, "SLURM_JOB_ID", _SRUN, most=2**32 - 1, least=1))
    node_rank = _number(environ, "SLURM_NODEID", _SRUN, most=len(names) - 1)
    step_nodes = _number(environ, "SLURM_STEP_NUM_NODES", _SRUN, most=MAX_NAMES, least=1, default=len(names))
    if step_nodes != len(names):
        raise ConfigurationError(f"this job step has {step_nodes} of the {len(names)} nodes of job {job}: {_SRUN}")
    if local := _number(environ, "SLURM_LOCALID", _SRUN, most=2**16, default=0):
        raise ConfigurationError(f"this is task {local} of its node, and one agent serves all ranks of a node: {_SRUN}")
    if (own := environ.get("SLURMD_NODENAME", names[node_rank])) != names[node_rank]:
        raise ConfigurationError(
            f"SLURM_NODEID={node_rank} is {names[node_rank]} in SLURM_JOB_NODELIST, and SLURMD_NODENAME={own[:80]!r}"
        )
    restarts = _number(environ, "SLURM_RESTART_COUNT", _SRUN, most=10_000, default=0)
    return Seat(names=names, node_rank=node_rank, job=job, restarts=restarts)


def kubernetes_seat(environ: Mapping[str, str]) -> Seat:
    """Seat of a pod of an indexed Job."""
    names = _checked(environment.PEERS, tuple(_text(environ, environment.PEERS, _MANIFEST).split(",")))
    node_rank = _number(environ, "JOB_COMPLETION_INDEX", "completionMode of the Job is Indexed", most=len(names) - 1)
    restarts = _number(environ, environment.RESTART_COUNT, _MANIFEST, most=10_000, default=0)
    return Seat(names=names, node_rank=node_rank, job=environ.get("HOSTNAME", "")[:253], restarts=restarts)


def _text(environ: Mapping[str, str], name: str, fix: str) -> str:
    text = environ.get(name, "")
    if not text:
        raise ConfigurationError(f"{name} is not set, so the place of this agent is unknown: {fix}")
    if len(text) > LONGEST_LIST:
        raise ConfigurationError(f"{name} has {len(text)} characters, more than {LONGEST_LIST}")
    return text


def _number(
    environ: Mapping[str, str], name: str, fix: str, *, most: int, least: int = 0, default: int | None = None
) -> int:
    text = environ.get(name, "")
    if not text and default is not None:
        return default
    text = _text(environ, name, fix)
    if not re.fullmatch(r"[0-9]{1,10}", text) or not least <= int(text) <= most:
        raise ConfigurationError(f"{name}={text[:80]!r} is not a number from {least} to {most}")
    return int(text)


def _checked(variable: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """ConfigurationError: a name is none of a host, is there twice, or there are too many."""
    if len(names) > MAX_NAMES:
        raise ConfigurationError(f"{variable} has {len(names)} names, more than {MAX_NAMES}")
    for name in names:
        if not _NAME.fullmatch(name):
            raise ConfigurationError(f"{variable}: {name[:80]!r} is not the name of a host")
    if len(set(names)) < len(names):
        raise ConfigurationError(f"{variable} names a host twice")
    return names


# ── Addresses ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Resolver:
    """Find the address of rank 0's node from a node's names and interfaces."""

    def __init__(self, network: LocalNetwork, patience_s: float) -> None:
        self._network, self._patience_s = network, patience_s

    def meeting_point(self, seat: Seat, interface: str) -> tuple[str, str]:
        """Address of rank 0's node, the same on all nodes, and this node's interface towards the others.

        `interface`: the one that was asked for, or empty. An address in its network is preferred; where names lead to
        another network, agents and torchrun meet there, and gloo and NCCL use the interface.
        """
        network, is_first = self._network, seat.node_rank == 0
        if interface and not network.address_of(interface):
            raise ConfigurationError(
                f"{seat.names[seat.node_rank]} has no IPv4 address on the network interface {interface!r};"
                f" it has {', '.join(network.interfaces()) or 'none'}"
            )
        if len(seat.names) == 1:
            return LOOPBACK, interface or "lo"
        found = self._addresses(seat.names[0], own=is_first)
        preferred = [one for one in found if interface and network.is_in_network(one, interface)]
        if found:
            address = (preferred or found)[0]
        elif interface:
            address = network.address_of(interface)
        else:  # its own name is 127.0.1.1 to itself, as Debian's installer writes it
            peer = self._addresses(seat.names[1])[0]
            if not (address := network.address_towards(peer)):
                raise ConfigurationError(
                    f"the name {seat.names[0]} leads to loopback on its node, which has no route to {seat.names[1]};"
                    f" try there: ip route get {peer}"
                )
        if interface:
            return address, interface
        own = address if is_first else network.address_towards(address)
        return address, network.interface_with(own)

    def _addresses(self, name: str, *, own: bool = False) -> list[str]:
        """IPv4 addresses by which other machines reach a name, in the same order on all nodes. `own`: the name is this
        machine's, and may lead to loopback alone: none is returned then."""
        network, begin = self._network, self._network.now()
        reported_s = 0.0
        while True:
            found = network.addresses_of(name)
            usable = sorted((one for one in found if not one.startswith("127.")), key=socket.inet_aton)
            if usable or (own and found):
                return usable
            waited_s = network.now() - begin
            only = f" but {', '.join(found)}" if found else ""
            what = f"on {network.hostname()} the node {name} has no IPv4 address{only}, after {waited_s:.0f} s"
            if waited_s >= self._patience_s:
                raise ConfigurationError(f"{what}; try there: getent ahostsv4 {name}")
            if waited_s - reported_s >= REPORT_EVERY_S:
                reported_s = waited_s
                print(f"{what}; waiting up to {self._patience_s:.0f} s", file=sys.stderr, flush=True)
            network.sleep(RETRY_S)


# ── Files for the batch script, and for whoever asks after the scheduler has forgotten the job ────────────────────────


class PlaceFiles:
    """Facts about an attempt in the run's folder on shared storage. Rank 0's agent alone writes them."""

    def __init__(self, place: Place, folder: Path, network: LocalNetwork | None = None) -> None:
        self._place, self._folder = place, folder
        self._network = network or LocalNetwork()
        self._from_step = 0
        """Step of the checkpoint that this attempt began with."""
        self._progressed = False

    def begin(self) -> None:
        """Write who takes part; the addresses of the others follow, as a name server may take its time."""
        self._write_place({})
        Thread(target=self._add_addresses, daemon=True, name="addresses").start()

    def seen(self, event: Event | None) -> None:
        """Note the first checkpoint beyond the one that the attempt began with: queued again, the job will not loop."""
        if isinstance(event, TrainingResumed) and event.step:
            self._from_step = max(self._from_step, event.step)
        if isinstance(event, CheckpointWritten) and not self._progressed and (event.step or 0) > self._from_step:
            self._progressed = True
            self._write(PROGRESSED, f"{self._place.job}.{self._place.restarts}")

    def end(self, code: int) -> None:
        """Note the exit code: srun ends with 0 where its tasks were lost."""
        self._write(LEFT, f"{self._place.job}.{self._place.restarts} {code}")

    def _add_addresses(self) -> None:
        self._write_place({name: next(iter(self._network.addresses_of(name)), "") for name in self._place.names[1:]})

    def _write_place(self, found: Mapping[str, str]) -> None:
        place = self._place
        values = {
            "attempt": place.attempt,
            "job": place.job,
            "restart": place.restarts,
            "names": place.names,
            "addresses": [place.address, *(found.get(name, "") for name in place.names[1:])],
            "port": place.port,
            "at": time.time(),
        }
        self._write(place_file(place.attempt), json.dumps(values))

    def _write(self, name: str, text: str) -> None:
        """Write a file as a whole, also where others read it meanwhile. The training does not depend on it."""
        scratch = self._folder / f".{name}.{os.getpid()}"
        try:
            scratch.write_text(f"{text}\n", "utf-8")
            scratch.replace(self._folder / name)
        except OSError as error:
            print(f"{self._folder / name} could not be written: {error}", file=sys.stderr)
