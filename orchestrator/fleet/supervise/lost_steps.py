"""What of a run's steps is lost: the checkpoints that it told of, and those that are still to be had."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from orchestrator.fleet.checkpoints.newest import Newest
from orchestrator.fleet.runs.progress import last_checkpoint
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.specs.errors import ConfigError, PreflightError

SAYS_WHERE = ("--from-scratch", "--resume")
"""The trainer's options that say from where to begin."""


def steps_lost(record: RunRecord, newest: Newest, command: Sequence[str]) -> str:
    """In words, empty where none are. An error where it would be all of them: a run never begins anew unasked.

    `ConfigError`: every checkpoint that is left is damaged. `PreflightError`: nobody who answers has one.
    """
    if any(word.partition("=")[0] in SAYS_WHERE for word in command):
        return ""
    pulled = f"with one that you have pulled: orch checkpoints push {record.run_id}"
    anew = f"to begin anew: orch resume {record.run_id} -- {shlex.join(command)} --from-scratch"
    if newest.step is None and newest.damaged:
        raise ConfigError(
            f"no sound checkpoint of run {record.run_id} is left",
            problems=[f"{one.node}: {one.folder}: {one.problem}" for one in newest.damaged],
            hint=f"the files stay as they are; {pulled}; {anew}",
        )
    told, node = last_checkpoint(record) or (0, "")
    if newest.step is None and told:
        silent = f"{', '.join(newest.silent)} did not answer; once it does, try again; or " if newest.silent else ""
        raise PreflightError(
            f"the run's checkpoint of step {told} was on {node}, and no node that answers has one",
            hint=f"{silent}{pulled}; {anew}",
        )
    if newest.step is not None and told > newest.step and not newest.damaged:
        return f"the checkpoint of step {told} was on {node} alone: going on from step {newest.step}"
    return ""
