"""`inventory.yaml` into an Inventory, or into every problem it has at once, each with its line.

Defaults are laid under each node as trees, so that a value keeps the line it was written on wherever it ends up; then
the models validate, and their errors become messages here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, ValidationError

from contract.hostlist import MAX_NAMES, HostlistError, expand, is_hostlist
from orchestrator.specs.cluster import ClusterSpec
from orchestrator.specs.errors import ConfigError
from orchestrator.specs.inventory import HookSpec, ImageSpec, Inventory, Limits, NodeSpec
from orchestrator.specs.inventory_files.inventory_problems import Problems, known_keys
from orchestrator.specs.inventory_files.inventory_yaml import (
    Entry,
    Mapping,
    Scalar,
    Tree,
    plain,
    read_file,
    read_yaml,
    shown,
    shown_key,
)

_DEFAULTS = "defaults"
_NODES = "nodes"
_CLUSTERS = "clusters"
_MODELS: dict[str, type[BaseModel]] = {"image": ImageSpec, "hooks": HookSpec}
_FILE_KEYS = ("project", "master_port", *_MODELS, _DEFAULTS, _NODES, _CLUSTERS)
_NODE_KEYS = tuple(key for key in known_keys(NodeSpec) if key != "name")
_CLUSTER_KEYS = tuple(key for key in known_keys(ClusterSpec) if key not in ("name", "project"))
_PLACEHOLDER = "placeholder"
"""Placeholder for a name or address that is missing or checked elsewhere, so that the other keys can be validated."""
_MERGED = ("labels", "limits")
"""Keys of a node that are laid over those of the defaults key by key."""


def read_inventory(path: str | Path) -> Inventory:
    """Read `inventory.yaml`. ConfigError: the file cannot be read, or has problems; `problems` lists all of them."""
    inventory = parse_inventory(read_file(Path(path)), filename=str(path))
    folder = Path(path).absolute().parent
    files = {key: str(folder / name) for key, name in inventory.image.files.items()}
    return inventory.model_copy(update={"image": inventory.image.model_copy(update=files)})


def parse_inventory(text: str | bytes, *, filename: str) -> Inventory:
    """The inventory, defaults filled in and ranges written out; ConfigError with all its problems."""
    tree = read_yaml(text, filename=filename)
    problems = Problems()
    inventory = _File(problems).read(tree)
    if inventory is None or problems:
        lines = problems.lines(filename)
        count = "1 problem" if len(lines) == 1 else f"{len(lines)} problems"
        raise ConfigError(f"{filename} has {count}", problems=lines)
    return inventory.of_file(filename)


class _File:
    """Reads one file, collecting what is wrong."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems

    def read(self, tree: Tree) -> Inventory | None:
        if not isinstance(tree, Mapping):
            self._problems.add(tree.line, f"the file is {_kind(tree)}; expected the keys {', '.join(_FILE_KEYS)}")
            return None
        top = self._keys(tree, _FILE_KEYS, "")
        for key, model in _MODELS.items():
            if (inner := top.get(key)) and isinstance(inner.value, Mapping):
                own = self._keys(inner.value, known_keys(model), key)
                top = replace(top, entries=tuple(replace(e, value=own) if e is inner else e for e in top.entries))
        defaults = self._defaults(top.get(_DEFAULTS))
        clusters = self._clusters(top.get(_CLUSTERS), top.get(_NODES))
        nodes = self._nodes(top.get(_NODES), defaults) if top.get(_NODES) or not top.get(_CLUSTERS) else ()
        others = (_DEFAULTS, _NODES, _CLUSTERS)
        head = Mapping(line=1, entries=tuple(e for e in top.entries if e.key not in others))
        placeholder = NodeSpec(name=_PLACEHOLDER, address=_PLACEHOLDER)
        try:
            machines = {"nodes": nodes or (() if clusters else (placeholder,)), "clusters": clusters}
            return Inventory.model_validate({**plain(head), **machines})
        except ValidationError as error:
            self._problems.add_invalid(error, Inventory, head, where="")
        return None

    def _keys(self, mapping: Mapping, known: tuple[str, ...], where: str) -> Mapping:
        """Leave out the unknown and the repeated keys, which are problems."""
        accepted: dict[str, Entry] = {}
        for entry in mapping.entries:
            if entry.key not in known:
                self._problems.add_unknown(entry, known, where)
            elif entry.key in accepted:
                self._problems.add_repeated(entry, accepted[entry.key], where)
            else:
                accepted[entry.key] = entry
        return replace(mapping, entries=tuple(accepted.values()))

    def _defaults(self, entry: Entry | None) -> Mapping:
        nothing = Mapping(line=1, entries=())
        if entry is None or _is_empty(entry.value):
            return nothing
        if not isinstance(entry.value, Mapping):
            self._problems.add(entry.line, f"defaults is {_kind(entry.value)}; expected keys of a node")
            return nothing
        own = [e for e in entry.value.entries if e.key != "address"]
        for address in (e for e in entry.value.entries if e.key == "address"):
            self._problems.add(address.line, "address in defaults; expected in each node, as no two share one")
        defaults = self._body(replace(entry.value, entries=tuple(own)), "defaults")
        self._validated(defaults, (_PLACEHOLDER, _PLACEHOLDER), "defaults")
        return defaults

    def _nodes(self, entry: Entry | None, defaults: Mapping) -> tuple[NodeSpec, ...]:
        example = "such as `alpha: {address: 192.168.1.50}`"
        if entry is None:
            self._problems.add(1, f"no key 'nodes'; expected one with the machines, {example}")
            return ()
        if not isinstance(entry.value, Mapping) or not entry.value.entries:
            self._problems.add(entry.line, f"nodes is {_kind(entry.value)}; expected names with their keys, {example}")
            return ()
        found: list[NodeSpec] = []
        places: dict[tuple[str, int], tuple[int, str]] = {}
        seen: dict[str, int] = {}
        for node in entry.value.entries:
            for name, spec in self._node(node, defaults, room=MAX_NAMES - len(seen)):
                if name in seen:
                    self._problems.add(node.line, f"node {name} appears twice (first on line {seen[name]})")
                    continue
                seen[name] = node.line
                if spec is not None:
                    self._note_place(spec, node.line, places)
                    found.append(spec)
        return tuple(found)

    def _clusters(self, entry: Entry | None, nodes: Entry | None) -> tuple[ClusterSpec, ...]:
        example = "such as `uni: {login: ana@login.uni.edu, workspace: /scratch/ana/orch}`"
        if entry is None:
            return ()
        if not isinstance(entry.value, Mapping) or not entry.value.entries:
            what = f"clusters is {_kind(entry.value)}; expected names with their keys, {example}"
            self._problems.add(entry.line, what)
            return ()
        machines = nodes.value if nodes and isinstance(nodes.value, Mapping) else Mapping(line=1, entries=())
        found: dict[str, int] = {}
        specs = []
        for cluster in entry.value.entries:
            if cluster.key in found:
                first = found[cluster.key]
                self._problems.add(cluster.line, f"cluster {cluster.key} appears twice (first on line {first})")
            elif node := machines.get(cluster.key):
                self._problems.add(cluster.line, f"cluster {cluster.key} has the name of a node (line {node.line})")
            elif spec := self._cluster(cluster):
                specs.append(spec)
            found.setdefault(cluster.key, cluster.line)
        return tuple(specs)

    def _cluster(self, entry: Entry) -> ClusterSpec | None:
        where = f"cluster {shown_key(entry.key)}"
        if not isinstance(entry.value, Mapping):
            what = f"{where} is {_kind(entry.value)}; expected its keys: {', '.join(_CLUSTER_KEYS)}"
            self._problems.add(entry.line, what)
            return None
        body = self._keys(entry.value, _CLUSTER_KEYS, where)
        assumed = {"login": _PLACEHOLDER, "workspace": f"/{_PLACEHOLDER}"}
        expected = {"login": "local, or [user@]host[:port]", "workspace": "a folder that all its nodes share"}
        for key in (key for key in assumed if body.get(key) is None):
            self._problems.add(entry.line, f"{where} has no {key}; expected {expected[key]}")
        try:
            return ClusterSpec.model_validate({**assumed, **plain(body), "name": entry.key})
        except ValidationError as error:
            named = Entry(key="name", line=entry.line, value=Scalar(line=entry.line, value=entry.key, text=entry.key))
            self._problems.add_invalid(error, ClusterSpec, replace(body, entries=(*body.entries, named)), where=where)
        return None

    def _note_place(self, spec: NodeSpec, line: int, places: dict[tuple[str, int], tuple[int, str]]) -> None:
        first, other = places.setdefault((spec.address.lower(), spec.port), (line, spec.name))
        if other != spec.name:
            place = f"{spec.address} port {spec.port} (line {first})"
            self._problems.add(line, f"node {spec.name} has the address of node {other}: {place}")

    def _node(self, entry: Entry, defaults: Mapping, room: int) -> Iterator[tuple[str, NodeSpec | None]]:
        """Every name that the key expands to, with its node if valid."""
        where = f"node {shown_key(entry.key)}"
        names = self._expanded(entry.key, entry.line, where, room)
        if not isinstance(entry.value, Mapping):
            what = f"{where} is {_kind(entry.value)}; expected its keys, such as {{address: 192.168.1.50}}"
            self._problems.add(entry.line, what)
            yield from ((name, None) for name in names)
            return
        body = _laid_over(self._body(entry.value, where), defaults)
        addresses = self._addresses(body, entry, where, names)
        for name, address in zip(names, addresses or (_PLACEHOLDER,) * len(names), strict=True):
            spec = self._validated(body, (name, address), where, entry.line)
            yield name, spec if addresses else None

    def _addresses(self, body: Mapping, node: Entry, where: str, names: tuple[str, ...]) -> tuple[object, ...]:
        """One address for each name; empty if their number is wrong."""
        entry = body.get("address")
        if entry is None:
            self._problems.add(node.line, f"{where} has no address; expected a host name or an IPv4 address")
            return ()
        written = entry.value.text if isinstance(entry.value, Scalar) else ""
        addresses: tuple[object, ...] = (plain(entry.value),)
        if is_hostlist(written):
            addresses = self._expanded(written, entry.line, f"address in {where}", MAX_NAMES)
        if not names or not addresses or len(names) == len(addresses):
            return addresses if names else ()
        what = f"{where} is {_counted(names, 'node')} with {_counted(addresses, 'address')}"
        self._problems.add(entry.line, f"{what}; expected as many, such as 192.168.1.[51-55] for node[1-5]")
        return ()

    def _expanded(self, text: str, line: int, what: str, room: int) -> tuple[str, ...]:
        if room < 1:
            self._problems.add(line, f"more than {MAX_NAMES} nodes; expected a handful")
            return ()
        try:
            return expand(text, limit=room) if is_hostlist(text) else (text,)
        except HostlistError as error:
            self._problems.add(line, f"{what}: {error}")
            return ()

    def _body(self, mapping: Mapping, where: str) -> Mapping:
        """A node's or the defaults' keys: known and single, and labels as they were written (`rack: 03`)."""
        accepted = self._keys(mapping, _NODE_KEYS, where)
        return replace(accepted, entries=tuple(self._with_inner(entry, where) for entry in accepted.entries))

    def _with_inner(self, entry: Entry, where: str) -> Entry:
        if not isinstance(entry.value, Mapping) or entry.key not in _MERGED:
            return entry
        inner = _as_written(entry.value) if entry.key == "labels" else entry.value
        known = tuple(e.key for e in inner.entries) if entry.key == "labels" else known_keys(Limits)
        return replace(entry, value=self._keys(inner, known, f"{entry.key} of {where}"))

    def _validated(
        self, body: Mapping, identity: tuple[str, object], where: str, line: int | None = None
    ) -> NodeSpec | None:
        name, address = identity
        try:
            return NodeSpec.model_validate({**plain(body), "name": name, "address": address})
        except ValidationError as error:
            tree = body
            if line is not None:
                named = Entry(key="name", line=line, value=Scalar(line=line, value=name, text=name))
                tree = replace(body, entries=(*body.entries, named))
            self._problems.add_invalid(error, NodeSpec, tree, where=where)
        return None


