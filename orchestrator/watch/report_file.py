"""The file of `orch report`: the page's view of runs with its data, scripts and styles inside. It loads nothing."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from orchestrator.render.run_summary import comparison, figure_rows, key_figures, verdict
from orchestrator.state.run_report import RunReport
from orchestrator.watch.plain import as_json, shown
from orchestrator.watch.run_view import cause_view, run_view

ASSETS = Path(__file__).parent / "page"
MODULES = ("dom.js", "chart.js", "curves.js", "sections.js", "report.js")
"""Scripts of the report, each after those that it uses."""
VENDOR = ASSETS / "vendor"
POINTS, MOST_POINTS, FEWEST_POINTS = 40_000, 300, 16
"""Points of all curves of a file, and of one curve."""


def report_html(reports: Sequence[RunReport], *, made_at: str, version: str) -> str:
    """The HTML of one run, or of several side by side. `made_at`: time for the last line; `version`: of orch."""
    style = _text(VENDOR / "uPlot.min.css") + _text(ASSETS / "style.css")
    scripts = (_text(VENDOR / "uPlot.iife.min.js"), report_script())
    policy = "; ".join(
        (
            "default-src 'none'", f"script-src {' '.join(map(_hash, scripts))}", f"style-src {_hash(style)}",
            "base-uri 'none'", "form-action 'none'", "require-trusted-types-for 'script'", "trusted-types 'none'",
        )
    )  # fmt: skip
    title = "Run " + reports[0].run_id if len(reports) == 1 else "Runs " + ", ".join(one.run_id for one in reports)
    made = f"Made by orch {version} at {made_at} from the record on one computer."
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{_shown(title)}</title>
<style>{style}</style>
</head>
<body class="report">
<header class="top"><p class="brand">orch <span class="soft">report</span></p></header>
<main id="main">
<noscript class="plain-report">{"".join(map(_without_scripts, reports))}<p>{_shown(made)}</p></noscript>
</main>
<script type="application/json" id="data">{_inline(_data(reports, made))}</script>
<!-- uPlot (charts):
{_text(VENDOR / "LICENSE")}-->
{"".join(f"<script>{script}</script>" for script in scripts)}
</body>
</html>
"""


def report_script() -> str:
    """Join the modules to one script: a page that loads nothing cannot import."""
    modules = "".join(_text(ASSETS / name) for name in MODULES)
    return '"use strict";\n{\n' + re.sub(r"^import .*\n|^export ", "", modules, flags=re.MULTILINE) + "}\n"


def _data(reports: Sequence[RunReport], made: str) -> dict[str, Any]:
    points = POINTS // max(1, sum(len(one.curves) for one in reports))
    points = max(FEWEST_POINTS, min(MOST_POINTS, points))
    runs = [{**run_view(one, points), "why": cause_view(one.postmortem)} for one in reports]
    return {"runs": runs, "compared": shown(comparison(reports)) if len(reports) > 1 else [], "made": made}


def _inline(data: Any) -> str:
    """JSON in which nothing can end the element around it."""
    return as_json(data).decode().replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _without_scripts(report: RunReport) -> str:
    """Verdict, key figures and values of the curves, for a browser that runs no script."""
    facts = "".join(f"<dt>{_shown(name)}</dt><dd>{_shown(value)}</dd>" for name, value in key_figures(report))
    rows = list(figure_rows(report))
    table = f"{_row(('', 'First', 'Best', 'Last'), 'th')}{''.join(map(_row, rows))}" if rows else ""
    title = f"Run {_shown(report.run_id)}: {_shown(verdict(report))}"
    return f'<h1>{title}</h1><dl>{facts}</dl><table class="small">{table}</table>'


def _row(cells: Iterable[str], element: str = "td") -> str:
    first, *others = map(_shown, cells)
    return f"<tr><th>{first}</th>{''.join(f'<{element}>{cell}</{element}>' for cell in others)}</tr>"


def _shown(text: str) -> str:
    words: str = shown(text)
    return escape(words)


def _text(file: Path) -> str:
    return file.read_text("utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
