"""The run that a person means: one rule for all commands."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

from orchestrator.specs.errors import ConfigError, UsageError
from orchestrator.specs.replaced import replaced

Purpose = Literal["look", "end"]
"""`end`: the command ends or deletes something, and does not choose among several active runs."""
ON_RECORD = "on record on this computer"
_SUFFIX = re.compile(r"-[0-9a-f]{4}", re.ASCII)
"""Added to the name of a run to make its id."""


@dataclass(frozen=True, kw_only=True)
class KnownRun:
    """A run that may be meant."""

    run_id: str
    at: float = 0.0
    """Its start, in seconds since 1970; of equal ones the first in the list counts as the newest."""
    active: bool = False


_tell: ContextVar[Callable[[str], object]] = ContextVar("tell", default=lambda _line: None)


def telling_by(tell: Callable[[str], object]) -> AbstractContextManager[None]:
    """Report with `tell` inside this context which of several runs was taken."""
    return replaced(_tell, tell)


def matching(wanted: str, ids: Iterable[str]) -> list[str]:
    """The run with this id, otherwise those with this name, otherwise those whose id begins so."""
    known = list(ids)
    if wanted in known:
        return [wanted]
    named = [one for one in known if one.startswith(wanted) and _SUFFIX.fullmatch(one, len(wanted))]
    return named or [one for one in known if one.startswith(wanted)]


def unknown_run(wanted: str, place: str, known: Iterable[str], hint: str = "orch runs") -> ConfigError:
    """The error that no run is meant: `no run nope on any node (did you mean note-1a2b?)`."""
    close = difflib.get_close_matches(wanted, list(known), 1)
    meant = f" (did you mean {close[0]}?)" if close else ""
    return ConfigError(f"no run {wanted} {place}{meant}", hint=hint)


class OnlyOnRecordError(ConfigError):
    """No node shows the run, and this computer has its record."""

    def __init__(self, wanted: str, run_id: str) -> None:
        super().__init__(f"no run {wanted} on any node, only {ON_RECORD}", hint=f"orch logs {wanted}")
        self.run_id = run_id


def resolve(wanted: str | None, known: Iterable[KnownRun], purpose: Purpose = "look") -> str | None:
    """Id of the run that is meant: of several the active one, otherwise the newest; None: there is none.

    `wanted`: an id, a name, or how an id begins; None or empty: any run. UsageError: to be ended, and several active
    runs are meant.
    """
    every: dict[str, KnownRun] = {}
    for one in known:
        every.setdefault(one.run_id, one)
    ids = matching(wanted, every) if wanted else list(every)
    found = sorted((every[one] for one in ids), key=lambda one: (one.active, one.at), reverse=True)
    if not found:
        return None
    active = [one.run_id for one in found if one.active]
    if wanted and len(found) > 1:
        if purpose == "end" and len(active) > 1:
            raise UsageError(
                f"{len(active)} active runs are named {wanted}: {', '.join(active)}", hint="give the id of one of them"
            )
        if len(active) == 1:
            _tell.get()(f"note: {active[0]}, the active one of {len(found)}")
        else:
            _tell.get()(f"note: {found[0].run_id}, the {'newer' if len(found) == 2 else 'newest'} of {len(found)}")
    return found[0].run_id
