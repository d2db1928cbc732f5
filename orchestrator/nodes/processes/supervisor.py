"""Stays with one process in place of a container's engine: `python -m orchestrator.nodes.processes.supervisor FOLDER`.

It outlives the program that started it, keeps what the process writes, starts it again if it is meant to, and writes
down how it ended. Like a container's first process, it takes everything that was started along when it ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread
from typing import IO

from orchestrator.nodes.processes.files import ProcessFiles, read_json, timestamp, write_json

PIECE = 1024 * 1024
"""Longest line that is kept in one piece; without a bound, a process that writes no newline would fill the memory."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 60.0
"""Docker's pauses between restarts: each twice the last."""
CANNOT_START = 127


def main() -> int:
    files = ProcessFiles(Path(sys.argv[1]))
    with files.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _supervise(files)


def _supervise(files: ProcessFiles) -> int:
    launch = read_json(files.launch)
    for earlier in (files.exit, files.stopping):
        earlier.unlink(missing_ok=True)
    restarts = 0
    with files.log.open("a", encoding="utf-8") as file:
        log = _Log(file)
        while True:
            try:
                process = subprocess.Popen(
                    launch["argv"],
                    cwd=launch["folder"],
                    env=launch["environment"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            except OSError as error:
                _answer(str(error))
                return CANNOT_START
            write_json(
                files.started, {"pid": process.pid, "started_at": timestamp(time.time_ns()), "restarts": restarts}
            )
            _answer("started")
            code = _stay(files, process, log)
            if code == 0 or restarts >= launch["restarts"] or files.stopping.exists():
                break
            time.sleep(min(FIRST_PAUSE_S * 2**restarts, LONGEST_PAUSE_S))
            if files.stopping.exists():
                break
            restarts += 1
    write_json(files.exit, {"exit_code": code, "finished_at": timestamp(time.time_ns())})
    return 0


def _stay(files: ProcessFiles, process: subprocess.Popen[bytes], log: _Log) -> int:
    """Wait until it has ended, and with it all that it started; its exit code, 128 and the signal where one ended
    it."""
    readers = [
        Thread(target=log.keep, args=(stream, name))
        for stream, name in ((process.stdout, "stdout"), (process.stderr, "stderr"))
    ]
    for reader in readers:
        reader.start()
    code = process.wait()
    files.kill()
    for reader in readers:
        reader.join()
    return 128 - code if code < 0 else code


class _Log:
    """Log file with both streams of a process, each line with its time."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._lock = Lock()
        self._last = 0

    def keep(self, stream: IO[bytes], name: str) -> None:
        with stream:
            while piece := stream.readline(PIECE):
                self._write(name, piece.decode(errors="replace"))

    def _write(self, stream: str, text: str) -> None:
        with self._lock:
            self._last = max(time.time_ns(), self._last + 1)  # no two alike: readers continue after the last they have
            line = {"time": timestamp(self._last), "stream": stream, "text": text}
            with suppress(OSError):  # a full disk takes lines, not the process
                self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
                self._file.flush()


def _answer(word: str) -> None:
    """Answer the program that waits for the start, once; later output is discarded."""
    print(word, flush=True)  # noqa: T201  # the answer to the engine that started it
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


if __name__ == "__main__":
    raise SystemExit(main())
