"""Commands over SSH, whatever the login shell of the account, and whatever its startup files do."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from orchestrator.nodes import host_keys
from orchestrator.nodes.probes import probe
from orchestrator.nodes.ssh import SshNode
from orchestrator.specs.errors import NodeUnreachableError
from orchestrator.specs.reach import Reach
from tests.contract.sshd import ADDRESS, sshd

WEIRD = (
    "a b",
    "$(id)",
    "!x!",
    "a'b",
    'a"b',
    "a\\b",
    "a\nb",
    "`id`",
    "*",
    "\u00e9",
    "",
    "~",
    "%s",
    "\\n",
    "#x",
    "a\\'b",
)
NOISE = "echo hello; printf 'no newline'; echo error >&2"
Logs = Callable[..., SshNode]


@pytest.fixture
def logged_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Logs]:
    """A node whose account has this login shell and these startup files."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with ExitStack() as stack:

        def log_in(shell: str, **files: str) -> SshNode:
            program = shutil.which(shell, path=f"{os.environ['PATH']}:/usr/sbin")
            if program is None:
                pytest.skip(f"there is no {shell} on this computer")
            for name, text in files.items():
                (tmp_path / f".{name}").write_text(f"{text}\n")
            of_sshd = ["env", "-u", "SHLVL", f"HOME={tmp_path}", f"ZDOTDIR={tmp_path}", program, "-c"]
            line = f'{shlex.join(of_sshd)} "$SSH_ORIGINAL_COMMAND"'
            server = stack.enter_context(sshd(tmp_path / "sshd", shell=line))
            host_keys.accept(ADDRESS, server.port, host_keys.offered_key(ADDRESS, server.port))
            node = SshNode(server.spec())
            stack.callback(node.close)
            return node

        yield log_in


@pytest.mark.parametrize(
    ("shell", "files"),
    [
        ("bash", {}),
        ("dash", {}),
        ("zsh", {"zshenv": NOISE}),
        ("fish", {}),
        ("tcsh", {"cshrc": "echo hello"}),
        ("bsd-csh", {"cshrc": "echo hello"}),
        ("bash", {"bashrc": f"{NOISE}; set -u; return 1"}),
    ],
    ids=["bash", "dash", "zsh", "fish", "tcsh", "csh", "noisy"],
)
def test_every_shell_runs_the_same_words(logged_in: Logs, shell: str, files: dict[str, str]) -> None:
    node = logged_in(shell, **files)
    assert probe.ask(node, workspace="~/w", project="p", peers=[ADDRESS]).home
    assert node.run(["printf", "%s|", *WEIRD]).stdout == "".join(f"{word}|" for word in WEIRD)
    sent = os.urandom(100_000)
    answer = node.run(["sh", "-c", "wc -c; echo done >&2; exit 7"], stdin=sent)
    assert (answer.stdout.strip(), answer.stderr, answer.exit_code) == ("100000", "done\n", 7)
    assert b"".join(node.stream(["printf", "a\\000b"])) == b"a\0b"


def test_an_absent_program_is_not_found(tmp_path: Path, ssh_node: SshNode) -> None:
    """Exit code 126 would mean that the user may not run it."""
    assert ssh_node.run(["orch-no-such-program"]).exit_code == 127
    assert ssh_node.run([str(tmp_path / "absent")]).exit_code == 127
    assert ssh_node.run(["true"]).exit_code == 0
    assert "not found" in ssh_node.run(["orch-no-such-program"]).stderr


@pytest.mark.parametrize("other", ["fish", "zsh", "tcsh", "bash --norc"])
def test_a_startup_file_that_replaces_the_shell_is_named(logged_in: Logs, other: str, tmp_path: Path) -> None:
    if shutil.which(other.split()[0]) is None:
        pytest.skip(f"there is no {other} on this computer")
    node = logged_in("bash", bashrc=f"exec {other}")
    for stdin in (b"", f"touch {tmp_path}/ran\n".encode()):
        if stdin and other == "fish":
            continue  # reads all of its input first: the time for startup files runs out
        with pytest.raises(NodeUnreachableError, match=r"a startup file \(~/.bashrc, .* replaces the shell") as raised:
            node.run(["cat"], stdin=stdin, timeout_s=60)
        assert raised.value.reach is Reach.SHELL
    assert not (tmp_path / "ran").exists(), "what a command was to read was run"


@pytest.mark.parametrize(
    ("shell", "bashrc", "named"),
    [
        ("nologin", "", r"exit code 1\): This account is currently not available"),
        ("false", "", r"exit code 1\)$"),
        ("bash", "echo go away; exit 3", r"exit code 3\): go away"),
        ("bash", "read line", "startup file"),
    ],
)
def test_a_shell_that_runs_no_commands_says_so(logged_in: Logs, shell: str, bashrc: str, named: str) -> None:
    with pytest.raises(NodeUnreachableError, match=named) as raised:
        probe.ask(logged_in(shell, bashrc=bashrc), workspace="~/w", project="p")
    assert raised.value.reach is Reach.SHELL
    assert "chsh" in raised.value.hint or "exec fish" in raised.value.hint
