"""`orch setup` on a machine that has no Docker: Debian with an sshd, its engine removed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Figure
from tests.lab.conftest import Orch

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

NAME = "orchsetup"


def as_root(script: str) -> str:
    return subprocess.run(
        ["docker", "exec", f"orch-{NAME}-alpha", "sh", "-euc", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    ).stdout


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orch]:
    """A lab of one machine, on which there is sudo and no Docker."""
    folder = tmp_path_factory.mktemp("setup")
    environment = {
        **os.environ,
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "LANG": "C.UTF-8",
    }
    environment.pop("ORCH_INVENTORY", None)
    command = Orch(Path(folder), environment)
    try:
        done = command("lab", "up", "--nodes", "1", "--name", NAME, timeout_s=600)
        assert done.code == 0, done.err
        as_root("apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -qy install --no-install-recommends sudo")
        as_root("kill $(cat /var/run/docker.pid); while docker info >/dev/null 2>&1; do sleep 0.1; done")
        as_root("DEBIAN_FRONTEND=noninteractive apt-get -qy remove docker.io && gpasswd --delete orch docker")
        as_root("sed -i 's/ulimit -/: ulimit -/' /etc/init.d/docker")  # a lab's machine may not raise its own limits
        yield command
    finally:
        command("lab", "down", "--yes")


def test_without_rights_the_commands_are_shown_and_nothing_is_done(bare: Orch) -> None:
    done = bare("setup", "--yes")
    assert done.code == 4, done.err
    assert "  sudo usermod --append --groups docker orch\n" in done.out
    assert "sudo asks orch for a password" in done.out
    assert as_root("command -v dockerd || echo none").strip() == "none"


def test_a_machine_without_docker_gets_it_and_a_second_run_does_nothing(bare: Orch, figure: Figure) -> None:
    as_root("echo 'orch ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/orch")
    shown = bare("setup", "--dry-run")
    assert shown.code == 0, shown.err
    assert "install --yes --no-install-recommends docker.io" in shown.out
    assert "as good as root" in shown.out
    assert as_root("command -v dockerd || echo none").strip() == "none"

    done = bare("setup", "--yes", timeout_s=400)
    assert done.code == 0, done.out + done.err
    assert "alpha: Docker Engine" in done.err
    figure(f"orch setup on a machine without Docker: {done.seconds:.0f} s")

    again = bare("setup", "--yes")
    assert (again.code, again.out.strip().rsplit("\n", 1)[-1]) == (0, "  nothing to do")
    figure(f"orch setup where nothing is to do: {again.seconds:.1f} s")
