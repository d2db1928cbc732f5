"""The user's `~/.ssh/config` at run time: a node whose address is an alias connects as `ssh ALIAS` would."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from orchestrator.cli import main
from orchestrator.nodes import host_keys
from orchestrator.nodes.proxy_command import expanded
from orchestrator.nodes.ssh import SshNode
from orchestrator.nodes.ssh_config import SshSettings, settings_for
from orchestrator.nodes.ssh_connection import shown_key
from orchestrator.specs.errors import ConfigError, NodeUnreachableError
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.reach import Reach
from tests.contract.sshd import ADDRESS, Server, free_port, sshd


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A machine whose host key is accepted, and a home of this test's own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "home" / ".ssh").mkdir(parents=True, mode=0o700)
    with sshd(tmp_path / "sshd") as server:
        host_keys.accept(ADDRESS, server.port, host_keys.offered_key(ADDRESS, server.port))
        yield server


def configure(text: str, file: str = "config") -> None:
    Path("~/.ssh", file).expanduser().write_text(text)


def reached(server: Server, *, then: str = "") -> str:
    """The block's lines that lead to the server, and one more."""
    lines = (f"HostName {ADDRESS}", f"Port {server.port}", f"User {server.spec().user}",
             f"IdentityFile {server.identity}", then)  # fmt: skip
    return "".join(f"  {line}\n" for line in lines)


def greets(spec: NodeSpec) -> str:
    node = SshNode(spec)
    try:
        assert node.address == ADDRESS
        return node.run(["echo", "hello"]).check("greeting").strip()
    finally:
        node.close()


ALIAS = NodeSpec(name="alpha", address="lab1")


def test_an_alias_has_the_address_port_user_and_key_of_its_host(own: Server) -> None:
    configure(f"Host lab1\n{reached(own)}")
    assert greets(ALIAS) == "hello"


def test_include_and_match_are_followed(own: Server, tmp_path: Path) -> None:
    included = tmp_path / "included"
    included.write_text(f"Match originalhost lab1 exec true\n{reached(own)}")
    configure(f"Include {included}\nHost *\n  Port 1\n  User stranger\n")
    if shutil.which("ssh"):
        assert greets(ALIAS) == "hello"


def test_the_inventory_wins(own: Server) -> None:
    configure(
        f"Host lab1\n  HostName {ADDRESS}\n  Port 1\n  User stranger\n  IdentityFile /nowhere\n  ProxyJump nowhere\n"
    )
    given = {"port": own.port, "user": own.spec().user, "identity": str(own.identity)}
    with_jump = f"Host hop\n{reached(own)}"
    with Path("~/.ssh/config").expanduser().open("a") as file:
        file.write(with_jump)
    assert greets(NodeSpec.model_validate({"name": "alpha", "address": "lab1", "jump": "hop", **given})) == "hello"


def test_port_22_of_the_inventory_wins_too(own: Server) -> None:
    configure(f"Host lab1\n{reached(own)}")
    assert settings_for("lab1", None, 22, None).port == 22


@pytest.mark.parametrize("way", ["ProxyJump hop", "ProxyJump hop,hop2", "ProxyCommand ssh -q -W %h:%p hop"])
def test_a_jump_host_of_the_configuration_is_gone_through(own: Server, way: str) -> None:
    configure(f"Host lab1\n{reached(own, then=way)}Host hop hop2\n{reached(own)}")
    assert greets(ALIAS) == "hello"


