"""The thread beside the training: one after another, and its failures are heard."""

from __future__ import annotations

from threading import Event

import pytest

from trainer.engine.checkpoints.writer import Writer


def fail() -> None:
    raise OSError(28, "No space left on device")


def test_what_is_given_is_done_in_its_order_while_the_training_continues() -> None:
    writer, gate, done = Writer(), Event(), list[int]()
    first = writer.submit(gate.wait)
    for number in (1, 2):
        writer.submit(lambda number=number: done.append(number))
    writer.poll()  # nothing has failed, and nothing is waited for
    assert not first.done()
    gate.set()
    writer.finish()
    assert done == [1, 2]
    writer.close(0)


@pytest.mark.parametrize("asked", ["poll", "finish"])
def test_a_failure_is_raised_once_where_it_is_asked_for(asked: str) -> None:
    writer, after = Writer(), Event()
    writer.submit(fail)
    writer.submit(after.set)
    after.wait()
    with pytest.raises(OSError, match="No space"):
        writer.poll() if asked == "poll" else writer.finish()
    writer.finish()
    writer.close(0)


def test_at_the_end_of_a_failed_training_what_is_begun_has_its_time() -> None:
    writer, begun, gate, done = Writer(), Event(), Event(), Event()

    def write() -> None:
        begun.set()
        gate.wait()
        done.set()

    writer.submit(write)
    never = writer.submit(fail)
    begun.wait()
    writer.close(0.0)  # no patience: what has not begun will not
    assert never.cancelled()
    gate.set()
    assert done.wait(10)

    patient = Writer()
    ended = patient.submit(begun.wait)
    patient.close(10)
    assert ended.done()
