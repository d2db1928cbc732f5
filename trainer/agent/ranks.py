"""torchrun and its ranks as child processes: started, read, and killed completely."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from contract import environment
from contract.event_lines import encode_event
from contract.event_values import RankPosition
from contract.events import LineRedrawn, OutputProgress, StacksTaken
from contract.liveness import is_frozen
from contract.log_lines import rank_prefix
from contract.rank_signs import RankSigns
from trainer import checkpoint_folder
from trainer.agent import at_start, processes, rank_status
from trainer.agent.log_pipes import ERR, OUT, PIECE, RankPipes, ranks_of, through_pipes, write_torchrun
from trainer.agent.options import AgentOptions
from trainer.agent.output_progress import OutputReader
from trainer.agent.output_reader import OutputFigures
from trainer.agent.own_data import leads_to_data
from trainer.agent.rank_exit import RankExit, read_rank_exit
from trainer.agent.rank_rates import RankRate, RankRates
from trainer.agent.rank_signs import RankSignsReader
from trainer.agent.redraws import Redraws, StreamPiece
from trainer.agent.rendezvous_port import port_environment, with_port
from trainer.agent.scratch_folder import ScratchFolder
from trainer.agent.stacks import Stack, StackRequest
from trainer.agent.warm_start import WarmStart
from trainer.config import RankInfo
from trainer.errors import ConfigurationError

MAX_LINES = 400
"""Number of newest lines of each stream that stay, so that the output of one rank does not displace the last lines of
another."""
MAX_LETTERS = 64 * 1024
"""Characters kept of each of these lines."""
REDRAWN_CHARS = 4096
"""Characters kept of a state of a progress bar."""
LISTEN_S = 5.0
"""Time to read the last lines of killed ranks."""
LOOK_S = 5.0
"""Time between two looks at the ranks; shorter where limits are."""
STATES = {"T": " (it is stopped)", "D": " (the kernel holds it: a disk, a network share or a driver)"}
_PR_SET_CHILD_SUBREAPER = 36
_RDZV_ID = "PET_RDZV_ID"
"""torchrun reads an option that it does not get, such as --rdzv-id, from such a variable."""
OUR_MODULE = ("-P", "-m")
"""Arguments of Python that run a module of this package and not one of the working folder, which is the user's."""


