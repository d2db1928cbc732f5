"""`orch explain`: what a finding means, why it matters, how to fix it. Asks no machine."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.options import JsonOption
from orchestrator.cli.report import write_json
from orchestrator.specs.errors import EXIT_OK
from orchestrator.specs.finding_pages import FindingPage, all_pages, find_page

EXAMPLES = """Examples:

orch explain clock.skew

orch explain gpu

orch explain
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("explain", epilog=EXAMPLES, no_args_is_help=False)(explain)


def explain(
    id: Annotated[
        str, typer.Argument(metavar="[ID|AREA]", help="A finding such as clock.skew, or an area such as gpu.")
    ] = "",
    as_json: JsonOption = False,
) -> int:
    """Explain a finding of `orch doctor` or `orch launch`: its cause, what follows from it, how to fix it.

    Without an id, all findings are listed by area. Needs neither network nor inventory.
    """
    pages = all_pages() if "." not in id else ()
    chosen = [page for page in pages if id in ("", page.area)]
    if chosen:
        _list(chosen, as_json=as_json)
    else:
        _show(find_page(id), as_json=as_json)
    return EXIT_OK


def _list(pages: list[FindingPage], *, as_json: bool) -> None:
    if as_json:
        write_json([{"id": page.id, "area": page.area, "title": page.title} for page in pages])
        return
    width = max(len(page.id) for page in pages)
    area = ""
    for page in pages:
        if page.area != area:
            typer.secho(f"{'' if not area else chr(10)}{page.area}", bold=True)
            area = page.area
        typer.echo(f"  {page.id:<{width}}  {page.title}")


def _show(page: FindingPage, *, as_json: bool) -> None:
    if as_json:
        values = {"id": page.id, "area": page.area, "title": page.title, "sections": page.sections}
        write_json(values)
        return
    for line in page.text.splitlines():
        if line.startswith("#"):
            typer.secho(line.lstrip("# "), bold=True)
        elif not line.startswith("```"):
            typer.echo(line)
