"""The warm process of an agent: started before the nodes meet, and again if it was killed.

See `warm_process`. Where it cannot be used, the ranks start without it, and the log has the reason.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trainer.agent import processes, warm_process
from trainer.agent.warm_messages import receive, send

IMPORT_S = 120.0
"""Time for the import of torch; without a warm process torchrun would need it, and then the ranks."""
ANSWER_S = 10.0
"""Time for an answer to a request."""


KILLED_S = 5.0
"""Time for it to end when it is killed."""


class WarmStart:
    """The warm process, if there is one."""

    def __init__(self, environ: Mapping[str, str], note: Callable[[str], None]) -> None:
        """`environ`: variables of every rank of the run. `note` writes a line to the log."""
        self._environ, self._note = environ, note
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._until: float | None = None
        """End of the time to import torch; None: it has done so, or there is no process."""
        self._is_over = False

    @property
    def pid(self) -> int:
        """Id of the process; 0: there is none."""
        return self._process.pid if self._process else 0

    def prepare(self) -> None:
        """Start the process, unless it lives or cannot be used on this node."""
        if self._process and self._process.poll() is not None:
            self._drop()
        if self._process or self._is_over:
            return
        self._control, there = socket.socketpair()
        try:
            with there:
                self._process = subprocess.Popen(
                    [sys.executable, "-u", str(Path(warm_process.__file__)), str(there.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,  # not read: Python's streams are made for pipes then, as those of a rank
                    stderr=subprocess.PIPE,
                    env=dict(self._environ),
                    start_new_session=True,
                    pass_fds=[there.fileno()],
                )
            self._until = time.monotonic() + IMPORT_S
        except OSError as error:
            self._give_up(str(error))

    def is_settled(self) -> bool:
        """Return whether it can be requested, or will not come."""
        if self._until is None or self._control is None:
            return True
        if not select.select([self._control], [], [], 0)[0]:
            if time.monotonic() > self._until:
                self._give_up(f"it has not imported torch after {IMPORT_S:.0f} s")
            return self._until is None
        self._until = None
        try:
            if refused := str(receive(self._control)[0]["refused"]):
                self._give_up(refused)
        except (OSError, EOFError):
            self._give_up("it ended while it imported torch")
        return True

    def torchrun(
        self,
        shown: Sequence[str],
        argv: Sequence[str],
        environ: Mapping[str, str],
        ranks: int,
        files: Sequence[int],
    ) -> processes.ChildProcess | None:
        """Start torchrun with these arguments. `shown`: the command that `ps` shows. `files`: descriptors of its
        stdout, stderr, the socket to the agent, and that for the store, if there is one. None: start it without."""
        if not self._control or not self.is_settled() or not self._control:
            return None
        before = {one.pid for one in processes.descendants(os.getpid())}
        request = {"shown": list(shown), "argv": list(argv), "environ": dict(environ), "ranks": ranks}
        try:
            self._control.settimeout(ANSWER_S)
            send(self._control, request, files)
            answer = receive(self._control)[0]
            refused = str(answer["refused"])
        except (OSError, EOFError) as error:
            refused = f"no answer in {ANSWER_S:.0f} s" if isinstance(error, TimeoutError) else "it was killed"
            self._drop()
            # What it has forked before it could answer would meet the ranks of the next torchrun.
            processes.kill_all(lambda: [one for one in processes.descendants(os.getpid()) if one.pid not in before])
        if refused:
            self._note(f"torchrun starts without the warm process: {refused}")
            return None
        return processes.ChildProcess(int(answer["pid"]))

    def end(self) -> None:
        """End the process; torchrun and the ranks remain."""
        self._is_over = True
        self._drop()

    def _give_up(self, why: str) -> None:
        self._note(f"the ranks start without a warm process: {why}")
        self.end()

    def _drop(self) -> None:
        self._until = None
        if self._control:
            self._control.close()
            self._control = None
        if self._process:
            self._process.kill()
            for stream in (self._process.stdout, self._process.stderr):
                if stream:
                    stream.close()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a disk or a driver holds it
                self._process.wait(KILLED_S)
            self._process = None
