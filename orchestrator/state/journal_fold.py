"""The state of a run that the entries of its record add up to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from orchestrator.state.journal import Journal, JournalAttempt
from orchestrator.state.journal_entries import (
    CheckpointEntry,
    ClaimEntry,
    CopiedEntry,
    EndEntry,
    ForecastEntry,
    HookEntry,
    JournalEntry,
    RefusedEntry,
    RunEntry,
    StartedEntry,
    StopEntry,
    TakeoverEntry,
)


def fold(entries: Iterable[JournalEntry | None]) -> Journal:
    """The state that these entries add up to. None stands for an entry that is not understood."""
    folding = JournalFold()
    for entry in entries:
        folding.add(entry)
    return folding.journal()


class JournalFold:
    """Collects entries in order."""

    def __init__(self) -> None:
        self._position = -1
        """Number of the newest entry."""
        self._run: RunEntry | None = None
        self._attempts: dict[int, JournalAttempt] = {}
        self._checkpoints: dict[tuple[int, int], CheckpointEntry] = {}
        self._lists: dict[type[JournalEntry], list[Any]] = {CopiedEntry: [], TakeoverEntry: []}
        self._last: dict[type[JournalEntry], tuple[Any, int]] = {}
        self._hooks: set[str] = set()

    def add(self, entry: JournalEntry | None) -> None:
        """Add the next entry; None: it is not understood."""
        self._position = position = self._position + 1
        match entry:
            case RunEntry():
                self._run = self._run or entry
            case ClaimEntry():
                self._claim(entry, position)
            case StartedEntry() if entry.attempt in self._attempts:
                known = self._attempts[entry.attempt]
                self._attempts[entry.attempt] = replace(known, started=entry, started_at=position, refused=False)
            case RefusedEntry() if entry.attempt in self._attempts:
                self._attempts[entry.attempt] = replace(self._attempts[entry.attempt], refused=True)
            case CheckpointEntry():
                self._checkpoints.pop((entry.attempt, entry.step), None)  # the newest report is the last
                self._checkpoints[entry.attempt, entry.step] = entry
            case CopiedEntry() | TakeoverEntry():
                self._lists[type(entry)].append(entry)
            case HookEntry():
                (self._hooks.discard if entry.over else self._hooks.add)(entry.mark)
            case StopEntry() | EndEntry() | ForecastEntry():
                self._last[type(entry)] = entry, position

    def _claim(self, entry: ClaimEntry, position: int) -> None:
        """Another id is another attempt with the same number; the same id replaces what was known of its nodes."""
        known = self._attempts.pop(entry.attempt, None)
        if known and known.claim.id == entry.id:
            self._attempts[entry.attempt] = replace(known, claim=entry)
        else:
            self._attempts[entry.attempt] = JournalAttempt(claim=entry, claimed_at=position)

    def journal(self) -> Journal:
        attempts = tuple(sorted(self._attempts.values(), key=lambda one: one.claimed_at))
        current = next((one for one in reversed(attempts) if one.started and not one.refused), None)
        end = self._since(EndEntry, current.started_at if current else -1)
        return Journal(
            run=self._run,
            attempts=attempts,
            checkpoints=tuple(self._checkpoints.values()),
            copies=tuple(self._lists[CopiedEntry]),
            takeovers=tuple(self._lists[TakeoverEntry]),
            stop=self._since(StopEntry, current.claimed_at if current else -1),
            end=end,
            forecast=getattr(self._since(ForecastEntry, current.started_at if current else -1), "forecast", ""),
            hooks=frozenset(self._hooks),
        )

    def _since(self, kind: type[JournalEntry], position: int) -> Any:
        """The last entry of a kind after this position; None if there is none."""
        entry, at = self._last.get(kind, (None, -1))
        return entry if at > position else None
