"""Node selection: `-n 5`, `-n alpha,beta`, `-n 'node[01-05]'`, `-n 'lab*'`, `-n '!gamma'`, combinations, `--label k=v`.

The nodes come in the order of the inventory, so that a node keeps its place among the ranks.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase

from orchestrator.specs.errors import ConfigError, UsageError
from orchestrator.specs.hostlist import HostlistError, expand
from orchestrator.specs.inventory import Inventory, NodeSpec

_HINT = "give a number (5), names (alpha,beta), a range (node[01-05]), a pattern ('lab*') or an exclusion ('!gamma')"


def select_nodes(
    inventory: Inventory,
    *,
    nodes: str | None = None,
    labels: Sequence[str] = (),
    filename: str = "inventory.yaml",
) -> tuple[NodeSpec, ...]:
    """Nodes that have all the labels and that `nodes` selects; ConfigError where none is left, or a name is unknown."""
    labelled = _with_labels(inventory.nodes, labels, filename)
    if nodes is None:
        return labelled
    names, count = select_names(nodes, [node.name for node in inventory.nodes], place=filename)
    chosen = tuple(node for node in labelled if node.name in names)
    if not chosen:
        raise ConfigError(
            f"none of the nodes {', '.join(names)} has {_and(labels)}",
            hint=f"{_and(labels)}: {_listed([node.name for node in labelled])}",
        )
    if count is not None and count > len(chosen):
        having = f" with {_and(labels)}" if labels else ""
        raise ConfigError(
            f"asked for {'1 node' if count == 1 else f'{count} nodes'}, {filename} has {len(chosen)}{having}: "
            f"{_listed([node.name for node in chosen])}",
            hint=f"ask for --nodes {len(chosen)}, or add machines to {filename}",
        )
    return chosen[:count]


def select_names(text: str, known: Sequence[str], *, place: str) -> tuple[tuple[str, ...], int | None]:
    """Names among `known` that the text selects, and how many of these at most (None: all of them).

    Words are separated by commas: a number, a name, a range `node[01-05]`, a pattern with `*` or `?`, and each of these
    after `!` to exclude it. Without names or patterns, all of `known` are selected before the exclusions.
    `place` is where the names come from, for messages. UsageError: not such a list; ConfigError: an unknown name, a
    pattern without a match, or no node left.
    """
    try:
        words = expand(text)
    except HostlistError as error:
        raise UsageError(f"--nodes: {error}", hint=_HINT) from None
    counts = [int(word) for word in words if word.isdecimal()]
    if len(counts) > 1:
        raise UsageError(f"--nodes {text}: more than one number", hint=_HINT)
    if counts == [0]:
        raise UsageError("--nodes 0: a run needs at least one node")
    wanted = [word for word in words if not word.isdecimal()]
    found = {word: [name for name in known if fnmatchcase(name, word.removeprefix("!"))] for word in wanted}
    if missing := [word.removeprefix("!") for word, names in found.items() if not names]:
        raise ConfigError(
            f"not in {place}: {', '.join(missing)}",
            problems=[_unknown(word, known) for word in missing],
            hint=f"nodes there: {_listed(known)}",
        )
    included = {name for word, names in found.items() if not word.startswith("!") for name in names}
    excluded = {name for word, names in found.items() if word.startswith("!") for name in names}
    if all(word.startswith("!") for word in wanted):
        included = set(known)
    chosen = tuple(name for name in known if name in included - excluded)
    if not chosen:
        raise ConfigError(f"--nodes {text} excludes every node", hint=f"nodes in {place}: {_listed(known)}")
    return chosen, counts[0] if counts else None


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
        raise UsageError(f"--label {label!r} is not KEY=VALUE", hint="for example --label room=lab")
    return key, value


def _has(node: NodeSpec, key: str, value: str) -> bool:
    """A label may hold several words: `group: gpu,lab` has both `group=gpu` and `group=lab`."""
    held = node.labels.get(key)
    return held is not None and (value == held or value in held.split(","))


def _unknown(word: str, known: Sequence[str]) -> str:
    if any(character in word for character in "*?"):
        return f"no node matches {word!r}"
    near = difflib.get_close_matches(word, known, n=1)
    return f"no node {word!r}" + (f" (did you mean {near[0]!r}?)" if near else "")


def _listed(names: Sequence[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (f", … ({len(names)} in all)" if len(names) > most else "")


def _and(labels: Sequence[str]) -> str:
    return " and ".join(labels)
