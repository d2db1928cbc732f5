"""The controller's folder of each run: its entries, plans and log lines. The run outlives it: another computer, or this
one, takes it over after a question."""

from __future__ import annotations

import getpass
import json
import platform
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import Any

from platformdirs import user_state_path

from contract.cost_model.forecast import Forecast, read_forecast
from contract.events import CheckpointWritten, DataDamaged, Event
from orchestrator.nodes.state_files import replace_file
from orchestrator.specs.errors import ConfigError
from orchestrator.specs.plan import Plan
from orchestrator.specs.plan_json import from_json, to_json
from orchestrator.specs.replaced import replaced
from orchestrator.specs.run import RUN_ID
from orchestrator.specs.run_events import RunLine
from orchestrator.specs.secret import Veil
from orchestrator.state.journal import Journal, JournalAttempt
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
    Why,
)
from orchestrator.store.record_file import NAME as RECORD
from orchestrator.store.record_file import RecordFile
from orchestrator.store.recorder import RecorderLock
from orchestrator.store.run_names import ON_RECORD, KnownRun, matching, resolve, unknown_run
from orchestrator.store.run_store import RunStore
from orchestrator.store.secret_values import veil_of
from orchestrator.store.segments import FOLDER as LINES

_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_NOTED = (CheckpointWritten.kind, DataDamaged.kind)
"""Kinds of events of which there are entries."""
_folder: ContextVar[Path | None] = ContextVar("folder", default=None)


def runs_folder() -> Path:
    """Folder with the records of all runs."""
    return _folder.get() or user_state_path("orch") / "runs"


def recording_in(folder: Path) -> AbstractContextManager[None]:
    """Keep the records in another folder inside this context: tests play two computers."""
    return replaced(_folder, folder)


def new_claim() -> str:
    """Id of a claim: 128 random bits."""
    return token_hex(16)


def user_here() -> str:
    """This user and this computer, as other computers show them."""
    return f"{getpass.getuser()}@{platform.node()}"


def plan_name(attempt: int) -> str:
    """File with the plan of an attempt, in the folder of its run."""
    return f"plan-{attempt}.json"


