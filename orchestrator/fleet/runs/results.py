"""List the files that a run wrote on its nodes, each content once."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from orchestrator.fleet.fan_out import fan_out
from orchestrator.nodes.interface import MIB, TRANSFER_TIMEOUT_S, Node
from orchestrator.specs.errors import CommandFailedError, ConfigError, OrchError, PreflightError
from orchestrator.specs.run import RUN_ID
from orchestrator.store.run_names import KnownRun, resolve

MOST_FILES = 200_000
OURS = re.compile(
    r"agents\.token|attempts/.*|plan\.json|code-[0-9a-f]+\.list|(?:checkpoints/)?\.[^/]*(?:/.*)?"
    r"|secrets/.*|(?:submitted|place|over|job)-[0-9]+\.(?:json|sbatch)|ended\.[0-9.]+|progressed"
    r"|logs/(?:batch\.)?[0-9.]+\.log"
)
"""Files of `orch` itself and unfinished checkpoints, by their path in the run's folder."""

# Constants. $1: the project's folder, which may begin with ~; $2: the run.
_PLACE = 'case $1 in "~"*) cd -- "$HOME${1#"~"}/runs";; *) cd -- "$1/runs";; esac 2>/dev/null || exit 0\n'
_RUNS = _PLACE + r"""find . -mindepth 1 -maxdepth 1 -type d -printf '%T@ %f\0'"""
# $3: a pattern for file names. P: the folder; F: each file with its size, its blocks of 512 bytes on the disk and its
# time; if it is * also: O: files of code/ as old as the launch; ./: those launched with.
_FILES = (
    _PLACE
    + r"""
cd -- "$2" 2>/dev/null || exit 0
printf 'P%s\0' "$(pwd -P)"
find . -type f -name "$3" -printf 'F%s %b %T@ %P\0'
[ "$3" = "*" ] || exit 0
for list in code-*.list; do
  [ ! -f "$list" ] || { find code -type f ! -newer "$list" -printf 'O%p\0'; cat -- "$list"; }
done
"""
)
_HASH = 'cd -- "$1" && xargs -0 -r sha256sum -z --'


@dataclass(frozen=True, kw_only=True)
class RunFile:
    """A file in a run's folder on a node."""

    node: str
    path: str
    """Relative to the run's folder."""
    size: int
    held: int
    """Bytes on the node's disk: fewer than `size` for a sparse file."""
    mtime: int
    """Unix time, in seconds."""
    target: str = ""
    """Path in the folder on the controller."""


@dataclass(frozen=True, kw_only=True)
class Results:
    """The files of a run that are to be copied, each once."""

    run_id: str
    folders: Mapping[str, str]
    """The run's folder on each node that has one."""
    files: tuple[RunFile, ...]
    unreachable: Mapping[str, OrchError]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def run_with_files(nodes: Sequence[Node], places: Mapping[str, str], wanted: str) -> str:
    """Return the id of the run that `wanted` means among those with a folder on a node; empty: of the newest one.

    PreflightError: no node answered. ConfigError: there is no such run.
    """
    outcomes = fan_out(nodes, lambda node: node.run(["sh", "-c", _RUNS, "sh", places[node.name]]).check("listing runs"))
    if nodes and all(outcome.error for outcome in outcomes):
        raise PreflightError("none of the nodes answered", hint="orch doctor")
    times: dict[str, float] = {}
    for record in "".join(outcome.result or "" for outcome in outcomes).split("\0"):
        if found := re.fullmatch(rf"([0-9]{{1,12}})\.[0-9]+ ({RUN_ID})", record):
            times[found[2]] = max(times.get(found[2], 0.0), float(found[1]))
    chosen = resolve(wanted, [KnownRun(run_id=run, at=at) for run, at in sorted(times.items())])
    if chosen is None:
        raise ConfigError(f"no node has files of {f'a run {wanted}' if wanted else 'any run'}", hint="orch runs")
    return chosen


def find_results(nodes: Sequence[Node], places: Mapping[str, str], run_id: str, wanted: Sequence[str]) -> Results:
    """List the files that the run wrote. `nodes` in order of rank; `wanted`: paths or patterns, empty for all files.

    A file that several nodes have is taken from the first; other content of the same name is kept by node. Files that
    the run was launched with, and has not changed, are left out. ConfigError: nothing matches.
    """
    listed = fan_out(nodes, lambda node: files_of_run(node, places[node.name], run_id), timeout_s=TRANSFER_TIMEOUT_S)
    found = {outcome.item.name: outcome.result for outcome in listed if outcome.result}
    folders = {name: folder for name, (folder, _) in found.items() if folder}
    every = [file for _, files in found.values() for file in files]
    chosen = [file for file in every if not wanted or any(_selects(one, file.path) for one in wanted)]
    if not chosen:
        names = ", ".join(sorted({_shown(file.path) for file in every})) or "none"
        raise ConfigError(
            f"run {run_id} wrote no file{' that matches ' + ' '.join(wanted) if wanted else ''}; its files: {names}",
            hint=f"orch pull {run_id}   # all of them" if every else "orch runs",
        )
    by_name = {node.name: node for node in nodes}
    return Results(
        run_id=run_id,
        folders=folders,
        files=tuple(_each_once(chosen, by_name, folders)),
        unreachable={outcome.item.name: outcome.error for outcome in listed if outcome.error},
    )


