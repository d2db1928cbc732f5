"""`orch doctor --on` and `orch check-gpus --on`: nodes that a job holds, on the shipped double of Slurm."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from pathlib import Path

import pytest

from orchestrator.checks.cluster_findings import for_cluster_users
from orchestrator.fleet.connect import carrier_of
from orchestrator.fleet.readiness.allocation import allocated, spec_of
from orchestrator.plan.sbatch import holding_script
from orchestrator.specs.cluster import ClusterSpec
from orchestrator.specs.errors import CommandFailedError, NodeUnreachableError
from orchestrator.specs.finding import Finding, Fix, Severity
from orchestrator.specs.inventory_files.inventory_file import read_inventory
from tests.json_output import json_data
from tests.unit.slurm_double import Cluster, uni, until

__all__ = ["uni"]


def cluster_of() -> ClusterSpec:
    return read_inventory("inventory.yaml").cluster("uni")


@pytest.fixture
def local(uni: Cluster) -> Cluster:
    """Compute nodes are addresses of this computer, and the ranks' Python is this one."""
    (uni.state / "names").write_text("127.0.0.2,127.0.0.3,127.0.0.4")
    uni.write(python=os.path.realpath(sys.executable))
    return uni


def test_doctor_in_an_allocation(local: Cluster) -> None:
    ran = local("doctor", "--on", "uni", "--nodes", "2", "--json")
    assert ran.code in (0, 4), ran.err
    assert "job 1 holds 127.0.0.2, 127.0.0.3" in ran.err
    assert "not checked on a cluster: ssh keys, /etc/hosts" in ran.err
    assert "orch launch --on uni --nodes 2 -- test-ddp" in ran.err
    assert "job 1 is cancelled, its nodes are released" in ran.err
    report = json_data(ran.out)
    assert [node["spec"]["name"] for node in report["nodes"]] == ["127.0.0.2", "127.0.0.3"]
    assert "power" not in report["findings"]
    assert local.job()["state"] == "CANCELLED"
    assert json_data(local("runs", "--json").out)["runs"] == []  # a check is no run


def test_check_gpus_in_an_allocation(local: Cluster) -> None:
    ran = local("check-gpus", "--on", "uni", "-n", "3", "--json")
    assert ran.code == 0, ran.err
    assert len(json_data(ran.out)["nodes"]) == 3
    assert local.job()["state"] == "CANCELLED"


def test_a_python_without_torch(local: Cluster, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.write_text(f"#!/bin/sh\nexec '{sys.executable}' -S \"$@\"\n")
    bare.chmod(0o755)
    local.write(python=str(bare))
    ran = local("doctor", "--on", "uni", "--only", "engine.no_torch")
    assert ran.code == 4, ran.err
    assert f"install torch for {bare}, or set `python:` of cluster uni" in " ".join(ran.out.split())


def test_a_job_that_waits_is_withdrawn(local: Cluster) -> None:
    (local.state / "held").write_text("AssocGrpCPUMinutesLimit")
    ran = local("doctor", "--on", "uni", "--wait", "0")
    assert ran.code == 7, ran.err
    assert "job 1 did not start within 0 s (AssocGrpCPUMinutesLimit); it was withdrawn" in ran.err
    assert "--wait 3600" in ran.err
    assert local.job()["state"] == "CANCELLED"


def test_the_queue_is_shown_while_it_waits(local: Cluster) -> None:
    (local.state / "held").write_text("QOSMaxJobsPerUserLimit")
    ran = local("check-gpus", "--on", "uni", "--wait", "1")
    assert ran.code == 7, ran.err
    assert re.search(r"job 1 is queued \(QOSMaxJobsPerUserLimit\), \d+ s", ran.err)
    assert "a limit of the account or the user is reached\n  → sacctmgr" in ran.err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--on", "unu"], 3, "no cluster 'unu'"),
        (["--on", "uni", "--nodes", "c1,c2"], 2, "only a number of them can be given"),
        (["--on", "uni", "--nodes", "$(touch x)"], 2, "only a number of them can be given"),
        (["--wait", "3"], 2, "--wait needs --on"),
    ],
)
def test_wrong_words(local: Cluster, words: list[str], code: int, says: str) -> None:
    for command in ("doctor", "check-gpus"):
        ran = local(command, *words)
        assert ran.code == code, ran.err
        assert says in ran.err
    assert not list(local.state.glob("*.json"))


def test_without_a_cluster_named(local: Cluster) -> None:
    ran = local("doctor")
    assert ran.code == 3, ran.err
    assert "has no nodes, only clusters" in ran.err
    assert "--on uni --nodes 2" in ran.err
    assert not list(local.state.glob("*.json"))


