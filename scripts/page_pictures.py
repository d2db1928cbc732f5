"""Pictures of pages, in a headless Chromium: the file of `orch report` for the documentation, and the site to look at.

python scripts/page_pictures.py                  # docs/pictures/report.png
python scripts/page_pictures.py --site site.png  # the first page of the documentation site

It needs the package `playwright` and Debian's `chromium-headless-shell`: no test compares these pictures.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import pictures  # noqa: E402

import docs  # noqa: E402
from orchestrator.state.journal import Journal  # noqa: E402
from orchestrator.state.journal_entries import EndEntry  # noqa: E402
from orchestrator.state.run_history import RunHistory  # noqa: E402
from orchestrator.watch.report_file import report_html  # noqa: E402

BROWSER = "/usr/bin/chromium-headless-shell"
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
COLORS = 256
DRAWN_MS = 800


def report(folder: Path) -> Path:
    """The report of a run whose events are made up."""
    history = RunHistory()
    for one in pictures.lines_of_run():
        history.add(one)
    file = folder / "report.html"
    made = history.report(pictures.RUN, journal=Journal(end=EndEntry(state="succeeded")), forecast=None, now=0.0)
    file.write_text(report_html([made], made_at="2026-01-02 16:03", version="0.1.0"), "utf-8")
    return file


def site(folder: Path) -> Path:
    docs.build(folder / "site")
    return folder / "site" / "index.html"


def shoot(browser: Browser, page: Path, picture: Path) -> None:
    """A picture of the upper part of a page, in few colors."""
    tab = browser.new_page(viewport={"width": 1120, "height": 640}, color_scheme="light")
    tab.goto(page.as_uri())
    tab.wait_for_timeout(DRAWN_MS)
    tab.screenshot(path=str(picture))
    tab.close()
    with Image.open(picture) as shot:
        few = shot.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    few.save(picture, optimize=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--site", type=Path, metavar="FILE")
    given = parser.parse_args()
    with TemporaryDirectory() as name, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=list(ARGUMENTS))
        page = site(Path(name)) if given.site else report(Path(name))
        shoot(browser, page, given.site or pictures.FOLDER / "report.png")
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
