"""Marks in a run's folder that keep an old container from training, which Docker may start again with its machine."""

from __future__ import annotations

import re
from pathlib import Path

from contract.run_folder import ATTEMPTS, STOPPED

_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)
LONGEST = 200
"""Characters of the mark's text that are shown."""


def why_not_to_begin(folder: Path, attempt: int) -> str:
    """Return why no container of this attempt may begin to train: the run was stopped, or has a later attempt;
    otherwise empty. `folder`: the run's."""
    try:
        with (folder / STOPPED).open("rb") as file:
            line = file.read(LONGEST).decode("utf-8", "replace").partition("\n")[0]
        text = "".join(letter for letter in line if letter.isprintable()) or "no text"
    except FileNotFoundError:
        text = ""
    except OSError as error:  # it is there
        text = f"{error.strerror}"
    if text:
        return f"the run was stopped while this node was away ({text}); orch resume continues it"
    numbers = [int(name) for name in _names(folder / ATTEMPTS) if _NUMBER.fullmatch(name)]
    later = max([attempt, *numbers])
    return (
        f"attempt {later} of the run has begun, and this container is of attempt {attempt}" if later > attempt else ""
    )


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir() if path.is_dir()]
    except OSError:
        return []
