"""Machines in memory on which packages can be installed: they answer as their state is, so that a second run shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.nodes.fake import Answer, FakeNode
from orchestrator.nodes.probes import setup_probe
from orchestrator.nodes.sudo import BEGIN, CHECK, SKIP, SUDO
from orchestrator.plan.setup import FINGERPRINT, KEYRING
from orchestrator.specs.errors import EngineError
from orchestrator.specs.facts import EngineFacts
from orchestrator.specs.inventory import NodeSpec
from tests import lan

PROGRAM_OF = {
    "docker.io": ("docker", "dockerd"),
    "docker-cli": ("docker",),
    "iproute2": ("ip",),
    "curl": ("curl",),
    "gpg": ("gpg",),
    "nvidia-container-toolkit": ("nvidia-ctk",),
}


def key_listing(*fingerprints: str) -> str:
    """Print as gpg does for a file with these keys, each with a subkey."""
    return "".join(
        f"pub:-:4096:1:{one[-16:]}:1505000000:::-:::scSC::::::23::0:\nfpr:::::::::{one}:\nuid:-::::1::2::Somebody:\n"
        f"sub:-:4096:1:AAAA:1505000000::::::e::::::23:\nfpr:::::::::{'A' * 40}:\n"
        for one in fingerprints
    )


@dataclass
class AskingSudo:
    """A `sudo` that asks for a password, and counts the wrong ones as pam_faillock does."""

    password: str = "right"  # noqa: S105  # of a fake machine
    refusal: str = ""
    """Output after the right password."""
    tried: list[str] = field(default_factory=list)
    compared: list[str] = field(default_factory=list)
    helper: str | None = None
    """Password of the account as PAM's helper knows it, where it is another one; empty: there is no helper."""

    def check(self, stdin: bytes) -> Answer:
        """The answer of PAM's helper."""
        if self.helper == "":
            return 127, "", ""
        self.compared.append(stdin.decode().removesuffix("\0"))
        right = self.password if self.helper is None else self.helper
        return 0 if self.compared[-1] == right else 7, "", ""

    def __call__(self, argv: Sequence[str], stdin: bytes) -> Answer | tuple[tuple[str, ...], bytes]:
        """Return the answer, or the command that it runs as root with what is left of its input."""
        assert tuple(argv[: len(SUDO)]) == SUDO
        lines = stdin.split(b"\n")
        for line in lines[:-1][:3]:
            self.tried.append(line.decode())
            if self.tried[-1] == self.password:
                break
        else:
            return 1, "", "\nWe trust you have received the usual lecture\n\nsudo: 1 incorrect password attempt\n"
        if self.refusal:
            return 1, "", self.refusal
        command, left = tuple(argv[len(SUDO) :]), stdin.partition(b"\n")[2]
        if command != ("true",):
            while command[0].startswith("-"):
                command = command[1:]
            assert command[:4] == ("sh", "-c", SKIP, BEGIN)
            command, left = command[4:], left.partition(f"{BEGIN}\n".encode())[2]
        return command, left


