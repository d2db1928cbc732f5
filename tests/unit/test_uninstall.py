"""`orch uninstall`: the scripts run on this computer, the engines are fakes."""

from __future__ import annotations

from getpass import getuser
from pathlib import Path

import pytest

from orchestrator.fleet.uninstall import local_images, remove_locally
from orchestrator.nodes.fake import FakeEngine
from orchestrator.nodes.local import LocalNode
from orchestrator.specs.errors import NodeUnreachableError
from orchestrator.specs.facts import ImageFacts
from tests import lan
from tests.unit.conftest import THREE, Orch, detached, json_data

DIGEST = "59c648edfe6d2815"


def left_behind(orch: Orch, tmp_path: Path) -> lan.Lan:
    """Three machines with an ended run each, data, a cache, a file of the user's, and a link out of the folder."""
    here = lan.lan(*THREE, ends_with=0)
    run_id = detached(orch, here)
    lines = ["nodes:"]
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/mine").write_text("mine")
    for name in THREE:
        folder = tmp_path / name / "orch"
        made = (f"runs/{run_id}/checkpoints/step-00000007", "runs/copied-1/checkpoints", f"data/{DIGEST}", "Data")
        for part in (
            *made,
            f"data/{DIGEST}.partial",
            f"data/{DIGEST}.first-1.b.partial",
            f"agent/{DIGEST}",
            f"images/{DIGEST}.partial",
            "cache/huggingface/hub",
            "cache/inductor/fx",
        ):
            (folder / part).mkdir(parents=True)
        (folder / f"data/{DIGEST}/train.bin").write_bytes(bytes(200_000))
        (folder / f"runs/{run_id}/plan.json").write_text(f'{{\n  "user": "{getuser()}",\n  "run_id": "x"\n}}\n')
        (folder / "cache/torch").symlink_to(tmp_path / "precious")
        (folder / "runs/link").symlink_to(tmp_path / "precious")
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
    assert "runs with checkpoints and all that they wrote: copied-1, first-" in found.err
    assert "orch pull copied-1" in found.err
    row = next(line for line in found.out.splitlines() if line.startswith("beta"))
    assert "0.2" in row
    assert "3 other names" in row
    refused = orch("uninstall", "-n", "3", on=fleet, says=False)
    assert refused.code == 130
    assert orch("uninstall", "-n", "3", on=fleet, says=None).code == 2
    assert (tmp_path / "alpha/orch/data/59c648edfe6d2815/train.bin").exists()
    assert fleet.containers


def test_everything_of_the_project_is_removed_and_nothing_else(orch: Orch, fleet: lan.Lan, tmp_path: Path) -> None:
    ran = orch("uninstall", "--yes", "-n", "3", on=fleet)
    assert ran.code == 0, ran.err
    assert fleet.containers == {}
    left = sorted(str(path.relative_to(tmp_path / "beta/orch")) for path in (tmp_path / "beta/orch").rglob("*"))
    assert left == ["cache", "cache/torch", "notes.txt", "runs", "runs/link"]
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
    assert not (tmp_path / "alpha/orch/data").exists()
    assert (tmp_path / "gamma/orch/data").exists()
    del gamma.failures["containers"]
    assert orch("uninstall", "--yes", "-n", "3", on=fleet).code == 0
    assert not (tmp_path / "gamma/orch/data").exists()


def test_folders_of_the_users_own_stay_whatever_their_names(orch: Orch, fleet: lan.Lan, tmp_path: Path) -> None:
    """An inventory whose project's folder is a folder of the user's work."""
    own = ("data/raw.csv", "runs/notes-2025/lab.txt", "cache/x", "agent/mine/y", "src/main.py", f"data/{DIGEST}x/z",
           f"data/{DIGEST}.old/z", f"data/{DIGEST}.old.partials/z", f"data/{DIGEST}.my own.partial/z")  # fmt: skip
    for name in own:
        (tmp_path / "gamma/orch" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "gamma/orch" / name).write_text("mine")
    assert orch("uninstall", "--yes", "-n", "3", on=fleet).code == 0
    assert all((tmp_path / "gamma/orch" / name).exists() for name in own)
    assert not (tmp_path / f"gamma/orch/data/{DIGEST}").exists()


def test_nothing_is_left_of_a_folder_with_nothing_else_in_it(orch: Orch, fleet: lan.Lan, tmp_path: Path) -> None:
    for link in ("cache/torch", "runs/link"):
        (tmp_path / "alpha/orch" / link).unlink()
    assert orch("uninstall", "--yes", "-n", "3", on=fleet).code == 0
    assert not (tmp_path / "alpha/orch").exists()
    assert (tmp_path / "alpha").exists(), "a workspace of the user's own stays"


def test_a_link_in_place_of_the_folder_is_refused(orch: Orch, fleet: lan.Lan, tmp_path: Path) -> None:
    (tmp_path / "alpha/orch").rename(tmp_path / "elsewhere")
    (tmp_path / "alpha/orch").symlink_to(tmp_path / "elsewhere")
    ran = orch("uninstall", "--yes", "-n", "3", on=fleet)
    assert ran.code == 5
    assert "is a link" in ran.err
    assert (tmp_path / f"elsewhere/data/{DIGEST}").exists()
    assert not (tmp_path / f"beta/orch/data/{DIGEST}").exists()


def test_a_node_with_a_run_of_another_user_is_left_as_it_is(orch: Orch, fleet: lan.Lan, tmp_path: Path) -> None:
    (tmp_path / "beta/orch/runs/bobs").mkdir()
    (tmp_path / "beta/orch/runs/bobs/plan.json").write_text('{\n  "user": "bob"\n}\n')
    ran = orch("uninstall", "--yes", "-n", "3", on=fleet)
    assert ran.code == 5
    assert (
        "beta: it has runs of bob; nothing is removed there\n  → leave it out: orch uninstall --nodes '!beta'"
        in ran.err
    )
    assert (tmp_path / f"beta/orch/data/{DIGEST}").exists()
    assert set(fleet.containers) == {"beta"}


def test_another_project_keeps_its_containers(orch: Orch, fleet: lan.Lan) -> None:
    with Path("inventory.yaml").open("a") as file:
        file.write("project: other\n")
    assert orch("uninstall", "--yes", "-n", "3", on=fleet).code == 0
    assert set(fleet.containers) == set(THREE)


@pytest.mark.parametrize("others", [True, False])
def test_images_that_projects_share_stay_while_another_has_one(others: bool) -> None:
    engine = FakeEngine("controller")
    names = ("orch/base:bookworm", "orch/lab-node:1", "orch/orch:cpu", "mine:latest", *(["orch/other:cpu"] * others))
    for number, name in enumerate(names):
        engine.held[str(number)] = ImageFacts(id=str(number), tags=(name,))
    controller = LocalNode(engine=engine)
    images, shared = local_images(controller, "orch")
    assert list(remove_locally((), images, controller)) == []
    left = {tag for image in engine.images() for tag in image.tags}
    assert left == {"mine:latest", *({"orch/other:cpu", "orch/base:bookworm", "orch/lab-node:1"} if others else ())}
    assert set(shared) == left - {"mine:latest", "orch/other:cpu"}


def test_an_active_run_is_refused_with_the_line_that_stops_it(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    run_id = detached(orch, here)
    ran = orch("uninstall", "--yes", "-n", "3", on=here)
    assert ran.code == 6
    assert f"orch stop {run_id}" in ran.err
    assert set(here.containers) == set(THREE)
