"""What can go wrong here, each kind with the exit code that the orchestrator reads."""

from __future__ import annotations


class TrainerError(Exception):
    """The training failed for a reason that we can name."""

    exit_code = 1


class TooLittleMemoryError(TrainerError):
    """Not even one sample of the model fits: the user's matter, and the same words fail the same way again. Exit code
    1, as it shows only in training: what can be told before is the configuration's."""


class DriftError(TrainerError):
    """The ranks no longer train one model, for no fault of the command: from the last checkpoint they do again."""


class OptionError(TrainerError):
    """The command line asks for something that cannot be."""

    exit_code = 2


class ConfigurationError(TrainerError):
    """What the run needs is not there or does not fit: no data, no sound checkpoint, another model."""

    exit_code = 3
