"""Other tools' files in, nodes and notes out; what is written always reads back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli.inventory import guessed
from orchestrator.nodes.ssh_hosts import from_ssh_config
from orchestrator.specs.errors import ConfigError
from orchestrator.specs.inventory_files.ansible_inventory import from_ansible, from_ansible_ini
from orchestrator.specs.inventory_files.inventory_file import parse_inventory
from orchestrator.specs.inventory_files.inventory_import import (
    ImportedInventory,
    from_hostfile,
    from_hostlist,
    inventory_text,
    only,
)

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

ANSIBLE_INI = """
jumper ansible_ssh_port=5555 ansible_ssh_host=192.168.1.50
big:2201 ansible_ssh_user=root

[workers]
w[01:02].lan ansible_user=ana # the new ones
n9 ansible_host=10.0.0.9 ansible_ssh_common_args='-o ProxyCommand="ssh -W %h:%p -q ana@bastion"'
win ansible_connection=winrm ansible_port=5986

[workers:vars]
ansible_port=2222
ansible_private_key_file="~/.ssh/w k"

[gpu]
w01.lan

[gpu:vars]
ansible_user=gpuser
ansible_port=2022

[cluster:children]
workers
gpu

[cluster:vars]
ansible_user=clusteruser
"""

HOSTFILE = """
# five of them
worker-1 slots=4
worker-2 slots=2   # the old one
ana@192.168.1.7 slots=1 max_slots=2

worker-2 slots=8
"""


def taken(found: ImportedInventory) -> dict[str, dict[str, Any]]:
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
        "delta: ProxyCommand is not supported in an inventory; use jump",
    )


def test_an_ssh_config_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(ConfigError, match="not an SSH configuration"):
        from_ssh_config("Host a\n  %%%\n", home=HOME)


def test_ansible_gives_variables_of_groups_and_groups_as_label() -> None:
    found = from_ansible(ANSIBLE, filename="hosts.yml")
    worker = {"user": "ana", "port": 2222, "labels": {"group": "workers"}}
    assert taken(found) == {
        "mail": {"address": "10.0.0.9", "user": "ana"},
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
        "the variable 'http_port' is not supported in an inventory",
        "www01.lan left out: its ansible_host is a template, '{{ ip }}'; write its value yourself",
        "the variable 'ansible_password' is not supported in an inventory",
    )


def test_text_that_is_no_ansible_inventory_is_reported() -> None:
    with pytest.raises(ConfigError, match="is not an Ansible inventory"):
        from_ansible("- a", filename="hosts.yml")
    found = from_ansible("g: 3\nh: {hosts: {'w[9:1]': , x: }, host: {}}\n", filename="hosts.yml")
    assert found.notes == (
        "group 'g' is not a mapping of hosts, vars and children",
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
    assert found.notes == ("line 5: 'max_slots=2' is not supported in an inventory",)


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
        "line 5: 'max_slots=2' is not supported in an inventory",
        "'worker-2' left out: a node worker-2 exists already",
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
        inventory_text(from_hostfile("# empty\n"), source="hostfile")
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
        (ANSIBLE_INI, "ansible-ini"),
        ("[workers]\nhost ansible_host=10.0.0.1\n", "ansible-ini"),
        ("my_host ansible_host=127.0.0.1\n", "ansible-ini"),
        ("plugin: aws_ec2\n", "ansible"),
        ("Compression yes\n", "ssh-config"),
        ("HostName prefix.%h\nUser ana\n", "ssh-config"),
    ],
)
def test_the_kind_of_a_file_is_known_by_its_text(text: str, kind: str) -> None:
    assert guessed(text) == kind


def test_ansible_variables_have_ansibles_precedence() -> None:
    """Each value is what ansible-inventory 2.19 gives for the same text."""
    text = """
all:
  vars: {ansible_user: everybody, ansible_ssh_private_key_file: ~/.ssh/k}
nodes:
  hosts:
    n1: {ansible_host: 10.0.0.1}
    n2: {ansible_host: "{{ ip }}", ip: 10.0.0.2}
web: {hosts: {w1: }}
prod:
  vars: {ansible_user: produser, ansible_port: 2222}
