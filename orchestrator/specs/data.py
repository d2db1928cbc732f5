"""Data of a run: a folder of the controller that each node gets once, by its content, and that a script only reads."""

from __future__ import annotations

import hashlib
import os.path
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from contract import environment
from contract.run_folder import CODE_FOLDER, is_own_file

DIGEST_LENGTH = 16
"""Characters of the digest that names a folder of code, data or image parts on a node."""
MOST_FOLDERS = 32
DATA_NAME = r"[A-Za-z0-9_]{1,64}"

_OWN_NAMES = frozenset({CODE_FOLDER, "plan.json", "logs"})
"""Names in a run's folder, besides those that `is_own_file` knows."""
_OF_IMAGES = tuple(
    PurePosixPath(path)
    for path in (
        "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/nix", "/opt/conda", "/opt/orch", "/opt/venv",
        "/proc", "/root", "/run", "/sbin", "/sys", "/usr", "/var/lib", "/var/run", "/workspace",
    )
)  # fmt: skip
"""Folders of an image, and of orch, that no data may hide."""
_TEMPORARY = ("/tmp", "/var")  # noqa: S108  # paths in a container


@dataclass(frozen=True, kw_only=True)
class DataFolder:
    """Data that a run reads. Of what was typed, `name` and `origin` alone are known before the folder was read."""

    name: str
    digest: str = ""
    """Digest of its content, which is its name on the nodes."""
    origin: str = ""
    """Its absolute path on the controller that launched the run; before it was read, the path that was typed."""
    places: tuple[str, ...] = ()
    """Paths by which a script finds it: relative to the folder of its code, or absolute in a container."""
    parts: tuple[str, ...] = ()
    """Nodes in the order of their parts of it, some perhaps lost since; empty: every node has all of it."""

    @property
    def variable(self) -> str:
        """Environment variable with its path on a node."""
        return f"{environment.DATA_DIR}_{self.name.upper()}"

    @property
    def in_code(self) -> tuple[str, ...]:
        """Its places in the folder of the code."""
        return tuple(place for place in self.places if is_in_code(place))

    @property
    def typed(self) -> str:
        """Value of `--data` that gives this folder this name."""
        derived = name_of(self.origin) == self.name
        return self.origin if derived else f"{self.name}={self.origin}"

    def held_as(self, node: str) -> str:
        """Name of its folder on a node: the digest of all data, or one of the node's part of it."""
        return data_name(self.digest, self.parts, node)

    def links(self, run_id: str, node: str) -> dict[str, str]:
        """Links that show it at its relative places, with their targets. Both are relative and below the project's
        folder, so that they hold on the host and in a container alike."""
        run = f"runs/{run_id}"
        shown = (os.path.normpath(f"{run}/{CODE_FOLDER}/{place}") for place in self.places if place[0] != "/")
        held = f"data/{self.held_as(node)}"
        return {link: os.path.relpath(held, PurePosixPath(link).parent) for link in shown}


@dataclass(frozen=True, kw_only=True)
class DamagedFile:
    """A file of a copy that is not what was sent."""

    data: str
    """Name of the copy."""
    file: str
    wrong: str
    offset: int

    @property
    def text(self) -> str:
        return damage_text(self.file, self.wrong, self.offset)


@dataclass(frozen=True, kw_only=True)
class ComparedData:
    """All data of a project on a node, compared with what was sent."""

    damaged: tuple[DamagedFile, ...] = ()
    unchecked: tuple[str, ...] = ()
    """Copies without sums to compare them with."""
    size_bytes: int = 0


def damage_text(file: str, wrong: str, offset: int) -> str:
    """A damaged file, in a few words. `wrong`: as of the program that compares."""
    how = {
        "length": "has another length than what was sent",
        "missing": "is missing",
        "unreadable": f"cannot be read at byte {offset:,}",
    }
    return f"{' '.join(file.split())[:200] or '?'} {how.get(wrong, f'is not what was sent, at byte {offset:,}')}"


def data_name(digest: str, parts: Sequence[str], node: str) -> str:
    """Name of the folder with the data on a node: the digest of all data, or one of the node's part of it."""
    if node not in parts:
        return digest
    part = f"{digest} part {parts.index(node)} of {len(parts)}"
    return hashlib.sha256(part.encode()).hexdigest()[:DIGEST_LENGTH]


def in_code(data: Iterable[DataFolder]) -> frozenset[str]:
    """Paths in the folder of the code that are data, and not copied with it."""
    return frozenset(place for one in data for place in one.in_code)


def is_in_code(place: str) -> bool:
    """Return whether a place of data is in the folder of the code."""
    return place.split("/")[0] not in ("", "..")


def is_possible_place(path: str) -> bool:
    """Return whether a node can show data by this path of a script: in its code's folder, beside that folder, or, in a
    container, by an absolute path that hides nothing of the image."""
    way = PurePosixPath(path)
    if str(way) != path or path.startswith("//") or not path.isprintable():
        return False
    if way.is_absolute():
        hides = any(way.is_relative_to(one) or one.is_relative_to(way) for one in _OF_IMAGES)
        return not hides and path not in _TEMPORARY and not set(path) & {":", ","} and ".." not in way.parts
    beside = way.parts[:1] == ("..",)
    inner = way.parts[1:] if beside else way.parts
    if not inner or ".." in inner:
        return False
    return not beside or not (is_own_file(inner[0]) or inner[0] in _OWN_NAMES or inner[0].startswith("."))


def asked_places(typed: str, code: str, here: str) -> tuple[str, ...]:
    """Paths by which a script asks for data: where the folder lies as seen from that of its `code`, and as it was
    typed. `here`: the current folder."""
    beside = os.path.relpath(PurePosixPath(here, typed), PurePosixPath(here, code))
    return tuple(dict.fromkeys((beside, os.path.normpath(typed))))


def placed_by(typed: str, code: str, here: str) -> tuple[str, ...]:
    """Return those of `asked_places` that a node can have."""
    return tuple(filter(is_possible_place, asked_places(typed, code, here)))


def read_data_options(texts: Sequence[str]) -> tuple[DataFolder, ...]:
    """Read `[NAME=]DIR` of the command line. ValueError: the text of the problem."""
    found = dict[str, DataFolder]()
    for text in texts:
        name, equals, folder = text.partition("=")
        if not equals or not re.fullmatch(DATA_NAME, name):
            folder = text
            name = name_of(text)
        if not folder:
            raise ValueError(f"{text}: expected DIR or NAME=DIR")
        if name.upper() in {one.upper() for one in found}:
            raise ValueError(f"{text}: two are named {name}; give each a name of its own: --data NAME=DIR")
        found[name] = DataFolder(name=name, origin=folder)
    if len(found) > MOST_FOLDERS:
        raise ValueError(f"{len(found)} folders: expected at most {MOST_FOLDERS}")
    return tuple(found.values())


def name_of(folder: str) -> str:
    """Name of a folder of which none was typed."""
    return re.sub(r"[^A-Za-z0-9_]+", "_", PurePosixPath(os.path.normpath(folder)).name)[:64].strip("_") or "data"
