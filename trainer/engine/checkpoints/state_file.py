"""Files that `torch.save` wrote, read so that nothing in them runs; what else they may be is said in words."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from contract import environment
from trainer.errors import ConfigurationError, TrainerError


def read_state(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """All that was saved, `model` among it, its tensors on this device. ConfigurationError: it is no such file."""
    return read_saved(path, device, model=dict)


def read_saved(path: Path, device: torch.device | str = "cpu", **parts: type) -> dict[str, Any]:
    """A saved dictionary that has these parts. ConfigurationError: it is none. TrainerError: it cannot be read."""
    with must_fit_in(path):
        saved = torch.load(path, map_location=device, weights_only=True)
        if not isinstance(saved, dict):
            raise TypeError(f"a {type(saved).__name__}")
        if wrong := [name for name, kind in parts.items() if not isinstance(saved.get(name), kind)]:
            raise TypeError(f"no {wrong[0]}")
        return saved


@contextmanager
def must_fit_in(path: Path) -> Iterator[None]:
    """Raise ConfigurationError for any problem of what was read of this file, TrainerError for a disk that fails.
    Both name the node and the file. Only a full GPU is not its fault."""
    node = os.environ.get(environment.NODE, "")
    place = f"{node}: {path}" if node else str(path)
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except OSError as error:
        raise TrainerError(f"{place} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # torch documents none of the errors that a changed file may raise
        why = str(error).partition("\n")[0]
        raise ConfigurationError(f"{place} is no state of this model: {type(error).__name__}: {why}") from error