def adopt_orphans() -> None:
    """Become the parent of all orphaned descendants, so that none escapes `kill` (prctl(2))."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Ranks:
    """One torchrun and its ranks, or a script of the user's with all that it starts."""

    def __init__(
        self,
        options: AgentOptions,
        generation: int,
        write: Callable[[IO[bytes], bytes], None],
        port: int = 0,
        store: socket.socket | None = None,
        warm: WarmStart | None = None,
    ) -> None:
        """`write` receives each line of output. `port`: where the ranks meet; 0: as the command says. `store`: socket
        on which torch's store is to listen, and which is closed here; None: torchrun makes its own. `warm`: where
        torchrun and the ranks come from; None: each is a start of Python."""
        self._options, self._warm = options, warm
        self._lines = 0
        self._frozen = ""
        self._saving: list[processes.Process] = []
        """Ranks that were asked to stop and may write a checkpoint."""
        self._save_until = 0.0
        self._output = OutputReader(options.command)
        self._request: StackRequest | None = None
        """Request for the stacks of the ranks."""
        self._look_s = min(LOOK_S, options.stuck_s / 6, options.frozen_s / 6)
        self._looked = 0.0
        self.signs: tuple[RankSigns, ...] = ()
        """Signs of the newest look; the last ones of ranks that have ended well."""
        self._rates = RankRates()
        self._write = write
        self._scratch = ScratchFolder()
        self._signs_reader = RankSignsReader(self._scratch.path, options.node, options.first_rank, self._look_s)
        self._pipes = RankPipes(options.script_ranks or ranks_of(options.command), self._scratch.path)
        self.is_done = False
        """True if all ranks have succeeded; torchrun stays until those of all other nodes have, too."""
        self._process, outputs = self._torchrun(generation, port, store)
        outs = {OUT: sys.stdout.buffer, ERR: sys.stderr.buffer}
        streams: list[tuple[Any, IO[bytes], int | None]] = [
            (stream, outs[name], options.first_rank + local_rank) for local_rank, name, stream in self._pipes.readers
        ]
        streams += [(stream, outs[name], None) for name, stream in zip((OUT, ERR), outputs, strict=True)]
        self._tails: list[deque[str]] = [deque(maxlen=MAX_LINES) for _ in streams]
        each = zip(streams, self._tails, strict=True)
        self._pumps = [threading.Thread(target=self._pump, args=(*stream, tail), daemon=True) for stream, tail in each]
        try:
            for pump in self._pumps:
                pump.start()
        except RuntimeError:  # no thread left: the output of the ranks would not be read
            self._pumps = [pump for pump in self._pumps if pump.is_alive()]
            self.kill()
            raise

    def _torchrun(
        self, generation: int, port: int, store: socket.socket | None
    ) -> tuple[subprocess.Popen[bytes] | processes.ChildProcess, list[IO[bytes]]]:
        """Start torchrun, which ends when `_done_socket` does. Return it and the readers of its stdout and stderr."""
        environ = _environment(self._options, generation, self._scratch.path, port)
        self._done_socket, done_end = socket.socketpair()
        self._done_socket.setblocking(False)
        passed = [done_end, *([store] if store else [])]
        descriptors = [one.fileno() for one in passed]
        line = torchrun_line(with_port(self._options.command, port), generation, self._scratch.path, descriptors)
        ends = [os.pipe(), os.pipe()]
        readers: list[IO[bytes]] = [os.fdopen(reader, "rb") for reader, _ in ends]
        try:
            return self._started(line, environ, [writer for _, writer in ends], descriptors), readers
        except BaseException:
            for reader in readers:
                reader.close()
            raise
        finally:
            for _, writer in ends:
                os.close(writer)
            for one in passed:
                one.close()

    def _started(
        self, line: Sequence[str], environ: Mapping[str, str], outputs: Sequence[int], passed: Sequence[int]
    ) -> subprocess.Popen[bytes] | processes.ChildProcess:
        """Start torchrun, from the warm process if possible. `outputs`: descriptors for its stdout and stderr."""
        if self._warm:
            argv, ranks = line[len(_start_of_torchrun(passed)) :], ranks_of(self._options.command)
            if forked := self._warm.torchrun(line, argv, environ, ranks, [*outputs, *passed]):
                return forked
        return subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=outputs[0],
            stderr=outputs[1],
            env=environ,
            start_new_session=True,
            pass_fds=passed,
        )

    def rank_exit(self) -> RankExit | None:
        """Return how the ranks ended; None while they run. To be called until it returns an exit."""
        if self.is_done or self._says_done():
            self.is_done = True
            self.signs = self._signs_reader.final(self._lines)
            return RankExit(outcome="done", node=self._options.node, exit_code=0)
        code = self._process.poll()
        if code is None or (time.monotonic() < self._save_until and processes.left_after(self._saving)):
            return None
        if code == 0:
            self.signs = self._signs_reader.final(self._lines)
        self.kill()
        node, first_rank = self._options.node, self._options.first_rank
        last = [line for tail in self._tails for line in list(tail)]
        return read_rank_exit(node, code, last, first_rank=first_rank, frozen=self._frozen, is_data=leads_to_data)

    def _says_done(self) -> bool:
        try:
            return self._done_socket.recv(16) == b"done"
        except OSError:  # nothing yet
            return False

    def look(self) -> StacksTaken | None:
        """Read the signs of the ranks now and then; return their stacks once a request is answered. A rank whose status
        and CPU time stand for too long is killed, after a request for its stack; torchrun notices its end."""
        now = time.monotonic()
        try:
            if now - self._looked >= self._look_s:
                self._looked, self.signs = now, self._signs_reader.read(self._lines)
                self._rates.take(self.signs, now)
                if self._frozen_one():
                    self.take_stacks()
            return self._answered(now) if self._request else None
        except (OSError, ValueError) as error:  # ranks write these files: their content must not end a run
            print(f"the position of the ranks is not known: {error}", file=sys.stderr)
            self._request = None
            return None

    def take_stacks(self) -> None:
        """Request the stacks of all ranks; a later `look` returns them."""
        self._request = self._request or StackRequest(self._scratch.path, time.monotonic())

    def positions(self) -> tuple[RankPosition, ...]:
        """Return where each rank was at the newest look, and its rates."""
        signs, rates = self.signs, self._rates.by_rank  # of another thread
        return tuple(_position(one, rates.get(one.rank, RankRate())) for one in signs)

    def _answered(self, now: float) -> StacksTaken | None:
        assert self._request  # noqa: S101  # called only after a request
        if (stacks := self._request.answer(now)) is None:
            return None
        self._request = None
        positions = with_stacks(self.signs, stacks, self._options.first_rank)
        if one := self._frozen_one():
            position = next((each for each in positions if each.rank == one.rank), None)
            self._frozen = frozen(one.rank - self._options.first_rank, one.age_s or 0.0, position)
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.process, signal.SIGKILL)
        return StacksTaken(ranks=positions) if positions else None

    def _frozen_one(self) -> RankSigns | None:
        """Find one frozen rank at most, only once: its end ends all."""
        found = [one for one in self.signs if is_frozen(one, self._options.frozen_s)]
        return None if self._frozen else next(iter(found), None)

    def ask_to_stop(self) -> None:
        """SIGTERM: ranks write a checkpoint and end, also where torchrun, signalled twice, does not wait for them."""
        self._save_until = time.monotonic() + self._options.save_s
        is_script = self._options.script_ranks > 0
        below = processes.descendants if is_script else processes.children_of
        self._saving = below(self._process.pid)
        with contextlib.suppress(ProcessLookupError):
            if is_script:  # a shell passes no signal on
                os.killpg(self._process.pid, signal.SIGTERM)
            else:
                self._process.terminate()

    def kill(self) -> None:
        """Kill all processes at once: the process group is broken, and nothing can be saved.

        TimeoutError: a process does not die; it hangs in a driver or on a disk.
        """
        processes.kill_all(self._children)
        self._process.wait()
        self._done_socket.close()
        self._pipes.close()
        self._scratch.remove()
        deadline = time.monotonic() + LISTEN_S
        for pump in self._pumps:
            pump.join(max(0.0, deadline - time.monotonic()))

    def _children(self) -> list[processes.Process]:
        """All processes below this one, without the warm process, which the next ranks come from."""
        spared = self._warm.pid if self._warm else 0
        return [child for child in processes.descendants(os.getpid()) if child.pid != spared]

    def progress(self, *, last: bool = False) -> OutputProgress | None:
        """The progress that the ranks have printed, where there is news. `last`: they have ended."""
        return self._output.event(time.monotonic(), last=last)

    def _pump(self, stream: IO[bytes], out: IO[bytes], rank: int | None, tail: deque[str]) -> None:
        """Pass on line by line, each with the prefix. A carriage return ends a piece, too, as in a progress bar: few of
        its states become lines, the others events."""
        prefix, redraws = "" if rank is None else rank_prefix(rank), Redraws()

        def write(piece: StreamPiece) -> None:
            text = piece.text
            if piece.redrawn:
                text = encode_event(LineRedrawn(bar=piece.bar, text=text[:REDRAWN_CHARS]))
            else:
                tail.append(f"{prefix}{text[:MAX_LETTERS]}")
            self._write(out, f"{prefix}{text}\n".encode())

        with io.TextIOWrapper(stream, "utf-8", errors="replace", newline="") as lines:
            while line := lines.readline(PIECE):
                self._lines += 1
                now, figures = time.monotonic(), OutputFigures()
                with contextlib.suppress(Exception):  # the line is passed on, whatever it holds
                    figures = self._output.read(rank, line, now)
                with contextlib.suppress(Exception):  # lose a line: if the pipe is not read, the rank hangs
                    for piece in redraws.take(line, figures, now):
                        write(piece)
        with contextlib.suppress(Exception):
            for piece in redraws.rest():
                write(piece)


