"""Import of `trainer` and `contract` under names of their own: `orch_hooks.image.trainer`.

A user's project may have modules of these names: `python trainer.py` puts the folder of the script first on the path.
So they are loaded from the folder beside this package, whatever `sys.modules` and the path hold, and an import inside
them finds the private ones, too. Python looks up `__import__` in the `__builtins__` of a module: theirs has one that
adds the prefix. The byte code is that of the ordinary modules.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGES = ("contract", "trainer")
PRIVATE = f"{__package__}.image"


def load(name: str) -> Any:
    """Return a module of the image, such as `trainer.config`."""
    if PRIVATE not in sys.modules:
        parent = ModuleType(PRIVATE)
        parent.__path__ = [str(Path(__file__).parents[1])]
        sys.modules[PRIVATE] = parent
        sys.meta_path.insert(0, _Finder())
    return import_module(f"{PRIVATE}.{name}")


class _Finder(MetaPathFinder):
    """Finds modules below `PRIVATE`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith(f"{PRIVATE}.") or not path:
            return None
        return FileFinder(path[0], (_Loader, SOURCE_SUFFIXES)).find_spec(name)


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _import}
        super().exec_module(module)


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] = (),
    level: int = 0,
) -> ModuleType:
    """`__import__` of the private modules."""
    package = name.partition(".")[0]
    if level or package not in PACKAGES:
        return __import__(name, globals, locals, fromlist, level)
    imported = __import__(f"{PRIVATE}.{name}", globals, locals, fromlist, level)
    return imported if fromlist else sys.modules[f"{PRIVATE}.{package}"]
