"""Secrets of a run, and the token by which its agents authenticate each other, as files on the nodes.

A value travels as the stdin of a command that never changes. No plan, label, environment, command line or record
holds it; where a rank prints a secret that this controller knows, it is hidden.
"""

from __future__ import annotations

import re
import secrets as random
from collections.abc import Mapping, Sequence

from contract.run_folder import AGENTS_TOKEN
from orchestrator.fleet.fan_out import Outcome, fan_out
from orchestrator.nodes.interface import Node
from orchestrator.specs.errors import ConfigError
from orchestrator.specs.labels import LABEL_SECRETS
from orchestrator.specs.plan import NodePlan
from orchestrator.specs.run import RUN_ID
from orchestrator.specs.secret import Veil

TOKEN_BYTES = 32
_FOLDER = re.compile(r"(/dev/shm/orch-\d+)/([A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9._-]+)")
_SHARED = re.compile(rf"(~?(?:/[A-Za-z0-9._+@-]+)+/runs/{RUN_ID})/(secrets)")

# Constants for the node's shell: $1 folder of this user's secrets, $2 that of this run's part, $3 name.
# Another user may write to /dev/shm too, and could have made $1 first.
_PLACE = """
umask 077
mkdir -p "$1/$2" && [ -O "$1" ] && [ ! -L "$1" ] && chmod 700 "$1" || exit 1
cat > "$1/$2/.$3" && chmod 400 "$1/$2/.$3" && mv -f "$1/$2/.$3" "$1/$2/$3"
"""
_READ = """
folder=$1; case $folder in "~"*) folder=$HOME${folder#"~"};; esac
for file in "$folder/$2"/*; do [ -f "$file" ] && cat "$file" && echo; done
exit 0
"""
_REMOVE = """
cd "$1" 2>/dev/null || exit 0
rm -rf -- "./$2" || exit 1
rmdir "./${2%/*}" "$1" 2>/dev/null
exit 0
"""

# $1 folder of the run (which may begin with ~), $2 name of the file, $3 node: several may share the folder. In the
# run's folder, not in memory: a machine that was switched off is to rejoin its run without a controller.
_PLACE_AGENTS = """
umask 077
folder=$1; case $folder in "~"*) folder=$HOME${folder#"~"};; esac
cat > "$folder/.$2.$3" && mv -f "$folder/.$2.$3" "$folder/$2"
"""


def place_secrets(node: Node, part: NodePlan, values: Mapping[str, bytes]) -> None:
    """Files of mode 0400 in the node's memory, where the part's container will look for them."""
    for name, value in values.items():
        top, inner = _folder(part.container.labels[LABEL_SECRETS])
        placed = node.run(["sh", "-c", _PLACE, "sh", top, inner, name], stdin=value)
        placed.check(f"handing over the secret {name}", hint=f"does {top} belong to another user there?")


def remove_secrets(node: Node, folder: str) -> None:
    """Remove a container's folder of secrets; `folder` is from its label, empty for a container without secrets.

    One on shared storage stays: it belongs to a job, which may still need it on other nodes and removes it at its end.
    """
    if folder and not _SHARED.fullmatch(folder):
        top, inner = _folder(folder)
        node.run(["sh", "-c", _REMOVE, "sh", top, inner]).check(f"removing {folder}")


def secrets_of(labels: Mapping[str, str]) -> str:
    """The folder of a container's secrets; empty where it has none."""
    return labels.get(LABEL_SECRETS, "")


def place_token(parts: Sequence[tuple[Node, NodePlan]], run_id: str) -> Sequence[Outcome[tuple[Node, NodePlan], None]]:
    """Write a new token, the same on each node, readable by its user alone. Call it for each attempt while it holds all
    its nodes and before the first container starts; a single node needs no token."""
    token = random.token_hex(TOKEN_BYTES).encode()

    several = parts if len(parts) > 1 else ()
    return fan_out(several, lambda item: _write_token(item[0], f"{item[1].folder}/runs/{run_id}", token))


def shared_folder(run_folder: str) -> str:
    """Folder of a job's secrets in the run's folder."""
    return f"{run_folder}/secrets"


def place_shared(node: Node, run_folder: str, values: Mapping[str, bytes]) -> None:
    """Secrets and a new token of the agents in the run's folder, for nodes that share it: readable by its user alone.
    The job removes the secrets when it ends."""
    for name, value in values.items():
        placed = node.run(["sh", "-c", _PLACE, "sh", shared_folder(run_folder), ".", name], stdin=value)
        placed.check(f"handing over the secret {name}")
    _write_token(node, run_folder, random.token_hex(TOKEN_BYTES).encode())


def _write_token(node: Node, run_folder: str, token: bytes) -> None:
    argv = ["sh", "-c", _PLACE_AGENTS, "sh", run_folder, AGENTS_TOKEN, node.name]
    node.run(argv, stdin=token).check("writing the token of the run's agents")


def veil_at(node: Node, folder: str, known: Veil) -> Veil:
    """Return `known` with the secrets in this folder of the node added: also another computer can then hide them."""
    if not folder:
        return known
    shared = _SHARED.fullmatch(folder)
    words = shared.groups() if shared else _folder(folder)
    return known.and_over([node.run(["sh", "-c", _READ, "sh", *words]).stdout])


def _folder(label: str) -> tuple[str, str]:
    """Return the user's folder and the container's in it. A label is checked: it names a folder to be removed."""
    found = _FOLDER.fullmatch(label)
    if not found or ".." in found[2].split("/"):
        raise ConfigError(f"label {LABEL_SECRETS} names no folder of secrets: {label!r}")
    return found[1], found[2]
