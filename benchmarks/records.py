"""The controller's record of a run: reading a few of very many lines, and following many nodes that write much.

`read`: a record of five million lines of five nodes; CPU time and memory of each command that reads some of them.
`report`: the same of the report of a run of 100,000 steps.
`follow`: simulated nodes, each with lines at a constant rate, through the same code as `orch logs -f`; whether all
lines are on record, CPU time, and growth of memory from the first tenth of the time to the end.

    python -m benchmarks.records [--quick] [--table read report follow] [--lines 5000000] [--seconds 600] [--rate 400]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from contract.event_lines import encode_event
from contract.events import StepDone
from contract.log_lines import rank_prefix
from orchestrator.fleet.runs.find_runs import RunningContainer
from orchestrator.fleet.supervise.follow import follow
from orchestrator.nodes.fake import FakeEngine, FakeNode, UnexpectedCallError
from orchestrator.nodes.interface import LogLine
from orchestrator.specs.run_events import RunLine
from orchestrator.store.run_record import RunRecord, runs_folder
from tests import lan
from tests.page_scene import record_run

RUN = "large-1"
START = datetime(2026, 1, 2, 15, tzinfo=UTC).timestamp()
GOALS = {"orch logs RUN --tail 50": "0.5 s CPU, 90 MiB"}
PEAK = """
import os, sys
leave = os._exit
def report(code):
    sys.stdout.flush()
    with open("peak", "w") as peak:
        peak.write(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])
    leave(code)
os._exit = report
"""
"""Writes the largest memory of the process at its end: what the system reports includes that of its parent."""
ORCH = ("-c", PEAK + "from orchestrator.cli import run; run()")
RECORD = f"""{PEAK}
from contract.events import StepDone
from orchestrator.store.run_record import RunRecord
record = RunRecord({RUN!r})
"""
EVENTS = ("-c", RECORD + "for _ in record.events(StepDone): print()\nos._exit(0)")
NEWEST = ("-c", RECORD + "print(next(record.events(StepDone, newest_first=True)).text)\nos._exit(0)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few lines for a few seconds, to test that it runs")
    tables = ("read", "report", "follow")
    parser.add_argument("--table", nargs="+", choices=tables, default=tables)
    parser.add_argument("--lines", type=int, default=5_000_000)
    parser.add_argument("--nodes", type=int, default=50, help="nodes that are followed")
    parser.add_argument("--rate", type=float, default=400, help="lines per second of each of these nodes")
    parser.add_argument("--seconds", type=float, default=600)
    options = parser.parse_args()
    if options.quick:
        options.lines, options.nodes, options.rate, options.seconds = 50_000, 5, 100, 5
    failed = False
    for table in options.table:
        with TemporaryDirectory() as state:
            os.environ["XDG_STATE_HOME"] = state
            if table == "read":
                read_table(options.lines)
            elif table == "report":
                report_table(1000 if options.quick else 100_000)
            else:
                failed |= not follow_table(options.nodes, options.rate, options.seconds)
    return int(failed)


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def text_of(number: int) -> str:
    """Every tenth line is a step's event, as of rank 0; the others are what a training prints."""
    if number % 10 == 0:
        return encode_event(StepDone(t=START + number, rank=0, step=number, loss=9 / (number + 1), per_s=4096.0))
    if number == 1234:
        return "a needle in a haystack"
    loss, speed = number * 7919 % 99991 / 1e4, number % 977
    return f"epoch {number // 9973} step {number} loss {loss:.4f} lr {1e-4:.1e} | {speed} tokens/s"


def read_table(lines: int) -> None:
    began = time.process_time()
    record, per_node = RunRecord(RUN), lines // len(lan.NAMES)
    record.save_plan(lan.plan(lan.NAMES))
    for rank, name in enumerate(lan.NAMES):
        with record.open_log(name, "c1") as log:
            for number in range(per_node):
                time_of_line = moment(START + number / 100)
                log.add(RunLine(time=time_of_line, node=name, node_rank=rank, rank=rank, text=text_of(number)))
    seconds = time.process_time() - began
    size = sum(file.stat().st_size for file in record.folder.rglob("*.jsonl*"))
    index = sum(file.stat().st_size for file in record.folder.glob("events.sqlite*"))
    print(f"\n{lines:,} lines of {len(lan.NAMES)} nodes: {seconds / lines * 1e6:.1f} µs of CPU to record a line, "
          f"{size / 2**20:,.0f} MiB on disk and {index / 2**20:,.0f} MiB of events\n")  # fmt: skip
    recently = moment(START + per_node / 100 - 10)
    print("| command | lines | CPU s | MiB | goal |\n|---|---|---|---|---|")
    for label, argv in {
        "orch --help": (*ORCH, "--help"),
        "orch logs RUN --tail 50": (*ORCH, "logs", RUN, "--tail", "50"),
        "orch logs RUN --json, last 10 s": (*ORCH, "logs", RUN, "--json", "--since", recently),
        "orch logs RUN --grep needle": (*ORCH, "logs", RUN, "--grep", "needle"),
        "orch logs RUN --level error --tail 5": (*ORCH, "logs", RUN, "--level", "error", "--tail", "5", "-n", "alpha"),
        "orch search needle": (*ORCH, "search", "needle"),
        "orch search nothing": (*ORCH, "search", "nothing"),
        "newest step event": NEWEST,
        "all step events": EVENTS,
        "orch runs": (*ORCH, "runs"),
        "orch why RUN": (*ORCH, "why", RUN),
    }.items():
        shown, cpu_s, mib = measured(argv)
        print(f"| {label} | {shown:,} | {cpu_s:.2f} | {mib:.0f} | {GOALS.get(label, '')} |", flush=True)
    for file in record.folder.glob("events.sqlite*"):
        file.unlink()
    shown, cpu_s, mib = measured(NEWEST)
    print(f"| newest step event, events made again | {shown:,} | {cpu_s:.2f} | {mib:.0f} | |")


