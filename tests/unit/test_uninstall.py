"""`orch uninstall`: the scripts run on this computer, the engines are fakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.nodes.local import LocalNode
from orchestrator.specs.errors import NodeUnreachableError
from tests import lan
from tests.unit.conftest import THREE, Orch, detached, json_data


def left_behind(orch: Orch, tmp_path: Path) -> lan.Lan:
    """Three machines with an ended run each, data, a cache, a file of the user's, and a link out of the folder."""
    here = lan.lan(*THREE, ends_with=0)
    run_id = detached(orch, here)
    lines = ["nodes:"]
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/mine").write_text("mine")
    for name in THREE:
        folder = tmp_path / name / "orch"
        for part in (f"runs/{run_id}/checkpoints/step-00000007", "data/59c6", "Data"):
            (folder / part).mkdir(parents=True)
        (folder / "data/59c6/train.bin").write_bytes(bytes(200_000))
        (folder / "cache").symlink_to(tmp_path / "precious")
        lines.append(f"  {name}: {{address: {lan.address_of(name)}, workspace: {tmp_path / name}}}")
        here.nodes[name] = LocalNode(name, lan.address_of(name), here.nodes[name].engine)  # type: ignore[assignment]
    (tmp_path / "beta/orch/notes.txt").write_text("mine")
    Path("inventory.yaml").write_text("\n".join(lines) + "\n")
    for engine in (node.engine for node in here.nodes.values()):
        engine.tag(lan.IMAGE.id, "orch/other:cpu")
        engine.tag(lan.IMAGE.id, "mine:latest")
    return here


@pytest.fixture
def fleet(orch: Orch, tmp_path: Path) -> lan.Lan:
    return left_behind(orch, tmp_path)


def images(here: lan.Lan, node: str) -> list[str]:
    return [tag for image in here.nodes[node].engine.images() for tag in image.tags]


def test_it_is_shown_first_and_only_removed_on_consent(orch: Orch, fleet: lan.Lan, tmp_path: Path) -> None:
    found = orch("uninstall", "--dry-run", "-n", "3", on=fleet)
    assert found.code == 0, found.err
    assert "checkpoints on these nodes are of: first-" in found.err
    assert "orch pull first-" in found.err
    row = next(line for line in found.out.splitlines() if line.startswith("beta"))
    assert "0.2" in row
    assert "1 other names" in row
    refused = orch("uninstall", "-n", "3", on=fleet, says=False)
    assert refused.code == 130
    assert orch("uninstall", "-n", "3", on=fleet, says=None).code == 2
    assert (tmp_path / "alpha/orch/data/59c6/train.bin").exists()
    assert fleet.containers


def test_everything_of_the_project_is_removed_and_nothing_else(orch: Orch, fleet: lan.Lan, tmp_path: Path) -> None:
    ran = orch("uninstall", "--yes", "-n", "3", on=fleet)
    assert ran.code == 0, ran.err
    assert fleet.containers == {}
    assert not (tmp_path / "alpha/orch").exists()
    assert (tmp_path / "alpha").exists(), "a workspace of the user's own stays"
    assert [path.name for path in (tmp_path / "beta/orch").iterdir()] == ["notes.txt"]
    assert images(fleet, "alpha") == ["orch/other:cpu", "mine:latest"]
    assert (tmp_path / "precious/mine").read_text() == "mine", "links are not followed"
    again = orch("uninstall", "--yes", "-n", "3", "--json", on=fleet)
    assert again.code == 0
    assert [node["parts"] for node in json_data(again.out)["nodes"]] == [{}, {}, {}]
    assert "nothing of orch was found" in again.err


def test_a_node_that_does_not_answer_is_named_and_the_next_call_continues(
    orch: Orch, fleet: lan.Lan, tmp_path: Path
) -> None:
    gamma = fleet.nodes["gamma"].engine
    gamma.failures["containers"] = NodeUnreachableError("no answer in 5 s", node="gamma")
    ran = orch("uninstall", "--yes", "-n", "3", on=fleet)
    assert ran.code == 5
    assert "gamma" in ran.err
    assert not (tmp_path / "alpha/orch").exists()
    assert (tmp_path / "gamma/orch/data").exists()
    del gamma.failures["containers"]
    assert orch("uninstall", "--yes", "-n", "3", on=fleet).code == 0
    assert not (tmp_path / "gamma/orch").exists()


def test_another_project_keeps_its_containers(orch: Orch, fleet: lan.Lan) -> None:
    with Path("inventory.yaml").open("a") as file:
        file.write("project: other\n")
    assert orch("uninstall", "--yes", "-n", "3", on=fleet).code == 0
    assert set(fleet.containers) == set(THREE)


def test_an_active_run_is_refused_with_the_line_that_stops_it(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    run_id = detached(orch, here)
    ran = orch("uninstall", "--yes", "-n", "3", on=here)
    assert ran.code == 6
    assert f"orch stop {run_id}" in ran.err
    assert set(here.containers) == set(THREE)
