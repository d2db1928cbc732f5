"""Forecast of a training's memory against the peak of the process.

    python -m benchmarks.memory_forecast                   # three models of different size, with a checkpoint each
    python -m benchmarks.memory_forecast --only mini       # one of them
    python -m benchmarks.memory_forecast -- --preset tiny  # any options of gpt2

One rank, started as a user starts it: the peak is what the kernel says of it at its end. The forecast is that of a
launch, without agent and torchrun, which are other processes.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.checkpoint import prepared
from benchmarks.side_by_side import ROOT
from contract.cost_model.memory import LAUNCHER_MIB, MemoryForecast, forecast_memory
from trainer.check import answer

MODELS = {
    "mini": ("--preset", "mini"),
    "30m": ("--preset", "30m", "--batch-size", "4"),
    "98m": ("--preset", "124m", "--batch-size", "2", "--seq-len", "512"),
}
"""Models with the vocabulary below; the last is the shape of GPT-2 small."""
VOCABULARY = 8192
STEPS = ("--max-steps", "4", "--checkpoint-every", "2", "--eval-every", "0", "--no-compile", "--log-every", "1")


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory_forecast", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=MODELS, help="default: all")
    parser.add_argument("--data", type=Path, metavar="DIR", help="prepared tokens (default: made of Python's sources)")
    parser.add_argument("options", nargs="*", help="after --: one training with these options of gpt2")
    given = parser.parse_args(argv)
    models = [given.options] if given.options else [MODELS[name] for name in given.only or MODELS]
    print("| options | measured | forecast | ratio | parts of the forecast, MiB |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="orch-benchmark-memory-") as folder:
        data = given.data or prepared(Path(folder), VOCABULARY)
        for number, options in enumerate(models):
            forecast = forecast_of(options, data)
            expected, measured = forecast.total_mib - LAUNCHER_MIB, peak_mib(options, data, Path(folder, str(number)))
            figures = f"{measured:,} MiB | {expected:,} MiB | {expected / measured:.2f}"
            print(f"| {shlex.join(options)} | {figures} | {forecast} |", flush=True)
    return 0


def forecast_of(options: Sequence[str], data: Path) -> MemoryForecast:
    asked = {"words": ["gpt2", *STEPS, *options], "data": str(data), "environment": {}, "prog": "trainer"}
    found = answer(asked)
    if found.sizes is None:
        sys.exit(f"no forecast: {found.refused}")
    return forecast_memory(found.sizes, ranks=1, world_size=1, first=True)


def peak_mib(options: Sequence[str], data: Path, run: Path) -> int:
    """Largest resident set of a training's process."""
    words = ["gpt2", "--data-dir", str(data), "--run-dir", str(run), *STEPS, *options]
    process = subprocess.Popen([sys.executable, "-m", "trainer", *words], cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{shlex.join(words)} ended with exit code {process.returncode}")
    return used.ru_maxrss // 1024


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
