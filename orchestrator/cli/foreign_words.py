"""Words of Docker, kubectl, Ansible, Slurm and git: each is answered with the line of orch that does it, to be pasted.

Nothing runs under such a word: what it means elsewhere, and what it would remove there, is not the same here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import dropwhile, pairwise
from pathlib import Path

from orchestrator.cli.completion import workload_names
from orchestrator.cli.foreign_table import COMMANDS, OPTIONS, REASONS
from orchestrator.specs.errors import UsageError

_READ_AS_OTHERS = {"-it": "exec shell launch", "-ti": "exec shell launch", "-np": "launch", "-v": "launch"}
"""Options that would be read as others, `-it` as an inventory named t: they are looked for before a line is parsed."""
_KINDS = ("show", "node", "nodes", "pod", "pods", "job", "jobs", "container", "deployment", "restart", "undo")
"""Words before the name of a run in lines of other tools; also `deployment/NAME`."""
_NAMED = re.compile(rf"^(?:{'|'.join(_KINDS)})s?/")
_PREFIXES = ("docker", "docker-compose", "podman", "kubectl", "compose", "container", "system", "git")
_PROGRAM = re.compile(r"(.*/)?(python[0-9.]*|bash|sh|torchrun|accelerate|deepspeed)|.*\.(py|sh)")
_IMAGE = re.compile(r"[a-z0-9][\w.-]*(/[\w.-]+)*:[\w.-]+")
_REPOSITORY = re.compile(r"[a-z0-9][\w.-]*(/[\w.-]+)*")
_IMAGE_FIRST = ("run", "create")
"""Words of Docker after which the image stands before the program."""
_INTERACTIVE = ("bash", "sh", "zsh")
"""Shells, which at the end of a line that starts a container or a job are for a person."""
_SCRIPT = "-- python train.py"


@dataclass(frozen=True, kw_only=True)
class _Option:
    command: str
    names: tuple[str, ...]
    valued: bool
    ours: str


def _rows(text: str) -> Iterator[list[str]]:
    for line in text.strip().splitlines():
        yield [cell.strip() for cell in line.split("|")]


def _option_rows() -> Iterator[_Option]:
    for command, names, value, ours in _rows(OPTIONS):
        yield _Option(command=command, names=tuple(names.split()), valued=value == "=", ours=ours)


@dataclass
class _Typed:
    """The words after a command: options in orch's spelling, why some are left out, and the words that follow."""

    options: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    """Options of other tools among them, as typed."""
    place: str = ""
    """Folder of an image in which the program was to run."""


Options = Callable[[str], Mapping[str, bool]]
"""Options of a command of orch, each with whether a value follows."""


def answer_to(typed: Sequence[str], place: int, commands: Collection[str], options: Options) -> UsageError | None:
    """Return the answer to the command at `place` of the words that were typed; None: no other tool has it.

    `commands`: those of orch, after which another word may be one; `options`: those of a command.
    """
    first = place
    while typed[place] in _PREFIXES and place + 1 < len(typed) and not typed[place + 1].startswith("-"):
        place += 1
    if place > first and typed[place] in commands:
        own = _translated(typed[place], typed[place + 1 :], options(typed[place]))
        line = shlex.join(["orch", typed[place], *own.options, *own.words])
        return UsageError(f"orch has no command {typed[place - 1]}", hint=line)
    word, after = typed[place], list(typed[place + 1 :])
    named = word
    about = next((one for one in after if one != "show"), "")
    if word in ("get", "describe", "scontrol") and about in ("node", "nodes"):
        word = "nodes"
    elif word == "get":
        word = "ls"
    elif word == "create" and about in ("secret", "configmap"):
        word = "secret"
    elif word in ("run", "srun", "salloc") and after and after[-1].rpartition("/")[2] in _INTERACTIVE:
        word, after = "ssh", []
    if word in commands and after:
        word, after, named = f"{word}-{after[0]}", after[1:], f"{word} {after[0]}"
    rows = [(purpose, line) for words, purpose, line in _rows(COMMANDS) if word in words.split()]
    if not rows:
        return None
    fill = partial(_filled, image_first=word in _IMAGE_FIRST)
    lines = [f"{purpose}: {fill(line, after, options)}" for purpose, line in rows]
    return UsageError(f"orch has no command {named}", hint="\n  → ".join(lines))


