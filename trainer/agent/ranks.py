"""torchrun and its ranks as children of this process: started, listened to, and ended without a trace."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

from contract.log_lines import rank_prefix
from trainer.agent import at_start, heartbeat
from trainer.agent.hang_detector import Standstill, about, frozen, mark_of
from trainer.agent.log_pipes import ERR, OUT, PIECE, Streams, ranks_of, through_pipes
from trainer.agent.options import Options
from trainer.agent.rank_exit import Ending, read_ending
from trainer.agent.stacks import Question

KEPT_LINES = 400
"""Of each stream: what one rank goes on to say does not push out of what another ended with."""
KEPT_LETTERS = 64 * 1024
"""Of each of these lines."""
LISTEN_S = 5.0
"""How long the last lines of killed ranks may take: as long as whoever takes ours, and no longer."""
KILL_S = 15.0
"""How long killed processes may take to be gone; one that a driver holds never is, and ends with its container."""
_PR_SET_CHILD_SUBREAPER = 36
_RUN = "import runpy, sys; sys.path.remove(''); runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
OUR_MODULE = ("-P", "-m") if sys.version_info >= (3, 11) else ("-c", _RUN)
"""Words of Python that run a module of this package, whatever lies in the working folder, which is the user's."""


def adopt_orphans() -> None:
    """From now on, processes whose parent dies are children of this one: none can be overlooked (prctl(2))."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Ranks:
    """One torchrun."""

    def __init__(self, options: Options, epoch: int, write: Callable[[IO[bytes], bytes], None]) -> None:
        """`write` passes on a line of its output."""
        self._options = options
        self._lines = 0
        self._frozen = ""
        self._saving: list[psutil.Process] = []
        """Ranks that were told to stop and may write a checkpoint."""
        self._save_until = 0.0
        self._standstill = Standstill(min(options.stuck_s, options.frozen_s / 2), time.monotonic())
        self._asked: tuple[Question, float] | None = None
        """Where the ranks stand, and the seconds without progress of which that is to be told."""
        self._write = write
        self._beats = Path(tempfile.mkdtemp(prefix="beats-"))
        self._streams = Streams(ranks_of(options.command))
        self.is_done = False
        """Whether all ranks have ended well; torchrun stays until all other nodes' have, too."""
        self._ear, mouth = socket.socketpair()
        self._ear.setblocking(False)
        self._process = subprocess.Popen(
            torchrun_line(options.command, epoch, self._streams.folder, mouth.fileno()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(epoch, self._beats),
            start_new_session=True,
            pass_fds=(mouth.fileno(),),
        )
        mouth.close()
        outs = {OUT: sys.stdout.buffer, ERR: sys.stderr.buffer}
        streams: list[tuple[Any, IO[bytes], str]] = [
            (stream, outs[name], rank_prefix(options.first_rank + local_rank))
            for local_rank, name, stream in self._streams.readers
        ]
        streams += [(self._process.stdout, outs[OUT], ""), (self._process.stderr, outs[ERR], "")]
        self._tails: list[deque[str]] = [deque(maxlen=KEPT_LINES) for _ in streams]
        each = zip(streams, self._tails, strict=True)
        self._pumps = [threading.Thread(target=self._pump, args=(*stream, tail), daemon=True) for stream, tail in each]
        try:
            for pump in self._pumps:
                pump.start()
        except RuntimeError:  # no thread left: nobody would read what the ranks write
            self._pumps = [pump for pump in self._pumps if pump.is_alive()]
            self.kill()
            raise

    def ending(self) -> Ending | None:
        """How the ranks ended; None while they have not. To be asked until it is told."""
        if self.is_done or self._says_done():
            self.is_done = True
            return Ending(kind="done", node=self._options.node, exit_code=0)
        code = self._process.poll()
        if code is None or (time.monotonic() < self._save_until and psutil.wait_procs(self._saving, timeout=0)[1]):
            return None
        self.kill()
        node, first_rank = self._options.node, self._options.first_rank
        last = [line for tail in self._tails for line in list(tail)]
        return read_ending(node, code, last, first_rank=first_rank, frozen=self._frozen)

    def _says_done(self) -> bool:
        try:
            return self._ear.recv(16) == b"done"
        except OSError:  # nothing yet
            return False

    def look(self) -> dict[str, Any]:
        """The news of these ranks, as an event: `stuck` with the place of each, `moving` again; empty where there is
        none. A rank that has given no sign of life for too long is killed once it was asked; torchrun sees it end."""
        now = time.monotonic()
        try:
            signs = list(heartbeat.signs(self._beats))
            return self._answered(signs, now) if self._asked else self._noticed(signs, now)
        except (OSError, ValueError) as error:  # the files are the ranks' to write: no run ends by what is told of it
            print(f"where the ranks stand is not known: {error}", file=sys.stderr)
            self._asked = None
            return {}

    def _noticed(self, signs: Sequence[heartbeat.Sign], now: float) -> dict[str, Any]:
        silent_s = max((now - sign.at_s for sign in self._frozen_ones(signs, now)), default=0.0)
        told = self._standstill.look(mark_of(signs, self._lines), now)
        if told and told[0] == "moving":
            return {"event": "moving", "seconds": round(told[1])}
        if told or silent_s:
            self._asked = Question(self._beats, now), told[1] if told else silent_s
        return {}

    def _answered(self, signs: Sequence[heartbeat.Sign], now: float) -> dict[str, Any]:
        assert self._asked  # noqa: S101  # else nothing is answered
        question, seconds = self._asked
        if (stacks := question.answer(now)) is None:
            return {}
        self._asked = None
        places = about(stacks, signs, self._options.first_rank)
        for sign in self._frozen_ones(signs, now):
            place = next((place for place in places if place["process"] == sign.process), {})
            self._frozen = frozen(sign.local_rank, now - sign.at_s, place)
            with contextlib.suppress(ProcessLookupError):
                os.kill(sign.process, signal.SIGKILL)
        return {"event": "stuck", "seconds": round(seconds), "ranks": places} if places else {}

    def _frozen_ones(self, signs: Sequence[heartbeat.Sign], now: float) -> list[heartbeat.Sign]:
        """One at most, once: its end is everybody's."""
        silent = [
            sign for sign in signs if now - sign.at_s > self._options.frozen_s and psutil.pid_exists(sign.process)
        ]
        return [] if self._frozen else silent[:1]

    def ask_to_stop(self) -> None:
        """SIGTERM: ranks write a checkpoint and end, also where torchrun, signalled twice, does not wait for them."""
        self._save_until = time.monotonic() + self._options.save_s
        with contextlib.suppress(psutil.NoSuchProcess):
            self._saving = psutil.Process(self._process.pid).children()
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """All of it, at once: the group is broken, and nothing is left to be saved.

        TimeoutError: a process does not die, as it hangs in a driver or on a disk.
        """
        deadline = time.monotonic() + KILL_S
        while children := psutil.Process().children(recursive=True):
            for child in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            psutil.wait_procs(children, timeout=1.0)
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes {', '.join(str(child.pid) for child in children)} do not die")
        self._process.wait()
        self._ear.close()
        self._streams.close()
        deadline = time.monotonic() + LISTEN_S
        for pump in self._pumps:
            pump.join(max(0.0, deadline - time.monotonic()))
        shutil.rmtree(self._beats, ignore_errors=True)

    def _pump(self, stream: IO[bytes], out: IO[bytes], prefix: str, tail: deque[str]) -> None:
        """Pass on line by line, each with the prefix. A carriage return ends one too, as of a progress bar."""
        with io.TextIOWrapper(stream, "utf-8", errors="replace", newline=None) as lines:
            while line := lines.readline(PIECE):
                text = line.removesuffix("\n")
                tail.append(f"{prefix}{text[:KEPT_LETTERS]}")
                self._lines += 1
                with contextlib.suppress(Exception):  # a line that is lost; a rank whose pipe nobody reads would hang
                    self._write(out, f"{prefix}{text}\n".encode())


def _environment(epoch: int, beats: Path) -> dict[str, str]:
    """What torchrun's ranks find: where to give signs of life, and a Python that answers where it stands."""
    paths = (str(Path(at_start.__file__).parent), os.environ.get("PYTHONPATH", ""))
    ours = {"ORCH_EPOCH": str(epoch), heartbeat.FOLDER: str(beats), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return {**os.environ, **ours}


def torchrun_line(argv: Sequence[str], epoch: int, streams: Path, descriptor: int) -> list[str]:
    """torchrun's command line for this epoch: a straggler of an earlier one must not meet the ranks of this."""
    words = list(argv)
    if words[0] == "torchrun":
        ours = (*OUR_MODULE, "trainer.agent.torchrun", str(descriptor))
        words = [sys.executable, *ours, *through_pipes(words, streams)[1:]]
    if "--rdzv-id" in words:
        place = words.index("--rdzv-id") + 1
        words[place] = f"{words[place]}.{epoch}"
    return words
