"""Draw the picture of `orch dashboard` in docs/pictures: the page with played machines, in a headless Chromium.

python scripts/browser_pictures.py [--out docs/pictures] [--all]   # --all: every view, light, dark and narrow

The Python that runs it needs the project with its tests, `playwright` and `pillow`; the browser is Debian's
chromium-headless-shell. A picture has few colors, so that it stays small.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

WIDE, PHONE = (1200, 780), (360, 760)
COLORS = 256
DRAWN_MS = 2500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    parser.add_argument("--all", action="store_true")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    from benchmarks.dashboard_browser import chromium

    with TemporaryDirectory() as state:
        os.environ["XDG_STATE_HOME"] = state
        with serving() as url, chromium() as browser:
            draw_all(browser, url, given.out, every=given.all)


@contextmanager
def serving() -> Iterator[str]:
    """The page, as `benchmarks/dashboard.py` serves it, with four runs on record."""
    import time

    from orchestrator.watch.server.address import listening_socket, web_address
    from orchestrator.watch.server.serving import page_server
    from tests import lan
    from tests.page_scene import RUN, TRACEBACK, PlayedWatch, played_parts, record_run

    now = time.time()
    record_run(RUN, lan.NAMES, points=400, outcome=None)
    record_run("gpt2-a1b2", lan.NAMES[:3], points=1000, seed=1, began=now - 9000)
    record_run("gpt2-77f0", lan.NAMES[:3], points=700, seed=3, began=now - 20000,
               outcome=("failed", "rank 1 on beta: CUDA out of memory"), tail=TRACEBACK)  # fmt: skip
    record_run("gpt2-9e21", lan.NAMES[:2], points=500, seed=2, began=now - 90000, outcome=("stopped", "on request"))
    address, parts = web_address("127.0.0.1", 0, None, None), played_parts(PlayedWatch(lan.NAMES))
    with listening_socket(address) as listening:
        server = page_server(parts, address, "pictures")
        parts.feed.start()
        thread = Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield address.url(listening.getsockname()[1], "pictures")
        finally:
            server.should_exit = True
            parts.stream.close()
            parts.feed.close()
            thread.join()


def draw_all(browser: Any, url: str, out: Path, *, every: bool) -> None:
    from benchmarks.dashboard_browser import open_page

    views = {"": "#/"}
    if every:
        views |= {"-runs": "#/runs?runs=gpt2-c0de,gpt2-a1b2", "-run": "#/run/gpt2-77f0", "-nodes": "#/nodes",
                  "-logs": "#/logs?run=gpt2-77f0", "-findings": "#/findings"}  # fmt: skip
    for theme in ("light", "dark") if every else ("light",):
        for size, kind in ((WIDE, ""), *(((PHONE, "-phone"),) if every else ())):
            page = open_page(browser, url, size, theme)
            for name, view in views.items():
                page.evaluate("view => { location.hash = view }", view)
                page.wait_for_timeout(DRAWN_MS)
                file = out / f"dashboard{name}-{theme}{kind}.png"
                page.screenshot(path=str(file), full_page=bool(kind))
                sys.stdout.write(f"{file.name}: {smaller(file) / 1000:.0f} kB\n")
            page.context.close()


def smaller(file: Path) -> int:
    """Keep few colors; the size in bytes."""
    from PIL import Image

    with Image.open(file) as picture:
        few = picture.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    few.save(file, optimize=True)
    return file.stat().st_size


if __name__ == "__main__":
    main()
