"""`orch exec`: run a command in the containers of a run, or on a node."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from orchestrator.cli.completion import run_or_node
from orchestrator.cli.context import load_inventory
from orchestrator.cli.options import InventoryOption, JsonOption, NodesOption
from orchestrator.cli.report import report_errors, say, write_json, write_line
from orchestrator.specs.errors import ConfigError, PartialError, PreflightError, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from orchestrator.fleet.connect import Holder
    from orchestrator.fleet.fan_out import Outcome
    from orchestrator.nodes.interface import Completed, Node
    from orchestrator.specs.run import Run

EXAMPLES = """\
orch exec RUN -- nvidia-smi
orch exec RUN --rank 3 -- ls -l output
orch exec gamma df -h
orch exec -n beta,gamma -- nvidia-smi
"""


class WordsAfterTarget(TyperCommand):
    """A command line in which all words after RUN|NODE and orch's options belong to COMMAND, as with ssh."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        valued = {name for one in self.params if not getattr(one, "is_flag", True) for name in one.opts}
        return super().parse_args(ctx, _with_separator(args, valued))


NODES_ALONE = ""
"""Target of a command line that has --nodes and no run."""


COMMAND_CLASS = WordsAfterTarget


def exec(
    target: str = typer.Argument(
        metavar="RUN|NODE",
        autocompletion=run_or_node,
        help="A run, for its containers, or a node, for the machine; nothing before `--`: the machines of --nodes.",
    ),
    command: list[str] = typer.Argument(metavar="COMMAND...", help="Command and arguments, run without a shell."),
    nodes: NodesOption = None,
    rank: int | None = typer.Option(None, min=0, metavar="N", help="Only the container with this global rank."),
    timeout: int = typer.Option(3600, min=1, metavar="SECONDS", help="Longest time on a node, not in a container."),
    as_json: JsonOption = False,
    inventory: InventoryOption = None,
) -> int:
    """Run a command in all containers of a run, or on nodes, and show what it writes.

    In a container it has the user and the working directory of the run. Lines of several nodes begin with the node's
    name. With a RUN, --nodes chooses among its containers. All words after RUN or NODE belong to the command: options
    of orch precede its first word. Exit code: that of the command, from the first node where it is not 0.
    """
    from orchestrator.fleet.connect import connected, connected_for
    from orchestrator.fleet.fan_out import fan_out
    from orchestrator.specs.inventory import NodeSpec

    loaded = load_inventory(inventory)
    specs = loaded.inventory.holders
    chosen = loaded.select(nodes) if nodes else ()
    if target == NODES_ALONE and not nodes:
        hint = "orch exec RUN -- COMMAND, or orch exec -n NODES -- COMMAND"
        raise UsageError("no run and no node before `--`", hint=hint)
    named = [spec for spec in specs if isinstance(spec, NodeSpec) and spec.name == target]
    if rank is not None and (named or not target):
        what = f"{target} is a node" if target else f"--nodes {nodes} are machines"
        raise UsageError(f"{what}: --rank needs a run", hint=f"orch exec RUN --rank {rank} -- COMMAND")
    if named and nodes:
        raise UsageError(f"{target} is a node: --nodes needs a run", hint=f"orch exec -n {quote(nodes)} -- COMMAND")
    if machines := named or ([] if target else list(chosen)):
        with connected(machines) as reached:
            outcomes = fan_out(reached, lambda node: node.run(command, timeout_s=timeout), timeout_s=timeout + 10)
        return _report(outcomes, as_json=as_json)
    with connected_for(specs, target) as reached:
        run, silent = _run(reached, target, specs)
        nodes_by_name = {node.name: node for node in reached}
        containers = _containers(run, rank, [spec.name for spec in chosen])
        if silent:
            say(f"note: {', '.join(silent)} did not answer")
        outcomes = fan_out(
            [nodes_by_name[name] for name in containers],
            lambda node: node.engine.execute(containers[node.name], command),
            timeout_s=timeout + 10,
        )
    return _report(outcomes, as_json=as_json)


def _with_separator(words: Sequence[str], valued: Collection[str]) -> list[str]:
    """Return the words with `--` before the second that is neither an option nor the value of an option in `valued`.

    Without any before `--`, the target is `NODES_ALONE`.
    """
    place, targets = 0, 0
    while place < len(words) and words[place] != "--":
        word = words[place]
        if not word.startswith("-") or word == "-":
            targets += 1
            if targets > 1:
                return [*words[:place], "--", *words[place:]]
        elif word in valued or (word[1] != "-" and f"-{word[-1]}" in valued):
            place += 1
        place += 1
    return [*words[:place], NODES_ALONE, *words[place:]] if not targets and place < len(words) else list(words)


def _run(nodes: Sequence[Node], target: str, specs: Sequence[Holder]) -> tuple[Run, list[str]]:
    """Return the run that `target` names, and the nodes that did not answer."""
    from orchestrator.fleet.runs.find_runs import find_runs, run_on_nodes

    found = find_runs(nodes)
    try:
        return run_on_nodes(found, target), list(found.unreachable)
    except ConfigError as error:
        names = ", ".join(spec.name for spec in specs)
        raise ConfigError(f"{error.message}; and no node has this name: {names}", hint="orch runs") from error


def _containers(run: Run, rank: int | None, nodes: Collection[str]) -> dict[str, str]:
    """Return the running containers by node, those on `nodes` if any are given, or the one with this rank.

    ConfigError: there is none.
    """
    from orchestrator.specs.labels import ranks_of
    from orchestrator.specs.run import State

    members = [member for member in run.members if member.container and member.state is State.RUNNING]
    if rank is not None:
        members = [member for member in members if member.container and rank in ranks_of(member.container.labels)]
    if nodes:
        members = [member for member in members if member.node in nodes]
    if not members:
        which = f"container with rank {rank}" if rank is not None else "container"
        which += f" on {', '.join(nodes)}" if nodes else ""
        raise ConfigError(
            f"run {run.run_id} has no running {which}",
            hint=f"orch status {run.run_id}; its files: orch pull {run.run_id}",
        )
    return {member.node: member.container.id for member in members if member.container}


def _report(outcomes: Sequence[Outcome[Node, Completed]], *, as_json: bool) -> int:
    """Write what the command wrote, and return its exit code."""
    ended = [outcome.result for outcome in outcomes if outcome.result]
    width = max((len(one.node) for one in ended), default=0) if len(outcomes) > 1 else 0
    if as_json:
        write_json([{"node": one.node, "exit_code": one.exit_code, "stdout": one.stdout, "stderr": one.stderr}
                    for one in ended])  # fmt: skip
    else:
        for one in ended:
            prefix = f"[{one.node:<{width}}] " if width else ""
            for text, write in ((one.stdout, write_line), (one.stderr, say)):
                for line in text.splitlines():
                    write(f"{prefix}{line}")
    failed = report_errors(outcome.error for outcome in outcomes)
    if failed and len(failed) == len(outcomes):
        return failed[0].exit_code
    codes = [one.exit_code for one in ended if one.exit_code]
    if failed and not codes:
        raise PartialError(f"{len(failed)} of {len(outcomes)} nodes did not run it")
    return codes[0] if codes else PreflightError.exit_code if not ended else 0
