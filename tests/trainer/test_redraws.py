"""States of progress bars: few become lines, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterable

from trainer.agent.output_reader import read_figures
from trainer.agent.redraws import BARS, Redraws, StreamPiece


def tqdm(step: int, steps: int = 100, before: str = "") -> str:
    return f"{before}{100 * step // steps:3d}%|####      | {step}/{steps} [00:01<00:09,  9.00it/s]"


class Stream:
    """A stream that is read with one piece per second, unless its time is set."""

    def __init__(self) -> None:
        self.redraws, self.now = Redraws(), 0.0
        self.pieces: list[StreamPiece] = []

    def write(self, *pieces: str, every_s: float = 1.0) -> list[str]:
        """The lines of these pieces."""
        new = [one for piece in pieces for one in self._taken(piece, every_s)]
        self.pieces += new
        return [one.text for one in new if not one.redrawn]

    def _taken(self, piece: str, every_s: float) -> Iterable[StreamPiece]:
        self.now += every_s
        return list(self.redraws.take(piece, read_figures(piece), self.now))

    def end(self) -> list[str]:
        self.pieces += (rest := list(self.redraws.rest()))
        return [one.text for one in rest]


def test_a_bar_is_a_line_for_each_tenth_and_at_its_end() -> None:
    """Output of tqdm: a carriage return before each state, a newline after the last."""
    stream = Stream()
    lines = stream.write("\r", *(f"{tqdm(step)}\r" for step in range(100)), f"{tqdm(100)}\n", "done\n")
    assert lines == [*(tqdm(step) for step in range(10, 100, 10)), tqdm(100), "done"]
    assert stream.end() == []
    assert [one.text for one in stream.pieces] == [*(tqdm(step) for step in range(101)), "done"]
    assert {one.bar for one in stream.write(f"{tqdm(1, before='Epoch 1: ')}\r") or stream.pieces[-1:]} == {"Epoch #:"}


def test_a_slow_bar_is_a_line_every_thirty_seconds() -> None:
    stream = Stream()
    lines = stream.write(*(f"{tqdm(step, 100_000)}\r" for step in range(100)))
    assert lines == [tqdm(step, 100_000) for step in (30, 60, 90)]
    assert stream.end() == [tqdm(99, 100_000)]


def test_a_fast_bar_is_a_line_every_three_seconds_and_at_its_end() -> None:
    stream = Stream()
    lines = stream.write(*(f"{tqdm(step)}\r" for step in range(100)), f"{tqdm(100)}\n", every_s=0.125)
    assert lines == [tqdm(step) for step in (24, 48, 72, 96, 100)]


def test_a_bar_that_is_printed_line_by_line_is_one_as_well() -> None:
    stream = Stream()
    lines = stream.write(*(f"{tqdm(step)}\n" for step in range(100)))
    assert lines == [tqdm(step) for step in range(10, 100, 10)]
    assert stream.end() == [tqdm(99)]


def test_the_last_state_of_a_pass_is_a_line_when_the_next_one_begins() -> None:
    stream = Stream()
    passes = [f"{tqdm(step, before=f'Epoch {epoch}: ')}\r" for epoch in (1, 2) for step in (5, 97)]
    assert stream.write(*passes, every_s=0.1) == [tqdm(97, before="Epoch 1: ")]
    assert stream.end() == [tqdm(97, before="Epoch 2: ")]


def test_a_traceback_on_the_line_of_a_bar_is_a_line_of_its_own() -> None:
    stream = Stream()
    error = "Traceback (most recent call last):"
    assert stream.write(f"{tqdm(3)}\r", f"{tqdm(4)}{error}\n") == [error]
    keras = "13/20 [======>...] - ETA: 3s - loss: 2.3"
    assert stream.write(f"{keras}{error}\n") == [f"{keras}{error}"]
    postfix = tqdm(5).replace("it/s]", "it/s, lr=[0.1], loss=0.3]")
    assert stream.write(f"{postfix}\r", f"{postfix}\n") == [postfix]


def test_empty_pieces_of_bars_are_dropped_and_empty_lines_stay() -> None:
    stream = Stream()
    assert stream.write("one\n", "\n", "\r", "\x1b[A\r", "\x1b[A\n", "two\r\n") == ["one", "", "two"]
    nested = [f"{tqdm(1, before='outer')}\n", f"{tqdm(1, before='inner')}\x1b[A\n", "\n"]
    assert stream.write(*nested) == []


def test_a_redrawn_line_without_a_bar_is_a_state() -> None:
    stream = Stream()
    assert stream.write(*(f"step {step} loss 0.5\r" for step in range(29))) == []
    assert stream.write("step 29 loss 0.5\n") == ["step 29 loss 0.5"]
    assert stream.end() == []


def test_the_bars_of_a_stream_are_bounded() -> None:
    stream = Stream()
    letters = "abcdefghijkl"
    lines = stream.write(*(f"{tqdm(1, before=letter)}\r" for letter in letters))
    assert lines == [tqdm(1, before=letter) for letter in letters[: len(letters) - BARS]]
    assert len(stream.end()) == BARS


def test_a_long_line_and_one_without_end_pass_unchanged() -> None:
    stream = Stream()
    long = tqdm(1) + "x" * 5000
    assert stream.write(f"{long}\n", "no newline") == [long, "no newline"]
