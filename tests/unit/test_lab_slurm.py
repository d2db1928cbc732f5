"""The pure parts of a Slurm cluster as a lab: its configuration, files, inventory, and the Python of its jobs."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from orchestrator.lab.inventory import slurm_inventory, suited_limits
from orchestrator.lab.node import SimulatedNode
from orchestrator.lab.slurm import (
    JobsPython,
    configuration,
    extras,
    outermost,
    require_python,
    this_python,
    wait_until_idle,
)
from orchestrator.lab.state import Lab, LabClock, LabNode, find_node
from orchestrator.specs.errors import DeadlineError, EngineError

LAB = Lab(
    name="lab",
    engine="slurm",
    nodes=(
        LabNode(name="alpha", address="10.87.0.11"),
        LabNode(name="beta", address="10.87.0.12"),
        LabNode(name="login", address="10.87.0.13", has_engine=False),
    ),
)
LIMITS = suited_limits(2, cpus=8, memory_mib=16_000)
PYTHON = JobsPython(executable="/home/ana/venv/bin/python", folders=("/home/ana/venv", "/opt/python"))


def test_the_login_node_trains_nothing_and_has_the_last_number() -> None:
    assert [node.name for node in LAB.compute] == ["alpha", "beta"]
    assert find_node("3", LAB.names) == "login"


def test_the_configuration_names_every_machine_with_its_address() -> None:
    lines = configuration(LAB, LIMITS).splitlines()
    assert "SlurmctldHost=login(10.87.0.13)" in lines
    assert "NodeName=alpha NodeAddr=10.87.0.11 CPUs=2 RealMemory=4608 State=UNKNOWN" in lines
    assert "NodeName=beta NodeAddr=10.87.0.12 CPUs=2 RealMemory=4608 State=UNKNOWN" in lines
    assert "PartitionName=debug Nodes=alpha,beta Default=YES MaxTime=24:00:00 State=UP PriorityTier=1" in lines
    urgent = "PartitionName=urgent Nodes=alpha,beta MaxTime=24:00:00 State=UP PriorityTier=2 PreemptMode=OFF"
    assert urgent in lines


def test_machines_share_a_key_a_folder_and_the_names() -> None:
    made = extras(LAB, LIMITS, PYTHON, "orch-lab-shared")
    files = {name: {file.path: file for file in one.files} for name, one in made.items()}
    assert {name: those["etc/orch-lab/role"].text for name, those in files.items()} == {
        "alpha": "compute", "beta": "compute", "login": "login",
    }  # fmt: skip
    keys = {those["etc/orch-lab/munge.key"].text for those in files.values()}
    assert len(keys) == 1
    assert len(keys.pop()) == 128
    assert files["alpha"]["etc/orch-lab/munge.key"].mode == 0o600
    assert files["alpha"]["etc/orch-lab/open-folders"].text == "/home\n/home/ana\n/opt\n"
    for one in made.values():
        assert one.binds == (
            "orch-lab-shared:/shared:rw", "/home/ana/venv:/home/ana/venv:ro", "/opt/python:/opt/python:ro",
        )  # fmt: skip
        assert one.hosts == (("alpha", "10.87.0.11"), ("beta", "10.87.0.12"), ("login", "10.87.0.13"))


def test_the_inventory_has_the_cluster_with_its_login_node() -> None:
    read = YAML(typ="safe").load(slurm_inventory(LAB, LIMITS, Path("/state"), PYTHON.executable))
    assert read["clusters"]["lab"] == {
        "engine": "slurm", "login": "orch@10.87.0.13", "identity": "/state/id_ed25519", "partition": "debug",
        "workspace": "/shared/orch", "python": "/home/ana/venv/bin/python", "cpus": 2, "memory": "4096m", "time": "60",
    }  # fmt: skip


def test_folders_of_the_system_are_the_machines_own(tmp_path: Path) -> None:
    inner = tmp_path / "venv" / "lib"
    inner.mkdir(parents=True)
    paths = (
        inner,
        tmp_path / "venv",
        tmp_path / "missing",
        Path("relative"),
        Path("/"),
        Path("/usr/lib"),
        Path("/etc"),
    )
    assert outermost(paths) == (str(tmp_path / "venv"),)


def test_the_python_that_runs_is_in_the_folders_that_are_shown() -> None:
    python = this_python()
    shown = (*python.folders, "/usr", "/bin")
    for path in (Path(sys.executable), Path(sys.executable).resolve(), Path(__file__)):
        assert any(Path(folder) in path.parents for folder in shown), path
    assert not any(Path(one) in Path(other).parents for one in python.folders for other in python.folders)


# ── Waiting ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Machine(SimulatedNode):
    """A machine that gives these answers, the last one for ever."""

    answers: list[tuple[int, str]]
    asked: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return "alpha"

    def execute(self, command) -> tuple[int, str]:  # type: ignore[no-untyped-def]
        self.asked.append(tuple(command))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def clock() -> LabClock:
    times = [0.0]
    return LabClock(now=lambda: times[0], sleep=lambda seconds: times.__setitem__(0, times[0] + seconds))


def test_a_cluster_is_ready_once_every_node_is_idle() -> None:
    machine = Machine([(1, "no answer"), (0, "alpha idle*\nbeta idle\n"), (0, "alpha idle\nbeta idle\n")])
    wait_until_idle(machine, ("alpha", "beta"), clock())
    assert len(machine.asked) == 3


def test_a_cluster_that_is_never_ready_names_its_nodes() -> None:
    with pytest.raises(DeadlineError, match="Slurm is not ready after 60 s: beta down"):
        wait_until_idle(Machine([(0, "alpha idle\nbeta down\n")]), ("alpha", "beta"), clock())


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("ModuleNotFoundError: No module named 'torch'", "pip install"),
        ("python: /lib/libc.so.6: version `GLIBC_2.38' not found", "--base IMAGE"),
    ],
)
def test_a_python_that_jobs_cannot_run_is_refused(text: str, hint: str) -> None:
    with pytest.raises(EngineError, match="jobs cannot run /home/ana/venv/bin/python: ") as refused:
        require_python(Machine([(1, f"Traceback\n{text}\n")]), PYTHON)
    assert hint in refused.value.hint
    require_python(Machine([(0, "")]), PYTHON)
