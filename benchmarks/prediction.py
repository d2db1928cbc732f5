"""Compare step times predicted by `orch plan` with those of real runs: models, link speeds, sync methods.

Needs a running lab with image and data, whose machines together have at most this computer's cores:

    orch lab up --nodes 5 --cpus 0.36 && orch build && orch prepare --vocab-size 2048
    python -m benchmarks.prediction [--links 100mbit 1gbit off] [--models lab tiny] [--sync fp32 int8] [--steps 40]

For each link and model: `orch bench`, `orch plan`, then a run with each sync method on all nodes, whose step times are
read from its events, from the third step on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.cli.context import load_inventory

ORCH = (sys.executable, "-m", "orchestrator")
MODEL = ("gpt2", "--batch-size", "8", "--precision", "fp32", "--no-compile", "--num-workers", "0")
QUIET = ("--eval-every", "0", "--checkpoint-every", "0", "--log-every", "1", "--shares", "auto", "--prompt", "")
SKIPPED = 3
"""Steps that allocate memory and open connections."""


@dataclass(frozen=True, kw_only=True)
class Point:
    link: str
    model: str
    sync: str
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", nargs="+", default=["100mbit", "1gbit", "off"])
    parser.add_argument("--models", nargs="+", default=["lab", "tiny"], help="presets of gpt2")
    parser.add_argument("--sync", nargs="+", default=["fp32", "int8"])
    parser.add_argument("--steps", type=int, default=40)
    given = parser.parse_args()
    nodes = str(len(load_inventory(None).inventory.nodes))
    print(f"{nodes} nodes\n\n| link | model | sync | predicted | measured | error |\n|---|---|---|---|---|---|")
    points = []
    for link in given.links:
        _orch("lab", "link", link)
        for preset in given.models:
            workload = (*MODEL, "--preset", preset)
            samples = json.loads(_orch("bench", "--nodes", nodes, "--json", "--", *workload))["data"]["measured"][
                "samples_per_step"
            ]
            for sync in given.sync:
                plan = json.loads(_orch("plan", "--nodes", nodes, "--json", "--", *workload, "--sync", sync))["data"]
                predicted = max(plan["rows"], key=lambda row: (row["sync"] == sync, len(row["nodes"])))["step_s"]
                words = (*workload, *QUIET, "--global-batch-size", samples, "--sync", sync, "--max-steps", given.steps)
                point = Point(
                    link=link, model=preset, sync=sync, predicted_s=predicted,
                    measured_s=_measured_s(nodes, words, plan["units_per_sample"] * samples),
                )  # fmt: skip
                points.append(point)
                print(
                    f"| {link} | {preset} | {sync} | {point.predicted_s:.3f} s | {point.measured_s:.3f} s"
                    f" | {point.error:+.0%} |",
                    flush=True,
                )
    within = sum(abs(point.error) <= 0.2 for point in points)
    print(f"\nwithin 20 %: {within} of {len(points)}")
    return 0


def _measured_s(nodes: str, words: Sequence[object], units: float) -> float:
    """Mean seconds of a step, from the speeds that the run reports."""
    data = json.loads(_orch("launch", "--yes", "--json", "--nodes", nodes, "--", *words))["data"]
    lines = [json.loads(line) for line in _orch("logs", data["run_id"], "--json").splitlines()]
    speeds = [_speed(line["event"]) for line in lines if (line.get("event") or {}).get("kind") == "step"]
    return units / statistics.harmonic_mean(speeds[SKIPPED:])


def _speed(event: Any) -> float:
    return float(event.get("values", event)["per_s"])


def _orch(*words: object) -> str:
    ran = subprocess.run([*ORCH, *map(str, words)], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"orch {' '.join(map(str, words))} ended with {ran.returncode}:\n{ran.stderr[-2000:]}")
    return ran.stdout


if __name__ == "__main__":
    sys.exit(main())
