"""The stack that is read of a rank, and the work that it notes itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from contract.event_values import RankPosition
from contract.rank_signs import RankSigns
from trainer.agent import heartbeat, rank_status, stacks, warm_process
from trainer.agent.ranks import frozen, with_stacks
from trainer.agent.stacks import Stack, main_thread

DUMP = """Thread 0x00007f1 (most recent call first):
  File "/a/exchange.py", line 3 in wait

Current thread 0x00007f2 (most recent call first):
  File "/a/user data.py", line 42 in load
  File "/a/train.py", line 7 in <module>
"""


def test_the_main_thread_is_read_innermost_first() -> None:
    assert list(main_thread(DUMP)) == ["/a/user data.py:42 in load", "/a/train.py:7 in <module>"]


def test_the_frame_that_a_forked_rank_runs_in_is_left_out() -> None:
    forked = DUMP + f'  File "{warm_process.__file__}", line 9 in <module>\n'
    assert list(main_thread(forked)) == list(main_thread(DUMP))


def test_of_two_answers_the_newer_counts() -> None:
    assert next(main_thread(DUMP + DUMP.replace("42", "43"))) == "/a/user data.py:43 in load"


def test_where_none_is_current_the_main_thread_is_the_last() -> None:
    assert next(main_thread(DUMP.replace("Current thread", "Thread"))) == "/a/user data.py:42 in load"


@pytest.mark.parametrize(
    "text", ["", "no stack\n", "Current thread 0x1 (most recent call first):\n  <no Python frame>"]
)
def test_without_a_frame_there_is_none(text: str) -> None:
    assert list(main_thread(text)) == []


def test_a_position_has_the_ranks_number_its_work_and_its_stack() -> None:
    stack = Stack(local_rank=1, process=9, frames=("a.py:1 in f",), state="S")
    signs = RankSigns(rank=5, step=4, part="data", line="a.py:1 in f", cpu=0.987)
    (found,) = with_stacks([signs], [stack], 4)
    assert (found.rank, found.step, found.part, found.frames, found.cpu) == (5, 4, "data", ("a.py:1 in f",), 0.99)


def test_why_a_frozen_rank_was_killed() -> None:
    assert frozen(0, 61.2, None) == "frozen: local rank 0 sent no heartbeat for 61 s"
    assert frozen(0, 61.2, RankPosition(frames=("a.py:1 in f",), state="R")).endswith("61 s, at a.py:1 in f")
    assert frozen(0, 61.2, RankPosition(frames=(), state="D")).endswith(
        "the kernel holds it: a disk, a network share or a driver)"
    )


def test_no_process_is_signalled_that_would_die_of_it(tmp_path: Path) -> None:
    """Such as this very process, which has no handler."""
    (tmp_path / "0.stack").write_text(f"{os.getpid():>10}\n")
    (stack,) = stacks.StackRequest(tmp_path, 0).answer(0) or ()
    assert (stack.process, stack.frames) == (os.getpid(), ())


def test_an_exchange_that_fails_is_no_progress() -> None:
    before = heartbeat._activity.done
    with pytest.raises(RuntimeError), heartbeat.exchange("all_reduce"):
        raise RuntimeError("timed out")
    assert heartbeat._activity.done == before
    with heartbeat.exchange("all_reduce"):
        assert list(heartbeat._activity.exchanges.values()) == ["all_reduce"]
    assert (heartbeat._activity.done, heartbeat._activity.exchanges) == (before + 1, {})


def test_the_start_of_a_ranks_python_leaves_the_name_contract_to_the_users_code() -> None:
    """Modules of sitecustomize are in `sys.modules` before the user's script looks for a module of its own."""
    program = (
        "import sys, trainer.agent.stacks; sys.exit(any(name.split('.')[0] == 'contract' for name in sys.modules))"
    )
    assert subprocess.run((sys.executable, "-c", program), check=False).returncode == 0


def test_the_next_rank_in_a_script_takes_the_place_of_one_that_has_ended(tmp_path: Path) -> None:
    """A script may start torchrun twice; a child of a live rank must not take its place."""
    environ = {**os.environ, rank_status.FOLDER: str(tmp_path), "LOCAL_RANK": "0"}
    register = "import os; from trainer.agent import stacks; stacks.register(os.environ); print(os.getpid())"

    def started() -> int:
        return int(subprocess.run([sys.executable, "-c", register], env=environ, capture_output=True).stdout)

    for _ in range(2):
        process = started()
        assert (tmp_path / "0.stack").read_text().strip() == str(process)
    (tmp_path / "0.stack").write_text(f"{os.getpid()}\n")
    assert started() != os.getpid()
    assert (tmp_path / "0.stack").read_text().strip() == str(os.getpid())
