"""Node selection: `-n 5`, `alpha,beta`, `'node[01-05]'`, `'lab*'`, `room=lab`, `'!gamma'`, combinations.

The nodes come in the order of the inventory, so that a node keeps its place among the ranks.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from contract.hostlist import HostlistError, expand
from orchestrator.specs.errors import ConfigError, UsageError

if TYPE_CHECKING:  # commands load this for their help: pydantic takes longer than all else
    from orchestrator.specs.cluster import ClusterSpec
    from orchestrator.specs.inventory import Inventory, NodeSpec

_HINT = (
    "give a number (5), names (alpha,beta), a range (node[01-05]), a pattern ('lab*'), a label (room=lab) "
    "or an exclusion ('!gamma')"
)
Labels = Mapping[str, Mapping[str, str]]
"""Labels of each node, by its name."""


def select_nodes(inventory: Inventory, nodes: str | None = None) -> tuple[NodeSpec, ...]:
    """Nodes that `nodes` selects, all where it is None. ConfigError: none is left, or a name is unknown."""
    filename = inventory.filename
    if not inventory.nodes:
        clusters = [one.name for one in inventory.clusters]
        hint = f"orch launch --on {clusters[0]} --nodes 2 …   # clusters: {', '.join(clusters)}"
        raise ConfigError(f"{filename} has no nodes, only clusters", hint=hint)
    if nodes is None:
        return inventory.nodes
    names, count = select_names(
        nodes, [node.name for node in inventory.nodes], place=filename, labels=labels_of(inventory.nodes)
    )
    chosen = tuple(node for node in inventory.nodes if node.name in names)
    if count is not None and count > len(chosen):
        others = [word for word in expand(nodes) if not word.isdecimal()]
        selected = f" of {','.join(others)}" if others else ""
        raise ConfigError(
            f"asked for {'1 node' if count == 1 else f'{count} nodes'}, {filename} has "
            f"{len(chosen)}{selected}: {_listed([node.name for node in chosen])}",
            hint=f"ask for --nodes {shlex.quote(','.join([str(len(chosen)), *others]))}, or add machines to {filename}",
        )
    return chosen[:count]


def labels_of(nodes: Iterable[NodeSpec | ClusterSpec]) -> Labels:
    """Labels of the nodes, by name. A cluster has none."""
    return {node.name: getattr(node, "labels", {}) for node in nodes}


def select_names(
    text: str, known: Sequence[str], *, place: str, labels: Labels | None = None
) -> tuple[tuple[str, ...], int | None]:
    """Names among `known` that the text selects, and how many of these at most (None: all of them).

    Words are separated by commas: a number, a name, a range `node[01-05]`, a pattern with `*` or `?`, a label
    `key=value`, and each of these after `!` to exclude it. Without any but exclusions, all of `known` are selected
    before these. `place` is where the names come from, for messages. UsageError: not such a list; ConfigError: an
    unknown name or label, a pattern without a match, or no node left.
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
    found = {word: _matching(word.removeprefix("!"), known, labels or {}) for word in wanted}
    if missing := [word.removeprefix("!") for word, names in found.items() if not names]:
        raise _not_there(missing, known, labels or {}, place)
    included = {name for word, names in found.items() if not word.startswith("!") for name in names}
    excluded = {name for word, names in found.items() if word.startswith("!") for name in names}
    if all(word.startswith("!") for word in wanted):
        included = set(known)
    chosen = tuple(name for name in known if name in included - excluded)
    if not chosen:
        raise ConfigError(f"--nodes {text} excludes every node", hint=f"nodes in {place}: {_listed(known)}")
    return chosen, counts[0] if counts else None


def _matching(word: str, known: Sequence[str], labels: Labels) -> list[str]:
    """Names that a word selects: by their labels where it has a `=`, which no name has."""
    if "=" not in word:
        return [name for name in known if fnmatchcase(name, word)]
    key, value = _parsed(word)
    return [name for name in known if _has(labels.get(name, {}), key, value)]


def _not_there(missing: Sequence[str], known: Sequence[str], labels: Labels, place: str) -> ConfigError:
    """Error for words that select no node: what is there, and for each word the nearest."""
    there = _label_words(labels[name] for name in known if name in labels)
    hints = [f"nodes there: {_listed(known)}"] if any("=" not in word for word in missing) else []
    if any("=" in word for word in missing):
        hints.append(
            f"labels there: {_listed(there)}" if there else "no node there has labels; add `labels: {key: value}`"
        )
    return ConfigError(
        f"not in {place}: {', '.join(missing)}",
        problems=[_unknown(word, there if "=" in word else known) for word in missing],
        hint="; ".join(hints),
    )


def _parsed(label: str) -> tuple[str, str]:
    key, equals, value = label.partition("=")
    if not key or not equals or not value:
        raise UsageError(f"--nodes {label!r} is not KEY=VALUE", hint="for example --nodes room=lab")
    return key, value


def _has(labels: Mapping[str, str], key: str, value: str) -> bool:
    """A label may hold several words: `group: gpu,lab` has both `group=gpu` and `group=lab`."""
    held = labels.get(key)
    return held is not None and (value == held or value in held.split(","))


def _label_words(labels: Iterable[Mapping[str, str]]) -> list[str]:
    """Every `key=value` that selects a node."""
    return sorted({f"{key}={one}" for held in labels for key, value in held.items() for one in value.split(",")})


def _unknown(word: str, known: Sequence[str]) -> str:
    if "=" not in word and any(character in word for character in "*?"):
        return f"no node matches {word!r}"
    near = difflib.get_close_matches(word, known, n=1)
    what = "no node has the label" if "=" in word else "no node"
    return f"{what} {word!r}" + (f" (did you mean {near[0]!r}?)" if near else "")


def _listed(names: Sequence[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (f", … ({len(names)} in all)" if len(names) > most else "")
