"""Pause of a training at a checkpoint: written asynchronously from a copy, or synchronously.

    python -m benchmarks.checkpoint                    # GPT-2 124M and the largest model of the lab
    python -m benchmarks.checkpoint --preset lab       # this model only
    python -m benchmarks.checkpoint --quick            # test that everything runs: a tiny model, one round

Both are the trainer's own, started as a user starts it, interleaved; times are those of its `checkpoint` events.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.gpt2 import standard_library
from benchmarks.side_by_side import ROOT

WAYS = {"synchronously": "--no-checkpoint-async", "asynchronously, from a copy": "--checkpoint-async"}
SAVES = 4
"""Saves per run. The last one is not counted: it is written without a copy, because no training follows."""
EVERY = {"tiny": 20, "lab": 60, "124m": 12}
"""Steps between two checkpoints, which should take longer than writing one."""
VOCABULARY = {"tiny": 1024, "lab": 4096, "124m": 50257}


@dataclass(frozen=True, kw_only=True)
class Saved:
    """One checkpoint of one run."""

    preset: str
    way: str
    number: int
    """Index in its run; the first one allocates the copy."""
    stopped_s: float
    seconds: float
    """Seconds until it is on the disk and verified."""
    mib: float


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint", description=__doc__.splitlines()[0])
    parser.add_argument("--preset", nargs="+", choices=EVERY, help="default 124m and lab")
    parser.add_argument("--repeats", type=int, metavar="N", help="runs of each way (default 3)")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where checkpoints are written (default: temporary)")
    parser.add_argument("--quick", action="store_true", help="a tiny model, once")
    parser.add_argument("--json", action="store_true", help="every checkpoint instead of the table")
    given = parser.parse_args(argv)
    presets = given.preset or (["tiny"] if given.quick else ["124m", "lab"])
    found: list[Saved] = []
    with tempfile.TemporaryDirectory(prefix="orch-benchmark-checkpoint-", dir=given.folder) as folder:
        for preset in presets:
            data = prepared(Path(folder), VOCABULARY[preset])
            for turn in range(given.repeats or (1 if given.quick else 3)):
                for way in WAYS:
                    found += saved(preset, way, data, Path(folder) / f"{preset}-{turn}")
                    print(f"{preset}, round {turn + 1}, {way}: stopped {found[-1].stopped_s:.3f} s", file=sys.stderr)
    print(json.dumps([asdict(one) for one in found]) if given.json else table(found))
    return 0


def prepared(folder: Path, vocabulary: int) -> Path:
    """The standard library's source files as tokens: their content does not matter here."""
    data = folder / f"data-{vocabulary}"
    text = folder / "text"
    text.mkdir(exist_ok=True)
    (text / "sources.txt").write_text(standard_library(), "utf-8")
    words = ("gpt2", "prepare", "--text", str(text), "--data-dir", str(data), "--vocab-size", str(vocabulary))
    subprocess.run((sys.executable, "-m", "trainer", *words), cwd=ROOT, check=True, stdout=sys.stderr)
    return data


def saved(preset: str, way: str, data: Path, run_dir: Path) -> list[Saved]:
    """Train for some steps with checkpoints; the run's folder is removed."""
    every = EVERY[preset]
    words = ["gpt2", "--preset", preset, "--data-dir", str(data), "--batch-size", "1", "--seq-len", "128"]
    words += ["--max-steps", str(every * (SAVES - 1) + 1), "--checkpoint-every", str(every), "--eval-every", "0"]
    words += ["--keep-checkpoints", "1", "--no-compile", "--num-workers", "0", WAYS[way]]
    with tempfile.TemporaryDirectory(prefix=run_dir.name, dir=run_dir.parent) as folder:
        ran = subprocess.run(
            (sys.executable, "-m", "trainer", *words, "--run-dir", folder),
            cwd=ROOT, env={**os.environ, "ORCH_EVENTS": "1"}, check=True, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        (state,) = Path(folder).glob("checkpoints/*/state.pt")
        mib = state.stat().st_size / 2**20
    lines = (line.removeprefix("@orch ") for line in ran.stdout.splitlines() if line.startswith("@orch "))
    events = [event for event in map(json.loads, lines) if event["event"] == "checkpoint"]
    return [
        Saved(
            preset=preset, way=way, number=number, stopped_s=event["stopped_s"], seconds=event["seconds"], mib=mib
        )
        for number, event in enumerate(events[:-1], 1)
    ]  # fmt: skip


def table(found: Sequence[Saved]) -> str:
    rows = [
        "| model | size | written | pause | pause of the first one | time until verified |",
        "|---|---|---|---|---|---|",
    ]
    for preset in dict.fromkeys(one.preset for one in found):
        for way in WAYS:
            here = [one for one in found if (one.preset, one.way) == (preset, way)]
            later = [one.stopped_s for one in here if one.number > 1]
            cells = (later, [one.stopped_s for one in here if one.number == 1], [one.seconds for one in here])
            written = " | ".join(map(spread, cells))
            rows.append(f"| gpt2, {preset} | {here[0].mib:,.1f} MiB | {way} | {written} |")
    return "\n".join(rows)


def spread(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.3f} s ({min(seconds):.3f}–{max(seconds):.3f})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