beta: {hosts: {n3: }, vars: {ansible_user: beta_user}}
zeta: {hosts: {n3: }, vars: {ansible_user: zeta_user}}
alfa: {hosts: {n3: }, vars: {ansible_user: alfa_user}}
x: {children: {prod: {children: {web: }}}}
one: {hosts: justine.example}
low: {hosts: {n4: }, vars: {ansible_user: low_user, ansible_group_priority: 10}}
high: {hosts: {n4: }, vars: {ansible_user: high_user}}
"""
    key = {"identity": "~/.ssh/k"}
    assert taken(from_ansible(text, filename="hosts.yml")) == {
        "n1": {**key, "address": "10.0.0.1", "user": "everybody", "labels": {"group": "nodes"}},
        "n2": {**key, "address": "10.0.0.2", "user": "everybody", "labels": {"group": "nodes"}},
        "w1": {**key, "address": "w1", "user": "produser", "port": 2222, "labels": {"group": "x,prod,web"}},
        "n3": {**key, "address": "n3", "user": "zeta_user", "labels": {"group": "alfa,beta,zeta"}},
        "justine.example": {**key, "address": "justine.example", "user": "everybody", "labels": {"group": "one"}},
        "n4": {**key, "address": "n4", "user": "low_user", "labels": {"group": "high,low"}},
    }


def test_ansible_ini_gives_what_ansible_gives() -> None:
    found = from_ansible_ini(ANSIBLE_INI)
    worker = {"port": 2222, "identity": "~/.ssh/w k"}
    assert taken(found) == {
        "jumper": {"address": "192.168.1.50", "port": 5555},
        "big": {"address": "big", "user": "root", "port": 2201},
        "w01.lan": {**worker, "address": "w01.lan", "user": "ana", "labels": {"group": "cluster,gpu,workers"}},
        "w02.lan": {**worker, "address": "w02.lan", "user": "ana", "labels": {"group": "cluster,workers"}},
        "n9": {
            **worker,
            "address": "10.0.0.9",
            "user": "clusteruser",
            "jump": "ana@bastion",
            "labels": {"group": "cluster,workers"},
        },
    }
    assert found.notes == ("win left out: Ansible reaches it by 'winrm', orch by SSH only",)


def test_the_json_of_ansible_inventory_is_read() -> None:
    text = """{"_meta": {"hostvars": {"a": {"ansible_host": "10.0.0.1", "ansible_user": "ana"}}},
    "all": {"children": ["ungrouped", "lab"]}, "lab": {"hosts": ["a", "b"]}, "old": ["c"]}"""
    assert guessed(text) == "ansible"
    assert taken(from_ansible(text, filename="list.json")) == {
        "a": {"address": "10.0.0.1", "user": "ana", "labels": {"group": "lab"}},
        "b": {"address": "b", "labels": {"group": "lab"}},
        "c": {"address": "c", "labels": {"group": "old"}},
    }


@pytest.mark.parametrize(
    ("arguments", "jump"),
    [
        ("-o ProxyJump=bastion", "bastion"),
        ("-J ana@gate:2222", "ana@gate:2222"),
        ("-oProxyJump=gate", "gate"),
        ("-o ProxyCommand='ssh -p 2222 -W %h:%p ana@gate'", "ana@gate:2222"),
        ("-o ProxyCommand='ssh -i key -W %h:%p ana@gate'", None),
        ("-o ProxyCommand='nc -X connect %h %p'", None),
        ("-o ProxyJump='a b;c'", None),
        ("-o StrictHostKeyChecking=no", None),
        ("-J 'open", None),
    ],
)
def test_ansibles_ssh_arguments_give_the_jump_host_or_a_note(arguments: str, jump: str | None) -> None:
    found = from_ansible(f"g: {{hosts: {{a: {{ansible_ssh_common_args: {json.dumps(arguments)}}}}}}}", filename="f")
    assert found.nodes[0].values.get("jump") == jump
    assert [note.startswith("a: of ansible_ssh_common_args, ") for note in found.notes] == ([] if jump else [True])


def test_two_spellings_that_differ_are_named() -> None:
    found = from_ansible("g: {hosts: {a: {ansible_host: 10.0.0.1, ansible_ssh_host: 10.0.0.2}}}", filename="f")
    assert found.nodes[0].values["address"] == "10.0.0.2"
    assert found.notes == ("a: ansible_host and ansible_ssh_host differ; took '10.0.0.2'",)


def test_what_ansible_itself_would_have_to_work_out_is_reported() -> None:
    with pytest.raises(ConfigError, match="configures Ansible's plugin") as caught:
        from_ansible("plugin: aws_ec2\nregions: [x]\n", filename="my aws.yml")
    assert caught.value.hint.startswith("ansible-inventory -i 'my aws.yml' --list | orch inventory import - ")
    with pytest.raises(ConfigError, match="groups contain each other"):
        from_ansible("a: {children: {b: }}\nb: {children: {a: }}\n", filename="f")
    found = from_ansible("_meta: {}\ng: {hosts: [a, {b: 1}]}\nh: {hosts: 3}\n", filename="f")
    assert [node.name for node in found.nodes] == ["a"]
    assert found.notes == (
        "group 'g': a mapping among its hosts is not a name",
        "group 'h': hosts 3 left out; expected a mapping of names",
    )


def test_comments_after_values_of_an_ssh_config() -> None:
    """Each value is what `ssh -G` gives for the same text."""
    text = """Host a b # A comment at the end
    HostName 192.168.1.52 # attic
    User ana#1
