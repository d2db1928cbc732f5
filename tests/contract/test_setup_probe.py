"""The script of `orch setup` on this very computer, with programs of the test's own before those of the PATH."""

from __future__ import annotations

import getpass
import os
import platform
import subprocess
from pathlib import Path

import pytest

from orchestrator.nodes.local import LocalNode
from orchestrator.nodes.probes.setup_probe import ask
from orchestrator.specs.setup import Rights, SetupFacts
from tests import lan


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is first on the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def asked() -> SetupFacts:
    return ask(LocalNode("alpha"), lan.spec("alpha"))


def test_what_is_installed_here() -> None:
    facts = asked()
    system = platform.freedesktop_os_release()
    assert (facts.user, facts.distribution, facts.system) == (getpass.getuser(), system["ID"], system["PRETTY_NAME"])
    assert (facts.rights is Rights.ROOT) is (os.geteuid() == 0)
    assert facts.systemd is Path("/run/systemd/system").is_dir()
    listed = subprocess.run(
        ("dpkg-query", "-W", "-f", "${Package}\n"), capture_output=True, text=True, check=True
    ).stdout
    assert facts.packages <= set(listed.split())
    assert "apt-get" in facts.programs


def test_what_the_engine_tells(programs: Path) -> None:
    program(
        programs,
        "docker",
        'case "$*" in *--version) echo Docker version 28;; *Runtimes*) echo \'{"runc":{},"nvidia":{}}\';;'
        " *label=orch.run_id*) echo one-ab12; echo one-ab12;; *ps*) echo a; echo b; echo c;; esac",
    )
    facts = asked()
    assert (facts.runtimes, facts.runs, facts.containers) == (("nvidia", "runc"), ("one-ab12",), 3)
    assert facts.daemon
    assert not facts.podman


def test_an_engine_that_does_not_answer(programs: Path) -> None:
    program(
        programs,
        "docker",
        'case "$1" in --version) echo Docker version 28;; info) echo null; exit 1;; *) exit 1;; esac',
    )
    facts = asked()
    assert (facts.daemon, facts.runtimes, facts.runs, facts.containers) == (False, (), (), 0)


def test_podman_under_the_name_of_docker(programs: Path) -> None:
    program(programs, "docker", "echo podman version 4.3.1")
    assert asked().podman


def test_proxies_are_reported_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://ana:secret@proxy.example:3128")
    facts = asked()
    assert facts.proxies == ("https_proxy",)
    assert "secret" not in repr(facts)


@pytest.mark.parametrize(
    ("sudo", "rights"), [("exit 0", Rights.FREE), ("echo sudo: a password is required >&2; exit 1", Rights.PASSWORD)]
)
def test_how_one_becomes_root(programs: Path, sudo: str, rights: Rights) -> None:
    program(programs, "id", 'case "$1" in -un) echo ana;; -nG) echo ana docker;; *) echo 1000;; esac')
    program(programs, "sudo", sudo)
    facts = asked()
    assert (facts.user, facts.rights, facts.in_group) == ("ana", rights, True)
