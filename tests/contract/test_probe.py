"""The facts script on this very computer, against what Python says of it."""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path

import pytest

from orchestrator.nodes.local import LocalNode
from orchestrator.nodes.probes import probe
from orchestrator.specs.facts import SmiFault


def test_the_facts_of_this_computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # nproc would answer with it
    checkpoints = tmp_path / "work/mine/runs/r1/checkpoints"
    for step in (7, 120, 140):
        (checkpoints / f"step-{step:08d}").mkdir(parents=True)
    for name in ("step-00000007", "step-00000120", ".tmp-step-00000160"):
        (checkpoints / name).mkdir(exist_ok=True)
        (checkpoints / name / "manifest.json").write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        facts = probe.ask(
            LocalNode(),
            workspace=f"{tmp_path}/work",
            project="mine",
            peers=["127.0.0.1", "not-an-address"],
            resume="r1",
        )
    assert (facts.uid, facts.gid, facts.home) == (os.getuid(), os.getgid(), os.environ["HOME"])
    assert (facts.hostname, facts.kernel) == (platform.node(), platform.release())
    assert facts.architecture == platform.machine()
    assert facts.cpus == len(os.sched_getaffinity(0))
    assert facts.memory_mib == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    free = os.statvfs(tmp_path)
    assert facts.disk_free_mib is not None
    assert abs(facts.disk_free_mib - free.f_bavail * free.f_frsize // 2**20) < 2048
    assert port in facts.ports_in_use
    assert facts.routes["127.0.0.1"].interface == "lo"
    assert "not-an-address" not in facts.routes
    assert abs(facts.clock_offset_s) < 1
    assert facts.newest_checkpoint == 120  # what has no manifest, or another name, is no checkpoint


def test_a_workspace_that_is_not_there_yet(tmp_path: Path) -> None:
    facts = probe.ask(LocalNode(), workspace=f"{tmp_path}/a b/c", project="mine", resume="r1")
    assert facts.disk_free_mib is not None
    assert facts.newest_checkpoint is None
    assert facts.has_data is False


def test_data_that_lies_on_the_machine_counts_an_empty_folder_does_not(tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "Data"
    folder.mkdir(parents=True)
    assert probe.ask(LocalNode(), workspace=str(tmp_path), project="mine").has_data is False
    (folder / "manifest.json").touch()
    assert probe.ask(LocalNode(), workspace=str(tmp_path), project="mine").has_data is True


@pytest.mark.parametrize(
    ("writes", "exit_code", "found"),
    [
        ("0, GPU-1, RTX 4090, 580.65", 0, (1, None, "")),
        ("Unable to determine the device handle for GPU0000:01:00.0: Unknown Error", 255,
         (0, SmiFault.LOST, "Unable to determine the device handle for GPU0000:01:00.0: Unknown Error")),
        ("0, GPU-1, RTX 4090, 580.65\nGPU 0000:02:00.0 is lost", 15, (1, SmiFault.LOST, "GPU 0000:02:00.0 is lost")),
        ("No devices were found", 6, (0, SmiFault.NO_DEVICE, "No devices were found")),
        ("", 9, (0, SmiFault.NO_DRIVER, "exit code 9")),
    ],
    ids=("well", "lost", "one of two lost", "none", "no word"),
)  # fmt: skip
def test_nvidia_smi_that_fails_is_not_a_machine_without_gpus(
    writes: str,
    exit_code: int,
    found: tuple[int, SmiFault | None, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{writes}\nEND\nexit {exit_code}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    facts = probe.ask(LocalNode(), workspace=str(tmp_path), project="mine")
    assert (len(facts.gpus), facts.gpu_fault, facts.gpu_detail) == found
