"""Data of runs on the nodes: which folders lie there, which runs read them, and their removal."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.fleet.fan_out import Outcome, fan_out
from orchestrator.fleet.runs.find_runs import find_runs
from orchestrator.nodes.interface import Node
from orchestrator.specs.checkpoint import is_run_id
from orchestrator.specs.data import DIGEST_LENGTH
from orchestrator.specs.errors import ConflictError
from orchestrator.specs.numbers import whole
from orchestrator.specs.run import RUN_ID

LOOK_S, REMOVE_S = 120.0, 900.0
MOST_RUNS = 20
"""Runs of a folder that a node names, the newest."""
LONGEST_LAUNCH_MIN = 24 * 60
"""Age from which a claim without a container is what a launch has left that was cut short."""
_HELD = re.compile(rf"[0-9a-f]{{{DIGEST_LENGTH}}}((\.{RUN_ID})?\.partial)?")

# Constants. $1: the project's folder, which may begin with ~. A plan mounts its data under their name; of the plans,
# those that were written last come first. A launch claims its attempt before it copies; it is over when the claim is
# gone, or when anything newer is in the run's folder than what launches write before a container starts.
_ENTER = r"""
LC_ALL=C; export LC_ALL
place=$1
case $place in "~"*) place=$HOME${place#"~"};; esac
cd -- "$place" 2>/dev/null || exit 0
"""
_LOOK = (
    _ENTER
    + r"""
most=$2 longest=$3
shift 3
ls -td -- runs/*/ 2>/dev/null | head -n "$most" | while read -r run; do
  claim=$(ls -td -- "${run}attempts"/*/ 2>/dev/null | head -n 1)
  [ -n "$claim" ] && [ -n "$(find "$claim" -maxdepth 0 -mmin "-$longest")" ] &&
    [ -z "$(find "$run" -mindepth 1 -maxdepth 1 ! -type l ! -name plan.json ! -name code ! -name 'code-*.list' \
      ! -name attempts -newer "$claim" | head -n 1)" ] &&
    printf 'launch %s %s\n' "$(basename -- "$run")" "$(basename -- "$claim")"
done
for path in data/*; do
  [ -d "$path" ] && [ ! -L "$path" ] || continue
  name=${path#data/}
  [ ! -e "data/.sums/$name.damaged" ] || printf 'damaged %s\n' "$name"
  printf 'data %s %s\n' "$name" "$(du -skP -- "$path" 2>/dev/null | tail -n 1 | cut -f 1)"
  ls -td -- runs/*/ 2>/dev/null | while read -r run; do
    grep -qsF -- "/data/${name%%.*}\"" "${run}plan.json" && printf 'run %s\n' "$(basename -- "$run")"
  done | head -n "$most"
  for run; do grep -qsF -- "/data/${name%%.*}\"" "runs/$run/plan.json" && printf 'run %s\n' "$run"; done
done
exit 0
"""
)
_REMOVE = (
    _ENTER
    + r"""
shift
failed=0
for name; do
  chmod -R u+w -- "data/$name" 2>/dev/null
  rm -rf -- "data/$name" || failed=1
  [ -L data/.sums ] || rm -rf -- "data/.sums/$name" "data/.sums/$name".*
