"""The time before each line of an agent's output."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys

from tests.trainer.conftest import ROOT
from trainer.agent.line_stamps import RisingClock, StampedOutput, rfc_3339

PROGRAM = """
import sys
from trainer.agent.line_stamps import stamp_output
stamp_output()
print("one\\ntwo")
sys.stdout.buffer.write(b"[rank0]: three\\n")
sys.stdout.buffer.flush()
print("four \\u2026", file=sys.stderr)
raise SystemExit("the end")
"""
STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z) ")


def test_a_time_is_written_as_docker_does() -> None:
    assert rfc_3339(1_769_847_330_000_000_042) == "2026-01-31T08:15:30.000000042Z"


def test_no_two_lines_have_the_same_time_nor_an_earlier_one() -> None:
    times = iter([5, 5, 3, 9])
    clock = RisingClock(lambda: next(times))
    assert [clock() for _ in range(4)] == [5, 6, 7, 9]


def test_lines_are_passed_on_whole() -> None:
    pieces: list[bytes] = []

    class Out(io.RawIOBase):
        def write(self, text: object) -> int:
            pieces.append(bytes(text)[:40])  # type: ignore[call-overload]  # a pipe takes less at times
            return len(pieces[-1])

    stamped = StampedOutput(Out(), RisingClock(lambda: 0))
    for piece in (b"a", b"b\ncd", b"\n\n", b"e" * 30):
        assert stamped.write(piece) == len(piece)
    assert [one[-3:] for one in pieces] == [b"ab\n", b"cd\n", b"Z \n"]
    stamped.close()
    lines = b"".join(pieces).splitlines()
    assert [line[31:] for line in lines] == [b"ab", b"cd", b"", b"e" * 30]


def test_all_that_a_process_writes_is_stamped() -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        (sys.executable, "-c", PROGRAM), env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    assert ended.returncode == 1
    lines = ended.stdout.decode().splitlines()
    assert [STAMP.sub("", line, count=1) for line in lines] == ["one", "two", "[rank0]: three", "four …", "the end"]
    times = [match[1] for line in lines if (match := STAMP.match(line))]
    assert len(times) == 5
    assert times == sorted(set(times))