def _filled(line: str, after: Sequence[str], options: Options, *, image_first: bool) -> str:
    """The line of a row with the run, node, files or program that were typed."""
    command, _, rest = line.partition(" ")
    typed = _translated(command, after, options(command), _PROGRAM.fullmatch)
    own_options = _with_own_folders(typed.options) if command == "launch" else []
    if (
        image_first
        and "--workdir" in own_options
        and _value(own_options, "--workdir") == _value(typed.options, "--workdir")
    ):
        typed.place = _value(own_options, "--workdir")  # a folder of the image, not of this computer
        at = own_options.index("--workdir")
        own_options[at : at + 2] = []
    given = list(dropwhile(_KINDS.__contains__, (_NAMED.sub("", word) for word in typed.words if word != "--")))
    run = shlex.quote(given[0]) if given else ""
    fields = {
        "run": run,
        "name": run or "RUN",
        "node": "'*'" if run == "all" else run or "NODE",
        "new": re.sub(r"[^a-z0-9-]+", "-", given[-1].lower()).strip("-") if given else "NAME",
        "pair": shlex.join([*given[:2], *("RUN", "OTHER")[len(given[:2]) :]]),
        "copy": _copy(given),
        "command": _program(typed, image_first=image_first),
        "count": "" if "--nodes" in typed.options else "--nodes 3",
        "rest": shlex.join(given[1:]) or "COMMAND",
    }
    filled = re.sub(r"!(\S+)", r"'!\1'", rest).format(**fields)
    return " ".join(" ".join(("orch", command, shlex.join(own_options), filled)).split())


def _value(options: Sequence[str], name: str) -> str:
    """The word after an option; empty without one."""
    return next((after for option, after in pairwise(options) if option == name), "")


def _program(typed: _Typed, *, image_first: bool) -> str:
    """The program that was to run, after `--`, with the image that stands before it."""
    starts = (place for place, word in enumerate(typed.words) if _PROGRAM.fullmatch(word) or word in workload_names())
    place = next(starts, len(typed.words))
    program = [word for word in typed.words[place:] if word != "--" or "--" not in typed.words[:place]]
    before = [word for word in typed.words[:place] if word != "--"]
    image = next((word for word in before if _IMAGE.fullmatch(word)), "") if program or image_first else ""
    if not image and image_first and program and before and _REPOSITORY.fullmatch(before[-1]):
        image = before[-1]
    option = shlex.join(["--image", image]) + " " if image and "--image" not in typed.options else ""
    if not program:
        return option + _SCRIPT
    if typed.place:
        program = [f"{typed.place}/{word}" if re.fullmatch(r"[^/-].*\.(py|sh)", word) else word for word in program]
    interpreter = {".py": ["python"], ".sh": ["bash"]}.get(program[0][-3:], [])
    return option + shlex.join(["--", *interpreter, *program])


def _with_own_folders(options: Sequence[str]) -> list[str]:
    """Options of a launch: a folder that was to be mounted and worked in is that of the code; another one that is not
    absolute is of this computer, and so data."""
    found = list(options)
    at = found.index("--workdir") if "--workdir" in found else len(found)
    for place in [number for number, name in enumerate(found[:-1]) if name == "--mount"]:
        source, _, target = found[place + 1].partition(":")
        if found[at + 1 : at + 2] == [target.partition(":")[0]]:
            found[at + 1] = source
            return _with_own_folders([*found[:place], *found[place + 2 :]])
        if not source.startswith("/"):
            found[place : place + 2] = ["--data", str(Path(source).expanduser())]
    return found