done
exit $failed
"""
)


@dataclass(frozen=True, kw_only=True)
class HeldData:
    """A folder of data on a node."""

    node: str
    name: str
    """The digest of its content; while a copy is not complete, with the run that makes it and `.partial`."""
    size_bytes: int
    runs: tuple[str, ...] = ()
    """Runs whose plan on the node reads it, the newest first."""
    in_use: tuple[str, ...] = ()
    """Those of them that are active, or that a launch copies data for at this moment."""
    launching: tuple[str, ...] = ()
    """Those of these that no container runs of yet."""
    is_damaged: bool = False
    """True if files of it are known to be damaged."""


def look_at_data(nodes: Sequence[Node], places: Mapping[str, str]) -> tuple[Outcome[Node, list[HeldData]], ...]:
    """Return the data folders of each node that has a place in `places`, the project's folder; the other nodes show
    runs: those of a cluster have their data on its login node."""
    known = find_runs(nodes)
    active = {run.run_id for run in known.runs if run.active_nodes}
    attempts = {run.run_id: run.attempt for run in known.runs}

    def look(node: Node) -> list[HeldData]:
        if error := known.unreachable.get(node.name):  # which runs read its data is not known
            raise error
        limits = (str(MOST_RUNS), str(LONGEST_LAUNCH_MIN))
        argv = ["sh", "-c", _LOOK, "sh", places[node.name], *limits, *sorted(active)]
        answer = node.run(argv, timeout_s=LOOK_S).check(f"reading {places[node.name]}/data")
        return _read(node.name, answer, active, attempts)

    return fan_out([node for node in nodes if node.name in places], look, timeout_s=LOOK_S)


def _read(node: str, answer: str, active: Collection[str], attempts: Mapping[str, int]) -> list[HeldData]:
    """Read a node's answer. `attempts`: of the runs of which some node shows a container."""
    sizes, runs, launching, damaged = dict[str, int](), dict[str, list[str]](), set[str](), set[str]()
    name = ""
    for line in answer.splitlines():
        kind, *words = line.split(" ")
        if not words:
            continue
        if kind == "data":
            name = words[0] if _HELD.fullmatch(words[0]) else ""
            if name:
                sizes[name], runs[name] = (whole(words[-1]) or 0) * 1024, []
        elif kind == "damaged":
            damaged.add(words[0])
        elif kind == "launch" and attempts.get(words[0], -1) < (whole(words[-1]) or 0):
            launching.add(words[0])
        elif kind == "run" and name and _may_be_of(words[0], name) and words[0] not in runs[name]:
            runs[name].append(words[0])
    return [
        HeldData(
            node=node,
            name=name,
            size_bytes=size,
            runs=tuple(runs[name]),
            in_use=tuple(run for run in runs[name] if run in active or run in launching),
            launching=tuple(run for run in runs[name] if run in launching - set(active)),
            is_damaged=name in damaged,
        )
        for name, size in sizes.items()
    ]


def _may_be_of(run_id: str, name: str) -> bool:
    """Return whether the run may read this folder: a copy that is not complete may name the only one."""
    _, _, rest = name.partition(".")
    return is_run_id(run_id) and rest.removesuffix("partial") in ("", f"{run_id}.")


def remove_data(
    nodes: Sequence[Node], places: Mapping[str, str], chosen: Sequence[HeldData]
) -> tuple[Outcome[Node, None], ...]:
    """Remove the folders. ConflictError, before anything is removed: an active run reads one.

    Runs are looked for again, since one may have started while a person was asked.
    """
    held = {(one.node, one.name): one for outcome in look_at_data(nodes, places) for one in outcome.value()}
    chosen = [held[one.node, one.name] for one in chosen if (one.node, one.name) in held]
    if used := [one for one in chosen if one.in_use]:
        run, names = used[0].in_use[0], ", ".join(dict.fromkeys(one.node for one in used))
        what, hint = f"reads {used[0].name}", f"orch stop {run}"
        if run in used[0].launching:
            what = f"is being launched, with {used[0].name}"
            hint = "orch data ls   # until it has started or failed; a launch that was cut short counts for a day"
        raise ConflictError(f"run {run} {what} on {names}; nothing was removed", hint=hint)
    of_node = {node.name: [one.name for one in chosen if one.node == node.name] for node in nodes}

    def remove(node: Node) -> None:
        argv = ["sh", "-c", _REMOVE, "sh", places[node.name], *of_node[node.name]]
        node.run(argv, timeout_s=REMOVE_S).check(f"removing data in {places[node.name]}")

    return fan_out([node for node in nodes if of_node[node.name]], remove, timeout_s=REMOVE_S)
