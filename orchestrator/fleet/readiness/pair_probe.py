"""From every node to every other: do the rendezvous port and others, of the kernel's choice, pass what a run sends?

Asked where the ranks will be: in a container of the training image, confined and on the host's network like theirs.
Every node listens for a short while on its address of the inventory; then all dial all at once. Most multi-machine runs
that never begin are explained here: gloo and NCCL open ports of their own beside the rendezvous port, so a firewall
that passes that one alone leaves every rank waiting (pytorch/pytorch#150532).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path as File
from threading import Lock
from typing import Any

from orchestrator.fleet.fan_out import fan_out
from orchestrator.nodes.interface import Node
from orchestrator.nodes.probes import reach_program
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.errors import CommandFailedError, ConflictError, NodeUnreachableError, OrchError
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.labels import LABEL_NODE, LABEL_PROJECT
from orchestrator.specs.network import Ended, Path

RANDOM_PORTS = 4
LISTENS_S = 45
"""A listener's own end, and its container's: however this process ends, nothing stays behind for longer."""
OPENING_S = 20.0
"""For a container to be made and started; a node that takes longer is not waited for."""
DIALLING_S = reach_program.DIALS_END_S + 7


@dataclass(frozen=True, kw_only=True)
class PairReport:
    """Results of the tries from every node to every other."""

    paths: Mapping[str, tuple[Path, ...]]
    """Tries by the name of the node that dialled: one for each port of each peer."""
    silent: Mapping[str, str] = field(default_factory=dict)
    """Reason, by the name of a node, why no other could dial it, or why it could dial no other."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Differences from a run, by the name of a node, such as a rendezvous port that is taken."""


def probe_pairs(
    specs: Sequence[NodeSpec], nodes: Sequence[Node], images: Mapping[str, str], port: int, *, project: str = "orch"
) -> PairReport:
    """All ordered pairs; `nodes` are those of `specs`, in the same order, and only they are dialled.

    `images` holds the image of each node by name: where it is missing, the host's python3 stands in, which the notes
    say. Listeners and containers are gone when this returns or raises, also on Ctrl-C.
    """
    token = secrets.token_hex(16)
    seats = [
        _Seat(spec=spec, node=node, image=images.get(spec.name, ""), token=token, project=project)
        for spec, node in zip(specs, nodes, strict=True)
    ]
    silent: dict[str, str] = {}
    try:
        for opened in fan_out(seats, lambda seat: seat.listen(port), timeout_s=OPENING_S):
            if opened.error:
                silent[opened.item.name] = opened.error.message
        listening = [seat for seat in seats if seat.ports]
        dialled = fan_out(seats, lambda seat: seat.dial(listening, port), timeout_s=DIALLING_S)
    finally:
        fan_out(seats, _Seat.leave, timeout_s=OPENING_S)
    paths: dict[str, tuple[Path, ...]] = {}
    for outcome in dialled:
        if outcome.error:
            silent.setdefault(outcome.item.name, outcome.error.message)
        paths[outcome.item.name] = outcome.result or ()
    return PairReport(
        paths=paths, silent=silent, notes={seat.name: "; ".join(seat.notes) for seat in seats if seat.notes}
    )


