"""`-i hosts.ini`, `-i hosts.yml`: an Ansible inventory in the place of an inventory.yaml."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.specs.inventory_files.ansible_inventory import is_ansible
from tests.unit.conftest import INVENTORY, Orch

INI = """\
bastion ansible_host=192.168.1.2

[gpu]
node[1:2] ansible_user=ana http_port=80
win1 ansible_connection=winrm

[gpu:vars]
ansible_port=2222
"""
YAML = """\
all:
  children:
    gpu:
      hosts:
        node1: {ansible_host: 192.168.1.11}
        node2: {ansible_host: "{{ secret }}"}
      vars: {ansible_user: ana, token: !vault "$ANSIBLE_VAULT;1.1"}
"""


@pytest.mark.parametrize(("name", "text"), [("hosts.ini", INI), ("hosts", INI), ("hosts.yml", YAML)])
def test_the_content_tells_an_ansible_inventory(orch: Orch, tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    ran = orch("inventory", "list", "-i", str(file), "-o", "json")
    assert ran.code == 0, ran.err
    nodes = {node["name"]: node for node in json.loads(ran.out)["data"]}
    assert nodes["node1"]["user"] == "ana"
    assert nodes["node1"]["labels"] == {"group": "gpu"}
    out = "win1" if text is INI else "node2"
    assert out not in nodes
    assert [line for line in ran.err.splitlines() if f"{name}: {out} left out" in line] == ran.err.splitlines()


def test_every_command_takes_it_and_labels_choose(orch: Orch, tmp_path: Path) -> None:
    file = tmp_path / "hosts.ini"
    file.write_text(INI)
    assert orch("-i", str(file), "inventory", "list", "-n", "group=gpu", "-o", "name").out == "node1\nnode2\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("$ANSIBLE_VAULT;1.1;AES256\n6162\n", "hosts is encrypted by ansible-vault"),
        ("[gpu]\nnode1 'ansible_user=ana\n", "hosts:2: No closing quotation"),
        ("[gpu\nnode1\n[gpu:vars]\nfoo\n", "hosts:1: '[gpu' is no section"),
        ("[gpu\nnode1\n[gpu:vars]\nfoo\n", "hosts:4: 'foo' is not key=value"),
        ("[gpu]\nnode1 ansible_port={{ port }}\n", "hosts:2: 'port' is not key=value"),
        ("all:\n  hosts:\n    a:\n    b:\n    a:\n", "hosts:5: a is there already, on line 3"),
        (
            "all: {hosts: {a: {ansible_host: 10.0.0.1, ansible_host: 10.0.0.2}}}\n",
            "ansible_host is there already, on line 1",
        ),
        ("plugin: aws_ec2\n", "configures Ansible's plugin"),
        ("all: {hosts: {}}\n", "no machines in"),
        ("#!/usr/bin/env python3\nprint('{}')\n", "is a script (it begins with #!), and orch runs nothing of a folder"),
    ],
)
def test_bad_files_are_named(orch: Orch, tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "hosts"
    file.write_text(text)
    ran = orch("inventory", "list", "-i", str(file))
    assert (ran.code, ran.out) == (3, "")
    assert message in ran.err
    assert str(file) in ran.err


def test_files_of_variables_beside_it_are_read(orch: Orch, tmp_path: Path) -> None:
    file = tmp_path / "hosts.yml"
    file.write_text("gpu: {hosts: {a: , 192.168.1.12: , c: }, vars: {ansible_user: before}}\n")
    for name, text in (
        ("group_vars/gpu.yml", "ansible_user: ana\nansible_port: 2222\n"),
        ("group_vars/all/users.yaml", "ansible_user: other\n"),
        ("group_vars/all/vault.yml", "$ANSIBLE_VAULT;1.1;AES256\n6162\n"),
        ("group_vars/other", "ansible_user: stranger\n"),
        ("host_vars/a.yml", "ansible_host: 192.168.1.11\n"),
        ("host_vars/192.168.1.12", "---\nansible_port: 22\n"),
        ("host_vars/c.yml~", "ansible_user: old\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    ran = orch("inventory", "list", "-i", str(file), "-o", "json")
    nodes = [(node["name"], node["address"], node["user"], node["port"]) for node in json.loads(ran.out)["data"]]
    assert nodes == [
        ("a", "192.168.1.11", "ana", 2222),
        ("192.168.1.12", "192.168.1.12", "ana", 22),
        ("c", "c", "ana", 2222),
    ]
    assert "group_vars/all/vault.yml is encrypted by ansible-vault, not read: ansible-inventory -i " in ran.err
    (tmp_path / "host_vars/a.yml").write_text("a: [\n")
    ran = orch("inventory", "list", "-i", str(file))
    assert ran.code == 3
    assert f"{tmp_path}/host_vars/a.yml:2" in ran.err


def test_values_that_only_ansible_reads_are_named(orch: Orch, tmp_path: Path) -> None:
    file = tmp_path / "hosts.yml"
    file.write_text(
        "gpu:\n  hosts:\n    a: {ansible_host: '{{ inventory_hostname }}.lan'}\n"
        "    b: {ansible_host: !vault '$ANSIBLE_VAULT;1.1;AES256 6162'}\n    c: {ansible_host: 10.0.0.1}\n"
    )
    vaulted = {"ansible_host": {"__ansible_vault": "$ANSIBLE_VAULT;1.1;AES256 6162"}}
    hosts = {"a": {"ansible_host": "{{ inventory_hostname }}.lan"}, "b": vaulted, "c": {"ansible_host": "10.0.0.1"}}
    listed = tmp_path / "listed.json"  # what `ansible-inventory --list` says of it
    listed.write_text(json.dumps({"_meta": {"hostvars": hosts}, "gpu": {"hosts": ["a", "b", "c"]}}))
    for source in (file, listed):
        ran = orch("inventory", "list", "-i", str(source), "-o", "json")
        nodes = [(node["name"], node["address"]) for node in json.loads(ran.out)["data"]]
        assert nodes == [("a", "a.lan"), ("c", "10.0.0.1")]
        assert "b left out: its ansible_host is encrypted by ansible-vault; write its value yourself" in ran.err
        assert "6162" not in ran.out + ran.err


def test_a_folder_is_refused_with_a_file_in_it(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab/hosts.yml").write_text(YAML)
    ran = orch("inventory", "list", "-i", str(tmp_path / "lab"))
    assert (ran.code, f"→ -i {tmp_path}/lab/hosts.yml" in ran.err) == (3, True)


def test_a_host_with_two_addresses_is_named(orch: Orch, tmp_path: Path) -> None:
    file = tmp_path / "hosts.ini"
    file.write_text("[a]\nx ansible_host=10.0.0.1\n[b]\nx ansible_host=10.0.0.2\n")
    ran = orch("inventory", "list", "-i", str(file))
    assert "x has ansible_host '10.0.0.1' and '10.0.0.2'; took the last one" in ran.err


@pytest.mark.parametrize("text", [INVENTORY, "project: x\n", "", "nodes: [", "a b c\n"])
def test_other_files_are_not_taken_for_one(text: str) -> None:
    assert not is_ansible(text, filename="inventory.yaml")
