"""One seed for every source of chance, and `--deterministic`: the same figures again, bit for bit."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

import numpy as np
import torch

from trainer.errors import ConfigurationError


def seed_everything(seed: int) -> None:
    """Seed the random generators of this process: python, numpy, torch on the CPU and on every GPU."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)


def be_deterministic(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set deterministic algorithms before the first operation on a GPU: cuBLAS reads its workspace's layout once."""
    environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False  # it picks by speed, which differs from run to run


@contextmanager
def determinism_explained() -> Iterator[None]:
    """torch's error for an operator without a deterministic form, as a sentence with a way out."""
    try:
        yield
    except RuntimeError as error:
        operator = operator_without(str(error))
        if operator is None:
            raise
        raise ConfigurationError(
            f"--deterministic: {operator} has no deterministic form on this device: leave --deterministic out,"
            " or train on a CPU, where most operators have one"
        ) from error


def operator_without(message: str) -> str | None:
    """The operator that torch's message is about; None if it is about something else."""
    found = re.match(r"(\S+) does not have a deterministic implementation", message)
    if found:
        return found.group(1)
    return "a product in cuBLAS" if "CUBLAS_WORKSPACE_CONFIG" in message else None
