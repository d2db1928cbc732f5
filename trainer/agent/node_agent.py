"""The agent of a node: starts, restarts and ends its ranks on the orders of the coordinator."""

from __future__ import annotations

import signal
import sys
import time
from dataclasses import asdict, replace
from types import FrameType
from typing import IO

from contract.event_lines import decode_event, encode_event
from contract.event_values import RankPosition
from contract.events import (
    AgentEvent,
    CheckpointWritten,
    Finished,
    GenerationStarted,
    OutputsCopied,
    ResourcesSampled,
    Restarting,
)
from contract.failures.owners import EXIT_CODES
from contract.log_lines import EVENT_MARK, split_rank
from contract.result_files import ResultFiles
from trainer.agent.coordinator import CopyFiles, EndRun, Notice, Order, ReportStacks, RestartRanks, StartRanks
from trainer.agent.coordinator_link import CoordinatorClient, CoordinatorLink, CoordinatorServer
from trainer.agent.exit_record import ExitRecord
from trainer.agent.file_copies import FileCopy
from trainer.agent.log_pipes import LogWriter
from trainer.agent.options import AgentOptions
from trainer.agent.own_data import check_data
from trainer.agent.place import PlaceFiles
from trainer.agent.rank_exit import RankExit
from trainer.agent.ranks import Ranks, adopt_orphans, warm_start
from trainer.agent.result_folder import ResultFolder
from trainer.agent.run_marks import why_not_to_begin
from trainer.agent.sampler import Readings, ResourceSampler
from trainer.agent.stdin_end import StdinEnd
from trainer.errors import TrainerError

LOOK_S = 0.25
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
PATIENCE_S = 5.0
"""Time for the last lines to be written at the end."""
ONE_WISH_S = 5.0
"""Signals to stop within this time count as one: a scheduler, a shell and an engine may each send their own."""
LAST_SAVE_S = 20.0
"""Time for a last checkpoint after the end of standard input: the program that would wait for it is gone, and the
machine counts as free."""
_MARK = EVENT_MARK.encode()


