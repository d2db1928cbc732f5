"""`orch runs`: list runs, compare two of them, or run one again."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.completion import run_ids, state_words
from orchestrator.cli.context import known_nodes, load_inventory
from orchestrator.cli.flags import CommandGroup, expand
from orchestrator.cli.moments import moment
from orchestrator.cli.options import InventoryOption, NodesOption, Output, OutputMode
from orchestrator.cli.report import exit_code, invocation, say
from orchestrator.render.printable import counted
from orchestrator.specs.errors import EXIT_OK, ConfigError, NodeUnreachableError, OrchError, UsageError
from orchestrator.specs.launch_line import launch_words
from orchestrator.specs.launch_options import LaunchOptions

if TYPE_CHECKING:
    from orchestrator.fleet.runs.artifacts import Artifact, ProjectDir
    from orchestrator.specs.inventory import Inventory
    from orchestrator.specs.past_run import HistoryEntry
    from orchestrator.specs.plan import Plan
    from orchestrator.specs.run import Run

GROUP = CommandGroup(
    epilog="orch runs\norch runs --state running,failed --since 2d\norch runs --grep 'gpt2.*--epochs 5' -o name\n"
    "orch runs diff RUN OTHER\norch runs rerun RUN",
    subcommand_metavar="[diff|rerun ...]",
)
RunToRepeat = Annotated[
    str, typer.Argument(metavar="RUN", autocompletion=run_ids, help="Run id, or its first characters.")
]
SHOWN = 20
"""Runs of a table without --limit."""


@GROUP.callback(invoke_without_command=True)
@expand()
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
    """List runs, the newest start first: those with containers on the nodes, and those recorded on this computer.

    Compare two runs with `orch runs diff`, start one again with `orch runs rerun`. Exit code 4: no node answered; 5:
    some did not answer and may have runs that are not listed.
    """
    if context.invoked_subcommand:
        return _only_a_group(context)
    from orchestrator.cli.launching.stopping import beside_lines, half_launched, tell_missing
    from orchestrator.cli.run_filter import RunFilter
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
    names = _newest([*(run for run, _, _ in passing), *recorded], most)
    more = len(passing) + len(recorded) - len(names)
    shown = [one for one in passing if one[0].run_id in names]
    older = [one for one in recorded if one.run_id in names]
    silent = {name: problem.message for name, problem in found.unreachable.items()}
    listed = [run_data(state, one, now) for _, state, one in shown]
    data = {"runs": listed, "history": list(map(asdict, older)), "unreachable": silent, "more": more}
    if output.as_json or shown or older:
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


def _newest(runs: Sequence[Run | HistoryEntry], most: int) -> list[str]:
    """Ids of the runs that started last, the newest first; `most` of them, 0: all."""
    from orchestrator.checks.hang import timestamp

    by_start = sorted(runs, key=lambda run: timestamp(run.started_at), reverse=True)
    return [run.run_id for run in by_start][: most or None]


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
    from orchestrator.cli.run_filter import STATES

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


@GROUP.command(epilog="orch runs diff RUN OTHER\norch runs diff RUN OTHER --all -o json")
def diff(
    *,
    run: RunToRepeat,
    other: Annotated[str, typer.Argument(metavar="OTHER", autocompletion=run_ids, help="The run to compare it with.")],
    every: bool = typer.Option(False, "--all", help="Show equal values, too."),
    output: Output,
) -> int:
    """Show what differs between two runs: command, image, code, data, nodes, environment, forecast, outcome.

    Reads the records on this computer alone; no node is asked. Values of sensitive variables are not on record.
    The outcome is shown in full.
    """
    from orchestrator.render.runs import comparison_table
    from orchestrator.store.run_record import record_of
    from orchestrator.watch.compare import OUTCOME, as_data, compare, facts_of

    a, b = record_of(run), record_of(other)
    for one in dict.fromkeys((a.run_id, b.run_id)):
        if reason := record_of(one).unreadable:
            say(f"note: the plan of run {one} is left out: {reason}")
    rows = compare(facts_of(a), facts_of(b))
    different = [row for row in rows if row.differs]
    shown = rows if every else [row for row in rows if row.differs or (row.section == OUTCOME and row.a is not None)]
    data = {"a": a.run_id, "b": b.run_id, "differences": as_data(different), "values": as_data(rows)}
    names = [f"{row.section}: {row.name}" for row in different]
    output.write(data, names, comparison_table((a.run_id, b.run_id), as_data(shown)))
    if output.is_table and not [row for row in different if row.section != OUTCOME]:
        say("nothing that was launched differs")
    return EXIT_OK


@GROUP.command(epilog="orch runs rerun RUN --dry-run\norch runs rerun RUN -n alpha,beta --detach")
@expand(omit=("resume", "forecast", "shard"))
def rerun(
    run: RunToRepeat,
    options: LaunchOptions,
    mode: OutputMode,
) -> int:
    """Start a run of this computer again, as a new run: same command, options, code, data, image and nodes.

    Options that are given replace those of the run. If the code has changed here, a node that has it as it was sends
    it. A node that is not in the inventory any more is left out; a step then keeps its number of samples. What differs
    is shown with the plan. The first run is not changed.
    """
    from orchestrator.cli.launching.launch import launch
    from orchestrator.cli.launching.order import LaunchOrder
    from orchestrator.fleet.planning.request import with_engine
    from orchestrator.store.run_record import record_of

    loaded = load_inventory(mode.inventory)
    record = record_of(run)
    plan = record.plan()
    if plan is None:
        why = record.unreadable or "it never started"
        raise ConfigError(f"the plan of run {record.run_id} is not on record: {why}", hint=f"orch logs {record.run_id}")
    if on := plan.cluster or options.on:
        was = f"run {record.run_id} was a job of cluster {on}: " if plan.cluster else ""
        hint = shlex.join(launch_words(replace(plan, cluster=on)))
        raise UsageError(f"{was}`rerun` repeats runs on machines", hint=hint)
    if not options.engine and not any(part.container.image for part in plan.nodes):
        options, mode = replace(options, engine="process"), replace(mode, engine="process")
    mode = replace(mode, inventory=loaded.path.absolute())
    machines = with_engine(loaded.inventory, options.engine)
    options = _as_before(plan, options, machines)
    with _code(plan, options, machines) as workdir:
        options = replace(options, workdir=workdir)
        return launch(LaunchOrder(inventory=loaded.inventory, options=options, mode=mode, again=plan))


def _as_before(plan: Plan, options: LaunchOptions, inventory: Inventory) -> LaunchOptions:
    """Return the options with command, nodes and rank 0 of the plan. ConfigError: no node or data of it is left."""
    from orchestrator.fleet.runs.load_state import samples_per_step_of
    from orchestrator.store.run_record import RunRecord

    command, nodes, master = plan.command, options.nodes, options.master
    if nodes is None:
        known = {spec.name for spec in inventory.nodes}
        names = [*(part.node for part in plan.nodes), *plan.away]
        left = [name for name in names if name in known]
        if not left:
            raise ConfigError(f"no node of run {plan.run_id} is in {inventory.filename}: {', '.join(names)}",
                              hint=f"orch runs rerun {plan.run_id} -n NODES")  # fmt: skip
        if gone := [name for name in names if name not in known]:
            command = plan.program.with_step(samples_per_step_of(RunRecord(plan.run_id)))
            sizes = "; a step keeps its number of samples" if command != plan.command else ""
            say(f"note: {', '.join(gone)}: not in {inventory.filename} any more, left out{sizes}")
        nodes, master = ",".join(left), master or (plan.master if plan.master in left else "")
    options = replace(options, command=command, nodes=nodes, master=master)
    if plan.data and not options.data:
        _data_is_somewhere(plan, options, inventory)
    return options


def _data_is_somewhere(plan: Plan, options: LaunchOptions, inventory: Inventory) -> None:
    """ConfigError: data of the run are neither in their folder here nor on a node that answers."""
    from orchestrator.fleet.runs.artifacts import artifacts_of, as_launched
    from orchestrator.fleet.runs.bring_artifacts import holders_of

    for data in (artifact for artifact in artifacts_of(plan) if artifact.what == "data"):
        if as_launched(data):
            continue
        with _on_nodes(plan, inventory, options.nodes) as stores:
            holding = [one.node.name for one in holders_of(data, stores)]
        if not holding or (data.parts and len(holding) < len(stores)):
            state = "holds other data now" if data.origin and Path(data.origin).is_dir() else "is not here any more"
            raise ConfigError(
                f"{data.origin or 'its folder'} {state}, and no node that answers has the data of run {plan.run_id}",
                hint=f"with other data: orch runs rerun {plan.run_id} --data FOLDER",
            )
        say(f"note: {data.origin} has changed; the data of run {plan.run_id} is taken from {', '.join(holding)}")


@contextmanager
def _code(plan: Plan, options: LaunchOptions, inventory: Inventory) -> Iterator[Path | None]:
    """Yield the folder with the code of the run; None if it has none. ConfigError: it is not kept anywhere."""
    from orchestrator.fleet.runs.artifacts import artifacts_of, as_launched

    code = next((artifact for artifact in artifacts_of(plan) if artifact.is_code), None)
    if options.workdir or code is None or not plan.own_code:
        yield options.workdir
        return
    if folder := as_launched(code):
        say(f"code: {folder}, as run {plan.run_id} had it")
        yield folder
        return
    with TemporaryDirectory(prefix="orch-code-") as aside:
        found = _fetched(plan, code, inventory, Path(aside))
        say(f"code: {plan.code_origin} has changed; taken from {found.name}, as run {plan.run_id} had it")
        yield found


def _fetched(plan: Plan, code: Artifact, inventory: Inventory, aside: Path) -> Path:
    """Copy the code from the first node that has it into a folder with the name of that node. ConfigError: none has."""
    from orchestrator.fleet.runs.bring_artifacts import fetch, holders_of

    problems = list[OrchError]()
    with _on_nodes(plan, inventory) as stores:
        for holder in holders_of(code, stores):
            try:
                fetch(code, holder, aside / holder.node.name)
            except OrchError as error:
                problems.append(error)
            else:
                return aside / holder.node.name
    origin = plan.code_origin or "FOLDER"
    raise ConfigError(
        f"the code of run {plan.run_id} is not kept: {plan.code_origin or 'its folder'} has changed or is gone, and no "
        "node that answers has it as it was",
        problems=list(map(str, problems)),
        hint=f"with the code as it is now: orch runs rerun {plan.run_id} --workdir {shlex.quote(origin)}",
    )


@contextmanager
def _on_nodes(plan: Plan, inventory: Inventory, chosen: str | None = None) -> Iterator[Sequence[ProjectDir]]:
    """Yield the project's folder on each node of the plan that the inventory has (of those chosen)."""
    from orchestrator.fleet.connect import connected
    from orchestrator.fleet.runs.artifacts import ProjectDir
    from orchestrator.specs.selection import select_nodes

    names = {part.node for part in plan.nodes}
    specs = select_nodes(inventory, chosen) if chosen else [s for s in inventory.nodes if s.name in names]
    folders = {spec.name: spec.folder(inventory.project) for spec in specs}
    with connected(specs) as nodes:
        yield [ProjectDir(node=node, folder=folders[node.name]) for node in nodes]
