"""A run is seen through by its supervisor: containers killed by hand, machines that stay away and that come back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from tests.conftest import Figure
from tests.json_output import json_data
from tests.lab import underway as faults
from tests.lab.conftest import NAMES, Orch, on_node, running_on
from tests.lab.probe import train
from tests.lab.underway import PROBE, TORCH, Program, Record, underway

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

THREE = NAMES[:3]
QUICK = ("--env", "ORCH_FROZEN_S=6", "--env", "ORCH_SILENCE_S=12")
FOR_EVER = 100_000


def until(true: Callable[[], object], what: str, timeout_s: float = 180) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.2)


@pytest.fixture
def detached(orch: Orch) -> Iterator[Callable[..., Record]]:
    """Launches whose runs are taken down at the end."""
    begun: list[str] = []

    def launch(*options: str, program: Program = PROBE, last: int = FOR_EVER) -> Record:
        words = ("--yes", "--nodes", ",".join(THREE), "--name", "left", "--detach", *QUICK, *options)
        done = orch("launch", *words, *program.until(last))
        assert done.code == 0, done.err
        begun.append(done.out.split()[0])
        return Record(orch, begun[-1])

    yield launch
    for run_id in begun:
        orch("stop", run_id, "--timeout", "5")
        orch("clean", run_id)


def watched(record: Record) -> str:
    """Read what the supervisor in the background has printed."""
    file = faults.records(record.orch) / record.run_id / "supervisor.log"
    return file.read_text("utf-8") if file.exists() else ""


def supervisor(record: Record) -> int:
    return int((faults.records(record.orch) / record.run_id / "supervisor.lock").read_text())


def members(orch: Orch, run_id: str) -> tuple[int, list[str]]:
    """Attempt, and the nodes that run it, by name; none between two attempts, when no node holds it."""
    status = orch("status", run_id, "--json")
    data = status.json
    if "as_of" in data:  # from the record on the controller
        return -1, []
    return data["attempt"], sorted(member["node"] for member in data["members"] if member["state"] == "running")


def test_a_supervisor_in_the_background_starts_what_was_killed_and_may_be_killed_itself(
    orch: Orch, detached: Callable[..., Record], figure: Figure
) -> None:
    run = detached(last=300)  # some 15 s, in which others are refused
    until(lambda: run.step() >= 30, "step 30")
    os.kill(supervisor(run), signal.SIGKILL)
    at = faults.kill_container("beta")
    second = orch.begin("supervise", run.run_id)
    until(lambda: any(event.at > at for event in run.events("resumed")), "a new start")
    assert running_on("beta") == ["orch-run"]
    figure(f"19 container killed by hand: resumed after {run.events('resumed')[-1].at - at:.0f} s")
    refused = orch("supervise", run.run_id)
    assert (refused.code, "is supervised already, by process" in refused.err) == (6, True)
    waited = orch("wait", run.run_id)
    assert waited.code == 0
    assert f"run {run.run_id} succeeded\n" in waited.err
    log_text, _ = second.communicate(timeout=60)
    assert second.returncode == 0, log_text
    assert "→ the container on beta was killed: starting it again" in log_text


@pytest.mark.parametrize(("lost", "program"), [("gamma", PROBE), ("alpha", TORCH)], ids=["gamma", "alpha"])
def test_a_run_continues_without_a_machine_that_stays_away_and_adds_it_when_it_is_back(
    orch: Orch, detached: Callable[..., Record], lost: str, program: Program, figure: Figure
) -> None:
    """alpha is rank 0's: its place goes to the node that has a copy of the newest checkpoint. The step of a training
    keeps its size, with fewer nodes too."""
    run = detached("--node-timeout", "20", "--min-nodes", "2", program=program)
    until(lambda: run.step() >= 30, "step 30")
    left = [name for name in THREE if name != lost]
    before, at = run.step(), time.time()
    assert orch("lab", "kill", lost).code == 0
    try:
        until(lambda: any(event.at > at for event in run.events("resumed")), "a new attempt", 240)
        resumed = next(event for event in run.events("resumed") if event.at > at)
        figure(f"{lost} switched off: on with two nodes after {resumed.at - at:.0f} s, --node-timeout 20")
        assert before - int(resumed.values["step"]) <= 40
        assert f"→ {lost} given up: continuing with {', '.join(left)}" in watched(run)
        assert members(orch, run.run_id) == (1, left)
        step = run.step()
        until(lambda: run.step() > step, "a step of two nodes")
    finally:
        assert orch("lab", "start", lost).code == 0
    back = time.time()
    until(lambda: members(orch, run.run_id) == (2, list(THREE)), "all three", 300)
    until(lambda: any(event.at > back and event.node == lost for event in run.events("joined")), f"{lost} in it again")
    figure(f"{lost} switched on: added back after {time.time() - back:.0f} s")
    assert f"→ {lost} back and fit: added after this checkpoint" in watched(run)
    stopped = orch("stop", run.run_id)
    assert stopped.code == 0, stopped.err
    if program is PROBE:
        ranks, sizes = 0, dict[int, int]()
        for event in run.events("joined", "step"):
            ranks = event.values.get("world_size", ranks)
            sizes |= {event.values["step"]: ranks} if event.kind == "step" else {}
        assert set(sizes.values()) == {2, 3}
        assert run.losses() == train.losses(sizes[step] for step in range(1, max(sizes) + 1))
    else:
        assert {event.values["samples_per_step"] for event in run.events("joined")} == {6}
    assert [running_on(name) for name in THREE] == [[], [], []]
    until(lambda: not _alive(supervisor(run)), "the supervisor's end", 60)


def test_without_min_nodes_a_machine_that_stays_away_ends_the_run(orch: Orch, figure: Figure) -> None:
    with underway(
        orch, *QUICK, "--node-timeout", "20", *PROBE.until(FOR_EVER), nodes=",".join(THREE), name="all"
    ) as run:
        run.until_step(30)
        at = time.time()
        assert orch("lab", "kill", "gamma").code == 0
        try:
            assert run.end() == 1, run.log_text()
            figure(f"gamma switched off, all nodes needed: ended after {time.time() - at:.0f} s, --node-timeout 20")
            assert [running_on(name) for name in THREE[:2]] == [[], []]
        finally:
            assert orch("lab", "start", "gamma").code == 0
        faults.until_docker("gamma")  # its container comes back with it, and would wait for the others
        stopped = orch("stop", run.run_id, "--timeout", "2")
        assert stopped.code == 0, stopped.err
        assert running_on("gamma") == []
        assert f"✗ run {run.run_id} failed: rank 2 on gamma:" in run.log_text()
        assert f"→ orch resume {run.run_id}   without gamma: --nodes alpha,beta" in run.log_text()


def test_a_frozen_container_is_stopped(orch: Orch, detached: Callable[..., Record], figure: Figure) -> None:
    run = detached()
    until(lambda: run.step() >= 5, "step 5")
    on_node("beta", "docker", "pause", "orch-run")
    stopped = orch("stop", run.run_id, "--timeout", "5")
    assert stopped.code == 0, stopped.err
    assert [running_on(name) for name in THREE] == [[], [], []]
    figure(f"orch stop --timeout 5 with a frozen container: {stopped.seconds:.1f} s")


def test_a_launch_that_was_cut_short_is_found_and_finished(orch: Orch, detached: Callable[..., Record]) -> None:
    run = detached("--no-supervise")
    on_node("gamma", "docker", "rm", "-f", "orch-run")
    assert "was launched half-way, or is being launched: 2 of 3 containers run" in orch("status", run.run_id).err
    adopted = orch("adopt", run.run_id, "--detach", "--json")
    assert (adopted.code, json_data(adopted.out)) == (0, {"run_id": run.run_id}), adopted.err
    assert members(orch, run.run_id) == (0, list(THREE))
    until(lambda: run.step() >= 5, "step 5")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
