"""A Slurm cluster as a lab: its configuration, the Python of its jobs, and the wait until it accepts them."""

from __future__ import annotations

import base64
import secrets
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.lab.inventory import PARTITION, SHARED, URGENT
from orchestrator.lab.node import MachineExtras, MachineFile, SimulatedNode
from orchestrator.lab.state import LOGIN, Lab, LabClock
from orchestrator.specs.container_limits import ContainerLimits
from orchestrator.specs.errors import DeadlineError, EngineError

IDLE_TIMEOUT_S = 60.0
_POLL_S = 0.5
_OF_THE_IMAGE = ("/bin", "/etc", "/lib", "/lib64", "/sbin", "/usr")
"""Folders of the system that the machines have themselves."""
_OWN_PREFIX = Path("/usr/local")
"""Prefix of a Python beside the system's: only the folders that it has in use are shown."""
_SYSTEM_MIB = 512
"""Memory of a machine beside that of its jobs."""
_CONFIGURATION = """\
ClusterName={name}
SlurmctldHost={login}
AuthType=auth/munge
# a requeued job starts again after this time, in seconds; the default is 120
AuthInfo=cred_expire=5
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
ReturnToService=2
SchedulerType=sched/backfill
# a job that waits begins at once; the defaults are 3, 60 and 30 s
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
KillWait=30
MinJobAge=10
SlurmdTimeout=20
JobRequeue=1
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
{nodes}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName={partition} Nodes={names} Default=YES MaxTime=24:00:00 State=UP PriorityTier=1
# a job here takes nodes from jobs of the other partition, which are queued again
PartitionName={urgent} Nodes={names} MaxTime=24:00:00 State=UP PriorityTier=2 PreemptMode=OFF
"""


@dataclass(frozen=True, kw_only=True)
class JobsPython:
    """The Python that runs `orch`, shown read-only to the machines under the same paths: jobs run it."""

    executable: str
    folders: tuple[str, ...]
    """Outermost folders that it needs, beside those of the system."""

    @property
    def open_folders(self) -> tuple[str, ...]:
        """Folders above these, which other users must be able to enter."""
        above = {str(parent) for folder in self.folders for parent in Path(folder).parents}
        return tuple(sorted(above - {"/"}))


def this_python() -> JobsPython:
    """Find the folders of this Python and of the packages of its environment."""
    prefixes = [Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parents[1]]
    needed = [Path(__file__).parents[2], *map(Path, sys.path), *map(Path, sysconfig.get_paths().values())]
    for prefix in prefixes:
        needed += [prefix / "bin", prefix / "lib"] if prefix == _OWN_PREFIX else [prefix]
    return JobsPython(executable=sys.executable, folders=outermost(needed))


def outermost(paths: Iterable[Path]) -> tuple[str, ...]:
    """Existing folders among these that are in no other of them, nor a part of the system."""
    folders = sorted({path for path in paths if path.is_absolute() and path.is_dir() and not _is_of_the_image(path)})
    return tuple(str(one) for one in folders if not any(other in one.parents for other in folders))


def _is_of_the_image(path: Path) -> bool:
    if _OWN_PREFIX in path.parents:
        return False
    return path == Path("/") or any(path == Path(own) or Path(own) in path.parents for own in _OF_THE_IMAGE)


def configuration(lab: Lab, limits: ContainerLimits) -> str:
    """`slurm.conf`, the same on all machines."""
    machines = [
        f"NodeName={node.name} NodeAddr={node.address} CPUs={max(1, int(limits.cpus))}"
        f" RealMemory={limits.memory_mib + _SYSTEM_MIB} State=UNKNOWN"
        for node in lab.compute
    ]
    login = next(node for node in lab.nodes if node.name == LOGIN)
    return _CONFIGURATION.format(
        name=lab.name,
        login=f"{login.name}({login.address})",
        nodes="\n".join(machines),
        names=",".join(node.name for node in lab.compute),
        partition=PARTITION,
        urgent=URGENT,
    )


def extras(lab: Lab, limits: ContainerLimits, python: JobsPython, shared: str) -> dict[str, MachineExtras]:
    """Additions of each machine, by name. `shared` is the volume of the shared folder."""
    key = base64.b64encode(secrets.token_bytes(96)).decode()
    common = (
        MachineFile(path="etc/orch-lab/slurm.conf", text=configuration(lab, limits)),
        MachineFile(path="etc/orch-lab/munge.key", text=key, mode=0o600),
        MachineFile(path="etc/orch-lab/open-folders", text="".join(f"{one}\n" for one in python.open_folders)),
    )
    binds = (f"{shared}:{SHARED}:rw", *(f"{folder}:{folder}:ro" for folder in python.folders))
    hosts = tuple((node.name, node.address) for node in lab.nodes)
    return {
        node.name: MachineExtras(
            binds=binds,
            hosts=hosts,
            files=(*common, MachineFile(path="etc/orch-lab/role", text="login" if node.name == LOGIN else "compute")),
        )
        for node in lab.nodes
    }


def wait_until_idle(login: SimulatedNode, names: Sequence[str], clock: LabClock) -> None:
    """Wait until every compute node of the cluster is idle. DeadlineError: the state of those that are not."""
    begin = clock.now()
    while True:
        code, text = login.execute(("sinfo", "--noheader", "--Node", "--format", "%N %T"))
        states = dict(line.split(None, 1) for line in text.splitlines() if len(line.split()) == 2) if code == 0 else {}
        if all(states.get(name) == "idle" for name in names):
            return
        if clock.now() - begin > IDLE_TIMEOUT_S:
            other = ", ".join(f"{name} {states.get(name, 'unknown')}" for name in names if states.get(name) != "idle")
            last = login.execute(("tail", "-n", "8", "/var/log/slurmctld.log"))[1]
            raise DeadlineError(f"Slurm is not ready after {IDLE_TIMEOUT_S:.0f} s: {other}\n{last}", node=LOGIN)
        clock.sleep(_POLL_S)


def require_python(machine: SimulatedNode, python: JobsPython) -> None:
    """Refuse a Python that a job cannot run: another Debian than this computer's has other libraries."""
    program = "import torch, trainer.agent, json, sys; print(json.dumps([torch.__version__, sys.version.split()[0]]))"
    code, text = machine.execute(("runuser", "-u", "orch", "--", python.executable, "-c", program))
    if code == 0:
        return
    last = (text.strip().splitlines() or ["no output"])[-1]
    if "No module named" in last:
        hint = "in the clone of orch, with the Python that runs orch: pip install '.[trainer]'"
    else:
        hint = "--base IMAGE with the distribution of this computer, whose libraries this Python was built for"
    raise EngineError(f"jobs cannot run {python.executable}: {last}", node=machine.name, hint=hint)
