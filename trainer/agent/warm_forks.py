"""Forks of the warm process: torchrun, and the processes that wait to become its ranks."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from trainer.agent.shown_command import show
from trainer.agent.waiting_ranks import WaitingRanks
from trainer.agent.warm_messages import receive, send
from trainer.agent.warm_rank import Imported, RankProgram, become, why_not

_PR_SET_PDEATHSIG = 1
POLL_S = 0.001


@dataclass(frozen=True, kw_only=True)
class Torchrun:
    """The part of a torchrun."""

    argv: list[str]
    agent: int
    """Descriptor of the socket to the agent."""
    listening: int
    """Descriptor of the socket for torch's store; -1: there is none."""
    ranks: WaitingRanks

    def run(self) -> NoReturn:
        """Run torchrun, and end without the end of Python: to free the objects of torch, whose memory is shared, takes
        a second on a busy machine, which a restart would wait for."""
        from trainer.agent import torchrun

        code = 0
        try:
            torchrun.run(self.agent, self.listening, self.argv, self.ranks)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve(descriptor: int, modules: frozenset[str]) -> Torchrun | RankProgram:
    """Import torch and answer the requests of the agent until it ends. Return in the forked processes alone, in each
    its part."""
    agent, own_environ = os.getppid(), dict(os.environ)
    end_with_parent(agent, signal.SIGKILL)
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    refused, printed = _import_torch()
    added = {name: value for name, value in os.environ.items() if own_environ.get(name) != value}
    imported = Imported(modules=modules, environ=own_environ, added=added, printed=printed)
    answer: dict[str, Any] = {"refused": refused}
    while True:
        try:
            send(control, answer)
            request, files = receive(control)
        except (OSError, EOFError):  # the agent has ended
            os._exit(0)
        try:
            pid = _fork_for(agent)
        except OSError as error:  # no process is left
            answer = {"pid": 0, "refused": str(error)}
        else:
            if not pid:
                break
            answer = {"pid": pid, "refused": ""}
        for one in files:
            os.close(one)
    control.close()
    return _torchrun(request, files, imported)


def _import_torch() -> tuple[str, bytes]:
    """Import torch. Return the reason why this process cannot be forked, empty if there is none, and the output."""
    output = os.memfd_create("import")
    for number in (1, 2):
        os.dup2(output, number)
    try:
        refused = _imported()
    except Exception as error:
        refused = f"torch could not be imported: {type(error).__name__}: {error}"
    for number in (1, 2):
        os.dup2(0, number)
    printed = os.pread(output, os.fstat(output).st_size, 0)
    os.close(output)
    return refused, printed


def _imported() -> str:
    import torch

    from trainer.agent import torchrun

    if not hasattr(torchrun.rank_handler(), "_popen"):
        return f"torch {torch.__version__} starts ranks in another way"
    gc.collect()
    gc.freeze()  # the memory of these objects stays shared with the ranks
    if not (first := os.fork()):
        os._exit(0)
    os.waitpid(first, 0)
    # OpenBLAS has ended its threads before that fork, and starts them where it needs them.
    if (threads := len(list(Path("/proc/self/task").iterdir()))) > 1:
        return f"a process that has imported torch has {threads} threads"
    is_touched = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch's own
    return "CUDA is initialized after the import of torch" if is_touched else ""


def _fork_for(agent: int) -> int:
    """Fork a process whose parent is the agent. Return its id, 0 in it. OSError: there is no room for one."""
    reader, writer = os.pipe()
    try:
        between = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        raise
    if not between:
        own = os.getpid()
        try:
            forked = os.fork()
        except OSError:
            os._exit(1)
        if forked:
            os.write(writer, str(forked).encode())
            os._exit(0)
        os.close(reader)
        os.close(writer)
        while os.getppid() == own:  # until the agent has adopted this process
            time.sleep(POLL_S)
        end_with_parent(agent, signal.SIGTERM)  # torchrun passes it on to its ranks, which may save
        return 0
    os.close(writer)
    os.waitpid(between, 0)
    with os.fdopen(reader, "rb") as file:
        forked = int(file.read() or 0)
    if not forked:
        raise OSError("no process could be forked")
    return forked


def end_with_parent(parent: int, number: int) -> None:
    """Receive this signal when the parent ends (prctl(2)); end now if it has ended."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _torchrun(request: dict[str, Any], files: Sequence[int], imported: Imported) -> Torchrun | RankProgram:
    """Set this process to the state of torchrun, and fork the processes for its ranks."""
    os.setsid()
    out, err, agent, *listening = files
    for file, number in ((out, 1), (err, 2)):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environ"])
    show(request["shown"], os.environ)
    ranks = WaitingRanks()
    if connection := ranks.fork(request["ranks"]):
        for file in (agent, *listening):
            os.close(file)
        return _rank(connection, imported)
    listens = listening[0] if listening else -1
    return Torchrun(argv=request["argv"], agent=agent, listening=listens, ranks=ranks)


def _rank(connection: socket.socket, imported: Imported) -> RankProgram:
    """Wait for the command of the rank, and set this process to the state in which Python starts it."""
    try:
        request, files = receive(connection)
    except (OSError, EOFError):  # torchrun has ended
        os._exit(0)
    argv, environ = request["argv"], request["environ"]
    program = RankProgram(argv=tuple(argv))
    try:
        if not (refused := why_not(argv, environ, imported)):
            for file, number in zip(files, (1, 2), strict=True):
                os.dup2(file, number)
                os.close(file)
            become(program, environ, imported)
    except Exception as error:
        refused = f"{type(error).__name__}: {error}"
    with connection:
        send(connection, {"refused": refused})
    if refused:
        os._exit(0)
    return program


def leave_out_frames() -> None:
    """Leave out the frames of this package, which come first, when the exception that ends this process is shown."""
    show_exception, own = sys.excepthook, f"{Path(__file__).parent}/"

    def without(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        while trace and trace.tb_frame.f_code.co_filename.startswith(own):
            trace = trace.tb_next
        show_exception(kind, error.with_traceback(trace), trace)

    sys.excepthook = without