def report_table(steps: int) -> None:
    record_run(RUN, lan.NAMES, points=steps, outcome=("done", ""))
    _, cpu_s, mib = measured((*ORCH, "report", RUN, "--to", "report.html"))
    print(f"\norch report RUN, {steps:,} steps: {cpu_s:.2f} s of CPU, {mib:.0f} MiB")


def measured(argv: Sequence[str]) -> tuple[int, float, float]:
    """Lines that a Python process prints, its CPU seconds and its largest memory in MiB."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        root = str(Path(__file__).parents[1])
        environment = {**os.environ, "PYTHONPATH": root, "COLUMNS": "200"}
        with out.open("wb") as writing:  # in a folder without an inventory: the nodes are not asked
            process = subprocess.Popen([sys.executable, *argv], stdout=writing, cwd=folder, env=environment)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = status
        if status:
            raise SystemExit(f"{argv}: exit status {status}")
        peak_kib = int((Path(folder) / "peak").read_text())
        return out.read_bytes().count(b"\n"), used.ru_utime + used.ru_stime, peak_kib / 1024


# ── Following ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class WritingEngine(FakeEngine):
    """A container that writes lines at a constant rate and ends; it keeps none of them."""

    began: float = 0.0
    rate: float = 1.0
    total: int = 0

    def logs(
        self, container: str, *, follow: bool = False, since: str = "", tail: int | None = None
    ) -> Iterator[LogLine]:
        """Lines after that of the time `since`, without end until all are written."""
        if not follow or tail is not None:
            raise UnexpectedCallError(f"{self.node}: logs that are not followed")
        number = 0 if not since else round((seconds_of(since) - START) * self.rate) + 1
        while number < self.total:
            due = min(self.total, int((time.monotonic() - self.began) * self.rate))
            if number >= due:
                time.sleep(0.05)
            while number < due:
                yield LogLine(time=moment(START + number / self.rate), text=rank_prefix(0) + text_of(number))
                number += 1
        if self._is_running(container):
            self.finish(container, 0)


def follow_table(nodes: int, rate: float, seconds: float) -> bool:
    """Return whether the record is complete."""
    began, total = time.monotonic(), int(rate * seconds)
    spec = lan.plan().nodes[0].container
    containers = []
    for rank in range(nodes):
        name = f"node{rank:02d}"
        engine = WritingEngine(name, began=began, rate=rate, total=total)
        container = engine.create(spec)
        engine.start(container)
        node = FakeNode(name, engine=engine, answers={("true",): (0, "", "")})
        containers.append(RunningContainer(node=node, node_rank=rank, id=container))
    received, cpu_began, first, largest = 0, time.process_time(), 0.0, 0.0
    for happening in follow(containers, RunRecord(RUN), patient=True):
        if not isinstance(happening, RunLine):
            continue
        received += 1
        if received % 1000 == 0 and received > total * nodes / 10:
            now = resident_mib()
            first, largest = first or now, max(largest, now)
    took, cpu_s = time.monotonic() - began, time.process_time() - cpu_began
    missing = sum(missing_lines(one.node.name, total) for one in containers)
    folder = runs_folder() / RUN
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"\n{nodes} nodes, {rate:g} lines/s each, {seconds:g} s: took {took:.0f} s\n")
    print(
        "| lines written | followed | missing on record | µs of CPU a line | MiB at 1/10 | most MiB | growth | record |"
    )
    print("|---|---|---|---|---|---|---|---|")
    print(f"| {total * nodes:,} | {received:,} | {missing:,} | {cpu_s / max(1, received) * 1e6:.1f} | {first:.0f} "
          f"| {largest:.0f} | {largest - first:.1f} MiB (goal: < 20) | {size / 2**20:,.0f} MiB |")  # fmt: skip
    return missing == 0 and received == total * nodes


def missing_lines(node: str, total: int) -> int:
    """Lines that are not on record; lines that are there twice count as missing, too."""
    wrong, expected = 0, 0
    for line in RunRecord(RUN).lines(node):
        wrong += line.text != text_of(expected)
        expected += 1
    return wrong + abs(total - expected)


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


def moment(seconds: float) -> str:
    whole = int(seconds)
    text = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{int((seconds - whole) * 1e9):09d}Z"


def seconds_of(time_of_line: str) -> float:
    whole, _, fraction = time_of_line.removesuffix("Z").partition(".")
    at = datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp()
    return at + float(f"0.{fraction or 0}")


if __name__ == "__main__":
    raise SystemExit(main())