def files_of_run(node: Node, place: str, run_id: str, name: str = "*") -> tuple[str, list[RunFile]]:
    """The run's folder on the node, empty if there is none, and the files that the run wrote, with names like this."""
    folder, files, old, launched = "", list[RunFile](), set[str](), set[str]()
    for record in _records(node.stream(["sh", "-c", _FILES, "sh", place, run_id, name]), node.name):
        if record.startswith("P"):
            folder = record[1:]
        elif record.startswith("O"):
            old.add(record[1:])
        elif record.startswith("./"):
            launched.add(f"code/{record[2:]}")
        elif (
            (found := re.fullmatch(r"F([0-9]{1,16}) ([0-9]{1,16}) ([0-9]{1,12})\.[0-9]+ (.+)", record, re.DOTALL))
            and _is_safe(path := found[4])
            and fnmatchcase(path.rpartition("/")[2], name)
        ):
            size, blocks, mtime = (int(found[part]) for part in (1, 2, 3))
            files.append(RunFile(node=node.name, path=path, size=size, held=blocks * 512, mtime=mtime))
    unchanged = old & launched
    return folder, [file for file in files if file.path not in unchanged and not OURS.fullmatch(file.path)]


def _records(chunks: Iterator[bytes], node: str) -> Iterator[str]:
    """Texts that end with a NUL. CommandFailedError: there are too many."""
    rest, count = b"", 0
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\0")
        count += len(whole)
        if count > 3 * MOST_FILES or len(rest) > MIB:
            raise CommandFailedError(
                f"the run's folder has more than {MOST_FILES:,} files", node=node, hint="name some: orch pull RUN PATH"
            )
        yield from (os.fsdecode(one) for one in whole)


def _is_safe(path: str) -> bool:
    """Return whether the path stays inside the folder that it is relative to."""
    return not path.startswith("/") and not {"", ".", ".."} & set(path.split("/"))


def _selects(wanted: str, path: str) -> bool:
    """`wanted` is a path or a pattern, relative to the run's folder or to the script's working directory, `code`. A
    folder selects all that it contains."""
    parts = [part for part in wanted.split("/") if part not in ("", ".")]
    names = (path.split("/"), path.removeprefix("code/").split("/"))
    return any(len(name) >= len(parts) and all(map(fnmatchcase, name, parts)) for name in names)


def _shown(path: str) -> str:
    first, _, rest = path.removeprefix("code/").partition("/")
    return first + "/" * bool(rest)


def _each_once(files: Sequence[RunFile], nodes: Mapping[str, Node], folders: Mapping[str, str]) -> Iterator[RunFile]:
    """Yield each content of each path once, with the path that it gets on the controller."""
    holders: dict[str, list[RunFile]] = {}
    for file in files:
        holders.setdefault(file.path, []).append(file)
    shared: dict[str, list[str]] = {}
    for group in holders.values():
        alike = Counter(file.size for file in group)
        for file in group:
            if alike[file.size] > 1:  # other sizes are other contents, which no node need hash
                shared.setdefault(file.node, []).append(file.path)
    hashed = fan_out(
        list(shared), lambda name: _hashes(nodes[name], folders[name], shared[name]), timeout_s=TRANSFER_TIMEOUT_S
    )
    content = {(outcome.item, path): value for outcome in hashed for path, value in (outcome.result or {}).items()}
    for path, group in holders.items():
        seen = set[object]()
        for file in group:
            known: object = (file.size, content.get((file.node, path), file.node))
            if known not in seen:
                target = f"nodes/{file.node}/{path}" if seen else path
                yield replace(file, target=target)
            seen.add(known)


def _hashes(node: Node, folder: str, paths: Sequence[str]) -> dict[str, str]:
    names = b"".join(os.fsencode(path) + b"\0" for path in paths)
    output = node.run(["sh", "-c", _HASH, "sh", folder], stdin=names, timeout_s=TRANSFER_TIMEOUT_S).stdout
    lines = (record.partition("  ") for record in output.split("\0"))
    return {path: digest for digest, _, path in lines if re.fullmatch("[0-9a-f]{64}", digest)}