def test_the_host_key_of_a_machine_behind_a_jump_host_is_shown_through_it(own: Server, tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text("nodes: {alpha: {address: lab1}}\n")
    with sshd(tmp_path / "behind") as behind:
        configure(f"Host lab1\n{reached(behind, then='ProxyJump hop')}Host hop\n{reached(own)}")
        with pytest.raises(NodeUnreachableError, match="unknown host key"):
            greets(ALIAS)
        assert main(["trust", "-i", str(inventory), "--yes"]) == 0
        assert greets(ALIAS) == "hello"


def test_an_error_of_a_jump_host_names_the_jump_host(own: Server, tmp_path: Path) -> None:
    before = open_transports()
    closed = free_port()
    target = f"  HostName {ADDRESS}\n  Port {closed}\n  User ana\n"
    configure(
        f"Host lab1\n{target}  ProxyJump hop1\nHost hop1\n{reached(own)}"
        f"Host lab2\n{target}  ProxyJump hop2\nHost hop2\n{target}"
    )
    with pytest.raises(NodeUnreachableError, match=r"from its jump host hop1 \(Connect failed\)") as raised:
        SshNode(ALIAS).open()
    assert (
        raised.value.hint
        == f"is it on, and does that host allow it (AllowTcpForwarding)? Try: ssh -J hop1 -p {closed} ana@{ADDRESS}"
    )
    assert open_transports() <= before
    with pytest.raises(NodeUnreachableError, match=f"jump host on the way to it: ana@{ADDRESS}:{closed} refused"):
        SshNode(NodeSpec(name="alpha", address="lab2")).open()
    with sshd(tmp_path / "hop") as unknown:
        configure(f"Host lab3\n{target}  ProxyJump hop3\nHost hop3\n{reached(unknown)}")
        with pytest.raises(NodeUnreachableError, match="unknown host key") as raised:
            SshNode(NodeSpec(name="alpha", address="lab3")).open()
        assert open_transports() <= before
    user = unknown.spec().user
    assert raised.value.hint.endswith(f", then: ssh -p {unknown.port} {user}@hop3 true")


def open_transports() -> set[paramiko.Transport]:
    """SSH connections of this process that have not ended."""
    return {one for one in threading.enumerate() if isinstance(one, paramiko.Transport) and one.is_active()}


def test_jump_hosts_in_a_circle_are_refused(own: Server) -> None:
    configure(f"Host lab1\n{reached(own, then='ProxyJump hop')}Host hop\n{reached(own, then='ProxyJump lab1')}")
    with pytest.raises(NodeUnreachableError, match="more than 8 jump hosts"):
        SshNode(ALIAS).open()


RELAY = """\
import os, select, socket, sys
sys.stderr.write(" ".join(sys.argv[1:]) + "\\n")
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as there:
    while True:
        for one in select.select([0, there], [], [])[0]:
            data = there.recv(65536) if one is there else os.read(0, 65536)
            if not data:
                sys.exit()
            os.write(1, data) if one is there else there.sendall(data)
"""


def relay(folder: Path) -> str:
    """A ProxyCommand that leads to the address and port that it is given, and writes its process id."""
    file = folder / "relay.py"
    file.write_text(f"import os\nopen({str(folder / 'pid')!r}, 'w').write(str(os.getpid()))\n{RELAY}")
    return f"{sys.executable} {file}"


def test_a_proxy_command_is_run_as_ssh_runs_it_and_ends_with_the_connection(own: Server, tmp_path: Path) -> None:
    configure(f"Host lab1\n{reached(own, then=f'ProxyCommand {relay(tmp_path)} %h %p %r %n 100%%')}")
    assert greets(ALIAS) == "hello"
    number = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)
    _, _, key = shown_key(ALIAS, timeout_s=5)
    assert key.get_base64() in own.host_key.public


def test_the_first_jump_host_may_have_a_proxy_command(own: Server, tmp_path: Path) -> None:
    hop = reached(own, then=f"ProxyCommand {relay(tmp_path)} %h %p")
    configure(f"Host lab1\n{reached(own, then='ProxyJump hop')}Host hop\n{hop}")
    assert greets(ALIAS) == "hello"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("sh -c 'echo log in first >&2; exit 3'", r"log in first \(exit code 3\)"),
        ("/nowhere/cloudflared access ssh", r"127\)"),
        ("echo this is no SSH server", "exit code 0"),
    ],
)
def test_a_proxy_command_that_fails_says_why(own: Server, command: str, message: str) -> None:
    configure(f"Host lab1\n{reached(own, then=f'ProxyCommand {command}')}")
    with pytest.raises(NodeUnreachableError, match=message) as raised:
        SshNode(ALIAS).open()
    assert raised.value.reach is Reach.PROXY_COMMAND
    with pytest.raises(NodeUnreachableError, match=message):
        shown_key(ALIAS, timeout_s=5)


