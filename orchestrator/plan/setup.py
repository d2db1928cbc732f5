"""The commands that make a machine able to run training containers: facts in, plan out. Pure.

Docker Engine comes from the distribution's own packages: no further source, and 20.10 (Debian 11) is new enough.

The NVIDIA Container Toolkit is in no distribution. Its package source is NVIDIA_SOURCE, or a mirror that the user
names. File, keyring and source line are those of NVIDIA's guide, which accepts whatever key is downloaded; here the key
must have FINGERPRINT, otherwise nothing is installed.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from orchestrator.specs.numbers import whole
from orchestrator.specs.setup import NVIDIA_SOURCE, Rights, SetupFacts, SetupPlan, Step

GROUP_WARNING = (
    "members of the group docker can become root on that machine without a password: {user} will be as good as root"
)


def plan_setup(facts: SetupFacts, *, suffix: str, nvidia_source: str = "") -> SetupPlan:
    """The steps for this node. `suffix` is random: it ends the name of the folder for what is downloaded.

    `nvidia_source`: address of the package source to take the NVIDIA Container Toolkit from (default: the one that the
    node knows, otherwise NVIDIA's).
    """
    nvidia_source = nvidia_source or ("" if facts.source else NVIDIA_SOURCE)
    if refusal := _refusal(facts):
        return SetupPlan(node=facts.name, refused=refusal[0], hint=refusal[1])
    gpu = bool(facts.nvidia_driver) and facts.wants_gpus
    missing = (*_engine_packages(facts), *(key_tools(facts, nvidia_source) if gpu else ()))
    toolkit = toolkit_steps(facts, nvidia_source, suffix) if gpu else ()
    steps = (*_engine_steps(facts, missing), *toolkit)
    new_source = nvidia_source if any(SOURCE_FILE in step.argv for step in steps if not step.done) else ""
    warnings = tuple(_warnings(facts, steps, new_source))
    plan = SetupPlan(node=facts.name, steps=steps, warnings=warnings, new_source=new_source)
    if any("restart" in step.argv for step in plan.to_do) and facts.runs:
        return SetupPlan(
            node=facts.name,
            refused=f"the engine must be restarted, and run {', '.join(facts.runs)} is active there",
            hint=f"orch stop {facts.runs[0]}, then orch setup --nodes {facts.name}",
        )
    if plan.to_do and facts.rights is Rights.NONE:
        return replace(plan, refused=f"{facts.user} cannot become root there: it has no sudo", hint=become_able(facts))
    return plan


def become_able(facts: SetupFacts) -> str:
    """The line by which root lets the user use sudo. Ubuntu's root has no password: another account's sudo does it."""
    group = f"usermod --append --groups sudo {shlex.quote(facts.user)}"
    then = f"then: orch setup --nodes {facts.name}"
    if "ubuntu" in (facts.distribution, *facts.like):
        return f"on it, from an account that may use sudo: sudo {group}; {then}"
    first = "apt-get update && apt-get install --yes sudo && " if facts.rights is Rights.NONE else ""
    return f"on it, with root's password: su - -c {shlex.quote(first + group)}; {then}"


def _refusal(facts: SetupFacts) -> tuple[str, str] | None:
    """Reason not to change the node, and what to do by hand; None if it can be set up."""
    family = {facts.distribution, *facts.like}
    if not family & {"debian", "ubuntu"} or "apt-get" not in facts.programs:
        return (
            f"it runs {facts.system or 'an unknown system'}: orch setup knows Debian and Ubuntu",
            f"on it: {_lines_elsewhere(facts)}",
        )
    if facts.podman:
        return "its docker is Podman under that name", "on it: sudo apt-get remove podman-docker, then orch setup"
    if "docker-ce-cli" in facts.packages and "dockerd" not in facts.programs:
        return (
            "it has the client of Docker's own packages, and no engine: the distribution's would clash with it",
            "on it: sudo apt-get install docker-ce, then orch setup",
        )
    return None


_ELSEWHERE = {
    "fedora": "sudo dnf install -y moby-engine docker-cli",
    "rhel": "sudo dnf install -y dnf-plugins-core"
    " && sudo dnf config-manager --add-repo https://download.docker.com/linux/rhel/docker-ce.repo"
    " && sudo dnf install -y docker-ce",
    "arch": "sudo pacman -S --needed docker",
    "suse": "sudo zypper install -y docker",
    "opensuse": "sudo zypper install -y docker",
    "alpine": "sudo apk add docker shadow && sudo rc-update add docker",
    "gentoo": "sudo emerge --noreplace app-containers/docker app-containers/docker-cli",
}
"""Installation of Docker Engine by family of distributions; RHEL's has none of its own (docs.docker.com/engine)."""


def _lines_elsewhere(facts: SetupFacts) -> str:
    """Lines to paste on a distribution that is not set up here."""
    family = [name for name in (facts.distribution, *facts.like) if name in _ELSEWHERE]
    name = "rhel" if "rhel" in family else next(iter(family), "")  # RHEL's relatives name Fedora, too
    start = "sudo systemctl enable --now docker" if facts.systemd else "sudo service docker start"
    after = f"{start} && sudo usermod -aG docker {shlex.quote(facts.user)}"
    if not name:
        return f"install Docker Engine as that distribution's manual says, then {after}"
    return f"{_ELSEWHERE[name]} && {after}"


def _engine_steps(facts: SetupFacts, missing: tuple[str, ...]) -> Iterator[Step]:
    """Install these packages, start the engine, and let the user use it."""
    if "docker.io" in missing:
        yield from install(facts, missing, why="install Docker Engine and what it needs")
    else:
        yield Step(why="Docker Engine is installed", argv=(), done=True, known_by="dockerd is found")
        if missing:
            yield from install(facts, missing, why="install missing packages")
    start = ("systemctl", "enable", "--now", "docker") if facts.systemd else ("service", "docker", "start")
    yield Step(
        why="start Docker, now and with the machine" if facts.systemd else "start Docker",
        argv=as_root(facts, *start),
        done=facts.daemon and (facts.enabled or not facts.systemd),
        known_by="a dockerd runs, and systemctl is-enabled docker" if facts.systemd else "a dockerd runs",
    )
    if facts.rights is not Rights.ROOT:
        yield Step(
            why=f"let {facts.user} use Docker",
            argv=as_root(facts, "usermod", "--append", "--groups", "docker", facts.user),
            done=facts.in_group,
            known_by=f"id -nG {facts.user} names docker",
        )


def _engine_packages(facts: SetupFacts) -> Iterator[str]:
    """Missing packages of the engine."""
    if "dockerd" not in facts.programs:
        yield "docker.io"
        if facts.apparmor and "apparmor" not in facts.packages:
            yield "apparmor"
    # Debian 13 and later, testing and unstable (without a release number), have the client in a package of its own
    release = whole(facts.version.partition(".")[0], most=98)
    if "docker" not in facts.programs and facts.distribution == "debian" and (release is None or release >= 13):
        yield "docker-cli"
    if "ip" not in facts.programs:
        yield "iproute2"


def _warnings(facts: SetupFacts, steps: tuple[Step, ...], new_source: str) -> Iterator[str]:
    to_do = [step for step in steps if not step.done]
    if any("usermod" in step.argv for step in to_do):
        yield GROUP_WARNING.format(user=facts.user)
    if any("restart" in step.argv for step in to_do) and facts.containers:
        count = "a container runs" if facts.containers == 1 else f"{facts.containers} containers run"
        yield f"{count} there and will be stopped when Docker restarts"
    if new_source:
        yield f"packages of {new_source} are installed as root, now and with every upgrade"
    if not facts.nvidia_driver and facts.wants_gpus and "nvidia-container-toolkit" in facts.packages:
        yield "it has the NVIDIA Container Toolkit and no driver that is loaded: orch explain gpu.driver_not_loaded"


PACKAGE = "nvidia-container-toolkit"
KEYRING = "/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg"
SOURCE_FILE = "/etc/apt/sources.list.d/nvidia-container-toolkit.list"
FINGERPRINT = "C95B321B61E88C1809C4F759DDCAE044F796ECB0"
"""Fingerprint of the key that signs this source (NVIDIA CORPORATION, Open Source Projects). If NVIDIA changes its key,
setup refuses until this line is changed: a person has to check it."""
_CAREFUL = ("--fail", "--silent", "--show-error", "--location", "--proto", "=https")


def source_line(address: str) -> str:
    """Source line for apt; `$(ARCH)` is a variable of apt, not of a shell."""
    return f"deb [signed-by={KEYRING}] {address}/stable/deb/$(ARCH) /"


def key_tools(facts: SetupFacts, address: str) -> tuple[str, ...]:
    """Missing packages for fetching and checking the key."""
    if PACKAGE in facts.packages or not address or facts.source_keys == (FINGERPRINT,):
        return ()
    programs = tuple(name for name in ("curl", "gpg") if name not in facts.programs)
    return (*programs, *(() if "ca-certificates" in facts.packages else ("ca-certificates",)))


def toolkit_steps(facts: SetupFacts, address: str, suffix: str) -> Iterator[Step]:
    """Trust the key for this one source, add the source, install, and configure the engine.

    `address`: of the source; empty where the node knows one already, which is then taken as it is.
    """
    if PACKAGE in facts.packages:
        yield Step(
            why="the NVIDIA Container Toolkit is installed", argv=(), done=True, known_by=f"dpkg-query -W {PACKAGE}"
        )
    else:
        if address:
            yield from _key_steps(facts, address, suffix)
            yield Step(
                why="name the package source",
                argv=as_root(facts, "tee", SOURCE_FILE),
                stdin=f"{source_line(address)}\n",
                done=facts.source == source_line(address),
                known_by=f"{SOURCE_FILE} holds this line",
            )
        yield from install(facts, (PACKAGE,), why="install the NVIDIA Container Toolkit")
    restart = ("systemctl", "restart", "docker") if facts.systemd else ("service", "docker", "restart")
    for why, argv in (
        ("let Docker hand GPUs to containers", ("nvidia-ctk", "runtime", "configure", "--runtime=docker")),
        ("restart Docker, which then knows", restart),
    ):
        done, known = "nvidia" in facts.runtimes, "docker info names the runtime nvidia"
        yield Step(why=why, argv=as_root(facts, *argv), done=done, known_by=known, timeout_s=120)


def _key_steps(facts: SetupFacts, address: str, suffix: str) -> Iterator[Step]:
    """Fetch and check the key as the user, in a folder of its own; root only copies the key that was checked."""
    known = f"{KEYRING} holds the key {FINGERPRINT} alone"
    if facts.source_keys == (FINGERPRINT,):
        yield Step(why="NVIDIA's key is trusted for its source", argv=(), done=True, known_by=known)
        return
    folder = f"/tmp/orch-setup-{suffix}"  # noqa: S108  # a random name: mkdir fails if it exists
    key, ring = f"{folder}/key.asc", f"{folder}/key.gpg"
    gpg = ("gpg", "--homedir", folder, "--batch")
    yield Step(why="a folder for the key", argv=("mkdir", "-m", "700", folder), known_by=known)
    yield Step(
        why="fetch the key of that package source",
        argv=("curl", *_CAREFUL, "-o", key, f"{address}/gpgkey"),
        known_by=known,
        timeout_s=120,
    )
    yield Step(
        why=f"check that it is {FINGERPRINT} and no other",
        argv=(*gpg, "--show-keys", "--with-colons", key),
        known_by=known,
        only_key=FINGERPRINT,
    )
    yield Step(why="make it a keyring", argv=(*gpg, "--dearmor", "--output", ring, key), known_by=known)
    yield Step(
        why="trust it for NVIDIA's source alone",
        argv=as_root(facts, "install", "-m", "644", ring, KEYRING),
        known_by=known,
    )
    yield Step(why="remove the folder", argv=("rm", "-r", folder), known_by=known, always=True)


INSTALL_TIMEOUT_S = 1800.0
UPDATE_TIMEOUT_S = 300.0
_QUIET = ("env", "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_SUSPEND=1")
"""English messages, no questions, and no restart of services that have nothing to do with it."""


def as_root(facts: SetupFacts, *argv: str, keep_proxies: bool = False) -> tuple[str, ...]:
    """Wrap in sudo where the user is not root; without `-n` where it gets a password, from orch or from a person.

    `keep_proxies`: sudo drops proxy variables without this option; only their names are passed.
    """
    if facts.rights is Rights.ROOT:
        return argv
    ask = () if facts.rights in (Rights.PASSWORD, Rights.NONE) else ("-n",)
    keep = (f"--preserve-env={','.join(facts.proxies)}",) if keep_proxies and facts.proxies else ()
    return ("sudo", *ask, *keep, *argv)


def install(facts: SetupFacts, packages: Sequence[str], *, why: str) -> Iterator[Step]:
    """Fetch the package lists and install these packages."""
    apt = (*_QUIET, "apt-get")
    yield Step(
        why="fetch the package lists",
        argv=as_root(facts, *apt, "update", keep_proxies=True),
        known_by="needed only where something is installed",
        timeout_s=UPDATE_TIMEOUT_S,
    )
    yield Step(
        why=f"{why}: {', '.join(packages)}",
        argv=as_root(facts, *apt, "install", "--yes", "--no-install-recommends", *packages, keep_proxies=True),
        known_by=f"dpkg-query -W {' '.join(packages)}",
        timeout_s=INSTALL_TIMEOUT_S,
    )
