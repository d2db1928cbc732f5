"""What has to be done on a machine so that training containers can run there: facts in, commands out. Pure.

Docker Engine comes from the distribution's own packages: no further package source, its updates come with the
others, and 20.10 (Debian 11) is new enough. The NVIDIA Container Toolkit is in no distribution: see `setup_nvidia`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from orchestrator.plan.setup_nvidia import KEYRING, NAME_IT, key_tools, needs_source, toolkit_steps
from orchestrator.plan.setup_words import as_root, install
from orchestrator.specs.numbers import whole
from orchestrator.specs.setup import Rights, SetupFacts, SetupPlan, Step

GROUP_WARNING = (
    "members of the group docker can become root on that machine without a password: {user} will be as good as root"
)


def plan_setup(facts: SetupFacts, *, suffix: str, nvidia_source: str = "") -> SetupPlan:
    """The steps for this node. `suffix` is random: it ends the name of the folder for what is downloaded.

    `nvidia_source`: address of the package source to take the NVIDIA Container Toolkit from; a node that needs one and
    knows none is refused.
    """
    if refusal := _refusal(facts):
        return SetupPlan(node=facts.name, refused=refusal[0], hint=refusal[1])
    gpu = bool(facts.nvidia_driver) and facts.wants_gpus
    if gpu and needs_source(facts, nvidia_source):
        return SetupPlan(
            node=facts.name,
            refused="it has an NVIDIA driver and no NVIDIA Container Toolkit, which no distribution has",
            hint=f"{NAME_IT}; or, to train without its GPU: device: cpu in the inventory",
        )
    lacking = (*_engine_packages(facts), *(key_tools(facts, nvidia_source) if gpu else ()))
    toolkit = toolkit_steps(facts, nvidia_source, suffix) if gpu else ()
    steps = (*_install_steps(facts, lacking), *_start_steps(facts), *toolkit)
    plan = SetupPlan(node=facts.name, steps=steps, warnings=tuple(_warnings(facts, steps)))
    if any("restart" in step.argv for step in plan.to_do) and facts.runs:
        return SetupPlan(
            node=facts.name,
            refused=f"the engine must be restarted, and run {', '.join(facts.runs)} goes on there",
            hint=f"orch stop {facts.runs[0]}, then orch setup --nodes {facts.name}",
        )
    if plan.to_do and facts.rights in (Rights.PASSWORD, Rights.NONE):
        return SetupPlan(node=facts.name, steps=steps, warnings=plan.warnings, **_no_rights(facts))
    return plan


def _refusal(facts: SetupFacts) -> tuple[str, str] | None:
    """Why nothing is to be done there, and what to do by hand."""
    family = {facts.distribution, *facts.like}
    if not family & {"debian", "ubuntu"} or "apt-get" not in facts.programs:
        return (
            f"it runs {facts.system or 'a system that does not tell its name'}: orch setup knows Debian and Ubuntu",
            "install Docker Engine as that distribution's manual says (often the package docker or moby-engine),"
            f" then on it: sudo systemctl enable --now docker && sudo usermod -aG docker {shlex.quote(facts.user)}",
        )
    if facts.podman:
        return "its docker is Podman under that name", "on it: sudo apt-get remove podman-docker, then orch setup"
    if "docker-ce-cli" in facts.packages and "dockerd" not in facts.programs:
        return (
            "it has the client of Docker's own packages, and no engine: the distribution's would clash with it",
            "on it: sudo apt-get install docker-ce, then orch setup",
        )
    return None


def _no_rights(facts: SetupFacts) -> dict[str, str]:
    if facts.rights is Rights.PASSWORD:
        return {
            "refused": f"sudo asks {facts.user} for a password there, and orch never does",
            "hint": "log in there and paste the lines above: sudo asks for the password on that terminal",
        }
    return {
        "refused": f"{facts.user} cannot become root there: it has no sudo",
        "hint": f"as root there: apt-get install sudo && usermod -aG sudo {shlex.quote(facts.user)};"
        " or paste the lines above",
    }


def _install_steps(facts: SetupFacts, lacking: tuple[str, ...]) -> Iterator[Step]:
    if "docker.io" in lacking:
        yield from install(facts, lacking, why="install Docker Engine and what it needs")
        return
    yield Step(why="Docker Engine is installed", argv=(), done=True, known_by="dockerd is found")
    if lacking:
        yield from install(facts, lacking, why="install what is lacking beside it")


def _start_steps(facts: SetupFacts) -> Iterator[Step]:
    if facts.systemd:
        yield Step(
            why="start Docker, now and with the machine",
            argv=as_root(facts, "systemctl", "enable", "--now", "docker"),
            done=facts.daemon and facts.enabled,
            known_by="a dockerd runs, and systemctl is-enabled docker",
        )
    else:
        yield Step(
            why="start Docker",
            argv=as_root(facts, "service", "docker", "start"),
            done=facts.daemon,
            known_by="a dockerd runs",
        )
    if facts.rights is not Rights.ROOT:
        yield Step(
            why=f"let {facts.user} use Docker",
            argv=as_root(facts, "usermod", "--append", "--groups", "docker", facts.user),
            done=facts.in_group,
            known_by=f"id -nG {facts.user} names docker",
        )


def _engine_packages(facts: SetupFacts) -> Iterator[str]:
    """Those that it lacks."""
    if "dockerd" not in facts.programs:
        yield "docker.io"
        if facts.apparmor and "apparmor" not in facts.packages:
            yield "apparmor"
    # Debian 13 and later have the client in a package of its own
    if "docker" not in facts.programs and _debian(facts) >= 13:
        yield "docker-cli"
    if "ip" not in facts.programs:
        yield "iproute2"


def _debian(facts: SetupFacts) -> int:
    """Its number; testing and unstable, which have none, are newer than any."""
    if facts.distribution != "debian":
        return 0
    number = whole(facts.version.partition(".")[0], most=98)
    return 99 if number is None else number


def _warnings(facts: SetupFacts, steps: tuple[Step, ...]) -> Iterator[str]:
    to_do = [step for step in steps if not step.done]
    if any("usermod" in step.argv for step in to_do):
        yield GROUP_WARNING.format(user=facts.user)
    if any("restart" in step.argv for step in to_do) and facts.containers:
        count = "a container runs" if facts.containers == 1 else f"{facts.containers} containers run"
        yield f"{count} there and will be stopped when Docker restarts"
    if any(KEYRING in step.argv for step in to_do):
        yield "packages of that source are installed as root, now and with every upgrade"
    if not facts.nvidia_driver and facts.wants_gpus and "nvidia-container-toolkit" in facts.packages:
        yield "it has the NVIDIA Container Toolkit and no driver that is loaded: orch explain gpu.driver_not_loaded"
