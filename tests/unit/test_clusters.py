"""Clusters of the inventory: strict, all problems at once with their lines; what passes is safe in `#SBATCH` lines."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from orchestrator.fleet.connect import login_node
from orchestrator.plan.sbatch import time_limit_s
from orchestrator.specs.cluster import OPTIONS, ClusterSpec
from orchestrator.specs.errors import ConfigError
from orchestrator.specs.inventory import Inventory
from orchestrator.specs.inventory_files.inventory_file import parse_inventory
from orchestrator.specs.inventory_files.inventory_problems import expected_of
from orchestrator.specs.inventory_files.inventory_schema import inventory_schema
from tests.unit.conftest import Orch

GOOD = "clusters:\n  uni: {login: 'ana@login.uni.example:2222', workspace: /scratch/ana/orch, partition: gpu, "
HOSTILE = ("-oProxyCommand=x", "a b", "a;b", "$(id)", "a'b", 'a"b', "a\\b", "a\nb", "%j", "`id`", "a#b", "")


def parse(text: str) -> Inventory:
    return parse_inventory(text, filename="inventory.yaml")


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as refused:
        parse(text)
    return refused.value.problems


def test_an_inventory_may_have_clusters_alone() -> None:
    inventory = parse(GOOD + "time: 30, memory: 2g, options: {qos: normal, nice: 100}}\nproject: mine\n")
    cluster = inventory.cluster("uni")
    assert (cluster.time, cluster.memory_mib, cluster.options) == ("30", 2048, {"qos": "normal", "nice": "100"})
    assert cluster.folder == "/scratch/ana/orch/mine"
    login = login_node(cluster)
    assert (login.name, login.user, login.address, login.port) == ("uni", "ana", "login.uni.example", 2222)
    with pytest.raises(ConfigError, match=r"no cluster 'unj'.*did you mean 'uni'"):
        inventory.cluster("unj")


def test_all_problems_at_once_each_with_its_line() -> None:
    found = problems(
        "nodes: {alpha: {address: 10.0.0.1}}\n"
        "clusters:\n"
        "  alpha: {login: local, workspace: /w}\n"
        "  uni:\n"
        "    login: -oProxyCommand=x\n"
        "    workspace: /a b\n"
        "    partition: -p\n"
        "    time: 1h\n"
        "    container: apptainer\n"
        "    options: {output: x}\n"
        "    colour: red\n"
        "  bare: {}\n"
        "  '5': {login: local, workspace: /w}\n"
    )
    lines = [problem.split(": ")[0].removeprefix("inventory.yaml:") for problem in found]
    assert lines == ["3", "5", "6", "7", "8", "9", "10", "11", "12", "12", "13"]
    assert "cluster alpha has the name of a node (line 1)" in found[0]


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("key", ["login", "workspace", "partition", "account", "time", "python", "interface"])
def test_hostile_values_are_refused(key: str, value: str) -> None:
    keys = {"login": "local", "workspace": "/w", key: value}
    text = json.dumps({"clusters": {"uni": keys}})  # JSON is YAML, with every character escaped
    assert any(f"{key} in cluster uni" in problem for problem in problems(text))


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_options_are_refused(value: str) -> None:
    keys = {"login": "local", "workspace": "/w", "options": {"constraint": value}}
    assert "value of constraint" in problems(json.dumps({"clusters": {"uni": keys}}))[0]


def test_options_that_are_orchs_own_are_refused() -> None:
    for name in ("output", "job-name", "signal", "nodes", "export", "wrap", "chdir", "requeue", "array", "dependency"):
        assert name not in OPTIONS
        keys = {"login": "local", "workspace": "/w", "options": {name: "x"}}
        assert f"not {name}" in problems(json.dumps({"clusters": {"uni": keys}}))[0]


def test_every_key_says_what_it_expects() -> None:
    fields = ClusterSpec.model_fields.items()
    assert [name for name, field in fields if expected_of(field) == "another value"] == []


def test_the_schema_knows_clusters() -> None:
    schema = Draft202012Validator(inventory_schema())
    good = {"clusters": {"uni": {"login": "local", "workspace": "/w", "time": 30, "options": {"nice": 100}}}}
    assert schema.is_valid(good)
    for key, value in (("partition", "-p"), ("workspace", "w"), ("options", {"output": "x"}), ("colour", "red")):
        bad = {"clusters": {"uni": {**good["clusters"]["uni"], key: value}}}
        assert not schema.is_valid(bad), key
    assert not schema.is_valid({"project": "x"})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("3", 180), ("1:30", 90), ("08:00:00", 28800), ("2-00", 172800), ("1-01:30", 91800), ("1-00:00:05", 86405)],
)
def test_time_limits_as_sbatch_reads_them(text: str, seconds: int) -> None:
    assert time_limit_s(text) == seconds


def test_a_command_for_nodes_says_that_there_are_only_clusters(orch: Orch) -> None:
    Path("inventory.yaml").write_text("clusters: {uni: {login: local, workspace: /w}}\n")
    ran = orch("doctor")
    assert ran.code == 3
    assert "inventory.yaml has no nodes, only clusters" in ran.err
    ran = orch("inventory", "validate")
    assert re.search("0 nodes and 1 cluster, no problems", ran.out)
