"""Speed of the trainer on a GPU, in one command: correctness, techniques, peers, memory, Muon, exchange.

    python -m benchmarks.gpu --out DIR               # at most 25 minutes on one card
    python -m benchmarks.gpu --out DIR --only peers-16 memory
    python -m benchmarks.gpu --out DIR --rehearse    # on a CPU, tiny: that everything runs; its figures mean nothing

Each part is a process of its own with a time limit, and leaves PART.json and PART.md in DIR. A part that has left them
is not run again; one that was cut off is, by the same command. At the end, DIR/README.md has each goal and its figure.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks import gpt2
from benchmarks.side_by_side import ROOT, host

LIMIT_S = 480
KILLED_S = 10
"""Longest wait for a killed process to leave the process table, and a card's memory with it."""
REPORT_S = 60
"""Seconds at the end of it in which a comparison begins no round, so that it reports those that it has."""
MINUTES = 25.0
REHEARSAL = "Rehearsal with tiny shapes on a CPU: no figure here means anything.\n\n"
Figures = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A benchmark with its options, which writes JSON to `--out` and Markdown to stdout."""

    name: str
    title: str
    argv: tuple[str, ...]
    """Module and options. `{out}`: file of the JSON; `{data}`: prepared tokens; `{within}`: seconds for rounds."""
    rehearsal: tuple[str, ...]
    """The same, tiny."""


def _compared(module: str, *options: str) -> tuple[str, ...]:
    return (f"benchmarks.{module}", "--repeats", "3", "--device", "cuda", "--out", "{out}",
            "--within-s", "{within}", *options)  # fmt: skip


def _tiny(module: str, *names: str) -> tuple[str, ...]:
    return (f"benchmarks.{module}", "--quick", "--device", "cpu", "--out", "{out}", "--only", *names)


TOKENS = ("--data-dir", "{data}")
BEST_AT_16 = ("ours-compiled", "hf-trainer-tuned", "lightning-tuned", "plain-tuned")
PARTS = (
    Part(
        name="correctness",
        title="The tests that need a GPU",
        argv=("benchmarks.gpu", "--tests", "{out}"),
        rehearsal=("benchmarks.gpu", "--tests", "{out}"),
    ),
    Part(
        name="peers-16",
        title="GPT-2 124M, batches of 16 × 1024, beside the peers at their tuned best, all in bfloat16 and compiled",
        argv=_compared("gpt2", *TOKENS, "--table", "tuned", "--batch-size", "16"),
        rehearsal=_tiny("gpt2", "ours-amp", *TOKENS, "--table", "ladder"),
    ),
    Part(
        name="shipped",
        title="GPT-2 124M beside the peers as they are shipped",
        argv=_compared("gpt2", *TOKENS, "--table", "peers", "--only", "hf-trainer", "lightning", "ours"),
        rehearsal=_tiny("gpt2", "ours-fp32", *TOKENS, "--table", "peers"),
    ),
    Part(
        name="memory",
        title="GPT-2 124M: memory and speed of what is computed again",
        argv=_compared("gpt2", *TOKENS, "--table", "frugal"),
        rehearsal=_tiny("gpt2", "ours-checkpointing", *TOKENS, "--table", "memory"),
    ),
    Part(
        name="vision",
        title="ResNet-50",
        argv=_compared("vision", "--table", "peers"),
        rehearsal=_tiny("vision", "ours-plain", "--table", "peers"),
    ),
    Part(
        name="text",
        title="BERT with three heads",
        argv=_compared("text", "--table", "peers"),
        rehearsal=_tiny("text", "ours-fp32", "--table", "peers"),
    ),
    Part(
        name="exchange",
        title="Exchange of gradients: work on the card, one rank by NCCL, two by gloo",
        argv=("benchmarks.exchange", "--device", "cuda", "--data-dir", "{data}", "--out", "{out}"),
        rehearsal=("benchmarks.exchange", "--quick", "--device", "cpu", "--data-dir", "{data}", "--out", "{out}"),
    ),
    Part(
        name="ladder",
        title="GPT-2 124M: one technique after another",
        argv=_compared("gpt2", *TOKENS, "--table", "ladder"),
        rehearsal=_tiny("gpt2", "ours-fp32", *TOKENS, "--table", "ladder"),
    ),
    Part(
        name="peers-64",
        title="GPT-2 124M, batches of 64 × 1024, beside the peers at their tuned best",
        argv=_compared("gpt2", *TOKENS, "--table", "tuned", "--batch-size", "64"),
        rehearsal=_tiny("gpt2", "ours-amp", *TOKENS, "--table", "ladder", "--batch-size", "4"),
    ),
    Part(
        name="text-techniques",
        title="BERT with three heads: texts without padding, CUDA graphs",
        argv=_compared("text", "--table", "packed", "graphs"),
        rehearsal=_tiny("text", "ours-packed-fp32", "--table", "packed"),
    ),
    Part(
        name="muon",
        title="Tokens that Muon needs for AdamW's loss",
        argv=(
            "benchmarks.muon", *TOKENS, "--json", "{out}", "--steps", "600", "--rates", "6e-4", "1.2e-3", "2.4e-3",
            "--shares", "0.5", "0.6", "0.7", "--seeds", "1", "--", "--preset", "30m",
        ),
        rehearsal=(
            "benchmarks.muon", *TOKENS, "--json", "{out}", "--quick", "--", "--preset", "tiny", "--seq-len", "32",
            "--batch-size", "4", "--no-compile",
        ),
    ),
)  # fmt: skip
"""The most important first: a card may be lent for less than all of them take."""


# ── Goals ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class Goal:
    text: str
    part: str
    figure: Callable[[Figures], float | None]
    """From the JSON of the part. None: it has no such figure."""
    at_least: float = 0.0
    at_most: float = float("inf")


def figure_of(result: Figures, name: str, figure: str) -> list[float]:
    """A figure of a candidate in each round."""
    measured = [one["measured"] for one in result["rounds"].get(name, ()) if one["measured"]]
    found = [one.get(figure, one["more"].get(figure)) for one in measured]
    return [float(value) for value in found if value is not None]


def times(mine: str, *others: str, figure: str = "units_per_s") -> Callable[[Figures], float | None]:
    """Median over the rounds of a candidate's figure divided by the largest of the others'."""

    def read(result: Figures) -> float | None:
        rounds = [figure_of(result, name, figure) for name in others]
        best = [max(values) for values in zip(*(each for each in rounds if each), strict=False)]
        pairs = list(zip(figure_of(result, mine, figure), best, strict=False))
        return median(own / other for own, other in pairs) if pairs else None

    return read


def _mfu(result: Figures) -> float | None:
    found = figure_of(result, "ours-compiled", "MFU")
    return median(found) if found else None


def _muon(result: Figures) -> float | None:
    needed = list(result["muon_tokens_to_adamws_loss"].values())
    return None if not needed else float("inf") if None in needed else max(needed)


GOALS = (
    Goal(text="tests that fail", part="correctness", figure=lambda found: float(found["failed"]), at_most=0.0),
    Goal(text="tests that ran", part="correctness", figure=lambda found: float(found["passed"]), at_least=1.0),
    Goal(text="MFU of GPT-2 124M at 16 × 1024", part="peers-16", figure=_mfu, at_least=0.45),
    Goal(text="MFU of GPT-2 124M at 64 × 1024", part="peers-64", figure=_mfu, at_least=0.45),
    Goal(text="speed, to HF Trainer as shipped", part="shipped", figure=times("ours", "hf-trainer"), at_least=1.5),
    Goal(text="speed, to Lightning as shipped", part="shipped", figure=times("ours", "lightning"), at_least=1.5),
    Goal(text="speed, to the fastest tuned peer", part="peers-16", figure=times(*BEST_AT_16), at_least=1.15),
    Goal(
        text="memory, to the same without saving any",
        part="memory",
        figure=times("ours-frugal", "ours-compiled", figure="peak_mib"),
        at_most=0.4,
    ),
    Goal(text="speed of that", part="memory", figure=times("ours-frugal", "ours-compiled"), at_least=0.9),
    Goal(text="images, to the simple script", part="vision", figure=times("ours", "naive"), at_least=5.0),
    Goal(text="images, to timm", part="vision", figure=times("ours-compiled", "timm"), at_least=1.15),
    Goal(text="texts, to HF Trainer", part="text", figure=times("ours", "hf-trainer"), at_least=2.0),
    Goal(text="Muon's tokens for AdamW's loss", part="muon", figure=_muon, at_most=0.7),
)


def verdict(goal: Goal, out: Path, *, rehearsed: bool) -> tuple[str, str]:
    """The figure, and whether the goal is met."""
    file = out / f"{goal.part}.json"
    if not file.exists():
        return "", "not measured: this part has not run"
    if rehearsed:
        return "", "not measured: a rehearsal"
    figure = goal.figure(json.loads(file.read_text("utf-8")))
    if figure is None:
        return "", "not measured: a candidate did not run"
    return f"{figure:.3g}", "met" if goal.at_least <= figure <= goal.at_most else "missed"


def summary(out: Path, *, rehearsed: bool) -> str:
    rows = ["| goal | wanted | found | |", "|---|---|---|---|"]
    for goal in GOALS:
        wanted = f"at least {goal.at_least:g}" if goal.at_least else f"at most {goal.at_most:g}"
        found, met = verdict(goal, out, rehearsed=rehearsed)
        rows.append(f"| {goal.text} (`{goal.part}`) | {wanted} | {found} | {met} |")
    machine = ", ".join(f"{name}: {value}" for name, value in machine_facts().items())
    parts = [f"- [{part.name}]({part.name}.md): {part.title}" for part in PARTS if (out / f"{part.name}.md").exists()]
    head = f"# The trainer on a GPU\n\n{REHEARSAL if rehearsed else ''}{machine}\n"
    return "\n".join([head, *rows, "", *parts, ""])


def machine_facts() -> dict[str, float | str]:
    """Processor, and of the first GPU its name, driver, memory, clocks and power limit."""
    facts = dict(host())
    try:
        import pynvml

        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        facts["GPU"] = str(pynvml.nvmlDeviceGetName(card))
        facts["driver"] = str(pynvml.nvmlSystemGetDriverVersion())
        facts["GPU memory"] = f"{pynvml.nvmlDeviceGetMemoryInfo(card).total / 2**30:.0f} GiB"
        facts["SM clock"] = f"{pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_SM)} MHz"
        facts["power limit"] = f"{pynvml.nvmlDeviceGetPowerManagementLimit(card) / 1000:.0f} W"
    except Exception as error:  # without a driver, or a card that does not tell: the figures count all the same
        facts.setdefault("GPU", f"none ({error})")
    return facts


# ── Parts ─────────────────────────────────────────────────────────────────────────────────────────


def main(argv: Sequence[str]) -> int:
    given = _parse(argv)
    if given.tests:
        return run_tests(given.tests)
    given.out.mkdir(parents=True, exist_ok=True)
    data = given.out / "data"
    gpt2.prepare(argparse.Namespace(data_dir=data, text=None, vocab_size=1024 if given.rehearse else 50257))
    began, wanted = time.monotonic(), [part for part in PARTS if not given.only or part.name in given.only]
    failed = []
    for number, part in enumerate(wanted, start=1):
        left_s = given.minutes * 60 - (time.monotonic() - began)
        if (given.out / f"{part.name}.json").exists():
            _say(f"{number} of {len(wanted)}: {part.name}: done already")
        elif left_s < 60:
            _say(f"{number} of {len(wanted)}: {part.name}: no time left; the same command continues here")
            failed.append(part.name)
        else:
            _say(f"{number} of {len(wanted)}: {part.name}: at most {min(LIMIT_S, left_s) / 60:.0f} minutes")
            problem = run_part(part, given.out, data, rehearsed=given.rehearse, limit_s=min(LIMIT_S, left_s))
            failed += [part.name] if problem else []
            _say(f"  {problem or 'done'}, {(time.monotonic() - began) / 60:.1f} minutes so far")
    text = summary(given.out, rehearsed=given.rehearse)
    (given.out / "README.md").write_text(text, "utf-8")
    print(text)
    return 1 if failed else 0


def run_part(part: Part, out: Path, data: Path, *, rehearsed: bool, limit_s: float) -> str:
    """Run a part and keep its files; return why there are none. What is cut off leaves no file."""
    with tempfile.TemporaryDirectory(dir=out, prefix=f".{part.name}-") as folder:
        result = Path(folder, "result.json")
        within = f"{max(1.0, limit_s - REPORT_S):.0f}"
        given = part.rehearsal if rehearsed else part.argv
        words = [word.format(out=result, data=data, within=within) for word in given]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
        with (
            Path(out, f"{part.name}.log").open("w", encoding="utf-8") as log,
            subprocess.Popen(
                [sys.executable, "-m", *words],
                cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
            ) as process,
        ):  # fmt: skip
            try:
                said, _ = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                return f"not done after {limit_s:.0f} s; see {part.name}.log"
            finally:
                end(process.pid)
        if process.returncode or not result.exists():
            return f"failed with exit code {process.returncode}; see {part.name}.log"
        note = REHEARSAL if rehearsed else ""
        Path(out, f"{part.name}.md").write_text(f"# {part.title}\n\n{note}{said}", "utf-8")
        result.replace(out / f"{part.name}.json")
    return ""


def end(process: int) -> None:
    """Kill a process with all that it has started: torchrun's ranks, too, which are in sessions of their own and would
    keep the card's memory and time."""
    started: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        started = psutil.Process(process).children(recursive=True)
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    for one in started:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(started, timeout=KILLED_S)


