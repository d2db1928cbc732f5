"""torch.compile in our trainer: what it costs and gains, what `auto` decides, what overlaps, what the forecast knows.

    python -m benchmarks.compile --out DIR               # all tables on a CPU: about 35 minutes on two idle cores
    python -m benchmarks.compile --out DIR --table gains
    python -m benchmarks.compile --out DIR --rehearse    # tiny, to test that everything runs; its figures mean nothing

Each row is kept in DIR/rows.json as soon as it is measured: the same command continues with those that are missing.
Busy processes are started and ended here, so the machine should be idle otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import gpt2, pictures
from benchmarks.ours import PREFIX
from benchmarks.side_by_side import ROOT, host

Row = dict[str, Any]
TRAINER = (sys.executable, "-m", "trainer")
TWO_RANKS = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "trainer")
QUIET = ("--eval-every", "0", "--checkpoint-every", "0", "--log-every", "1", "--prompt", "", "--num-workers", "0")
SKIPPED = 3
"""Steps that allocate memory."""
LENGTHS_S = {"1 minute": 60.0, "20 minutes": 1200.0}
"""Steps of a run that is not compiled, by which its number of steps is chosen."""
WATCHED = 6
"""Step that `auto` looks at, to decide when it ends."""
DECIDED = 8
"""Steps after which a run of `auto` is ended: the next one after its decision may compile."""
COUNTED_S, REHEARSED_S = 1.5, 0.1
"""Seconds of passes that are counted, of each kind."""
CLOSE = 0.05
"""Share of a run's length up to which the slower choice counts as right."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    out: Path
    rehearsed: bool

    @property
    def busy(self) -> tuple[int, ...]:
        return (1,) if self.rehearsed else (0, 2, 8)

    @property
    def lengths(self) -> tuple[str, ...]:
        return tuple(LENGTHS_S)[: 1 if self.rehearsed else 2]

    @property
    def steps(self) -> int:
        return 10 if self.rehearsed else 14

    def gpt2(self) -> list[str]:
        """GPT-2 with six blocks: its data is prepared at the first call."""
        data = self.out / "tokens"
        gpt2.prepare(argparse.Namespace(data_dir=data, text=None, vocab_size=1024 if self.rehearsed else 8192))
        large = ["--layers", "6", "--heads", "4", "--width", "256", "--seq-len", "128", "--batch-size", "8"]
        tiny = ["--layers", "2", "--heads", "2", "--width", "32", "--seq-len", "16", "--batch-size", "2"]
        return ["gpt2", "train", "--data-dir", str(data), *(tiny if self.rehearsed else large)]

    def vision(self, model: str) -> list[str]:
        folder = self.out / "pictures"
        pictures.make(folder, 320, 64)
        words = ["--images", str(folder), "--image-size", "64", "--model", model, "--batch-size", "16"]
        return ["vision", "train", *words]

    def prepared(self, workload: str, *source: str) -> list[str]:
        data = self.out / workload
        if not (data / "manifest.json").exists():
            words = [*TRAINER, workload, "prepare", *source, "--data-dir", str(data)]
            subprocess.run(words, cwd=ROOT, check=True, stdout=sys.stderr)
        return [workload, "train", "--data-dir", str(data), "--batch-size", "16"]

    def workloads(self) -> Mapping[str, Callable[[], list[str]]]:
        if self.rehearsed:
            return {"gpt2": self.gpt2}
        text = ("--csv", "demo", "--rows", "600", "--model-name", "random:mini")
        return {
            "gpt2": self.gpt2,
            "vision, resnet18": lambda: self.vision("resnet18"),
            "vision, vit-mini": lambda: self.vision("vit-mini"),
            "text": lambda: self.prepared("text", *text),
            "traces-lstm": lambda: self.prepared("traces-lstm", "--record-own", "2000", "--seed", "2"),
        }


# ── A run of the trainer ──────────────────────────────────────────────────────────────────────────