Host "c" #x
    ProxyCommand nc -X 5 # %h
"""
    found = from_ssh_config(text, home=HOME)
    assert taken(found) == {
        "a": {"address": "192.168.1.52", "user": "ana#1"},
        "b": {"address": "192.168.1.52", "user": "ana#1"},
        "c": {"address": "c"},
    }


def test_the_first_way_through_wins_in_an_ssh_config() -> None:
    text = """Host a
    ProxyCommand nc %h %p
Host b
    ProxyCommand ssh -W %h:%p ana@gate
Host *
    ProxyJump other
Host c
    ProxyJump far,near
"""
    found = from_ssh_config(text, home=HOME)
    assert [node.values.get("jump") for node in found.nodes] == [None, "ana@gate", "other"]
    assert found.notes == ("a: ProxyCommand is not supported in an inventory; use jump",)
    chain = from_ssh_config("Host c\n ProxyJump far,near\n", home=HOME)
    assert chain.nodes[0].values == {"address": "c"}
    assert chain.notes == ("c: ProxyJump far,near: orch goes through one host at most; write `jump: near`",)


def test_included_files_of_an_ssh_config_are_read(tmp_path: Path) -> None:
    (tmp_path / ".ssh/config.d").mkdir(parents=True)
    (tmp_path / ".ssh/config.d/lab").write_text("Host lab1\n  HostName 10.0.0.1\n")
    (tmp_path / ".ssh/config.d/loop").write_text("Include config.d/loop\nHost lab2\n")
    text = "Include config.d/*\nUser ana\nHost n1\n  Include config.d/lab\nHost n2\n"
    found = from_ssh_config(text, home=tmp_path, included=True)
    assert {name: values["address"] for name, values in taken(found).items()} == {
        "lab1": "10.0.0.1",
        "lab2": "lab2",
        "n1": "n1",
        "n2": "n2",
    }
    assert all(values["user"] == "ana" for values in taken(found).values())
    assert found.notes == ("not followed: Include config.d/loop", "not followed: Include config.d/lab")
    assert guessed("Include ~/.orbstack/ssh/config\n# all\nInclude config.d/*\n") == "ssh-config"


def test_jump_hosts_and_git_servers_are_left_out_unless_named() -> None:
    found = from_ssh_config("Host bastion\nHost github.com\nHost n1 n2\n ProxyJump ana@bastion:22\n", home=HOME)
    chosen = only(found, ())
    assert list(taken(chosen)) == ["n1", "n2"]
    assert chosen.notes == (
        "'bastion' left out: others are reached through it; to take it: --only bastion",
        "'github.com' left out: a server for git; to take it: --only github.com",
    )
    assert list(taken(only(found, ("bast*", "n1")))) == ["bastion", "n1"]


@pytest.mark.parametrize("text", ["Compression yes please\n", "hello there\n", "a slots=2\nb c\n"])
def test_words_that_are_no_hostfile_become_no_machines(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a hostfile line") as caught:
        from_hostfile(text, filename="f")
    assert "--from ssh-config" in str(caught.value.hint)


def test_other_spellings_of_slots_are_named() -> None:
    found = from_hostfile("a slot=8\nnode01:8\n")
    assert taken(found) == {"a": {"address": "a"}}
    assert found.notes == (
        "line 1: 'slot=8' is not supported in an inventory; did you mean slots=8?",
        "line 2: 'node01:8' left out: is 8 a port or a number of processes? "
        "Write `node01 slots=8`, or give the port in the inventory",
    )


@given(
    st.text(alphabet=st.sampled_from("aB1 =#[]:-*?!.,\n\t{}'\"%~/é\x1b")),
    st.sampled_from(["ssh", "ansible", "ini", "file"]),
)
def test_any_text_becomes_a_valid_inventory_or_an_error(text: str, kind: str) -> None:
    try:
        if kind == "ssh":
            found = from_ssh_config(f"Host a {text}", home=HOME)
        elif kind == "ansible":
            found = from_ansible(f"all:\n  hosts:\n    {text}", filename="x")
        elif kind == "ini":
            found = from_ansible_ini(f"[a]\nhost {text}")
        else:
            found = from_hostfile(text)
        written, _ = inventory_text(found, source="x")
    except ConfigError:
        return
    assert parse_inventory(written, filename="x").nodes
