"""A log read on from where it was left: no line twice, none lost, whatever the node's clock does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from orchestrator.nodes import log_stream
from orchestrator.nodes.interface import LogLine
from orchestrator.nodes.log_stream import after, rejoin_lines, resumed
from tests import lan


def line(second: float) -> LogLine:
    return LogLine(time=lan.moment(second), text=f"at {second}")


def seconds(lines: Sequence[LogLine]) -> list[float]:
    return [float(one.text.removeprefix("at ")) for one in lines]


class Engine:
    """A log that grows by one batch at each request."""

    def __init__(self, *batches: Sequence[float]) -> None:
        self._batches, self.log, self.asked = list(batches), list[LogLine](), list[tuple[bool, int | None]]()

    def ask(self, follow: bool, tail: int | None) -> Iterator[LogLine]:
        self.asked.append((follow, tail))
        self.log += map(line, self._batches.pop(0) if self._batches else ())
        yield from self.log[-tail:] if tail else self.log
        while follow and self._batches:
            new = [line(second) for second in self._batches.pop(0)]
            self.log += new
            yield from new


@pytest.mark.parametrize(
    ("log", "since", "expected"),
    [
        ((1, 2, 3), 2, [3]),
        ((1, 2, 3), 3, []),
        ((1, 3), 2, [3]),
        ((600, 300, 301), 600, [300, 301]),
        ((600, 300, 301), 300, [301]),
        ((600, 300, 301), 301, []),
        ((4, 1, 2), 3, [4, 1, 2]),
        ((), 2, []),
    ],
)
def test_it_continues_after_the_line_of_this_time(log: Sequence[float], since: float, expected: list[float]) -> None:
    past = [line(second) for second in log]
    assert seconds(after(past, line(since).time)) == expected
    assert seconds(list(resumed(Engine(log).ask, line(since).time, follow=False))) == expected


def test_the_newest_lines_do_where_the_known_one_is_among_them() -> None:
    engine = Engine(range(2 * log_stream.WINDOW))
    new = list(resumed(engine.ask, line(2 * log_stream.WINDOW - 3).time, follow=False))
    assert seconds(new) == [2 * log_stream.WINDOW - 2, 2 * log_stream.WINDOW - 1]
    assert engine.asked == [(False, log_stream.WINDOW)]


def test_the_whole_log_is_asked_for_where_it_is_not() -> None:
    engine = Engine(range(2 * log_stream.WINDOW))
    assert seconds(list(resumed(engine.ask, line(4).time, follow=False))) == list(range(5, 2 * log_stream.WINDOW))


def test_followed_it_continues_as_lines_come_though_the_clock_is_set_back() -> None:
    engine = Engine((600, 601), (602,), (300, 301), (), (302,))
    assert seconds(list(resumed(engine.ask, line(600).time, follow=True))) == [601, 602, 300, 301, 302]


def test_more_lines_than_the_window_between_two_requests_are_not_lost() -> None:
    burst = range(10, 10 + 2 * log_stream.WINDOW)
    engine = Engine((1, 2), burst, (), (), (5000,))
    assert seconds(list(resumed(engine.ask, line(1).time, follow=True))) == [2, *burst, 5000]


def test_a_line_without_an_end_comes_in_pieces() -> None:
    frame = f"{lan.moment(1)} {'x' * 16384}".encode()
    taken = 0

    def frames() -> Iterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield frame

    first = next(rejoin_lines(frames()))
    assert len(first.text) == log_stream.LONGEST_LINE
    assert taken == 64
