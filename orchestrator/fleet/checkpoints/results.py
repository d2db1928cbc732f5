"""Files that rank 0 of a plain script wrote: brought to the node of rank 0 of the next attempt, whose agent gives them
to the other nodes. Above the limit of the agents, and if the user agrees, to every node."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from contract.checkpoint import CheckpointFile
from contract.result_files import ResultFile, ResultFiles, compare, within_limit
from contract.result_paths import content_problem, shown
from orchestrator.fleet.checkpoints.copy import SPARE_KIB, Relay, telling
from orchestrator.fleet.checkpoints.survey import Places
from orchestrator.fleet.fan_out import Notify, fan_out
from orchestrator.nodes.interface import TRANSFER_TIMEOUT_S, Node, Progress
from orchestrator.nodes.probes import result_probe
from orchestrator.specs.errors import OrchError, RunFailedError
from orchestrator.specs.plan import Plan

# Constants. $1: the run's folder, which may begin with ~, $2: the path, $3: its SHA-256, $4: a word for the file aside,
# $5: the time of its last change, $6: KiB that must be free, $7: `replace` for an older copy. No part of the path may
# be a link, and a file that is there otherwise stays.
_WRITE = """
umask 022
root=$1
case $root in "~"*) root=$HOME${root#"~"};; esac
mkdir -p -- "$root" && cd -- "$root" || exit 1
aside=$(pwd -P)/.copying-$4
trap 'rm -f -- "$aside"' EXIT
free=$(df -Pk . | { read -r _; read -r _ _ _ free _; printf %s "$free"; })
[ "$free" -ge "$6" ] || { echo "$((free / 1024)) MiB are free there" >&2; exit 28; }
cat > "$aside" || exit 1
[ "$(sha256sum < "$aside" | cut -c 1-64)" = "$3" ] || { echo "it is not what was sent" >&2; exit 9; }
touch -d "@$5" -- "$aside" && sync -- "$aside" 2>/dev/null
rest=$2
while [ "${rest#*/}" != "$rest" ]; do
  part=${rest%%/*}; rest=${rest#*/}
  [ ! -L "$part" ] || { echo "$part is a link there" >&2; exit 17; }
  mkdir -p -- "$part" && cd -P -- "$part" || exit 1
done
if [ "$7" = replace ]; then mv -f -T -- "$aside" "$rest"; else ln -T -- "$aside" "$rest"; fi
"""
_SUM = """
root=$1
case $root in "~"*) root=$HOME${root#"~"};; esac
cd -- "$root" && sha256sum -- "$2"
"""
_READ = """
root=$1
case $root in "~"*) root=$HOME${root#"~"};; esac
cd -- "$root" && exec cat -- "$2"
"""


@dataclass(frozen=True, kw_only=True)
class WrittenResults:
    """Files that ranks of the last attempt wrote, by node."""

    source: str = ""
    """Node of rank 0 of that attempt; empty: nothing is copied."""
    lists: Mapping[str, ResultFiles] = field(default_factory=dict)

    def wanted(self, plan: Plan) -> Mapping[str, tuple[ResultFile, ...]]:
        """Files that a node of the next attempt does not have, where its agents will not copy them; by its name."""
        if self.source not in self.lists or plan.sync_outputs == "off":
            return {}
        empty = ResultFiles()
        others = {one.node: self.lists.get(one.node, empty) for one in plan.nodes if one.node != self.source}
        missing = compare(self.lists[self.source], others).missing
        return {node: files for node, files in missing.items() if node == plan.nodes[0].node or not within_limit(files)}


def results_of(nodes: Mapping[str, Node], places: Places, plan: Plan) -> WrittenResults:
    """Ask the nodes for the files that ranks of this attempt wrote; not for those of the trainer's workloads, which
    have checkpoints. Nodes that do not answer are left out."""
    if not plan.program.is_own or plan.nnodes < 2:
        return WrittenResults()
    outcomes = fan_out(
        list(nodes.values()), lambda node: result_probe.ask(node, project=places[node.name], run=plan.run_id)
    )
    lists = {outcome.item.name: outcome.result for outcome in outcomes if outcome.result}
    return WrittenResults(source=plan.master, lists=lists)


def bring_results(
    nodes: Mapping[str, Node], places: Places, plan: Plan, results: WrittenResults, notify: Notify, *, large: bool
) -> None:
    """Copy these files to the nodes of the next attempt that do not have them. `large`: also more than the agents copy
    unasked. A file that cannot be copied is reported to `notify`; the run starts without it."""
    for name, files in results.wanted(plan).items():
        if not large and not within_limit(files):
            size = sum(file.size for file in files)
            notify(name, Progress(text=f"{size / 1e9:.0f} GB of files are on {results.source} alone: not copied"))
            continue
        have = results.lists.get(name, ResultFiles()).by_path()
        source, target = (
            _RunFolder(node=nodes[one], path=f"{places[one]}/runs/{plan.run_id}") for one in (results.source, name)
        )
        done, total = 0, sum(file.size for file in files)
        for file in files:
            what = f"{shown(file.path)} from {results.source}"
            tell = partial(telling, node=name, what=what, before=done, total=total, notify=notify)
            try:
                _copy(source, target, file, tell, replaces=file.path in have)
            except OrchError as error:
                notify(name, Progress(text=f"{shown(file.path)} was not copied: {error.message}"))
            done += file.size
        notify(name, Progress(text=f"files of rank 0 copied from {results.source}"))


@dataclass(frozen=True, kw_only=True)
class _RunFolder:
    """The folder of the run on a node."""

    node: Node
    path: str


def _copy(
    source: _RunFolder,
    target: _RunFolder,
    file: ResultFile,
    tell: Callable[[Iterator[bytes]], Iterator[bytes]],
    *,
    replaces: bool,
) -> None:
    """Copy one file. RunFailedError: it changed on the way, or is a program; other errors are those of the nodes."""
    summed = source.node.run(["sh", "-c", _SUM, "sh", source.path, file.path], timeout_s=TRANSFER_TIMEOUT_S)
    sha256 = summed.check(f"reading {shown(file.path)}").removeprefix("\\")[:64]
    relay = Relay(
        source.node, file.path, CheckpointFile(name=file.path, size=file.size, sha256=sha256),
        argv=["sh", "-c", _READ, "sh", source.path, file.path],
        refused=lambda head: content_problem(file.path, head),
    )  # fmt: skip
    needed = str(file.size // 1024 + SPARE_KIB)
    words = [file.path, sha256, secrets.token_hex(4), f"{file.modified_us / 1e6:.6f}", needed]
    argv = ["sh", "-c", _WRITE, "sh", target.path, *words, "replace" if replaces else ""]
    written = target.node.run(argv, stdin=tell(relay.chunks()), timeout_s=TRANSFER_TIMEOUT_S)
    relay.check_source()
    written.check(f"writing {shown(file.path)}")
    if not relay.is_complete:
        raise RunFailedError(f"{shown(file.path)} changed while it was copied", node=source.node.name)