def _laid_over(own: Mapping, defaults: Mapping) -> Mapping:
    """The node's entries, then the missing ones from the defaults; labels and limits are merged key by key."""
    entries = []
    for entry in own.entries:
        base = defaults.get(entry.key) if entry.key in _MERGED else None
        if base and isinstance(base.value, Mapping) and isinstance(entry.value, Mapping):
            entries.append(replace(entry, value=_laid_over(entry.value, base.value)))
        else:
            entries.append(entry)
    inherited = [replace(entry, inherited=True) for entry in defaults.entries if own.get(entry.key) is None]
    return replace(own, entries=(*entries, *inherited))


def _as_written(labels: Mapping) -> Mapping:
    entries = [
        replace(entry, value=replace(entry.value, value=entry.value.text)) if isinstance(entry.value, Scalar) else entry
        for entry in labels.entries
    ]
    return replace(labels, entries=tuple(entries))


def _is_empty(tree: Tree) -> bool:
    return isinstance(tree, Scalar) and tree.value is None


def _kind(tree: Tree) -> str:
    if isinstance(tree, Mapping):
        return "an empty mapping"
    return "a list" if not isinstance(tree, Scalar) else shown(tree.value)


def _counted(things: Sequence[object], word: str) -> str:
    plural = "es" if word.endswith("s") else "s"
    return f"{len(things)} {word}{'' if len(things) == 1 else plural}"
