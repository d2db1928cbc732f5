"""Copy the files that a run wrote from its nodes to the controller.

Files are listed first, so that their number, their size and the free disk space are known before anything is copied. A
second call continues: files that are here are skipped, and a large file that was cut off is continued where it ended.
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from threading import Lock
from typing import IO, Any, cast

from orchestrator.fleet.fan_out import Notify, Outcome, fan_out
from orchestrator.nodes.archive import CHUNK
from orchestrator.nodes.interface import MIB, TRANSFER_TIMEOUT_S, Node, Progress
from orchestrator.specs.errors import CommandFailedError, ConfigError, OrchError, PreflightError
from orchestrator.specs.run import RUN_ID
from orchestrator.store.run_names import KnownRun, resolve

MOST_FILES = 200_000
LARGE = 64 * MIB
"""Bytes from which a file is transferred on its own, so that a second call continues it."""
BATCH_FILES, BATCH_BYTES = 200, 256 * MIB
SPARE = 256 * MIB
"""Bytes that stay free on the controller's disk."""
OURS = re.compile(
    r"agents\.token|plan\.json|code-[0-9a-f]+\.list|(?:checkpoints/)?\.[^/]*(?:/.*)?"
    r"|secrets/.*|(?:submitted|place|over|job)-[0-9]+\.(?:json|sbatch)|ended\.[0-9.]+|progressed"
    r"|logs/(?:batch\.)?[0-9.]+\.log"
)
"""Files of `orch` itself and unfinished checkpoints, by their path in the run's folder."""