@dataclass
class Machine:
    """One Debian machine, bare but for what is said."""

    name: str = "alpha"
    user: str = "ana"
    rights: str = "free"
    sudo: AskingSudo = field(default_factory=AskingSudo)
    """Sudo where `rights` is "password"."""
    system: str = "debian 12"
    systemd: bool = True
    driver: str = ""
    key: str = key_listing(FINGERPRINT)
    """File that is downloaded as NVIDIA's key."""
    fails: str = ""
    """A word of a command that exits with 100."""
    locked: list[str] = field(default_factory=list)
    """Lines of apt-get, once each, while another process holds a lock."""
    hides: bool = False
    """True if only root may ask its engine."""
    running: str = ""
    """Run of orch that is active there."""
    packages: set[str] = field(default_factory=lambda: {"ca-certificates", "iproute2"})
    programs: set[str] = field(default_factory=lambda: {"apt-get", "ip", "service"})
    groups: set[str] = field(default_factory=lambda: {"users"})
    daemon: bool = False
    enabled: bool = False
    configured: bool = False
    runtimes: tuple[str, ...] = ("runc",)
    files: dict[str, str] = field(default_factory=dict)
    commands: list[tuple[str, ...]] = field(default_factory=list)
    """Commands that changed it, as they were requested."""

    def node(self) -> FakeNode:
        """A new login on it."""
        node = FakeNode(self.name, address=lan.address_of(self.name), programs=self._run)
        node.engine.description = EngineFacts(
            kind="docker", version="26.1", id=self.name, architecture="x86_64", runtimes=self.runtimes
        )
        if not (self.daemon and ("docker" in self.groups or self.rights == "root")):
            node.engine.failures["facts"] = EngineError("no engine answers", node=self.name)
        return node

    def _run(self, argv: Sequence[str], stdin: bytes, _timeout_s: float) -> Answer:
        asks = tuple(argv[: len(SUDO)]) == SUDO
        if tuple(argv) == ("sh", "-c", CHECK):
            return self.sudo.check(stdin)
        if asks:
            outcome = self.sudo(argv, stdin)
            if len(outcome) == 3:
                return outcome
            words, stdin = list(outcome[0]), outcome[1]
            if words == ["true"]:
                return 0, "", ""
            argv = ("sudo", *words)
        if "sh" in argv and setup_probe.SCRIPT in argv:
            return 0, self._sudo_answer(as_root=asks or self.rights in ("root", "free")), ""
        self.commands.append(tuple(argv))
        if self.locked and "apt-get" in argv:
            return 100, "", self.locked.pop(0)
        if self.fails and self.fails in argv:
            return 100, "", f"E: {self.fails} failed"
        words = words if asks else _without_sudo(argv, needed=self.rights != "root")
        return 0, self._do(words, stdin.decode()) or "", ""

    def _do(self, words: Sequence[str], stdin: str) -> str | None:
        if "install" in words and "apt-get" in words:
            self._install(words[words.index("--no-install-recommends") + 1 :])
        elif words[0] == "usermod":
            assert words[-1] == self.user
            self.groups.add("docker")
        elif "start" in words or "--now" in words:
            self.daemon, self.enabled = True, True
        elif "restart" in words:
            self.runtimes = ("nvidia", "runc") if self.configured else ("runc",)
        elif words[0] == "nvidia-ctk":
            assert "nvidia-ctk" in self.programs
            self.configured = True
        elif words[0] == "curl":
            self.files[words[words.index("-o") + 1]] = self.key
        elif words[0] == "gpg" and "--show-keys" in words:
            return self.files[words[-1]]
        elif words[0] == "install":
            self.files[words[-1]] = self.key
        elif words[0] == "tee":
            self.files[words[-1]] = stdin
        return None

    def _install(self, packages: Sequence[str]) -> None:
        if "nvidia-container-toolkit" in packages:
            assert {KEYRING, "/etc/apt/sources.list.d/nvidia-container-toolkit.list"} <= set(self.files)
        self.packages.update(packages)
        for package in packages:
            self.programs.update(PROGRAM_OF.get(package, ()))

    def _sudo_answer(self, *, as_root: bool) -> str:
        distribution, _, version = self.system.partition(" ")
        lines = [
            *(f"user={self.user}", f"groups={' '.join(sorted(self.groups))}", f"rights={self.rights}"),
            *(f"system={self.system.title()}", f"distribution={distribution}", "like=", f"version={version}"),
            *(["systemd=yes"] if self.systemd else []),
            *(["enabled=yes"] if self.enabled and self.systemd else []),
            *(["daemon=yes"] if self.daemon else []),
            *(f"package={name}" for name in sorted(self.packages)),
            *(f"program={name}" for name in sorted(self.programs)),
            *(f"key={line}" for line in self.files.get(KEYRING, "").splitlines()),
            f"source={self.files.get('/etc/apt/sources.list.d/nvidia-container-toolkit.list', '').strip()}",
        ]
        if self.driver:
            lines.append(f"nvidia_driver=NVRM version: NVIDIA UNIX x86_64 Kernel Module  {self.driver}  Mon 2026")
        if self.daemon and (as_root or not self.hides):
            runtimes = ", ".join(f'"{name}": {{}}' for name in self.runtimes)
            lines += [f"runtimes={{{runtimes}}}", f"containers={int(bool(self.running))}", f"runs={self.running}"]
        return "\n".join([*lines, ""])


def _without_sudo(argv: Sequence[str], *, needed: bool) -> list[str]:
    words = list(argv)
    own = words[0] in ("mkdir", "curl", "gpg", "rm")
    assert (words[0] == "sudo") is (needed and not own), argv
    if words[0] == "sudo":
        assert words[1] == "-n"
        words = words[2:]
    return words


@dataclass
class Fleet:
    """Machines that commands reach by name; every connection is a new login."""

    machines: dict[str, Machine]

    def connect(self, wanted: NodeSpec) -> FakeNode:
        return self.machines[wanted.name].node()

    @property
    def commands(self) -> list[tuple[str, ...]]:
        return [command for machine in self.machines.values() for command in machine.commands]


def fleet(**changes: object) -> Fleet:
    """alpha, beta and gamma, all alike."""
    return Fleet({name: Machine(name=name, **changes) for name in lan.NAMES[:3]})  # type: ignore[arg-type]  # any field
