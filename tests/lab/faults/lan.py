"""The lab as a test breaks it: commands as root on its machines, its inventory to be changed, and what undoes both."""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.lab.conftest import LAB, NAMES, Done, Orch

IMAGE = "orch/lab:cpu"
SHIMS = "/usr/local/bin"
"""First on the PATH that sshd gives to a user's commands."""
USER = "orch"


Make = Callable[["Lan"], AbstractContextManager[None]]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that is broken, and what `orch doctor` must make of it."""

    what: str
    make: Make
    finds: str
    """The id of the finding."""
    node: str
    """Node that the finding names."""
    fix: str
    """Words that its fix must hold."""
    says: str = ""
    """Words that its message must hold."""
    follows: tuple[str, ...] = ()
    """Ids that this fault may bring along on any node: what follows from it, and is no false alarm."""


@dataclass
class Lan:
    """The five machines, and an inventory of this test's own."""

    orch: Orch
    document: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with (self.state / "inventory.yaml").open() as file:
            self.document = YAML(typ="safe", pure=True).load(file)

    @property
    def state(self) -> Path:
        """Folder of the lab's keys and its inventory."""
        return Path(self.orch.environment["XDG_STATE_HOME"]) / "orch" / "lab"

    @property
    def nodes(self) -> dict[str, Any]:
        nodes: dict[str, Any] = self.document["nodes"]
        return nodes

    def address(self, node: str) -> str:
        """Its address; of a machine of the lab, whatever the inventory says meanwhile."""
        network = str(self.nodes[NAMES[0]]["address"]).rsplit(".", 1)[0]
        return f"{network}.{11 + NAMES.index(node)}"

    def free_address(self, last: int) -> str:
        """One of the lab's network that no machine has."""
        return f"{self.address(NAMES[0]).rsplit('.', 1)[0]}.{last}"

    def peers(self, node: str) -> str:
        """Addresses of all others, as iptables takes them."""
        return ",".join(self.address(name) for name in NAMES if name != node)

    def doctor(self, *words: str) -> Done:
        """`orch doctor --json` with the inventory as it is now."""
        path = self.orch.folder / "faulty.yaml"
        with path.open("w") as file:
            YAML().dump(self.document, file)
        return self.orch("doctor", "-i", str(path), "--json", *words, timeout_s=120)

    def root(self, node: str, script: str, *, stdin: str = "") -> str:
        """Run a shell script as root on a machine, for its output."""
        ended = subprocess.run(
            ["docker", "exec", "-i", f"orch-{LAB}-{node}", "sh", "-euc", script],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert ended.returncode == 0, f"{node}: {script}: {ended.stdout}{ended.stderr}"
        return ended.stdout

    def begin(self, node: str, argv: Sequence[str], *, user: str = "root") -> None:
        """Start what continues by itself."""
        subprocess.run(["docker", "exec", "-d", "-u", user, f"orch-{LAB}-{node}", *argv], check=True, timeout=30)

    def until(self, node: str, condition: str) -> None:
        """Wait on the machine itself, for 30 s at most."""
        waiting = f"n=0; until {condition}; do n=$((n + 1)); [ $n -lt 300 ]; sleep 0.1; done"
        self.root(node, waiting)


def on(injector: Callable[..., AbstractContextManager[None]], *words: Any, **named: Any) -> Make:
    """This injector with these words, once there is a lab."""
    return lambda lan: injector(lan, *words, **named)


@contextmanager
def broken(lan: Lan, node: str, make: str, undo: str) -> Iterator[None]:
    """Break a node by one script, and repair it by the other."""
    lan.root(node, make)
    try:
        yield
    finally:
        lan.root(node, undo)


@contextmanager
def written(lan: Lan, node: str, path: str, text: str, *, mode: str = "644") -> Iterator[None]:
    """A file with this content; what was there comes back. Written in place: some are mounted."""
    saved = f"/var/tmp/orch-fault{path.replace('/', '_')}"
    lan.root(node, f"if [ -e {path} ]; then cp -p {path} {saved}; fi; cat > {path}; chmod {mode} {path}", stdin=text)
    try:
        yield
    finally:
        lan.root(node, f"if [ -e {saved} ]; then cat {saved} > {path}; rm {saved}; else rm -f {path}; fi")


def shim(lan: Lan, node: str, name: str, script: str) -> AbstractContextManager[None]:
    """A program that the node's user finds before the machine's own."""
    return written(lan, node, f"{SHIMS}/{name}", f"#!/bin/sh\n{script}\n", mode="755")


@contextmanager
def mounted(lan: Lan, node: str, path: str, *, size: str = "1m") -> Iterator[None]:
    """A small disk of its own in place of this folder."""
    lan.root(node, f"mkdir -p {path}; mount -t tmpfs -o size={size},mode=755 tmpfs {path}")
    try:
        yield
    finally:
        lan.root(node, f"umount {path}")


@contextmanager
def rules(lan: Lan, node: str, *wanted: str) -> Iterator[None]:
    """These rules of iptables, in this order."""
    done: list[str] = []
    try:
        for rule in wanted:
            lan.root(node, f"iptables --wait --append {rule}")
            done.append(rule)
        yield
    finally:
        for rule in reversed(done):
            lan.root(node, f"iptables --wait --delete {rule}")


@contextmanager
def inventory(lan: Lan, node: str, **changes: Any) -> Iterator[None]:
    """Other words in the inventory, or a node more."""
    before = copy.deepcopy(lan.nodes.get(node))
    entry = lan.nodes.setdefault(node, {})
    for key, value in changes.items():
        entry[key] = {**entry.get(key, {}), **value} if isinstance(value, dict) else value
    try:
        yield
    finally:
        if before is None:
            del lan.nodes[node]
        else:
            lan.nodes[node] = before
