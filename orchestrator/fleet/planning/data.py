"""Read the folders of `--data` on this computer: their content, and the places by which a script asks for them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import permutations
from pathlib import Path, PurePosixPath

from orchestrator.fleet.runs.known_sums import data_digest
from orchestrator.specs.data import DataFolder, is_in_code, name_of, placed_by
from orchestrator.specs.errors import ConfigError, UsageError
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.launch_options import DEFAULT_DATA, LaunchOptions
from orchestrator.specs.plan import Plan

MOST_NAMED = 3
"""Links of a folder that a message names."""


def chosen_data(options: LaunchOptions, earlier: Plan | None) -> tuple[DataFolder, ...]:
    """Return the data as it was typed, otherwise that of the earlier attempt, otherwise ./Data if it is prepared.

    Of an earlier attempt with several, what is typed replaces those with its names.
    """
    names = {one.name for one in earlier.data} & {one.name for one in options.data} if earlier else set()
    if earlier and (names or not options.data):
        new = {one.name: one for one in options.data}
        return (*(new.pop(one.name, one) for one in earlier.data), *new.values())
    return options.data or default_data()


def default_data() -> tuple[DataFolder, ...]:
    """Return ./Data if it is prepared data."""
    is_prepared = (DEFAULT_DATA / "manifest.json").is_file()
    return (DataFolder(name=DEFAULT_DATA.name, origin=str(DEFAULT_DATA)),) if is_prepared else ()


def require_folder(typed: DataFolder) -> Path:
    """Return the folder that was typed. ConfigError: it is none."""
    folder = Path(typed.origin)
    if folder.is_dir():
        return folder
    if folder.is_symlink():
        raise ConfigError(f"--data {folder} is a link to {folder.readlink()}, which is not a folder")
    if folder.is_file():
        raise ConfigError(
            f"--data {folder} is a file, and data are a folder",
            hint=f"d={shlex.quote(folder.stem)}; mkdir $d && cp {shlex.quote(str(folder))} $d/   # then: --data $d",
        )
    if folder == DEFAULT_DATA:
        hint = "orch prepare   # makes ./Data, which a launch takes by itself"
    elif near := _nearest(folder):
        name = "" if name_of(typed.origin) == typed.name else f"{typed.name}="
        hint = f"the nearest that exists: --data {shlex.quote(name + near)}"
    else:
        there = next(one for one in folder.parents if one.is_dir())
        hint = f"ls {shlex.quote(str(there))}"
    raise ConfigError(f"--data {folder} is not a folder", hint=hint)


def _nearest(missing: Path) -> str:
    """The folder with the most similar path, as it would be typed; empty: none is similar."""
    found = Path("/") if missing.is_absolute() else Path()
    for part in missing.parts[missing.is_absolute() :]:
        if not (found / part).is_dir():
            try:
                names = {path.name.lower(): path.name for path in sorted(found.iterdir()) if path.is_dir()}
            except OSError:
                return ""
            close = get_close_matches(part.lower(), names, 1)
            if not close:
                return ""
            part = names[close[0]]
        found /= part
    return str(found)


def read_data(
    typed: Sequence[DataFolder], code: Path | None, nodes: Sequence[NodeSpec], notify: Callable[[str], object]
) -> tuple[DataFolder, ...]:
    """Return the data with digest, absolute folder and places. `code`: the folder of the script; None: a workload of
    the trainer reads them.

    ConfigError: a folder cannot be brought as it is, or the code has other content at one of its places.
    """
    if code is None and len(typed) > 1:
        names = ", ".join(one.name for one in typed)
        raise UsageError(f"a workload of the trainer reads one folder of data, and there are {names}")
    found = tuple(_read(one, code, nodes, notify) for one in typed)
    places = [(PurePosixPath(place), one) for one in found for place in one.places]
    for (inner, below), (outer, above) in permutations(places, 2):
        if below is not above and inner.is_relative_to(outer):
            raise UsageError(f"--data {below.typed} lies in --data {above.typed}, which brings it along")
    return found


def _read(
    typed: DataFolder, code: Path | None, nodes: Sequence[NodeSpec], notify: Callable[[str], object]
) -> DataFolder:
    folder = require_folder(typed)
    _require_content(typed, folder)
    try:
        digest = data_digest(folder, notify)
    except OSError as error:
        place = error.filename or folder
        raise ConfigError(f"{place} cannot be read: {error.strerror or error}", hint=f"ls -l {place}") from error
    found = replace(typed, digest=digest, origin=str(folder.resolve()))
    return found if code is None else _with_places(found, typed.origin, code, nodes, notify)


def _require_content(typed: DataFolder, folder: Path) -> None:
    """ConfigError: everything of this computer, nothing, or links that would lead nowhere on a node."""
    whole = folder.resolve()
    if Path.home().resolve().is_relative_to(whole):
        raise UsageError(f"--data {typed.origin} would copy {whole} to every node, with everything in it")
    if not any(path.is_file() for path in folder.rglob("*")):
        raise ConfigError(f"--data {typed.origin} holds no files", hint=f"ls -lR {shlex.quote(typed.origin)}")
    links = [path for path in sorted(folder.rglob("*")) if path.is_symlink() and not path.is_file()]
    if lost := [path for path in links if not path.exists() or not path.resolve().is_relative_to(whole)]:
        named = ", ".join(f"{path} → {path.readlink()}" for path in lost[:MOST_NAMED])
        more = f" and {len(lost) - MOST_NAMED} more" if len(lost) > MOST_NAMED else ""
        raise ConfigError(
            f"--data {typed.origin} has links that lead out of it or nowhere: {named}{more}",
            hint=f"cp -rL {shlex.quote(typed.origin)} DIR   # then: --data DIR",
        )


def _with_places(
    found: DataFolder, typed: str, code: Path, nodes: Sequence[NodeSpec], notify: Callable[[str], object]
) -> DataFolder:
    origin = Path(found.origin)
    if code.resolve() == origin:
        raise UsageError(
            f"--data {typed} is the folder of the code, which is copied anyway",
            hint="leave out --data, or give the folder of the data alone",
        )
    places = placed_by(typed, str(code), str(Path.cwd()))
    for place in places:
        _require_same(found, typed, code, place)
    for note in _notes(typed, places, nodes):
        notify(f"note: {note}; in the script: os.environ[{found.variable!r}]")
    return replace(found, places=places)


def _require_same(found: DataFolder, typed: str, code: Path, place: str) -> None:
    """ConfigError: the folder of the code has something else where the script would find the data."""
    there = code / place
    if not is_in_code(place):
        return
    parents = list(Path(place).parents)[:-1]  # the folder of the code itself may be a link
    link = next((code / one for one in reversed(parents) if (code / one).is_symlink()), None)
    is_same = there.is_dir() and (there.samefile(found.origin) or data_digest(there) == found.digest)
    if link is None and (is_same or not os.path.lexists(there)):
        return
    kind = "a folder with other content" if there.is_dir() else "no folder"
    where = f"{link} is a link to another place on the nodes" if link else f"{there} is {kind}"
    raise ConfigError(
        f"--data {typed} would be {place} for the script, and {where}",
        hint=f"--data {found.name}={found.origin}   # in the script: os.environ[{found.variable!r}]",
    )


def _notes(typed: str, places: Sequence[str], nodes: Sequence[NodeSpec]) -> Iterator[str]:
    """Paths by which a script that works here does not find its data on the nodes."""
    if not places:
        yield f"--data {typed}: no such path leads to it on the nodes"
        return
    bare = [node.name for node in nodes if node.engine == "process"]
    if bare and typed.startswith("/") and all(place.startswith("/") for place in places):
        yield f"--data {typed}: {', '.join(bare)} run no containers, and have no {typed}"
