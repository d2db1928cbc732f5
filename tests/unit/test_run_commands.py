"""`orch supervise`, `resume`, `restart`, `wait` and `adopt`, and launches cut short, by their command lines."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from orchestrator.fleet.runs import load_plan
from orchestrator.fleet.runs.launch import launch
from orchestrator.fleet.runs.one_supervisor import only_supervisor
from orchestrator.fleet.supervise.wait import wait_for
from orchestrator.nodes.probes import probe
from orchestrator.specs.errors import DeadlineError, EngineError, NodeUnreachableError
from orchestrator.specs.plan_json import to_json
from orchestrator.specs.request import RunIdentity
from orchestrator.store.run_record import RunRecord
from tests import lan
from tests.json_output import json_data
from tests.lan import event
from tests.unit.conftest import THREE, Orch, detached

DONE = ("[rank0]: hello", event("step", step=3, loss=1.5), event("done", step=3))


def finish(here: lan.Lan, code: int, *, others: int | None = None) -> None:
    """All containers at once; those of all but the first node with another code, where one is given."""
    for node in here.nodes.values():
        for container in list(node.engine.made):
            node.engine.finish(container, code)
        code = code if others is None else others


def half_launched(here: lan.Lan) -> str:
    """Leave a run as a controller does that died between two nodes: one runs, one was created, one holds none."""
    plan = lan.plan(THREE, project="here")
    for node in here.nodes.values():
        node.answers = {("sh", "-c", load_plan._READ, "*"): (0, to_json(plan), ""), **node.answers}
    RunRecord(plan.run_id).save_intent(plan)
    alpha, beta = here.nodes["alpha"].engine, here.nodes["beta"].engine
    alpha.start(alpha.create(plan.nodes[0].container))
    beta.create(plan.nodes[1].container)
    return plan.run_id


# ── A supervisor ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_detached_run_has_a_supervisor_of_its_own(orch: Orch, supervisors: list[tuple[str, ...]]) -> None:
    run_id = detached(orch, lan.lan(*THREE, ends_with=None))
    (supervisor,) = supervisors
    assert supervisor[1:5] == ("-P", "-m", "orchestrator", "supervise")
    assert supervisor[5:] == (run_id, "-i", str(Path("inventory.yaml").absolute()))


def test_unless_none_is_wanted(orch: Orch, supervisors: list[tuple[str, ...]]) -> None:
    ran = orch("launch", "--detach", "--no-supervise", on=lan.lan(*THREE, ends_with=None))
    assert (ran.code, supervisors) == (0, [])


def test_watch_sees_a_run_to_its_end(orch: Orch) -> None:
    here = lan.lan(*THREE, says=DONE, ends_with=None)
    run_id = detached(orch, here)
    finish(here, 0)
    ran = orch("supervise", run_id[:7], on=here)
    assert (ran.code, ran.out) == (0, "")
    assert f"✓ run {run_id} succeeded at step 3" in ran.err
    assert RunRecord(run_id).outcome() == ("succeeded", "")


def test_watch_as_json(orch: Orch) -> None:
    here = lan.lan(*THREE, says=DONE, ends_with=None)
    run_id = detached(orch, here)
    finish(here, 1, others=0)
    ran = orch("supervise", "--json", on=here)
    data = json_data(ran.out)
    assert (ran.code, data["run_id"], data["state"], data["failure"]["node"]) == (1, run_id, "failed", "alpha")


def test_a_second_supervisor_is_refused(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    run_id = detached(orch, here)
    with only_supervisor(RunRecord(run_id)):
        ran = orch("supervise", on=here)
    assert ran.code == 6
    assert f"run {run_id} is supervised already, by process" in ran.err
    assert f"→ orch logs -f {run_id}" in ran.err


# ── Wait ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("code", "ended", "exit_code"), [(0, "succeeded", 0), (1, "failed", 1), (143, "stopped", 0)])
def test_wait_has_the_exit_code_of_the_run(orch: Orch, code: int, ended: str, exit_code: int) -> None:
    here = lan.lan(*THREE, ends_with=None)
    run_id = detached(orch, here)
    finish(here, code)
    ran = orch("wait", "--json", on=here)
    assert (ran.code, json_data(ran.out)) == (exit_code, {"run_id": run_id, "state": ended})


def test_wait_has_a_deadline(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    run_id = detached(orch, here)
    ran = orch("wait", "--timeout", "0", on=here)
    assert ran.code == 7
    assert f"error: run {run_id} has not ended after 0 s" in ran.err


def test_wait_looks_until_all_has_ended() -> None:
    here, rests = lan.lan(*THREE, ends_with=None), list[float]()
    plan = lan.plan(THREE)
    launch(here.nodes, plan)

    def rest(seconds: float) -> None:
        rests.append(seconds)
        if len(rests) == 3:
            finish(here, 0)

    nodes = list(here.nodes.values())
    assert wait_for(nodes, plan.run_id, timeout_s=None, rest=rest) == "succeeded"
    assert rests == [2.0, 2.0, 2.0]


def test_a_lost_run_is_waited_for_once_a_node_shows_that_it_runs() -> None:
    here = lan.lan(*THREE, ends_with=None)
    plan, nodes = lan.plan(THREE), list(here.nodes.values())
    launch(here.nodes, plan)
    RunRecord(plan.run_id).save_outcome("lost", "")
    for node in nodes:
        node.engine.failures["containers"] = EngineError("no answer", node=node.name)
    assert wait_for(nodes, plan.run_id, timeout_s=None, rest=lambda _seconds: pytest.fail("waits")) == "lost"
    for node in nodes:
        del node.engine.failures["containers"]
    assert wait_for(nodes, plan.run_id, timeout_s=None, rest=lambda _seconds: finish(here, 0)) == "succeeded"
    assert RunRecord(plan.run_id).outcome() == ("succeeded", "")


def test_while_it_is_watched_the_supervisors_word_counts() -> None:
    """No container runs between two attempts."""
    here, now = lan.lan(*THREE, ends_with=None), [0.0]
    plan = lan.plan(THREE)
    launch(here.nodes, plan)
    finish(here, 1)
    record = RunRecord(plan.run_id)

    def rest(seconds: float) -> None:
        now[0] += seconds

    with only_supervisor(record):
        with pytest.raises(DeadlineError):
            wait_for(list(here.nodes.values()), plan.run_id, timeout_s=60, now=lambda: now[0], rest=rest)
        record.save_outcome("succeeded", "")
        assert (
            wait_for(list(here.nodes.values()), plan.run_id, timeout_s=60, now=lambda: now[0], rest=rest) == "succeeded"
        )
    assert now[0] == 60


# ── Resume and restart ───────────────────────────────────────────────────────────────────────────────────────────────


def test_resume_is_the_next_attempt_and_keeps_what_was_given(orch: Orch) -> None:
    here = lan.lan(*THREE, says=DONE)
    words = ("--nodes", "alpha,beta", "--max-restarts", "7", "--node-timeout", "30", "--min-nodes", "1")
    ran = orch("launch", "--json", *words, "--profile", "cpu", "--", "gpt2", "--epochs", "7", on=here)
    run_id = json_data(ran.out)["run_id"]
    plan = json_data(orch("resume", run_id, "--dry-run", "--json", on=here).out)
    assert (plan["run_id"], plan["attempt"], plan["command"]) == (run_id, 1, ["gpt2", "--epochs", "7"])
    assert (plan["max_restarts"], plan["node_timeout_s"], plan["min_nodes"], plan["profile"]) == (7, 30, 1, "cpu")
    other = json_data(
        orch("resume", run_id, "--nodes", "gamma", "--min-nodes", "2", "--dry-run", "--json", on=here).out
    )
    assert ([part["node"] for part in other["nodes"]], other["min_nodes"]) == (["gamma"], 2)


def test_restart_stops_with_a_checkpoint_and_continues(orch: Orch, supervisors: list[tuple[str, ...]]) -> None:
    here = lan.lan(*THREE, says=(lan.written(40),), ends_with=None)
    run_id = detached(orch, here)
    lan.keep_checkpoint(here.nodes["alpha"], run_id, 40)
    ran = orch("restart", "--detach", "--json", on=here)
    assert (ran.code, json_data(ran.out)) == (0, {"run_id": run_id})
    assert f"✓ run {run_id} stopped, checkpoint of step 40" in ran.err
    for node in here.nodes.values():
        ((_, facts),) = node.engine.made.values()
        assert (facts.labels["orch.attempt"], facts.status) == ("1", "running")
    assert [supervisor[5] for supervisor in supervisors] == [run_id, run_id]
    assert not RunRecord(run_id).is_stopping()


@pytest.mark.parametrize(
    ("words", "says", "code"),
    [
        (("--nodes", "alhpa", "--yes"), None, 3),
        (("--", "gtp2"), None, 2),
        ((), False, 130),
        ((), None, 2),
        (("--nodes", "alpha,delta", "--yes"), None, 4),
    ],
    ids=["a wrong node", "words after --", "the answer no", "no terminal", "a node out of reach"],
)
def test_a_restart_that_is_refused_leaves_the_run_going(
    orch: Orch, words: tuple[str, ...], says: bool | None, code: int
) -> None:
    here = lan.lan(*THREE, says=(lan.written(40),), ends_with=None)
    run_id = detached(orch, here)
    with Path("inventory.yaml").open("a") as file:
        file.write("  delta: {address: 10.0.0.14}\n")
    here.nodes["delta"] = lan.silent("delta")
    ran = orch("restart", run_id, *words, on=here, says=says)
    assert ran.code == code, ran.err
    assert "stopped," not in ran.err
    for name in THREE:
        ((_, facts),) = here.nodes[name].engine.made.values()
        assert (facts.labels["orch.attempt"], facts.status) == ("0", "running")
    assert not RunRecord(run_id).is_stopping()


def test_a_stop_with_a_full_disk_ends_the_run_and_says_what_is_not_known(
    orch: Orch, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = lan.lan(*THREE, ends_with=None)
    run_id = detached(orch, here)

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    ran = orch("stop", run_id, on=here)
    assert (ran.code, here.containers) == (0, {})
    assert (
        "cannot be written (No space left on device): it does not say that the run was stopped; its nodes do" in ran.err
    )
    assert f"✓ run {run_id} stopped, its last checkpoint is not known\n" in ran.err


def test_a_restart_that_breaks_off_after_the_stop_says_how_to_resume(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    run_id = detached(orch, here)
    here.nodes["beta"].engine.failures["create"] = EngineError("no room", node="beta")
    ran = orch("restart", run_id, "--detach", "--yes", on=here)
    assert (ran.code, here.containers) == (4, {})
    assert f"run {run_id} is stopped (no checkpoint) and was not started again\n  → orch resume {run_id}\n" in ran.err
    assert "error: beta: no room" in ran.err


def test_restart_shows_the_plan_with_the_ports_that_the_run_gives_back(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    run_id = detached(orch, here)
    busy = lan.probe_answer("alpha", listening="3043")  # 12355 in hexadecimal
    here.nodes["alpha"].answers[("sh", "-c", probe.SCRIPT, "*")] = (0, busy, "")
    ran = orch("restart", run_id, on=here, says=False)
    assert ran.asked == (f"Stop run {run_id} and resume it as shown?",)
    assert f"master alpha {lan.address_of('alpha')}:12355" in ran.err
    assert f"nothing was stopped: run {run_id} is as it was" in ran.err


# ── Which run is stopped ─────────────────────────────────────────────────────────────────────────────────────────────


def test_without_a_name_only_the_one_run_of_mine_is_stopped(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    mine = json_data(orch("launch", "--detach", "--json", "--nodes", "alpha", on=here).out)["run_id"]
    theirs = lan.plan(("beta", "gamma"), project="here")
    launch(here.nodes, theirs)
    ran = orch("stop", on=here, says=None)
    assert (ran.code, ran.asked) == (0, ()), ran.err
    assert f"✓ run {mine} stopped" in ran.err
    assert set(here.containers) == {"beta", "gamma"}
    for command in ("stop", "restart"):
        again = orch(command, on=here)
        assert again.code == 2
        assert "you have no active run: name the run\n" in again.err
        assert f"  {theirs.run_id}  by ana  " in again.err
    assert set(here.containers) == {"beta", "gamma"}


@pytest.mark.parametrize("command", [("stop",), ("restart", "--yes")], ids=lambda words: words[0])
def test_where_no_node_answers_nothing_is_printed_about_runs(orch: Orch, command: tuple[str, ...]) -> None:
    ran = orch(*command, on=lan.Lan({name: lan.silent(name) for name in THREE}))
    assert ran.code == 4
    assert "no node that answered knows of a run; alpha, beta, gamma did not answer\n  → orch doctor\n" in ran.err


def test_of_two_runs_of_mine_one_must_be_named(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    both = [
        json_data(orch("launch", "--detach", "--json", "--nodes", node, on=here).out)["run_id"]
        for node in ("alpha", "beta")
    ]
    ran = orch("stop", on=here)
    assert ran.code == 2
    assert "2 of your runs are active" in ran.err
    assert all(run_id in ran.err for run_id in both)
    assert orch("stop", both[0], on=here).code == 0
    assert set(here.containers) == {"beta"}


@pytest.mark.parametrize("ends", [("stop",), ("clean",)], ids=" ".join)
def test_a_node_that_was_away_as_its_run_was_stopped_is_named_when_it_is_back(orch: Orch, ends: tuple[str]) -> None:
    here = lan.lan(*lan.NAMES[:4], says=(lan.written(40),), ends_with=None)
    with Path("inventory.yaml").open("a") as file:
        file.write(f"  delta: {{address: {lan.address_of('delta')}}}\n")
    run_id = json_data(orch("launch", "--detach", "--json", "--nodes", "3", on=here).out)["run_id"]
    away = NodeUnreachableError("no answer in 5 s", node="?")
    beta, delta = here.nodes["beta"].engine, here.nodes["delta"].engine
    beta.failures["containers"] = delta.failures["containers"] = away

    stopped = orch("stop", run_id, on=here)
    assert stopped.code == 5
    assert f"run {run_id} stopped on alpha, gamma (checkpoint of step 40), but may still run on beta\n" in stopped.err
    assert "Docker starts it again with the machine" in stopped.err
    assert f"  → once beta can be reached: orch stop {run_id}   (or orch clean)\n" in stopped.err

    del beta.failures["containers"], delta.failures["containers"]
    for command in ("status", "runs"):
        reported = f"the run has ended, but its container on beta runs\n  → orch stop {run_id}"
        assert reported in orch(command, on=here).err
    watched = orch("supervise", run_id, on=here)
    assert (watched.code, f"run {run_id} was stopped" in watched.err) == (5, True)
    ended = orch(*ends, *((run_id,) if ends == ("stop",) else ()), on=here)
    assert (ended.code, here.containers) == (0, {}), ended.err
    if ends == ("clean",):
        assert f"beta: what was left of run {run_id}, stopped while this node was away, is ended" in ended.err


def test_what_another_controller_resumed_since_is_not_cleaned_away(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    run_id = detached(orch, here)
    assert orch("stop", run_id, on=here).code == 0
    assert RunRecord(run_id).was_stopped(0)
    identity = RunIdentity(run_id=run_id, user="bea", started_at="2026-01-02T15:04:05+00:00", attempt=1)
    for part in lan.plan(THREE, identity, project="here").nodes:
        engine = here.nodes[part.node].engine
        engine.start(engine.create(part.container))
    assert orch("clean", on=here).code == 0
    assert sorted(here.containers) == sorted(THREE)
    assert "was stopped" not in orch("status", on=here).err


# ── A launch that was cut short ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("command", ["status", "runs"])
def test_a_launch_that_was_cut_short_is_found(orch: Orch, command: str) -> None:
    here = lan.lan(*THREE, ends_with=None)
    run_id = half_launched(here)
    ran = orch(command, on=here)
    assert f"run {run_id} was launched half-way, or is being launched: 1 of 3 containers run" in ran.err
    assert f"→ orch adopt {run_id}   or: orch stop {run_id}" in ran.err


def test_the_next_launch_says_so_too(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    run_id = half_launched(here)
    ran = orch("launch", "--nodes", "beta", on=here)
    assert ran.code == 6
    assert f"orch adopt {run_id}, or: orch stop {run_id}" in ran.err


def test_it_may_be_finished(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    run_id = half_launched(here)
    ran = orch("adopt", "--detach", on=here)
    assert (ran.code, ran.out) == (0, f"{run_id}\n"), ran.err
    assert f"run {run_id} is up on alpha, beta, gamma" in ran.err
    status = json_data(orch("status", "--json", on=here).out)
    assert [member["state"] for member in status["members"]] == ["running"] * 3
    assert RunRecord(run_id).plan() is not None


def test_or_removed(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    half_launched(here)
    stopped = orch("stop", lan.IDENTITY.run_id, on=here)
    assert (stopped.code, here.containers) == (0, {})
    (question,) = stopped.asked
    assert question.startswith(f"Run {lan.IDENTITY.run_id} was launched by ana since 2026-01-02T15:04:05")


@pytest.mark.parametrize(
    ("typed", "seconds"), [("90", 90), ("10m", 600), ("2h", 7200), ("0", 0), ("5", None), ("9s", None), ("soon", None)]
)
def test_a_time_without_progress_is_a_number_of_seconds_or_has_a_unit(
    orch: Orch, tmp_path: Path, typed: str, seconds: int | None
) -> None:
    words = ("--nodes", "alpha,beta", "--hang-timeout", typed, "--", "gpt2")
    ran = orch("launch", "--dry-run", "--json", *words, on=lan.lan(*THREE))
    if seconds is None:
        assert ran.code == 2
        assert f"--hang-timeout {typed}: expected at least 10 seconds, such as 90, 10m or 2h" in ran.err
        return
    plan = json_data(ran.out)
    assert plan["hang_timeout_s"] == seconds
    agent = plan["nodes"][1]["container"]["command"]
    assert ("--hang" in agent) is bool(seconds)
    assert any("all ranks restart if they are stuck" in note for note in plan["notes"]) is bool(seconds)