@pytest.mark.parametrize("line", ["ProxyCommand nc %h %x", "ProxyCommand nc %h %p\n  ProxyUseFdpass yes"])
def test_a_proxy_command_that_only_ssh_could_run_is_refused(own: Server, line: str) -> None:
    configure(f"Host lab1\n{reached(own, then=line)}")
    with pytest.raises(ConfigError, match=r"ProxyCommand|ProxyUseFdpass"):
        settings_for("lab1", None, None, None)


def test_no_value_reaches_the_shell_of_a_proxy_command_but_as_a_word() -> None:
    assert expanded("nc %h %p # %%", {"h": "lab-1.lan", "p": "22"}) == "nc lab-1.lan 22 # %"
    for value in ("a;id", "$(id)", "a b", "-oX", "`id`", "", "a\nb"):
        with pytest.raises(ConfigError, match="is not run with"):
            expanded("nc %h", {"h": value})


def test_a_mistake_in_the_configuration_is_reported_with_its_line(own: Server) -> None:
    configure("Host lab1\n  Prot 22\n")
    with pytest.raises(NodeUnreachableError, match=r"line 2: Bad configuration option: prot"):
        SshNode(ALIAS).open()


@pytest.mark.parametrize("line", ["HostName -oProxyCommand=x", "HostName a;b", "HostName ::1"])
def test_values_are_data(own: Server, line: str) -> None:
    configure(f"Host lab1\n  {line}\n")
    with pytest.raises(ConfigError, match="expected an IPv4 address or a host name"):
        settings_for("lab1", None, None, None)


def test_without_the_ssh_program_hosts_are_read_here(monkeypatch: pytest.MonkeyPatch, own: Server) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    configure(f"Host lab1\n{reached(own)}")
    assert settings_for("lab1", None, None, None) == SshSettings(
        asked="lab1",
        host=ADDRESS,
        user=own.spec().user or "",
        port=own.port,
        identities=(str(own.identity),),
        key_names=(ADDRESS,),
    )
    assert settings_for("other", "ana", None, None) == SshSettings(
        asked="other", host="other", user="ana", port=22, key_names=("other",)
    )


def test_a_key_that_is_on_record_under_the_name_counts(own: Server) -> None:
    """ssh keeps a host's key under its name or HostKeyAlias; orch connects to the address."""
    configure(f"Host lab1\n{reached(own, then='HostKeyAlias the-lab')}")
    own_file = host_keys.own_file()
    saved = own_file.read_text()
    own_file.write_text(saved.replace(ADDRESS, "the-lab"))
    assert greets(ALIAS) == "hello"
    own_file.write_text("")
    with pytest.raises(NodeUnreachableError, match="unknown host key"):
        SshNode(ALIAS).open()


def test_trust_asks_the_machine_behind_the_alias(
    own: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(f"Host lab1\n{reached(own, then='HostKeyAlias the-lab')}")
    host_keys.own_file().write_text("")
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text("nodes:\n  alpha: {address: lab1}\n")
    assert main(["trust", "-i", str(inventory), "--yes"]) == 0
    assert ["alpha", f"{ADDRESS}:{own.port}"] in [line.split()[:2] for line in capsys.readouterr().err.splitlines()]
    assert f"[{ADDRESS}]:{own.port},[the-lab]:{own.port} " in host_keys.own_file().read_text()
    assert greets(ALIAS) == "hello"
