from __future__ import annotations

from typing import Any

import pytest

from orchestrator.specs.errors import ConfigError, OrchError, UsageError
from orchestrator.specs.inventory_files.inventory_file import parse_inventory
from orchestrator.specs.selection import select_nodes

INVENTORY = parse_inventory(
    """
nodes:
  alpha: {address: a, labels: {room: lab, gpu: yes}}
  beta: {address: b, labels: {room: lab, group: "fast,quiet"}}
  gamma: {address: c, labels: {room: attic}}
  node[01-02]: {address: "n[1-2]"}
""",
    filename="inventory.yaml",
)
HINT = (
    "give a number (5), names (alpha,beta), a range (node[01-05]), a pattern ('lab*'), a label (room=lab) "
    "or an exclusion ('!gamma')"
)
LABELS = "labels there: gpu=yes, group=fast, group=quiet, room=attic, room=lab"


def chosen(**request: Any) -> str:
    return " ".join(node.name for node in select_nodes(INVENTORY, **request))


@pytest.mark.parametrize(
    ("request_", "names"),
    [
        ({}, "alpha beta gamma node01 node02"),
        ({"nodes": "2"}, "alpha beta"),
        ({"nodes": "5"}, "alpha beta gamma node01 node02"),
        ({"nodes": "gamma,alpha"}, "alpha gamma"),
        ({"nodes": "node[01-02],beta"}, "beta node01 node02"),
        ({"nodes": "node*"}, "node01 node02"),
        ({"nodes": "*a,!gamma"}, "alpha beta"),
        ({"nodes": "!node[01-02]"}, "alpha beta gamma"),
        ({"nodes": "3,!beta"}, "alpha gamma node01"),
        ({"nodes": "1,node0?"}, "node01"),
        ({"nodes": "room=lab"}, "alpha beta"),
        ({"nodes": "!room=lab"}, "gamma node01 node02"),
        ({"nodes": "group=fast"}, "beta"),
        ({"nodes": "room=attic,group=quiet"}, "beta gamma"),
        ({"nodes": "node01,room=lab,!gpu=yes"}, "beta node01"),
        ({"nodes": "1,room=attic"}, "gamma"),
        ({"nodes": "3,!room=attic"}, "alpha beta node01"),
    ],
)
def test_nodes_are_chosen_in_the_order_of_the_inventory(request_: dict[str, Any], names: str) -> None:
    assert chosen(**request_) == names


@pytest.mark.parametrize(
    ("request_", "kind", "message", "hint"),
    [
        (
            {"nodes": "6"},
            ConfigError,
            "asked for 6 nodes, inventory.yaml has 5: alpha, beta, gamma, node01, node02",
            "ask for --nodes 5, or add machines to inventory.yaml",
        ),
        (
            {"nodes": "alhpa,zeta"},
            ConfigError,
            "not in inventory.yaml: alhpa, zeta",
            "nodes there: alpha, beta, gamma, node01, node02",
        ),
        ({"nodes": "rom=lab"}, ConfigError, "not in inventory.yaml: rom=lab", LABELS),
        (
            {"nodes": "zeta,!room=cellar"},
            ConfigError,
            "not in inventory.yaml: zeta, room=cellar",
            f"nodes there: alpha, beta, gamma, node01, node02; {LABELS}",
        ),
        (
            {"nodes": "3,room=lab"},
            ConfigError,
            "asked for 3 nodes, inventory.yaml has 2 of room=lab: alpha, beta",
            "ask for --nodes 2,room=lab, or add machines to inventory.yaml",
        ),
        ({"nodes": "room="}, UsageError, "--nodes 'room=' is not KEY=VALUE", "for example --nodes room=lab"),
        ({"nodes": "0"}, UsageError, "--nodes 0: a run needs at least one node", ""),
        (
            {"nodes": "lab*"},
            ConfigError,
            "not in inventory.yaml: lab*",
            "nodes there: alpha, beta, gamma, node01, node02",
        ),
        (
            {"nodes": "alpha,!*"},
            ConfigError,
            "--nodes alpha,!* excludes every node",
            "nodes in inventory.yaml: alpha, beta, gamma, node01, node02",
        ),
        ({"nodes": "1,2"}, UsageError, "--nodes 1,2: more than one number", HINT),
        (
            {"nodes": "a,"},
            UsageError,
            "--nodes: 'a,' is no list of names such as alpha,beta or node[01-05,07]",
            HINT,
        ),
    ],
)
def test_what_cannot_be_chosen_says_what_is_there(
    request_: dict[str, Any], kind: type[OrchError], message: str, hint: str
) -> None:
    with pytest.raises(kind) as caught:
        chosen(**request_)
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_an_unknown_label_gets_its_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        chosen(nodes="!rom=lab")
    assert caught.value.problems == ("no node has the label 'rom=lab' (did you mean 'room=lab'?)",)


def test_an_unknown_name_gets_its_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        chosen(nodes="alhpa,!zeta")
    assert caught.value.problems == ("no node 'alhpa' (did you mean 'alpha'?)", "no node 'zeta' (did you mean 'beta'?)")
