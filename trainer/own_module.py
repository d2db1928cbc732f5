"""Import of what a user names by MODULE:NAME, from the working folder or an installed package."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from trainer.errors import ConfigurationError, OptionError


def imported(named: str, option: str) -> Callable[..., Any]:
    """Import the function or class that the option names.

    OptionError: there is none of this name. ConfigurationError: its module raises an exception.
    """
    module, name_in_it = split(named, option)
    file = Path(module)
    folder, name = (file.parent, file.stem) if file.suffix == ".py" else (Path(), module)
    _make_importable(folder.absolute())
    try:
        found = getattr(_module(name, file), name_in_it, None)
    except Exception as error:  # the user's module may raise anything
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            raise OptionError(f"{option} {named}: no module {name} in {folder.absolute()} or installed") from None
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigurationError(
            f"{option} {named} cannot be imported: {type(error).__name__}: {error} ({where.filename}:{where.lineno})"
        ) from error
    if not callable(found):
        raise OptionError(f"{option} {named}: {name} has no function {name_in_it}")
    return found  # type: ignore[no-any-return]  # its module has no types


def split(named: str, option: str) -> tuple[str, str]:
    """Split MODULE:NAME. OptionError: it is malformed, or the file does not exist."""
    module, _, name = named.rpartition(":")
    if not module or not name:
        raise OptionError(f"{option}: expected MODULE:NAME, such as my_pkg:Name or my_file.py:Name, not {named}")
    file = Path(module)
    if file.suffix == ".py" and not file.is_file():
        raise OptionError(f"{option} {named}: there is no {file.absolute()}")
    return module, name


def _make_importable(folder: Path) -> None:
    """Put a folder first on the path, or after ours if its modules have the names of ours: spawned worker processes
    import ours again, by the same path."""
    root = str(Path(__file__).parents[1])
    ours = any((folder / name).exists() for package in ("trainer", "contract") for name in (package, f"{package}.py"))
    if str(folder) not in sys.path:
        sys.path.insert(sys.path.index(root) + 1 if ours and root in sys.path else 0, str(folder))


def _module(name: str, file: Path) -> ModuleType:
    """Import a module by name, or by path if a loaded module, such as `trainer`, has the name of the file."""
    known = sys.modules.get(name)
    if known is None or file.suffix != ".py" or Path(known.__file__ or "").absolute() == file.absolute():
        return import_module(name)
    spec = spec_from_file_location(f"custom_{name}", file.absolute())
    assert spec  # noqa: S101  # there is a loader for .py
    assert spec.loader  # noqa: S101
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
