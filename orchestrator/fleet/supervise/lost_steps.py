"""Lost steps of a run: the checkpoints that it reported against those that are still available."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from orchestrator.fleet.checkpoints.newest import Newest
from orchestrator.fleet.runs.progress import last_checkpoint
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.specs.errors import ConfigError, PreflightError

SAYS_WHERE = ("--from-scratch", "--resume")
"""Trainer options that select the first step."""


def steps_lost(record: RunRecord, newest: Newest, command: Sequence[str]) -> str:
    """A sentence; empty where no step is lost. An error where all would be: a run never restarts from step 0 unasked.

    `ConfigError`: every checkpoint that is left is damaged. `PreflightError`: no node that answers has one.
    """
    if any(word.partition("=")[0] in SAYS_WHERE for word in command):
        return ""
    pulled = f"with one that you have pulled: orch checkpoints push {record.run_id}"
    fresh_start = f"to start from the beginning: orch resume {record.run_id} -- {shlex.join(command)} --from-scratch"
    if newest.step is None and newest.damaged:
        raise ConfigError(
            f"no sound checkpoint of run {record.run_id} is left",
            problems=[f"{one.node}: {one.folder}: {one.problem}" for one in newest.damaged],
            hint=f"the files stay as they are; {pulled}; {fresh_start}",
        )
    told, node = last_checkpoint(record) or (0, "")
    if newest.step is None and told:
        silent = f"{', '.join(newest.silent)} did not answer; once it does, try again; or " if newest.silent else ""
        raise PreflightError(
            f"the run's checkpoint of step {told} was on {node}, and no node that answers has one",
            hint=f"{silent}{pulled}; {fresh_start}",
        )
    if newest.step is not None and told > newest.step and not newest.damaged:
        return f"the checkpoint of step {told} was on {node} alone: continuing from step {newest.step}"
    return ""
