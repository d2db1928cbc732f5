"""The words of a command that needs root, and those of apt. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.specs.setup import Rights, SetupFacts, Step

INSTALL_TIMEOUT_S = 1800.0
UPDATE_TIMEOUT_S = 300.0
_QUIET = ("env", "DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_SUSPEND=1")
"""No questions, and no restart of services that have nothing to do with it."""
_WAIT = ("-o", "DPkg::Lock::Timeout=300")
"""Machines that upgrade themselves hold apt's lock for minutes."""


def as_root(facts: SetupFacts, *argv: str, keep_proxies: bool = False) -> tuple[str, ...]:
    """Through sudo where the user is not root; without `-n` where a person has to type it.

    `keep_proxies`: sudo drops the proxies of the user's environment unless told; only their names are written down.
    """
    if facts.rights is Rights.ROOT:
        return argv
    ask = () if facts.rights in (Rights.PASSWORD, Rights.NONE) else ("-n",)
    keep = (f"--preserve-env={','.join(facts.proxies)}",) if keep_proxies and facts.proxies else ()
    return ("sudo", *ask, *keep, *argv)


def install(facts: SetupFacts, packages: Sequence[str], *, why: str) -> Iterator[Step]:
    """Fetch the package lists and install these."""
    words = ("install", "--yes", "--no-install-recommends", *packages)
    yield Step(
        why="fetch the package lists",
        argv=_apt(facts, "update"),
        known_by="needed only where something is installed",
        timeout_s=UPDATE_TIMEOUT_S,
    )
    yield Step(
        why=f"{why}: {', '.join(packages)}",
        argv=_apt(facts, *words),
        known_by=f"dpkg-query -W {' '.join(packages)}",
        timeout_s=INSTALL_TIMEOUT_S,
    )


def _apt(facts: SetupFacts, *words: str) -> tuple[str, ...]:
    return as_root(facts, *_QUIET, "apt-get", *_WAIT, *words, keep_proxies=True)
