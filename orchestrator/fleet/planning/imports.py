"""Packages that a script of the user's imports, and the modules of its own that it imports, from their text: nothing
of it runs."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from warnings import catch_warnings, simplefilter

from contract.import_names import normal_name, packages_of
from orchestrator.fleet.planning.brought_packages import MENTIONED, BroughtModules, brought_by
from orchestrator.fleet.planning.import_statements import Statement, import_statements

MOST_FILES, MOST_BYTES = 500, 2_000_000
"""Files that are read, and the size of the largest: a larger one is data."""
MOST_DEPTH, MOST_FOLDERS = 6, 5_000
"""Folders in which modules are looked for: the others hold data."""
_GONE = {
    "aifc", "asynchat", "asyncore", "audioop", "cgi", "cgitb", "chunk", "crypt", "distutils", "imghdr", "imp",
    "lib2to3", "mailcap", "msilib", "nis", "nntplib", "ossaudiodev", "pipes", "smtpd", "sndhdr", "spwd", "sunau",
    "telnetlib", "uu", "xdrlib",
}  # fmt: skip
"""Modules of the standard library of Python 3.11, which the image has, that Python 3.12 or 3.13 has not."""
STANDARD = sys.stdlib_module_names | _GONE


@dataclass(frozen=True, kw_only=True)
class Imports:
    """Packages by the module's first name, each with the place that imports it, such as `train.py:3`."""

    needed: Mapping[str, str] = field(default_factory=dict)
    """Imported whenever the script starts."""
    possible: Mapping[str, str] = field(default_factory=dict)
    """Imported by a function, or under a condition."""


def imports_of(folder: Path, words: Sequence[str], path: Sequence[Path] = ()) -> Imports:
    """Return what a script of the folder imports, or `-m MODULE`, and the modules of the folder that it imports.

    `path`: further folders of the folder on PYTHONPATH. Modules of the standard library and of the folder are left out,
    those that are anywhere in it: a script may extend its path.
    """
    is_module = words[0] == "-m"
    start = _module_file(folder, words[1]) if is_module else folder / words[0]
    if start is None or not start.is_file():
        return Imports()
    places = [folder if is_module else start.parent, folder, *path]
    reader = _Reader(folder=folder, places=list(dict.fromkeys(places)))
    with suppress(RecursionError), catch_warnings():  # best effort; warnings are for the script itself
        simplefilter("ignore")
        reader.read(start, is_script=True)
    needed = {name: place for name, place in reader.needed.items() if not reader.may_bring(name)}
    possible = {name: place for name, place in (reader.possible | reader.needed).items() if name not in needed}
    return Imports(needed=needed, possible=possible)


@dataclass
class _Reader:
    folder: Path
    places: list[Path]
    needed: dict[str, str] = field(default_factory=dict)
    possible: dict[str, str] = field(default_factory=dict)
    seen: dict[Path, bool] = field(default_factory=dict)
    """Files that were read, and whether each is imported for certain."""
    brought: list[BroughtModules] = field(default_factory=list)

    def may_bring(self, module: str) -> bool:
        """Return whether the program may bring the module itself."""
        packages = {normal_name(one) for one in packages_of(module)}
        return any(one.any or packages & {normal_name(name) for name in one.packages} for one in self.brought)

    def read(self, file: Path, *, is_script: bool = False, certain: bool = True) -> None:
        """Read one file, and those of the folder that it imports."""
        if self.seen.get(file, False) or (file in self.seen and not certain) or len(self.seen) >= MOST_FILES:
            return
        self.seen[file] = certain
        try:
            if file.stat().st_size > MOST_BYTES:
                return
            text = file.read_bytes()
            tree = ast.parse(text)
            if MENTIONED.search(text):
                self.brought.append(brought_by(tree))
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
            return  # the script itself will say so
        for statement, sure in import_statements(tree.body, is_script=is_script):
            for name in self._names(statement, file, certain=certain and sure):
                self._note(name, f"{self._shown(file)}:{statement.lineno}", certain=certain and sure)

    def _names(self, statement: Statement, file: Path, *, certain: bool) -> Iterator[str]:
        """Yield the modules of a statement with dots; a relative one is a file of the folder, which is read here."""
        if isinstance(statement, ast.Import):
            yield from (one.name for one in statement.names)
        elif statement.level == 0 and statement.module:
            yield statement.module
            yield from (f"{statement.module}.{one.name}" for one in statement.names if one.name != "*")
        elif statement.level:
            base = file.parents[statement.level - 1] if statement.level <= len(file.parents) else self.folder
            inside = base.joinpath(*(statement.module or "").split("."))
            for target in (inside, *(inside / one.name for one in statement.names)):
                for found in (target.with_name(f"{target.name}.py"), target / "__init__.py"):
                    if found.is_file():
                        self.read(found, certain=certain)

    def _note(self, name: str, place: str, *, certain: bool) -> None:
        top = name.partition(".")[0]
        if own := self._own_files(name):
            for file in own:
                self.read(file, certain=certain)
        elif top not in STANDARD and not self._anywhere(top):
            (self.needed if certain else self.possible).setdefault(top, place)

    def _own_files(self, name: str) -> list[Path]:
        """Return the files of the folder that an import of this module reads; none for a package of the image."""
        parts = name.split(".")
        for place in self.places:
            if (file := place / f"{parts[0]}.py").is_file():
                return [file]
            inits = [place.joinpath(*parts[:depth], "__init__.py") for depth in range(1, len(parts) + 1)]
            module = place.joinpath(*parts[:-1], f"{parts[-1]}.py")
            if found := [one for one in (*inits, module) if one.is_file()]:
                return found
        return []

    def _anywhere(self, top: str) -> bool:
        """Return whether the folder has a module of this name somewhere, or a folder of its own at a place of the
        path."""
        return top in self._modules or any((place / top).is_dir() for place in self.places)

    @cached_property
    def _modules(self) -> frozenset[str]:
        """Names of all modules of the folder: a program may extend its path by any folder of it."""
        found: set[str] = set()
        for number, (path, folders, files) in enumerate(os.walk(self.folder)):
            depth = len(Path(path).relative_to(self.folder).parts)
            folders[:] = [one for one in folders if one[0] != "." and depth < MOST_DEPTH]
            names = [name for name in files if name.endswith((".py", ".so"))]
            found |= {name.partition(".")[0] for name in names} | ({Path(path).name} if depth and names else set())
            if "pyvenv.cfg" in files or number > MOST_FOLDERS:
                folders.clear()
        return frozenset(found)

    def _shown(self, file: Path) -> str:
        return str(file.relative_to(self.folder)) if file.is_relative_to(self.folder) else file.name


def _module_file(folder: Path, module: str) -> Path | None:
    path = folder.joinpath(*module.split("."))
    return next((one for one in (path / "__main__.py", path.with_name(f"{path.name}.py")) if one.is_file()), None)
