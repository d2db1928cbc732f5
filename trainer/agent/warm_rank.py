"""A rank in a process that was forked after the import of torch: what an exec and a start of Python would have set.

The differences from a rank that Python starts are in docs/own-scripts.md; where one matters, `why_not` names it.
"""

from __future__ import annotations

import ast
import builtins
import os
import re
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path

from trainer.agent import rank_status, stacks
from trainer.agent.shown_command import show

OURS = ("contract", "trainer")
"""Packages whose names the user's own may have."""
_PER_RANK = re.compile(
    r"(?:LOCAL_|GROUP_|ROLE_)?(?:RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(?:ADDR|PORT)|CUDA_VISIBLE_DEVICES"
    r"|(?:TORCH_)?NCCL_ASYNC_ERROR_HANDLING|(?:TORCHELASTIC|ORCH|PET)_\w+"
)
"""Variables that differ between ranks or generations, none of which is read while torch is loaded."""
_EARLY = re.compile(
    r"(?:OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|ATEN|DNNL|ONEDNN|KINETO|NUMPY|NPY|MALLOC|LD|TORCH[A-Z]*|PYTORCH)_\w+"
)
"""Variables that are read while torch is loaded: one that a script sets before the import has an effect."""
_SETTERS = ("putenv", "setdefault", "update")
_LONGEST_SCRIPT = 4 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Imported:
    """Facts about a process that has imported torch, for those that are forked from it."""

    modules: frozenset[str]
    """Modules of the start of Python, which a rank has, too, before its program runs."""
    environ: Mapping[str, str]
    """Environment at the start."""
    added: Mapping[str, str]
    """Variables that the import has set."""
    printed: bytes
    """Output of the import."""


@dataclass(frozen=True, kw_only=True)
class RankProgram:
    """A script or module as Python runs it, from the words of a command line."""

    argv: tuple[str, ...]
    """`python -u [-m] PROGRAM ARGUMENTS…`."""

    @property
    def module(self) -> str:
        """Name of the module; empty: the program is a script."""
        return self.argv[3] if self.argv[2] == "-m" else ""

    @property
    def path(self) -> str:
        """Path of the script, as `__file__` has it."""
        return os.path.join(Path.cwd(), self.argv[2])  # noqa: PTH118  # a Path would drop the dot of ./train.py

    @property
    def folder(self) -> str:
        """First folder that is searched for modules."""
        return str(Path.cwd() if self.module else Path(self.path).resolve().parent)

    def code(self) -> types.CodeType:
        return compile(Path(self.path).read_bytes(), self.path, "exec", dont_inherit=True)

    def source(self) -> Path | None:
        """The file of the program; None: it is not found without an import."""
        if not self.module:
            return Path(self.path)
        parts = self.module.split(".")
        places = [Path(entry or ".", *parts) for entry in (self.folder, *sys.path)]
        files = [file for place in places for file in (place.with_suffix(".py"), place / "__main__.py")]
        return next((file for file in files if file.is_file()), None)


def why_not(argv: Sequence[str], environ: Mapping[str, str], imported: Imported) -> str:
    """The reason why this command must run in a Python of its own; empty: there is none."""
    words = list(argv[2:4])
    if list(argv[:2]) != [sys.executable, "-u"] or not words or words == ["-m"]:
        return f"the command is {' '.join(argv[:2])} …"
    if words[0] != "-m" and (not words[0].endswith(".py") or not os.access(words[0], os.R_OK)):
        return f"{words[0]} is not a readable .py file"
    names = {*imported.environ, *environ} - {name for name in environ if _PER_RANK.fullmatch(name)}
    changed = sorted(name for name in names if imported.environ.get(name) != environ.get(name))
    changed = [name for name in changed if not _PER_RANK.fullmatch(name)]
    if changed:
        return f"{', '.join(changed[:3])} changed after the start of the agent"
    program = RankProgram(argv=tuple(argv))
    if file := _hidden(Path(program.folder), imported):
        return f"{file} has the name of a module that torch imports"
    source = program.source()
    if source and (name := _sets_early(source.read_bytes()[:_LONGEST_SCRIPT])):
        return f"{source.name} sets {name}, which is read while torch is loaded"
    return ""


def _sets_early(script: bytes) -> str:
    """Name of a variable that this script sets and that is read while torch is loaded; empty: there is none."""
    try:
        nodes = list(ast.walk(ast.parse(script)))
    except (SyntaxError, ValueError, RecursionError):  # Python reports it, at the same place
        return ""
    for node in nodes:
        part: ast.AST | None = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            part = node.slice
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.BitOr):
            part = node.value
        elif (
            isinstance(node, ast.Call) and (getattr(node.func, "attr", "") or getattr(node.func, "id", "")) in _SETTERS
        ):
            part = node
        for one in ast.walk(part) if part else ():
            name = one.arg if isinstance(one, ast.keyword) else getattr(one, "value", None)
            if isinstance(name, str) and _EARLY.fullmatch(name):
                return name
    return ""


def _hidden(folder: Path, imported: Imported) -> str:
    """File of this folder in whose place another module was imported, as the folder was not searched."""
    if _is_safe_path():
        return ""
    loaded = {name for name in sys.modules if "." not in name} - imported.modules - {*OURS, "__main__"}
    for entry in folder.iterdir():
        name = entry.name.partition(".")[0]
        if name in loaded and (entry.suffix in (".py", ".so") or (entry / "__init__.py").exists()):
            file = getattr(sys.modules[name], "__file__", None) or ""
            if folder not in Path(file).parents:
                return entry.name
    return ""


def _is_safe_path() -> bool:
    return bool(getattr(sys.flags, "safe_path", False))  # from Python 3.11 on


def become(program: RankProgram, environ: Mapping[str, str], imported: Imported) -> None:
    """Set this process to the state in which Python starts a program in this environment."""
    os.setsid()
    os.environ.clear()
    os.environ.update({**imported.added, **environ})
    show(program.argv, os.environ)
    sys.argv[:] = program.argv[3:] if program.module else program.argv[2:]
    sys.orig_argv[:] = program.argv
    if not _is_safe_path():
        sys.path.insert(0, program.folder)
    _draw_seeds()
    _new_main(program)
    stacks.register(os.environ)
    rank_status.begin(os.environ)
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, imported.printed)


def _draw_seeds() -> None:
    """Draw what Python and torch draw for each process: otherwise all ranks would have the same random numbers."""
    import multiprocessing

    import torch

    torch.default_generator.seed()  # not torch.seed(): the default seed of a GPU is a fixed number
    if numpy := sys.modules.get("numpy.random"):
        numpy.seed()
    multiprocessing.current_process().authkey = os.urandom(32)


def _new_main(program: RankProgram) -> None:
    main = types.ModuleType("__main__")
    values: dict[str, object] = {"__builtins__": builtins}
    if "__annotations__" in vars(sys.modules["__main__"]):  # up to Python 3.13
        values["__annotations__"] = {}
    if not program.module:
        values |= {"__file__": program.path, "__cached__": None}
        values["__loader__"] = SourceFileLoader("__main__", program.path)
    main.__dict__.update(values)
    sys.modules["__main__"] = main
