"""`orch search`: lines with these words, in all runs on record."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from itertools import islice

import typer

from orchestrator.cli.moments import log_time
from orchestrator.cli.options import NodesOption, Output
from orchestrator.cli.report import say
from orchestrator.specs.errors import EXIT_OK, UsageError
from orchestrator.specs.selection import select_names

EXAMPLES = """\
orch search out of memory
orch search 'connection reset' --since 7d
orch search nan loss --run RUN -n gamma
"""


def search(
    *,
    words: list[str] = typer.Argument(metavar="WORDS...", help="Words or quoted phrases of a line, in any case."),
    run: str = typer.Option("", "--run", metavar="RUN", help="Only runs whose id is this or begins with it."),
    nodes: NodesOption = None,
    since: str = typer.Option(
        "", metavar="TIME|10m", help="Only lines since a time, or from the last 10 minutes (s, m, h, d)."
    ),
    until: str = typer.Option("", metavar="TIME|10m", help="Only lines until a time, or until 10 minutes ago."),
    limit: int = typer.Option(50, min=1, metavar="N", help="Show at most N lines."),
    output: Output,
) -> int:
    """Search the log lines and outcomes of all runs that are on record on this computer, newest first.

    A line is found if it contains all words, in any order, also as parts of longer words: error finds RuntimeError.
    No node is asked: orch logs RUN records the newest lines of a run that is not followed. -o name lists the runs.
    """
    from orchestrator.render.log_lines import search_line
    from orchestrator.store.run_names import ON_RECORD, matching, unknown_run
    from orchestrator.store.run_record import all_records
    from orchestrator.store.search_runs import search_runs

    if not all(word.strip() for word in words):
        raise UsageError("a word to search for is empty")
    records = all_records()
    if run:
        known = [one.run_id for one in records]
        meant = matching(run, known)
        records = [one for one in records if one.run_id in meant]
        if not records:
            raise unknown_run(run, ON_RECORD, known)
    selected = None
    if nodes is not None:
        names = sorted({name for record in records for name in record.names})
        chosen, number = select_names(nodes, names, place="the records", labels={})
        selected = chosen[:number]
    began, ended = log_time(since, option="--since"), log_time(until, option="--until")
    results = search_runs(records, words, nodes=selected, since=began, until=ended)
    found = list(islice(results, limit))
    more = next(results, None) is not None
    data = {"results": list(map(asdict, found)), "more": more}
    output.write(data, [one.run_id for one in found], [search_line(one) for one in found])
    if not found:
        say(f"no line on record has {' and '.join(words)}")
    elif more and output.is_table:
        given = [("--run", run), ("-n", nodes), ("--since", since), ("--until", until), ("--limit", str(limit * 10))]
        options = [part for option, value in given if value for part in (option, value)]
        say(f"there are more\n  → orch search {shlex.join([*words, *options])}")
    return EXIT_OK
