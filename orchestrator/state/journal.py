"""The record of a run as data: its attempts, and the checkpoints that count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from contract.checkpoint import StartPoint
from orchestrator.specs.run import State
from orchestrator.state.journal_entries import (
    CheckpointEntry,
    ClaimEntry,
    CopiedEntry,
    DataEntry,
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
from orchestrator.state.limits import DAMAGED


@dataclass(frozen=True, kw_only=True)
class JournalAttempt:
    """An attempt, put together from its entries."""

    claim: ClaimEntry
    claimed_at: int
    """Number of its entry in the record."""
    started: StartedEntry | None = None
    started_at: int = -1
    """Number of its entry in the record; -1: there is none."""
    refused: bool = False

    @property
    def number(self) -> int:
        return self.claim.attempt

    @property
    def is_open(self) -> bool:
        """True if it was claimed, and then neither started nor undone."""
        return self.started is None and not self.refused


@dataclass(frozen=True, kw_only=True)
class Journal:
    """All that a record says about its run."""

    run: RunEntry | None = None
    attempts: tuple[JournalAttempt, ...] = ()
    """Attempts in the order of their claims."""
    checkpoints: tuple[CheckpointEntry, ...] = ()
    """Checkpoints in the order of the reports; of one attempt and step the newest report alone."""
    copies: tuple[CopiedEntry, ...] = ()
    damaged: tuple[DataEntry, ...] = ()
    """Files of its data that were damaged, in the order of the reports."""
    takeovers: tuple[TakeoverEntry, ...] = ()
    stop: StopEntry | None = None
    """The newest request to stop that no later attempt has overruled."""
    end: EndEntry | None = None
    """Outcome of the current attempt; None: it has not ended, as far as is known."""
    forecast: str = ""
    """Forecast of the current attempt, as JSON."""
    hooks: frozenset[str] = frozenset()
    """Events that have started a command of the user."""

    @property
    def current(self) -> JournalAttempt | None:
        """The attempt that was started last."""
        return next((one for one in reversed(self.attempts) if one.started and not one.refused), None)

    @property
    def containers(self) -> Mapping[str, str]:
        """Ids of the containers of the current attempt, by node; empty: not known."""
        return self.current.started.containers if self.current and self.current.started else {}

    @property
    def pending(self) -> JournalAttempt | None:
        """The newest attempt, if it was claimed after the current one and is open: a launch that is under way, or was
        cut short."""
        newest = next((one for one in reversed(self.attempts) if not one.refused), None)
        return newest if newest and newest.is_open else None

    @property
    def next_number(self) -> int:
        """A number that no attempt of this record has had."""
        return max((one.number for one in self.attempts), default=-1) + 1

    @property
    def is_lost(self) -> bool:
        """True if it was recorded that no node answers: the run itself may have continued."""
        return self.end is not None and self.end.state == State.LOST

    def is_missing(self, entry: CheckpointEntry | DataEntry) -> bool:
        """Return whether it is not on record; damaged files of a node in an attempt, also whether they are few."""
        if isinstance(entry, CheckpointEntry):
            return all((one.attempt, one.identity) != (entry.attempt, entry.identity) for one in self.checkpoints)
        known = [one.identity for one in self.damaged if (one.attempt, one.node) == (entry.attempt, entry.node)]
        return entry.identity not in known and len(known) < DAMAGED

    def attempt(self, number: int) -> JournalAttempt | None:
        """The attempt with this number."""
        return next((one for one in reversed(self.attempts) if one.number == number), None)

    def knows(self, number: int, claim: str) -> bool:
        """Return whether this record has made an attempt with this number and this id of its claim."""
        known = self.attempt(number)
        return known is not None and known.claim.id == claim

    def attempt_of(self, container: str) -> int | None:
        """Number of the attempt that this container was made for; None: this record does not know the container."""
        for one in reversed(self.attempts):
            if one.started and container in one.started.containers.values():
                return one.number
        return None

    def lineage(self) -> tuple[CheckpointEntry, ...]:
        """Checkpoints that the newest attempt continues, newest step first: its own beyond the step that it resumed
        from, those of its base up to that step, and so on. Those of an abandoned branch are not among them."""
        found: list[CheckpointEntry] = []
        attempt, limit, seen = self.current, float("inf"), set[int]()
        while attempt and attempt.started and attempt.number not in seen:
            seen.add(attempt.number)
            bottom = attempt.started.resumes.step if attempt.started.resumes else -1
            own = (one for one in self.checkpoints if one.attempt == attempt.number and bottom < one.step <= limit)
            found += sorted(own, key=lambda one: -one.step)
            limit = bottom
            base = attempt.claim.base
            found += self._resumed(attempt.started.resumes, base)
            attempt = self.attempt(base) if base is not None else None
        return tuple(found)

    def _resumed(self, point: StartPoint | None, base: int | None) -> list[CheckpointEntry]:
        """The checkpoint that an attempt resumed from, if its base has not reported it: a person has accepted it."""
        if point is None or any((one.attempt, one.identity) == (base, (point.step, point.sha256))
                                for one in self.checkpoints):  # fmt: skip
            return []
        return [CheckpointEntry(attempt=-1 if base is None else base, step=point.step, sha256=point.sha256, node="")]


def fold(entries: Iterable[JournalEntry | None]) -> Journal:
    """The state that these entries add up to. None stands for an entry that is not understood."""
    all_entries = tuple(entries)
    attempts: dict[int, JournalAttempt] = {}
    checkpoints: dict[tuple[int, int], CheckpointEntry] = {}
    last: dict[type[JournalEntry], tuple[Any, int]] = {}
    hooks = set[str]()
    for position, entry in enumerate(all_entries):
        match entry:
            case ClaimEntry():
                known = attempts.get(entry.attempt)
                if known and known.claim.id == entry.id:  # it replaces what was known of its nodes
                    attempts[entry.attempt] = replace(known, claim=entry)
                else:  # another attempt with the same number
                    attempts.pop(entry.attempt, None)
                    attempts[entry.attempt] = JournalAttempt(claim=entry, claimed_at=position)
            case StartedEntry() if known := attempts.get(entry.attempt):
                attempts[entry.attempt] = replace(known, started=entry, started_at=position, refused=False)
            case RefusedEntry() if known := attempts.get(entry.attempt):
                attempts[entry.attempt] = replace(known, refused=True)
            case CheckpointEntry():
                checkpoints.pop((entry.attempt, entry.step), None)  # the newest report is the last
                checkpoints[entry.attempt, entry.step] = entry
            case HookEntry():
                (hooks.discard if entry.over else hooks.add)(entry.mark)
            case StopEntry() | EndEntry() | ForecastEntry():
                last[type(entry)] = entry, position

    def since(kind: type[JournalEntry], position: int) -> Any:
        entry, at = last.get(kind, (None, -1))
        return entry if at > position else None

    journal = Journal(
        run=next((one for one in all_entries if isinstance(one, RunEntry)), None),
        attempts=tuple(attempts.values()),
        checkpoints=tuple(checkpoints.values()),
        copies=tuple(one for one in all_entries if isinstance(one, CopiedEntry)),
        damaged=tuple(one for one in all_entries if isinstance(one, DataEntry)),
        takeovers=tuple(one for one in all_entries if isinstance(one, TakeoverEntry)),
        hooks=frozenset(hooks),
    )
    claimed_at, started_at = (one.claimed_at, one.started_at) if (one := journal.current) else (-1, -1)
    forecast = since(ForecastEntry, started_at)
    return replace(
        journal,
        stop=since(StopEntry, claimed_at),
        end=since(EndEntry, started_at),
        forecast=forecast.forecast if forecast else "",
    )
