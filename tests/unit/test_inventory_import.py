"""Other tools' files in, nodes and notes out; what is written always reads back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli.inventory_source import guessed
from orchestrator.nodes.ssh_hosts import from_ssh_config
from orchestrator.specs.errors import ConfigError
from orchestrator.specs.inventory_files.ansible_inventory import from_ansible
from orchestrator.specs.inventory_files.inventory_file import parse_inventory
from orchestrator.specs.inventory_files.inventory_import import Found, from_hostfile, from_hostlist, inventory_text

HOME = Path("/home/ana")

SSH_CONFIG = """
# machines
Host alpha
    HostName 192.168.1.50
    User ana
    IdentityFile /home/ana/.ssh/id_ed25519
Host beta gamma
    Port 2222
    ProxyJump ana@gate:22
Host "delta"
    HostName=delta.lan
    ProxyCommand nc %h %p
Host *.lan !x.lan
    User other
Host *
    User everybody
Match exec "touch /nowhere/proof"
    User evil
Include more/*
"""

ANSIBLE = """
all:
  vars: {ansible_user: ana, http_port: 80}
  hosts:
    mail: {ansible_host: 10.0.0.9}
  children:
    workers:
      vars: {ansible_port: "2222"}
      hosts:
        www[01:03].lan:
        db-[a:b]: {ansible_user: dba, ansible_password: !vault "x"}
      children:
        fast:
          hosts:
            www01.lan: {ansible_ssh_private_key_file: ~/.ssh/fast, ansible_host: "{{ ip }}"}
    here:
      hosts:
        localbox: {ansible_connection: local, ansible_host: 127.0.0.1}
"""

HOSTFILE = """
# five of them
worker-1 slots=4
worker-2 slots=2   # the old one
ana@192.168.1.7 slots=1 max_slots=2

worker-2 slots=8
"""


def taken(found: Found) -> dict[str, dict[str, Any]]:
    return {node.name: dict(node.values) for node in found.nodes}


def test_ssh_config_gives_hosts_without_wildcards_and_runs_nothing() -> None:
    found = from_ssh_config(SSH_CONFIG, home=HOME)
    assert taken(found) == {
        "alpha": {"address": "192.168.1.50", "user": "ana", "identity": "~/.ssh/id_ed25519"},
        "beta": {"address": "beta", "user": "everybody", "port": 2222, "jump": "ana@gate:22"},
        "gamma": {"address": "gamma", "user": "everybody", "port": 2222, "jump": "ana@gate:22"},
        "delta": {"address": "delta.lan", "user": "everybody"},
    }
    assert found.notes == (
        'not followed: Match exec "touch /nowhere/proof"',
        "not followed: Include more/*",
        "delta: ProxyCommand has no place in an inventory; use jump",
    )


def test_an_ssh_config_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(ConfigError, match="not an SSH configuration"):
        from_ssh_config("Host a\n  %%%\n", home=HOME)


def test_ansible_gives_variables_of_groups_and_groups_as_label() -> None:
    found = from_ansible(ANSIBLE, filename="hosts.yml")
    worker = {"user": "ana", "port": 2222, "labels": {"group": "workers"}}
    assert taken(found) == {
        "mail": {"address": "10.0.0.9", "user": "ana"},
        "www01.lan": {
            **worker,
            "address": "www01.lan",
            "identity": "~/.ssh/fast",
            "labels": {"group": "workers,fast"},
        },
        "www02.lan": {**worker, "address": "www02.lan"},
        "www03.lan": {**worker, "address": "www03.lan"},
        "db-a": {**worker, "address": "db-a", "user": "dba"},
        "db-b": {**worker, "address": "db-b", "user": "dba"},
        "localbox": {
            "address": "127.0.0.1",
            "user": "ana",
            "connection": "local",
            "labels": {"group": "here"},
        },
    }
    assert found.notes == (
        "the variable 'http_port' has no place in an inventory",
        "www01.lan: ansible_host is a template, '{{ ip }}'; write its value yourself",
        "the variable 'ansible_password' has no place in an inventory",
    )


def test_what_is_no_ansible_inventory_is_said() -> None:
    with pytest.raises(ConfigError, match="is no Ansible inventory"):
        from_ansible("- a", filename="hosts.yml")
    found = from_ansible("g: 3\nh: {hosts: {'w[9:1]': , x: }, host: {}}\n", filename="hosts.yml")
    assert found.notes == (
        "group 'g' is no mapping of hosts, vars and children",
        "group 'h': the key 'host' means nothing to Ansible",
        "hosts 'w[9:1]' left out: a range of 0 hosts",
    )
    assert [node.name for node in found.nodes] == ["x"]


def test_hostfile_gives_slots_as_ranks() -> None:
    found = from_hostfile(HOSTFILE)
    assert [(node.name, node.values) for node in found.nodes] == [
        ("worker-1", {"address": "worker-1", "nproc_per_node": 4}),
        ("worker-2", {"address": "worker-2", "nproc_per_node": 2}),
        ("192.168.1.7", {"address": "192.168.1.7", "user": "ana", "nproc_per_node": 1}),
        ("worker-2", {"address": "worker-2", "nproc_per_node": 8}),
    ]
    assert found.notes == ("line 5: 'max_slots=2' has no place in an inventory",)


def test_the_text_is_commented_valid_and_says_what_was_left_out() -> None:
    text, notes = inventory_text(from_hostfile(HOSTFILE + "Big_Box!\n-x slots=1\n12\n"), source="hostfile", user="jo")
    inventory = parse_inventory(text, filename="new.yaml")
    assert text.startswith("# Written by `orch inventory import`, from hostfile.\n")
    assert [(node.name, node.user) for node in inventory.nodes] == [
        ("worker-1", "jo"),
        ("worker-2", "jo"),
        ("192.168.1.7", "ana"),
    ]
    assert notes == (
        "line 5: 'max_slots=2' has no place in an inventory",
        "'worker-2' left out: there is a node worker-2 already",
        "big_box: address 'Big_Box!' not taken over; expected a host name or an IPv4 address",
        "big_box left out, as it has no address",
        "x: address '-x' not taken over; expected a host name or an IPv4 address",
        "x left out, as it has no address",
        "node12: address '12' not taken over; expected a host name or an IPv4 address",
        "node12 left out, as it has no address",
    )


def test_the_same_address_twice_is_left_out() -> None:
    text, notes = inventory_text(
        from_ansible("g: {hosts: {a: {ansible_host: h}, b: {ansible_host: H}, c: {ansible_port: x}}}", filename="f"),
        source="f",
    )
    assert list(notes) == [
        "b left out: it has the address of a, h port 22",
        "c: port 'x' not taken over; expected a number from 1 to 65535",
    ]
    assert [node.name for node in parse_inventory(text, filename="f").nodes] == ["a", "c"]


def test_a_source_without_machines_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no machines in hostfile"):
        inventory_text(from_hostfile("# nobody\n"), source="hostfile")
    with pytest.raises(ConfigError, match="runs backwards"):
        from_hostlist("node[5-1]")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (SSH_CONFIG, "ssh-config"),
        (ANSIBLE, "ansible"),
        ("---\nall:\n  hosts:\n", "ansible"),
        (HOSTFILE, "hostfile"),
        ("worker-1\nworker-2\n", "hostfile"),
    ],
)
def test_the_kind_of_a_file_is_told_by_its_text(text: str, kind: str) -> None:
    assert guessed(text, "file") == kind


def test_an_ini_inventory_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match="INI style") as caught:
        guessed("[workers]\nw1 ansible_host=10.0.0.1\n", "hosts")
    assert caught.value.hint == "ansible-inventory -i hosts --list --yaml | orch inventory import -"


@given(
    st.text(alphabet=st.sampled_from("aB1 =#[]:-*?!.,\n\t{}'\"%~/é\x1b")), st.sampled_from(["ssh", "ansible", "file"])
)
def test_any_text_becomes_a_valid_inventory_or_an_error(text: str, kind: str) -> None:
    try:
        if kind == "ssh":
            found = from_ssh_config(f"Host a {text}", home=HOME)
        elif kind == "ansible":
            found = from_ansible(f"all:\n  hosts:\n    {text}", filename="x")
        else:
            found = from_hostfile(text)
        written, _ = inventory_text(found, source="x")
    except ConfigError:
        return
    assert parse_inventory(written, filename="x").nodes
