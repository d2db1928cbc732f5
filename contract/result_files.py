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
from contract.run_folder import CODE_FOLDER, is_own_file

MAX_FILES = 200
"""Files in a list: the newest."""
MAX_LIST_CHARS = 40 * 1024
"""Characters of all paths in a list: a message between agents has at most 64 KiB."""
MAX_PATH_CHARS, MAX_DEPTH = 400, 16
MAX_FOLDER_CHARS = 64
COPY_LIMIT_BYTES = 10 * 10**9
"""Bytes that are copied to a node without a question."""
HEAD_BYTES = 8
"""Bytes at the beginning of a file by which `content_problem` judges."""
SIZE_LIMIT, TIME_LIMIT_US = 2**50, 2**59
SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages", "bin", "scripts"})
"""Folders with code, or with programs that a shell finds."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\\\u2028\u2029]")
_CODE = re.compile(
    r"\.(?:py[a-z0-9]{0,2}|ipynb|so(?:\.[0-9.]{1,20})?|dylib|dll|exe|egg|egg-link|whl|jar|_pth|sh|bash|zsh|ksh|csh|fish"
    r"|command|bat|cmd|ps1|pl|rb|js|mjs|lua|sbatch|service|desktop)$",
    re.IGNORECASE,
)
_TORCH_HEADS = (b"PK\x03\x04", b"\x80")
"""Beginnings of files that torch.save writes."""
_PROGRAM_HEADS = (b"#!", b"\x7fELF")
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
    """Whether it was copied from another node and has not changed since."""
    launched: bool = False
    """Whether it is a file of the launch that has changed; on another node that does not list it, it has not."""
    sha256: str = ""
    """Of a small file; empty: not known."""

    def is_same(self, other: ResultFile) -> bool:
        """Whether both have the same content, as far as the lists show it."""
        if self.sha256 and other.sha256:
            return self.sha256 == other.sha256
        return self.size == other.size


@dataclass(frozen=True, kw_only=True)
class ResultFiles:
    """Files of one node that its ranks have written since the launch."""

    files: tuple[ResultFile, ...] = ()
    complete: bool = True
    """Whether these are all; otherwise nothing follows from the absence of one."""
    folder: str = ""
    """Identity of the folder: the same on nodes that share it, as on NFS; empty: not known."""

    def by_path(self) -> dict[str, ResultFile]:
        return {file.path: file for file in self.files}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Differences of the nodes' files to those of rank 0's node."""

    missing: Mapping[str, tuple[ResultFile, ...]] = field(default_factory=dict)
    """By node: files of rank 0's node that it does not have, or has as an older copy."""
    outdated: frozenset[str] = frozenset()
    """Paths that are in `missing` for older copies alone."""
    differing: Mapping[str, str] = field(default_factory=dict)
    """Path: a node on which the file has another content, written there."""
    elsewhere: Mapping[str, tuple[ResultFile, ...]] = field(default_factory=dict)
    """By node: files that rank 0's node does not have."""

    def first_path(self) -> str:
        """Path of a file that is not the same on all nodes; empty: there is none."""
        paths = [*(file.path for files in self.missing.values() for file in files), *self.differing]
        return paths[0] if paths else ""


def compare(source: ResultFiles, others: Mapping[str, ResultFiles]) -> Comparison:
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
    return Comparison(missing=missing, outdated=frozenset(outdated), differing=differing, elsewhere=elsewhere)


def within_limit(files: Sequence[ResultFile], limit: int = COPY_LIMIT_BYTES) -> bool:
    """Whether so many bytes are copied without a question."""
    return sum(file.size for file in files) <= limit


def shown(path: str) -> str:
    """A path as the user's script wrote it, if it wrote into its own folder."""
    return path.removeprefix(f"{CODE_FOLDER}/")


def path_problem(path: str) -> str:
    """Reason why a file of this path in the folder of a run is not copied; empty: there is none."""
    parts = path.split("/")
    if not path or len(path) > MAX_PATH_CHARS or len(parts) > MAX_DEPTH or _CONTROL.search(path):
        return "its path is too long or has unusual characters"
    try:
        path.encode()
    except UnicodeEncodeError:
        return "its path is not UTF-8"
    if any(not part or part.startswith((".", "-", "~")) or part != part.strip() for part in parts):
        return "its path leads elsewhere, or is hidden"
    if any(part.lower() in SKIPPED_FOLDERS for part in parts[:-1]):
        return "it is in a folder with programs"
    if any(_CODE.search(part) for part in parts):
        return "Python or a shell may run it"
    return "it belongs to orch" if is_own_file(path) else ""


def content_problem(path: str, head: bytes) -> str:
    """Reason why a file that begins with these bytes is not copied; empty: there is none.

    Weights are often saved as `.pth`; Python runs lines of a text of that name.
    """
    if head.startswith(_PROGRAM_HEADS):
        return "it is a program"
    if path.lower().endswith(".pth") and not head.startswith(_TORCH_HEADS):
        return "it is a .pth file that torch.save has not written"
    return ""


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
