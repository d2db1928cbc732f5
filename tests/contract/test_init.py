"""`orch init` against SSH servers of this test that accept a password, until they hold the key."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from threading import Thread
from types import MappingProxyType

import paramiko
import pytest

from orchestrator.cli import main
from orchestrator.cli.consent import answering_by, writing_by
from orchestrator.cli.context import load_inventory
from orchestrator.cli.first_contact import is_near
from orchestrator.fleet.readiness.find_machines import announced_machines, find_machines, subnet
from orchestrator.nodes.first_login import authorize
from orchestrator.nodes.local import LocalNode
from orchestrator.specs.errors import UsageError
from orchestrator.specs.inventory_files.inventory_file import parse_inventory
from tests.contract.sshd import ADDRESS, command_of, free_port, sshd
from tests.contract.test_trust import saying, serving

RIGHT = "correct horse"
HOST_KEY = paramiko.ECDSAKey.generate()


@dataclass
class Machine:
    """A machine that lets its password in, and the keys that were brought to it."""

    accepted: str = RIGHT
    keys: list[str] = field(default_factory=list)
    tries: list[str] = field(default_factory=list)
    transports: list[paramiko.Transport] = field(default_factory=list)

    def answer(self, connection: socket.socket) -> None:
        transport = paramiko.Transport(connection)
        self.transports.append(transport)
        transport.add_server_key(HOST_KEY)
        with suppress(paramiko.SSHException, EOFError):
            transport.start_server(server=_Server(self))


class _Server(paramiko.ServerInterface):
    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def get_allowed_auths(self, username: str) -> str:
        return "password,publickey"

    def check_auth_password(self, username: str, password: str) -> int:
        self._machine.tries.append(password)
        return paramiko.AUTH_SUCCESSFUL if password == self._machine.accepted else paramiko.AUTH_FAILED

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        known = any(key.get_base64() in line for line in self._machine.keys)
        return paramiko.AUTH_SUCCESSFUL if known else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        def run() -> None:
            with suppress(OSError, EOFError):  # EOFError: the client has hung up
                if brings := "authorized_keys" in " ".join(command_of(channel)):
                    with channel.makefile("r") as sent:
                        self._machine.keys.append(sent.readline().strip())
                channel.send_exit_status(0 if brings else 127)
                channel.close()

        Thread(target=run, daemon=True).start()
        return True


Init = Callable[..., tuple[int, str]]


@pytest.fixture
def init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Init:
    """`orch init` in an empty folder, for a user without a key; agrees to all but `refusing`, and types `typed`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.chdir(tmp_path)

    def run(
        *words: str,
        typed: tuple[str, ...] = (),
        refusing: str = "nothing",
        terminal: bool = True,
        answers: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[int, str]:
        left, questions = list(typed), list[str]()

        def person(question: str, default: bool) -> bool | str:
            questions.append(f"{question} [{'y' if default else 'n'}]")
            return next((text for part, text in answers.items() if part in question), refusing not in question)

        with answering_by(person if terminal else None), writing_by(lambda question: left.pop(0)):
            code = main(["init", *words])
        assert not left, left
        output = capsys.readouterr()
        return code, output.out + output.err + "\n".join(questions)

    return run


@contextmanager
def machines(*all_of_them: Machine) -> Iterator[list[str]]:
    with ExitStack() as open_:
        yield [f"ana@{ADDRESS}:{open_.enter_context(serving(one.answer))}" for one in all_of_them]
    for transport in [transport for one in all_of_them for transport in one.transports]:
        transport.close()
        transport.join(10)


def test_from_a_password_to_an_inventory_and_again(init: Init, tmp_path: Path) -> None:
    first, second = Machine(), Machine()
    with machines(first, second) as words:
        code, output = init(*words, typed=(RIGHT,))
        assert code == 0, output
        public = (tmp_path / ".ssh/id_ed25519.pub").read_text().strip()
        assert (first.keys, second.keys) == ([public], [public])
        for question in ("and copy its public key to these 2 machines?", "Are these their keys?"):
            assert output.count(question) == 1
        assert f"without your key: node1 ({words[0]}), node2 ({words[1]})\n" in output
        assert "Copy your public key" not in output  # the same question offers the new one
        shown = [line.split() for line in output.splitlines() if "SHA256:" in line]
        assert [line[0] for line in shown] == ["node1", "node2"]
        assert {line[-1] for line in shown} == {HOST_KEY.fingerprint}
        assert "wrote inventory.yaml: 2 nodes" in output
        assert RIGHT not in output + "".join(file.read_text() for file in tmp_path.rglob("*") if file.is_file())
        assert "next: orch doctor" in output  # nothing but authorized_keys is served there
        code, output = init(*words)
        assert code == 0, output
        assert "host key known already: node1, node2" in output
        assert "your key is accepted already: node1, node2" in output
        assert "inventory.yaml is up to date" in output
        assert "public key to" not in output
    assert (len(first.keys), len(second.keys)) == (1, 1)


def test_a_stranger_is_named_and_left_out_after_three_passwords(init: Init, tmp_path: Path) -> None:
    mine, stranger = Machine(), Machine("other")
    with machines(mine, stranger) as words:
        code, output = init(*words, typed=(RIGHT, "a", "b"))
    assert code == 5, output
    assert "node2: the password of the last machine is refused" in output
    assert "refused 3 passwords; nothing was changed there" in output
    assert "Leave out node2 and write the others?" in output
    assert stranger.keys == []
    assert "node2" not in (tmp_path / "inventory.yaml").read_text()


def test_one_question_can_be_answered_for_each_machine(init: Init) -> None:
    first, second, third = Machine(), Machine(), Machine()
    with machines(first, second, third) as words:
        code, output = init(*words, typed=(RIGHT,), answers={"Are these": "!node3", "copy its": "node1"})
        assert code == 5, output
        assert "not accepted: node3" in output
        assert "node2: left as it is" in output
        assert "Leave out node2, node3 and write the others?" in output
        assert [len(one.keys) for one in (first, second, third)] == [1, 0, 0]
        assert [len(one.tries) for one in (first, second, third)] == [1, 0, 0]


def test_a_machine_with_another_password_is_asked_about_on_its_own(init: Init) -> None:
    first, second, third = Machine(), Machine("its own"), Machine("its own")
    with machines(first, second, third) as words:
        code, output = init(*words, typed=(RIGHT, "its own"))
    assert code == 0, output
    assert [one.tries for one in (first, second, third)] == [[RIGHT], [RIGHT, "its own"], ["its own"]]


def test_a_machine_that_was_found_gets_no_password_of_another(
    init: Init, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, stranger = Machine(), Machine("other")
    with machines(mine, stranger) as words:
        place = words[1].removeprefix("ana@")
        looking = "orchestrator.fleet.readiness.find_machines.find_machines"
        monkeypatch.setattr(looking, lambda _network: (place,))
        scan = (words[0], "--scan", "127.0.0.0/30", "--user", "ana")
        code, output = init(*scan, typed=(RIGHT, "a", "b", "c"))
        assert (code, mine.tries, stranger.tries) == (5, [RIGHT], ["a", "b", "c"]), output
        assert "asked for each, as they were not typed here and their host keys are new: node2\n" in output
        mine.keys.clear()
        stranger.tries.clear()
        code, output = init(*scan, "--force", typed=(RIGHT, "b", "c"))  # its key is known now: the user has accepted it
        assert (code, stranger.tries) == (5, [RIGHT, "b", "c"]), output


def test_nor_does_one_that_announces_itself(init: Init, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Machine(), Machine()
    with machines(first, second) as words:
        found = {word.removeprefix("ana@"): "here" for word in words}
        announced = "orchestrator.fleet.readiness.find_machines.announced_machines"
        monkeypatch.setattr(announced, lambda: found)
        code, output = init("--user", "ana", typed=(RIGHT, RIGHT))
    assert (code, first.tries, second.tries) == (0, [RIGHT], [RIGHT]), output


def test_the_machines_of_an_inventory_get_the_key_and_it_is_left_as_it_is(init: Init, tmp_path: Path) -> None:
    first, second = Machine(), Machine("other")
    with machines(first, second) as words:
        ports = [word.rpartition(":")[2] for word in words]
        hosts = "".join(f"n{port} ansible_host={ADDRESS} ansible_port={port} ansible_user=ana\n" for port in ports)
        (tmp_path / "hosts.ini").write_text(f"[lab]\n{hosts}")
        code, output = init("-i", "hosts.ini", "--ask-each", typed=(RIGHT, "a", "b", "c"))
        assert code == 5, output
        assert second.tries == ["a", "b", "c"]
        assert f"without your key: n{ports[1]}; hosts.ini was left as it is" in output
        assert f"next: orch doctor -i hosts.ini -n n{ports[0]}" in output
        assert not (tmp_path / "inventory.yaml").exists()
        second.accepted = RIGHT
        code, output = init("-i", "hosts.ini", typed=(RIGHT,))
        assert (code, len(first.keys), len(second.keys)) == (0, 1, 1), output
        assert init("-i", "hosts.ini", "10.0.0.1")[0] == 2


def hosts(words: Sequence[str]) -> None:
    """Write hosts.ini with these machines."""
    ports = [word.rpartition(":")[2] for word in words]
    lines = [
        f"n{number} ansible_host={ADDRESS} ansible_port={port} ansible_user=ana" for number, port in enumerate(ports)
    ]
    Path("hosts.ini").write_text("[lab]\n" + "\n".join(lines) + "\n")


def test_machines_of_a_file_share_a_password_once_all_of_them_were_seen(init: Init) -> None:
    first, second, third = Machine(), Machine(), Machine()
    with machines(first, second, third) as words:
        hosts(words)
        code, output = init("-i", "hosts.ini", typed=(RIGHT,), answers={"with one password": "n0,n2"})
        assert (code, [len(one.tries) for one in (first, second, third)]) == (5, [1, 0, 1]), output


def test_the_list_of_those_machines_names_their_addresses(init: Init) -> None:
    first, second = Machine(), Machine()
    with machines(first, second) as words:
        hosts(words)
        code, output = init("-i", "hosts.ini", typed=(RIGHT,))
    assert (code, first.tries, second.tries) == (0, [RIGHT], [RIGHT]), output
    assert f"without your key: n0 ({words[0]}), n1 ({words[1]})\n" in output
    assert "host keys are new: each of them gets the password that you type (--ask-each: one for each)\n" in output
    assert "to these 2 machines, with one password? [n]" in output


@pytest.mark.parametrize(("address", "shares"), [("192.168.1.11", True), ("10.0.0.1", True), ("8.8.8.8", False)])
def test_only_a_machine_of_a_private_network_may_share_a_password_by_consent(address: str, shares: bool) -> None:
    """A cloned file may name any machine of the internet."""
    (spec,) = parse_inventory(f"nodes: {{n0: {{address: {address}}}}}", filename="hosts").nodes
    assert is_near(spec) is shares


def test_a_changed_key_leads_back_to_this_command(init: Init, tmp_path: Path) -> None:
    with machines(Machine()) as words:
        port = words[0].rpartition(":")[2]
        (tmp_path / "config/orch").mkdir(parents=True)
        other = paramiko.ECDSAKey.generate()
        line = f"[{ADDRESS}]:{port} {other.get_name()} {other.get_base64()}\n"
        (tmp_path / "config/orch/known_hosts").write_text(line)
        code, output = init(*words)
    assert code == 4
    assert f"-R '[{ADDRESS}]:{port}'; then: this command\n" in output


def test_jump_hosts_come_first_and_need_not_be_named(init: Init, tmp_path: Path) -> None:
    behind = Machine()
    with machines(behind) as (word,), sshd(tmp_path / "sshd") as hop:
        (tmp_path / ".ssh").mkdir(mode=0o700)
        (tmp_path / ".ssh/config").write_text(
            f"Host hop\n  HostName {ADDRESS}\n  Port {hop.port}\n  User {hop.spec().user}\n"
            f"  IdentityFile {hop.identity}\nHost far\n  HostName {ADDRESS}\n  Port {word.rpartition(':')[2]}\n"
            f"  User ana\n  IdentityFile {hop.identity}\n  ProxyJump hop\n"
        )
        code, output = init("far", refusing="Is that its key?")
        assert (code, behind.tries) == (4, []), output
        assert f"far: it is reached through {ADDRESS}:{hop.port}, which does not let your key in" in output
        code, output = init("far", typed=(RIGHT,))
        assert code == 0, output
        assert output.count("Is that its key?") == 2
        assert "jump hosts on the way, which get your key first: hop\n" in output
        assert output.index("your key is accepted already: hop") < output.index("key copied, and accepted: far")
    assert len(behind.keys) == 1
    assert "hop" not in (tmp_path / "inventory.yaml").read_text()


def test_nothing_is_written_where_no_machine_is_left(init: Init, tmp_path: Path) -> None:
    stranger = Machine("other")
    with machines(stranger) as words, serving(saying(b"HTTP/1.1 400\r\n")) as web:
        code, output = init(
            *words, f"{ADDRESS}:{web}", f"{ADDRESS}:{free_port()}", "--user", "ana", typed=("a", "b", "c")
        )
    assert code == 4, output
    assert stranger.tries == ["a", "b", "c"]
    assert "answers, and not as an SSH server does" in output
    assert not (tmp_path / "inventory.yaml").exists()


@pytest.mark.parametrize("refusing", ["Is that its key", "You have no SSH key"])
def test_nothing_is_done_without_consent(init: Init, tmp_path: Path, refusing: str) -> None:
    machine = Machine()
    with machines(machine) as words:
        code, output = init(*words, refusing=refusing)
    assert code == 4, output
    assert (machine.keys, machine.tries) == ([], [])
    assert not (tmp_path / "inventory.yaml").exists()
    assert not (tmp_path / ".ssh").exists()


def test_this_computer_alone_needs_neither_ssh_nor_a_key(init: Init, tmp_path: Path) -> None:
    code, output = init("--local", "--yes", terminal=False)
    assert code == 0, output
    (node,) = load_inventory(tmp_path / "inventory.yaml").inventory.nodes
    assert (node.name, node.address, node.connection) == ("here", "127.0.0.1", "local")
    assert "next: orch " in output
    assert not (tmp_path / ".ssh").exists()
    for words in (["10.0.0.1"], ["--scan", "10.0.0.0/30"], ["--user", "ana"]):
        assert init("--local", *words)[0] == 2


def test_an_inventory_is_replaced_on_consent_only(init: Init, tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text("mine")
    machine = Machine()
    with machines(machine) as words:
        assert init(*words, typed=(RIGHT,), refusing="Replace it?")[0] == 130
        assert init(*words, "--yes")[0] == 2
        assert (tmp_path / "inventory.yaml").read_text() == "mine"
        assert init(*words)[0] == 0
    assert "node1" in (tmp_path / "inventory.yaml").read_text()


def test_without_a_terminal_nothing_is_tried(init: Init, tmp_path: Path) -> None:
    machine = Machine()
    with machines(machine) as words:
        assert init(*words, terminal=False)[0] == 2
        assert machine.tries == []
        code, output = init(*words, "--yes", terminal=False)
    assert code == 4
    assert "ssh-copy-id" in output
    assert machine.tries == []


@pytest.mark.parametrize(
    "word", ["a b;c", "-oProxyCommand=x", "10.0.0.1:99999999", "fe80::1", "1.2.3.400", "node[3-1]"]
)
def test_words_that_are_no_machine(init: Init, word: str) -> None:
    code, output = init("--user", "ana", "--", word)
    assert code in (2, 3), output


def test_the_key_is_appended_once_with_the_right_modes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / ".ssh/authorized_keys"
    key = "ssh-ed25519 AAAA ana@$(touch x)'\"; touch y"
    for _ in range(2):
        authorize(LocalNode(), key)
    assert file.read_text() == f"{key}\n"
    file.write_text("ssh-rsa BBBB other")  # without an end of line
    authorize(LocalNode(), key)
    assert file.read_text() == f"ssh-rsa BBBB other\n{key}\n"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert sorted(one.name for one in tmp_path.iterdir()) == [".ssh"]


def test_a_scan_finds_ssh_servers_alone(init: Init) -> None:
    with machines(Machine()) as words:
        port = int(words[0].rpartition(":")[2])
        assert ADDRESS in find_machines(IPv4Network("127.0.0.0/29"), port=port)
    with serving(saying(b"HTTP/1.1 400\r\n")) as port:
        assert find_machines(IPv4Network("127.0.0.0/29"), port=port) == ()


ANNOUNCED = r"""+;eth0;IPv4;alpha;_ssh._tcp;local
=;eth0;IPv4;beta;_ssh._tcp;local;beta.local;192.168.1.12;2222;
=;eth0;IPv4;alpha;_ssh._tcp;local;alpha.local;192.168.1.11;22;"a;b"
=;wlan0;IPv4;alpha;_ssh._tcp;local;alpha.local;192.168.1.11;22;
=;eth0;IPv6;alpha;_ssh._tcp;local;alpha.local;fe80::1;22;
=;lo;IPv4;here;_ssh._tcp;local;here.local;127.0.0.1;22;
=;eth0;IPv4;far;_ssh._tcp;local;far.local;8.8.8.8;22;
=;eth0;IPv4;e\059vil;_ssh._tcp;local;$(id).local;192.168.1.13;22;
=;eth0;IPv4;evil;_ssh._tcp;local;evil.local;-oProxyCommand=id;22;
=;eth0;IPv4;evil;_ssh._tcp;local;evil.local;192.168.1.14;0;
=;eth0;IPv4;evil
"""


def avahi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a program in place of avahi-browse."""
    program = folder / "avahi-browse"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_machines_that_announce_ssh_are_offered(init: Init, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "announced").write_text(ANNOUNCED)
    avahi(tmp_path, monkeypatch, f"exec cat {tmp_path}/announced")
    assert announced_machines() == {"192.168.1.11": "alpha.local", "192.168.1.12:2222": "beta.local"}
    machine = Machine()
    with machines(machine) as words:
        code, output = init(typed=(words[0], RIGHT), refusing="Use them?")
    assert "announced by mDNS: 192.168.1.11 (alpha.local), 192.168.1.12:2222 (beta.local)" in output
    assert (code, len(machine.keys)) == (0, 1), output


@pytest.mark.parametrize(
    "script", ["echo Daemon not running >&2; exit 1", "exec sleep 60", "exec head -c 9999 /dev/urandom"]
)
def test_without_an_answer_by_mdns_the_addresses_are_asked_for(
    init: Init, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setattr("orchestrator.fleet.readiness.find_machines.BROWSE_S", 0.5)
    avahi(tmp_path, monkeypatch, script)
    machine = Machine()
    with machines(machine) as words:
        code, output = init(typed=(words[0], RIGHT))
    assert (code, len(machine.keys)) == (0, 1), output
    assert "Use them?" not in output


@pytest.mark.parametrize("text", ["8.8.8.0/24", "10.0.0.0/8", "fe80::/64", "x"])
def test_only_small_private_networks_are_scanned(text: str) -> None:
    with pytest.raises(UsageError, match="--scan"):
        subnet(text)