class NodeAgent:
    def __init__(self, options: AgentOptions, stdin_end: StdinEnd) -> None:
        self._options, self._stdin_end = options, stdin_end
        self._log = LogWriter(sys.stdout.buffer)
        self._link: CoordinatorLink | None = None
        self._ranks: Ranks | None = None
        self._warm = warm_start(options, lambda text: self._log.note("warm start", text))
        self._port: int | None = None
        """Port of the ranks that are to start, once the warm process is ready; None: none are."""
        self._copy: FileCopy | None = None
        self._generation = 0
        self._reported = 0.0
        """Time of the newest report on the ranks to the coordinator."""
        self._asked = 0
        """Number of requests to stop."""
        self._first_asked = 0.0
        self._over: RankExit | None = None
        self._exit_record = ExitRecord(options.folder, options.node_rank, options.run)
        self._place_files = None
        if options.place and not options.node_rank:
            self._place_files = PlaceFiles(options.place, options.place_folder)

    def run(self) -> int:
        """Run until the attempt has ended; return the container's exit code."""
        try:
            code = self._run()
            if self._place_files:
                self._place_files.end(code)
            return code
        finally:
            self._log.end(PATIENCE_S)

    def _run(self) -> int:
        if rank_exit := self._exit_record.read():
            self._emit(Finished(**asdict(rank_exit)))
            return EXIT_CODES[rank_exit.outcome]
        if why := self._superseded():
            self._emit(Finished(outcome="stopped", reason=why))
            return EXIT_CODES["stopped"]
        adopt_orphans()
        if self._warm:
            self._warm.prepare()
        for number in STOP_SIGNALS:
            signal.signal(number, self._stop)
        kind = CoordinatorClient if self._options.node_rank else CoordinatorServer
        self._link = link = kind(self._options, self._log.note)
        self._exit_record.reserve()
        if self._place_files:
            self._place_files.begin()
        sampler = self._sample()
        link.ready(self._generation, self._results())
        try:
            while self._over is None and not self._may_leave():
                for order in link.orders(LOOK_S):
                    self._obey(order, link)
                self._start(link)
                self._look(link)
                self._look_at_copy(link)
            return self._leave()
        finally:
            self._end_copy()
            if self._ranks:
                self._ranks.kill()
            if self._warm:
                self._warm.end()
            sampler.stop()
            link.close()
            self._exit_record.release()

    def _superseded(self) -> str:
        """Return why this container must not train; empty for one of the newest attempt. A scheduler ends its own
        jobs."""
        if self._options.place:
            return ""
        return why_not_to_begin(self._options.folder, int(self._options.run.rpartition(".")[2]))

    def _sample(self) -> ResourceSampler:
        options = self._options

        def meter() -> Readings:
            from trainer.resources import ResourceMeter  # an image of the user's may lack psutil

            return ResourceMeter(folder=options.folder, interface=options.interface)

        return ResourceSampler(
            options.folder / f"resources-{options.node_rank}.jsonl",
            lambda usage: self._emit(ResourcesSampled(usage=usage, positions=self._positions())),
            every_s=options.sample_s,
            meter=meter,
        )

    def _positions(self) -> tuple[RankPosition, ...] | None:
        ranks = self._ranks  # of another thread
        return (ranks.positions() or None) if ranks else None

    def _obey(self, order: Order, link: CoordinatorLink) -> None:
        if isinstance(order, StartRanks) and not self._ranks and not self._asked:
            self._generation = order.generation
            self._emit(GenerationStarted())
            self._port = order.port
            self._start(link)
        elif isinstance(order, RestartRanks):
            if (
                self._asked
            ):  # this node stops, too: of several that were asked to, one leaves first, and others may save
                return
            self._end_copy()
            self._port = None
            if self._ranks:
                self._ranks.kill()
                self._ranks = None
            if self._warm:
                self._warm.prepare()
            left, pause_s = order.restarts_left, order.pause_s
            self._emit(Restarting(**asdict(order.cause), restarts_left=left, pause_s=pause_s))
            link.ready(self._generation, self._results())
        elif isinstance(order, CopyFiles) and isinstance(link, CoordinatorClient) and not self._ranks:
            self._end_copy()
            self._copy = link.copy(order)
        elif isinstance(order, EndRun):
            self._over = order.rank_exit
        elif isinstance(order, ReportStacks) and self._ranks:
            self._ranks.take_stacks()
        elif isinstance(order, Notice) and not self._options.node_rank:
            self._emit(order.event)

    def _start(self, link: CoordinatorLink) -> None:
        """Start the ranks that are to start, unless the warm process is still importing torch."""
        if self._port is None or self._asked or self._over or (self._warm and not self._warm.is_settled()):
            return
        port, self._port, self._reported = self._port, None, 0.0
        try:
            self._ranks = Ranks(self._options, self._generation, self._write, port, link.store, self._warm)
            if not (self._options.place and self._options.node_rank):  # nodes of a cluster share their data
                check_data(self._options.check_data_mib_s, self._emit)
        except (OSError, RuntimeError) as error:  # out of memory, threads or descriptors: tell the other nodes
            reason = f"the ranks could not be started: {error}"
            link.ended(RankExit(outcome="infrastructure", node=self._options.node, reason=reason))
        except TrainerError as error:
            link.ended(RankExit(outcome="configuration", node=self._options.node, reason=str(error)))

    def _look(self, link: CoordinatorLink) -> None:
        if not self._ranks or self._ranks.is_done:
            return
        if event := self._ranks.look():
            self._emit(event)
        if progress := self._ranks.progress():
            self._emit(progress)
        now = time.monotonic()
        if self._ranks.signs and now - self._reported >= self._options.report_s:
            self._reported = now
            link.signs(self._generation, self._ranks.signs)
        if self._asked == 1:
            self._asked += 1
            self._ranks.ask_to_stop()
        if self._stdin_end.at is not None and time.monotonic() - self._stdin_end.at > LAST_SAVE_S:
            self._ranks.kill()
        if rank_exit := self._ranks.rank_exit():
            if rank_exit.outcome == "done":
                link.signs(self._generation, self._ranks.signs)
            if progress := self._ranks.progress(last=True):
                self._emit(progress)
            self._ranks = self._ranks if self._ranks.is_done else None
            if self._asked:
                rank_exit = RankExit(outcome="stopped", node=self._options.node, reason="it was asked to stop")
            link.ended(rank_exit)

    def _results(self) -> ResultFiles | None:
        """Files that the user's script has written here, None where they are not compared: one with checkpoints of
        this project continues from these."""
        folder = ResultFolder(self._options.folder)
        return folder.listed() if self._options.compares_outputs and not folder.has_checkpoints() else None

    def _look_at_copy(self, link: CoordinatorLink) -> None:
        if self._copy and (received := self._copy.result):
            self._copy = None
            self._emit(
                OutputsCopied(
                    source=self._options.names[0],
                    more=received.files,
                    total=received.bytes,
                    seconds=round(received.seconds, 1),
                    problem=received.problem,
                )
            )
            link.ready(self._generation, self._results())

    def _end_copy(self) -> None:
        if self._copy:
            self._copy.cancel()
            self._copy = None

    def _may_leave(self) -> bool:
        return self._asked > 0 and (self._ranks is None or self._ranks.is_done)

    def _leave(self) -> int:
        if self._over is None:
            return EXIT_CODES["stopped"]
        if self._ranks:
            self._ranks.kill()
            self._ranks = None
        self._emit(Finished(**asdict(self._over)))
        if self._over.outcome != "done":
            self._exit_record.write(self._over)
        return EXIT_CODES[self._over.outcome]

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        """First signal: ranks write a checkpoint and end. A later one: they end without."""
        now = time.monotonic()
        if self._asked and now - self._first_asked < ONE_WISH_S:
            return
        self._first_asked = self._first_asked or now
        self._asked += 1
        if self._asked > 2 and self._ranks:  # the first is counted twice, once it is passed on
            self._ranks.kill()

    # ── Output ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _write(self, out: IO[bytes], line: bytes) -> None:
        """Pass on a line of the ranks."""
        self._log.pass_on(out, line)
        if _MARK in line and self._link:
            rank, text = split_rank(line.decode())
            event = decode_event(text, rank)
            if isinstance(event, CheckpointWritten):
                self._link.progressed()
            if self._place_files:
                self._place_files.seen(event)

    def _emit(self, event: AgentEvent) -> None:
        """Write an event, completed by time, node and generation."""
        whole = replace(
            event,
            t=time.time(),
            node=event.node or self._options.node,
            node_rank=self._options.node_rank,
            generation=self._generation,
        )
        self._log.say(f"{encode_event(whole)}\n".encode())
