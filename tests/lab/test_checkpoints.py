"""Checkpoints of a real run: listed, copied to another machine, verified, fetched, resumed from there."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.fleet.checkpoints.newest import newest_anywhere
from orchestrator.fleet.checkpoints.replicate import replicate
from orchestrator.fleet.checkpoints.survey import places_of
from orchestrator.fleet.connect import connected
from orchestrator.specs.inventory_files.inventory_file import parse_inventory
from orchestrator.store.run_record import RunRecord
from tests.conftest import Figure
from tests.lab.conftest import Orch, on_node
from tests.lab.underway import PROBE

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def run(orch: Orch) -> str:
    """A run of two nodes that has ended, with checkpoints at 4, 8 and 12 on alpha."""
    done = orch.launch("--name", "kept", "--data", "Data", *PROBE.until(12, "4"), nodes="alpha,beta")
    assert done.code == 0, done.out + done.err
    return str(orch("checkpoints", "ls", "kept", "--json").json["checkpoints"][0]["run_id"])


def folder(run: str, step: int) -> str:
    return f"/home/orch/orch/lab/runs/{run}/checkpoints/step-{step:08d}"


def test_a_second_node_has_the_newest(orch: Orch, run: str, figure: Figure, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy goes over SSH, from one machine through this one to another."""
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, orch.environment[name])
    file = orch.folder / "state" / "orch" / "lab" / "inventory.yaml"
    inventory, plan = parse_inventory(file.read_bytes(), filename=str(file)), RunRecord(run).plan()
    assert plan is not None
    with connected(inventory.nodes[:2]) as nodes:
        on_node("beta", "rm", "-rf", folder(run, 12))
        done = replicate(nodes, plan)
        assert (done.step, done.holders, done.copied, done.failed) == (12, ("beta",), ("beta",), ())
        assert replicate(nodes, plan).copied == ()
        copies = newest_anywhere(nodes, places_of(plan), run).copies
    assert [(one.node, one.step, one.hashed) for one in copies] == [("alpha", 12, True), ("beta", 12, True)]
    sums = [on_node(name, "sh", "-c", f"cd {folder(run, 12)} && sha256sum *") for name in ("alpha", "beta")]
    assert sums[0] == sums[1]
    modes = on_node("beta", "sh", "-c", f"stat -c '%U %a' {folder(run, 12)} {folder(run, 12)}/*")
    assert set(modes.splitlines()) == {"orch 700", "orch 600"}
    figure(f"a copy of {copies[0].size / 1e6:.1f} MB is on a second node")


def test_they_are_listed_verified_and_fetched(orch: Orch, run: str, tmp_path: Path) -> None:
    shown = orch("checkpoints", "ls", run, "--json").json["checkpoints"]
    assert {(one["node"], one["step"]) for one in shown} >= {("alpha", 12), ("alpha", 8), ("alpha", 4), ("beta", 12)}
    assert {one["problem"] for one in shown} == {""}
    good = orch("checkpoints", "verify", run)
    assert good.code == 0, good.err
    came = orch("checkpoints", "pull", run, "--to", str(tmp_path), "--json")
    assert came.code == 0, came.err
    assert {path.name for path in Path(came.json["folder"]).iterdir()} >= {"state.pt", "manifest.json"}


def test_damage_is_found_and_the_other_copy_is_taken(orch: Orch, run: str, tmp_path: Path) -> None:
    state = f"{folder(run, 12)}/state.pt"
    on_node("alpha", "cp", state, "/tmp/state.pt")
    on_node("alpha", "sh", "-c", f"printf XXXXXXXX | dd of={state} bs=1 seek=5000 conv=notrunc status=none")
    try:
        bad = orch("checkpoints", "verify", run)
        assert bad.code == 1
        assert "✗ alpha: " in bad.err
        assert "state.pt has changed since it was written" in bad.err
        came = orch("checkpoints", "pull", run, "--to", str(tmp_path), "--json")
        assert (came.code, came.json["step"], came.json["from"]) == (0, 12, "beta")
    finally:
        on_node("alpha", "sh", "-c", f"cat /tmp/state.pt > {state}")
    assert orch("checkpoints", "verify", run).code == 0


def test_older_ones_are_removed_and_the_run_continues_where_a_copy_is(orch: Orch, run: str, figure: Figure) -> None:
    done = orch("checkpoints", "prune", run, "--keep", "1", "--yes", "--json")
    assert done.code == 0, done.err
    assert {one["step"] for one in done.json["removed"]} == {4, 8}
    for name in ("gamma", "delta"):  # as machines that never had a run
        on_node(name, "rm", "-rf", "/home/orch/orch/lab/data")
    resumed = orch(
        "resume", run, "--yes", "--nodes", "beta,gamma", "--checkpoint-copies", "0", "--", *PROBE.command, "14"
    )
    assert resumed.code == 0, resumed.out + resumed.err
    assert "gamma: data copied" in resumed.err
    assert "step-00000014" in on_node("beta", "ls", f"/home/orch/orch/lab/runs/{run}/checkpoints")
    moved = orch("resume", run, "--yes", "--nodes", "delta", "--", *PROBE.command, "16")
    assert moved.code == 0, moved.out + moved.err
    assert "delta: step-00000014 from beta" in moved.err
    steps = on_node("delta", "ls", f"/home/orch/orch/lab/runs/{run}/checkpoints").split()
    assert steps == ["step-00000014", "step-00000016"]
    figure(f"on with a machine that had neither data nor checkpoint: {moved.seconds:.0f} s, two steps of it")


def test_machines_that_lost_all_continue_from_what_was_pulled(orch: Orch, run: str, tmp_path: Path) -> None:
    assert orch("checkpoints", "pull", run, "--to", str(tmp_path)).code == 0
    for name in ("alpha", "beta", "gamma", "delta"):
        on_node(name, "rm", "-rf", f"/home/orch/orch/lab/runs/{run}/checkpoints")
    resume = ("resume", run, "--yes", "--", *PROBE.command, "18")
    refused = orch(*resume)
    assert (refused.code, f"orch checkpoints push {run}" in refused.err) == (4, True)
    pushed = orch("checkpoints", "push", run, "--from", str(tmp_path))
    assert pushed.code == 0, pushed.err
    assert f"step 16 of run {run}: on delta (every file verified)" in pushed.err
    resumed = orch(*resume)
    assert resumed.code == 0, resumed.out + resumed.err
    assert "resumed at step 16" in resumed.out + resumed.err
    assert "step-00000018" in on_node("delta", "ls", f"/home/orch/orch/lab/runs/{run}/checkpoints")
