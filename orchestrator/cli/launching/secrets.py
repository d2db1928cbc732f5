"""What a launch is told that nobody else is to read: its secrets, and variables that look like some.

A resumed run has what the earlier attempt had, as far as its plan is granted it (`grants`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from orchestrator.cli.launching.launch_options import LaunchOptions
from orchestrator.cli.report import say
from orchestrator.specs.errors import UsageError
from orchestrator.specs.plan import Plan
from orchestrator.specs.secret import NAME, REDACTED, Secret, is_sensitive


def asked_secrets(options: LaunchOptions, earlier: Plan | None) -> tuple[Secret, ...]:
    """Those of the earlier attempt and those of the command line."""
    by_name = {
        secret.name: secret for secret in (*(earlier.secrets if earlier else ()), *map(_secret, options.secrets))
    }
    return tuple(by_name.values())


def known_again(earlier: Plan, assigned: Mapping[str, str], own_environment: Mapping[str, str]) -> dict[str, str]:
    """The earlier attempt's variables. Values that its plan does not hold come from this computer's environment, where
    the command line does not say them."""
    concealed = _concealed(earlier) - set(assigned)
    return {**earlier.environment, **{name: own_environment[name] for name in concealed if own_environment.get(name)}}


def hint_at_secrets(assigned: Mapping[str, str]) -> None:
    """Said of `--env` alone: there a value ends up where others read it."""
    for name in (name for name, value in assigned.items() if is_sensitive(name, value)):
        say(f"note: whoever may use Docker on a node can read {name}, by docker inspect\n  → --secret {name}")


def _concealed(earlier: Plan) -> set[str]:
    return {name for name, value in earlier.environment.items() if value == REDACTED}


def _secret(text: str) -> Secret:
    name, equals, file = text.partition("=")
    if not NAME.fullmatch(name) or (equals and not file):
        raise UsageError(
            f"--secret {name}: expected NAME or NAME=FILE", hint="the value itself is never said on a command line"
        )
    return Secret(name=name, file=str(Path(file).expanduser().absolute()) if file else "")
