"""Processes that torchrun has forked, which wait to become its ranks."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence

from trainer.agent.processes import ChildProcess
from trainer.agent.warm_messages import receive, send


class WaitingRanks:
    """Processes that wait for the command of their rank, in the torchrun that has forked them."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, socket.socket]] = []
        self._reasons: set[str] = set()

    def fork(self, number: int) -> socket.socket | None:
        """Fork so many. Return the connection to torchrun in each of them, None in torchrun."""
        for _ in range(number):
            here, there = socket.socketpair()
            if pid := os.fork():
                there.close()
                self._waiting.append((pid, here))
                continue
            here.close()
            for _, other in self._waiting:
                other.close()
            return there
        return None

    def start(
        self, local_rank: int, argv: Sequence[str], environ: Mapping[str, str], outputs: Sequence[int]
    ) -> ChildProcess | None:
        """Start a rank. `outputs`: descriptors of its stdout and stderr. None: it must have a Python of its own."""
        if local_rank >= len(self._waiting):
            return None
        pid, connection = self._waiting[local_rank]
        with connection:
            try:
                send(connection, {"argv": list(argv), "environ": dict(environ)}, outputs)
                answer = receive(connection)[0]
            except (OSError, EOFError) as error:
                answer = {"refused": f"the forked process has ended ({error})"}
        if not answer["refused"]:
            return ChildProcess(pid)
        ChildProcess(pid).wait()
        if answer["refused"] not in self._reasons:
            self._reasons.add(answer["refused"])
            print(f"the ranks start without the warm process: {answer['refused']}", file=sys.stderr, flush=True)
        return None
