"""`orch dashboard` with many runs on record: time to read their curves, memory, and the page in a headless browser.

    python -m benchmarks.dashboard [--quick] [--runs 10] [--points 100000] [--browser-python peers/bin/python]

The machines are played, the records are real. The browser part needs `playwright` (and `axe-playwright-python`) in
`--browser-python`, and Debian's chromium-headless-shell; without them it is left out.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from tests import lan
from tests.page_scene import RUN, TRACEBACK, PlayedWatch, played_parts, record_run

HERE = Path(__file__).parent
GOALS = {
    "first_contentful_paint_ms": "1000", "bytes_of_first_view": "300,000", "requests_to_other_hosts": "none",
    "console_errors": "none", "serious_accessibility_findings": "none", "rss_mib": "80", "wider_than_360_px": "none",
}  # fmt: skip
WAIT_S = 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two short runs, to test that it works")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--browser-python", default=sys.executable, help="the Python that has playwright")
    parser.add_argument("--keep", action="store_true", help="serve until Enter is pressed, to look at the page")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve_scene()
        return
    if given.quick:
        given.runs, given.points = 2, 500
    with TemporaryDirectory() as state:
        os.environ["XDG_STATE_HOME"] = state
        began = time.monotonic()
        names = fill_records(given.runs, given.points)
        print(f"{given.runs} runs of {given.points:,} steps recorded in {time.monotonic() - began:.0f} s", flush=True)
        report(measured(names, given.browser_python, keep=given.keep))


def fill_records(runs: int, points: int) -> list[str]:
    """Records of so many runs, of which the newest is active; their ids."""
    now = time.time()
    ids = [RUN, *(f"gpt2-{number:04x}" for number in range(1, runs))]
    for number, run_id in enumerate(ids):
        failed = number == 1
        outcome = None if not number else ("failed", "rank 1: out of memory") if failed else ("succeeded", "")
        record_run(
            run_id, lan.NAMES[: 5 if not number else 3], points=points, seed=number, outcome=outcome,
            began=now - points * 0.42 - 60 - number * 3600, tail=TRACEBACK if failed else (),
        )  # fmt: skip
    return ids


def serve_scene() -> None:
    """Serve the page of played machines, and write its address to stdout. What connects to real ones is loaded too."""
    import orchestrator.nodes.ssh  # noqa: F401  # its memory counts
    from orchestrator.watch.server.address import listening_socket, web_address
    from orchestrator.watch.server.serving import serve

    address = web_address("127.0.0.1", 0, None, None)
    with listening_socket(address) as listening:
        print(address.url(listening.getsockname()[1], "benchmark"), flush=True)
        serve(played_parts(PlayedWatch(lan.NAMES)), address, "benchmark", listening)


def measured(names: list[str], browser_python: str, *, keep: bool = False) -> dict[str, Any]:
    """Figures of the server and, where there is a browser, of the page."""
    argv = (sys.executable, "-m", "benchmarks.dashboard", "--serve")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        try:
            url = (server.stdout or sys.stdin).readline().strip()
            figures = {"started_rss_mib": memory_mib(server.pid, "VmRSS"), **browsed(url, browser_python)}
            began = time.monotonic()
            size = read_all(url, names)
            figures |= {"seconds_to_read_all_runs": round(time.monotonic() - began, 1), "bytes_of_all_curves": size}
            figures |= {"cpu_s": cpu_s(server.pid), "rss_mib": memory_mib(server.pid, "VmRSS")}
            figures |= {
                "pss_mib": proportional_mib(server.pid),
                "highest_rss_mib": memory_mib(server.pid, "VmHWM"),
                "of_it_anonymous_mib": memory_mib(server.pid, "RssAnon"),
            }
            if keep:
                input(f"{url}   Enter ends it")
            return figures
        finally:
            server.terminate()


def browsed(url: str, python: str) -> dict[str, Any]:
    try:
        argv = (python, str(HERE / "dashboard_browser.py"), url)
        ran = subprocess.run(argv, capture_output=True, text=True, check=False)
    except OSError as error:
        print(f"without the figures of a browser: {error}")
        return {}
    if ran.returncode:
        print(f"without the figures of a browser: {ran.stderr.strip().rpartition(chr(10))[2]}")
        return {}
    figures: dict[str, Any] = json.loads(ran.stdout)
    return figures


def read_all(url: str, names: list[str]) -> int:
    """Ask for the curves of all runs until they are read; the bytes of the last answer."""
    place, cookie = urlsplit(url), ""

    def get(path: str) -> tuple[http.client.HTTPMessage, bytes]:
        with closing(http.client.HTTPConnection(place.netloc, timeout=WAIT_S)) as connection:
            connection.request("GET", path, headers={"cookie": cookie, "accept-encoding": "gzip"})
            answer = connection.getresponse()
            return answer.headers, answer.read()

    cookie = get(f"/?{place.query}")[0]["set-cookie"].partition(";")[0]
    path = f"/api/curves?group=train,validation&{'&'.join(f'run={name}' for name in names)}"
    while True:
        headers, body = get(path)
        text = gzip.decompress(body) if headers["content-encoding"] == "gzip" else body
        if not any(run["reading"] for run in json.loads(text)["runs"]):
            return len(body)
        time.sleep(0.5)


def memory_mib(pid: int, field: str) -> float:
    words = Path(f"/proc/{pid}/status").read_text().split()
    return round(int(words[words.index(f"{field}:") + 1]) / 1024, 1)


def proportional_mib(pid: int) -> float:
    """Memory in which pages that several processes share, such as those of libraries, count in part."""
    words = Path(f"/proc/{pid}/smaps_rollup").read_text().split()
    return round(int(words[words.index("Pss:") + 1]) / 1024, 1)


def cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def report(figures: dict[str, Any]) -> None:
    print(f"\nload average {os.getloadavg()[0]:.1f}\n\n| figure | measured | goal |\n|---|---|---|")
    for name, value in figures.items():
        shown = "none" if value in ([], {}) else f"{value:,}" if isinstance(value, int | float) else str(value)
        print(f"| {name.replace('_', ' ')} | {shown} | {GOALS.get(name, '')} |")


if __name__ == "__main__":
    main()
