"""`orch explain`: the meaning of a finding or of a cause, and how to fix it. No node is asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from orchestrator.checks.causes import explained
from orchestrator.cli.completion import finding_ids
from orchestrator.cli.options import Output
from orchestrator.specs.errors import EXIT_OK
from orchestrator.specs.finding_pages import all_findings, explained_finding
from orchestrator.specs.pages import PageEntry

if TYPE_CHECKING:
    from rich.text import Text

EXAMPLES = """\
orch explain clock.skew
orch explain gpu
orch explain code.exception
orch explain
"""


def explain(
    *,
    id: str = typer.Argument(
        "",
        metavar="[ID|AREA|CAUSE]",
        autocompletion=finding_ids,
        help="A finding such as clock.skew, an area such as gpu, or a cause such as code.exception.",
    ),
    output: Output,
) -> int:
    """Explain a finding of `orch doctor` or `orch launch`, or a cause named by `orch why`, and how to fix it.

    Without an argument, lists all findings by area. Needs no network and no inventory.
    """
    from rich.console import Group
    from rich.text import Text

    from orchestrator.render.table import Column, Table

    known = all_findings()
    if id not in {finding.id for finding in known} and (found := explained(id)):
        cause, there, text = found
        keys = ("id", "owner", "title", "explanation", "fix", "finding")
        data = {"area": cause.id.partition(".")[0], **{key: getattr(cause, key) for key in keys}, "on_cluster": there}
        lines = [cause.explanation, f"  owner: {cause.owner}", *(f"  → {step}" for step in cause.fix)]
        lines += ["  on a cluster:", *(f"  → {step}" for step in there)] if there else []
        heading = Text(f"{cause.id}: {cause.title}\n", "bold")
        output.write(data, [cause.id], Group(heading, Text("\n".join(lines)), Text(f"\n{text}")))
    elif listed := [finding for finding in known if id in ("", finding.area)]:
        columns = (Column("area", 1), Column("finding"), Column("title", wraps=True))
        rows = [(finding.area, finding.id, finding.title) for finding in listed]
        output.write([_data(one) for one in listed], [one.id for one in listed], Table(columns=columns, rows=rows))
    else:
        finding = explained_finding(id)
        data = {**_data(finding), "sections": finding.sections}
        output.write(data, [finding.id], Group(*_texts(finding)))
    return EXIT_OK


def _data(finding: PageEntry) -> dict[str, str]:
    return {"id": finding.id, "area": finding.area, "title": finding.title}


def _texts(finding: PageEntry) -> Iterator[Text]:
    """Yield headings in bold, paragraphs as wide as the terminal, and commands, which are not wrapped."""
    from rich.text import Text

    yield Text(f"{finding.id}: {finding.title}", "bold")
    for heading, section in finding.sections.items():
        yield Text(f"\n{heading}", "bold")
        for number, paragraph in enumerate(section.split("\n\n")):
            before, commands = "\n" if number else "", paragraph.startswith("```")
            text = paragraph.strip("`").partition("\n")[2].rstrip() if commands else paragraph.replace("\n", " ")
            yield Text(before + text, no_wrap=commands, overflow="ignore")
