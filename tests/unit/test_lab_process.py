"""`orch lab` on a computer without any Docker Engine: the command line, the state folder and the refusals."""

from __future__ import annotations

import fcntl
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.specs.inventory_files.inventory_file import parse_inventory
from tests.json_output import json_data

# The Docker SDK drops the socket of a refused connection without closing it; collected in the test that made it.
pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state folder of the test's own, and no engine in reach."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine.sock")
    yield tmp_path / "orch" / "lab"
    gc.collect()


def up(*more: str) -> int:
    return main(["lab", "up", "--nodes", "3", "--engine", "process", *more])


def test_up_writes_an_inventory_and_down_removes_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert up("--json") == 0
    nodes = json_data(capsys.readouterr().out)["nodes"]
    assert [(node["name"], node["address"], node["state"]) for node in nodes] == [
        ("alpha", "127.0.0.11", "up"),
        ("beta", "127.0.0.12", "up"),
        ("gamma", "127.0.0.13", "up"),
    ]
    inventory = parse_inventory((folder / "inventory.yaml").read_text(), filename="inventory.yaml")
    assert len(inventory.nodes) == 3
    assert main(["lab", "down", "--json"]) == 0
    assert json_data(capsys.readouterr().out) == {"removed": [f"folder {folder}"]}
    assert not folder.exists()


def test_a_second_up_keeps_what_is_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert up() == 0
    before = (folder / "inventory.yaml").stat().st_mtime_ns
    capsys.readouterr()
    assert up() == 0
    assert "already up: kept" in capsys.readouterr().err
    assert (folder / "inventory.yaml").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--nodes", "4", "--engine", "process"), "has 3 nodes"),
        (("--nodes", "3"), "has --engine process"),
        (("--nodes", "3", "--engine", "process", "--name", "other"), "is named 'lab'"),
    ],
)
def test_another_lab_is_refused(arguments: tuple[str, ...], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert up() == 0
    assert main(["lab", "up", *arguments]) == 6
    error = capsys.readouterr().err
    assert what in error
    assert "orch lab up --nodes 3 --engine process" in error
    assert "orch lab down" in error


@pytest.mark.parametrize("command", [("cut", "1"), ("heal", "1"), ("kill", "1"), ("start", "1"), ("link", "1gbit")])
def test_processes_have_no_cable_and_no_power(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert up() == 0
    assert main(["lab", *command]) == 2
    assert "are processes of this computer" in capsys.readouterr().err


@pytest.mark.parametrize("option", [("--link", "1gbit"), ("--cpus", "1"), ("--memory", "2g")])
def test_processes_have_no_size(option: tuple[str, str], folder: Path) -> None:
    assert up(*option) == 2
    assert not folder.exists()


@pytest.mark.parametrize(
    "option", [("--memory", "100m"), ("--memory", "lots"), ("--link", "fast"), ("--nodes", "0"), ("--nodes", "65")]
)
def test_what_cannot_be_is_refused_before_anything_is_done(option: tuple[str, str], folder: Path) -> None:
    assert main(["lab", "up", *option]) == 2
    assert not folder.exists()


def test_no_engine_is_reported_with_what_to_do(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "up"]) == 4
    error = capsys.readouterr().err
    assert "no Docker Engine answers" in error
    assert "orch lab up --engine process" in error
    assert not folder.exists()


def test_two_commands_do_not_build_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder.parent.mkdir()
    handle = os.open(folder.parent, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert up() == 6
    assert "another `orch lab` command" in capsys.readouterr().err
    os.close(handle)
    assert up() == 0


def test_a_damaged_record_is_reported_and_can_be_replaced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert up() == 0
    (folder / "lab.json").write_text("{")
    assert main(["lab", "status"]) == 3
    assert "cannot be read" in capsys.readouterr().err
