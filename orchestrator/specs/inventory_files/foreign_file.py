"""Files of other programs that name machines: SkyPilot's SSH pools, dstack's fleets and Ray's clusters are converted;
others are refused by name, before they are taken for an Ansible inventory or a hostfile."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from orchestrator.specs.errors import ConfigError
from orchestrator.specs.inventory_files.ansible_vars import require_static
from orchestrator.specs.inventory_files.inventory_import import ImportedInventory, ImportedNode
from orchestrator.specs.inventory_files.inventory_yaml import mapping_of, plain, read_yaml, shown

_LINES = "write its machines as lines `NAME slots=GPUS` (a hostfile), then: orch inventory import FILE"
_NAMED = (
    (re.compile(r"^\s*(NodeName|PartitionName)=", re.IGNORECASE | re.MULTILINE), "Slurm's configuration"),
    (
        re.compile(
            r"\A(?=[^\n]*\b(ip|host|hostname|name|node|address|user)\b)[\w \"-]+([,;])[\w ,;\"-]+\n", re.IGNORECASE
        ),
        "a table (CSV)",
    ),
)
"""Texts that are no YAML, by what only they have."""
_KEYED = (
    ({"service", "servers"}, "Kamal's deploy.yml"),
    ({"compute_environment"}, "a configuration of Accelerate"),
    ({"services"}, "a file of Docker Compose"),
    ({"apiVersion", "kind"}, "a manifest of Kubernetes"),
    ({"resources", "run"}, "a task of SkyPilot, which names no machines itself: ~/.sky/ssh_node_pools.yaml does"),
)
"""YAML, by keys at its top."""
_POOL = {"hosts", "user", "identity_file", "password"}


def from_foreign_file(text: str, *, filename: str) -> ImportedInventory | None:
    """Machines of a file of SkyPilot, dstack or Ray; None where it is none of these. ConfigError names the program of
    a file that is not converted."""
    require_static(text, filename=filename)
    top = _top(text, filename)
    if not isinstance(top, dict):
        name = next((name for pattern, name in _NAMED if pattern.search(text)), "") or _json(text, top)
        if name:
            raise ConfigError(f"{filename} is {name}, no inventory", hint=_LINES)
        return None
    for keys, name in _KEYED:
        if keys <= top.keys() and not {"hosts", "children", "_meta", "nodes"} & top.keys():
            raise ConfigError(f"{filename} is {name}, no inventory", hint=_LINES)
    if top.get("type") == "fleet" or "ssh_config" in top:
        return _dstack(mapping_of(top.get("ssh_config")), filename)
    if isinstance(provider := top.get("provider"), dict) and "cluster_name" in top:
        return _ray(provider, mapping_of(top.get("auth")), filename)
    return _pools(top) if _is_pools(top, text) else None


def _top(text: str, filename: str) -> Any:
    try:
        return plain(read_yaml(text, filename=filename, tags=True))
    except ConfigError:
        return None


def _json(text: str, top: Any) -> str:
    """Name of a JSON document that is no mapping: no program writes its inventory so."""
    if text.lstrip()[:1] != "[" or not isinstance(top, list):
        return ""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return ""
    return "a JSON list"


def _is_pools(top: dict[str, Any], text: str) -> bool:
    """Return whether every key is a pool of SkyPilot: a list of hosts, which Ansible refuses in YAML."""
    return (
        not text.lstrip().startswith("{")
        and bool(top)
        and all(
            isinstance(one, dict) and isinstance(one.get("hosts"), list) and one.keys() <= _POOL for one in top.values()
        )
    )


def _pools(top: dict[str, Any]) -> ImportedInventory:
    """`~/.sky/ssh_node_pools.yaml`: each pool with its hosts; what a host has itself wins."""
    nodes, notes = [], ["read as SSH node pools of SkyPilot"]
    for pool, given in top.items():
        for host in given["hosts"]:
            own = host if isinstance(host, dict) else {"ip": host}
            values = {**given, **own}
            if values.get("password"):
                notes.append(f"{shown(own.get('ip'))}: its password is not taken over: orch init sets up a key")
            node = _node(own.get("ip"), values, notes, {"pool": pool})
            nodes += [node] if node else []
    return ImportedInventory(nodes=tuple(nodes), notes=tuple(dict.fromkeys(notes)))


def _dstack(given: Mapping[str, Any], filename: str) -> ImportedInventory:
    """`type: fleet` with `ssh_config`: its hosts are addresses, or mappings with a hostname."""
    nodes: list[ImportedNode] = []
    notes = ["read as an SSH fleet of dstack"]
    hosts = given.get("hosts")
    if not isinstance(hosts, list):
        raise ConfigError(
            f"{filename} is a fleet of dstack without ssh_config.hosts: it names no machines", hint=_LINES
        )
    for host in hosts:
        own = host if isinstance(host, dict) else {"hostname": host}
        values = {**given, **own}
        node = _node(own.get("hostname"), values, notes, {})
        if node and isinstance(proxy := values.get("proxy_jump"), dict):
            user, port = proxy.get("user"), proxy.get("port")
            jump = f"{f'{user}@' if user else ''}{proxy.get('hostname')}{f':{port}' if port else ''}"
            node = ImportedNode(name=node.name, values={**node.values, "jump": jump})
            if proxy.get("identity_file"):
                notes.append(f"the key of the jump host {shown(jump)} belongs in ~/.ssh/config: IdentityFile")
        nodes += [node] if node else []
    return ImportedInventory(nodes=tuple(nodes), notes=tuple(dict.fromkeys(notes)))


def _ray(provider: Mapping[str, Any], auth: Mapping[str, Any], filename: str) -> ImportedInventory:
    """Ray's cluster.yaml with `provider: {type: local}`."""
    if provider.get("type") != "local":
        raise ConfigError(
            f"{filename} is a cluster of Ray on {shown(provider.get('type'))}: it names no machines", hint=_LINES
        )
    notes = ["read as a cluster of Ray"]
    workers = provider.get("worker_ips")
    hosts = [provider.get("head_ip"), *(workers if isinstance(workers, list) else [])]
    shared = {"user": auth.get("ssh_user"), "identity_file": auth.get("ssh_private_key")}
    nodes = [_node(host, shared, notes, {}) for host in hosts]
    return ImportedInventory(nodes=tuple(node for node in nodes if node), notes=tuple(notes))


def _node(host: Any, values: Mapping[str, Any], notes: list[str], labels: dict[str, str]) -> ImportedNode | None:
    """A machine by its address, with the keys that all these programs share."""
    if not isinstance(host, str):
        notes.append(f"{shown(host)} left out: it has no address")
        return None
    keys = {"user": values.get("user"), "port": values.get("port"), "identity": values.get("identity_file")}
    given = {key: value for key, value in keys.items() if value is not None}
    return ImportedNode(name=host, values={"address": host, **given, **({"labels": labels} if labels else {})})
