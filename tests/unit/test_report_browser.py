"""The file of `orch report` in a real headless browser: policy, phone, keys, zoom, no JavaScript, 0 lines, 64 nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import dashboard_browser
from benchmarks.dashboard_browser import SERIOUS, SIDEWAYS, chromium
from contract.event_lines import encode_event
from contract.events import ResourcesSampled
from orchestrator.specs.run_events import RunLine
from orchestrator.state.journal import Journal
from orchestrator.state.journal_entries import EndEntry
from orchestrator.state.run_history import RunHistory
from orchestrator.state.run_report import RunReport
from orchestrator.watch.report_file import report_html
from tests import lan
from tests.page_scene import step_event, usage

pytest.importorskip("playwright", reason="the Python package playwright is not installed")
if not Path(dashboard_browser.BROWSER).exists():
    pytest.skip(f"no {dashboard_browser.BROWSER}", allow_module_level=True)
WIDE, PHONE = (1280, 860), (390, 844)
LONGEST = 4000
"""Pixels of a report on a phone."""


def report(run_id: str, *, steps: int, nodes: int) -> RunReport:
    history = RunHistory()
    for second in range(steps):
        events = [step_event(second + 1, final=steps)]
        events += [ResourcesSampled(node=f"n{n:02d}", usage=usage(n, second)) for n in range(nodes)]
        for event in events:
            text = encode_event(event)
            history.add(RunLine(time=lan.moment(second), node=event.node, node_rank=0, rank=0, text=text))
    journal = Journal(end=EndEntry(state="succeeded") if steps else None)
    return history.report(run_id, journal=journal, forecast=None, now=0.0)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as made:
        yield made


class Opened:
    """A report in the browser, and all that went wrong."""

    def __init__(self, browser: Any, folder: Path, *reports: RunReport, size: tuple[int, int] = WIDE, **options: Any):
        file = folder / "report.html"
        file.write_text(report_html(reports, made_at="now", version="1"), "utf-8")
        self.context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **options)
        self.page, self.problems = self.context.new_page(), list[str]()
        self.page.on("console", lambda line: self.problems.append(line.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.problems.append(request.url))
        self.page.goto(file.as_uri())
        self.problems.remove(file.as_uri())


@pytest.mark.parametrize("size", [WIDE, PHONE])
@pytest.mark.parametrize(("steps", "nodes"), [(0, 0), (1, 1), (120, 3), (40, 64)])
def test_runs_of_any_size_are_drawn(
    browser: Any, tmp_path: Path, steps: int, nodes: int, size: tuple[int, int]
) -> None:
    opened = Opened(browser, tmp_path, report("r1", steps=steps, nodes=nodes), size=size)
    page = opened.page
    page.wait_for_selector("h1 >> text=r1")
    assert page.locator("section.charts canvas").count() == (4 if steps else 0)
    assert page.evaluate(SIDEWAYS) <= 0
    assert size is WIDE or page.evaluate("document.documentElement.scrollHeight") < LONGEST
    assert opened.problems == []
    opened.context.close()


def test_several_runs_share_their_charts(browser: Any, tmp_path: Path) -> None:
    one = report("r1", steps=30, nodes=2)
    opened = Opened(browser, tmp_path, one, replace(one, run_id="r2", state="failed"))
    opened.page.wait_for_selector("h1 >> text=2 runs side by side")
    assert opened.page.locator("figure", has_text="loss").first.locator("tbody tr").count() == 2
    opened.page.click("summary >> text=r2")
    assert opened.page.locator("details[open] h1 >> text=r2").is_visible()
    assert opened.problems == []
    opened.context.close()


def test_keys_zoom_and_one_cursor_for_all_charts(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, report("r1", steps=120, nodes=1))
    page = opened.page
    loss, rate = page.locator("section.charts figure").nth(0), page.locator("section.charts figure").nth(2)
    loss.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert loss.locator(".read").inner_text().startswith("step 2: ")
    assert rate.locator(".read").inner_text().startswith("step 2: ")
    page.keyboard.press("+")
    assert rate.get_by_role("button", name="Whole range").is_visible()
    rate.get_by_role("button", name="Whole range").click()
    assert loss.get_by_role("button", name="Whole range").is_hidden()
    box = loss.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + 50, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 60, steps=4)
    page.mouse.up()
    assert loss.get_by_role("button", name="Whole range").is_visible()
    loss.get_by_role("button", name="log").click()
    assert loss.get_by_role("button", name="log").get_attribute("aria-pressed") == "true"
    assert opened.problems == []
    opened.context.close()


def test_without_javascript_the_key_figures_are_there(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, report("r1", steps=30, nodes=1), size=PHONE, java_script_enabled=False)
    assert opened.page.locator("h1").inner_text() == "Run r1: succeeded"
    assert opened.page.locator("dd").first.inner_text() == "30 of 30"
    assert opened.page.locator("tr", has_text="loss").first.is_visible()
    opened.context.close()


def test_axe_has_no_serious_finding(browser: Any, tmp_path: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    for size, theme in ((WIDE, "light"), (WIDE, "dark"), (PHONE, "light")):
        made = report("r1", steps=30, nodes=3)
        opened = Opened(browser, tmp_path, made, size=size, color_scheme=theme, bypass_csp=True)
        found = axe.Axe().run(opened.page).response["violations"]
        assert [one["id"] for one in found if one["impact"] in SERIOUS] == []
        opened.context.close()
