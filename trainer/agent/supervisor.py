"""One node's part: its ranks run, are started again, or end, as the council says."""

from __future__ import annotations

import json
import signal
import sys
import time
from types import FrameType
from typing import IO

from contract.failures.owners import EXIT_CODES
from contract.log_lines import EVENT_MARK
from trainer.agent.coordinator import Again, Go, Order, Over, Tell
from trainer.agent.coordinator_link import Guest, Host, Link
from trainer.agent.exit_record import LastWord
from trainer.agent.options import Options
from trainer.agent.rank_exit import Ending
from trainer.agent.ranks import Ranks, adopt_orphans
from trainer.agent.voice import Voice

LOOK_S = 0.25
PATIENCE_S = 5.0
"""That the last lines are waited for, where nobody takes them."""
ONE_WISH_S = 5.0
"""Signals to stop within this time are one: a scheduler, a shell and an engine may each send their own."""
CHECKPOINT = f'{EVENT_MARK}{{"event": "checkpoint"'.encode()


class Supervisor:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._voice = Voice(sys.stdout.buffer)
        self._link: Link | None = None
        self._ranks: Ranks | None = None
        self._epoch = 0
        self._asked = 0
        """How often this node was told to stop."""
        self._first_asked = 0.0
        self._over: Ending | None = None
        self._last_word = LastWord(options.folder, options.node_rank, options.run)

    def run(self) -> int:
        """Until all is over; the container's exit code."""
        try:
            return self._run()
        finally:
            self._voice.end(PATIENCE_S)

    def _run(self) -> int:
        if ending := self._last_word.read():
            self._say("over", **_about(ending))
            return EXIT_CODES[ending.kind]
        adopt_orphans()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        kind = Guest if self._options.node_rank else Host
        self._link = link = kind(self._options, self._voice.note)
        self._last_word.reserve()
        link.ready(self._epoch)
        try:
            while self._over is None and not self._may_leave():
                for order in link.orders(LOOK_S):
                    self._obey(order, link)
                self._look(link)
            return self._leave()
        finally:
            if self._ranks:
                self._ranks.kill()
            link.close()
            self._last_word.give_back()

    def _obey(self, order: Order, link: Link) -> None:
        if isinstance(order, Go) and not self._ranks and not self._asked:
            self._epoch = order.epoch
            self._say("epoch")
            self._start(link)
        elif isinstance(order, Again):
            if self._ranks:
                self._ranks.kill()
                self._ranks = None
            if self._asked:  # nor does it start again: of nodes that were told to stop, one is the first to leave
                return
            left = {"restarts_left": order.restarts_left, "pause_s": order.pause_s}
            self._say("again", **_about(order.cause), **left)
            link.ready(self._epoch)
        elif isinstance(order, Over):
            self._over = order.ending
        elif isinstance(order, Tell) and not self._options.node_rank:
            self._say(order.kind, **order.values)

    def _start(self, link: Link) -> None:
        try:
            self._ranks = Ranks(self._options, self._epoch, self._write)
        except (
            OSError,
            RuntimeError,
        ) as error:  # no memory, thread or descriptor is left: the others are to know
            reason = f"the ranks could not be started: {error}"
            link.ended(Ending(kind="infrastructure", node=self._options.node, reason=reason))

    def _look(self, link: Link) -> None:
        if not self._ranks or self._ranks.is_done:
            return
        if news := self._ranks.look():
            self._say(**news)
        if self._asked == 1:
            self._asked += 1
            self._ranks.ask_to_stop()
        if ending := self._ranks.ending():
            self._ranks = self._ranks if self._ranks.is_done else None
            if self._asked:
                ending = Ending(kind="stopped", node=self._options.node, reason="it was told to stop")
            link.ended(ending)

    def _may_leave(self) -> bool:
        return self._asked > 0 and (self._ranks is None or self._ranks.is_done)

    def _leave(self) -> int:
        if self._over is None:
            return EXIT_CODES["stopped"]
        if self._ranks:
            self._ranks.kill()
            self._ranks = None
        self._say("over", **_about(self._over))
        if self._over.kind != "done":
            self._last_word.write(self._over)
        return EXIT_CODES[self._over.kind]

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        """Once: ranks write a checkpoint and end. Again, after a while: without."""
        now = time.monotonic()
        if self._asked and now - self._first_asked < ONE_WISH_S:
            return
        self._first_asked = self._first_asked or now
        self._asked += 1
        if self._asked > 2 and self._ranks:  # the first is counted twice, once it is passed on
            self._ranks.kill()

    # ── What is told ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _write(self, out: IO[bytes], line: bytes) -> None:
        """A line of the ranks."""
        self._voice.pass_on(out, line)
        if CHECKPOINT in line and self._link:
            self._link.progressed()

    def _say(self, event: str, **values: object) -> None:
        head = {"event": event, "t": time.time(), "rank": None, "node": self._options.node}
        said = {**head, "node_rank": self._options.node_rank, "epoch": self._epoch, **values}
        self._voice.say(f"{EVENT_MARK}{json.dumps(said)}\n".encode())


def _about(ending: Ending) -> dict[str, object]:
    """`class`, and whose end it is: node and rank are those of the ending, not of who tells it."""
    values = ending.as_values()
    return {"class": values.pop("kind"), **values}
