"""The entries of the record of a run. An entry is one JSON object; those of an unknown kind stay in the file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from contract.checkpoint import StartPoint
from contract.events import DataDamaged
from contract.json_reader import from_json

Why = Literal["launch", "resume", "replan", "add_nodes", "takeover", "scheduler"]
"""Reason for an attempt."""
MOST_CHARS = 1000
"""Characters of a text of a node in an entry."""
MOST_NUMBER = 10**17


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
class DataEntry(JournalEntry, kind="data"):
    """A damaged file of a node's copy of the data, which the attempt has read. Times are those of the node."""

    attempt: int
    node: str
    data: str = ""
    file: str = ""
    wrong: str = ""
    offset: int = 0
    found_at: float = 0.0
    intact_at: float = 0.0
    """Time from which on what was trained from it is in doubt."""

    @classmethod
    def of(cls, event: DataDamaged, *, attempt: int, node: str) -> DataEntry:
        """The entry of a report, within the bounds of what the record reads again."""
        found_at = min(max(0.0, event.t or 0.0), MOST_NUMBER)
        return cls(
            attempt=attempt, node=node, data=(event.data or "")[:MOST_CHARS], file=(event.file or "")[:MOST_CHARS],
            wrong=(event.wrong or "")[:MOST_CHARS], offset=min(max(0, event.offset or 0), MOST_NUMBER),
            found_at=found_at, intact_at=min(max(0.0, event.intact_at or found_at), MOST_NUMBER),
        )  # fmt: skip

    @property
    def identity(self) -> tuple[int, str, str, str]:
        return self.attempt, self.node, self.data, self.file


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
