"""The controller's folder of each run: plan, logs and outcome. It can be lost without losing a run."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from platformdirs import user_state_path

from contract.cost_model.forecast import Forecast, read_forecast
from orchestrator.fleet.runs.event_index import EventIndex
from orchestrator.fleet.runs.kept_lines import KeptLines
from orchestrator.fleet.runs.secrets import veil_of
from orchestrator.nodes.state_files import replace_file
from orchestrator.specs.errors import ConfigError
from orchestrator.specs.plan import Plan
from orchestrator.specs.plan_json import from_json, to_json
from orchestrator.specs.run import RUN_ID
from orchestrator.specs.secret import Veil

PLAN, INTENT = "plan.json", "launching.json"
"""Plan of the launched attempt, and of an attempt that is being launched."""
STOPPING, NEXT = "stopping", "next.json"
"""Marks in a run's folder, which the next attempt removes."""


def runs_folder() -> Path:
    """Folder with the records of all runs."""
    return user_state_path("orch") / "runs"


class RunRecord(KeptLines):
    """Record of one run: a folder on the controller with its log lines, plan and outcome."""

    def __init__(self, run_id: str) -> None:
        """ConfigError if the id is not valid."""
        if not re.fullmatch(RUN_ID, run_id):
            raise ConfigError(f"{run_id!r} is not a run id", hint="orch runs")
        super().__init__(runs_folder() / run_id)
        self.run_id = run_id

    def save_intent(self, plan: Plan) -> None:
        """Save the plan before its first container is made, so that a launch that is cut short is on record."""
        replace_file(self.folder / INTENT, to_json(plan))

    def forget_intent(self) -> None:
        """Delete the plan of a launch that was rolled back, and an empty folder: a refused launch is not a run."""
        (self.folder / INTENT).unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()

    def save_plan(self, plan: Plan) -> None:
        """Save the plan once its containers run."""
        replace_file(self.folder / PLAN, to_json(plan))
        for name in ("outcome.json", "forecast.json", STOPPING, NEXT, INTENT):  # those of an earlier attempt
            (self.folder / name).unlink(missing_ok=True)

    def rename_nodes(self, plan: Plan) -> None:
        """Replace the plan by the same one with the nodes that a scheduler gave it. An outcome of the same attempt
        stays: only the names are news."""
        known = self.plan()
        if known is None or known.attempt < plan.attempt:
            self.save_plan(plan)
        else:
            replace_file(self.folder / PLAN, to_json(plan))

    def plan(self) -> Plan | None:
        """Plan of the attempt launched last; None if none can be read."""
        return self._read_plan(PLAN)[0]

    def plan_from(self, attempt: int) -> Plan | None:
        """Plan of this attempt if this computer launched it or began to, otherwise of its newest attempt."""
        plans = [plan for plan, _ in map(self._read_plan, (PLAN, INTENT)) if plan]
        return max(plans, key=lambda plan: (plan.attempt == attempt, plan.attempt), default=None)

    def newest_plan(self) -> Plan | None:
        """Plan of the newest attempt that this computer has launched or begun to launch."""
        return self.plan_from(-1)

    @property
    def unreadable(self) -> str:
        """Why the plan on record cannot be read; empty where it can, or where there is none."""
        return self._read_plan(PLAN)[1]

    def _read_plan(self, name: str) -> tuple[Plan | None, str]:
        file = self.folder / name
        try:
            return from_json(file.read_text(encoding="utf-8"), where=str(file)), ""
        except FileNotFoundError:
            return None, ""
        except (OSError, UnicodeDecodeError) as error:
            return None, f"{file} cannot be read: {error}"
        except ConfigError as error:  # of another version of orch, or damaged: as good as lost
            return None, error.message

    def _read_json(self, name: str) -> Any:
        """The content of the file; None if there is none, or it was cut short."""
        try:
            return json.loads((self.folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    @cached_property
    def veil(self) -> Veil:
        """Hides in the run's lines what its plan calls secret, as far as this controller knows it."""
        plan = self.plan()
        return veil_of(plan) if plan else Veil()

    def stamp(self) -> str:
        """Changes whenever the plan or the outcome is written."""
        states = []
        for name in (PLAN, "outcome.json"):
            with suppress(OSError):
                state = (self.folder / name).stat()
                states.append(f"{name} {state.st_mtime_ns} {state.st_size} {state.st_ino}")
        return ", ".join(states)

    def touched_at(self) -> float:
        """When the newest thing was recorded, in seconds since 1970: reading may write the index."""
        index, times = set(EventIndex(self.folder).files), [0.0]
        for file in self.folder.iterdir():
            with suppress(OSError):
                times += [] if file in index else [file.stat().st_mtime]
        return max(times)

    def ended_at(self) -> float:
        """When the outcome was recorded, in seconds since 1970; 0 if there is none."""
        try:
            return (self.folder / "outcome.json").stat().st_mtime
        except OSError:
            return 0.0

    def save_forecast(self, forecast: Forecast) -> None:
        replace_file(self.folder / "forecast.json", json.dumps(asdict(forecast)))

    def forecast(self) -> Forecast | None:
        with suppress(ValueError):
            return read_forecast(self._read_json("forecast.json"))
        return None

    def save_outcome(self, state: str, reason: str) -> None:
        replace_file(self.folder / "outcome.json", json.dumps({"state": state, "reason": reason}))

    def mark_stopping(self) -> None:
        """Mark the run as being stopped: a supervisor does not restart what ends."""
        replace_file(self.folder / STOPPING, "")

    def is_stopping(self) -> bool:
        return (self.folder / STOPPING).exists()

    def was_stopped(self, attempt: int) -> bool:
        """Whether this attempt was stopped from here: containers still running were on an unreachable node."""
        plan = self.plan()  # another controller may have begun a newer attempt since
        return self.is_stopping() and self.outcome() is not None and plan is not None and attempt <= plan.attempt

    def mark_next(self, nodes: Sequence[str]) -> None:
        """Record the nodes of the next attempt before the stop: another supervisor can then start it."""
        replace_file(self.folder / NEXT, json.dumps(list(nodes)))

    def next(self) -> tuple[str, ...]:
        """Nodes of a recorded next attempt that has not started; empty if there is none."""
        return tuple(map(str, self._read_json(NEXT) or ()))

    def outcome(self) -> tuple[str, str] | None:
        """State and reason, if this controller saw the run end."""
        with suppress(KeyError, TypeError):
            kept = self._read_json("outcome.json")
            return kept["state"], kept["reason"]
        return None


def record_of(wanted: str) -> RunRecord:
    """The record of the run with this id, or of the one whose id begins with it. ConfigError: there is none."""
    known = [record.run_id for record in recorded_runs()]
    matching = [run_id for run_id in known if run_id == wanted] or [one for one in known if one.startswith(wanted)]
    if len(matching) == 1:
        return RunRecord(matching[0])
    if matching:
        raise ConfigError(f"{len(matching)} runs begin with {wanted}: {', '.join(sorted(matching))}", hint="orch runs")
    close = difflib.get_close_matches(wanted, known, 1)
    meant = f" (did you mean {close[0]}?)" if close else ""
    hint = f"orch logs {wanted}   # collects its lines from its nodes; all runs: orch runs"
    raise ConfigError(f"no record of a run {wanted} on this computer{meant}", hint=hint)


def all_records() -> list[RunRecord]:
    """Records of all runs, also of those of which there is no plan, such as runs that another computer launched."""
    if not runs_folder().is_dir():
        return []
    folders = [folder for folder in runs_folder().iterdir() if folder.is_dir()]
    return [RunRecord(folder.name) for folder in folders if re.fullmatch(RUN_ID, folder.name)]


def recorded_runs() -> list[RunRecord]:
    """Records of all runs, newest first by the time of their plan. Other folders are ignored."""
    written: dict[str, float] = {}
    for file in (*runs_folder().glob(f"*/{PLAN}"), *runs_folder().glob(f"*/{INTENT}")):
        name = file.parent.name
        if re.fullmatch(RUN_ID, name):
            with suppress(OSError):  # it went away just now
                written[name] = max(written.get(name, 0.0), file.stat().st_mtime)
    return [RunRecord(name) for name in sorted(written, key=lambda name: written[name], reverse=True)]
