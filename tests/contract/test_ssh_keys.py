"""The user's own SSH keys: none, one that is not there, one that is locked; each named, with the line for it."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.cli.consent import answering_by
from orchestrator.nodes import host_keys
from orchestrator.nodes.ssh import SshNode
from orchestrator.specs.errors import NodeUnreachableError
from orchestrator.specs.reach import Reach
from tests.contract.sshd import ADDRESS, Server, sshd


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A machine whose host key is accepted, and a home of this test's own, without any key."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "home" / ".ssh").mkdir(parents=True, mode=0o700)
    with sshd(tmp_path / "sshd") as server:
        host_keys.accept(ADDRESS, server.port, host_keys.offered_key(ADDRESS, server.port))
        yield server


def refusal(node: SshNode) -> NodeUnreachableError:
    with pytest.raises(NodeUnreachableError) as raised:
        node.run(["true"])
    node.close()
    assert "no answer" not in str(raised.value)
    return raised.value


def brought(server: Server) -> str:
    return f"-p {server.port} {server.spec().user}@{ADDRESS}"


def lock(key: Path) -> None:
    """Put a passphrase on it."""
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(key)], check=True)


def at_home(server: Server, name: str = "id_ed25519") -> Path:
    """The key that the machine lets in, where ssh looks for it."""
    key = Path("~/.ssh", name).expanduser()
    for end in ("", ".pub"):
        shutil.copy(f"{server.identity}{end}", f"{key}{end}")
    return key


def test_a_user_without_any_key(own: Server) -> None:
    error = refusal(SshNode(own.spec(identity=None)))
    assert error.reach is Reach.NO_KEY
    assert "you have no SSH key to log in with" in str(error)
    assert error.hint == f"ssh-keygen -t ed25519 && ssh-copy-id {brought(own)}"


def test_a_key_of_the_inventory_that_is_not_there(own: Server, tmp_path: Path) -> None:
    missing = tmp_path / "not there"
    error = refusal(SshNode(own.spec(identity=str(missing))))
    assert error.reach is Reach.IDENTITY_MISSING
    assert f"{missing}, cannot be read: No such file or directory" in str(error)
    quoted = shlex.quote(str(missing))
    assert f"ssh-keygen -t ed25519 -f {quoted} && ssh-copy-id -i {quoted}.pub {brought(own)}" in error.hint


def test_a_public_key_is_no_identity(own: Server) -> None:
    error = refusal(SshNode(own.spec(identity=f"{own.identity}.pub")))
    assert error.reach is Reach.IDENTITY_MISSING
    assert "id.pub, is not a private key" in str(error)


@pytest.mark.parametrize("named", [True, False], ids=["by the inventory", "by its usual name"])
def test_a_key_locked_by_a_passphrase(own: Server, named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    key = own.identity if named else at_home(own)
    lock(key)
    error = refusal(SshNode(own.spec(identity=str(key) if named else None)))
    assert error.reach is Reach.KEY_LOCKED
    assert f"locked by a passphrase, so not tried: {key}" in str(error)
    assert error.hint == f'eval "$(ssh-agent)"; ssh-add {key}'  # ssh-add alone fails without an agent


def test_a_locked_key_that_the_agent_holds_is_let_in(
    own: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, socket = at_home(own), tmp_path / "agent"
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.PIPE) as agent:
        assert agent.stdout
        agent.stdout.readline()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        subprocess.run(["ssh-add", "-q", str(key)], check=True)
        lock(key)
        node = SshNode(own.spec(identity=None))
        assert node.run(["true"]).exit_code == 0
        node.close()
        with sshd(tmp_path / "another") as another:  # knows another key: the agent's was tried, and refused
            host_keys.accept(ADDRESS, another.port, host_keys.offered_key(ADDRESS, another.port))
            assert refusal(SshNode(another.spec(identity=None))).reach is Reach.LOGIN
        agent.terminate()


@pytest.mark.parametrize("kind", ["rsa", "ecdsa", "ed25519"])
def test_a_key_of_any_kind_that_is_refused(own: Server, tmp_path: Path, kind: str) -> None:
    """The message of the reader for another kind hides nothing."""
    key = tmp_path / kind
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(key)], check=True)
    error = refusal(SshNode(own.spec(identity=str(key))))
    assert error.reach is Reach.LOGIN
    assert error.hint == f"ssh-copy-id -i {key}.pub {brought(own)}"


def test_a_file_that_only_the_ssh_configuration_names_may_be_missing(own: Server) -> None:
    at_home(own)
    Path("~/.ssh/config").expanduser().write_text("Host *\n  IdentityFile ~/.ssh/lost\n")
    node = SshNode(own.spec(identity=None))
    assert node.run(["true"]).exit_code == 0
    node.close()


@pytest.mark.parametrize(
    "words",
    [("doctor",), ("build", "--yes"), ("setup", "--dry-run"), ("check-gpus",), ("launch", "--yes")],
    ids=lambda words: words[0],
)
def test_every_command_says_so(
    own: Server, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text(f"nodes:\n  alpha: {{address: {ADDRESS}, port: {own.port}, user: {own.spec().user}}}\n")
    with answering_by(None):
        assert main([*words, "-i", str(inventory)]) == 4
    output = capsys.readouterr()
    shown = " ".join((output.out + output.err).split())
    assert "you have no SSH key to log in with" in shown
    assert f"ssh-keygen -t ed25519 && ssh-copy-id {brought(own)}" in shown
    assert "no answer" not in shown
