"""Signals, sent for real to a small process."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

# A sleep in C stands for waiting in a collective: no Python handler can run in the main thread meanwhile.
PROGRAM = """
import ctypes, time
from trainer.engine.stop_signal import StopSignal
with StopSignal({one_wish_s}) as stop:
    stop.answers = {answers}
    print("ready", flush=True)
    while not stop.asked:
        time.sleep(0.01)
    print("asked", flush=True)
    while {stubborn}:
        print("saving", flush=True)
        ctypes.CDLL(None).sleep(60)
print("left", flush=True)
"""


@pytest.fixture
def start(child_environ: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []

    def run(*, stubborn: bool, one_wish_s: float = 5, answers: bool = True) -> subprocess.Popen[str]:
        program = PROGRAM.format(stubborn=stubborn, one_wish_s=one_wish_s, answers=answers)
        processes.append(
            subprocess.Popen((sys.executable, "-c", program), env=child_environ, stdout=subprocess.PIPE, text=True)
        )
        assert processes[-1].stdout
        assert processes[-1].stdout.readline() == "ready\n"
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_asks(start, number) -> None:
    process = start(stubborn=False)
    process.send_signal(number)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "asked\nleft\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_later_signal_ends_at_once_even_while_the_main_thread_hangs(start, number, code) -> None:
    process = start(stubborn=True, one_wish_s=0)
    process.send_signal(number)
    assert process.stdout.readline() == "asked\n"
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == code


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_before_the_first_step_the_first_signal_ends(start, number, code) -> None:
    process = start(stubborn=True, answers=False)
    process.send_signal(number)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (code, "")


def test_signals_that_come_together_are_one(start) -> None:
    """Signals to the whole process group, and by torchrun once more: the checkpoint is being written."""
    process = start(stubborn=True)
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "asked\n"
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
