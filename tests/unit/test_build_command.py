"""`orch build` on the command line: what is refused before any machine is asked, and what its exit code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.cli.build import outcome, tell_of_torchvision
from orchestrator.specs.errors import EngineError
from orchestrator.specs.image import Delivery, Placed


def test_on_and_each_node_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "--on", "alpha", "--each-node"]) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_an_unknown_profile_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "--profile", "tpu"]) == 2
    assert "cuda" in capsys.readouterr().err


def test_nodes_without_containers_need_no_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text("nodes:\n  alpha: {address: 127.0.0.1, connection: local, engine: process}\n")
    assert main(["build", "-i", str(inventory), "--yes"]) == 3
    assert "no node with a container engine" in capsys.readouterr().err


def test_a_wheel_folder_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text("nodes:\n  alpha: {address: 127.0.0.1, connection: local}\n")
    assert main(["build", "-i", str(inventory), "--yes", "--wheels", str(tmp_path / "none")]) == 3
    assert "--wheels" in capsys.readouterr().err


def test_lines_that_will_not_do_what_they_say_are_named_before_the_question(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inventory, own = tmp_path / "inventory.yaml", tmp_path / "requirements.txt"
    inventory.write_text("nodes:\n  alpha: {address: 127.0.0.1, connection: local}\n")
    own.write_text("sklearn\n--index-url https://me:hunter2@pypi.example/simple\n")
    assert main(["build", "-i", str(inventory), "--requirements", str(own)]) == 2
    shown = capsys.readouterr().err
    assert f"note: {own}:1: sklearn is the name of a module; its package is scikit-learn" in shown
    assert f"note: {own}:2: --index-url https://***@pypi.example/simple holds a password" in shown
    assert "hunter2" not in shown


@pytest.mark.parametrize(("nodes", "code"), [("++", 0), ("+-", 5), ("--", 4)])
def test_exit_code(nodes: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    delivery = Delivery(image_id="sha256:a", size_bytes=1, moved_bytes=0, duration_s=0.0)
    placed = [
        Placed(
            node=f"n{i}",
            profile="cpu",
            builder="controller",
            tag="orch/x:cpu",
            content="c",
            delivery=delivery if sign == "+" else None,
            error=None if sign == "+" else EngineError("disk full", node=f"n{i}"),
        )
        for i, sign in enumerate(nodes)
    ]
    assert outcome(placed, quiet=False) == code
    failed = ", ".join(f"n{i}" for i, sign in enumerate(nodes) if sign == "-")
    assert [line for line in capsys.readouterr().err.splitlines() if "disk full" in line] == (
        [f"error: {failed}: disk full"] if failed else []
    )


def test_an_image_without_torchvision_is_named_with_the_line_that_adds_it(capsys: pytest.CaptureFixture[str]) -> None:
    placed = [
        Placed(node=profile, profile=profile, builder="c", tag="t", content="c", has_torchvision=profile == "cuda")
        for profile in ("cpu", "cuda")
    ]
    tell_of_torchvision(placed, "the line")
    output = capsys.readouterr().err
    assert "torchvision is left out of the image (cpu)" in output
    assert "→ the line" in output
    tell_of_torchvision(placed[1:], "the line")
    assert capsys.readouterr().err == ""
