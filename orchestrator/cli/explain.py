"""`orch explain`: what a finding means, why it matters, how to fix it. Asks no machine."""

from __future__ import annotations

import typer

from orchestrator.checks.causes import Cause, explained
from orchestrator.cli.options import JsonOption, OutputFormat, OutputOption
from orchestrator.cli.report import write_json, write_names
from orchestrator.specs.errors import EXIT_OK
from orchestrator.specs.finding_pages import FindingPage, all_pages, find_page

EXAMPLES = """\
orch explain clock.skew
orch explain gpu
orch explain code.exception
orch explain
"""


def explain(
    id: str = typer.Argument(
        "", metavar="[ID|AREA]", help="A finding such as clock.skew, an area such as gpu, or a cause."
    ),
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> int:
    """Explain a finding of `orch doctor` or `orch launch`, or a cause named by `orch why`, and how to fix it.

    Without an id, lists all findings by area. Needs no network and no inventory.
    """
    known = all_pages()
    if id not in {page.id for page in known} and (cause := explained(id)):
        _show_cause(*cause, as_json=as_json, output=output)
        return EXIT_OK
    pages = [page for page in known if id in ("", page.area)]
    found = pages or [find_page(id)]
    data = [{"id": page.id, "area": page.area, "title": page.title} for page in found]
    if as_json:
        write_json(data if pages else {**data[0], "sections": found[0].sections})
    elif output is OutputFormat.NAME:
        write_names(page.id for page in found)
    elif pages:
        from orchestrator.render.console import show
        from orchestrator.render.table import Column, Table

        columns = (Column("area", 1), Column("finding"), Column("title", wraps=True))
        show(Table(columns=columns, rows=[(page.area, page.id, page.title) for page in pages]))
    else:
        _show(found[0])
    return EXIT_OK


def _show_cause(cause: Cause, text: str, *, output: OutputFormat | None, as_json: bool) -> None:
    """Print a cause as `orch why` does, with names in place of values, and the text of its area."""
    if as_json:
        keys = ("id", "owner", "title", "explanation", "fix", "finding")
        write_json({"area": cause.id.partition(".")[0], **{key: getattr(cause, key) for key in keys}})
    elif output is OutputFormat.NAME:
        write_names([cause.id])
    else:
        from rich.text import Text

        from orchestrator.render.console import show

        steps = [f"  → {step}" for step in cause.fix]
        show(Text(f"{cause.id}: {cause.title}\n", "bold"))
        show(Text("\n".join((cause.explanation, f"  owner: {cause.owner}", *steps))))
        show(Text(f"\n{text}"))


def _show(page: FindingPage) -> None:
    """Print the page: headings in bold, paragraphs as wide as the terminal, commands whole."""
    from rich.text import Text

    from orchestrator.render.console import show

    show(Text(f"{page.id}: {page.title}", "bold"))
    for heading, section in page.sections.items():
        show(Text(f"\n{heading}", "bold"))
        for number, paragraph in enumerate(section.split("\n\n")):
            before, commands = "\n" if number else "", paragraph.startswith("```")
            text = paragraph.strip("`").partition("\n")[2].rstrip() if commands else paragraph.replace("\n", " ")
            show(Text(before + text, no_wrap=commands, overflow="ignore"))
