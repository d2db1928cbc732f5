"""A run by its commands, from launch to clean, on machines that exist in memory alone."""

from __future__ import annotations

import json
from pathlib import Path

from tests import lan
from tests.json_output import json_data
from tests.lan import event
from tests.unit.conftest import THREE, Orch, detached

DONE = ("[rank0]: hello", event("step", step=3, loss=1.5), event("done", step=3))


def test_a_run_from_launch_to_clean(orch: Orch) -> None:
    here = lan.lan(*THREE, says=(*DONE, event("checkpoint", step=3, verified=True)), ends_with=None)
    run_id = detached(orch, here)

    status = orch("status", "--json", on=here)
    assert (status.code, json_data(status.out)["state"]) == (0, "running")
    assert "run " + run_id in orch("status", on=here).out
    listed = json_data(orch("runs", "--json", on=here).out)
    assert [run["run_id"] for run in listed["runs"]] == [run_id]
    assert run_id in orch("runs", on=here).out

    logs = orch("logs", run_id[:6], "--tail", "9", on=here)
    assert logs.out == "[all 3 nodes] hello\n"
    lines = [json.loads(line) for line in orch("logs", "--json", "--nodes", "beta", on=here).out.splitlines()]
    assert [line.get("event", {}).get("kind") for line in lines] == [None, "step", "done", "checkpoint"]

    stopped = orch("stop", on=here)
    assert (stopped.code, here.containers) == (0, {})
    assert f"✓ run {run_id} stopped, checkpoint of step 3\n  → orch resume {run_id}" in stopped.err
    assert f"{run_id}  stopped" in orch("runs", on=here).out
    assert orch("logs", run_id, "--nodes", "alpha", on=here).out == "[0 alpha] hello\n"
    assert json_data(orch("clean", "--json", on=here).out) == {"removed": {name: [] for name in THREE}}


def test_logs_of_a_run_whose_ranks_have_printed_nothing(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    run_id = detached(orch, here)
    ran = orch("logs", on=here)
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == f"note: the ranks have printed nothing yet\n  → orch status {run_id}\n"


def test_a_resumed_run_is_the_next_attempt_of_the_same(orch: Orch) -> None:
    here = lan.lan(*THREE, says=DONE)
    ran = orch("launch", "--json", "--nodes", "alpha,beta", "--", "gpt2", "--epochs", "7", on=here)
    run_id = json_data(ran.out)["run_id"]
    again = orch("launch", "--resume", run_id, "--dry-run", "--json", on=here)
    plan = json_data(again.out)
    assert (plan["run_id"], plan["attempt"], plan["command"]) == (run_id, 1, ["gpt2", "--epochs", "7"])
    assert [part["node"] for part in plan["nodes"]] == ["alpha", "beta"]


def test_dry_run_asks_and_starts_nothing(orch: Orch) -> None:
    here = lan.lan(*THREE)
    ran = orch("launch", "--dry-run", on=here)
    assert (ran.code, here.containers) == (0, {})
    assert ran.out.count("docker -H ssh://") == 3
    assert lan.IMAGE.id in ran.out


def test_dry_run_of_machines_out_of_reach(orch: Orch) -> None:
    here = lan.Lan({name: lan.silent(name) for name in THREE})
    ran = orch("launch", "--dry-run", on=here)
    assert ran.code == 0
    assert "# note: not asked: alpha, beta, gamma; their lines are a guess from the inventory" in ran.out


def test_an_error_of_a_node_does_not_move_the_cursor(orch: Orch) -> None:
    here = lan.lan(*THREE)
    here.nodes["beta"].answers[("sh", "-c", "*")] = (1, "", "\x1b[2J\x1b[31mPermission denied")
    ran = orch("launch", on=here)
    assert ran.code == 4
    assert "Permission denied" in ran.err
    assert "\x1b" not in ran.err


def test_a_run_that_still_runs_is_not_resumed_beside_itself(orch: Orch) -> None:
    here = lan.lan(*THREE, says=DONE, ends_with=None)
    ran = orch("launch", "--json", "--detach", "--nodes", "alpha,beta", on=here)
    run_id, before = json_data(ran.out)["run_id"], here.containers
    again = orch("resume", run_id, "--nodes", "gamma", "--detach", on=here)
    assert (again.code, here.containers) == (6, before)
    assert (
        f"error: run {run_id} still runs on alpha, beta\n  → to stop it and continue: orch restart {run_id}"
        in again.err
    )


def test_a_run_without_a_step_offers_no_checkpoints(orch: Orch) -> None:
    idle = orch("launch", "-y", "--", "gpt2", on=lan.lan(*THREE, says=(event("done"),)))
    assert "  folder  alpha:/home/ana/orch/orch/runs/" in idle.err
    for line in ("checkpoints", "orch pull", "orch sample"):
        assert line not in idle.err
    resumed_at_its_end = (event("resumed", step=3), event("done"))
    for entry in (DONE, (event("checkpoint", step=3), event("done")), resumed_at_its_end):
        trained = orch("launch", "-y", "--", "gpt2", on=lan.lan(*THREE, says=entry))
        assert "/checkpoints\n" in trained.err
        assert "orch sample" in trained.err


def test_a_script_that_reports_no_step_may_have_written_files(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.py").touch()
    words = ("launch", "-y", "--workdir", str(tmp_path / "mine"), "--", "python", "train.py")
    ran = orch(*words, on=lan.lan(*THREE))
    assert "  folder  alpha:" in ran.err
    assert "# copy what it wrote to this computer" in ran.err
    assert "checkpoints" not in ran.err
