"""Meaning of a valid inventory; no text whatever ends in a traceback."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from orchestrator.specs.errors import ConfigError
from orchestrator.specs.inventory import Inventory, Limits, NodeSpec
from orchestrator.specs.inventory_files.inventory_file import parse_inventory
from orchestrator.specs.inventory_files.inventory_problems import expected_of, known_keys
from orchestrator.specs.inventory_files.inventory_schema import inventory_schema, schema_text
from orchestrator.specs.inventory_files.inventory_yaml import write_yaml
from orchestrator.specs.inventory_types import HOST, INTERFACE, JUMP, LABEL_KEY, USER

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "inventory.yaml"


def parse(text: str | bytes) -> Inventory:
    return parse_inventory(text, filename="inventory.yaml")


def test_the_example_holds_five_unequal_machines() -> None:
    inventory = parse(EXAMPLE.read_bytes())
    assert [node.name for node in inventory.nodes] == ["alpha", "beta", "gamma", "old01", "old02"]
    assert inventory.node("alpha").limits == Limits.model_validate({"cpus": 8.0, "memory": "16g", "shm": "4g"})
    assert inventory.node("gamma").user == "jose"
    assert inventory.node("old02").address == "192.0.2.62"


@pytest.mark.parametrize("model", [Inventory, NodeSpec, Limits])
def test_the_example_mentions_every_key(model: type[Inventory | NodeSpec | Limits]) -> None:
    text = EXAMPLE.read_text()
    keys = [key for key in known_keys(model) if key != "name"]
    assert [key for key in keys if f"{key}:" not in text] == []


@pytest.mark.parametrize("model", [NodeSpec, Limits])
def test_every_key_says_what_it_expects(model: type[NodeSpec | Limits]) -> None:
    assert [name for name, field in model.model_fields.items() if expected_of(field) == "another value"] == []


def test_the_example_says_the_defaults_as_they_are() -> None:
    """Its defaults are those of the models, so what it comments as `Default:` cannot go stale."""
    document = YAML(typ="safe", pure=True).load(EXAMPLE.read_text())["defaults"]
    own = {key: value for key, value in document.items() if key not in ("user", "labels")}
    assert NodeSpec.model_validate({**own, "name": "x", "address": "x"}) == NodeSpec(name="x", address="x")


def test_no_pattern_repeats_a_class_of_characters_hundreds_of_times() -> None:
    """Such a pattern takes MiB of memory and tens of milliseconds in every command; lengths are for `maxLength`."""
    repeated = re.findall(r"\[\^[^\n]{1,80}\]\{[0-9]*,([0-9]+)\}", schema_text())
    assert [most for most in repeated if int(most) > 100] == []
    lengths = set(re.findall(r'"maxLength": ([0-9]+)', schema_text()))
    assert lengths == {"253", "4096"}


@pytest.mark.parametrize(("length", "problems"), [(4096, 0), (4097, 1)])
def test_texts_have_a_greatest_length(length: int, problems: int) -> None:
    name = "x" * length
    for key in (f"image: {{apt: {name}}}", f"hooks: {{ended: [sh, {name}]}}", f"hooks: {{failed: {name}}}"):
        text = f"{key}\nnodes: {{alpha: {{address: h}}}}\n"
        if problems:
            with pytest.raises(ConfigError) as caught:
                parse(text)
            assert len(caught.value.problems) == problems
        else:
            parse(text)


def test_the_schema_accepts_the_example_and_refuses_a_typing_error() -> None:
    jsonschema.Draft202012Validator.check_schema(inventory_schema())
    check = jsonschema.Draft202012Validator(inventory_schema())
    document = json.loads(json.dumps(YAML(typ="safe", pure=True).load(EXAMPLE.read_text())))
    assert list(check.iter_errors(document)) == []
    document["nodes"]["beta"]["prot"] = 22
    assert [error.json_path for error in check.iter_errors(document)] == ["$.nodes.beta"]


def test_a_nodes_own_key_wins_and_labels_and_limits_merge() -> None:
    inventory = parse(
        "defaults:\n  user: ana\n  port: 2200\n  labels: {room: lab, rack: 1}\n  limits: {cpus: 4, memory: 8g}\n"
        "nodes:\n  alpha: {address: h, user: jose, labels: {room: attic}, limits: {memory: 2g}}\n"
    )
    (alpha,) = inventory.nodes
    assert (alpha.user, alpha.port) == ("jose", 2200)
    assert alpha.labels == {"room": "attic", "rack": "1"}
    assert (alpha.limits.cpus, alpha.limits.memory_mib) == (4.0, 2048)


def test_words_of_yaml_1_1_stay_text_and_labels_stay_as_written() -> None:
    (node,) = parse("nodes:\n  no: {address: on, labels: {on: off, rack: 03, t: 22:22, v: 1.10, y: yes}}\n").nodes
    assert (node.name, node.address) == ("no", "on")
    assert node.labels == {"on": "off", "rack": "03", "t": "22:22", "v": "1.10", "y": "yes"}


def test_ranges_stand_for_nodes_with_as_many_addresses() -> None:
    inventory = parse('nodes:\n  w[01-02,07]: {address: "10.0.0.[1-2,7]", port: 2222}\n')
    assert [(node.name, node.address, node.port) for node in inventory.nodes] == [
        ("w01", "10.0.0.1", 2222),
        ("w02", "10.0.0.2", 2222),
        ("w07", "10.0.0.7", 2222),
    ]


def test_a_file_of_more_than_a_mebibyte_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("#" * (1024 * 1024 + 1))
    assert caught.value.problems == ("inventory.yaml: larger than 1024 KiB, which no inventory is",)


def test_more_than_1024_nodes_are_refused() -> None:
    text = 'nodes:\n  a[1-1024]: {address: "a[1-1024]"}\n'
    assert len(parse(text).nodes) == 1024
    with pytest.raises(ConfigError) as caught:
        parse(text + "  b: {address: b}\n")
    assert caught.value.problems == ("inventory.yaml:3: more than 1024 nodes; expected a handful",)


def test_a_problem_in_the_defaults_is_named_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("defaults: {device: gpu}\nnodes:\n  a: {address: a}\n  b: {address: b}\n")
    assert caught.value.problems == ("inventory.yaml:1: device in defaults is 'gpu'; expected auto, cpu or cuda",)
    assert str(caught.value) == "inventory.yaml has 1 problem"


yaml_like = st.text(alphabet=st.sampled_from("ab:-?[]{},&*!|>'\"%#\n\t @`~0179.\x07\u0085\ufeff\\x")).map(
    lambda text: f"nodes:{text}"
)


@given(st.one_of(st.text(), st.binary(), yaml_like))
def test_any_text_is_an_inventory_or_a_list_of_problems(content: str | bytes) -> None:
    assert_inventory_or_problems(content)


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(["auto", "1g", "~/x"])
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)
near_limits = st.dictionaries(st.sampled_from([*known_keys(Limits), "memry"]), values, max_size=4)
near_nodes = st.dictionaries(
    st.sampled_from([*known_keys(NodeSpec), "prot"]), st.one_of(values, near_limits, st.just("10.0.0.1")), max_size=6
)
near_names = st.sampled_from(["alpha", "beta", "w[1-3]", "w2", "5", "-x", "a[", "[1-9999]", ""])
near_files = st.fixed_dictionaries(
    {"nodes": st.dictionaries(near_names, st.one_of(near_nodes, values), max_size=4)},
    optional={"defaults": near_nodes, "project": values, "master_port": values, "x": values},
)


@given(near_files)
def test_documents_that_are_nearly_right_never_end_in_a_traceback(document: dict[str, Any]) -> None:
    assert_inventory_or_problems(json.dumps(document))  # JSON is YAML


def assert_inventory_or_problems(content: str | bytes) -> None:
    problems: tuple[str, ...] = ()
    try:
        parse(content)
    except ConfigError as error:
        problems = error.problems or ("a ConfigError without a problem",)
    assert [text for text in problems if not text.startswith("inventory.yaml") or not text.isprintable()] == []


sizes = st.integers(1, 4000).map(lambda gib: f"{gib}g") | st.integers(1, 99999).map(lambda mib: f"{mib}m")
limits = st.builds(
    lambda cpus, memory, shm: Limits.model_validate(
        {"cpus": cpus, "memory": memory, "memory_reservation": "1m", "shm": shm}
    ),
    st.floats(0.01, 1024),
    sizes,
    sizes,
)
names = st.from_regex(r"[a-z][a-z0-9._-]{0,20}[a-z0-9]", fullmatch=True)
paths = st.just("~/orch") | st.from_regex(r"~?/[a-zA-Z0-9 @=/_-]{1,20}[a-z]", fullmatch=True)
nodes = st.fixed_dictionaries(
    {"name": names, "address": st.from_regex(HOST.replace("0-9", "a-f"), fullmatch=True)},
    optional={
        "user": st.from_regex(USER, fullmatch=True),
        "port": st.integers(1, 65535),
        "identity": paths,
        "jump": st.from_regex(JUMP, fullmatch=True),
        "connection": st.sampled_from(["ssh", "local"]),
        "engine": st.sampled_from(["docker", "process"]),
        "device": st.sampled_from(["auto", "cpu", "cuda"]),
        "nproc_per_node": st.just("auto") | st.integers(1, 1024),
        "interface": st.from_regex(INTERFACE, fullmatch=True),
        "labels": st.dictionaries(st.from_regex(LABEL_KEY, fullmatch=True), st.text("aé#:'\" ~0.[]{}-", max_size=9)),
        "limits": limits,
        "workspace": paths,
    },
).map(NodeSpec.model_validate)
inventories = st.builds(
    Inventory,
    project=names,
    master_port=st.integers(1024, 65535),
    nodes=st.lists(nodes, min_size=1, max_size=4, unique_by=(lambda n: n.name, lambda n: n.address.lower())).map(tuple),
)


@given(inventories)
def test_a_written_inventory_reads_back_the_same(inventory: Inventory) -> None:
    def keys(node: NodeSpec) -> dict[str, object]:
        limits = node.limits.model_dump(by_alias=True, exclude_defaults=True)
        sizes = {key: value if key == "cpus" else f"{value}m" for key, value in limits.items()}
        return {**node.model_dump(exclude={"name", "limits"}, exclude_defaults=True), "limits": sizes}

    nodes = {node.name: keys(node) for node in inventory.nodes}
    document = {"project": inventory.project, "master_port": inventory.master_port, "nodes": nodes}
    assert parse(write_yaml(document)) == inventory
