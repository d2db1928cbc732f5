"""Find what orch has left on nodes and on this computer, and remove it.

On a node: runs, data, agents, caches and parts of images in the project's folder, containers of ended runs, and images
by their tags `orch/PROJECT:…`. What orch has not made stays, and so does a node that has runs of another user.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from platformdirs import user_cache_path, user_config_path, user_state_path

from orchestrator.fleet.fan_out import Outcome, fan_out
from orchestrator.fleet.runs.stop import clean
from orchestrator.nodes.interface import Node
from orchestrator.specs import labels
from orchestrator.specs.checkpoint import is_run_id
from orchestrator.specs.errors import ConfigError, ConflictError, OrchError
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.leftovers import LocalRemains, NodeRemains
from orchestrator.specs.numbers import whole

LOOK_S, REMOVE_S = 120.0, 900.0
_IS_LINK = 3
"""Exit code of the scripts: the project's folder is a link."""
LONGEST_NAME = 64
_SHARED_IMAGES = ("orch/base:", "orch/lab-node:")
"""Images of no project: those of projects are built on the first, the machines of labs run the second."""
DEFAULT_WORKSPACE = NodeSpec.model_fields["workspace"].default

# Constants. $1: the project's folder, which may begin with ~. They call `mine PART PATH` for what orch has made and
# `other` for each other name: a folder `data` or `runs` may be the user's own. A run has the plan of its launch, or
# nothing but copies of checkpoints; data, agents and parts of images are named by a digest, and while they are not
# complete also by the run that copies them and `.partial`. `Data` is an empty folder that launches once made; data are
# read-only. Links are never followed.
_ENTER = r"""
LC_ALL=C; export LC_ALL
place=$1
case $place in "~"*) place=$HOME${place#"~"};; esac
[ ! -L "$place" ] || { echo "$place is a link" >&2; exit 3; }
cd -- "$place" 2>/dev/null || exit 0
"""
_EACH = r"""
each() {
  for entry in * .[!.]*; do
    [ -e "$entry" ] || [ -L "$entry" ] || continue
    case $entry in
      runs|data|agent|cache|images) if [ -d "$entry" ] && [ ! -L "$entry" ]; then inside "$entry"; else other; fi;;
      Data) [ -d Data ] && [ ! -L Data ] && [ -z "$(ls -A Data)" ] || other;;
      *) other;;
    esac
  done
}
inside() {
  for path in "$1"/* "$1"/.[!.]*; do
    [ -e "$path" ] || [ -L "$path" ] || continue
    if [ -d "$path" ] && [ ! -L "$path" ] && is_made "$1" "${path##*/}"; then mine "$1" "$path"; else other; fi
  done
}
is_made() {
  case $1 in
    runs) case $2 in .*|*[!A-Za-z0-9._-]*) return 1;; esac
      [ -f "runs/$2/plan.json" ] ||
        [ -z "$(find "runs/$2" -mindepth 1 -maxdepth 1 ! -name checkpoints ! -name best.json)" ];;
    cache) [ "$2" = huggingface ] || [ "$2" = torch ] || [ "$2" = inductor ];;
    data) [ "$2" = .sums ] || is_digest "$2";;
    *) is_digest "$2";;
  esac
}
is_digest() {
  digest=${1%%.*}
  case $digest in *[!0-9a-f]*) return 1;; esac
  [ ${#digest} = 16 ] || return 1
  case ${1#"$digest"} in ""|.partial) ;; *[!A-Za-z0-9._-]*) return 1;; .?*.partial) ;; *) return 1;; esac
}
"""
_LOOK = (
    _ENTER
    + _EACH
    + r"""
mine() {
  printf '%s %s\n' "$1" "$(du -skP -- "$2" 2>/dev/null | tail -n 1 | cut -f 1)"
  [ "$1" = runs ] || return 0
  printf 'run %s\n' "${2#runs/}"
  sed -n 's/^  "user": "\(.*\)",\{0,1\}$/owner \1/p' "$2/plan.json" 2>/dev/null | head -n 1
}
other() { echo other; }
printf 'at %s\n' "$(pwd -P)"
each
exit 0
"""
)
# $2: 1 to remove the workspace around it too, if it is empty then.
_REMOVE = (
    _ENTER
    + _EACH
    + r"""
failed=0
mine() {
  [ "$1" != data ] || chmod -R u+w -- "$2" 2>/dev/null
  rm -rf -- "$2" || failed=1
}
other() { :; }
each
rmdir -- runs data agent cache images Data 2>/dev/null
here=$(pwd -P)
cd / && rmdir -- "$here" 2>/dev/null && [ "$2" = 1 ] && rmdir -- "$(dirname -- "$here")" 2>/dev/null
exit $failed
"""
)


