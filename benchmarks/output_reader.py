"""Cost of reading progress from output lines in the agent: time per line, of the slowest hostile line, and memory.

python -m benchmarks.output_reader
"""

from __future__ import annotations

import argparse
import json
import os
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

from trainer.agent.output_progress import OutputReader
from trainer.agent.output_reader import read_figures
from trainer.agent.redraws import Redraws

LINES = Path(__file__).parent.parent / "tests" / "trainer" / "output_lines"
PARTS = (
    "1",
    "[1/2]",
    "1:",
    "100%|",
    "step ",
    "loss: ",
    "epoch=",
    "nan",
    "0%| | 1/2 [00:00<",
    "١",
    "x 100% ━━ 1/2 ",
    "a_",
)
RANKS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    progress = _lines("development", "held_out", "second", "third")
    other = _lines("other")
    hostile = {part: min(_seconds([part * 5000], 1) for _ in range(20)) for part in PARTS}
    slowest = max(hostile, key=lambda part: hostile[part])
    figures = {
        "lines_with_progress_us": round(1e6 * _seconds(progress, rounds), 1),
        "other_lines_us": round(1e6 * _seconds(other, rounds), 1),
        "slowest_hostile_line_us": round(1e6 * hostile[slowest]),
        "slowest_hostile_line": slowest * 3,
        "whole_path_us": round(1e6 * _whole_path([*progress, *other], rounds), 1),
        f"memory_kib_of_{RANKS}_ranks": round(_memory_bytes([*progress, *other]) / 1024),
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(figures, ensure_ascii=False))


def _lines(*names: str) -> list[str]:
    texts = [line for name in names for line in (LINES / f"{name}.txt").read_text("utf-8").splitlines()]
    return [line.partition(" ⇥ ")[2] for line in texts if not line.startswith("#")]


def _seconds(lines: Sequence[str], rounds: int) -> float:
    """Processor seconds of a line."""
    began = time.process_time()
    for _ in range(rounds):
        for line in lines:
            read_figures(line)
    return (time.process_time() - began) / rounds / len(lines)


def _whole_path(lines: Sequence[str], rounds: int) -> float:
    """Processor seconds of a line with all that the agent does with it: its figures, bars, merged progress."""
    reader, redraws, now = OutputReader(), Redraws(), 0.0
    began = time.process_time()
    for _ in range(rounds):
        for line in lines:
            now += 0.01  # below the limit of lines in a second
            for _piece in redraws.take(f"{line}\n", reader.read(0, line, now), now):
                pass
        reader.event(now)
    return (time.process_time() - began) / rounds / len(lines)


def _memory_bytes(lines: Sequence[str]) -> int:
    """Memory of the progress of `RANKS` ranks after 100,000 seconds of output."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    reader, redraws = OutputReader(), [Redraws() for _ in range(RANKS)]
    for second in range(20_000):
        rank = second % RANKS
        line = f"{lines[second % len(lines)]} step {second}/20000 loss_{second}: 1.0"
        for _piece in redraws[rank].take(f"{line}\n", reader.read(rank, line, 5.0 * second), 5.0 * second):
            pass
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return used


if __name__ == "__main__":
    main()
