"""The record of a run as data: its entries, the state that they add up to, and the checkpoints that count.

An entry is one JSON object. Entries of an unknown kind are skipped and stay in the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal

from contract.checkpoint import StartPoint
from contract.json_reader import from_json

Why = Literal["launch", "resume", "replan", "add_nodes", "takeover", "scheduler"]
"""Reason for an attempt."""


@dataclass(frozen=True, kw_only=True)
class JournalEntry:
    """One line of the record."""

    kind: ClassVar[str] = ""
    kinds: ClassVar[dict[str, type[JournalEntry]]] = {}
    at: float = 0.0
    """Seconds since 1970, by this computer's clock. The order of the entries decides, never their times."""

    def __init_subclass__(cls, kind: str) -> None:
        cls.kind = kind
        cls.kinds[kind] = cls


@dataclass(frozen=True, kw_only=True)
class RunEntry(JournalEntry, kind="run"):
    """A run that is about to be claimed for the first time."""

    run_id: str
    user: str = ""
    host: str = ""
    project: str = ""
    command: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ClaimEntry(JournalEntry, kind="claim"):
    """An attempt that is about to be claimed on the nodes."""

    attempt: int
    id: str
    """128 random bits, hexadecimal: another claimant of the same number has another id."""
    base: int | None = None
    """The attempt that it follows; None: it begins the run."""
    nodes: tuple[str, ...] = ()
    why: Why = "launch"
    samples_per_step: int | None = None
    """Samples of a step that the attempt is to keep; None: those of the command."""


@dataclass(frozen=True, kw_only=True)
class RefusedEntry(JournalEntry, kind="refused"):
    """An attempt of which the launch was undone, or the claim was won by another claimant."""

    attempt: int
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class StartedEntry(JournalEntry, kind="started"):
    """An attempt of which all containers exist."""

    attempt: int
    containers: Mapping[str, str] = field(default_factory=dict)
    """Id of the container of each node."""
    resumes: StartPoint | None = None
    """The checkpoint that it resumes from; None: it begins at step 0."""


@dataclass(frozen=True, kw_only=True)
class CheckpointEntry(JournalEntry, kind="checkpoint"):
    """A verified checkpoint that the leading rank's node has reported."""

    attempt: int
    step: int
    sha256: str
    node: str

    @property
    def identity(self) -> tuple[int, str]:
        return self.step, self.sha256


@dataclass(frozen=True, kw_only=True)
class CopiedEntry(JournalEntry, kind="copied"):
    """A copy of a checkpoint that was verified on another node."""

    step: int
    sha256: str
    node: str


@dataclass(frozen=True, kw_only=True)
class StopEntry(JournalEntry, kind="stop"):
    """A request to end the run, before the first signal is sent."""

    by: str = ""


@dataclass(frozen=True, kw_only=True)
class EndEntry(JournalEntry, kind="end"):
    """The outcome of an attempt."""

    attempt: int | None = None
    state: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ForecastEntry(JournalEntry, kind="forecast"):
    """The predicted speed of an attempt, as the event has it."""

    forecast: str
    """JSON."""


@dataclass(frozen=True, kw_only=True)
class HookEntry(JournalEntry, kind="hook"):
    """A command of the user that is about to be started for this event; `over`: the event may start it again."""

    mark: str
    over: bool = False


@dataclass(frozen=True, kw_only=True)
class TakeoverEntry(JournalEntry, kind="takeover"):
    """An attempt of another computer that was accepted after a question."""

    source: str
    """Node that the plan is from."""
    attempt: int
    by: str = ""


def encode_entry(entry: JournalEntry) -> str:
    """One line of JSON, with its newline."""
    return json.dumps({"kind": entry.kind, **asdict(entry)}) + "\n"


def decode_entry(line: str) -> JournalEntry | None:
    """None: a line that was cut short, damaged, or of an unknown kind."""
    try:
        values: Any = json.loads(line)
        kind = JournalEntry.kinds.get(values.pop("kind"))
        return from_json(kind, values) if kind else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


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
        """Whether it was claimed, and then neither started nor undone."""
        return self.started is None and not self.refused


@dataclass(frozen=True, kw_only=True)
class Journal:
    """All that a record says about its run."""

    run: RunEntry | None = None
    attempts: tuple[JournalAttempt, ...] = ()
    """In the order of their claims."""
    checkpoints: tuple[CheckpointEntry, ...] = ()
    """In the order of the reports; of one attempt and step the newest report alone."""
    copies: tuple[CopiedEntry, ...] = ()
    takeovers: tuple[TakeoverEntry, ...] = ()
    stop: StopEntry | None = None
    """The newest request to stop that no later attempt has overruled."""
    end: EndEntry | None = None
    """Outcome of the current attempt; None: it has not ended, as far as is known."""
    forecast: str = ""
    """That of the current attempt, as JSON."""
    hooks: frozenset[str] = frozenset()
    """Events that have started a command of the user."""

    @property
    def current(self) -> JournalAttempt | None:
        """The attempt that was started last."""
        return next((one for one in reversed(self.attempts) if one.started and not one.refused), None)

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

    def attempt(self, number: int) -> JournalAttempt | None:
        """The attempt with this number."""
        return next((one for one in reversed(self.attempts) if one.number == number), None)

    def knows(self, number: int, claim: str) -> bool:
        """Whether this record has made an attempt with this number and this id of its claim."""
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
    folding = _Folding()
    for position, entry in enumerate(entries):
        if entry is not None:
            folding.add(entry, position)
    return folding.journal()


class _Folding:
    """Collects entries in order."""

    def __init__(self) -> None:
        self._run: RunEntry | None = None
        self._attempts: dict[int, JournalAttempt] = {}
        self._checkpoints: dict[tuple[int, int], CheckpointEntry] = {}
        self._lists: dict[type[JournalEntry], list[Any]] = {CopiedEntry: [], TakeoverEntry: []}
        self._last: dict[type[JournalEntry], tuple[Any, int]] = {}
        self._hooks: set[str] = set()

    def add(self, entry: JournalEntry, position: int) -> None:
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
