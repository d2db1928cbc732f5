"""`orch runs` without a subcommand: the runs that the nodes and this controller know of."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import asdict

import typer

from orchestrator.cli.completion import state_words
from orchestrator.cli.context import known_nodes
from orchestrator.cli.moments import moment
from orchestrator.cli.options import InventoryOption, NodesOption, Output
from orchestrator.cli.report import exit_code, invocation, say
from orchestrator.render.printable import counted
from orchestrator.specs.errors import EXIT_OK, NodeUnreachableError, UsageError

SHOWN = 20
"""Runs of a table without --limit."""


def runs(
    context: typer.Context,
    *,
    state: list[str] | None = typer.Option(
        None,
        "--state",
        metavar="STATE",
        autocompletion=state_words,
        help="Only runs in this state: queued, launching, starting, running, restarting, stopping, succeeded, stopped, "
        "failed, lost, unknown; several: running,failed. Repeatable.",
    ),
    user: str = typer.Option("", "--user", metavar="NAME", help="Only runs that this user launched."),
    since: str = typer.Option(
        "", metavar="TIME|2d", help="Only runs started since a time, or in the last two days (s, m, h, d)."
    ),
    until: str = typer.Option("", metavar="TIME|2d", help="Only runs started before that."),
    name: str = typer.Option("", "--name", metavar="PATTERN", help="Only runs whose id matches: 'gpt2-*'."),
    grep: str = typer.Option("", "--grep", metavar="REGEX", help="Only runs whose id or command matches."),
    limit: int | None = typer.Option(
        None, min=0, metavar="N", help="At most N runs, the newest; 0: all (default: 20 in a table, otherwise all)."
    ),
    nodes: NodesOption = None,
    output: Output,
    inventory: InventoryOption = None,
) -> int:
    """List runs, newest first: those with containers on the nodes, then those recorded on this computer.

    Compare two runs with `orch runs diff`, start one again with `orch runs rerun`. Exit code 4: no node answered; 5:
    some did not answer and may have runs that are not listed.
    """
    if context.invoked_subcommand:
        return _only_a_group(context)
    from orchestrator.cli.launching.stopping import beside_lines, half_launched, tell_missing
    from orchestrator.cli.runs.run_filter import RunFilter
    from orchestrator.fleet.connect import connected, stand_ins
    from orchestrator.fleet.runs.find_runs import find_runs
    from orchestrator.fleet.runs.load_state import recorded_history, states_of
    from orchestrator.render.runs import run_data, runs_table
    from orchestrator.state.verdict import verdict

    wanted = RunFilter(
        states=_states(state or ()), user=user, name=name, grep=_pattern(grep),
        since_s=_seconds(since, "--since"), until_s=_seconds(until, "--until"),
    )  # fmt: skip
    specs = known_nodes(inventory, None, nodes)
    with connected(specs) as reached:
        found = find_runs([*reached, *(stand_ins(specs) if nodes is None else ())], some=nodes is not None)
    tell_missing(found)
    code = exit_code(len(found.unreachable), len(specs))
    on_nodes = {run.run_id for run in found.runs}
    past = [past for past in recorded_history() if past.run_id not in on_nodes]
    now = time.time()
    judged = ((run, state, verdict(state, now)) for run, state in states_of(found, now))
    passing = [one for one in judged if wanted.passes(one[0], one[2].phase)]
    recorded = [one for one in past if wanted.passes(one, one.state)]
    most = limit if limit is not None else SHOWN if output.is_table else 0
    shown, older = (passing[:most], recorded[: max(0, most - len(passing))]) if most else (passing, recorded)
    more = len(passing) + len(recorded) - len(shown) - len(older)
    silent = {name: problem.message for name, problem in found.unreachable.items()}
    listed = [run_data(state, one, now) for _, state, one in shown]
    data = {"runs": listed, "history": list(map(asdict, older)), "unreachable": silent, "more": more}
    if output.as_json or shown or older:
        names = [*(run.run_id for run, _, _ in shown), *(one.run_id for one in older)]
        output.write(data, names, runs_table([(run, one) for run, _, one in shown], older, wide=output.wide))
    else:
        say(_nothing(code, known=bool(found.runs or past)))
    if more and output.is_table:
        say(f"{counted(more, 'older run')} not shown\n  → orch runs --limit 0   # all; fewer: --state, --since, --grep")
    for run, _, one in shown if output.is_table else ():
        for line in filter(None, (beside_lines(one, run), half_launched(run))):
            say(line)
    return code


def _only_a_group(context: typer.Context) -> int:
    """Take the inventory that precedes a subcommand. UsageError: another option does, which it would not have."""
    given = [name for name in context.params if context.get_parameter_source(name).name == "COMMANDLINE"]  # type: ignore[union-attr]  # of a parameter, so never None
    if context.params.get("inventory"):
        invocation.current.inventory = context.params["inventory"]
    if wrong := [name for name in given if name not in ("inventory", "quiet", "verbose", "debug")]:
        words = ", ".join("--" + name.removeprefix("as_").replace("_", "-") for name in wrong)
        raise UsageError(f"{words} before `{context.invoked_subcommand}`: options of the list, not of this command",
                         hint="orch help runs")  # fmt: skip
    return EXIT_OK


def _nothing(code: int, *, known: bool) -> str:
    """Message for an empty list."""
    if known:
        return "no run matches\n  → orch runs --limit 0   # without the conditions"
    if code == EXIT_OK:
        return "no runs yet\n  → orch launch"
    silent = code == NodeUnreachableError.exit_code
    on_nodes = "no node answered" if silent else "the nodes that answered know of no run"
    return f"{on_nodes}, and no run is on record on this computer\n  → orch doctor"


def _states(words: Sequence[str]) -> frozenset[str]:
    from orchestrator.cli.runs.run_filter import STATES

    found = {word for text in words for word in text.split(",")}
    if unknown := sorted(found - set(STATES)):
        raise UsageError(f"--state {unknown[0]}: expected one of {', '.join(STATES)}")
    return frozenset(found)


def _pattern(text: str) -> re.Pattern[str] | None:
    try:
        return re.compile(text) if text else None
    except re.error as error:
        raise UsageError(f"--grep {text}: not a regular expression: {error}") from error


def _seconds(text: str, option: str) -> float | None:
    """Seconds since 1970."""
    at = moment(text, option=option)
    return at.timestamp() if at else None