def warm_start(options: AgentOptions, note: Callable[[str], None]) -> WarmStart | None:
    """The warm process for these ranks; None: they are to start without. `note` writes a line to the log."""
    if not options.warm_start or options.script_ranks or options.command[0] != "torchrun":
        return None
    environ = _common_environment(options)
    environ.pop("LOCAL_RANK", None)  # it is no rank
    if ranks_of(options.command) > 1:
        environ.setdefault("OMP_NUM_THREADS", "1")  # torchrun does so for its ranks
    return WarmStart(environ, note)


def _common_environment(options: AgentOptions) -> dict[str, str]:
    """Variables of all generations, with a start of Python that answers requests for stacks and writes the status."""
    paths = (str(Path(at_start.__file__).parent), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, **options.environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _environment(options: AgentOptions, generation: int, scratch: Path, port: int) -> dict[str, str]:
    """Environment of torchrun or a script: the folder of the rank status, and for the user's own scripts the newest
    checkpoint."""
    ours = {"ORCH_GENERATION": str(generation), rank_status.FOLDER: str(scratch)}
    if environment.RESUME in os.environ:
        ours[environment.RESUME] = _checkpoint_to_resume(options)
    if options.script_ranks:
        programs = scratch / "bin"
        programs.mkdir()
        write_torchrun(programs, (sys.executable, *OUR_MODULE), scratch)
        ours["PATH"] = os.pathsep.join((str(programs), os.environ.get("PATH", os.defpath)))
        rdzv_id = options.environment.get(_RDZV_ID) or os.environ.get(_RDZV_ID, options.run)
        ours[_RDZV_ID] = f"{rdzv_id}.{generation}"
    given = _common_environment(options)
    return {**given, **ours, **port_environment(given, port)}


def _checkpoint_to_resume(options: AgentOptions) -> str:
    """Path of the checkpoint here that the run continues from; empty if there is none. ConfigurationError: on rank 0's
    node the recorded one is not there."""
    place, first = RankInfo.from_environ(os.environ), options.node_rank == 0
    try:
        found = checkpoint_folder.to_resume(
            options.folder / "checkpoints",
            place.resume_from,
            place.attempt,
            lambda text: print(text, file=sys.stderr),
            set_later_aside=first,  # nodes may share a disk
        )
    except (ConfigurationError, OSError) as error:
        if first and place.resume_from:  # the others continue from it
            raise error if isinstance(error, ConfigurationError) else ConfigurationError(str(error)) from error
        return ""  # another node may have an intact one; the damaged ones were named
    return str(found.entry) if found else ""


def torchrun_line(argv: Sequence[str], generation: int, streams: Path, descriptors: Sequence[int]) -> list[str]:
    """torchrun's command line for this generation: a straggler of an earlier one must not meet the ranks of this. A
    script's stays as it is. `descriptors`: of the socket to the agent, and of the store's if there is one."""
    words = list(argv)
    if words[0] == "torchrun":
        words = [*_start_of_torchrun(descriptors), *through_pipes(streams), *words[1:]]
    if "--rdzv-id" in words:
        place = words.index("--rdzv-id") + 1
        words[place] = f"{words[place]}.{generation}"
    return words


def _start_of_torchrun(descriptors: Sequence[int]) -> list[str]:
    return [sys.executable, *OUR_MODULE, "trainer.agent.torchrun", *map(str, [*descriptors, -1][:2])]


def with_stacks(signs: Sequence[RankSigns], stacks: Sequence[Stack], first_rank: int) -> tuple[RankPosition, ...]:
    """Positions of the ranks whose stack was requested."""
    known = {one.rank: _position(one) for one in signs}
    found = [(first_rank + stack.local_rank, stack) for stack in stacks]
    return tuple(
        replace(known.get(rank, RankPosition(rank=rank)), process=one.process, frames=one.frames, state=one.state)
        for rank, one in found
    )


def _position(one: RankSigns, rate: RankRate | None = None) -> RankPosition:
    step = one.step or one.optimizer_steps
    return RankPosition(
        rank=one.rank, line=one.line or None, cpu=None if one.cpu is None else round(one.cpu, 2), step=step or None,
        part=one.part or None, exchange=one.exchange or None, state=one.state or None,
        steps_per_s=rate.steps_per_s if rate else None,
        collectives_per_step=rate.collectives_per_step if rate else None,
    )  # fmt: skip


def frozen(local_rank: int, silent_s: float, position: RankPosition | None) -> str:
    """The reason why a rank was killed, with its position."""
    why = f"frozen: local rank {local_rank} sent no heartbeat for {silent_s:.0f} s"
    if not position:
        return why
    if position.frames:
        return f"{why}, at {position.frames[0]}"
    return f"{why}, nor did it answer{STATES.get(position.state or '', '')}"
