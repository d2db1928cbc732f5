"""Access of a node to the coordinator, which is in this process or on rank 0's node."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from contract.liveness import LivenessLimits
from contract.rank_signs import RankSigns
from contract.result_files import ResultFiles
from trainer.agent.connection_owner import ConnectionOwner
from trainer.agent.coordinator import (
    GONE,
    Coordinator,
    CopyFiles,
    EndRun,
    Notice,
    Order,
    RestartPolicy,
    RestartRanks,
    StartRanks,
)
from trainer.agent.file_copies import FileCopy, FileServer
from trainer.agent.handshake import FILES, MESSAGES, OWNERS, Greeting, draw, read_asked, read_token, read_welcome
from trainer.agent.listener import (
    GREETING_S,
    AgentListener,
    ListenerEvent,
    NodeConnected,
    NodeDisconnected,
)
from trainer.agent.messages import MisfitError, Ping, RanksEnded, Ready, Report, SignsReport, as_message, read_order
from trainer.agent.options import AgentOptions
from trainer.agent.rank_exit import RankExit
from trainer.agent.rendezvous_port import RendezvousPort, planned_port, starts_torchrun
from trainer.agent.result_folder import ResultFolder
from trainer.agent.store_proxy import StoreProxy
from trainer.agent.wire import SEND_S, AgentConnection

PING_S = 2.0
RETRY_S = 1.0
LINGER_S = 30.0
"""Seconds for which nodes that return after the end of a run can learn how it ended."""

Note = Callable[[str, str], None]
"""Writes a line for people, given its kind and text: few lines of one kind are written."""


def _print(_kind: str, text: str) -> None:
    print(text, file=sys.stderr)


class CoordinatorServer:
    """Access in the process that holds the coordinator. ConfigurationError: the attempt has no token."""

    def __init__(self, options: AgentOptions, note: Note = _print) -> None:
        self._coordinator = Coordinator(
            names=options.names,
            policy=RestartPolicy(
                restarts=options.restarts,
                silence_s=options.silence_s,
                absence_s=options.absence_s,
                hang_s=options.hang_s,
                limits=LivenessLimits.scaled(options.stuck_s),
                report_s=options.report_s,
                independent=options.independent,
                sync_outputs=options.sync_outputs,
            ),
        )
        self._options, self._note = options, note
        is_torchrun = starts_torchrun(options.command)
        self._port = RendezvousPort(planned_port({**os.environ, **options.environment}), note, listens=is_torchrun)
        self._proxy = StoreProxy() if is_torchrun else None
        self.store: socket.socket | None = None
        """Listening socket for torch's store of the next generation; None: torchrun makes its own."""
        self._own: list[Report] = []
        """Reports of this node that the coordinator has not processed."""
        self._informed = set[int]()
        """Ranks of the nodes that know how the run ended."""
        self._pinged = 0.0
        self._folder = ResultFolder(options.folder)
        self._files = FileServer(self._folder, note)
        self._uploading = set[int]()
        """Ranks of the nodes that send files to this one."""
        self._listener = None
        if len(options.names) > 1:
            take = {FILES: self._files.take, **({OWNERS: self._proxy.take} if self._proxy else {})}
            self._listener = AgentListener(options, read_token(options.token_file), note, take=take)
        self._coordinator.open(time.monotonic())

    def ready(self, generation: int, results: ResultFiles | None = None) -> None:
        """No rank runs here; the next generation can start. `results`: files here, None: not compared."""
        self._own.append(Ready(generation=generation, results=results))

    def ended(self, rank_exit: RankExit) -> None:
        self._own.append(RanksEnded(rank_exit=rank_exit))

    def signs(self, generation: int, signs: tuple[RankSigns, ...]) -> None:
        """Signs of the ranks here."""
        self._own.append(SignsReport(generation=generation, signs=signs))

    def progressed(self) -> None:
        """A checkpoint was written."""
        self._coordinator.progressed()

    def orders(self, timeout_s: float) -> Iterator[Order]:
        """Orders received within this time."""
        deadline = time.monotonic() + timeout_s
        while True:
            while self._own:
                yield from self._pass_on(self._reported(0, self._own.pop(0)))
            if (left := deadline - time.monotonic()) <= 0:
                break
            if not self._listener:
                time.sleep(left)
                continue
            for news in self._listener.hear(left):
                yield from self._pass_on(self._learn(self._listener, news))
        now = time.monotonic()
        if now - self._pinged >= PING_S:
            self._pinged = now
            self._send(Ping())
        while self._files.moved:
            self._coordinator.copying(self._files.moved.pop(), now)
        yield from self._pass_on(self._coordinator.tick(now))

    def close(self) -> None:
        """Wait for absent nodes, so that they learn how the run ended."""
        rank_exit, deadline = self._coordinator.over, time.monotonic() + min(LINGER_S, self._options.absence_s)
        if rank_exit and rank_exit.outcome != "done":
            while len(self._informed) < len(self._options.names) - 1 and time.monotonic() < deadline:
                for _ in self.orders(1.0):
                    pass
        self._files.close()
        if self._proxy:
            self._proxy.close()
        self._port.close()
        if self._listener:
            self._listener.close()

    def _learn(self, listener: AgentListener, news: ListenerEvent) -> list[Order]:
        if isinstance(news, NodeConnected):
            over = self._coordinator.over
            if over and listener.send_to(news.node_rank, as_message(EndRun(rank_exit=over))):
                self._informed.add(news.node_rank)
            return []
        if isinstance(news, NodeDisconnected):
            if not self._coordinator.over:  # afterwards every node leaves
                node = self._options.names[news.node_rank]
                self._note(f"left {news.node_rank}", f"the connection of {node} has ended: {news.reason}")
            self._files.drop(news.node_rank)
            self._uploading.discard(news.node_rank)
            return self._coordinator.gone(news.node_rank, time.monotonic())
        return self._reported(news.node_rank, news.report)

    def _reported(self, rank: int, report: Report) -> list[Order]:
        now = time.monotonic()
        if isinstance(report, Ready):
            if rank in self._uploading:
                self._uploading.discard(rank)
                self._coordinator.relisted(self._folder.listed())
            return self._coordinator.ready(rank, report.generation, now, report.results)
        if isinstance(report, RanksEnded):
            return self._coordinator.ended(rank, report.rank_exit, now)
        if isinstance(report, SignsReport):
            return self._coordinator.signs(rank, report.generation, report.signs, now)
        return self._coordinator.alive(rank, now)

    def _pass_on(self, orders: list[Order]) -> Iterator[Order]:
        for order in orders:
            if isinstance(order, StartRanks):
                order = replace(order, port=self._open_port())  # the order as it is sent
            if isinstance(order, CopyFiles):
                self._ask_to_copy(order)
                continue
            if not isinstance(order, Notice):
                self._send(order)
            yield order

    def _open_port(self) -> int:
        """Reserve the port of the next generation and listen on it for torch's store; 0: as the command says."""
        if self.store:  # no torchrun has taken it
            self.store.close()
        port = self._port.reserve()
        self.store = self._proxy.open(self._port.held, self._note) if self._proxy and self._port.held else None
        return port

    def _ask_to_copy(self, order: CopyFiles) -> None:
        if order.upload:
            self._uploading.add(order.node_rank)
            self._files.expected[order.node_rank] = order.files
        if self._listener:
            self._listener.send_to(order.node_rank, as_message(order))

    def _send(self, message: Ping | Order) -> None:
        sent = self._listener.send(as_message(message)) if self._listener else []
        if isinstance(message, EndRun):
            self._informed.update(sent)


