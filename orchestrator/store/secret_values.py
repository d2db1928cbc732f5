"""Values of a run's secrets, as far as this computer has them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from orchestrator.specs.errors import ConfigError
from orchestrator.specs.plan import Plan
from orchestrator.specs.secret import Secret, Veil, hidden_of, is_sensitive, veil_over
from orchestrator.specs.secret_forms import REDACTED

LARGEST = 512 * 1024
"""Bytes of a secret."""


def secret_values(secrets: Sequence[Secret], environment: Mapping[str, str]) -> dict[str, bytes]:
    """Each secret's value, by name. ConfigError names all that this controller lacks."""
    values, problems = dict[str, bytes](), []
    for secret in secrets:
        try:
            values[secret.name] = _value(secret, environment)
        except (OSError, ValueError) as error:
            problems.append(f"--secret {secret.name}: {error}")
    if problems:
        raise ConfigError(
            "secrets that the run asks for are not on this computer",
            problems=problems,
            hint="export the variable, or say where it is: --secret NAME=FILE",
        )
    return values


def require_values(secrets: Sequence[Secret], variables: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """ConfigError: this controller lacks a secret, or the value of a variable that an earlier plan has not kept."""
    secret_values(secrets, environment)
    if missing := sorted(name for name, value in variables.items() if value == REDACTED):
        raise ConfigError(
            f"the earlier attempt had {', '.join(missing)}, and no plan holds the value",
            hint=f"export {missing[0]}, or say it again: --env {missing[0]}=…",
        )


def veil_of(plan: Plan, environment: Mapping[str, str] = os.environ) -> Veil:
    """Return a veil over the run's secrets that this controller knows, and over its sensitive variables."""
    known: list[str] = []
    for secret in plan.secrets:
        with suppress(OSError, ValueError):  # it may be only on the computer that launched the run
            known.append(_value(secret, environment).decode(errors="replace"))
    for name, value in plan.environment.items():
        if is_sensitive(name, value):
            known += hidden_of(environment.get(name, "") if value == REDACTED else value)
    return veil_over(known)


def _value(secret: Secret, environment: Mapping[str, str]) -> bytes:
    """ValueError, with a message, or OSError: there is no such value."""
    file = Path(secret.file)
    if not secret.file or (secret.name in environment and not file.is_file()):
        if not environment.get(secret.name):
            raise ValueError(f"there is no variable {secret.name} in the environment")
        return os.fsencode(environment[secret.name])
    if not file.is_file():
        raise ValueError(f"{file} is not a file")
    with file.open("rb") as content:
        value = content.read(LARGEST + 1)
    if not 0 < len(value) <= LARGEST:
        raise ValueError(f"{file} has {'more than 512 KiB' if value else 'no content'}")
    return value
