"""Probe from every node to every other whether the rendezvous port and random ones let a run's traffic pass.

Done where the ranks will be: in a container of the training image, confined and on the host's network like theirs.
Every node listens for a short while on its address of the inventory; then all dial all at once. gloo and NCCL open
ports of their own in addition to the rendezvous port: a firewall that passes that one alone leaves every rank waiting
(pytorch/pytorch#150532).
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
from orchestrator.specs.container_limits import container_limits
from orchestrator.specs.errors import CommandFailedError, ConflictError, NodeUnreachableError, OrchError
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.labels import LABEL_NODE, LABEL_PROJECT
from orchestrator.specs.network import Ended, Path

RANDOM_PORTS = 4
MOST_PID, MOST_MS = 2**22, 1e9
LISTENS_S = 45
"""Lifetime of a listener and its container, however this process ends."""
OPENING_S = 20.0
"""Time for a container to be created and started; a slower node is left out."""
DIALLING_S = reach_program.DIALS_END_S + 7


@dataclass(frozen=True, kw_only=True)
class PairReport:
    """Results of the tries from every node to every other."""

    paths: Mapping[str, tuple[Path, ...]]
    """Tries by the name of the node that dialled: one for each port of each peer."""
    silent: Mapping[str, str] = field(default_factory=dict)
    """Reason, by the name of a node, why no other could dial it, or why it could dial no other."""


def probe_pairs(
    specs: Sequence[NodeSpec], nodes: Sequence[Node], images: Mapping[str, str], port: int, *, project: str = "orch"
) -> PairReport:
    """All ordered pairs; `nodes` are those of `specs`, in the same order, and only they are dialled.

    `images`: the image of each node by name; without one, the host's python3 is used. Listeners
    and containers are gone when this returns or raises, also on Ctrl-C.
    """
    token = secrets.token_hex(16)
    probers = [
        _Prober(spec=spec, node=node, image=images.get(spec.name, ""), token=token, project=project)
        for spec, node in zip(specs, nodes, strict=True)
    ]
    silent: dict[str, str] = {}
    try:
        for opened in fan_out(probers, lambda one: one.listen(port), timeout_s=OPENING_S):
            if opened.error:
                silent[opened.item.name] = opened.error.message
        listening = [one for one in probers if one.ports]
        dialled = fan_out(probers, lambda one: one.dial(listening, port), timeout_s=DIALLING_S)
    finally:
        fan_out(probers, _Prober.leave, timeout_s=OPENING_S)
    paths: dict[str, tuple[Path, ...]] = {}
    for outcome in dialled:
        if outcome.error:
            silent.setdefault(outcome.item.name, outcome.error.message)
        paths[outcome.item.name] = outcome.result or ()
    return PairReport(paths=paths, silent=silent)


def _opened(answer: Any, node: str) -> tuple[int, tuple[int, ...], str]:
    """Process, ports and error of an answer to `listen`. CommandFailedError: it is another thing."""
    try:
        pid, ports, error = answer.get("pid", 0), tuple(answer.get("ports", ())), str(answer.get("error", ""))[:200]
    except (AttributeError, TypeError):
        pid, ports, error = 0, (None,), ""
    if (
        not _is_number(pid, MOST_PID)
        or len(ports) > 1 + RANDOM_PORTS
        or not all(_is_number(one, 65535) for one in ports)
    ):
        raise CommandFailedError("its answer to the pair probe is not valid", node=node)
    return pid, ports, error


def _is_number(value: object, most: int) -> bool:
    return type(value) is int and 0 <= value <= most


def _path(answer: Any, peers: Mapping[str, _Prober], master_port: int) -> Path:
    """ValueError, KeyError, TypeError: it is no answer to `dial`."""
    address, port, ended, ms, detail = answer
    if not _is_number(port, 65535) or not 0 <= float(ms) < MOST_MS:
        raise ValueError(answer)
    return Path(
        peer=peers[address].name,
        port=port,
        master=port == master_port,
        ended=Ended(ended),
        ms=ms,
        detail=str(detail)[:200],
    )


@dataclass
class _Prober:
    """The probe program on one node: in a container, or on its host."""

    spec: NodeSpec
    node: Node
    image: str
    token: str
    project: str
    address: str = ""
    ports: tuple[int, ...] = ()
    container: str = ""
    listener: int = 0
    """Process id on the host of what `listen` left behind."""
    asked: bool = False
    """The program runs here."""
    left: bool = False
    lock: Lock = field(default_factory=Lock)
    """`leave` waits for a container that is being made: the thread of an interrupted caller continues."""

    @property
    def name(self) -> str:
        return self.spec.name

    def listen(self, port: int) -> None:
        """Open the ports. A port that is taken is left alone."""
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
            pid, self.ports, error = _opened(answer, self.name)
            self.listener = 0 if self.container else pid
            self.asked = True
        if error:
            raise NodeUnreachableError(f"cannot listen on {error}", node=self.name)

    def dial(self, listening: Sequence[_Prober], master_port: int) -> tuple[Path, ...]:
        """Every port of every other node at once."""
        # not itself: by another name of this machine, or because each node has the same loopback addresses
        loopback = self.address.startswith("127.")
        others = [one for one in listening if one.address != self.address]
        peers = {one.address: one for one in others if one.address.startswith("127.") == loopback}
        targets = [f"{address}:{port}" for address, one in peers.items() for port in one.ports]
        if not targets or not self.asked:
            return ()
        words = ("dial", self.token, *targets)
        try:
            answers = self._ask(words, timeout_s=DIALLING_S)
        except CommandFailedError:  # a busy engine loses the output of a command now and then
            answers = self._ask(words, timeout_s=DIALLING_S)
        try:
            return tuple(_path(answer, peers, master_port) for answer in answers)
        except (ValueError, KeyError, TypeError):
            raise CommandFailedError("its answer to the pair probe is not valid", node=self.name) from None

    def leave(self) -> None:
        """Remove the container, or end the listener."""
        with self.lock:
            self.left = True
            if self.container:
                self._discard()
            elif self.listener:
                self._ask(("end", str(self.listener), self.token), timeout_s=5)

    def _enter(self) -> None:
        """Start a container if the node has the image."""
        limits = container_limits(self.spec.limits)
        if self.image and self.spec.engine == "docker":
            try:
                spec = ContainerSpec(
                    name=f"{self.project}-reach-{self.name}-{self.token[:6]}",
                    image=self.image,
                    command=("sleep", str(LISTENS_S)),
                    environment={},
                    labels={LABEL_PROJECT: self.project, LABEL_NODE: self.name},
                    working_dir="/",
                    cpus=min(1.0, limits.cpus),  # more than the node has is refused, and has its own finding
                    memory_mib=limits.memory_mib,
                    memory_reservation_mib=limits.memory_reservation_mib,
                    auto_remove=True,
                )
                self.container = self.node.engine.create(spec)
                self.node.engine.start(self.container)
                return
            except OrchError:  # the host's python3 is asked
                self._discard()

    def _discard(self) -> None:
        with suppress(ConflictError):  # the engine removes it by itself at its end
            if self.container:
                self.node.engine.remove(self.container)
        self.container = ""

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
