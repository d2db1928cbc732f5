"""Rows of the fault table (docs/faults.md) that need machines: ranks, containers, engines and whole machines break."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest

from tests.conftest import Figure
from tests.lab import underway as faults
from tests.lab.conftest import NAMES, Orch, on_node, running_on
from tests.lab.probe import train
from tests.lab.underway import EVERY, PROBE, TORCH, Underway, underway

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

THREE = NAMES[:3]
FOR_EVER = 100_000
FROZEN = ("--env", "ORCH_FROZEN_S=6", "--max-restarts", "20")
QUICK = (*FROZEN, "--env", "ORCH_SILENCE_S=12")
"""Patience of a test."""


@pytest.fixture(scope="module")
def run(orch: Orch) -> Iterator[Underway]:
    """The run that the faults of this file hit, one after the other."""
    with underway(orch, *QUICK, *PROBE.until(FOR_EVER), nodes=",".join(THREE), name="hard") as run:
        yield run


@pytest.fixture(scope="module")
def training(orch: Orch, run: Underway) -> Iterator[Underway]:
    """A training that is hit as well, with the usual patience with a silent node; the other run is stopped first."""
    stopped = orch("stop", run.run_id)
    assert stopped.code == 0, stopped.err
    with underway(orch, *FROZEN, *TORCH.until(FOR_EVER), nodes=",".join(THREE), name="exact") as training:
        yield training


def until_a_new_checkpoint(run: Underway) -> None:
    run.until_step(run.record.step() + 30)


def recovers(run: Underway, at: float) -> float:
    """Wait until it resumes from its last checkpoint; return the seconds from the fault to the next step."""
    before = [event for event in run.events("step", "checkpoint") if event.at < at]
    seconds = run.back_after(at)
    resumed = next(event for event in run.events("resumed") if event.at > at)
    # A checkpoint is written while the training continues: it counts from its report.
    saved = max((int(event.values["step"]) for event in before if event.kind == "checkpoint"), default=0)
    assert int(resumed.values["step"]) >= saved
    reached = int([event for event in before if event.kind == "step"][-1].values["step"])
    assert reached - int(resumed.values["step"]) < 2 * EVERY, "more than what was being written"
    return seconds


def is_named(run: Underway, node: str, at: float) -> None:
    again = next(event for event in run.events("restarting") if event.at > at)
    assert again.values["node"] == node
    assert again.values["outcome"] == "infrastructure"


BREAK: dict[str, tuple[str, Callable[[str], float]]] = {
    "18 worker killed": ("gamma", lambda node: faults.send(node, "KILL", faults.RANK)),
    "19 container killed": ("beta", faults.kill_container),
    "20 worker frozen": ("beta", lambda node: faults.send(node, "STOP", faults.RANK)),
}


@pytest.mark.parametrize("row", BREAK)
def test_what_breaks_is_restarted_from_the_last_checkpoint(run: Underway, row: str, figure: Figure) -> None:
    node, fault = BREAK[row]
    until_a_new_checkpoint(run)
    at = fault(node)
    seconds = recovers(run, at)
    is_named(run, node, at)
    figure(f"{row}: next step after {seconds:.0f} s")


def test_a_machine_that_loses_power_comes_back_by_itself(run: Underway, figure: Figure) -> None:
    until_a_new_checkpoint(run)
    at = faults.reboot("gamma")
    figure(f"23 machine switched off and on: next step after {recovers(run, at):.0f} s")


def test_a_long_cut_is_waited_for(orch: Orch, run: Underway, figure: Figure) -> None:
    until_a_new_checkpoint(run)
    at = time.time()
    assert orch("lab", "cut", "gamma").code == 0
    try:
        run.until(lambda: any(event.at > at for event in run.events("restarting")), "the loss of gamma")
        waiting = "the wait for gamma"
        run.until(
            lambda: any(each.at > at and each.values["nodes"] == ["gamma"] for each in run.events("waiting")), waiting
        )
    finally:
        assert orch("lab", "heal", "gamma").code == 0
    figure(f"16 network cut for {time.time() - at:.0f} s: next step after {recovers(run, at):.0f} s")


def test_after_these_faults_the_losses_are_those_of_an_undisturbed_run(run: Underway) -> None:
    reported, undisturbed = run.losses(), train.losses([len(THREE)] * max(run.losses()))
    assert reported == {step: undisturbed[step] for step in reported}
    mute = EVERY * (len(BREAK) + 2)
    assert len(reported) > len(undisturbed) - mute, "only the last lines of ranks, which no one read, may be lost"


def test_a_short_cut_is_reported_and_breaks_nothing(orch: Orch, training: Underway) -> None:
    """Seconds: shorter than the default patience with a silent node, which is a minute."""
    training.until_step(10)
    assert orch("lab", "cut", "beta").code == 0
    try:
        training.until(lambda: training.events("stalled"), "word of the silence")
    finally:
        assert orch("lab", "heal", "beta").code == 0
    training.until_step(training.record.step() + EVERY)
    assert not training.events("restarting"), training.log_text()


def test_a_training_whose_torchrun_was_killed_resumes(training: Underway, figure: Figure) -> None:
    until_a_new_checkpoint(training)
    at = faults.send("alpha", "KILL", faults.TORCHRUN)
    seconds = recovers(training, at)
    is_named(training, "alpha", at)
    figure(f"17 master killed: next step after {seconds:.0f} s")


def test_a_bit_flipped_in_the_newest_checkpoint_is_found(training: Underway) -> None:
    until_a_new_checkpoint(training)
    at = faults.send("alpha", "STOP", faults.RANK)  # no newer checkpoint may be written in between
    flipped = faults.flip_a_bit("alpha", training.run_id)
    training.until(lambda: any(event.at > at for event in training.events("resumed")), "a restart")
    resumed = next(event for event in training.events("resumed") if event.at > at)
    assert int(resumed.values["step"]) < int(flipped.removeprefix("step-"))
    reason = f"{flipped}: state.pt has changed since it was written"
    training.until(lambda: reason in training.log_text(), "the reason")  # a launch shows lines up to a second later
    training.back_after(at)


def test_after_all_this_the_losses_are_those_of_an_undisturbed_training(orch: Orch, training: Underway) -> None:
    """Bit by bit."""
    stopped = orch("stop", training.run_id)
    assert stopped.code == 0, stopped.err
    reported = training.losses()
    with underway(orch, *TORCH.until(max(reported)), nodes=",".join(THREE), name="calm") as calm:
        assert calm.end() == 0, calm.log_text()
        undisturbed = calm.losses()
    assert reported == {step: undisturbed[step] for step in reported}
    assert len(reported) > len(undisturbed) - 2 * EVERY, (
        "only what ranks said last, to a torchrun that was dead, may be lost"
    )


def test_an_error_of_the_users_ends_all_without_the_controller(orch: Orch, figure: Figure) -> None:
    """The whole run ends with no one watching, and any node's log names the cause."""
    words = ("--nodes", ",".join(THREE), "--name", "own", "--detach", "--no-supervise", "--yes")
    launched = orch("launch", *words, *PROBE.until(FOR_EVER))
    assert launched.code == 0, launched.err
    run_id = launched.out.split()[0]
    try:
        deadline = time.monotonic() + 120
        while '"generation"' not in orch("logs", run_id).out + orch("logs", run_id, "--json").out:
            assert time.monotonic() < deadline
        began = time.monotonic()
        on_node("beta", "touch", f"{faults.FOLDER}/runs/{run_id}/code/{train.FAIL}")
        while any(running_on(name) for name in THREE):
            assert time.monotonic() - began < 60, "it does not end"
        seconds = time.monotonic() - began
        figure(f"user error, no controller: all down in {seconds:.0f} s")
        over = json.loads(on_node("gamma", "sh", "-c", f"cat {faults.FOLDER}/runs/{run_id}/over-2.json"))["rank_exit"]
        assert (over["node"], over["rank"], over["outcome"], over["reason"]) == ("beta", 1, "user", "KeyError: 'label'")
    finally:
        orch("stop", run_id, "--timeout", "2")
        orch("clean", run_id)
