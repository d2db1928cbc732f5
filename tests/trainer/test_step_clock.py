"""Times of steps that last exactly 1 s, as events report them and as the rig of the slow LAN reads them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.slow_lan.peers import PEERS
from benchmarks.slow_lan.rig import EVENT, Event, Outcome
from benchmarks.slow_lan.train import Task, Way, command, read
from tests.trainer.clocked_steps import LOADING_S
from tests.trainer.conftest import ROOT

STEPS, SENT = 7, 100
OURS = (Way(name="late"), Way(name="not late", options=("--on-spike", "skip")))
WAYS = (*OURS, *(peer for peer in PEERS if peer.name in ("ddp", "ddp, orch_hooks int8", "post-local SGD")))
"""The loop of all peers is one."""


@pytest.fixture(scope="module")
def events(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The events of each way, started by the rig's own command on one node."""
    task = Task(data_dir=data_dir, samples=2, micro_batch=2, steps=STEPS)
    words = [command(way, task, tmp_path_factory.mktemp("run"), 0)[2:] for way in WAYS]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    environ = os.environ | {
        "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo", "ORCH_EVENTS": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-m", "tests.trainer.clocked_steps", json.dumps(words)],
        cwd=ROOT, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    outputs = ran.stdout.split("\n== ")
    assert len(outputs) == len(WAYS)
    return {
        way.name: [json.loads(line.removeprefix(EVENT)) for line in output.splitlines() if line.startswith(EVENT)]
        for way, output in zip(WAYS, outputs, strict=True)
    }


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_the_rig_reads_the_time_and_the_bytes_of_a_step(way: Way, events: dict[str, list[dict[str, Any]]]) -> None:
    rows = events[way.name]
    task = Task(data_dir=Path(), samples=2, micro_batch=2, steps=STEPS)
    # A node sends the bytes of a step at the end of its passes.
    outcome = Outcome(
        rank=0, events=[Event(fields=one, at=one["t"], sent=(SENT * int(one["t"] - rows[0]["t"]),)) for one in rows]
    )
    found = read([outcome], Way(name=way.name), task, 1)
    assert (found.step_s, found.sent_bytes, found.seconds) == (1.0, SENT, STEPS - 1)


@pytest.mark.parametrize("way", OURS, ids=lambda way: way.name)
def test_a_report_says_when_its_step_ended(way: Way, events: dict[str, list[dict[str, Any]]]) -> None:
    """The report counts the waiting until then, and the time that remains from the report."""
    steps = [event for event in events[way.name] if event["event"] == "step"]
    late = [1.0 if way.name == "late" else 0.0] * (STEPS - 1) + [0.0]
    assert [step["t"] - step["ended_at"] for step in steps] == late
    ends = [step["ended_at"] for step in steps]
    assert [after - before for before, after in pairwise(ends)] == [1.0] * (STEPS - 1)
    assert [step["per_s"] for step in steps] == [2 * 64] * STEPS
    assert [step["waiting"] for step in steps] == [LOADING_S] * STEPS
    assert [step["remaining_s"] for step in steps[1:]] == [
        STEPS - number - late_s for number, late_s in enumerate(late[1:], start=2)
    ]
