"""`orch runs diff`: what differs between two runs."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.completion import run_ids
from orchestrator.cli.options import Output
from orchestrator.cli.report import say
from orchestrator.specs.errors import EXIT_OK


def diff(
    *,
    run: Annotated[str, typer.Argument(metavar="RUN", autocompletion=run_ids, help="Run id, or its first characters.")],
    other: Annotated[str, typer.Argument(metavar="OTHER", autocompletion=run_ids, help="The run to compare it with.")],
    every: bool = typer.Option(False, "--all", help="Show equal values, too."),
    output: Output,
) -> int:
    """Show what differs between two runs: command, image, code, data, nodes, environment, forecast, outcome.

    Rests on the records on this computer alone; no node is asked. Values of sensitive variables are not on record.
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
