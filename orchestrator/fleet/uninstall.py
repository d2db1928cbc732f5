"""Find what orch has left on nodes and on this computer, and remove it.

On a node: the folders that orch makes inside the project's folder, containers of ended runs, and images by their tags
`orch/PROJECT:…`. Names that orch does not make are never removed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from platformdirs import user_cache_path, user_config_path, user_state_path

from orchestrator.fleet.fan_out import Outcome, fan_out
from orchestrator.fleet.runs.stop import clean
from orchestrator.nodes.interface import Node
from orchestrator.specs import labels
from orchestrator.specs.checkpoint import is_run_id
from orchestrator.specs.errors import ConfigError, OrchError
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.leftovers import LocalRemains, NodeRemains
from orchestrator.specs.numbers import whole

LOOK_S, REMOVE_S = 120.0, 900.0
DEFAULT_WORKSPACE = NodeSpec.model_fields["workspace"].default

# Constants. $1: the project's folder, which may begin with ~. `-P`: sizes are those of what is removed. `Data` is the
# empty folder on which the engine mounts a run's data.
_ENTER = r"""
LC_ALL=C; export LC_ALL
place=$1
case $place in "~"*) place=$HOME${place#"~"};; esac
"""
_LOOK = (
    _ENTER
    + r"""
cd -P -- "$place" 2>/dev/null || exit 0
printf 'at %s\n' "$(pwd -P)"
for part in runs data cache agent; do
  if [ -e "$part" ] || [ -L "$part" ]; then
    printf '%s %s\n' "$part" "$(du -skP -- "$part" 2>/dev/null | tail -n 1 | cut -f 1)"
  fi
done
find . -mindepth 1 -maxdepth 1 ! -name runs ! -name data ! -name cache ! -name agent \
  ! \( -name Data -type d -empty \) -printf 'other\n'
for found in runs/*/checkpoints/step-*; do
  [ -d "$found" ] || continue
  run=${found#runs/}; printf 'run %s\n' "${run%%/*}"
done | sort -u
exit 0
"""
)
# $2: 1 to remove the workspace around it too, if it is empty then.
_REMOVE = (
    _ENTER
    + r"""
cd -P -- "$place" 2>/dev/null || exit 0
rm -rf -- runs data cache agent || exit 1
rmdir -- Data 2>/dev/null
here=$(pwd -P)
cd / && rmdir -- "$here" 2>/dev/null && [ "$2" = 1 ] && rmdir -- "$(dirname -- "$here")" 2>/dev/null
exit 0
"""
)


def node_remains(
    specs: Sequence[NodeSpec], nodes: Sequence[Node], project: str
) -> tuple[Outcome[Node, NodeRemains], ...]:
    """Look at every node; nothing is changed."""
    folders = {spec.name: f"{spec.workspace}/{project}" for spec in specs}

    def look(node: Node) -> NodeRemains:
        answer = node.run(["sh", "-c", _LOOK, "sh", folders[node.name]], timeout_s=LOOK_S)
        folder, parts, others, runs = _read(answer.check(f"reading {folders[node.name]}"))
        return NodeRemains(
            node=node.name,
            folder=folder,
            parts=parts,
            others=others,
            runs=runs,
            containers=len(node.engine.containers({labels.LABEL_RUN: "", labels.LABEL_PROJECT: project})),
            images=_images(node, (f"orch/{project}:",)),
        )

    return fan_out(nodes, look, timeout_s=LOOK_S)


def _read(answer: str) -> tuple[str, dict[str, int], int, tuple[str, ...]]:
    """Folder, bytes by part, number of other names, and runs with checkpoints."""
    folder, parts, others, runs = "", dict[str, int](), 0, list[str]()
    for line in answer.splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "at":
            folder = rest
        elif kind == "other":
            others += 1
        elif kind == "run" and is_run_id(rest):
            runs.append(rest)
        elif kind in ("runs", "data", "cache", "agent"):
            parts[kind] = (whole(rest) or 0) * 1024
    return folder, parts, others, tuple(runs)


def _images(node: Node, beginnings: tuple[str, ...]) -> dict[str, int]:
    return {tag: image.size_bytes for image in node.engine.images() for tag in image.tags if tag.startswith(beginnings)}


def remove_from_nodes(
    specs: Sequence[NodeSpec], nodes: Sequence[Node], remains: Sequence[NodeRemains], project: str
) -> tuple[Outcome[Node, None], ...]:
    """Remove what was found. A node's error leaves the rest of it there: the same call again continues."""
    workspaces = {spec.name: spec.workspace for spec in specs}
    found = {one.node: one for one in remains}
    chosen = [node for node in nodes if node.name in found]
    cleaned = {outcome.item.name: outcome for outcome in clean(chosen, project=project)}

    def remove(node: Node) -> None:
        cleaned[node.name].value()
        workspace = workspaces[node.name]
        default = "1" if workspace == DEFAULT_WORKSPACE else "0"
        argv = ["sh", "-c", _REMOVE, "sh", f"{workspace}/{project}", default]
        node.run(argv, timeout_s=REMOVE_S).check(
            f"removing {workspace}/{project}", hint=f"files of another user? orch exec {node.name} -- ls -l {workspace}"
        )
        for tag in found[node.name].images:
            node.engine.remove_image(tag)

    return fan_out(chosen, remove, timeout_s=REMOVE_S)


def local_folders() -> tuple[LocalRemains, ...]:
    """Records and caches, accepted host keys and temporary archives of orch on this computer, of all projects."""
    folders = dict.fromkeys((user_state_path("orch"), user_config_path("orch"), user_cache_path("orch")))
    return tuple(LocalRemains(path=one, size_bytes=_size(one)) for one in folders if one.is_dir())


def local_images(controller: Node, project: str) -> dict[str, int]:
    """Bytes by tag of orch's images on this computer; empty if it has no engine."""
    with suppress(OrchError):
        return _images(controller, (f"orch/{project}:", "orch/base:", "orch/lab-node:"))
    return {}


def remove_locally(folders: Sequence[LocalRemains], images: Mapping[str, int], controller: Node) -> Iterator[OrchError]:
    """Remove the folders and images; the errors of what stays."""
    for tag in images:
        try:
            controller.engine.remove_image(tag)
        except OrchError as error:
            yield error
    for one in folders:
        try:
            shutil.rmtree(one.path)
        except OSError as error:
            yield ConfigError(f"cannot remove {one.path}: {error.strerror}", hint=f"ls -l {one.path}")


def _size(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += (Path(place) / name).lstat().st_size
    return total
