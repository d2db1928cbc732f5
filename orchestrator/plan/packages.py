"""Packages that a project adds to the image: Python requirements, Debian packages, a Dockerfile. Pure.

Torch is the image's own: every node must run the same build, so a requirement that excludes it is refused here.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath, PurePosixPath
from typing import Any, NamedTuple

from packaging.utils import canonicalize_name

from orchestrator.plan.requirement_lines import conda_file, is_of_cuda, read_line, requirement_of
from orchestrator.specs.errors import ConfigError

REQUIREMENTS = "requirements.txt"
"""Usual name of a project's file of packages."""
LAYER = "images/packages.Dockerfile"
BASE_ARGUMENT = "BASE"
FREEZE = "pip list --format=freeze --not-required > requirements.txt   # then leave torch out"
"""Command that writes the packages of an environment as pip reads them."""
_DEBIAN = re.compile(r"[a-z0-9][a-z0-9+.-]{1,99}(=[A-Za-z0-9.+:~-]{1,99})?")
_INSTRUCTION = re.compile(r"^\s*(ARG|FROM)\s+(.+?)\s*$", re.IGNORECASE)
_INCLUDED = {"-r": True, "--requirement": True, "-c": False, "--constraint": False}
"""Options of pip that name another file; True: its lines are requirements too, False: they are constraints."""
_GIT = re.compile(r"\bgit\+")


@dataclass(frozen=True, kw_only=True)
class Additions:
    """Content of the layers above orch's own image. All empty: there are none."""

    requirements: tuple[str, ...] = ()
    """Lines for pip, those of included files among them."""
    constraints: tuple[str, ...] = ()
    apt: tuple[str, ...] = ()
    """Names of Debian packages, each with its version where one is asked for: `libgl1`, `ffmpeg=7:5.1.6`."""
    dockerfile: bytes = b""
    """Dockerfile of the user, built last, from the image with all of the above."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """Lines that will not do what they say, each with its place; no part of the content."""
    context: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Files of the Dockerfile's folder, by path: its instructions may copy them."""

    def __bool__(self) -> bool:
        return bool(self.requirements or self.apt or self.dockerfile)

    @property
    def digest(self) -> str:
        """Hash of all of it; empty if there is nothing."""
        if not self:
            return ""
        digest = hashlib.sha256()
        for lines in (self.requirements, self.constraints, self.apt):
            digest.update("".join(f"{line}\n" for line in lines).encode() + b"\0")
        for path, content in [("", self.dockerfile), *sorted(self.context.items())]:
            digest.update(f"{path}\0{len(content)}\0".encode() + content)
        return digest.hexdigest()

    @property
    def from_git(self) -> bool:
        """True if pip needs git for a requirement."""
        return any(_GIT.search(line) for line in self.requirements)

    def names(self, package: str) -> bool:
        """Return whether a requirement names this Python package."""
        named = (requirement_of(line) for line in self.requirements)
        return any(found and canonicalize_name(found.name) == package for found in named)


def command_to_add(packages: Sequence[str], requirements: str | None, own: PurePath | None = None) -> str:
    """Return the line that adds Python packages to the image.

    `requirements`: the file that the inventory names; `own`: otherwise the one of the project's folder.
    """
    if requirements and requirements.endswith(".toml"):
        return f"orch build   # after adding {', '.join(map(repr, packages))} to `dependencies` in {requirements}"
    file = shlex.quote(requirements or str(own or REQUIREMENTS))
    lines = "echo" if len(packages) == 1 else r"printf '%s\n'"
    return f"{lines} {shlex.join(packages)} >> {file} && orch build" + (
        "" if requirements else f" --requirements {file}"
    )


def named_in(text: str) -> list[str]:
    """Return the packages that the lines of a requirements.txt name, a repository by its own name; lines that name none
    are passed over."""
    lines = [line for _, line in _logical_lines(text)]
    found = [requirement_of(line) for line in lines]
    sources = (_REPOSITORY.search(line) for line, one in zip(lines, found, strict=True) if one is None)
    return [*(one.name for one in found if one), *(one["name"] for one in sources if one)]


def included_in(text: str) -> list[str]:
    """Return the files of requirements that the lines of a requirements.txt include."""
    words = (re.split(r"[\s=]+", line, maxsplit=1) for _, line in _logical_lines(text))
    return [one[1].strip("'\"") for one in words if len(one) == 2 and _INCLUDED.get(one[0])]


def pip_commands(dockerfile: str) -> list[str]:
    """Return the arguments of each `pip install` of a Dockerfile, as lines of a requirements.txt."""
    commands = list[str]()
    for _, line in _logical_lines(dockerfile):
        for command in re.split(r"&&|\|\||[;|]", line) if line[:4].upper() == "RUN " else ():
            program, found, rest = command.partition(" install ")
            if found and re.search(r"\bpip[0-9.]*\b", program):
                rest = re.sub(r"\s(-r|--requirement)[\s=]+(\S+)", r"\n-r \2\n", f" {rest}")
                lines = (line if line.startswith("-r ") else line.replace(" ", "\n") for line in rest.splitlines())
                commands.append(re.sub(r"['\"]", "", "\n".join(lines)))
    return commands


_REPOSITORY = re.compile(r"git\+\S+/(?P<name>[\w.-]+?)(?:\.git)?(?:[@#]\S*)?$")