class CoordinatorClient:
    """Access over the network; a lost connection is opened again. ConfigurationError: the attempt has no token."""

    def __init__(self, options: AgentOptions, note: Note = _print) -> None:
        self._options = options
        self._note = note
        self._token = read_token(options.token_file)
        self._connection: AgentConnection | None = None
        self._state: Report = Ready(generation=0)
        """The first report on a new connection."""
        self._pinged = self._tried = 0.0
        self._owner: ConnectionOwner | None = None
        self.store = None
        """Torch's store is on rank 0's node."""
        self._why_not = ""
        """Reason of the newest failed connection."""
        self._waits_since = time.monotonic()

    def ready(self, generation: int, results: ResultFiles | None = None) -> None:
        self._report(Ready(generation=generation, results=results))

    def copy(self, order: CopyFiles) -> FileCopy:
        """Begin to copy files from or to rank 0's node, on a connection of its own."""
        options, token = self._options, self._token
        return FileCopy(
            lambda: _greeted(options, token, FILES).detach(),
            ResultFolder(options.folder),
            order.files,
            upload=order.upload,
        )

    def ended(self, rank_exit: RankExit) -> None:
        self._report(RanksEnded(rank_exit=rank_exit))

    def signs(self, generation: int, signs: tuple[RankSigns, ...]) -> None:
        if self._connection:  # otherwise all ranks restart anyway
            self._connection.send(as_message(SignsReport(generation=generation, signs=signs)))

    def progressed(self) -> None:
        """Ignore progress of this node: checkpoints are written on rank 0's node."""

    def orders(self, timeout_s: float) -> Iterator[Order]:
        deadline = time.monotonic() + timeout_s
        if self._connection is None:
            self._connect()
        elif time.monotonic() - self._pinged >= PING_S:
            self._pinged = time.monotonic()
            self._connection.send(as_message(Ping()))
        if (connection := self._connection) is None:
            time.sleep(max(0.0, deadline - time.monotonic()))
            if (waited := time.monotonic() - self._waits_since) > self._options.absence_s:
                reason = f"it could not be reached for {waited:.0f} s"
                reason += f": {self._why_not}" if self._why_not else ""
                yield EndRun(rank_exit=RankExit(outcome="infrastructure", node=self._options.names[0], reason=reason))
            return
        try:
            for text in connection.receive(max(0.0, deadline - time.monotonic())):
                yield from self._read(text)
        except OSError as error:
            self._note("lost", f"the connection to {self._options.names[0]} has ended: {error}")
            yield from self._lost(GONE)
            return
        if (silent := time.monotonic() - connection.received_at) > self._options.silence_s:
            yield from self._lost(f"no word from {self._options.names[0]} for {silent:.0f} s")

    def close(self) -> None:
        if self._owner:
            self._owner.close()
        if self._connection:
            self._connection.close()

    def _report(self, state: Report) -> None:
        self._state = state
        if self._connection:
            self._connection.send(as_message(state))

    def _read(self, text: bytes) -> Iterator[Order]:
        try:
            order = read_order(text, self._options.names)
        except MisfitError as error:
            self._note("order", f"{self._options.names[0]} sent an invalid message: {error}")
            return
        if isinstance(order, StartRanks) and order.port and starts_torchrun(self._options.command):
            if self._owner:
                self._owner.close()
            connect = partial(_greeted, self._options, self._token, OWNERS)
            self._owner = ConnectionOwner(connect, (self._options.address,))
        if not isinstance(order, Ping):
            yield order

    def _connect(self) -> None:
        now = time.monotonic()
        if now - self._tried < RETRY_S:
            return
        self._tried = now
        try:
            self._connection = _greeted(self._options, self._token)
        except (OSError, MisfitError) as error:
            self._why_not = str(error)
            return
        self._why_not = ""
        self._connection.send(as_message(self._state))

    def _lost(self, why: str) -> Iterator[Order]:
        """Stop the ranks here: those of the other nodes stop or continue without them."""
        if self._connection:
            self._connection.close()
        self._connection, self._waits_since = None, time.monotonic()
        cause = RankExit(outcome="infrastructure", node=self._options.names[0], reason=why)
        yield RestartRanks(generation=0, cause=cause, restarts_left=-1, pause_s=0.0)


CoordinatorLink = CoordinatorServer | CoordinatorClient


def _greeted(options: AgentOptions, token: bytes, purpose: str = MESSAGES) -> AgentConnection:
    """Open an authenticated connection. OSError: no answer in time. MisfitError: the peer is not the coordinator, or
    refuses this node."""
    connection = AgentConnection(socket.create_connection((options.address, options.port), timeout=SEND_S))
    deadline = time.monotonic() + GREETING_S
    try:
        asked = read_asked(connection.next(deadline))
        greeting = Greeting(run=options.run, node_rank=options.node_rank, asked=asked, drawn=draw(), purpose=purpose)
        connection.send(greeting.as_message(token))
        read_welcome(connection.next(deadline), greeting, token)
    except BaseException:
        connection.close()
        raise
    return connection
