"""Which nodes of an inventory a command means: `--nodes 5`, `--nodes alpha,beta`, `--nodes node[01-05]`, `--label k=v`.

The order of the inventory stays, whatever the order of asking, so that a node keeps its place among the ranks.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from orchestrator.specs.errors import ConfigError, UsageError
from orchestrator.specs.hostlist import HostlistError, expand
from orchestrator.specs.inventory import Inventory, NodeSpec


def select_nodes(
    inventory: Inventory,
    *,
    nodes: str | None = None,
    labels: Sequence[str] = (),
    filename: str = "inventory.yaml",
) -> tuple[NodeSpec, ...]:
    """Nodes with all the labels; of these the first `nodes` where it is a number, else those it names."""
    labelled = _with_labels(inventory.nodes, labels, filename)
    if nodes is None:
        return labelled
    if nodes.strip().isdecimal():
        return _first(int(nodes), labelled, labels, filename)
    names = _known_names(nodes, inventory, filename)
    chosen = tuple(node for node in labelled if node.name in names)
    if not chosen:
        raise ConfigError(
            f"none of the nodes {', '.join(names)} has {_and(labels)}",
            hint=f"{_and(labels)}: {_listed(labelled)}",
        )
    return chosen


def _with_labels(nodes: tuple[NodeSpec, ...], labels: Sequence[str], filename: str) -> tuple[NodeSpec, ...]:
    wanted = [_parsed(label) for label in labels]
    chosen = tuple(node for node in nodes if all(_has(node, key, value) for key, value in wanted))
    if not chosen:
        there = sorted({f"{key}={value}" for node in nodes for key, value in node.labels.items()})
        hint = f"labels there: {', '.join(there)}" if there else "no node there has labels; add `labels: {key: value}`"
        raise ConfigError(f"no node in {filename} has {_and(labels)}", hint=hint)
    return chosen


def _parsed(label: str) -> tuple[str, str]:
    key, equals, value = label.partition("=")
    if not key or not equals:
        raise UsageError(f"--label {label!r} is no KEY=VALUE", hint="for example --label room=lab")
    return key, value


def _has(node: NodeSpec, key: str, value: str) -> bool:
    """A label may hold several words: `group: gpu,lab` has both `group=gpu` and `group=lab`."""
    held = node.labels.get(key)
    return held is not None and (value == held or value in held.split(","))


def _first(count: int, nodes: tuple[NodeSpec, ...], labels: Sequence[str], filename: str) -> tuple[NodeSpec, ...]:
    if count == 0:
        raise UsageError("--nodes 0: a run needs at least one node")
    if count > len(nodes):
        having = f" with {_and(labels)}" if labels else ""
        raise ConfigError(
            f"asked for {_nodes(count)}, {filename} has {len(nodes)}{having}: {_listed(nodes)}",
            hint=f"ask for --nodes {len(nodes)}, or add machines to {filename}",
        )
    return nodes[:count]


def _known_names(text: str, inventory: Inventory, filename: str) -> tuple[str, ...]:
    try:
        names = expand(text)
    except HostlistError as error:
        hint = "give a number (5), names (alpha,beta) or a range (node[01-05])"
        raise UsageError(f"--nodes: {error}", hint=hint) from None
    known = [node.name for node in inventory.nodes]
    problems = [_unknown(name, known) for name in names if name not in known]
    if problems:
        raise ConfigError(
            f"not in {filename}: {', '.join(name for name in names if name not in known)}",
            problems=problems,
            hint=f"nodes there: {_listed(inventory.nodes)}",
        )
    return names


def _unknown(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"no node {name!r}" + (f" (did you mean {near[0]!r}?)" if near else "")


def _listed(nodes: Sequence[NodeSpec], most: int = 12) -> str:
    names = [node.name for node in nodes]
    return ", ".join(names[:most]) + (f", … ({len(names)} in all)" if len(names) > most else "")


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _and(labels: Sequence[str]) -> str:
    return " and ".join(labels)
