"""The controller's folder of each run: plan, logs and outcome. It can be lost without losing a run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import IO

from platformdirs import user_state_path

from orchestrator.fleet.runs.secrets import veil_of
from orchestrator.specs.errors import ConfigError
from orchestrator.specs.forecast import Forecast, read_forecast
from orchestrator.specs.happening import Said
from orchestrator.specs.plan import Plan
from orchestrator.specs.plan_json import from_json, to_json
from orchestrator.specs.run import RUN_ID
from orchestrator.specs.secret import Veil

STOPPING, NEXT = "stopping", "next.json"
"""Marks in a run's folder, which the next attempt takes away."""


def runs_folder() -> Path:
    """Where the records of all runs lie."""
    return user_state_path("orch") / "runs"


class RunRecord:
    """One run's folder on the controller."""

    def __init__(self, run_id: str) -> None:
        """ConfigError for an id that is no name."""
        if not re.fullmatch(RUN_ID, run_id):
            raise ConfigError(f"{run_id!r} is no id of a run", hint="orch runs")
        self.run_id = run_id
        self.folder = runs_folder() / run_id

    def save_plan(self, plan: Plan) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "plan.json").write_text(to_json(plan), encoding="utf-8")
        for name in ("outcome.json", "forecast.json", STOPPING, NEXT):  # those of an earlier attempt
            (self.folder / name).unlink(missing_ok=True)

    def plan(self) -> Plan | None:
        file = self.folder / "plan.json"
        return from_json(file.read_text(encoding="utf-8"), where=str(file)) if file.is_file() else None

    @cached_property
    def veil(self) -> Veil:
        """Hides in the run's lines what its plan calls secret, as far as this controller knows it."""
        plan = plan_of(self)
        return veil_of(plan) if plan else Veil()

    def open_log(self, node: str) -> IO[str]:
        """The file that this node's lines are appended to, each on a line of its own even after a crash."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / f"{node}.log.jsonl"
        cut_short = file.is_file() and file.read_bytes()[-1:] not in (b"", b"\n")
        log = file.open("a", encoding="utf-8")
        if cut_short:
            log.write("\n")
        return log

    def last_time(self, node: str) -> str:
        """Time of the newest line kept of this node; empty where there is none."""
        return max((said.time for said in self.lines(node)), default="")

    def lines(self, node: str | None = None) -> Iterator[Said]:
        """The lines kept, in order of time; a last line cut short by a crash is left out."""
        kept: dict[Said, None] = {}  # two followers of one run keep the same lines twice
        for file in sorted(self.folder.glob(f"{node or '*'}.log.jsonl")):
            for text in file.read_text(encoding="utf-8", errors="replace").split("\n"):  # a line may hold U+2028
                try:
                    kept[Said(**json.loads(text))] = None
                except (ValueError, TypeError):
                    continue
        yield from sorted(kept, key=lambda said: (said.time, said.node_rank))

    def save_forecast(self, forecast: Forecast) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "forecast.json").write_text(json.dumps(asdict(forecast)), encoding="utf-8")

    def forecast(self) -> Forecast | None:
        """What was expected of the run, where this controller heard it."""
        try:
            return read_forecast(json.loads((self.folder / "forecast.json").read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError):
            return None

    def save_outcome(self, state: str, reason: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "outcome.json").write_text(json.dumps({"state": state, "reason": reason}), encoding="utf-8")

    def mark_stopping(self) -> None:
        """Somebody stops this run: whoever watches it leaves what ends alone."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / STOPPING).touch()

    def is_stopping(self) -> bool:
        return (self.folder / STOPPING).exists()

    def mark_next(self, nodes: Sequence[str]) -> None:
        """The run is stopped to go on with these: a watcher that dies in between leaves it to the next."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / NEXT).write_text(json.dumps(list(nodes)), encoding="utf-8")

    def next(self) -> tuple[str, ...]:
        """Nodes that the run was to go on with; empty where nothing is left half-done."""
        try:
            return tuple(map(str, json.loads((self.folder / NEXT).read_text(encoding="utf-8"))))
        except (FileNotFoundError, ValueError):
            return ()

    def outcome(self) -> tuple[str, str] | None:
        """State and reason, where this controller saw the run end (and was not cut short writing so)."""
        try:
            kept = json.loads((self.folder / "outcome.json").read_text(encoding="utf-8"))
            return kept["state"], kept["reason"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None


def plan_of(record: RunRecord) -> Plan | None:
    """Its plan, where there is one that can be read."""
    try:
        return record.plan()
    except ConfigError:  # a plan of another version of orch: the log beside it is as good as ever
        return None


def recorded_runs() -> list[RunRecord]:
    """Newest first, by the time of their plan."""
    plans = sorted(runs_folder().glob("*/plan.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    return [RunRecord(file.parent.name) for file in plans]
