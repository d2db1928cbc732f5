"""The index of the pages: `python -m tests.unit.findings.index > docs/findings/README.md` writes it anew."""

from __future__ import annotations

import sys
from itertools import groupby

from orchestrator.specs.finding_pages import all_pages

HEAD = """# What `orch` may find

A page for every finding of `orch doctor`, `orch check-gpus` and `orch launch`: what `orch explain ID` prints offline.
An id is `area.fault` and never changes its meaning: scripts may rely on it.
"""


def index() -> str:
    """All pages by area."""
    lines = [HEAD]
    for area, pages in groupby(all_pages(), key=lambda page: page.area):
        lines += [f"## {area}", "| finding | what it is |", "|---|---|"]
        lines += [f"| [{page.id}]({page.id}.md) | {page.title} |" for page in pages]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(index())
