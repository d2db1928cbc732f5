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


@pytest.fixture(autouse=True)
def no_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A PATH of this test's own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def program(folder: Path, body: str) -> None:
    file = folder / "ansible-inventory"
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)


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
    assert orch("-i", str(file), "inventory", "list", "--label", "group=gpu", "-o", "name").out == "node1\nnode2\n"


def test_the_program_is_asked_where_it_is_there(orch: Orch, tmp_path: Path, no_program: Path) -> None:
    file = tmp_path / "hosts.yml"
    file.write_text(YAML)
    answer = {"_meta": {"hostvars": {"node2": {"ansible_host": "192.168.1.12"}}}, "gpu": {"hosts": ["node2"]}}
    program(no_program, f"printf %s '{json.dumps(answer)}'; printf %s \"$*\" > {tmp_path}/asked")
    assert orch("inventory", "list", "-i", str(file), "-o", "name").out == "node2\n"
    assert (tmp_path / "asked").read_text() == f"-i {file} --list"


def test_a_vault_without_its_password_is_an_error(orch: Orch, tmp_path: Path, no_program: Path) -> None:
    file = tmp_path / "hosts.yml"
    file.write_text(YAML)
    program(no_program, "echo 'ERROR! Attempting to decrypt but no vault secrets found' >&2; exit 4")
    ran = orch("inventory", "list", "-i", str(file))
    assert (ran.code, ran.out) == (3, "")
    assert "no vault secrets found" in ran.err
    assert "ANSIBLE_VAULT_PASSWORD_FILE" in ran.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("$ANSIBLE_VAULT;1.1;AES256\n6162\n", "hosts is encrypted by ansible-vault"),
        ("[gpu]\nnode1 'ansible_user=ana\n", "line 2 left out: No closing quotation"),
        ("plugin: aws_ec2\n", "configures Ansible's plugin"),
        ("all: {hosts: {}}\n", "no machines in"),
    ],
)
def test_bad_files_are_named(orch: Orch, tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "hosts"
    file.write_text(text)
    ran = orch("inventory", "list", "-i", str(file))
    assert (ran.code, ran.out) == (3, "")
    assert said in ran.err
    assert str(file) in ran.err


@pytest.mark.parametrize("text", [INVENTORY, "project: x\n", "", "nodes: [", "a b c\n"])
def test_other_files_are_not_taken_for_one(text: str) -> None:
    assert not is_ansible(text, filename="inventory.yaml")