def run_tests(out: Path) -> int:
    """Run tests/gpu; on a machine without a GPU all of them are skipped."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        argv = [sys.executable, "-m", "pytest", "-q", "tests/gpu", f"--junitxml={report}", "-p", "no:cacheprovider"]
        ran = subprocess.run(argv, cwd=ROOT, stdout=sys.stderr, check=False)
        suites = ET.parse(report).getroot() if report.exists() else ET.Element("none")  # noqa: S314  # pytest's own
    cases = list(suites.iter("testcase"))
    if not cases:
        return ran.returncode or 1
    failed = [f"{case.get('classname')}::{case.get('name')}" for case in cases if _has(case, "failure", "error")]
    skipped = sum(_has(case, "skipped") for case in cases)
    passed = len(cases) - len(failed) - skipped
    out.write_text(json.dumps({"passed": passed, "failed": len(failed), "skipped": skipped, "failures": failed}))
    print(f"{passed} passed, {len(failed)} failed, {skipped} skipped", *(f"- {name}" for name in failed), sep="\n")
    return 0


def _has(case: ET.Element, *tags: str) -> bool:
    return any(case.find(tag) is not None for tag in tags)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu-benchmarks"), metavar="DIR")
    parser.add_argument("--only", nargs="+", choices=names, metavar="PART", help=f"of {', '.join(names)}")
    parser.add_argument("--minutes", type=float, default=MINUTES, metavar="N", help=f"default {MINUTES:g}")
    parser.add_argument("--rehearse", action="store_true", help="tiny, on a CPU, to test that everything runs")
    parser.add_argument("--tests", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    given.out = given.out.resolve()
    return given


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
