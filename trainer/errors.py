"""Errors of the trainer, each with its exit code, which the orchestrator reads."""

from __future__ import annotations


class TrainerError(Exception):
    """The training failed for a known reason."""

    exit_code = 1


class TooLittleMemoryError(TrainerError):
    """Memory too small for one sample: a user error, which a restart repeats. Exit code 1, as it shows only during
    training, not in the configuration."""


class DriftError(TrainerError):
    """The weights of the ranks have diverged, through no fault of the command; a restart from a checkpoint helps."""


class OptionError(TrainerError):
    """Options are invalid or contradict each other."""

    exit_code = 2


class ConfigurationError(TrainerError):
    """Something that the run needs is missing or does not fit: data, a sound checkpoint, the same model."""

    exit_code = 3
