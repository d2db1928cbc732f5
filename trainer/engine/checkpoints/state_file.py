"""The state in a checkpoint, read so that nothing in it runs; what else it may be is said in words."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from trainer.errors import ConfigurationError

_NO_STATE = (pickle.UnpicklingError, EOFError, RuntimeError, LookupError, TypeError, ValueError, AttributeError)
"""Exceptions that torch and our own reading raise for a file that holds something else."""


def read_state(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """All that was saved, `model` among it, its tensors on this device. ConfigurationError: it is no such file."""
    with must_fit_in(path):
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        state["model"].items()
    return state


@contextmanager
def must_fit_in(path: Path) -> Iterator[None]:
    """Whatever goes wrong with what was read of this file is a ConfigurationError; only a full GPU is not its fault."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except _NO_STATE as error:
        why = str(error).partition("\n")[0]
        raise ConfigurationError(f"{path} is no state of this model: {type(error).__name__}: {why}") from error
