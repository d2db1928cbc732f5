"""Preparation of a large text: memory, speed, and continuing after a kill.

    python -m benchmarks.prepare [--gigabytes 10] [--kill-after 0.5] [--text FILE]

The text is generated: lines of words of a vocabulary that follows Zipf's law, one word in fifty new. With
`--kill-after` the process is killed at this share of its output, and started again. The result has to be that of an
undisturbed run, which is checked for up to 2 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

WORDS, LINE_WORDS, BLOCK_WORDS = 200_000, 12, 1 << 20
CHECKED_UP_TO_GB = 2.0
BYTES_PER_TOKEN = 3.5
"""Estimate, to know when a share of the tokens is written."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    seconds: float
    peak_mib: float
    manifest: dict[str, object]

    @property
    def text(self) -> str:
        return f"peak memory {self.peak_mib:.0f} MiB, {self.seconds:.0f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--kill-after", type=float, default=0.0, metavar="SHARE", help="0: not at all (default)")
    parser.add_argument("--text", type=Path, help="this file instead of a generated one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="prepare-") as scratch:
        text = given.text or generate(Path(scratch) / "text.txt", given.gigabytes)
        size = text.stat().st_size
        print(f"{size / 1e9:.2f} GB of text", flush=True)
        if given.kill_after:
            began = time.monotonic()
            kill(text, Path(scratch) / "data", tokens=int(given.kill_after * size / BYTES_PER_TOKEN))
            print(f"killed after {time.monotonic() - began:.0f} s", flush=True)
        found = prepare(text, Path(scratch) / "data")
        print(f"{found.text}, {size / 1e6 / found.seconds:.1f} MB/s")
        if given.kill_after and size <= CHECKED_UP_TO_GB * 1e9:
            undisturbed = prepare(text, Path(scratch) / "undisturbed")
            print(f"undisturbed: {undisturbed.text}")
            print("the same shards" if undisturbed.manifest == found.manifest else "OTHER SHARDS")
            return undisturbed.manifest != found.manifest
    return 0


def generate(path: Path, gigabytes: float) -> Path:
    """Write lines of words; the words of one rank are as frequent as in a natural text."""
    chance = np.random.default_rng(1)
    letters = np.array(list("aeioulnrstdcmpbgvqfhjzyxñáéíóú"))
    likely = 1 / np.arange(1, len(letters) + 1)
    likely /= likely.sum()
    lengths = chance.integers(2, 12, WORDS)
    words = np.array(["".join(chance.choice(letters, size, p=likely)) for size in lengths])
    written, new = 0, 0
    with path.open("w", encoding="utf-8") as file:
        while written < gigabytes * 1e9:
            ranks = np.minimum(chance.zipf(1.25, BLOCK_WORDS), WORDS) - 1
            chosen = words[ranks].astype(object)
            rare = chance.random(BLOCK_WORDS) < 0.02
            chosen[rare] = [f"{word}{new + at}" for at, word in enumerate(chosen[rare])]
            new += int(rare.sum())
            lines = "".join(" ".join(line) + ".\n" for line in chosen.reshape(-1, LINE_WORDS - 4))
            written += file.write(lines)
    return path


def prepare(text: Path, folder: Path) -> Prepared:
    """Run `gpt2 prepare` in a process of its own."""
    began = time.monotonic()
    _, status, usage = os.wait4(_start(text, folder).pid, 0)
    if status:
        raise SystemExit(f"prepare ended with status {status}")
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    return Prepared(seconds=time.monotonic() - began, peak_mib=usage.ru_maxrss / 1024, manifest=manifest)


def kill(text: Path, folder: Path, tokens: int) -> None:
    """Run it, and kill it once so many tokens are written."""
    process = _start(text, folder)
    while sum(file.stat().st_size for file in folder.glob(".*.tokens")) < 2 * tokens:
        if process.poll() is not None:
            raise SystemExit("it was done before the kill")
        time.sleep(0.2)
    process.kill()
    process.wait()


def _start(text: Path, folder: Path) -> subprocess.Popen[bytes]:
    words = ("gpt2", "prepare", "--text", str(text), "--data-dir", str(folder), "--vocab-size", "16384")
    return subprocess.Popen((sys.executable, "-m", "trainer", *words))


if __name__ == "__main__":
    sys.exit(main())
