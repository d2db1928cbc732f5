"""Show that healthy scripts raise no alarm and that hangs are named: real runs of two or three agents on loopback.

    python -m benchmarks.alarms
    python -m benchmarks.alarms silent hang_read --out alarms.md

Each case is a script of `alarm_healthy.py` or `alarm_hangs.py`, with torchrun and gloo, at true time. What agents
report is turned into the lines that a user reads; a line that is not expected of the case, and one that is expected and
missing, fails it. The hangs wait for their line; the seconds until it are counted from the moment before the line that
hangs. About 25 minutes on two cores; `--scale 0.2` shortens scripts and limits alike, which a busy machine may not keep
up with. `--record DIR` writes the signs by which the coordinator decided, one file per case, which
tests/unit/test_alarms.py judges again.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.alarm_cases import CASES, CUT, STARTS, Case, expressions, faults_of, line_of, script
from benchmarks.alarm_nodes import Node, Seen, nodes_of
from benchmarks.alarm_signs import save
from benchmarks.alarm_training import IDLE_S

BEGIN_S = 180.0
"""Time for all ranks to begin, on a busy machine."""
HANG_S = 180.0
"""Time for the line that a hang must produce."""
END_S = 300.0
"""Time for a healthy script to end, beyond its own."""
AFTER_S = 5.0
"""Time after the expected line in which another one would be wrong."""


@dataclass
class Outcome:
    case: Case
    seen: list[Seen] = field(default_factory=list)
    codes: list[int | None] = field(default_factory=list)
    reported_s: float | None = None
    """Seconds from the moment before the line that hangs until the line about it."""
    faults: list[str] = field(default_factory=list)
    output: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scripts", nargs="*", metavar="NAME", help="only these cases; with --project, torchrun's words")
    parser.add_argument(
        "--project", type=Path, metavar="DIR", help="instead: run a script of this folder on three nodes"
    )
    parser.add_argument("--seconds", type=float, default=300.0, help="with --project: end it after so long")
    parser.add_argument("--scale", type=float, default=1.0, help="of all times")
    parser.add_argument("--cores", type=float, default=float(os.cpu_count() or 1), help="use as many (default: all)")
    parser.add_argument("--record", type=Path, metavar="DIR", help="write the signs of each case")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table, too")
    given = parser.parse_args()
    if given.project:
        own = Case(
            script="", variant=given.project.name, about=" ".join(given.scripts), project=given.project, nodes=3,
            command=tuple(given.scripts), code=None, within_s=given.seconds, may=("·", "done in"),
        )  # fmt: skip
        cases = [own]
    elif unknown := set(given.scripts) - {case.name for case in CASES}:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    else:
        cases = [case for case in CASES if case.name in given.scripts or not given.scripts]
    began = time.monotonic()
    outcomes = run_all(cases, scale=given.scale, cores=given.cores, record=given.record)
    text = "\n".join(table(outcomes))
    bad = [outcome for outcome in outcomes if outcome.faults]
    print(f"{text}\n\n{len(outcomes) - len(bad)} of {len(outcomes)} as expected, {time.monotonic() - began:.0f} s")
    for outcome in outcomes if given.project else bad:
        print("\n".join([f"\noutput of {outcome.case.name}:", *(f"    {line}" for line in outcome.output[-15:])]))
    if given.out:
        given.out.write_text(text + "\n")
    return int(bool(bad))


def run_all(cases: Sequence[Case], *, scale: float, cores: float, record: Path | None) -> list[Outcome]:
    """Run as many cases at a time as the cores have time for; one at least."""
    free, changed = [cores], threading.Condition()
    script()  # once, before the threads: CPython 3.11 parses in one thread at a time (python/cpython#106905)

    def one(case: Case) -> Outcome:
        need = min(case.cores, cores)
        with changed:
            changed.wait_for(lambda: free[0] >= need)
            free[0] -= need
        try:
            outcome = run(case, scale=scale, record=record)
        finally:
            with changed:
                free[0] += need
                changed.notify_all()
        print("; ".join([f"{'FAILED' if outcome.faults else 'ok'} {case.name}", *outcome.faults]), flush=True)
        return outcome

    with ThreadPoolExecutor(max_workers=max(1, int(cores / min(case.cores for case in cases)))) as pool:
        return list(pool.map(one, cases))


def run(case: Case, *, scale: float = 1.0, record: Path | None = None) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="alarms-") as folder, nodes_of(case, Path(folder), scale) as nodes:
        outcome = Outcome(case)
        try:
            _watch(case, nodes, outcome, scale)
        finally:
            outcome.output = [line for node in nodes for line in node.output[-8:]]
            if record and nodes[0].signs.exists():
                record.mkdir(parents=True, exist_ok=True)
                save(nodes[0].signs, record / f"{case.name}.jsonl", line_of(case.script))
        allowed = replace(case, may=(*case.may, STARTS)) if scale < 1 else case
        outcome.faults += faults_of(allowed, [seen.text for seen in outcome.seen])
        if case.code is not None and outcome.codes != [case.code] * case.nodes:
            outcome.faults.append(f"exit codes {outcome.codes}")
        return outcome


def _watch(case: Case, nodes: Sequence[Node], outcome: Outcome, scale: float) -> None:
    if not case.project:
        _until(lambda: len(_marks(nodes, "begins")) >= case.nodes * case.ranks_per_node or _over(nodes), BEGIN_S)
    if case.script == CUT:
        _until(lambda: len(_marks(nodes, "trains")) >= case.nodes or _over(nodes), BEGIN_S)
        nodes[0].cut()
    if case.is_hang:
        _until(lambda: _named(case, nodes) or _over(nodes), HANG_S * scale + 10)
        time.sleep(AFTER_S * scale)
    else:
        _until(lambda: _over(nodes), case.within_s or END_S + 2 * IDLE_S * scale)
    hangs = _marks(nodes, "hangs")
    outcome.codes = [node.code() for node in nodes]
    outcome.seen = sorted((seen for node in nodes for seen in node.seen), key=lambda seen: seen.at)
    if hangs and (named := _named(case, nodes)):
        outcome.reported_s = named.at - max(hangs)


def _named(case: Case, nodes: Sequence[Node]) -> Seen | None:
    """The first line that is expected."""
    seen = sorted((seen for node in nodes for seen in node.seen), key=lambda seen: seen.at)
    patterns = expressions(case, case.must, None)
    return next((one for one in seen if any(re.match(pattern, one.text) for pattern in patterns)), None)


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield "| script | | reported after | lines |"
    yield "|---|---|---|---|"
    for outcome in outcomes:
        after = "" if outcome.reported_s is None else f"{outcome.reported_s:.0f} s"
        lines = "<br>".join(dict.fromkeys(f"`{seen.text}`" for seen in outcome.seen)) or "none"
        wrong = " **wrong**" if outcome.faults else ""
        yield f"| `{outcome.case.name}` | {outcome.case.about}{wrong} | {after} | {lines} |"


def _marks(nodes: Sequence[Node], name: str) -> list[float]:
    return [at for node in nodes for at in node.marks(name)]


def _over(nodes: Sequence[Node]) -> bool:
    return all(node.agent.poll() is not None for node in nodes)


def _until(true: Callable[[], object], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not true() and time.monotonic() < deadline:
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