@dataclass
class Told:
    """Events of one run, and the time from the start of its process."""

    began: float
    events: list[dict[str, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    @property
    def ends(self) -> list[float]:
        return [float(event["ended_at"]) for event in self.of("step")]

    @property
    def start_s(self) -> float:
        """Until the first step has ended."""
        return self.ends[0] - self.began

    @property
    def step_times(self) -> list[float]:
        """Seconds of each step; 0 for the first one."""
        return [0.0, *(later - before for before, later in pairwise(self.ends))]

    @property
    def step_s(self) -> float:
        return median(self.step_times[SKIPPED + 1 :])


def run(
    bench: Bench, name: str, words: Sequence[str], *flags: str, fresh: bool = True, until: int = 0, ranks: int = 1
) -> Told:
    """Run a training with its own cache of kernels. `fresh`: without what an earlier run of this name has left.
    `until`: end it after this step."""
    folder = bench.out / "runs" / name
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    command = [*(TRAINER if ranks == 1 else TWO_RANKS), *words, "--run-dir", str(folder / "run"), *QUIET, *flags]
    environ = os.environ | {
        "ORCH_EVENTS": "1", "TORCHINDUCTOR_CACHE_DIR": str(folder / "kernels"), "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    told = Told(time.time())
    with (
        (folder / "errors").open("w") as errors,
        subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout  # noqa: S101  # it is a pipe
        for line in process.stdout:
            if line.startswith(PREFIX):
                told.events.append(json.loads(line.removeprefix(PREFIX)))
                if until and told.events[-1]["event"] == "step" and told.events[-1]["step"] >= until:
                    process.terminate()
            else:
                told.lines.append(line.rstrip())
    if (process.returncode and not until) or not told.of("step"):
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}: see {folder / 'errors'}")
    return told


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Processes that compute all the time."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


# ── Tables ────────────────────────────────────────────────────────────────────────────────────────


FLAGS = ("--no-compile", "--compile")
ROUNDS = (*FLAGS, *reversed(FLAGS))
"""In turns, and in both orders: a machine has faster and slower minutes."""


def start_rows(bench: Bench) -> Iterator[tuple[str, Callable[[], Row]]]:
    for count in bench.busy:

        def measure(count: int = count) -> Row:
            words, row = bench.gpt2(), dict[str, Any]()

            def started(flag: str, *, fresh: bool) -> Told:
                given = FLAGS[0] if bench.rehearsed else flag  # compiling takes too long for a rehearsal
                return run(bench, f"start{flag}-{count}", words, given, "--max-steps", str(bench.steps), fresh=fresh)

            with busy(count):
                for flag in FLAGS:
                    row[flag] = {"start_s": started(flag, fresh=True).start_s, "again_s": [], "step_s": []}
                for flag in FLAGS if bench.rehearsed else ROUNDS:
                    shutil.rmtree(bench.out / "runs" / f"start{flag}-{count}" / "run")
                    again = started(flag, fresh=False)  # kernels are kept
                    row[flag]["again_s"].append(again.start_s)
                    row[flag]["step_s"].append(again.step_s)
            return row

        yield f"{count} busy", measure


def start_table(_bench: Bench, rows: Mapping[str, Row]) -> list[str]:
    head = ["| | start to first step | with kernels on the disk | a step, of each round |", "|---|---|---|---|"]
    return head + [
        f"| {name}, {flag} | {row[flag]['start_s']:.1f} s | {median(row[flag]['again_s']):.1f} s"
        f" | {', '.join(f'{step_s * 1000:.0f}' for step_s in row[flag]['step_s'])} ms |"
        for name, row in rows.items()
        for flag in FLAGS
    ]


def auto_rows(bench: Bench) -> Iterator[tuple[str, Callable[[], Row]]]:
    for count in bench.busy:
        for length in bench.lengths:

            def measure(count: int = count, length: str = length) -> Row:
                kept = json.loads((bench.out / "rows.json").read_text())["start"][f"{count} busy"]
                eager_s, compiled_s = (median(kept[flag]["step_s"]) for flag in FLAGS)
                steps = max(DECIDED + 1, round(LENGTHS_S[length] / eager_s))
                with busy(count):
                    told = run(bench, f"auto-{count}", bench.gpt2(), "--max-steps", str(steps), until=DECIDED)
                said = [line for line in told.lines if line.startswith(("compiling in the next", "not compiled"))]
                chosen = bool(said) and said[0].startswith("compiling")
                cost_s = kept["--compile"]["start_s"] - kept["--no-compile"]["start_s"]
                uncompiled_s = steps * eager_s
                # With the measurement of the machine's slowness, which is counted with the next step.
                watched = told.step_times[WATCHED - 1 : WATCHED if chosen else WATCHED + 1]
                watched_s = max(0.0, sum(watched) - len(watched) * eager_s) if said else 0.0
                return {
                    "chosen": chosen, "said": said, "steps": steps, "uncompiled_s": uncompiled_s,
                    "compiled_s": cost_s + steps * compiled_s,
                    "auto_s": watched_s
                    + (cost_s + WATCHED * eager_s + (steps - WATCHED) * compiled_s if chosen else uncompiled_s),
                }  # fmt: skip

            yield f"{count} busy, {length}", measure


def auto_table(_bench: Bench, rows: Mapping[str, Row]) -> list[str]:
    head = ["| | not compiled | compiled from the start | auto | chosen | |", "|---|---|---|---|---|---|"]
    for name, row in rows.items():
        best = min(row["uncompiled_s"], row["compiled_s"])
        over = row["auto_s"] / best - 1
        verdict = "right" if over <= 0 else f"+{over:.1%}" + (", within 5 %" if over <= CLOSE else "")
        head.append(
            f"| {name}, {row['steps']} steps | {row['uncompiled_s']:.0f} s | {row['compiled_s']:.0f} s"
            f" | {row['auto_s']:.0f} s | {'compiled' if row['chosen'] else 'not compiled'} | {verdict} |"
        )
    return [
        *head,
        "",
        "Totals without imports, from the measured start, steps and cost of compiling in the table above, and the time",
        "that `auto` took to look at a step. Its words:",
        "",
        *(f"- {name}: {'; '.join(row['said']) or 'nothing, as no gain could pay'}" for name, row in rows.items()),
    ]


def measured(function: str, *arguments: str | float) -> Row:
    """Call one of `benchmarks.compiled_models` in a process of its own: torch keeps what it has compiled."""
    code = f"from benchmarks import compiled_models; compiled_models.{function}{arguments!r}"
    environ = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environ, capture_output=True, text=True, check=True
    )
    return dict(json.loads(ran.stdout.splitlines()[-1]))


def overlap_rows(bench: Bench) -> Iterator[tuple[str, Callable[[], Row]]]:
    backend = "aot_eager" if bench.rehearsed else "inductor"
    for model in ("gpt2",) if bench.rehearsed else ("gpt2", "resnet18", "lstm"):
        for how in ("eager", backend):

            def measure(model: str = model, how: str = how) -> Row:
                return measured("fills", model, how)

            yield f"{model}, {'eager' if how == 'eager' else 'compiled'}", measure


def overlap_table(_bench: Bench, rows: Mapping[str, Row]) -> list[str]:
    head = [
        "| | bucket is full, share of the backward pass | full before 95 % of it | `overlap` of the forecast |",
        "|---|---|---|---|",
    ]
    return head + [
        f"| {name} | {', '.join(f'{share:.0%}' for share in row['full'])} | {row['early']:.0%} | {row['overlap']:.0%} |"
        for name, row in rows.items()
    ]


SHAPES = (
    "gpt2, 4 blocks of width 32", "gpt2, 6 blocks of width 64", "gpt2, 6 blocks of width 256", "resnet18, 64 pixels",
    "vit-mini", "text encoder, 4 layers of width 256", "gnn", "lstm", "gpt2, 4 blocks of width 768",
)  # fmt: skip


def estimate_rows(bench: Bench) -> Iterator[tuple[str, Callable[[], Row]]]:
    backend = "aot_eager" if bench.rehearsed else "inductor"
    for name in SHAPES[:1] if bench.rehearsed else SHAPES:
        for precision in ("float32", "bfloat16")[1 if bench.rehearsed else 0 :]:

            def measure(name: str = name, precision: str = precision) -> Row:
                return measured("gain", name, precision, backend, REHEARSED_S if bench.rehearsed else COUNTED_S)

            yield f"{name}, {precision}", measure


def estimate_table(_bench: Bench, rows: Mapping[str, Row]) -> list[str]:
    head = ["| | could be fused, of a pass | saved, measured | cost of compiling |", "|---|---|---|---|"]
    return head + [
        f"| {name} | {row['fusable_s'] / row['whole_s']:.0%} | {1 - row['compiled_s'] / row['eager_s']:+.0%}"
        f" | {row['cost_s']:.0f} s |"
        for name, row in rows.items()
    ]


def forecast_rows(bench: Bench) -> Iterator[tuple[str, Callable[[], Row]]]:
    for flag in ("--no-compile", "--compile")[: 1 if bench.rehearsed else 2]:
        for sync in ("int8",) if bench.rehearsed else ("fp32", "int8"):

            def measure(flag: str = flag, sync: str = sync) -> Row:
                flags = (flag, "--sync", sync, "--shares", "auto", "--max-steps", str(bench.steps + 8))
                told = run(bench, f"forecast{flag}", bench.gpt2(), *flags, ranks=2)
                rows = told.of("forecast")[0]["rows"]
                found = next(row for row in rows if row["sync"] == sync and len(row["nodes"]) == 2)
                return {"forecast_s": found["step_s"], "step_s": told.step_s}

            yield f"{flag}, {sync}", measure


def forecast_table(_bench: Bench, rows: Mapping[str, Row]) -> list[str]:
    head = ["| two gloo ranks | forecast | measured | error |", "|---|---|---|---|"]
    return head + [
        f"| {name} | {row['forecast_s'] * 1000:.0f} ms | {row['step_s'] * 1000:.0f} ms"
        f" | {row['forecast_s'] / row['step_s'] - 1:+.0%} |"
        for name, row in rows.items()
    ]


def gains_rows(bench: Bench) -> Iterator[tuple[str, Callable[[], Row]]]:
    for name, prepare in bench.workloads().items():

        def measure(name: str = name, prepare: Callable[[], list[str]] = prepare) -> Row:
            words, folder, gains = prepare(), f"gains-{name.partition(',')[0]}", []
            first = run(bench, folder, words, "--compile", "--max-steps", str(bench.steps))
            for _ in range(1 if bench.rehearsed else 3):
                eager = run(bench, f"{folder}-eager", words, "--no-compile", "--max-steps", str(bench.steps * 2))
                shutil.rmtree(bench.out / "runs" / folder / "run")
                compiled = run(
                    bench, folder, words, "--compile", "--max-steps", str(bench.steps * 2), fresh=False
                )  # kernels are kept
                gains.append(eager.step_s / compiled.step_s - 1)
            return {"gains": sorted(gains), "cost_s": first.start_s - eager.start_s, "step_s": eager.step_s}

        yield name, measure


def gains_table(_bench: Bench, rows: Mapping[str, Row]) -> list[str]:
    head = ["| | gain, median (minimum to maximum) | cost of compiling | a step |", "|---|---|---|---|"]
    return head + [
        f"| {name} | {median(row['gains']):+.0%} ({row['gains'][0]:+.0%} to {row['gains'][-1]:+.0%})"
        f" | {row['cost_s']:.0f} s | {row['step_s'] * 1000:.0f} ms |"
        for name, row in rows.items()
    ]


TABLES: Mapping[str, tuple[str, Callable[..., Any], Callable[..., list[str]]]] = {
    "start": ("Start to first step: GPT-2 with six blocks", start_rows, start_table),
    "auto": ("Decision of `--compile auto`", auto_rows, auto_table),
    "overlap": ("When the buckets of the exchange are full", overlap_rows, overlap_table),
    "estimate": ("Share of a pass that compiling saves, by CPU time of one thread", estimate_rows, estimate_table),
    "forecast": ("Forecast before the start, and steps", forecast_rows, forecast_table),
    "gains": ("Gain by workload", gains_rows, gains_table),
}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("compile-benchmarks"), metavar="DIR")
    parser.add_argument("--table", nargs="+", choices=TABLES, help="default: all; `auto` needs the rows of `start`")
    parser.add_argument("--rehearse", action="store_true", help="tiny, to test that everything runs")
    given = parser.parse_args(argv)
    bench = Bench(out=given.out.resolve(), rehearsed=given.rehearse)
    bench.out.mkdir(parents=True, exist_ok=True)
    file = bench.out / "rows.json"
    kept: dict[str, dict[str, Row]] = json.loads(file.read_text()) if file.exists() else {}
    for name in given.table or TABLES:
        for row, measure in TABLES[name][1](bench):
            if row not in kept.setdefault(name, {}):
                began = time.monotonic()
                kept[name][row] = measure()
                file.write_text(json.dumps(kept, indent=1))
                print(f"{name}: {row}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    machine = ", ".join(f"{key} {value}" for key, value in host().items())
    print("# torch.compile\n" + ("\nRehearsal: no figure here means anything.\n" if given.rehearse else ""))
    print(f"Machine: {machine}, {len(os.sched_getaffinity(0))} cores. Load now {os.getloadavg()[0]:.1f}.")
    for name in given.table or TABLES:
        title, _, table = TABLES[name]
        print("", f"## {title}", "", *table(bench, kept[name]), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
