"""A line of 1 MB, such as a picture in base64, costs no more than any other: it is cut before a pattern sees it."""

from __future__ import annotations

import re
import time

import pytest

from contract.failures.classify import SIGNATURES, FailedRank, classify
from contract.failures.signature import Signature
from contract.log_lines import MAX_CHARS, readable, split_rank
from orchestrator.render.consequences import Consequences
from orchestrator.specs.run_events import RunLine
from tests import lan
from tests.unit.conftest import THREE, Orch, detached
from trainer.agent.rank_exit import read_rank_exit

LONG = 1_000_000
BUDGET_S = 0.1
"""CPU seconds for one line; measured: under 0.01."""


def cpu_s(began: float) -> float:
    return time.process_time() - began


def letters_of(pattern: str) -> list[str]:
    """The literal pieces of a pattern, which bring a search the farthest, and single characters of its classes."""
    plain = re.sub(r"\(\?P<\w+>|\(\?[:=!<]!?|\{[0-9,]*\}|\[[^\]]*\]|\\[dDwWsSbB]|\\|[\^$.*+?()|]", "\0", pattern)
    return [piece for piece in plain.split("\0") if piece.strip()][:3]


@pytest.mark.parametrize("signature", [one for one in SIGNATURES if one.patterns], ids=lambda one: one.id)
def test_no_pattern_is_slow_on_its_own_letters(signature: Signature) -> None:
    for piece in dict.fromkeys(piece for pattern in signature.patterns for piece in letters_of(pattern)):
        assert_quick(piece)


@pytest.mark.parametrize("piece", ["A", "/", "1", " ", "a.", "[", "Error: ", 'File "', "x: "])
def test_none_is_slow_on_what_many_accept(piece: str) -> None:
    assert_quick(piece)


def assert_quick(piece: str) -> None:
    """A slow pattern is slow every time; a garbage collection of the whole suite's objects is not."""
    line = (piece * (LONG // len(piece)))[: LONG - 1] + "\x01"

    def seconds() -> float:
        began = time.thread_time()
        classify(FailedRank(own=(line,), exit_code=1))
        return time.thread_time() - began

    assert any(seconds() < BUDGET_S for _ in range(3)), piece


def test_head_and_tail_of_a_line_stay() -> None:
    line = f"[rank3]: RuntimeError: {'A' * LONG} CUDA out of memory. Tried to allocate 2.00 GiB"
    assert len(readable(line)) <= MAX_CHARS
    found = classify(FailedRank(own=("Traceback (most recent call last):", "  f", line), exit_code=1))
    assert found is not None
    assert found.id == "gpu.memory"


def test_a_rank_of_5000_digits_is_no_rank() -> None:
    assert split_rank(f"[rank{'1' * 5000}]: x")[0] is None


def test_the_container_and_the_screen_are_quick_too() -> None:
    lines = [f"[rank0]: {'/' * LONG}", f"[rank0]: {'[rank0]: ' * (LONG // 9)}", "=" * LONG, "E1122 00:00:00.1 1 a] x"]
    began = time.process_time()
    assert read_rank_exit("alpha", 1, lines, first_rank=0).cause == "code.exit"
    fold = Consequences({})
    for rank, text in map(split_rank, lines):
        fold.hear(RunLine(time=lan.moment(1), node="alpha", node_rank=0, rank=rank, text=text))
    assert cpu_s(began) < 4 * BUDGET_S


def test_launch_and_why_do_not_wait_for_it(orch: Orch) -> None:
    picture = f"[rank0]: data:image/png;base64,{'A' * LONG}"
    here = lan.lan(*THREE, says=(picture, f"[rank0]: {'/' * LONG}"), ends_with=1)
    began = time.process_time()
    run = detached(orch, here)
    assert orch("launch", "--no-supervise", "--name", "second", on=here).code == 1
    assert orch("why", run, on=here).code == 0
    assert cpu_s(began) < 5, "one of them took minutes for such a line"
