"""Turn an unexpected exception into an error of one line, and save its traceback to a file."""

from __future__ import annotations

import os
import platform
import tempfile
import time
import traceback
from contextlib import suppress
from itertools import count
from pathlib import Path

from platformdirs import user_state_path

from orchestrator.specs.errors import BugError, ConfigError, OrchError

MAX_FILES = 20
"""Files at most; older ones are removed."""
LONGEST = 300
"""Characters of an exception's message that are shown; the file has all of it."""
PREFIX = "orch-crash-"

_number = count()


def crashes_folder() -> Path:
    """The folder of the saved tracebacks."""
    return user_state_path("orch") / "crashes"


def as_error(error: BaseException, *, node: str = "") -> OrchError:
    """The exception as an `OrchError`: an `OrchError` unchanged, an `OSError` with its own text, any other one as a bug
    of orch with its traceback saved to a file."""
    if isinstance(error, OrchError):
        return error
    if isinstance(error, OSError):  # such as a disk that is full, or a folder that cannot be written
        reason = error.strerror or str(error) or type(error).__name__
        return ConfigError(f"{reason}: {error.filename}" if error.filename else reason, node=node)
    words = " ".join("".join(traceback.format_exception_only(error)).split())
    return BugError(f"{words[:LONGEST]}: this is a bug in orch; {_saved(error)}", node=node)


def _saved(error: BaseException) -> str:
    """Save the traceback; the sentence that says where it is."""
    text = f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')}, Python {platform.python_version()}, {platform.platform()}\n\n"
    text += "".join(traceback.format_exception(error))
    problem: OSError | None = None
    name = f"{PREFIX}{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{next(_number):04d}.txt"
    for folder in (crashes_folder(), Path(tempfile.gettempdir())):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as writing:
                writing.write(text)
            for old in sorted(folder.glob(f"{PREFIX}*.txt"))[:-MAX_FILES]:
                with suppress(OSError):
                    old.unlink()
            return f"report it with {folder / name}"
        except OSError as refused:
            problem = refused
    return f"its traceback could not be written ({problem})"