def test_fix_is_refused_on_a_cluster(local: Cluster) -> None:
    ran = local("doctor", "--on", "uni", "--fix", "--yes")
    assert ran.code == 2
    assert "those of a cluster are its administrator's" in ran.err
    assert not list(local.state.glob("*.json"))


def test_refusals_of_the_scheduler(local: Cluster) -> None:
    local.write(partition="gpus")
    ran = local("doctor", "--on", "uni")
    assert ran.code == 3, ran.err
    assert "there is no such partition" in ran.err
    local.write()
    (local.state / "down").touch()
    ran = local("check-gpus", "--on", "uni")
    assert ran.code == 4, ran.err
    assert "Unable to contact slurm controller" in ran.err


def test_a_command_on_a_node_gets_its_words_and_its_stdin(local: Cluster) -> None:
    hostile = ["$(touch x)", "a'b", "; exit 3", 'q"']
    with allocated(carrier_of(cluster_of()), 2, wait_s=20, tell=lambda _text: None) as held:
        node = held.nodes()[1]
        answer = node.run(
            ["sh", "-c", 'echo "$SLURMD_NODENAME"; printf "%s\\n" "$@"; cat', "sh", *hostile], stdin=b"in"
        )
        assert answer.stdout.splitlines() == ["127.0.0.3", *hostile, "in"]
        assert answer.node == "127.0.0.3"
        assert b"".join(node.stream(["echo", "x"])) == b"x\n"
        assert node.run(["sh", "-c", "exit 3"]).exit_code == 3
        assert node.run(["no-such-program"]).exit_code == 127
        with pytest.raises(CommandFailedError):
            list(node.stream(["false"]))
        assert spec_of(cluster_of(), "Node-A1", "10.0.0.1").name == "Node-A1"


def test_an_allocation_that_is_lost(local: Cluster) -> None:
    carrier = carrier_of(cluster_of())
    reports: list[str] = []
    with allocated(carrier, 1, wait_s=20, tell=reports.append) as held:
        carrier.cancel(held.job)
        until(lambda: local.job()["state"] == "CANCELLED")
        with pytest.raises(NodeUnreachableError, match="job 1, which holds the node, no longer runs") as lost:
            held.nodes()[0].run(["true"])
        assert lost.value.hint == "scontrol show job 1"
        with pytest.raises(NodeUnreachableError):
            list(held.nodes()[0].stream(["true"]))
    assert reports[-1] == "job 1 is cancelled, its nodes are released"


def test_ctrl_c_withdraws_the_job(local: Cluster) -> None:
    (local.state / "held").write_text("Resources")
    timer = threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt), allocated(carrier_of(cluster_of()), 1, wait_s=60, tell=lambda _: None):
            raise AssertionError("it must not start")
    finally:
        timer.cancel()
    assert local.job()["state"] == "CANCELLED"


def test_the_script_that_holds_nodes(local: Cluster) -> None:
    local.write(time="00:05:00", gpus=2, options={"qos": "high"})
    lines = holding_script(cluster_of(), 3, "orch-check-x").splitlines()
    assert lines[-1] == "exec sleep 900"
    for one in ("time=00:05:00", "nodes=3", "gpus-per-node=2", "qos=high", "no-requeue", "job-name=orch-check-x"):
        assert f"#SBATCH --{one}" in lines
    local.write(time="2-00:00:00")
    assert "#SBATCH --time=15" in holding_script(cluster_of(), 1, "x").splitlines()


def test_findings_say_what_only_the_administrator_can_do(local: Cluster) -> None:
    def one(id: str, severity: Severity = Severity.ERROR) -> Finding:
        fix = Fix(what="x", on_node=("sudo", "x"))
        return Finding(id=id, severity=severity, node="c1", message="m", fix="sudo x", auto_fix=fix)

    ids = ("gpu.driver_mismatch", "disk.full", "power.lid", "reach.same_address", "gpu.none")
    found = for_cluster_users([*map(one, ids), one("gpu.persistence_off", Severity.INFO)], cluster_of())
    fixes = {finding.id: finding.fix for finding in found}
    assert list(fixes) == ["gpu.driver_mismatch", "disk.full", "gpu.none"]
    assert fixes["gpu.driver_mismatch"] == "ask the administrator of uni, as this needs rights on c1: sudo x"
    assert fixes["disk.full"] == "sudo x"
    assert "`gpus:`" in fixes["gpu.none"]
    assert not any(finding.auto_fix for finding in found)
    torch = one("engine.no_torch")
    assert "install torch" in for_cluster_users([torch], cluster_of())[0].fix
    local.write(container="docker", image="registry/train:1")
    assert for_cluster_users([torch], cluster_of()) == (), "it is in the image"
