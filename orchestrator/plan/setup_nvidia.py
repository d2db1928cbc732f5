"""The NVIDIA Container Toolkit: from the package source that somebody names, its key proven before it counts. Pure.

It is in no distribution. Which source to trust is the user's to say: NVIDIA's, by the address of its installation guide
(docs.nvidia.com, Container Toolkit, "With apt"), or a mirror of it. File, keyring and line of the source are those of
the guide, which takes whatever key is downloaded; here it must have the fingerprint below, else nothing is installed.
"""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.plan.setup_words import as_root, install
from orchestrator.specs.setup import SetupFacts, Step

PACKAGE = "nvidia-container-toolkit"
KEYRING = "/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg"
SOURCE_FILE = "/etc/apt/sources.list.d/nvidia-container-toolkit.list"
FINGERPRINT = "C95B321B61E88C1809C4F759DDCAE044F796ECB0"
"""Of the key that signs this source (NVIDIA CORPORATION, Open Source Projects). Where NVIDIA takes another one, setup
refuses until this line is changed too: a person has to look at it."""


_CAREFUL = ("--fail", "--silent", "--show-error", "--location", "--proto", "=https")
NAME_IT = (
    "name NVIDIA's package source, or a mirror: orch setup --nvidia-source https://…"
    ' (its address is in NVIDIA\'s installation guide, docs.nvidia.com, Container Toolkit, "With apt")'
)


def source_line(address: str) -> str:
    """What apt is told; `$(ARCH)` is apt's own variable, no shell's."""
    return f"deb [signed-by={KEYRING}] {address}/stable/deb/$(ARCH) /"


def needs_source(facts: SetupFacts, address: str) -> bool:
    """Whether nobody has said yet where the toolkit is to come from: neither now nor on the node before."""
    return PACKAGE not in facts.packages and not address and not facts.source


def key_tools(facts: SetupFacts, address: str) -> tuple[str, ...]:
    """Packages that fetching and checking the key needs, as far as they are lacking."""
    if PACKAGE in facts.packages or not address or facts.source_keys == (FINGERPRINT,):
        return ()
    programs = tuple(name for name in ("curl", "gpg") if name not in facts.programs)
    return (*programs, *(() if "ca-certificates" in facts.packages else ("ca-certificates",)))


def toolkit_steps(facts: SetupFacts, address: str, suffix: str) -> Iterator[Step]:
    """Trust the key for this one source, name the source, install, and tell the engine.

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
        known = "nvidia" in facts.runtimes
        yield Step(
            why=why,
            argv=as_root(facts, *argv),
            done=known,
            known_by="docker info names the runtime nvidia",
            timeout_s=120,
        )


def _key_steps(facts: SetupFacts, address: str, suffix: str) -> Iterator[Step]:
    """The key, as its user and in a folder of its own; root only copies what was proven."""
    known = f"{KEYRING} holds the key {FINGERPRINT} alone"
    if facts.source_keys == (FINGERPRINT,):
        yield Step(why="NVIDIA's key is trusted for its source", argv=(), done=True, known_by=known)
        return
    folder = f"/tmp/orch-setup-{suffix}"  # noqa: S108  # made anew with a random name, or not at all
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