class RunRecord(RunStore):
    """Record of one run: a folder on the controller with its entries, the plan of each attempt, and its log lines.

    The entries say which attempts exist, which checkpoints count and whether the run is to end.
    """

    def __init__(self, run_id: str) -> None:
        """ConfigError if the id is not valid."""
        if not re.fullmatch(RUN_ID, run_id):
            raise ConfigError(f"{run_id!r} is not a run id", hint="orch runs")
        super().__init__(runs_folder() / run_id)
        self.run_id = run_id
        self._file = RecordFile(self.folder / RECORD)

    def recorder(self) -> RecorderLock:
        """The right to record this run."""
        return RecorderLock(self.folder)

    @property
    def journal(self) -> Journal:
        """The state of the run by its entries; empty where there is no record."""
        return self._file.journal()

    def claim(self, plan: Plan, nodes: Sequence[str], why: Why, samples_per_step: int | None = None) -> ClaimEntry:
        """Record that the attempt after this plan's is about to be claimed."""
        journal = self.journal
        entry = ClaimEntry(
            attempt=max(plan.attempt + 1, journal.next_number),
            id=new_claim(),
            base=plan.attempt,
            nodes=tuple(nodes),
            why=why,
            samples_per_step=samples_per_step,
        )
        self._file.append(*self._begin(plan, journal), entry)
        return entry

    def save_intent(self, plan: Plan) -> bool:
        """Save the plan before its first container is made, so that a launch that is cut short is on record.

        False: the attempt was claimed before.
        """
        replace_file(self.folder / plan_name(plan.attempt), to_json(plan))
        journal, id = self.journal, plan.claim
        known = journal.attempt(plan.attempt)
        if known and known.claim.id == id and not known.refused:
            return False
        base = journal.current.number if journal.current else plan.attempt - 1 if plan.attempt else None
        nodes = tuple(part.node for part in plan.nodes)
        why: Why = "launch" if base is None else "resume"
        claim = ClaimEntry(attempt=plan.attempt, id=id, base=base, nodes=nodes, why=why)
        self._file.append(*self._begin(plan, journal), claim)
        return True

    def _begin(self, plan: Plan, journal: Journal) -> list[JournalEntry]:
        command, host = plan.command, platform.node()
        run = RunEntry(run_id=plan.run_id, user=plan.user, host=host, project=plan.project, command=command)
        return [] if journal.run else [run]

    def forget_intent(self, attempt: int, reason: str = "") -> None:
        """Record that an attempt was undone. A run of which no attempt was ever started is removed: a refused launch
        is not a run."""
        self._file.append(RefusedEntry(attempt=attempt, reason=reason))
        journal = self.journal
        if journal.current or journal.takeovers:
            return
        for name in (RECORD, *(plan_name(one.number) for one in journal.attempts)):
            (self.folder / name).unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()

    def save_plan(self, plan: Plan, containers: Mapping[str, str] = MappingProxyType({})) -> None:
        """Record that all containers of the plan exist; `containers` has the id of each node's."""
        known = self.journal.attempt(plan.attempt)
        if not known or not known.is_open or self._read_plan(plan.attempt)[0] != plan:
            self.save_intent(plan)
        taken_over = known is not None and known.started is not None and known.claim.why == "takeover"
        resumes = known.started.resumes if taken_over and known and known.started else plan.resumes
        self._file.append(StartedEntry(attempt=plan.attempt, containers=dict(containers), resumes=resumes))

    def note_report(self, line: RunLine, container: str) -> None:
        """Record what this line of a container of the run reports, if the record has entries for it."""
        if not any(kind in line.text for kind in _NOTED):  # most lines need not be decoded
            return
        attempt = self.journal.attempt_of(container)
        entry = None if attempt is None else self._entry_of(line.event, line.node, attempt)
        if entry and self.journal.is_missing(entry):  # a supervisor reads all lines again
            with suppress(OSError):  # a full disk was reported when the lines did not fit
                self._file.append_if(lambda journal: journal.is_missing(entry), entry)

    def _entry_of(self, event: Event | None, node: str, attempt: int) -> CheckpointEntry | DataEntry | None:
        """A verified checkpoint counts on the node that leads the run; of its data, each node reports on its own."""
        if isinstance(event, DataDamaged):
            return DataEntry.of(event, attempt=attempt, node=node)
        if not isinstance(event, CheckpointWritten) or not event.verified or event.step is None:
            return None
        is_valid = _SHA256.fullmatch(event.sha256 or "") and self.leads(node, attempt)
        entry = CheckpointEntry(attempt=attempt, step=event.step, sha256=event.sha256 or "", node=node)
        return entry if is_valid else None

    def last_checkpoint(self) -> tuple[int, str] | None:
        """Step and node of the last verified checkpoint among the lines of the node that leads the run."""
        current = self.journal.current
        for line in self.events(CheckpointWritten, newest_first=True):
            event = line.event
            if not isinstance(event, CheckpointWritten) or not event.verified or event.step is None:
                continue
            if current is None or self.leads(line.node, current.number):
                return event.step, line.node
        return None

    def note_copies(self, step: int, sha256: str, nodes: Sequence[str]) -> None:
        """Record that these nodes have a verified copy of a checkpoint."""
        with suppress(OSError):
            self._file.append(*(CopiedEntry(step=step, sha256=sha256, node=node) for node in nodes))

    def leads(self, node: str, attempt: int) -> bool:
        """Return whether this node reports for the attempt: that of rank 0, or the first one that a forecast lets
        train."""
        if (forecast := self.forecast()) and self.journal.current == self.journal.attempt(attempt):
            return forecast.led_by(node)
        known, plan = self.journal.attempt(attempt), self._read_plan(attempt)[0]
        if plan is None and known and known.claim.why == "takeover":
            return node in known.claim.nodes[:1]
        return plan is not None and plan.master == node

    def save_takeover(self, plan: Plan, containers: Mapping[str, str], *, source: str, by: str) -> None:
        """Record an attempt of another computer as one of the run's, with its containers: a person has accepted it.

        The plan is not kept, and the checkpoint that it names counts only if it is on record: a node has written it.
        Each command that uses it asks for what it may do.
        """
        journal, nodes = self.journal, tuple(part.node for part in plan.nodes)
        known, current = journal.attempt(plan.attempt), journal.current
        again = known if known and known.claim.id == plan.claim and known.started and not known.refused else None
        if again and again.started and set(containers.values()) <= set(again.started.containers.values()):
            return
        base = current.number if current and current.number < plan.attempt else None
        on_record = plan.resumes and (plan.resumes.step, plan.resumes.sha256) in [
            one.identity for one in journal.lineage()
        ]
        self._file.append(
            *self._begin(plan, journal),
            TakeoverEntry(source=source, attempt=plan.attempt, by=by),
            ClaimEntry(
                attempt=plan.attempt,
                id=plan.claim,
                base=again.claim.base if again else base,
                nodes=nodes,
                why="takeover",
            ),
            StartedEntry(
                attempt=plan.attempt, containers=dict(containers), resumes=plan.resumes if on_record else None
            ),
        )

    def rename_nodes(self, plan: Plan) -> None:
        """Replace the plan by the same one with the nodes that a scheduler gave it. An outcome of the same attempt
        stays: only the names are news."""
        known = self.plan()
        if known is None or known.attempt < plan.attempt:
            self.save_plan(plan)
        else:
            replace_file(self.folder / plan_name(plan.attempt), to_json(plan))

    def plan(self) -> Plan | None:
        """Plan of the attempt started last; None if none can be read."""
        current = self.journal.current
        return self._read_plan(current.number)[0] if current else None

    def plan_from(self, attempt: int) -> Plan | None:
        """Plan of this attempt if this computer launched it or began to, otherwise of its newest attempt."""
        known = (self.journal.current, self.journal.pending)
        plans = [plan for one in known if one and (plan := self._read_plan(one.number)[0])]
        return max(plans, key=lambda plan: (plan.attempt == attempt, plan.attempt), default=None)

    def newest_plan(self) -> Plan | None:
        """Plan of the newest attempt that this computer has launched or begun to launch."""
        return self.plan_from(-1)

    @property
    def unreadable(self) -> str:
        """Reason why the plan on record cannot be read; empty where it can, or where no attempt was started."""
        current = self.journal.current
        own = current and current.claim.why != "takeover"
        return self._read_plan(current.number)[1] if current and own else ""

    def _read_plan(self, attempt: int) -> tuple[Plan | None, str]:
        file = self.folder / plan_name(attempt)
        try:
            plan, known = from_json(file.read_text(encoding="utf-8"), where=str(file)), self.journal.attempt(attempt)
            own = known is None or known.claim.id == plan.claim  # another computer may have made one of this number
            return (plan, "") if own else (None, f"{file} is of another claim of this attempt")
        except (OSError, UnicodeDecodeError) as error:
            return None, f"{file} cannot be read: {error}"
        except ConfigError as error:  # of another version of orch, or damaged: as good as lost
            return None, error.message

    def plan_values(self) -> Any:
        """The plan of the attempt started last as data, not checked: to read it as a plan takes ten times as long."""
        if current := self.journal.current:
            with suppress(OSError, ValueError, RecursionError):
                values = json.loads((self.folder / plan_name(current.number)).read_bytes())
                if isinstance(values, dict) and values.get("claim") == current.claim.id:
                    return values
        return None

    @cached_property
    def veil(self) -> Veil:
        """Hides in the run's lines what its plan calls secret, as far as this controller knows it."""
        plan = self.plan()
        return veil_of(plan) if plan else Veil()

    def stamp(self) -> str:
        """Changes whenever a plan or the outcome is recorded."""
        journal = self.journal
        current, end = journal.current, journal.end
        state = f"{current.number} {current.started_at}" if current else "none"
        with suppress(OSError):
            file = (self.folder / plan_name(current.number if current else 0)).stat()
            state += f", {file.st_mtime_ns} {file.st_size} {file.st_ino}"
        return f"{state}, {end.at} {end.state}" if end else state

    def touched_at(self) -> float:
        """Return when the newest thing was recorded, in seconds since 1970: reading may write the events."""
        self.settle()
        times = [0.0]
        for file in (*self.folder.glob("*.json*"), *self.folder.glob(f"{LINES}/*.jsonl*")):
            with suppress(OSError):
                times.append(file.stat().st_mtime)
        return max(times)

    def ended_at(self) -> float:
        """Return when the outcome was recorded, in seconds since 1970; 0 if there is none."""
        end = self.journal.end
        return end.at if end else 0.0

    def save_forecast(self, forecast: Forecast) -> None:
        text = json.dumps(asdict(forecast))
        if self.journal.forecast != text:  # each start of the ranks makes it again
            self._file.append(ForecastEntry(forecast=text))

    def forecast(self) -> Forecast | None:
        with suppress(ValueError):
            return read_forecast(json.loads(self.journal.forecast))
        return None

    def save_outcome(self, state: str, reason: str) -> None:
        current = self.journal.current
        self._file.append(EndEntry(attempt=current.number if current else None, state=state, reason=reason))

    def note_end(self, attempt: int, state: str, reason: str) -> bool:
        """Record the end of this attempt as a look has seen it, unless it is on record or a later attempt was begun."""
        entry = EndEntry(attempt=attempt, state=state, reason=reason)

        def is_open(journal: Journal) -> bool:
            current = journal.current
            is_newest = current is not None and current.number == attempt and journal.pending is None
            return is_newest and (journal.end is None or journal.is_lost)

        return self._file.append_if(is_open, entry)

    def mark_stopping(self) -> None:
        """Record that the run is to end, before the first signal: a supervisor does not restart what ends."""
        self._file.append(StopEntry(by=user_here()))

    def is_stopping(self) -> bool:
        return self.journal.stop is not None

    def was_stopped(self, attempt: int) -> bool:
        """Return whether this attempt was stopped from here: containers still running were on an unreachable node."""
        journal = self.journal  # another controller may have begun a newer attempt since
        current = journal.current
        return bool(journal.stop and journal.end and current and attempt <= current.number)

    def next(self) -> JournalAttempt | None:
        """An attempt that a supervisor has claimed and not started; None if there is none."""
        pending = self.journal.pending
        return pending if pending and pending.claim.why in ("replan", "add_nodes") else None

    def outcome(self) -> tuple[str, str] | None:
        """State and reason, if this controller saw the run end."""
        end = self.journal.end
        return (end.state, end.reason) if end else None

    def begin_hook(self, mark: str) -> bool:
        """Record that a command of the user is about to start for this event. False: one has started before."""
        return self._file.append_if(lambda journal: mark not in journal.hooks, HookEntry(mark=mark))

    def end_hook(self, mark: str) -> None:
        """Record that the event is over: its next occurrence starts the command again."""
        if mark in self.journal.hooks:
            self._file.append(HookEntry(mark=mark, over=True))


