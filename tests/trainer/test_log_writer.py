"""The agent never waits for the reader of its lines."""

from __future__ import annotations

import io
from threading import Event, Thread
from typing import Any

from trainer.agent.log_pipes import MAX_QUEUED, LogWriter


class Deaf(io.BytesIO):
    """Takes nothing until it is allowed to."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed = Event()

    def write(self, line: Any) -> int:
        self.allowed.wait(60)
        return super().write(line)


def test_a_writer_continues_while_its_lines_are_not_read() -> None:
    deaf = Deaf()
    log = LogWriter(deaf)
    rank = Thread(target=log.pass_on, args=(deaf, b"of a rank\n"))
    rank.start()
    log.say(b"again\n")
    log.end(0.2)
    assert rank.is_alive(), "the end has waited for the reader"
    deaf.allowed.set()
    rank.join()


def test_all_lines_are_written_at_the_end() -> None:
    out = io.BytesIO()
    log = LogWriter(out)
    for number in range(100):
        log.say(f"{number}\n".encode())
    log.end(20)
    assert out.getvalue() == b"".join(f"{number}\n".encode() for number in range(100))


def test_a_line_that_cannot_be_written_is_lost_and_no_more() -> None:
    class Full(io.BytesIO):
        def write(self, line: object) -> int:
            raise OSError(28, "No space left on device")

    full = Full()
    LogWriter(full).pass_on(full, b"x\n")


def test_of_what_comes_in_any_number_one_line_is_written_and_the_rest_is_counted() -> None:
    out = io.BytesIO()
    log = LogWriter(out)
    for number in range(1000):
        log.note("stranger", f"stranger {number}")
    log.note("other", "another matter")
    log.end(20)
    assert out.getvalue() == b"stranger 0\nanother matter\n"


def test_own_lines_that_are_not_read_fill_no_memory() -> None:
    deaf = Deaf()
    log = LogWriter(deaf)
    for number in range(3 * MAX_QUEUED):
        log.say(f"{number}\n".encode())
    deaf.allowed.set()
    log.end(20)
    lines = deaf.getvalue().splitlines()
    assert len(lines) <= MAX_QUEUED + 3
    assert any(b"lines of this node's agent were lost" in line for line in lines)
