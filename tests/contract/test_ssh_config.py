"""The user's `~/.ssh/config` at run time: a node whose address is an alias connects as `ssh ALIAS` would."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.nodes import host_keys
from orchestrator.nodes.ssh import SshNode
from orchestrator.nodes.ssh_config import SshSettings, settings_for
from orchestrator.specs.errors import ConfigError, NodeUnreachableError
from orchestrator.specs.inventory import NodeSpec
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
    configure(f"Include {included}\nHost *\n  Port 1\n  User nobody\n")
    if shutil.which("ssh"):
        assert greets(ALIAS) == "hello"


def test_the_inventory_wins(own: Server) -> None:
    configure(
        f"Host lab1\n  HostName {ADDRESS}\n  Port 1\n  User nobody\n  IdentityFile /nowhere\n  ProxyJump nowhere\n"
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


def test_what_a_jump_host_met_is_told_of_the_jump_host(own: Server, tmp_path: Path) -> None:
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
    with pytest.raises(NodeUnreachableError, match=f"jump host on the way to it: ana@{ADDRESS}:{closed} refused"):
        SshNode(NodeSpec(name="alpha", address="lab2")).open()
    with sshd(tmp_path / "hop") as unknown:
        configure(f"Host lab3\n{target}  ProxyJump hop3\nHost hop3\n{reached(unknown)}")
        with pytest.raises(NodeUnreachableError, match="unknown host key") as raised:
            SshNode(NodeSpec(name="alpha", address="lab3")).open()
    user = unknown.spec().user
    assert raised.value.hint.endswith(f", then: ssh -p {unknown.port} {user}@hop3 true")


def test_jump_hosts_in_a_circle_are_refused(own: Server) -> None:
    configure(f"Host lab1\n{reached(own, then='ProxyJump hop')}Host hop\n{reached(own, then='ProxyJump lab1')}")
    with pytest.raises(NodeUnreachableError, match="more than 8 jump hosts"):
        SshNode(ALIAS).open()


def test_another_proxy_command_is_refused_with_the_reason(own: Server) -> None:
    configure(f"Host lab1\n{reached(own, then='ProxyCommand nc %h %p')}")
    with pytest.raises(NodeUnreachableError, match="ProxyCommand that is not `ssh -W`") as raised:
        SshNode(ALIAS).open()
    assert "ProxyJump HOST" in raised.value.hint


def test_a_mistake_in_the_configuration_is_told_with_its_line(own: Server) -> None:
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
    kept = own_file.read_text()
    own_file.write_text(kept.replace(ADDRESS, "the-lab"))
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