def record_of(wanted: str | None) -> RunRecord:
    """The record of the run that `wanted` means; of the newest where it is None. ConfigError: there is none."""
    known = known_records()
    ids = matching(wanted, (one.run_id for one in known)) if wanted else [one.run_id for one in known[:1]]
    found = [replace(one, active=RunRecord(one.run_id).outcome() is None) for one in known if one.run_id in ids]
    if chosen := resolve(wanted, found):
        return RunRecord(chosen)
    if wanted is None:
        raise ConfigError("this computer has no record of any run", hint="orch launch")
    hint = f"orch logs {wanted}   # collects its lines from its nodes; all runs: orch runs"
    raise unknown_run(wanted, ON_RECORD, (one.run_id for one in known), hint)


def records_meant(wanted: str | None) -> list[RunRecord]:
    """Return the records of the runs that `wanted` may name, newest first; that of the newest run if it is None or
    empty."""
    known = [one.run_id for one in known_records()]
    return [RunRecord(one) for one in (matching(wanted, known) if wanted else known[:1])]


def spoken_by_nodes(run_id: str) -> str:
    """Line on a run of which this computer has no record; empty where it has one."""
    if RunRecord(run_id).journal.attempts:
        return ""
    return f"run {run_id} is not on record on this computer: all of this is what its nodes say"


def all_records() -> list[RunRecord]:
    """Records of all runs, also of those of which there is no plan, such as runs that another computer launched."""
    if not runs_folder().is_dir():
        return []
    folders = [folder for folder in runs_folder().iterdir() if folder.is_dir()]
    return [RunRecord(folder.name) for folder in folders if re.fullmatch(RUN_ID, folder.name)]


def recorded_runs() -> list[RunRecord]:
    """Records of all runs, newest first by the time of their plans. Other folders are ignored."""
    return [RunRecord(one.run_id) for one in known_records()]


def known_records() -> list[KnownRun]:
    """The same runs, with these times; none counts as active, which only nodes know."""
    written: dict[str, float] = {}
    for file in runs_folder().glob("*/plan-*.json"):
        name = file.parent.name
        if re.fullmatch(RUN_ID, name) and (file.parent / RECORD).exists():
            with suppress(OSError):  # it went away just now
                written[name] = max(written.get(name, 0.0), file.stat().st_mtime)
    newest_first = sorted(written, key=lambda name: written[name], reverse=True)
    return [KnownRun(run_id=name, at=written[name]) for name in newest_first]
