"""Files of a code folder that are sent to the nodes: all but those that its ignore files and a fixed list leave out.
Files of this computer's agent, which are sent for an image that orch has not built.

The digest of the code, the question about its size, the copy and the list on the node all come from here.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from orchestrator.fleet.runs.known_sums import folder_digest
from orchestrator.specs.errors import ConfigError
from orchestrator.specs.image import OUR_PACKAGES

PACKAGES = Path(__file__).parents[3]
"""Folder of the agent's packages: the repository, or where they are installed with this one."""
NEVER = frozenset(
    {
        ".git",
        "__pycache__",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".ipynb_checkpoints",
        "node_modules",
    }
)
"""Folders that no training reads; as is a virtual environment, which is built for this computer."""
DATA_OPTION = "--data"
"""Reason in place of a rule that leaves a folder out: it is copied as data."""
_IN_EVERY_FOLDER = (".gitignore", ".orchignore")
_AT_THE_TOP = (".dockerignore",)


@dataclass(frozen=True, kw_only=True)
class IgnoreRule:
    """One line of an ignore file."""

    pattern: str
    """Relative to the code folder; `**` stands for any number of folders."""
    negated: bool
    folders_only: bool
    place: str
    """File and line, such as `.gitignore:3`."""

    def matches(self, path: str, *, is_folder: bool) -> bool:
        from docker.utils.fnmatch import fnmatch  # which imports all of docker: `logs` and `status` need it not

        return (is_folder or not self.folders_only) and bool(fnmatch(path, self.pattern))


@dataclass(frozen=True, kw_only=True)
class CodeFiles:
    """Contents of a code folder, by paths relative to it, sorted."""

    folder: Path
    entries: tuple[str, ...]
    """All that is sent: files, links, folders."""
    names: tuple[str, ...]
    """Files among them."""
    left_out: dict[str, str]
    """Place of the rule by path of what is left out, `""` for what is never sent; without the contents of folders."""

    def left_out_with(self, path: str) -> str:
        """Return this path, or the folder above it, if it is left out; empty if it is sent or does not exist."""
        parts = PurePosixPath(path).parts
        above = ("/".join(parts[:length]) for length in range(1, len(parts) + 1))
        return next((each for each in above if each in self.left_out), "")


def is_folder(path: str) -> bool | None:
    """Return whether a path of this computer is a folder; None: nothing is there, or it may not be looked at."""
    try:
        return stat.S_ISDIR(Path(path).stat().st_mode)
    except (OSError, ValueError):
        return None


def code_digest(folder: Path, without: Collection[str] = ()) -> str:
    """Return the digest of a code folder, `without` these paths, and what its ignore files leave out."""
    return folder_digest(folder, code_files(folder, without).names)


def agent_digest() -> str:
    """Return the digest of this computer's agent."""
    return folder_digest(PACKAGES, agent_names())


def code_files(folder: Path, without: Collection[str] = ()) -> CodeFiles:
    """Read a code folder, `without` these paths, which are data. ConfigError: it is none. What is left out is not
    descended into."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder")
    entries, names, left_out = list[str](), list[str](), dict[str, str]()
    rules: dict[str, tuple[IgnoreRule, ...]] = {}
    for current, folders, files in os.walk(folder):
        here = PurePosixPath(Path(current).relative_to(folder))
        above = rules.get(str(here.parent), ()) if here != PurePosixPath() else ()
        own = rules[str(here)] = (*above, *_rules_in(folder, here))
        for name in list(folders):
            path = str(here / name)
            place = DATA_OPTION if path in without else _reason(folder / path, path, own)
            linked = (folder / path).is_symlink()
            if place is not None or linked:
                folders.remove(name)
            if place is None:
                entries.append(path)
            else:
                left_out[path] = place
        for name in files:
            path = str(here / name)
            rule = _last_match(own, path, is_folder=False)
            if rule and not rule.negated:
                left_out[path] = rule.place
                continue
            entries.append(path)
            if (folder / path).is_file():
                names.append(path)
    return CodeFiles(
        folder=folder,
        entries=tuple(sorted(entries, key=PurePosixPath)),
        names=tuple(sorted(names, key=PurePosixPath)),
        left_out=dict(sorted(left_out.items())),
    )


def agent_entries() -> tuple[str, ...]:
    """Paths of the agent's folders and files, parents before what they hold."""
    found = [path for name in OUR_PACKAGES for path in (PACKAGES / name, *sorted((PACKAGES / name).rglob("*")))]
    return tuple(str(path.relative_to(PACKAGES)) for path in found if "__pycache__" not in path.parts)


def agent_names() -> tuple[str, ...]:
    """Paths of the agent's files alone."""
    return tuple(entry for entry in agent_entries() if (PACKAGES / entry).is_file())


def _reason(folder: Path, path: str, rules: Sequence[IgnoreRule]) -> str | None:
    """Place of the rule that leaves a folder out; empty if no folder of its kind is sent, None if it is sent."""
    if folder.name in NEVER or (folder / "pyvenv.cfg").is_file():
        return ""
    rule = _last_match(rules, path, is_folder=True)
    return rule.place if rule and not rule.negated else None


def _last_match(rules: Sequence[IgnoreRule], path: str, *, is_folder: bool) -> IgnoreRule | None:
    return next((rule for rule in reversed(rules) if rule.matches(path, is_folder=is_folder)), None)


def _rules_in(folder: Path, here: PurePosixPath) -> Iterator[IgnoreRule]:
    """Rules of the ignore files in this folder, the decisive ones last."""
    top = here == PurePosixPath()
    for name in (_IN_EVERY_FOLDER[0], *(_AT_THE_TOP if top else ()), *_IN_EVERY_FOLDER[1:]):
        file = folder / here / name
        if file.is_file():
            for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
                if rule := _rule(line, here, f"{here / name}:{number}", docker=name in _AT_THE_TOP):
                    yield rule


def _rule(line: str, here: PurePosixPath, place: str, *, docker: bool) -> IgnoreRule | None:
    """A line as a rule. A pattern without a slash counts in every folder below, except in a .dockerignore."""
    text = line.strip()
    if not text or text.startswith("#"):
        return None
    negated = text.startswith("!")
    text = text[1:].strip() if negated else text.removeprefix("\\")
    pattern = text.strip("/")
    if not pattern or pattern == ".":
        return None
    everywhere = not docker and "/" not in text.rstrip("/")
    if everywhere:
        pattern = f"**/{pattern}"
    return IgnoreRule(
        pattern=str(here / pattern),
        negated=negated,
        folders_only=text.endswith("/") and not docker,
        place=place,
    )
