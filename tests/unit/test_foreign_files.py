"""Files of other programs that name machines: converted as a whole, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.cli.inventory import _read_source
from orchestrator.specs.errors import ConfigError
from orchestrator.specs.inventory_files.inventory_yaml import MAX_DEPTH, plain, read_yaml

SKYPILOT = """
lab:
  user: ubuntu
  identity_file: ~/.ssh/lab
  hosts:
    - 10.0.0.1
    - {ip: 10.0.0.2, user: other, password: secret}
box: {hosts: [gpu_box]}
"""
DSTACK = """
type: fleet
name: lab
ssh_config:
  user: ubuntu
  identity_file: ~/.ssh/id
  hosts:
    - 192.168.1.21
    - hostname: 192.168.1.22
      user: ana
      port: 2222
      proxy_jump: {hostname: 192.168.1.1, user: root, port: 2200, identity_file: ~/.ssh/jump}
"""
RAY = """
cluster_name: default
provider: {type: local, head_ip: 192.168.1.77, worker_ips: [192.168.1.76]}
auth: {ssh_user: ana, ssh_private_key: ~/.ssh/id}
"""
ANCHORS = """
all:
  vars: &common {ansible_user: ana, ansible_port: 22}
  hosts:
    node1: &node {<<: *common, ansible_port: 2222}
    node2: *node
"""


def machines(folder: Path, text: str) -> dict[str, Mapping[str, object]]:
    file = folder / "machines"
    file.write_text(text)
    return {node.name: node.values for node in _read_source(str(file), "auto").nodes}


def test_pools_of_skypilot_are_converted_whole(tmp_path: Path) -> None:
    assert machines(tmp_path, SKYPILOT) == {
        "10.0.0.1": {"address": "10.0.0.1", "user": "ubuntu", "identity": "~/.ssh/lab", "labels": {"pool": "lab"}},
        "10.0.0.2": {"address": "10.0.0.2", "user": "other", "identity": "~/.ssh/lab", "labels": {"pool": "lab"}},
        "gpu_box": {"address": "gpu_box", "labels": {"pool": "box"}},
    }
    notes = "\n".join(_read_source(str(tmp_path / "machines"), "auto").notes)
    assert "SkyPilot" in notes
    assert "10.0.0.2': its password is not taken over" in notes
    assert "secret" not in notes


def test_a_fleet_of_dstack_keeps_its_second_machine_and_its_jump_host(tmp_path: Path) -> None:
    own = {"user": "ana", "port": 2222, "identity": "~/.ssh/id", "jump": "root@192.168.1.1:2200"}
    assert machines(tmp_path, DSTACK) == {
        "192.168.1.21": {"address": "192.168.1.21", "user": "ubuntu", "identity": "~/.ssh/id"},
        "192.168.1.22": {"address": "192.168.1.22", **own},
    }


def test_a_cluster_of_ray_on_own_machines_is_converted(tmp_path: Path) -> None:
    assert list(machines(tmp_path, RAY)) == ["192.168.1.77", "192.168.1.76"]
    with pytest.raises(ConfigError, match="cluster of Ray on 'aws'"):
        machines(tmp_path, RAY.replace("local", "aws"))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("service: app\nservers: {web: [192.168.0.1]}\n", "Kamal"),
        ("compute_environment: LOCAL_MACHINE\nnum_machines: 2\n", "Accelerate"),
        ("NodeName=gpu[01-04] CPUs=32\n", "Slurm"),
        ("name,ip,gpus\nalpha,10.0.0.1,1\nbeta,10.0.0.2,2\n", "CSV"),
        ('[{"name": "alpha"}]\n', "JSON"),
        ("services: {web: {image: nginx}}\n", "Docker Compose"),
        ("all: {hosts: [alpha, beta], vars: {a: 1}}\n", "no Ansible inventory"),
        ('{"hosts": ["alpha", "beta"]}\n', "no Ansible inventory"),
        ("type: fleet\nnodes: 2\n", "dstack"),
        ("$ANSIBLE_VAULT;1.1;AES256\n3132\n", "encrypted by ansible-vault"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        machines(tmp_path, text)
    assert not caught.value.problems  # one line


def test_an_inventory_file_may_be_a_pool_and_an_encrypted_one_names_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pools = tmp_path / "pools.yaml"
    pools.write_text(SKYPILOT)
    assert main(["inventory", "list", "-i", str(pools), "-o", "name"]) == 0
    assert capsys.readouterr().out.split() == ["10.0.0.1", "10.0.0.2", "gpu_box"]
    vault = tmp_path / "my vault"
    vault.write_text("$ANSIBLE_VAULT;1.1;AES256\n3132\n")
    assert main(["inventory", "import", str(vault)]) == 3
    assert f"ansible-vault view '{vault}' | orch inventory import -" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("gpu01\ngpu01\ngpu02\ngpu02\ngpu02\n", {"gpu01": 2, "gpu02": 3}),
        ("node1 slots = 4\nnode2 slots =2\n", {"node1": 4, "node2": 2}),
        ("alpha\n", {"alpha": None}),
        ("alpha,beta\n", {"alpha": None, "beta": None}),
        ("node[01-02] slots=2\n", {"node01": 2, "node02": 2}),
        ("ssh://ana@10.0.0.1:2222\n", {"10.0.0.1": None}),
    ],
)
def test_node_files_keep_their_counts(tmp_path: Path, text: str, ranks: dict[str, int | None]) -> None:
    found = machines(tmp_path, text)
    assert {name: values.get("nproc_per_node") for name, values in found.items()} == ranks
    if text.startswith("ssh"):
        assert found["10.0.0.1"] == {"address": "10.0.0.1", "user": "ana", "port": 2222}


def test_anchors_of_ansible_are_read(tmp_path: Path) -> None:
    found = machines(tmp_path, ANCHORS)
    assert {name: (values["user"], values["port"]) for name, values in found.items()} == {
        "node1": ("ana", 2222),
        "node2": ("ana", 2222),
    }


def test_aliases_stand_for_a_bounded_document() -> None:
    many = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefg", "bcdefgh", strict=True)
    )
    deep = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, MAX_DEPTH + 2))
    for text in (many, deep, "a: *b\n", "a: &a {b: *a}\n", "a: &a x\nb: {<<: *a}\n"):
        with pytest.raises(ConfigError, match="cannot read"):
            read_yaml(text, filename="f", tags=True)
    with pytest.raises(ConfigError, match="cannot read"):
        read_yaml("a: &a 1\nb: *a\n", filename="inventory.yaml")
    assert plain(read_yaml("a: &a 1\nb: *a\n", filename="f", tags=True)) == {"a": 1, "b": 1}