def node_remains(
    specs: Sequence[NodeSpec], nodes: Sequence[Node], project: str, own_name: str
) -> tuple[Outcome[Node, NodeRemains], ...]:
    """Look at every node; nothing is changed. A node with runs of others than `own_name` is a ConflictError."""
    folders = {spec.name: spec.folder(project) for spec in specs}

    def look(node: Node) -> NodeRemains:
        answer = node.run(["sh", "-c", _LOOK, "sh", folders[node.name]], timeout_s=LOOK_S)
        link = "make workspace of the inventory the folder itself" if answer.exit_code == _IS_LINK else ""
        words, parts = _read(answer.check(f"reading {folders[node.name]}", hint=link))
        held = node.engine.containers({labels.LABEL_RUN: "", labels.LABEL_PROJECT: project})
        shown = (name[:LONGEST_NAME] for name in words["owner"])
        owners = {*shown, *(one.labels.get(labels.LABEL_USER, "") for one in held)} - {own_name, ""}
        if owners:
            raise ConflictError(
                f"it has runs of {', '.join(sorted(owners))}; nothing is removed there",
                node=node.name,
                hint=f"leave it out: orch uninstall --nodes '!{node.name}'",
            )
        return NodeRemains(
            node=node.name,
            folder=next(iter(words["at"]), ""),
            parts=dict(parts),  # asdict would make a Counter of pairs
            others=len(words["other"]),
            runs=tuple(filter(is_run_id, words["run"])),
            containers=len(held),
            images=_images(node, (f"orch/{project}:",)),
        )

    return fan_out(nodes, look, timeout_s=LOOK_S)


def _read(answer: str) -> tuple[Mapping[str, list[str]], Counter[str]]:
    """Answer of a node about its folder: the words after `at`, `other`, `owner` and `run`, and bytes by part."""
    words, parts = defaultdict[str, list[str]](list), Counter[str]()
    for line in answer.splitlines():
        kind, _, rest = line.partition(" ")
        if kind in ("runs", "data", "cache", "agent", "images"):
            parts["cache" if kind == "images" else kind] += (whole(rest) or 0) * 1024
        else:
            words[kind].append(rest)
    return words, parts


def _images(node: Node, beginnings: tuple[str, ...]) -> dict[str, int]:
    return {tag: image.size_bytes for image in node.engine.images() for tag in image.tags if tag.startswith(beginnings)}


def remove_from_nodes(
    specs: Sequence[NodeSpec], nodes: Sequence[Node], remains: Sequence[NodeRemains], project: str
) -> tuple[Outcome[Node, None], ...]:
    """Remove what was found. A node's error leaves the rest of it there: the same call again continues."""
    by_name = {spec.name: spec for spec in specs}
    found = {one.node: one for one in remains}
    chosen = [node for node in nodes if node.name in found]
    cleaned = {outcome.item.name: outcome for outcome in clean(chosen, project=project)}

    def remove(node: Node) -> None:
        cleaned[node.name].value()
        spec = by_name[node.name]
        default = "1" if spec.workspace == DEFAULT_WORKSPACE else "0"
        argv = ["sh", "-c", _REMOVE, "sh", spec.folder(project), default]
        node.run(argv, timeout_s=REMOVE_S).check(
            f"removing {spec.folder(project)}",
            hint=f"files of another user? orch exec {node.name} -- ls -l {spec.workspace}",
        )
        for tag in found[node.name].images:
            node.engine.remove_image(tag)

    return fan_out(chosen, remove, timeout_s=REMOVE_S)


def local_folders() -> tuple[LocalRemains, ...]:
    """Records and caches, accepted host keys and temporary archives of orch on this computer, of all projects."""
    folders = dict.fromkeys((user_state_path("orch"), user_config_path("orch"), user_cache_path("orch")))
    return tuple(LocalRemains(path=one, size_bytes=_size(one)) for one in folders if one.is_dir())


def local_images(controller: Node, project: str) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes by tag of orch's images on this computer that are to be removed, and of those that stay: the ones that all
    projects share, while images of another project are here. Both are empty if it has no engine."""
    with suppress(OrchError):
        every = _images(controller, ("orch/",))
        own = {tag: size for tag, size in every.items() if tag.startswith(f"orch/{project}:")}
        shared = {tag: size for tag, size in every.items() if tag.startswith(_SHARED_IMAGES) and tag not in own}
        return (own, shared) if len(every) > len(own) + len(shared) else (own | shared, {})
    return {}, {}


def remove_locally(folders: Sequence[LocalRemains], images: Mapping[str, int], controller: Node) -> Iterator[OrchError]:
    """Remove the folders and images; yield an error for each that stays."""
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
