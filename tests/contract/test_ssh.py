"""Behavior of SSH alone: host keys, refused users, machines that are off, archives that mean harm."""

from __future__ import annotations

import io
import socket
import tarfile
from collections.abc import Iterator
from pathlib import Path
from threading import Lock, Thread

import paramiko
import pytest

from orchestrator.cli import main
from orchestrator.nodes import host_keys
from orchestrator.nodes.interface import CommandOutput
from orchestrator.nodes.login_shell import FIRST
from orchestrator.nodes.ssh import SshNode, _Ended, _feed
from orchestrator.specs.errors import CommandFailedError, NodeUnreachableError
from orchestrator.specs.reach import Reach
from tests.contract.sshd import ADDRESS, Server, command_of, free_port, sshd


@pytest.fixture(autouse=True)
def unknown_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> Path:
    """No key is on record; the file where an accepted one would be."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "orch" / "known_hosts"


@pytest.fixture
def inventory(server: Server, tmp_path: Path) -> Path:
    return write_inventory(tmp_path, server)


def write_inventory(folder: Path, server: Server) -> Path:
    file = folder / "inventory.yaml"
    file.write_text(
        f"nodes:\n  alpha: {{address: {ADDRESS}, port: {server.port}, identity: {server.identity}, "
        f"user: {server.spec().user}}}\n"
    )
    return file


def refusal(node: SshNode) -> NodeUnreachableError:
    with pytest.raises(NodeUnreachableError) as raised:
        node.run(["true"])
    node.close()
    return raised.value


def fingerprint_of(server: Server) -> str:
    return host_keys.fingerprint(host_keys.offered_key(ADDRESS, server.port))


def test_an_unknown_key_is_refused_with_its_fingerprint(server: Server) -> None:
    error = refusal(SshNode(server.spec()))
    assert error.reach is Reach.KEY_UNKNOWN
    assert "unknown host key" in str(error)
    assert fingerprint_of(server) in str(error)
    assert "orch trust -n alpha" in error.hint
    assert error.node == "alpha"


def test_an_accepted_key_is_let_in(server: Server, unknown_hosts: Path) -> None:
    host_keys.accept(ADDRESS, server.port, host_keys.offered_key(ADDRESS, server.port))
    node = SshNode(server.spec())
    assert node.run(["true"]).exit_code == 0
    node.close()
    assert unknown_hosts.stat().st_mode & 0o777 == 0o600


def test_accepting_keeps_what_is_there(server: Server, unknown_hosts: Path) -> None:
    unknown_hosts.parent.mkdir(parents=True)
    unknown_hosts.write_text("other ssh-ed25519 AAAA\n")
    host_keys.accept(ADDRESS, server.port, host_keys.offered_key(ADDRESS, server.port))
    assert unknown_hosts.read_text().splitlines()[0] == "other ssh-ed25519 AAAA"
    assert len(unknown_hosts.read_text().splitlines()) == 2


def test_a_key_in_the_users_own_file_is_let_in(server: Server, home: Path) -> None:
    known = home / ".ssh" / "known_hosts"
    known.parent.mkdir(mode=0o700, exist_ok=True)
    kind, value, *_ = server.host_key.public.split()
    known.write_text(f"[{ADDRESS}]:{server.port} {kind} {value}\n")
    try:
        node = SshNode(server.spec())
        assert node.run(["true"]).exit_code == 0
        node.close()
    finally:
        known.unlink()


def test_a_changed_key_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with sshd(tmp_path / "before") as before:
        old = host_keys.offered_key(ADDRESS, before.port)
        host_keys.accept(ADDRESS, before.port, old)
    with sshd(tmp_path / "after", port=before.port) as after:
        error = refusal(SshNode(after.spec()))
        assert error.reach is Reach.KEY_CHANGED
        assert "CHANGED" in str(error)
        assert host_keys.fingerprint(old) in str(error)
        assert fingerprint_of(after) in str(error)
        assert f"ssh-keygen -f {host_keys.own_file()} -R '[{ADDRESS}]:{before.port}'" in error.hint
        assert main(["trust", "-i", str(write_inventory(tmp_path, after)), "--yes"]) == 4
        assert "CHANGED" in capsys.readouterr().err
        refusal(SshNode(after.spec()))


def test_a_refused_user_key_says_how_to_bring_it(server: Server, tmp_path: Path) -> None:
    host_keys.accept(ADDRESS, server.port, host_keys.offered_key(ADDRESS, server.port))
    with sshd(tmp_path / "another") as another:
        error = refusal(SshNode(server.spec(identity=str(another.identity))))
    assert error.reach is Reach.LOGIN
    assert f"refused the key (tried {another.identity})" in str(error)
    assert error.hint.startswith("ssh-copy-id -i ")
    assert f"-p {server.port}" in error.hint


def test_a_closed_port_is_named_at_once(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    error = refusal(SshNode(server.spec(port=port)))
    assert error.reach is Reach.REFUSED
    assert f"{ADDRESS}:{port} refused the connection" in str(error)
    assert "ssh -p" in error.hint
    assert capfd.readouterr().err == ""


def test_a_port_without_ssh(server: Server) -> None:
    def greet(listening: socket.socket) -> None:
        with listening.accept()[0] as caller:
            caller.sendall(b"220 mail ready\r\n")

    with socket.create_server((ADDRESS, 0)) as listening:
        greeting = Thread(target=greet, args=(listening,))
        greeting.start()
        assert refusal(SshNode(server.spec(port=listening.getsockname()[1]))).reach is Reach.OTHER
        greeting.join()


def test_a_name_that_leads_nowhere(server: Server) -> None:
    assert refusal(SshNode(server.spec(address="host.invalid"))).reach is Reach.NO_ADDRESS


def test_a_machine_that_goes_away_is_named_without_a_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with sshd(tmp_path / "leaving") as leaving:
        host_keys.accept(ADDRESS, leaving.port, host_keys.offered_key(ADDRESS, leaving.port))
        node = SshNode(leaving.spec())
        with pytest.raises(NodeUnreachableError, match="the connection broke"):
            node.run(["sh", "-c", "kill -9 $PPID; sleep 60"], timeout_s=20)  # its parent is the session's sshd
        node.close()
    assert "Traceback" not in capfd.readouterr().err


class DropsTheFirstSession(paramiko.ServerInterface):
    """Accepts every login, hangs up at the first session asked for, and ends every later command with exit code 0."""

    def __init__(self) -> None:
        self.transports: list[paramiko.Transport] = []

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        if len(self.transports) == 1:
            self.transports[0].close()
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        def end() -> None:
            assert command_of(channel) == ["true"]
            assert channel.recv(1) == b""  # the end of stdin
            channel.send_exit_status(0)
            channel.close()

        Thread(target=end).start()
        return True


def test_a_connection_that_breaks_before_a_command_is_replaced_once(tmp_path: Path, server: Server) -> None:
    serving = DropsTheFirstSession()

    def serve(listening: socket.socket) -> None:
        for _ in range(2):
            transport = paramiko.Transport(listening.accept()[0])
            transport.add_server_key(key)
            serving.transports.append(transport)
            transport.start_server(server=serving)

    with socket.create_server((ADDRESS, 0)) as listening:
        key = paramiko.ECDSAKey.generate()
        port = listening.getsockname()[1]
        host_keys.accept(ADDRESS, port, key)
        serving_thread = Thread(target=serve, args=(listening,), daemon=True)
        serving_thread.start()
        node = SshNode(server.spec(port=port))
        assert node.run(["true"], timeout_s=20).exit_code == 0
        node.close()
        serving_thread.join(20)
    assert len(serving.transports) == 2
    for transport in serving.transports:
        transport.close()


def test_trust_shows_the_key_and_keeps_it(
    server: Server, inventory: Path, unknown_hosts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trust", "-i", str(inventory)]) == 2  # no one is there to look at it
    assert fingerprint_of(server).split()[1] in capsys.readouterr().err
    assert not unknown_hosts.exists()
    assert main(["trust", "-i", str(inventory), "--yes"]) == 0
    assert str(unknown_hosts) in capsys.readouterr().err
    node = SshNode(server.spec())
    assert node.run(["true"]).exit_code == 0
    node.close()
    assert main(["trust", "-i", str(inventory)]) == 0
    assert "known already" in capsys.readouterr().err
    assert len(unknown_hosts.read_text().splitlines()) == 1


def test_trust_names_a_machine_that_does_not_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "inventory.yaml"
    file.write_text(f"nodes:\n  alpha: {{address: {ADDRESS}, port: {free_port()}}}\n")
    assert main(["trust", "-i", str(file), "--yes"]) == 4
    assert "alpha" in capsys.readouterr().err


@pytest.fixture
def liar(tmp_path: Path) -> Iterator[SshNode]:
    """A machine whose tar gives back whatever lies in `archive`."""
    program = tmp_path / "bin" / "tar"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/archive\n")
    program.chmod(0o755)
    with sshd(tmp_path / "liar", path=str(program.parent)) as server:
        host_keys.accept(ADDRESS, server.port, host_keys.offered_key(ADDRESS, server.port))
        node = SshNode(server.spec())
        yield node
        node.close()


@pytest.mark.parametrize(
    "entries",
    [
        [("../escaped", "")],
        [("way", "{outside}"), ("way/escaped", "")],
        [("way", "../outside"), ("way/escaped", "")],
    ],
    ids=["parent", "absolute link", "relative link"],
)
def test_an_archive_cannot_leave_the_folder(liar: SshNode, tmp_path: Path, entries: list[tuple[str, str]]) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    write_archive(tmp_path / "archive", [tuple(word.format(outside=outside) for word in entry) for entry in entries])
    with pytest.raises(CommandFailedError, match="refused") as raised:
        liar.get(str(tmp_path), tmp_path / "target")
    assert raised.value.node == "alpha"
    assert not (tmp_path / "escaped").exists()
    assert list(outside.iterdir()) == []


def test_an_absolute_name_stays_in_the_folder(liar: SshNode, tmp_path: Path) -> None:
    write_archive(tmp_path / "archive", [(f"{tmp_path}/escaped", "")])
    liar.get(str(tmp_path), tmp_path / "target")
    assert not (tmp_path / "escaped").exists()
    assert [path.name for path in (tmp_path / "target").rglob("*") if path.is_file()] == ["escaped"]


def test_an_archive_that_is_none_is_an_error(liar: SshNode, tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(b"no archive" * 100_000)
    with pytest.raises(CommandFailedError, match="refused"):
        liar.get(str(tmp_path), tmp_path / "target")


def test_an_archive_without_the_file_asked_for_is_an_error(liar: SshNode, tmp_path: Path) -> None:
    (tmp_path / "wanted").write_text("")
    write_archive(tmp_path / "archive", [("another", "")])
    with pytest.raises(CommandFailedError, match="wanted"):
        liar.get(str(tmp_path / "wanted"), tmp_path / "target")


def write_archive(file: Path, entries: list[tuple[str, ...]]) -> None:
    with tarfile.open(file, "w") as archive:
        for name, link in entries:
            info = tarfile.TarInfo(name)
            if link:
                info.type, info.linkname = tarfile.SYMTYPE, link
            else:
                info.size = 4
            archive.addfile(info, io.BytesIO(b"evil") if not link else None)


@pytest.mark.parametrize("error", [EOFError(), BrokenPipeError(), paramiko.SSHException("closed")])
def test_a_connection_that_ends_while_stdin_is_sent_raises_nothing_in_that_thread(error: Exception) -> None:
    """The thread that reads the output reports it."""

    class Cut:
        sent, lock = b"", Lock()

        def sendall(self, chunk: bytes) -> None:
            self.sent += chunk

        def _send_eof(self) -> None:
            raise error

    channel, ended = Cut(), _Ended(errors=CommandOutput(["cat"], "alpha"))
    ended.preface.strip(b"orch-sh-ready\n")
    _feed(channel, ["cat"], [b"one", b"two"], ended)  # type: ignore[arg-type]  # of a channel, what _feed calls
    assert channel.sent == FIRST + b"#cat\nonetwo"
