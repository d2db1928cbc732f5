"""Machines of a lab as a person finds them: sshd, a sudo that asks for a password, and no Docker."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.lab.conftest import Orch

_WITHOUT_DOCKER = """
apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -qy install --no-install-recommends sudo
kill $(cat /var/run/docker.pid); while docker info >/dev/null 2>&1; do sleep 0.1; done
DEBIAN_FRONTEND=noninteractive apt-get -qy remove docker.io && gpasswd --delete orch docker
sed -i 's/ulimit -/: ulimit -/' /etc/init.d/docker   # a lab's machine may not raise its own limits
"""


@dataclass(frozen=True)
class BareLab:
    """A lab whose machines have no Docker."""

    name: str

    @contextmanager
    def up(self, folder: Path, nodes: Sequence[str], script: str) -> Iterator[Orch]:
        """Machines without Docker, after this script on each; `orch` with its state in the folder."""
        environment = own_environment(folder)
        command = Orch(folder, environment)
        try:
            done = command("lab", "up", "--nodes", str(len(nodes)), "--name", self.name, timeout_s=600)
            assert done.code == 0, done.err
            for node in nodes:
                self.as_root(_WITHOUT_DOCKER + script, on=node)
            yield command
        finally:
            command("lab", "down", "--yes", "--name", self.name)

    def as_root(self, script: str, *, on: str = "alpha", stdin: str = "") -> str:
        ended = subprocess.run(
            ["docker", "exec", "-i", f"orch-{self.name}-{on}", "sh", "-euc", script],
            capture_output=True,
            text=True,
            timeout=300,
            input=stdin,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout.strip()

    def passwords(self, text: str, *names: str, on: str) -> None:
        self.as_root("chpasswd", on=on, stdin="".join(f"{name}:{text}\n" for name in names))

    def wrong_ones(self, on: str = "alpha", user: str = "orch") -> int:
        """Wrong passwords that the machine has counted."""
        return len(re.findall(r"^\d{4}-", self.as_root(f"faillock --user {user}", on=on), re.M))


def own_environment(folder: Path) -> dict[str, str]:
    """Environment of a command that has its state and configuration in this folder."""
    environment = {
        **os.environ,
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "LANG": "C.UTF-8",
    }
    environment.pop("ORCH_INVENTORY", None)
    return environment


def on_terminal(
    orch: Orch, words: Sequence[str], answers: Sequence[tuple[str, str | Callable[[], str]]], *, timeout_s: float = 400
) -> tuple[int, str]:
    """Run the command on a terminal and type each answer, or what a function returns, when its question has come; exit
    code, and all it showed."""
    argv = orch.argv(tuple(words))
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(orch.folder)
        os.execve(sys.executable, argv, {**orch.environment, "COLUMNS": "200", "TERM": "dumb"})  # noqa: S606  # the terminal is of this very process
    shown, left, deadline = "", list(answers), time.monotonic() + timeout_s
    from_here = 0
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                shown += os.read(terminal, 4096).decode(errors="replace")
            except OSError:  # the last process on the terminal has ended
                break
        if left and left[0][0] in shown[from_here:]:
            from_here = len(shown)
            time.sleep(0.1)  # until its echo is off
            answer = left.pop(0)[1]
            os.write(terminal, (answer if isinstance(answer, str) else answer()).encode())
    os.close(terminal)
    assert left == [], shown
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown
