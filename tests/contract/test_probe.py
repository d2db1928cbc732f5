"""The facts script on this very computer, against what Python says of it."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import time
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
        port, began = server.getsockname()[1], time.monotonic()
        facts = probe.ask(
            LocalNode(),
            workspace=f"{tmp_path}/work",
            project="mine",
            peers=["127.0.0.1", "not-an-address"],
            resume="r1",
        )
    asked_s = time.monotonic() - began
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
    assert abs(facts.clock_offset_s) <= asked_s  # one clock: it is as exact as the answer was quick
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


PEERS = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]


def test_peers_that_one_way_leads_to_share_it() -> None:
    facts = probe.ask(LocalNode(), workspace="/tmp", project="mine", peers=PEERS)
    assert list(facts.routes) == PEERS
    assert {route.interface for route in facts.routes.values()} == {"lo"}
    assert all(held is asked for held, asked in zip(facts.routes, PEERS, strict=True)), "one text for all nodes' facts"


def test_a_program_ip_that_takes_one_question_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """BusyBox's."""
    real, program = shutil.which("ip"), tmp_path / "ip"
    program.write_text(f'#!/bin/sh\ncase $* in *-batch*) echo "invalid option" >&2; exit 1;; esac\nexec {real} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    facts = probe.ask(LocalNode(), workspace="/tmp", project="mine", peers=PEERS)
    assert {address: route.interface for address, route in facts.routes.items()} == dict.fromkeys(PEERS, "lo")


def test_ways_of_several_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "ip"
    program.write_text("""#!/bin/sh
cat >"$0.asked"
cat <<'END'
10.0.0.12 dev eth0 src 10.0.0.11 uid 1000 \\    cache
10.0.0.13 dev eth0 src 10.0.0.11 uid 1000 \\    cache
10.8.0.9 via 10.8.0.1 dev tun0 src 10.8.0.2 uid 1000 \\    cache
unreachable 10.9.0.9 dev lo src 10.9.0.1 uid 1000
local 10.0.0.11 dev lo src 10.0.0.11 uid 1000
10.0.0.14 dev eth0 src 10.0.0.11 uid 1000 \\    cache
END
echo "RTNETLINK answers: Network is unreachable" >&2
exit 1
""")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    hostile = ["10.0.0.12\nlink set lo down", "; true", "$(true)", "-4", ""]
    facts = probe.ask(LocalNode(), workspace="/tmp", project="mine", peers=["10.0.0.12", *hostile, "10.0.0.13"])
    assert (tmp_path / "ip.asked").read_text() == "route get 10.0.0.12\nroute get 10.0.0.13\n"
    assert {address: (route.interface, route.source) for address, route in facts.routes.items()} == {
        "10.0.0.12": ("eth0", "10.0.0.11"), "10.0.0.13": ("eth0", "10.0.0.11"), "10.8.0.9": ("tun0", "10.8.0.2"),
        "10.0.0.11": ("lo", "10.0.0.11"), "10.0.0.14": ("eth0", "10.0.0.11"),
    }  # fmt: skip