def _copy(words: Sequence[str]) -> str:
    """`RUN:FILE DIR` as `RUN FILE --to DIR`."""
    if not words:
        return ""
    run, _, path = words[0].partition(":")
    to = ["--to", words[1]] if len(words) > 1 and words[1] != "." else []
    return shlex.join([run, *([path] if path else []), *to])


def option_answer(typed: Sequence[str], place: int, option: str, options: Options) -> UsageError | None:
    """Return the answer to an option of the command at `place`, whose options are given; None: no tool's of the table.

    The line to paste is the one that was typed, with all such options in orch's spelling.
    """
    command, after = typed[place], list(typed[place + 1 :])
    if _row(command, option) is None:
        return None
    found = _translated(command, after, options(command))
    words = found.words
    if command == "launch" and words and "--" not in words:
        words = ["--", *words]
    given = _with_own_folders(found.options) if command == "launch" else found.options
    if command == "resume" and (not words or words[0] == "--"):
        words = ["RUN", *words]
    line = shlex.join(["orch", *typed[:place], command, *given, *words]).replace("'--'", "--")
    names, why = ", ".join(found.foreign) or option, "; ".join(dict.fromkeys(found.reasons))
    return UsageError(f"orch {command} has no option {names}" + (f": {why}" if why else ""), hint=line)


def misread_option(typed: Sequence[str], place: int, options: Options) -> UsageError | None:
    """Return the answer to an option that would be read as several short ones, or as a run, before it is."""
    command = typed[place]
    before_words = typed[place + 1 : typed.index("--") if "--" in typed[place:] else None]
    if command == "resume":
        names = (word.partition("=")[0] for word in before_words if word.startswith("--"))
        unknown = next((name for name in names if name not in options(command) and _row(command, name)), "")
        return option_answer(typed, place, unknown, options) if unknown else None
    for option, commands in _READ_AS_OTHERS.items():
        if option in before_words and command in commands.split() and _is_foreign(option, before_words):
            return option_answer(typed, place, option, options)
    return None


def _is_foreign(option: str, words: Sequence[str]) -> bool:
    """Return whether it is another tool's: `-v` is orch's own, unless two folders, or a volume and one, follow it."""
    after = words[words.index(option) + 1 :][:1]
    return option != "-v" or bool(after and re.match(r"[./~].*:|[\w.-]+:/", after[0]))


def _row(command: str, option: str) -> _Option | None:
    rows = [row for row in _option_rows() if option in row.names and row.command in (command, "*")]
    return rows[0] if rows else None


def _translated(
    command: str, words: Sequence[str], own: Mapping[str, bool], ends: Callable[[str], object] = bool
) -> _Typed:
    """Sort the words after a command. Options that neither orch nor the table knows are left out.

    `ends`: whether a word after `launch` begins the program, whose options are its own.
    """
    typed, place = _Typed(), 0
    while place < len(words):
        word = words[place]
        if word == "--" or (command == "launch" and not word.startswith("-") and ends(word)):
            typed.words += words[place:]
            break
        place += 1
        if not word.startswith("-") or word == "-":
            typed.words.append(word)
            continue
        name, equals, value = word.partition("=")
        others = name in _READ_AS_OTHERS and _is_foreign(name, words[place - 1 :])
        others = others or (name == "-n" and command == "launch" and "-N" in words)  # Slurm's number of ranks
        row = _row(command, name) if others or name not in own else None
        valued = row.valued if row else own.get(name, False)
        if valued and not equals and place < len(words):
            value, place = words[place], place + 1
        if row:
            typed.foreign.append(name)
            if not row.ours.startswith("--checkpoint") or (value := _step(value)):
                typed.options += [part.format(value) for part in row.ours.split()]
            if reason := REASONS.get(row.names[0], ""):
                typed.reasons.append(reason)
        elif name in own:
            typed.options += [name, value] if valued else [word]
    return typed


def _step(value: str) -> str:
    """Step of a checkpoint by the name of its file or folder; empty for the newest one."""
    numbers = re.findall(r"[0-9]+", value)
    return "STEP" if not value else numbers[-1] if numbers else ""
