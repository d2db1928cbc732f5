"""The page in a real headless browser: no errors, nothing from elsewhere, hostile text, the banner, two clicks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from benchmarks import dashboard_browser
from benchmarks.dashboard_browser import PHONE, SIDEWAYS, VIEWS, WIDE, chromium, open_page
from orchestrator.specs.run_events import RunLine
from orchestrator.specs.seen import seen_now
from orchestrator.state.facts import NodeUnanswered
from orchestrator.store.run_record import RunRecord
from orchestrator.watch.server.address import listening_socket, web_address
from orchestrator.watch.server.serving import page_server
from tests import lan
from tests.page_scene import RUN, TRACEBACK, PlayedWatch, played_parts, record_run

pytest.importorskip("playwright", reason="the Python package playwright is not installed")
if not Path(dashboard_browser.BROWSER).exists():
    pytest.skip(f"no {dashboard_browser.BROWSER}", allow_module_level=True)
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"


class Site:
    """The page of a played fleet, and the browser."""

    def __init__(self, browser: Any, watch: PlayedWatch) -> None:
        self.browser, self.words = browser, list[tuple[str, ...]]()
        self.watch = watch
        self.parts = played_parts(self.watch, self._perform, interval_s=0.3)
        address = web_address("127.0.0.1", 0, None, None)
        self.listening = listening_socket(address)
        self.url = address.url(self.listening.getsockname()[1], "t")
        self.server = page_server(self.parts, address, "t")
        self.parts.feed.start()
        self._thread = Thread(target=self.server.run, kwargs={"sockets": [self.listening]})
        self._thread.start()
        self.messages: list[str] = []

    def _perform(self, words: Any, hear: Any) -> tuple[int, str]:
        self.words.append(tuple(words))
        hear("stopping")
        return 0, ""

    def open(self, size: tuple[int, int] = WIDE, theme: str = "light") -> Any:
        page = open_page(self.browser, self.url, size, theme)
        page.on("console", lambda line: self.messages.append(line.text) if line.type == "error" else None)
        page.on("pageerror", lambda error: self.messages.append(str(error)))
        return page

    def end(self) -> None:
        if self._thread.is_alive():
            self.server.handle_exit(2, None)
        self.parts.feed.close()
        self._thread.join(20)
        self.listening.close()


@contextmanager
def opened(watch: PlayedWatch) -> Iterator[Site]:
    with chromium() as browser:
        made = Site(browser, watch)
        try:
            yield made
        finally:
            made.end()


@pytest.fixture
def site() -> Iterator[Site]:
    record_run(RUN, lan.NAMES[:3], points=60, outcome=None)
    record_run("bad-1", lan.NAMES[:2], points=60, outcome=("failed", HOSTILE), tail=(HOSTILE, *TRACEBACK))
    with opened(PlayedWatch(lan.NAMES[:3], pause_s=0.1)) as made:
        yield made


def test_every_view_without_an_error(site: Site) -> None:
    figures = dashboard_browser.first_visit(site.browser, site.url)
    assert figures["console_errors"] == []
    assert figures["requests_to_other_hosts"] == []
    assert figures["bytes_of_all_views"] < 300_000
    assert figures["address_shown"] == site.url.partition("?")[0]


def test_360_pixels_are_enough(site: Site) -> None:
    page = site.open(PHONE)
    for view in (*VIEWS, "#/run/bad-1"):
        page.evaluate("view => { location.hash = view }", view)
        page.wait_for_timeout(700)
        assert page.evaluate(SIDEWAYS) <= 0, view
    assert site.messages == []


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("size", [WIDE, (390, 844)])
def test_the_first_screen_has_state_progress_curve_and_last_lines(size: tuple[int, int], plain: bool) -> None:
    record_run(RUN, lan.NAMES[:3], points=60, outcome=None, plain=plain)
    progress = r"epoch \d+.10 · step \d+.100 · from its output" if plain else r"step \d+ of 1,000"
    with opened(PlayedWatch(lan.NAMES[:3], pause_s=0.1, plain=plain)) as site:
        page = site.open(size)
        for wanted in ("text=nothing is wrong", f"text=/{progress}/", "figure canvas", ".tail >> text=/loss/"):
            found = page.wait_for_selector(wanted, timeout=20_000)
            assert found.bounding_box()["y"] < size[1], wanted
        assert site.messages == []


def test_hostile_text_is_text(site: Site) -> None:
    site.watch.extra += [NodeUnanswered(seen=seen_now(), node="beta", error=HOSTILE)]
    page = site.open()
    page.wait_for_selector("text=<img src=x")
    for view in ("#/runs", "#/run/bad-1", "#/logs?run=bad-1"):
        page.evaluate("view => { location.hash = view }", view)
        page.wait_for_selector("text=<img src=x")
    assert page.evaluate("document.querySelectorAll('main img, main script').length") == 0
    assert "taken" not in page.title()
    assert site.messages == []


def test_the_server_goes_and_comes_back(site: Site) -> None:
    page = site.open()
    page.wait_for_selector("text=All 3 nodes answer")
    site.server.handle_exit(2, None)
    site._thread.join(20)
    banner = page.wait_for_selector("#banner .bad", timeout=20_000)
    assert "cannot be reached since" in banner.inner_text()
    assert page.locator("text=step ").first.is_visible()  # what was known stays


def test_a_node_that_dies_is_grey(site: Site) -> None:
    page = site.open()
    site.watch.silent.add("gamma")
    page.reload()
    page.wait_for_selector("tr.old >> text=gamma", timeout=20_000)
    assert "gamma" in page.locator(".health").inner_text()


def test_stop_needs_the_second_click_by_keyboard_alone(site: Site) -> None:
    page = site.open()
    button = page.get_by_role("button", name="Stop…")
    button.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open] >> text=Stop run")
    assert site.words == []
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0
    button.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open] >> text=Stop run")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("#actions >> text=stop gpt2-c0de")
    assert site.words == [("stop", RUN, "--yes")]


def test_keys_views_and_charts(site: Site) -> None:
    page = site.open()
    page.keyboard.press("4")
    page.wait_for_selector("h1 >> text=Logs")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Words of a line"
    page.keyboard.press("Escape")
    page.keyboard.press("1")
    chart = page.locator("figure.chart").first
    chart.locator("canvas").wait_for()
    chart.focus()
    page.keyboard.press("Home")
    assert chart.locator(".read").inner_text().startswith("step 1: training ")
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"


def test_a_log_that_grows(site: Site) -> None:
    page = site.open()
    page.evaluate("view => { location.hash = view }", f"#/logs?run={RUN}&node=beta")
    page.wait_for_selector("h1 >> text=Logs")
    line = RunLine(time="2026-11-25T01:00:00Z", node="beta", node_rank=1, rank=1, text="a line that comes later")
    with RunRecord(RUN).open_log("beta", "c1") as log:
        log.add(line)
    page.wait_for_selector(".lines >> text=a line that comes later", timeout=20_000)
