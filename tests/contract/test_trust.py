"""`orch trust` against servers of this test: a known machine, one that changed, and ports without SSH."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Thread

import paramiko
import pytest

from orchestrator.cli import main
from orchestrator.cli.consent import answering_by
from orchestrator.nodes import host_keys
from orchestrator.nodes.host_keys import fingerprint, known_keys
from tests.contract.sshd import ADDRESS, free_port

ECDSA, OTHER_ECDSA = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
RSA = paramiko.RSAKey.generate(2048)


@contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port of this computer; each connection is answered so."""
    with socket.create_server((ADDRESS, 0)) as listening:

        def serve() -> None:
            with suppress(OSError):  # closed: the test is over
                while True:
                    connection = listening.accept()[0]
                    with suppress(OSError):  # a client that closes at once ends its own connection only
                        answer(connection)

        thread = Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield int(listening.getsockname()[1])
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def machine(*keys: paramiko.PKey) -> Callable[[socket.socket], None]:
    """An SSH server with these host keys, which accepts no login."""

    def answer(connection: socket.socket) -> None:
        transport = paramiko.Transport(connection)
        for key in keys:
            transport.add_server_key(key)
        with suppress(paramiko.SSHException, EOFError):
            transport.start_server(server=paramiko.ServerInterface())

    return answer


def saying(words: bytes) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        with connection:
            connection.sendall(words)
            connection.shutdown(socket.SHUT_WR)
            with suppress(OSError):
                connection.recv(4096)

    return answer


@pytest.fixture
def trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """`orch trust` of nodes on these ports, for a user who knows no host yet; exit code and what was said."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / ".ssh").mkdir(mode=0o700)
    inventory = tmp_path / "inventory.yaml"

    def run(*ports: int, says: bool | None = True, words: tuple[str, ...] = ()) -> tuple[int, str]:
        nodes = (f"  n{n}: {{address: {ADDRESS}, port: {port}, user: ana}}\n" for n, port in enumerate(ports))
        inventory.write_text("nodes:\n" + "".join(nodes))
        with answering_by(None if says is None else lambda _question, _default: bool(says)):
            code = main(["trust", "-i", str(inventory), *words])
        return code, capsys.readouterr().err

    return run


def recorded(port: int, key: paramiko.PKey) -> str:
    return f"[{ADDRESS}]:{port} {key.get_name()} {key.get_base64()}"


Trust = Callable[..., tuple[int, str]]


def test_a_key_is_shown_with_where_to_compare_it_and_saved(trust: Trust) -> None:
    with serving(machine(ECDSA)) as port:
        code, output = trust(port, says=False)
        assert (code, known_keys(ADDRESS, port)) == (0, ())
        row = ["n0", f"{ADDRESS}:{port}", ECDSA.get_name(), ECDSA.fingerprint]
        assert row in [line.split() for line in output.splitlines()]
        shows = "compare with what this shows on the machine itself: ssh-keygen -lf /etc/ssh/ssh_host_ecdsa_key.pub\n"
        assert shows in output
        assert trust(port)[0] == 0
        assert known_keys(ADDRESS, port) == (ECDSA,)
        assert trust(port, says=None) == (0, "host key known already: n0\n")


@pytest.mark.parametrize("shown", [OTHER_ECDSA, RSA], ids=["same type", "another type"])
def test_another_key_of_a_known_machine_is_refused_whatever_its_type(
    trust: Trust, tmp_path: Path, shown: paramiko.PKey
) -> None:
    with serving(machine(shown)) as port:
        user, own = tmp_path / ".ssh" / "known_hosts", host_keys.own_file()
        own.parent.mkdir(parents=True)
        for file in (user, own):
            file.write_text(recorded(port, ECDSA) + "\n")
        code, output = trust(port, words=("--yes",))
        assert (code, known_keys(ADDRESS, port)) == (4, (ECDSA,))
        assert f"CHANGED: it was {fingerprint(ECDSA)}, it now shows {fingerprint(shown)}" in output
        for file in (user, own):  # the line that fixes it names the file and the port
            assert f"ssh-keygen -f {file} -R '[{ADDRESS}]:{port}'" in output


def test_a_machine_with_several_keys_is_known_by_any(trust: Trust, tmp_path: Path) -> None:
    """The type that is on record is asked for first, as OpenSSH does."""
    for known in (ECDSA, RSA):
        with serving(machine(ECDSA, RSA)) as port:
            (tmp_path / ".ssh" / "known_hosts").write_text(recorded(port, known) + "\n")
            assert trust(port, says=None) == (0, "host key known already: n0\n")


@pytest.mark.parametrize("words", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\0" * 300, b"SSH-2.0-x\r\n"])
def test_what_is_no_ssh_server_is_named_as_such(trust: Trust, words: bytes) -> None:
    with serving(saying(words)) as port:
        code, output = trust(port, words=("--yes",))
    assert code == 4
    assert f"error: n0: ana@{ADDRESS}:{port} answers, and not as an SSH server does" in output
    assert "Traceback" not in output


def test_each_node_has_its_outcome_and_a_silent_one_ends_no_other(trust: Trust) -> None:
    closed = free_port()
    with ExitStack() as open_:
        first, last = (open_.enter_context(serving(machine(key))) for key in (ECDSA, RSA))
        code, output = trust(first, closed, last, words=("--yes",))
        assert code == 5
        assert (known_keys(ADDRESS, first), known_keys(ADDRESS, last)) == ((ECDSA,), (RSA,))
    assert f"error: n1: ana@{ADDRESS}:{closed} refused the connection" in output
    assert "error: 1 of 3 nodes did not answer or were not trusted\n" in output
    assert trust(closed, free_port())[0] == 4


def test_a_last_line_without_its_end_stays_separate(trust: Trust) -> None:
    own = host_keys.own_file()
    own.parent.mkdir(parents=True)
    own.write_text(f"elsewhere {ECDSA.get_name()} {ECDSA.get_base64()}")
    with serving(machine(RSA)) as port:
        assert trust(port)[0] == 0
        assert known_keys(ADDRESS, port) == (RSA,)
    assert known_keys("elsewhere", 22) == (ECDSA,)
    assert len(own.read_text().splitlines()) == 2
