"""Requests to stop as schedulers and shells send them, to real processes at random moments: none loses a step."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.conftest import Figure
from tests.trainer.conftest import Call, Result
from tests.trainer.observed import same, state
from tests.trainer.test_agent import free_port
from trainer import checkpoint_folder
from trainer.agent.processes import descendants

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LIVES = 10
LAST = 100_000
"""A step that no life reaches."""


def test_each_of_ten_stops_saves_the_step_that_ran(
    train: Call,
    train_command: Callable[[Path], list[str]],
    child_environ: dict[str, str],
    tmp_path: Path,
    figure: Figure,
) -> None:
    """One run in ten lives. Every process of it gets three signals within a second, its data workers too, as from
    Slurm's `scancel`; or its agent's process group does, as from `kill -TERM -PGID`. Each life continues at the very
    step, and in the end it is the undisturbed run, bit by bit."""
    options = ("--batch-size", "4", "--dropout", "0.1", "--eval-every", "0", "--checkpoint-every", str(LAST))
    options = (*options, "--schedule", "constant")  # which does not depend on the last step
    words = (*train_command(tmp_path / "stopped"), *options, "--max-steps", str(LAST), "--num-workers", "1")
    moments = [random.uniform(0, 1) for _ in range(LIVES)]  # noqa: S311  # no secret
    lives = [
        _stopped(words, {**child_environ, "ORCH_RUN_DIR": str(tmp_path / "stopped")}, moment, everyone=number % 2 == 0)
        for number, moment in enumerate(moments)
    ]
    stops = [life.events("stopped")[0]["step"] for life in lives]
    figure(f"ten stops, at steps {', '.join(map(str, stops))}")
    assert [life.code for life in lives] == [143] * LIVES
    assert [life.events("checkpoint")[-1]["step"] for life in lives] == stops
    assert [life.events("resumed")[0]["step"] for life in lives[1:]] == stops[:-1]
    newest = checkpoint_folder.newest_sound(tmp_path / "stopped/checkpoints", say=figure)
    assert newest
    assert newest.step == stops[-1]

    whole = train(tmp_path / "whole", *options, "--max-steps", str(stops[-1]))
    assert whole.code == 0, whole.err
    reported = {step: loss for life in lives for step, loss in life.losses().items()}
    assert reported == whole.losses()
    left, undisturbed = (state(tmp_path / name, stops[-1]) for name in ("stopped", "whole"))
    assert all(same(left[part], undisturbed[part]) for part in ("model", "optimizer"))


def _stopped(words: tuple[str, ...], environ: Mapping[str, str], after_s: float, *, everyone: bool) -> Result:
    """A life under an agent, asked to stop some time after its first step."""
    where = ("--nodes", "alpha", "--node-rank", "0", "--address", "127.0.0.1", "--port", str(free_port()))
    command = (sys.executable, "-m", "trainer.agent", *where, "--", sys.executable, "-m", "trainer", *words)
    seen = []
    with subprocess.Popen(
        command,
        env=environ,
        bufsize=0,  # otherwise lines that came with the first step's would be lost to `communicate`
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout
        for line in process.stdout:
            seen.append(line)
            if b'"event": "step"' in line:
                break
        time.sleep(after_s)  # the random moment itself: nothing is waited for
        for _ in range(3):
            if everyone:
                for one in descendants(process.pid):
                    _signal(one.pid)
                _signal(process.pid)
            elif process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
            time.sleep(random.uniform(0, 0.3))  # noqa: S311  # no secret
        rest, err = process.communicate(timeout=60)
    return Result(code=process.returncode, out=b"".join([*seen, rest]).decode(), err=err.decode())


def _signal(process: int) -> None:
    try:
        os.kill(process, signal.SIGTERM)
    except ProcessLookupError:
        return
