"""`orch report`: one HTML file about runs, from the records on this computer."""

from __future__ import annotations

from pathlib import Path

import typer

from orchestrator.cli.options import JsonOption
from orchestrator.cli.report import installed_version, say, write_json
from orchestrator.specs.errors import EXIT_OK, ConfigError, UsageError

EXAMPLES = """\
orch report
orch report RUN --to ~/report.html
orch report RUN1 RUN2
orch report RUN -o json
"""
MOST_RUNS = 8


def report(
    runs: list[str] | None = typer.Argument(
        None, metavar="[RUN]...", help="Run ids, or their first characters (default: the newest run)."
    ),
    to: Path | None = typer.Option(None, metavar="FILE", help="The file to write (default: ./RUN.html)."),
    as_json: JsonOption = False,
) -> int:
    """Write one HTML file about a run, or about several side by side: curves, configuration, machines, timeline, cause.

    No node is asked: everything comes from the record on this computer, also when all nodes are off. The file loads
    nothing and runs no script: it can be mailed, printed and opened without a network. Exit code 3: no record of the
    run.
    """
    from dataclasses import asdict
    from datetime import datetime

    from orchestrator.fleet.runs.records import record_of
    from orchestrator.fleet.runs.report import report_of
    from orchestrator.render.report_page import report_page

    wanted_runs: list[str] | list[None] = runs or [None]
    if len(wanted_runs) > MOST_RUNS:
        raise UsageError(f"{len(wanted_runs)} runs: expected at most {MOST_RUNS} on a page")
    records = {record.run_id: record for record in map(record_of, wanted_runs)}
    reports = [report_of(record) for record in records.values()]
    if as_json:
        write_json({"runs": [asdict(one) for one in reports]})
        return EXIT_OK
    file = (to or Path(f"{'-'.join(records)[:200]}.html")).expanduser()
    page = report_page(
        reports, made_at=datetime.now().astimezone().isoformat(timespec="minutes"), version=installed_version()
    )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(page, "utf-8")
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written: {error.strerror or error}", hint="another file: --to FILE"
        ) from None
    say(f"✓ {file} ({len(page.encode()) / 1e6:.1f} MB); open it in a browser")
    return EXIT_OK
