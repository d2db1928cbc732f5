"""Files that ranks wrote into the folder of a run: which of them may be copied to another node, and how the lists of
several nodes compare. Pure.

A list comes from another machine and is not trusted. Only results are copied: nothing that Python imports, that a shell
runs or that this project keeps in the folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from contract.json_reader import from_json
from contract.result_paths import path_problem

MAX_FILES = 200
"""Files in a list: the newest."""
MAX_LIST_CHARS = 40 * 1024
"""Characters of all paths in a list: a message between agents has at most 64 KiB."""
MAX_FOLDER_CHARS = 64
COPY_LIMIT_BYTES = 10 * 10**9
"""Bytes that are copied to a node without a question."""
SIZE_LIMIT, TIME_LIMIT_US = 2**50, 2**59
_SHA256 = re.compile(r"[0-9a-f]{64}|", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class ResultFile:
    """A file by its path in the folder of the run."""

    path: str
    size: int
    """Bytes."""
    modified_us: int
    """Time of its last change, in microseconds since 1970."""
    copied: bool = False
    """True if it was copied from another node and has not changed since."""
    launched: bool = False
    """True if it is a file of the launch that has changed; on another node that does not list it, it has not."""
    sha256: str = ""
    """Hash of a small file; empty: not known."""

    def is_same(self, other: ResultFile) -> bool:
        """Return whether both have the same content, as far as the lists show it."""
        if self.sha256 and other.sha256:
            return self.sha256 == other.sha256
        return self.size == other.size


@dataclass(frozen=True, kw_only=True)
class ResultFiles:
    """Files of one node that its ranks have written since the launch."""

    files: tuple[ResultFile, ...] = ()
    complete: bool = True
    """True if these are all; otherwise nothing follows from the absence of one."""
    folder: str = ""
    """Identity of the folder: the same on nodes that share it, as on NFS; empty: not known."""

    def by_path(self) -> dict[str, ResultFile]:
        return {file.path: file for file in self.files}


@dataclass(frozen=True, kw_only=True)
class FileDifferences:
    """Differences of the nodes' files to those of rank 0's node."""

    missing: Mapping[str, tuple[ResultFile, ...]] = field(default_factory=dict)
    """Files of rank 0's node that a node does not have, or has as an older copy; by the name of that node."""
    outdated: frozenset[str] = frozenset()
    """Paths that are in `missing` for older copies alone."""
    differing: Mapping[str, str] = field(default_factory=dict)
    """Path: a node on which the file has another content, written there."""
    elsewhere: Mapping[str, tuple[ResultFile, ...]] = field(default_factory=dict)
    """Files that rank 0's node does not have, by the name of the node that has them."""


def compare(source: ResultFiles, others: Mapping[str, ResultFiles]) -> FileDifferences:
    """Compare the files of rank 0's node, `source`, with those of the others, by node."""
    own = source.by_path()
    missing, elsewhere = dict[str, tuple[ResultFile, ...]](), dict[str, tuple[ResultFile, ...]]()
    absent, outdated, differing = set[str](), set[str](), dict[str, str]()
    for node, listed in others.items():
        if source.folder and source.folder == listed.folder:
            continue
        there, wanted = listed.by_path(), list[ResultFile]()
        for file in source.files:
            held = there.get(file.path)
            if held is None and file.launched:
                differing.setdefault(file.path, node)
            elif held is None and listed.complete:
                wanted.append(file)
                absent.add(file.path)
            elif held and held.copied and (held.size, held.modified_us) != (file.size, file.modified_us):
                wanted.append(file)
                outdated.add(file.path)
            elif held and not held.copied and not held.is_same(file):
                differing.setdefault(file.path, node)
        further = list[ResultFile]()
        for file in listed.files:
            if file.path not in own and file.launched:
                differing.setdefault(file.path, node)
            elif file.path not in own and not file.copied:
                further.append(file)
        if wanted:
            missing[node] = tuple(wanted)
        if further and source.complete:
            elsewhere[node] = tuple(further)
    outdated -= absent
    return FileDifferences(missing=missing, outdated=frozenset(outdated), differing=differing, elsewhere=elsewhere)


def within_limit(files: Sequence[ResultFile], limit: int = COPY_LIMIT_BYTES) -> bool:
    """Return whether so many bytes are copied without a question."""
    return sum(file.size for file in files) <= limit


def bounded(files: Sequence[ResultFile], *, complete: bool = True) -> ResultFiles:
    """List the newest of these files, within the limits of a list."""
    listed, chars = list[ResultFile](), 0
    for file in sorted(files, key=lambda one: (-one.modified_us, one.path)):
        chars += 2 * len(file.path.encode("ascii", "backslashreplace"))
        if len(listed) == MAX_FILES or chars > MAX_LIST_CHARS:
            return ResultFiles(files=tuple(listed), complete=False)
        listed.append(file)
    return ResultFiles(files=tuple(listed), complete=complete)


def read_result_files(values: Any) -> ResultFiles:
    """Read a list that another machine sent. ValueError: it does not fit, or names a file that is never copied."""
    found = from_json(ResultFiles, values, most=MAX_FILES)
    if len(found.folder) > MAX_FOLDER_CHARS:
        raise ValueError("the identity of the folder is too long")
    for file in found.files:
        if problem := path_problem(file.path):
            raise ValueError(f"{file.path[:80]!r} is not a result: {problem}")
        if not 0 <= file.size <= SIZE_LIMIT or not 0 <= file.modified_us <= TIME_LIMIT_US:
            raise ValueError(f"{file.path[:80]!r}: size or time is out of bounds")
        if not _SHA256.fullmatch(file.sha256):
            raise ValueError(f"{file.path[:80]!r}: not a SHA-256")
    return found
