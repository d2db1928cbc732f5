"""`orch check-gpus` as it is called: this computer is the node, and nvidia-smi a script on its PATH."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli import main
from tests.json_output import json_data

RECORDED = Path(__file__).parents[1] / "fixtures" / "nvidia_smi"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an inventory of this computer under two names, and first on the PATH."""
    (tmp_path / "inventory.yaml").write_text(
        "nodes:\n"
        "  alpha: {address: 127.0.0.1, connection: local, labels: {room: lab}}\n"
        "  beta: {address: 127.0.0.2, connection: local, device: cuda}\n"
    )
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("ORCH_INVENTORY", str(tmp_path / "inventory.yaml"))
    return tmp_path


def smi(folder: Path, says: str, code: int = 0) -> None:
    """An nvidia-smi that says this, whatever it is asked."""
    (folder / "says").write_text(says)
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat '{folder}/says'\nexit {code}\n")
    program.chmod(0o755)


def test_fit(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    smi(here, (RECORDED / "rtx-4090__535.86.05.xml").read_text())

    assert main(["check-gpus", "--no-container"]) == 0

    out = capsys.readouterr()
    assert "alpha 0" in out.out
    assert "NVIDIA GeForce RTX 4090" in out.out
    assert out.out.rstrip().endswith("2 nodes, 2 GPUs: no problems found")
    assert out.err == "asking 2 nodes for GPUs\n"


def test_unfit(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    smi(here, "No devices were found", code=6)

    assert main(["check-gpus", "--no-container"]) == 4
    out = capsys.readouterr().out
    assert "orch explain gpu.no_device" in out
    assert "1 error" in out


def test_only_the_nodes_asked_for(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    smi(here, "No devices were found", code=6)

    assert main(["check-gpus", "-n", "room=lab", "--json"]) == 0
    assert [node["node"] for node in json_data(capsys.readouterr().out)["nodes"]] == ["alpha"]

    assert main(["check-gpus", "--nodes", "beta", "--json"]) == 4
    assert [finding["id"] for finding in json_data(capsys.readouterr().out)["findings"]] == ["gpu.no_device"]
