"""The page of `orch dashboard` in a headless Chromium, by Playwright: paint, bytes, requests, errors, accessibility.

    python benchmarks/dashboard_browser.py URL [--browser /usr/bin/chromium-headless-shell]

It needs `playwright` alone, and `axe-playwright-python` for the findings of axe; nothing of this repository.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

BROWSER = "/usr/bin/chromium-headless-shell"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
VIEWS = ("#/", "#/runs", "#/nodes", "#/logs", "#/checkpoints", "#/findings")
WIDE, PHONE = (1280, 860), (360, 760)
SETTLED_MS = 1500
SERIOUS = ("serious", "critical")
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
SIDEWAYS = "document.documentElement.scrollWidth - innerWidth"


@contextmanager
def chromium(path: str = BROWSER) -> Iterator[Any]:
    """The browser, until the end of the context."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playing:
        browser = playing.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


def open_page(browser: Any, url: str, size: tuple[int, int], theme: str, **options: Any) -> Any:
    """A page of a new profile at this address, after its first snapshot."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme=theme, ignore_https_errors=True, **options
    )
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector("#link .good", timeout=20_000)
    return page


def first_visit(browser: Any, url: str) -> dict[str, Any]:
    """Paint, bytes and messages of one visit, whose cache is empty."""
    context = browser.new_context(viewport={"width": WIDE[0], "height": WIDE[1]})
    page, received, asked, errors = context.new_page(), list[int](), list[str](), list[str]()
    network = context.new_cdp_session(page)
    network.send("Network.enable")
    network.on("Network.dataReceived", lambda event: received.append(event["encodedDataLength"]))
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(url)
    page.wait_for_selector("#link .good", timeout=20_000)
    page.wait_for_timeout(SETTLED_MS)
    for view in VIEWS:
        page.evaluate("view => { location.hash = view }", view)
        page.wait_for_timeout(SETTLED_MS // 3)
    paint, host, shown = page.evaluate(PAINT), urlsplit(url).netloc, page.url
    files = sum(received)
    context.close()
    return {
        "first_contentful_paint_ms": paint,
        "bytes_of_all_views": files,
        "requests": len(asked),
        "requests_to_other_hosts": [one for one in asked if urlsplit(one).netloc != host],
        "console_errors": errors,
        "address_shown": shown.partition("#")[0],
    }


def first_bytes(browser: Any, url: str) -> int:
    """Bytes of the first view, with its curves."""
    context = browser.new_context()
    page, received = context.new_page(), list[int]()
    network = context.new_cdp_session(page)
    network.send("Network.enable")
    network.on("Network.dataReceived", lambda event: received.append(event["encodedDataLength"]))
    page.goto(url)
    page.wait_for_selector("figure canvas", timeout=20_000)
    context.close()
    return sum(received)


def accessibility(browser: Any, url: str) -> list[str] | None:
    """Serious findings of axe in every view, light and dark, wide and narrow; None without axe."""
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:
        return None
    found = []
    for theme, size in (("light", WIDE), ("dark", WIDE), ("light", PHONE)):
        page = open_page(browser, url, size, theme, bypass_csp=True)  # axe itself is a script
        for view in VIEWS:
            page.evaluate("view => { location.hash = view }", view)
            page.wait_for_timeout(SETTLED_MS)
            for one in Axe().run(page).response["violations"]:
                if one["impact"] in SERIOUS:
                    place = one["nodes"][0]["html"][:120]
                    found.append(f"{theme} {size[0]} {view}: {one['id']}: {place}")
        page.context.close()
    return found


def sideways(browser: Any, url: str) -> dict[str, int]:
    """Pixels that each view is wider than a narrow window."""
    page = open_page(browser, url, PHONE, "light")
    wider = {}
    for view in VIEWS:
        page.evaluate("view => { location.hash = view }", view)
        page.wait_for_timeout(SETTLED_MS)
        if (pixels := page.evaluate(SIDEWAYS)) > 0:
            wider[view] = pixels
    page.context.close()
    return wider


def by_keyboard(browser: Any, url: str) -> list[str]:
    """Names of what the Tab key reaches in the first view, in order."""
    page = open_page(browser, url, WIDE, "light")
    page.wait_for_selector("figure canvas", timeout=20_000)
    name = (
        "(document.activeElement.getAttribute('aria-label') || document.activeElement.textContent).trim().slice(0, 30)"
    )
    reached = []
    for _ in range(24):
        page.keyboard.press("Tab")
        reached.append(page.evaluate(name))
    page.context.close()
    return reached


def measure(url: str, path: str = BROWSER) -> dict[str, Any]:
    """All figures of the page at this address."""
    with chromium(path) as browser:
        return {
            **first_visit(browser, url),
            "bytes_of_first_view": first_bytes(browser, url),
            "wider_than_360_px": sideways(browser, url),
            "reached_by_tab": by_keyboard(browser, url),
            "serious_accessibility_findings": accessibility(browser, url),
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--browser", default=BROWSER)
    given = parser.parse_args()
    print(json.dumps(measure(given.url, given.browser), indent=2))