class RequirementLines(NamedTuple):
    """Lines of a project for pip."""

    requirements: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Lines that will not do what they say, each with its place."""


def requirements_of(path: str, read: Callable[[str], str], torch: str) -> RequirementLines:
    """Requirements and constraints of a requirements.txt with the files that it includes.

    `read` returns a file's text by its path; `torch` is the version in the image. ConfigError: all the lines that
    cannot be installed in an image, or exclude that version, with their places.
    """
    files = _RequirementFiles(read, torch)
    files.add(path, required=True)
    if problems := files.problems:
        raise ConfigError(
            f"{path} has {len(problems)} {'line' if len(problems) == 1 else 'lines'} that the image cannot take",
            problems=problems,
        )
    return RequirementLines(tuple(files.requirements), tuple(files.constraints), tuple(files.notes))


def project_requirements(
    project: Mapping[str, Any], lock: Mapping[str, Any], path: str, torch: str, pins: Mapping[str, str]
) -> RequirementLines:
    """Requirements of a parsed pyproject.toml, and its uv.lock as constraints.

    The lock does not constrain packages in `pins`: those of the image stay, unless a requirement excludes them.
    ConfigError: the file lists no dependencies in the standard place, or one excludes the image's torch.
    """
    table = project.get("project")
    if not isinstance(table, dict) or "dependencies" in table.get("dynamic", ()) or "dependencies" not in table:
        raise ConfigError(
            f"{path} has no list `dependencies` in [project]",
            hint="write the packages to a requirements.txt, and: orch build --requirements requirements.txt",
        )
    lines = [read_line(str(line), torch) for line in table["dependencies"]]
    if problems := [line.refusal for line in lines if line.refusal]:
        raise ConfigError(f"{path}: the image cannot take its dependencies", problems=problems)
    versions: dict[str, set[str]] = {}
    for package in lock.get("package", ()):
        if "registry" in package.get("source", {}) and "version" in package:
            versions.setdefault(canonicalize_name(package["name"]), set()).add(package["version"])
    free = {name: found for name, found in versions.items() if len(found) == 1 and name not in pins}
    pinned = tuple(f"{name}=={version}" for name, (version,) in sorted(free.items()) if not is_of_cuda(name))
    notes = tuple(f"{path}: {note}" for line in lines for note in line.notes)
    return RequirementLines(tuple(line.text for line in lines if line.text), pinned, notes)


def debian_packages(text: str, path: str) -> tuple[str, ...]:
    """Names in a list of Debian packages, one or more per line, `#` for comments. ConfigError: what is not a name."""
    found, problems = list[str](), list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        for word in line.partition("#")[0].split():
            if _DEBIAN.fullmatch(word):
                found.append(word)
            else:
                problems.append(f"{path}:{number}: {word[:80]!r} is not the name of a Debian package")
    if problems:
        raise ConfigError(f"{path} is not a list of Debian packages", problems=problems)
    return tuple(dict.fromkeys(found))


def check_dockerfile(text: str, path: str) -> None:
    """ConfigError unless the last stage of this Dockerfile begins with orch's image, which `ARG BASE` names."""
    declared, stages, last, line = False, dict[str, str](), "", 0
    for number, written in enumerate(text.splitlines(), 1):
        if not (match := _INSTRUCTION.match(written)):
            continue
        instruction, rest = match.group(1).upper(), match.group(2)
        if instruction == "ARG":
            declared = declared or (not last and rest.partition("=")[0] == BASE_ARGUMENT)
            continue
        image, _, name = re.sub(r"^--\S+\s+", "", rest).partition(" ")
        last, line = stages.get(image.lower(), image), number
        stages[name.strip()[len("as ") :].strip().lower()] = last
    if declared and last in (f"${BASE_ARGUMENT}", f"${{{BASE_ARGUMENT}}}"):
        return
    what = f"its last stage is built from {last}" if last else "it has no FROM"
    raise ConfigError(
        f"{path}{f':{line}' if line else ''}: {what}, not from orch's image",
        hint=f"begin it with these two lines: ARG {BASE_ARGUMENT} / FROM ${{{BASE_ARGUMENT}}}"
        "   # a finished image of another kind cannot hold the trainer",
    )


class _RequirementFiles:
    """Lines of a requirements.txt and of the files that it includes."""

    def __init__(self, read: Callable[[str], str], torch: str) -> None:
        self.requirements: list[str] = []
        self.constraints: list[str] = []
        self.problems: list[str] = []
        self.notes: list[str] = []
        self._read, self._torch, self._seen = read, torch, set[str]()

    def add(self, path: str, *, required: bool) -> None:
        if path in self._seen:
            return
        self._seen.add(path)
        lines = _logical_lines(self._read(path))
        if conda := conda_file(path, [line for _, line in lines]):
            raise ConfigError(f"{path} is no list for pip", problems=[conda], hint=f"in its environment: {FREEZE}")
        for number, line in lines:
            option, _, value = re.sub(r"[\s=]+", " ", line, count=1).partition(" ")
            if option in _INCLUDED and value:
                self.add(str(PurePosixPath(path).parent / value), required=required and _INCLUDED[option])
                continue
            read = read_line(line, self._torch)
            self.notes += [f"{path}:{number}: {note}" for note in read.notes]
            if read.refusal:
                self.problems.append(f"{path}:{number}: {read.refusal}")
            elif read.text:
                (self.requirements if required else self.constraints).append(read.text)


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Lines with their numbers, continuations joined; without comments and empty lines."""
    lines, held, begun = list[tuple[int, str]](), "", 0
    for number, written in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        begun = begun if held else number
        held += written
        if held.endswith("\\"):
            held = held[:-1] + " "
            continue
        if line := re.sub(r"(^|\s)#.*$", "", held).strip():
            lines.append((begun, line))
        held = ""
    if held.strip():
        lines.append((begun, held.strip()))
    return lines