@dataclass
class _Seat:
    """The place on one node where the program runs: a container, or its host."""

    spec: NodeSpec
    node: Node
    image: str
    token: str
    project: str
    address: str = ""
    ports: tuple[int, ...] = ()
    notes: list[str] = field(default_factory=list)
    container: str = ""
    listener: int = 0
    """On the host: the process that `listen` left behind."""
    asked: bool = False
    """The program runs here."""
    left: bool = False
    lock: Lock = field(default_factory=Lock)
    """`leave` waits for what is being made: a thread whose caller was interrupted continues."""

    @property
    def name(self) -> str:
        return self.spec.name

    def listen(self, port: int) -> None:
        """Open the ports. What a run holds already, or anybody else, is left alone and noted."""
        self.address = self.node.address
        with self.lock:
            if self.left:
                return
            self._enter()
            words = ("listen", self.address, str(port), str(RANDOM_PORTS), str(LISTENS_S), self.token)
            try:
                answer = self._ask(words, timeout_s=OPENING_S)
            except CommandFailedError:
                if not self.container:
                    raise
                self._discard()  # and with it a listener whose answer was lost
                self._enter()
                answer = self._ask(words, timeout_s=OPENING_S)
            self.listener = 0 if self.container else int(answer.get("pid", 0))
            self.asked = True
        if "error" in answer:
            raise NodeUnreachableError(f"cannot listen on {answer['error']}", node=self.name)
        if answer["taken"]:
            self.notes.append(f"port {port} is taken, so it was not tried")
        self.ports = tuple(answer["ports"])

    def dial(self, listening: Sequence[_Seat], master_port: int) -> tuple[Path, ...]:
        """Every port of every other node at once."""
        peers = {seat.address: seat for seat in listening if self._may_dial(seat)}
        targets = [f"{address}:{port}" for address, seat in peers.items() for port in seat.ports]
        if not targets or not self.asked:
            return ()
        words = ("dial", self.token, *targets)
        try:
            answers = self._ask(words, timeout_s=DIALLING_S)
        except CommandFailedError:  # a busy engine loses the output of a command now and then
            answers = self._ask(words, timeout_s=DIALLING_S)
        return tuple(
            Path(
                peer=peers[address].name,
                port=port,
                master=port == master_port,
                ended=Ended(ended),
                ms=ms,
                detail=detail,
            )
            for address, port, ended, ms, detail in answers
        )

    def _may_dial(self, peer: _Seat) -> bool:
        """Not itself: by another name of this machine, or because a loopback address leads each to itself."""
        loopback = [seat.address.startswith("127.") for seat in (self, peer)]
        return peer.address != self.address and loopback[0] == loopback[1]

    def leave(self) -> None:
        """Nothing stays behind: no container, no listener."""
        with self.lock:
            self.left = True
            if self.container:
                self._discard()
            elif self.listener:
                self._ask(("end", str(self.listener), self.token), timeout_s=5)

    def _enter(self) -> None:
        """A container where there is an image for it."""
        why = "each rank is a process of the host" if self.spec.engine == "process" else "it does not have the image"
        if self.image and self.spec.engine == "docker":
            try:
                self.container = self.node.engine.create(self._container())
                self.node.engine.start(self.container)
                return
            except OrchError as error:
                why = error.message
                self._discard()
        self.notes.append(f"asked by the host's python3: {why}")

    def _discard(self) -> None:
        """The engine removes it by itself at its end: then it is in the middle of that, or done."""
        with suppress(ConflictError):
            if self.container:
                self.node.engine.remove(self.container)
        self.container = ""

    def _container(self) -> ContainerSpec:
        return ContainerSpec(
            name=f"{self.project}-reach-{self.name}-{self.token[:6]}",
            image=self.image,
            command=("sleep", str(LISTENS_S)),
            environment={},
            labels={LABEL_PROJECT: self.project, LABEL_NODE: self.name},
            working_dir="/",
            cpus=min(1.0, self.spec.limits.cpus),  # a limit above what is there is refused, and has its own finding
            memory_mib=self.spec.limits.memory_mib,
            memory_reservation_mib=self.spec.limits.memory_reservation_mib,
            auto_remove=True,
        )

    def _ask(self, words: Sequence[str], *, timeout_s: float) -> Any:
        """Answer of the program, decoded from JSON."""
        program = ("-c", File(reach_program.__file__).read_text("utf-8"), *words)
        if self.container:
            answer = self.node.engine.execute(self.container, ("python", *program))
        else:
            answer = self.node.run(("python3", *program), timeout_s=timeout_s)
        try:
            return json.loads(answer.check(f"{words[0]} for the pair probe").splitlines()[-1])
        except (ValueError, IndexError, RecursionError):
            raise CommandFailedError("its answer to the pair probe is not valid", node=self.name) from None
