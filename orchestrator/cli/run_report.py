"""`orch report`: what the records on this computer have about runs, as an HTML file, as text or as JSON."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from orchestrator import __version__
from orchestrator.cli.options import JsonOption, RunsArgument
from orchestrator.cli.report import say, write_json, write_line
from orchestrator.specs.errors import EXIT_OK, ConfigError, UsageError

if TYPE_CHECKING:
    from orchestrator.state.run_report import RunReport

EXAMPLES = """\
orch report
orch report RUN --to ~/report.html
orch report RUN1 RUN2
orch report RUN --format text
"""
MOST_RUNS = 8


class ReportFormat(Enum):
    """Form of a report."""

    HTML = "html"
    TEXT = "text"
    JSON = "json"


def report(
    runs: RunsArgument = None,
    to: Path | None = typer.Option(None, metavar="FILE", help="The file to write (default: ./RUN.html)."),
    form: ReportFormat = typer.Option(
        ReportFormat.HTML, "--format", metavar="FORMAT", help="html: a file; text, json: written to stdout."
    ),
    as_json: JsonOption = False,
) -> int:
    """Write one HTML file about a run, or about several side by side: curves, configuration, machines, timeline, cause.

    No node is asked: everything comes from the record on this computer, also when all nodes are off. The file loads
    nothing: it can be mailed, printed and opened without a network, and its key figures need no JavaScript. Exit code
    3: no record of the run.
    """
    from orchestrator.store.run_record import record_of
    from orchestrator.watch.report import report_of

    wanted_runs: list[str] | list[None] = runs or [None]
    if len(wanted_runs) > MOST_RUNS:
        raise UsageError(f"{len(wanted_runs)} runs: expected at most {MOST_RUNS} on a page")
    form = ReportFormat.JSON if as_json else form
    if to and form is not ReportFormat.HTML:
        raise UsageError(f"--to is for HTML: {form.value} is written to stdout")
    records = {record.run_id: record for record in map(record_of, wanted_runs)}
    reports = [report_of(record) for record in records.values()]
    if form is ReportFormat.HTML:
        _write_file(reports, (to or Path(f"{'-'.join(records)[:200]}.html")).expanduser())
    elif form is ReportFormat.TEXT:
        from orchestrator.render.run_summary import summary_lines

        for line in summary_lines(reports):
            write_line(line)
    else:
        from dataclasses import asdict

        write_json({"runs": [asdict(one) for one in reports]})
    return EXIT_OK


def _write_file(reports: list[RunReport], file: Path) -> None:
    from datetime import datetime

    from orchestrator.watch.report_file import report_html

    made_at = datetime.now().astimezone().isoformat(timespec="minutes")
    page = report_html(reports, made_at=made_at, version=__version__)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(page, "utf-8")
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written: {error.strerror or error}", hint="another file: --to FILE"
        ) from None
    say(f"✓ {file} ({len(page.encode()) / 1e6:.1f} MB); open it in a browser")
