"""What a container that is a process wrote, read back from its file while the supervisor goes on writing it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from orchestrator.nodes.interface import LogLine
from orchestrator.nodes.log_stream import LONGEST_LINE
from orchestrator.nodes.processes.files import POLL_S, ProcessFiles


def read_lines(files: ProcessFiles, *, follow: bool = False) -> Iterator[LogLine]:
    """One `LogLine` per line written, pieces put together again; with `follow`, until the supervisor is gone."""
    begun: dict[str, tuple[str, str]] = {}
    for entry in _entries(files, follow=follow):
        stamp, text = begun.pop(entry["stream"], (entry["time"], ""))
        text += entry["text"]
        if not text.endswith("\n") and len(text) < LONGEST_LINE:
            begun[entry["stream"]] = (stamp, text)
        else:
            yield LogLine(time=stamp, text=text.rstrip("\r\n"))
    for stamp, text in sorted(begun.values()):
        yield LogLine(time=stamp, text=text.rstrip("\r\n"))


def read_stream(files: ProcessFiles, stream: str) -> str:
    """All that went to stdout, or to stderr, as it was written."""
    return "".join(entry["text"] for entry in _entries(files, follow=False) if entry["stream"] == stream)


def _entries(files: ProcessFiles, *, follow: bool) -> Iterator[dict[str, Any]]:
    if not files.log.exists():
        return
    with files.log.open("rb") as log:
        half = b""
        while True:
            ended = not follow or not files.is_running()  # before reading: what comes after the end is read too
            while line := log.readline():
                half += line
                if half.endswith(b"\n"):
                    yield json.loads(half)
                    half = b""
            if ended:
                return
            time.sleep(POLL_S)
