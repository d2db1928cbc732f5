"""Checks of the user's code folder before it is copied: it holds the script, and is not too large."""

from __future__ import annotations

import difflib
import os
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import typer

from orchestrator.cli.consent import agreed
from orchestrator.cli.report import invocation, say
from orchestrator.fleet.planning.data import chosen_data
from orchestrator.fleet.runs.code_files import DATA_OPTION, CodeFiles, code_files
from orchestrator.render.printable import counted
from orchestrator.specs.data import in_code, placed_by
from orchestrator.specs.errors import ConfigError, UsageError
from orchestrator.specs.launch_options import LaunchOptions
from orchestrator.specs.plan import Plan

MOST_NAMED = 4
"""Names of what is left out that are printed."""
ASKED_ABOVE = 50_000_000
"""Bytes: a folder of code is smaller; a larger one holds data, models or a virtual environment."""


@dataclass(frozen=True, kw_only=True)
class OwnCode:
    """A code folder that is copied to every node, with its number of files and bytes, and what is left out."""

    folder: Path
    files: int
    size: int
    left_out: tuple[str, ...] = ()
    largest: str = ""
    """Folder in it with the most bytes; empty if the files beside its folders have more."""

    def __str__(self) -> str:
        units = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1))
        unit, scale = next((unit, scale) for unit, scale in units if self.size >= scale or scale == 1)
        where = self.folder if self.folder.is_absolute() or self.folder == Path() else f"./{self.folder}"
        more = len(self.left_out) - MOST_NAMED
        named = [*self.left_out[:MOST_NAMED], *([f"{more} more"] if more > 0 else [])]
        left_out = f" (left out: {', '.join(named)})" if named else ""
        return f"{where}, {counted(self.files, 'file')}, {self.size / scale:.3g} {unit}{left_out}"


def own_code(options: LaunchOptions, earlier: Plan | None = None) -> OwnCode | None:
    """Return the folder that a launch copies: --workdir, or the current one for the user's code; None for no copy.
    `earlier`: the run that is resumed or repeated, whose data are not copied with the code either.

    UsageError or ConfigError: the script is not there, or the folder is a home or a whole disk.
    """
    folder = options.workdir or (Path() if options.program.brings_own_code and not options.resume else None)
    if folder is None or not folder.is_dir():  # `build_request` refuses it, with the option that named it
        return None
    if Path.home().resolve().is_relative_to(folder.resolve()):
        raise UsageError(
            f"{folder.resolve()} would be copied to every node, with everything in it",
            hint=f"{_typed_line(options, options.command, './mine')}   # a folder with the code alone",
        )
    code = code_files(folder, _data_in(folder, options, earlier))
    if options.program.is_own and (words := options.program.entry()):
        _must_be_sent(code, words)
        _must_hold(folder, words, options)
    sizes = Counter[str]()
    for name in code.names:
        sizes[name.partition("/")[0] if "/" in name else ""] += (folder / name).stat().st_size
    return OwnCode(
        folder=folder,
        files=len(code.names),
        size=sizes.total(),
        left_out=tuple(code.left_out),
        largest=next((name for name, _ in sizes.most_common(1)), ""),
    )


def _data_in(folder: Path, options: LaunchOptions, earlier: Plan | None) -> frozenset[str]:
    """Paths in the folder of the code that a launch takes as data."""
    if not options.program_after(earlier.program if earlier else None).trains_own_code:
        return frozenset()
    data = chosen_data(options, earlier)
    placed = (replace(one, places=one.places or placed_by(one.origin, str(folder), str(Path.cwd()))) for one in data)
    return in_code(placed)


def may_be_copied(code: OwnCode, *, yes: bool) -> None:
    """Ask before a folder is copied that is larger than code is."""
    if code.size > ASKED_ABOVE:
        say(f"code: {code}")
        largest = code.largest or "FOLDER"
        as_data, largest = shlex.quote(str(code.folder / largest)), shlex.quote(largest)
        say(f"  → orch launch --data {as_data} …   # data: each node gets it once, and the script finds it as before")
        say(f"  → echo {largest} >> {shlex.quote(str(code.folder / '.orchignore'))}   # not needed there")
        if not agreed("Copy all of it to every node?", yes=yes):
            raise typer.Abort


