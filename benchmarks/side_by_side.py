"""Harness of the training benchmarks: compare candidates in one run.

Each candidate is measured in its own process, so that its settings cannot affect another, and they are interleaved,
A B C A B C, so that a temporary slowdown of the machine affects all of them. Ratios are computed per round.

A benchmark is a module with its candidates and

    if __name__ == "__main__":
        sys.exit(compare(COMPARISON, sys.argv[1:]))

A candidate is a function from the parsed options to a `Measured`; a `Stopwatch` makes one. Its module imports torch
and the peers' packages inside such functions only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

from benchmarks.report import Result, Round, Table, as_json, markdown
from benchmarks.stopwatch import Measured

ROOT = Path(__file__).parents[1]
LAST_LINES = 6
"""Lines of stderr that are kept of a candidate that failed."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    name: str
    measure: Callable[[argparse.Namespace], Measured]
    needs: tuple[str, ...] = ()
    """Packages that it needs."""
    only_on: str = ""
    """`cuda` or `cpu`; empty: both."""
    note: str = ""
    """Remark for the reader of the table."""
    environ: Mapping[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    title: str
    module: str
    """Name for `python -m`, which starts a candidate's process."""
    candidates: tuple[Candidate, ...]
    tables: tuple[Table, ...]
    arguments: Callable[[argparse.ArgumentParser], None] | None = None
    """Adds the benchmark's own options."""
    settle: Callable[[argparse.Namespace], None] | None = None
    """Derives options from others (`--quick`, `--device`); called in each process."""
    prepare: Callable[[argparse.Namespace], None] | None = None
    """Prepares data for all candidates, once before the first round, in the harness's process."""


def compare(comparison: Comparison, argv: Sequence[str]) -> int:
    given = _parse(comparison, argv)
    if given.measure:
        return _measure(comparison, given)
    if comparison.prepare:
        comparison.prepare(given)
    shown = [table for table in comparison.tables if not given.table or table.name in given.table]
    in_tables = [name for table in shown for name in table.names]
    wanted = [name for name in in_tables if not given.only or name in given.only]
    chosen = [candidate for candidate in comparison.candidates if candidate.name in wanted]

    def run(candidate: Candidate) -> Round:
        return _in_own_process(comparison, candidate, argv, given)

    for difference in unlike_constraints():
        _say(f"! {difference}: what is measured is not what the project ships; see benchmarks/README.md")
    load_before = os.getloadavg()
    began = time.time()
    rounds = interleave(
        chosen, given.repeats, given.device, run, _say, left_s=lambda: began + given.within_s - time.time()
    )
    result = Result(
        title=comparison.title,
        command=f"python -m {comparison.module} {' '.join(argv)}".strip(),
        settings={name: value for name, value in vars(given).items() if name not in _HARNESS_ONLY},
        machine={**host(), **seen_by_contestants(rounds)},
        began=began,
        seconds=time.time() - began,
        load=(load_before, os.getloadavg()),
        tables=tuple(replace(table, names=tuple(n for n in table.names if n in wanted)) for table in shown),
        rounds=rounds,
        notes={candidate.name: candidate.note for candidate in chosen if candidate.note},
    )
    text = json.dumps(as_json(result), indent=1)
    if given.out:
        given.out.write_text(text + "\n", "utf-8")
    print(text if given.json else markdown(result))
    return 0 if any(round_.measured for each in rounds.values() for round_ in each) else 1


def interleave(
    candidates: Sequence[Candidate],
    repeats: int,
    device: str,
    run: Callable[[Candidate], Round],
    say: Callable[[str], None],
    *,
    left_s: Callable[[], float] = lambda: math.inf,
) -> dict[str, list[Round]]:
    """Interleave the candidates. One that cannot run, or has failed once, is not started again, but stays in the
    report. Nothing is started once no time is left, nor a round that would take longer than that, as the last did."""
    rounds: dict[str, list[Round]] = {candidate.name: [] for candidate in candidates}
    last_s = 0.0
    for number in range(1, repeats + 1):
        before_s = left_s()
        if number > 1 and last_s > before_s:
            say(f"no time left for round {number} of {repeats}")
            break
        for candidate in candidates:
            mine = rounds[candidate.name]
            if mine and mine[-1].problem:
                continue
            problem = cannot_take_part(candidate, device) or ("no time left" if left_s() < 0 else "")
            mine.append(Round(problem=problem) if problem else run(candidate))
            say(f"round {number} of {repeats}: {candidate.name}: {mine[-1].in_short()}")
        last_s = before_s - left_s()  # without a limit no number, which is never more
    return rounds


def cannot_take_part(candidate: Candidate, device: str) -> str:
    missing = [package for package in candidate.needs if find_spec(package) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if candidate.only_on and candidate.only_on != device:
        return f"needs {candidate.only_on}"
    return ""


# ── A candidate in its own process ────────────────────────────────────────────────────────────────


def _in_own_process(
    comparison: Comparison, candidate: Candidate, argv: Sequence[str], given: argparse.Namespace
) -> Round:
    command = [sys.executable, "-m", comparison.module, *argv, "--measure", candidate.name]
    environ = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "OMP_NUM_THREADS": str(given.threads),
        "MKL_NUM_THREADS": str(given.threads),
        # As our trainer sets it: spinning threads would slow the others down on a busy machine, in our favor.
        "OMP_WAIT_POLICY": "PASSIVE",
        **({"CUDA_VISIBLE_DEVICES": ""} if given.device == "cpu" else {}),
        **(candidate.environ or {}),
    }
    try:
        ran = subprocess.run(
            command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=given.timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return Round(problem=f"not done after {given.timeout_s} s")
    return round_of(ran.returncode, ran.stdout, ran.stderr)


def round_of(code: int, out: str, err: str) -> Round:
    """Parse a candidate's measurement from its last line; without one it failed, and its last lines say why."""
    lines = out.strip().splitlines()
    if code == 0 and lines:
        return Round(measured=Measured(**json.loads(lines[-1])))
    words = [line.strip() for line in err.strip().splitlines() if line.strip()]
    return Round(problem=f"failed ({code}): {words[-1] if words else 'no word'}", last_lines=tuple(words[-LAST_LINES:]))


def _measure(comparison: Comparison, given: argparse.Namespace) -> int:
    (candidate,) = (one for one in comparison.candidates if one.name == given.measure)
    with contextlib.redirect_stdout(sys.stderr):  # output of packages must not be parsed as the measurement
        measured = candidate.measure(given)
    print(json.dumps(asdict(measured)))
    return 0


# ── Options and machine ───────────────────────────────────────────────────────────────────────────

_HARNESS_ONLY = {"measure", "out", "json", "only", "table", "within_s"}


def _parse(comparison: Comparison, argv: Sequence[str]) -> argparse.Namespace:
    names = [candidate.name for candidate in comparison.candidates]
    parser = argparse.ArgumentParser(prog=f"python -m {comparison.module}", description=comparison.title)
    parser.add_argument("--repeats", type=int, metavar="N", help="rounds (default 5; with --quick 1)")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--table", nargs="+", choices=[table.name for table in comparison.tables], help="default: all")
    parser.add_argument("--quick", action="store_true", help="small and short, to test that everything runs")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if available")
    parser.add_argument("--threads", type=int, metavar="N", help="per candidate (default: all usable cores)")
    parser.add_argument("--timeout-s", type=int, default=1800, metavar="S", help="of one run of a candidate")
    parser.add_argument(
        "--within-s",
        type=float,
        default=math.inf,
        metavar="S",
        help="begin no round that would end later (default: all)",
    )
    parser.add_argument(
        "--windows", type=int, default=1, metavar="N", help="of --steps each, timed back to back (default: 1)"
    )
    parser.add_argument("--settle-steps", type=int, default=0, metavar="N", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print the JSON instead of the Markdown")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write JSON to this file")
    parser.add_argument("--measure", choices=names, metavar="NAME", help=argparse.SUPPRESS)
    if comparison.arguments:
        comparison.arguments(parser)
    given = parser.parse_args(argv)
    given.repeats = given.repeats or (1 if given.quick else 5)
    given.device = given.device or ("cuda" if Path("/dev/nvidiactl").exists() else "cpu")
    given.threads = given.threads or len(os.sched_getaffinity(0))
    if comparison.settle:
        comparison.settle(given)
    return given


def unlike_constraints(file: Path = ROOT / "constraints.txt") -> Iterator[str]:
    """Yield how torch, torchvision and transformers differ here from the versions of the project."""
    lines = (line.partition("#")[0].strip() for line in file.read_text("utf-8").splitlines())
    for wanted in (Requirement(line) for line in lines if line):
        counts = wanted.name in ("torch", "torchvision", "transformers")
        if counts and (wanted.marker is None or wanted.marker.evaluate()):
            with contextlib.suppress(PackageNotFoundError):
                if not wanted.specifier.contains(found := version(wanted.name)):
                    yield f"{wanted.name} {found} is installed, the project's constraints have {wanted.specifier}"


def host() -> dict[str, float | str]:
    cpuinfo = Path("/proc/cpuinfo")
    fields = [line.split(":", 1) for line in cpuinfo.read_text().splitlines()] if cpuinfo.exists() else []
    first = {pair[0].strip(): pair[1].strip() for pair in reversed(fields) if len(pair) == 2}
    flags = set(first.get("flags", "").split())
    return {
        "cpu": first.get("model name", platform.processor() or platform.machine()),
        "native bf16": ", ".join(sorted(flags & {"avx512_bf16", "amx_bf16"})) or "no",
    }


def seen_by_contestants(rounds: Mapping[str, Sequence[Round]]) -> dict[str, float | str]:
    machine: dict[str, float | str] = {}
    for each in rounds.values():
        for round_ in each:
            if round_.measured:
                machine |= round_.measured.machine
    return machine


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
