"""Ranks forked from a process that has imported torch and the trainer: each interpreter that imports them takes two
seconds of a CPU."""

from __future__ import annotations

import os
import runpy
import signal
import socket
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TypeVar

SERVER, FORK = get_context("forkserver"), get_context("fork")
SERVER.set_forkserver_preload(
    ["tests.trainer.forked", "torch.distributed", "trainer.cli", "trainer.workloads.gpt2", "trainer.engine.loop"]
)
LOOPBACK = "127.0.0.1"
PATIENCE_S = 30.0
"""Torchrun's, with ranks that it has asked to end because another one has failed."""


class ForkedRanks:
    """`python -m module argv` in several ranks of a node, with what torchrun gives them; as there, all of them end
    where one fails."""

    def __init__(
        self, ranks: int, *argv: str, environ: Mapping[str, str], module: str = "trainer", nodes: Sequence[int] = ()
    ) -> None:
        """`nodes`: ranks of each node, if they are to take themselves for those of several."""
        reader, writer = SERVER.Pipe(duplex=False)
        self._errors = Path(tempfile.mkstemp(prefix="ranks-")[1])
        self.process = SERVER.Process(
            target=_launch,
            args=(writer, self._errors, dict(environ), nodes or [ranks], module, argv),
            daemon=False,
        )
        self.process.start()
        writer.close()
        self._output = os.fdopen(os.dup(reader.fileno()), encoding="utf-8", errors="replace")
        reader.close()
        self._seen: list[str] = []

    def lines(self) -> Iterator[str]:
        for line in self._output:
            self._seen.append(line)
            yield line

    def kill(self) -> None:
        """Kill all ranks at once."""
        assert self.process.pid
        os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> tuple[int, str, str]:
        """Wait for the end: exit code, output, errors."""
        for _ in self.lines():
            pass
        self.process.join()
        return self.process.exitcode or 0, "".join(self._seen), self._errors.read_text("utf-8", "replace")

    def close(self) -> None:
        if self.process.is_alive():
            self.kill()
        self.process.join()
        self._output.close()
        self._errors.unlink()


T = TypeVar("T")


def alone(function: Callable[..., T], *args: object) -> T:
    """Call it in a process of its own. An error has what the process wrote beside it."""
    with (
        tempfile.NamedTemporaryFile("r", prefix="alone-", errors="replace") as output,
        ProcessPoolExecutor(1, SERVER, initializer=_write_to, initargs=(output.name,)) as pool,
    ):
        try:
            return pool.submit(function, *args).result()
        except Exception as error:
            error.add_note(output.read())
            raise


def _write_to(file: str) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _launch(
    output: Connection, errors: Path, environ: Mapping[str, str], nodes: Sequence[int], module: str, argv: Sequence[str]
) -> None:
    from torch.distributed import TCPStore

    os.setpgid(0, 0)
    os.dup2(output.fileno(), 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_APPEND), 2)
    output.close()
    sys.stdout, sys.stderr = (open(fd, "w", buffering=1, closefd=False, encoding="utf-8") for fd in (1, 2))  # noqa: SIM115  # for as long as the process lives
    listening = socket.create_server((LOOPBACK, 0))
    port = listening.getsockname()[1]
    os.environ.clear()
    os.environ.update(environ, MASTER_ADDR=LOOPBACK, MASTER_PORT=str(port), WORLD_SIZE=str(sum(nodes)))
    os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0")
    local = [(number, ranks) for ranks in nodes for number in range(ranks)]
    processes = [
        FORK.Process(target=_rank, args=(rank, one, listening, module, argv)) for rank, one in enumerate(local)
    ]
    for process in processes:
        process.start()
    store = TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())
    running = processes
    while running and not any(process.exitcode for process in processes):
        wait([process.sentinel for process in running])
        running = [process for process in running if process.exitcode is None]
    for process in running:
        process.terminate()
    for process in running:
        process.join(PATIENCE_S)
        process.kill()
        process.join()
    del store
    sys.stdout.flush()
    os._exit(int(any(process.exitcode for process in processes)))


def _rank(rank: int, local: tuple[int, int], listening: socket.socket, module: str, argv: Sequence[str]) -> None:
    listening.close()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(local[0]), LOCAL_WORLD_SIZE=str(local[1]))
    warnings.simplefilter("default")
    sys.argv = [module, *argv]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