def _must_be_sent(code: CodeFiles, words: Sequence[str]) -> None:
    """ConfigError: an ignore file leaves out the script or the module that is to run."""
    module = "/".join(words[1].split(".")) if words[0] == "-m" else ""
    for path in (module, f"{module}.py", f"{module}/__main__.py") if module else (str(Path(words[0])),):
        if not (left_out := code.left_out_with(path)):
            continue
        place = code.left_out[left_out]
        if place == DATA_OPTION:
            raise ConfigError(
                f"{path} would not be sent as code: {left_out} is given as data",
                hint="give the folder of the data alone",
            )
        if place:
            again = f"echo {shlex.quote(f'!/{left_out}')} >> {shlex.quote(str(code.folder / '.orchignore'))}"
            raise ConfigError(f"{path} would not be sent: {place} leaves out {left_out}", hint=again)
        raise ConfigError(
            f"{path} would not be sent: {left_out} is a folder of a kind that never is",
            hint="move the script out of it",
        )


def _must_hold(folder: Path, words: Sequence[str], options: LaunchOptions) -> None:
    if words[0] == "-m":
        return _must_hold_module(folder, words[1], options)
    script = Path(words[0])

    def line(name: str, workdir: str = "") -> str:
        """The line that was typed, with another script."""
        return _typed_line(options, [name if word == words[0] else word for word in options.command], workdir)

    if script.is_absolute():
        if script.is_relative_to(folder.resolve()) and script.is_file():
            inside = script.relative_to(folder.resolve())
            raise UsageError(f"{script} has another path on the nodes", hint=line(str(inside)))
        return None  # of the image, or of a --mount
    if (folder / script).is_file():
        if words == options.command and options.program.is_shell and not os.access(folder / script, os.X_OK):
            raise UsageError(f"{words[0]} is not executable", hint=_typed_line(options, ["bash", *words]))
        return None
    if script.is_file():
        raise ConfigError(
            f"no {script} in {folder}: it takes a path inside the code folder",
            hint=line(script.name, str(script.parent)),
        )
    kind = ".sh" if options.program.is_shell else ".py"
    by_stem = {path.stem: path for path in (*folder.glob(f"*/*{kind}"), *folder.glob(f"*{kind}"))}
    close = difflib.get_close_matches(script.stem, by_stem, 1)
    meant, hint = "", line(words[0], "FOLDER")
    if close:
        found = by_stem[close[0]]
        meant = f"; did you mean {found.relative_to(folder)}?"
        hint = line(found.name, "" if found.parent == folder else str(found.parent))
    raise ConfigError(f"no {script} in {folder.resolve() if folder == Path() else folder}{meant}", hint=hint)


def _must_hold_module(folder: Path, module: str, options: LaunchOptions) -> None:
    """A package that is not in the folder may be one of the image."""
    path = folder.joinpath(*module.split("."))
    if path.with_suffix(".py").is_file() or (path / "__main__.py").is_file():
        return
    top = folder / module.partition(".")[0]
    if not top.is_dir() and not top.with_suffix(".py").is_file():
        return
    known = [".".join(file.relative_to(folder).with_suffix("").parts) for file in folder.glob("**/*.py")]
    close = difflib.get_close_matches(module, known, 1)
    raise ConfigError(
        f"no module {module} in {folder}" + (f"; did you mean {close[0]}?" if close else ""),
        hint=_typed_line(
            options, [(close[0] if close else "MODULE") if word == module else word for word in options.command]
        ),
    )


def _typed_line(options: LaunchOptions, program: Sequence[str], workdir: str = "") -> str:
    """Return the line of this launch with other words after `--`, and another folder of the code where one is given."""
    words, typed = list(invocation.current.words), list(options.command)
    if "--" in words:
        words = words[: words.index("--")]
    else:  # without a command line, as in a call from Python, a launch
        words = words[: -len(typed)] if typed and words[-len(typed) :] == typed else ["launch"]
    if workdir and "--workdir" in words:
        place = words.index("--workdir")
        del words[place : place + 2]
    words = [word for word in words if not (workdir and word.startswith("--workdir="))]
    return shlex.join(["orch", *words, *(("--workdir", workdir) if workdir else ()), "--", *program])
