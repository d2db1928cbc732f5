"""Findings of `orch doctor` alone: a fleet for each fault, as it would be seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from orchestrator.checks.doctor import diagnose
from orchestrator.nodes.ssh_login import Attempt, Keys, refusal
from orchestrator.specs.data import ComparedData, DamagedFile
from orchestrator.specs.errors import DeadlineError
from orchestrator.specs.facts import EngineFacts, GpuFacts
from orchestrator.specs.finding import Finding
from orchestrator.specs.gpus import NodeGpus, SmiAnswer
from orchestrator.specs.host import HostFacts, InsideFacts, PortHolder
from orchestrator.specs.node_report import Examined, OutOfReach
from orchestrator.specs.reach import Reach
from orchestrator.specs.run import ContainerFacts
from tests import lan

HOST = HostFacts(
    memory_available_mib=12000,
    workspace_writable=True,
    systemd=True,
    docker_program=True,
    docker_socket="open",
    docker_free_mib=90000,
    open_files=1024,
    cpu_flags=frozenset({"avx2", "fma"}),
    ntp="yes",
    sleeps=("sleep", "suspend"),
    idle_action="ignore",
    reboot_required=False,
    throttle_events=3,
)
"""Server whose sleep is not masked, and which nothing would suspend."""
INSIDE = InsideFacts(**lan.INSIDE)  # type: ignore[arg-type]  # as the program answers
CARD = GpuFacts(
    index=0,
    uuid="GPU-0",
    name="RTX 3050",
    driver_version="570.1",
    power_limit_w=75,
    power_default_w=80,
    persistence=True,
)
XID = "[   12.3] NVRM: Xid (PCI:0000:01:00): {}, pid=311, name=python"


def examined(name: str, **changes: Any) -> Examined:
    """A machine in health. `host`, `inside` and `facts` take the fields that differ; so does `limits`."""
    facts = lan.facts(name, machine_id=f"id-of-{name}", kernel="6.1.0-18-amd64", **changes.pop("facts", {}))
    spec = lan.spec(name, **changes.pop("spec", {}))
    parts = {
        "round_trip_ms": 4.0,
        "host": replace(HOST, **changes.pop("host", {})),
        "inside": replace(INSIDE, **changes.pop("inside", {})),
        "manifests": {"Data": "c0" * 32},
    }
    return Examined(spec=spec, facts=facts, **{**parts, **changes})


def found(*fleet: Examined) -> Iterable[Finding]:
    return [finding for findings in diagnose(fleet).values() for finding in findings]


def healthy() -> Iterable[Finding]:
    return found(*(examined(name) for name in lan.NAMES))


def beta(**changes: Any) -> Iterable[Finding]:
    """Two nodes, the second of which is changed."""
    return found(examined("alpha"), examined("beta", **changes))


def unreached(why: Reach) -> Iterable[Finding]:
    nothing = Keys(files=(), in_agent=frozenset())
    error = refusal(Attempt(spec=lan.spec("beta"), user="ana", error=TimeoutError("out"), waited_s=5, keys=nothing))
    obstacle = OutOfReach(why=why, message=error.message, hint=error.hint)
    return found(examined("alpha"), Examined(spec=lan.spec("beta"), out_of_reach=obstacle))


def no_engine(*, late: bool = False, **host: Any) -> Iterable[Finding]:
    error = DeadlineError("no answer in 15 s") if late else ConnectionRefusedError(111, "Connection refused")
    return beta(host=host, facts={"engine": None, "image": None}, engine_error=str(error), engine_runs=late)


def engine(**changes: Any) -> Iterable[Finding]:
    described = EngineFacts(kind="docker", version="28.2.2", id="engine-of-beta", architecture="x86_64")
    return beta(facts={"engine": replace(described, **changes)})


def card(**changes: Any) -> Iterable[Finding]:
    gpus = (replace(CARD, **changes),)
    return beta(
        facts={"gpus": gpus}, gpus=NodeGpus(node="beta", device="auto", host=SmiAnswer(gpus=gpus), container=None)
    )


def held(status: str, *, run: str = "r1", exit_code: int | None = None) -> ContainerFacts:
    labels = {"orch.run_id": run, "orch.user": "ana", "orch.started_at": "2026-01-02T15:04:05+00:00"}
    return ContainerFacts(id=run, name="orch-run", image="i", labels=labels, status=status, exit_code=exit_code)


def runs(alpha: list[ContainerFacts], beta: list[ContainerFacts]) -> Iterable[Finding]:
    return found(examined("alpha", held=tuple(alpha)), examined("beta", held=tuple(beta)))


MAKERS: dict[str, Callable[[], Iterable[Finding]]] = {
    "reach.no_address": partial(unreached, Reach.NO_ADDRESS),
    "reach.no_answer": partial(unreached, Reach.NO_ANSWER),
    "reach.refused": partial(unreached, Reach.REFUSED),
    "reach.key_unknown": partial(unreached, Reach.KEY_UNKNOWN),
    "reach.key_changed": partial(unreached, Reach.KEY_CHANGED),
    "reach.login": partial(unreached, Reach.LOGIN),
    "reach.no_key": partial(unreached, Reach.NO_KEY),
    "reach.identity_missing": partial(unreached, Reach.IDENTITY_MISSING),
    "reach.key_locked": partial(unreached, Reach.KEY_LOCKED),
    "reach.proxy_command": partial(unreached, Reach.PROXY_COMMAND),
    "reach.shell": partial(unreached, Reach.SHELL),
    "reach.failed": partial(unreached, Reach.OTHER),
    "reach.slow": partial(beta, round_trip_ms=340.0),
    "reach.same_address": partial(beta, facts={"address": lan.address_of("alpha")}),
    "reach.same_machine_id": lambda: found(
        examined("alpha"), replace(examined("beta"), facts=lan.facts("beta", machine_id="id-of-alpha"))
    ),
    "doctor.not_asked": partial(beta, inside={}, silent={"container": "no answer in 30 s"}),
    "engine.absent": partial(no_engine, docker_program=False, docker_socket="absent"),
    "engine.no_access": partial(no_engine, docker_socket="closed"),
    "engine.not_running": partial(no_engine, docker_socket="absent"),
    "engine.silent": partial(no_engine, late=True),
    "engine.too_old": partial(engine, version="19.03.15"),
    "engine.rootless": partial(engine, rootless=True),
    "engine.wsl_networking": partial(beta, host={"wsl": "5.15-microsoft-standard-WSL2", "wsl_networking": "nat"}),
    "engine.limits_ignored": partial(beta, inside={"cpus": None}),
    "consistency.torch": partial(beta, inside={"torch": "2.12.0+cpu"}),
    "consistency.nccl": lambda: found(
        examined("alpha", inside={"nccl": "2.27.3"}), examined("beta", inside={"nccl": "2.26.2"})
    ),
    "consistency.architecture": partial(beta, facts={"architecture": "aarch64"}),
    "consistency.image_architecture": partial(beta, facts={"image": replace(lan.IMAGE, architecture="arm64")}),
    "consistency.cpu_capability": partial(beta, inside={"cpu_capability": "AVX512"}),
    "consistency.no_avx2": partial(beta, inside={"cpu_capability": "DEFAULT"}),
    "consistency.kernel": lambda: found(
        examined("alpha"), replace(examined("beta"), facts=lan.facts("beta", kernel="5.10.0-28-amd64"))
    ),
    "clock.not_kept": partial(beta, host={"ntp": "no"}),
    "clock.controller": lambda: found(
        examined("alpha", facts={"clock_offset_s": 40.2}), examined("beta", facts={"clock_offset_s": 40.0})
    ),
    "data.damaged": partial(
        beta, data=ComparedData(damaged=(DamagedFile(data="d" * 16, file="a.bin", wrong="content", offset=7),))
    ),
    "data.differs": partial(beta, manifests={"Data": "d1" * 32}),
    "data.missing": partial(beta, manifests={}),
    "resources.workspace": partial(beta, host={"workspace_writable": False}),
    "resources.disk_low": partial(beta, facts={"disk_free_mib": 4000}),
    "resources.image": partial(beta, facts={"image": None}, host={"docker_free_mib": 900}),
    "resources.memory": partial(beta, facts={"memory_mib": 3900}, spec={"limits": {"memory": "4g"}}),
    "resources.memory_held": partial(beta, host={"memory_available_mib": 3100}),
    "resources.cpus": partial(beta, facts={"cpus": 1}, spec={"limits": {"cpus": 2.0}}),
    "resources.shm": partial(beta, inside={"shm_mib": 64}),
    "resources.open_files": partial(beta, inside={"open_files": 1024}),
    "resources.port_taken": partial(beta, host={"holders": (PortHolder(port=12355, pid=7, program="python3"),)}),
    "resources.orphan": partial(runs, [held("running")], [held("exited", exit_code=1)]),
    "resources.busy": partial(runs, [held("running")], [held("running")]),
    "resources.labels": partial(runs, [], [held("exited", run="", exit_code=0)]),
    "resources.leftovers": partial(runs, [], [held("exited", run=f"r{n}", exit_code=0) for n in range(20)]),
    "power.sleep": partial(beta, host={"desktop": True}),
    "power.lid": partial(beta, host={"lid_action": "suspend"}),
    "power.on_battery": partial(beta, host={"on_battery": True}),
    "power.reboot_pending": partial(beta, host={"reboot_required": True}),
    "power.throttled": partial(beta, host={"throttle_events": 4000}),
    "gpu.xid": partial(beta, host={"xid": (XID.format(79),)}),
    "gpu.lost_in_run": partial(beta, blind_runs=("r1",)),
    "gpu.persistence_off": partial(card, persistence=False),
    "gpu.power_lowered": partial(card, power_limit_w=35),
}