# Constants. $1: the project's folder, which may begin with ~; $2: the run.
_PLACE = 'case $1 in "~"*) cd -- "$HOME${1#"~"}/runs";; *) cd -- "$1/runs";; esac 2>/dev/null || exit 0\n'
_RUNS = _PLACE + r"""find . -mindepth 1 -maxdepth 1 -type d -printf '%T@ %f\0'"""
# $3: a pattern for file names. P: the folder; F: each file with its size and time; if it is * also: O: files of code/
# as old as the launch; ./: those launched with.
_FILES = (
    _PLACE
    + r"""
cd -- "$2" 2>/dev/null || exit 0
printf 'P%s\0' "$(pwd -P)"
find . -type f -name "$3" -printf 'F%s %T@ %P\0'
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


@dataclass(frozen=True, kw_only=True)
class Brought:
    """Result of copying the files of a run."""

    folder: Path
    moved: int
    """Bytes that were transferred."""
    outcomes: tuple[Outcome[Node, None], ...]


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


def bring_results(nodes: Sequence[Node], results: Results, to: Path, notify: Notify) -> Brought:
    """Copy the files into `to`/runs/RUN. PreflightError before anything is copied if the disk is too small.

    Each node's error is its outcome; the others continue.
    """
    folder = to / "runs" / results.run_id
    lacking = [file for file in results.files if not _is_here(file, folder / file.target)]
    folder.mkdir(parents=True, exist_ok=True)
    needed = sum(file.size - _offset(_part(folder / file.target, file)) for file in lacking)
    if needed + SPARE > (free := shutil.disk_usage(folder).free):
        raise PreflightError(
            f"{needed / 1e9:.1f} GB to copy, and {free / 1e9:.1f} GB are free in {to.resolve()}; nothing was copied",
            hint=f"another folder: --to DIR; or some of the files: orch pull {results.run_id} PATH",
        )
    by_node: dict[str, list[RunFile]] = {}
    for file in lacking:
        by_node.setdefault(file.node, []).append(file)
    counter = _Counter(notify, {name: sum(file.size for file in files) for name, files in by_node.items()})
    outcomes = fan_out(
        [node for node in nodes if node.name in by_node],
        lambda node: _bring(node, results.folders[node.name], by_node[node.name], folder, counter),
        timeout_s=TRANSFER_TIMEOUT_S,
    )
    return Brought(folder=folder, moved=counter.moved, outcomes=outcomes)


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
            (found := re.fullmatch(r"F([0-9]{1,16}) ([0-9]{1,12})\.[0-9]+ (.+)", record, re.DOTALL))
            and _is_safe(found[3])
            and fnmatchcase(found[3].rpartition("/")[2], name)
        ):
            files.append(RunFile(node=node.name, path=found[3], size=int(found[1]), mtime=int(found[2])))
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
    """Whether the path stays inside the folder that it is relative to."""
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
        for file in group if len(group) > 1 else ():
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
                yield RunFile(node=file.node, path=path, size=file.size, mtime=file.mtime, target=target)
            seen.add(known)


def _hashes(node: Node, folder: str, paths: Sequence[str]) -> dict[str, str]:
    names = b"".join(os.fsencode(path) + b"\0" for path in paths)
    said = node.run(["sh", "-c", _HASH, "sh", folder], stdin=names, timeout_s=TRANSFER_TIMEOUT_S).stdout
    lines = (record.partition("  ") for record in said.split("\0"))
    return {path: digest for digest, _, path in lines if re.fullmatch("[0-9a-f]{64}", digest)}


@dataclass
class _Counter:
    """Counts the bytes that came, and reports progress by node."""

    notify: Notify
    totals: Mapping[str, int]
    done: dict[str, int] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def add(self, node: str, count: int) -> None:
        with self.lock:
            self.done[node] = self.done.get(node, 0) + count
            self.notify(node, Progress(text="copying", done=self.done[node], total=self.totals[node]))

    @property
    def moved(self) -> int:
        return sum(self.done.values())


def _bring(node: Node, folder: str, files: Sequence[RunFile], to: Path, counter: _Counter) -> None:
    try:
        for batch in _batches([file for file in files if file.size < LARGE]):
            _bring_small(node, folder, batch, to, counter)
        for file in files:
            if file.size >= LARGE:
                _bring_large(node, folder, file, to, counter)
    except OSError as error:
        raise CommandFailedError(f"cannot write {error.filename or to}: {error.strerror}", node="controller") from error


def _batches(files: Sequence[RunFile]) -> Iterator[list[RunFile]]:
    batch, size = list[RunFile](), 0
    for file in files:
        if batch and (len(batch) == BATCH_FILES or size + file.size > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.size
    if batch:
        yield batch


def _bring_small(node: Node, folder: str, files: Sequence[RunFile], to: Path, counter: _Counter) -> None:
    """Copy files in one tar archive. Only names that were asked for are written, and only as regular files."""
    wanted = {file.path: file for file in files}
    chunks = node.stream(["tar", "-c", "-C", folder, "--", *wanted])
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", _Reader(chunks)), mode="r|") as archive:
            for member in archive:
                file, content = wanted.get(member.name), archive.extractfile(member)
                if file is None or content is None or member.size > file.size + LARGE:
                    raise CommandFailedError(f"sent {member.name}, which was not asked for", node=node.name)
                part = _part(to / file.target, file)
                with part.open("wb") as target:
                    shutil.copyfileobj(content, target, CHUNK)
                counter.add(node.name, file.size)
                _finish(part, to / file.target, int(member.mtime))
        for _ in chunks:  # the exit code of tar comes at the end
            pass
    except tarfile.TarError as error:
        raise CommandFailedError(f"what it sent cannot be read: {error}", node=node.name) from error


class _Reader:
    """Chunks as a file: `read` returns the number of bytes asked for, fewer only at the end."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks, self._rest = iter(chunks), b""

    def read(self, count: int) -> bytes:
        while len(self._rest) < count and (chunk := next(self._chunks, b"")):
            self._rest += chunk
        given, self._rest = self._rest[:count], self._rest[count:]
        return given


def _bring_large(node: Node, folder: str, file: RunFile, to: Path, counter: _Counter) -> None:
    """Copy a file, from where the last call ended."""
    part = _part(to / file.target, file)
    left = file.size - _offset(part)
    chunks: Any = node.stream(["tail", "-c", f"+{file.size - left + 1}", "--", f"{folder}/{file.path}"])
    with part.open("ab") as target:
        while left and (chunk := next(chunks, b"")):
            target.write(chunk[:left])
            counter.add(node.name, len(chunk[:left]))
            left -= len(chunk[:left])
    chunks.close()
    if left:
        raise CommandFailedError(f"{file.path} became smaller while it was copied", node=node.name, hint="try again")
    _finish(part, to / file.target, file.mtime)


def _part(target: Path, file: RunFile) -> Path:
    """The file while it is incomplete; another content of the same name has another one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.with_name(f".{target.name}.{file.size}-{file.mtime}.part")


def _finish(part: Path, target: Path, mtime: int) -> None:
    os.utime(part, (mtime, mtime))
    part.replace(target)


def _offset(part: Path) -> int:
    """Bytes that are here."""
    with suppress(OSError):
        return part.stat().st_size
    return 0


def _is_here(file: RunFile, target: Path) -> bool:
    with suppress(OSError):
        there = target.stat()
        return (there.st_size, int(there.st_mtime)) == (file.size, file.mtime)
    return False
