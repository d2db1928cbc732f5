"""The facts script on this very computer, against what Python says of it."""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path

import pytest

from orchestrator.nodes import probe
from orchestrator.nodes.local import LocalNode


def test_the_facts_of_this_computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # nproc would answer with it
    for step in (7, 120):
        (tmp_path / f"work/mine/runs/r1/checkpoints/step-{step:08d}").mkdir(parents=True)
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
    assert facts.newest_checkpoint == 120


def test_a_workspace_that_is_not_there_yet(tmp_path: Path) -> None:
    facts = probe.ask(LocalNode(), workspace=f"{tmp_path}/a b/c", project="mine", resume="r1")
    assert facts.disk_free_mib is not None
    assert facts.newest_checkpoint is None
