"""Exchange of gradients on one device: what each sync method computes itself, and whole steps of ranks that share it.

    python -m benchmarks.exchange --data-dir Data            # GPT-2 124M; on CUDA also one rank by NCCL
    python -m benchmarks.exchange --data-dir Data --quick    # test that everything runs

The first table has the time to encode and decode all gradients once, with peers that answer at once. On a GPU this is
part of each step, whatever the link. The second has steps of two ranks that exchange by gloo on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Spread
from benchmarks.side_by_side import ROOT

ROUNDS = 3
STEPS = 12


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exchange", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help="of `gpt2 prepare`")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if available")
    parser.add_argument("--quick", action="store_true", help="small and short, to test that everything runs")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write JSON to this file")
    given = parser.parse_args(argv)
    given.device = given.device or ("cuda" if Path("/dev/nvidiactl").exists() else "cpu")
    rounds = 1 if given.quick else ROUNDS
    work = codecs(given, rounds)
    print("| sync method | encode and decode once | bytes per parameter |\n|---|---|---|")
    for row in work["methods"]:
        print(f"| {row['sync']} | {_text(row['seconds'], 1000, ' ms')} | {row['bytes_per_parameter']:.3g} |")
    print(f"\n{work['parameters']:,} parameters.\n\n| ranks | speed |\n|---|---|", flush=True)
    ranks = {}
    for name, words in trainings(given).items():
        ranks[name] = [speed(given, *words) for _ in range(rounds)]
        print(f"| {name} | {_text(ranks[name], 1, ' tokens/s')} |", flush=True)
    if given.out:
        given.out.write_text(json.dumps({**work, "tokens_per_s": ranks}, indent=1) + "\n", "utf-8")
    return 0


def codecs(given: argparse.Namespace, rounds: int) -> dict[str, Any]:
    import torch

    from trainer.config import RankInfo, TrainOptions
    from trainer.engine.autotune.measure import SAMPLE, codec_s
    from trainer.engine.group import Group
    from trainer.engine.sync.buckets import cut
    from trainer.engine.sync.methods import ladder
    from trainer.models.gpt2 import GPT2, Gpt2Shape
    from trainer.workloads.gpt2 import PRESETS

    preset, device = PRESETS["tiny" if given.quick else "124m"], torch.device(given.device)
    vocab_size = json.loads((given.data_dir / "manifest.json").read_text())["vocab_size"]
    shape = Gpt2Shape(
        layers=preset.layers, heads=preset.heads, width=preset.width, seq_len=preset.seq_len, vocab_size=vocab_size
    )
    model = GPT2(shape).to(device)
    group = Group(place=RankInfo(world_size=2), backend="none", device=device)
    parameters = list(model.parameters())
    count = sum(parameter.numel() for parameter in parameters)
    bucket = min(cut(parameters, SAMPLE), key=lambda each: abs(each.count - SAMPLE))
    methods = [method for method in ladder(TrainOptions(), model) if method.mean_of]
    seconds: dict[str, list[float]] = {method.name: [] for method in methods}
    for _ in range(rounds):
        for method in methods:
            seconds[method.name].append(codec_s(method, bucket, group) / bucket.count * count)
    return {
        "parameters": count,
        "methods": [
            {"sync": one.name, "seconds": seconds[one.name], "bytes_per_parameter": one.bytes_per_parameter}
            for one in methods
        ],
    }


def trainings(given: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """Words of torchrun's options and the trainer's, by name."""
    found: dict[str, tuple[str, ...]] = {
        f"two by gloo, --sync {sync}": ("2", "--backend", "gloo", "--sync", sync)
        for sync in (("int8",) if given.quick else ("fp32", "int8", "int4+8"))
    }
    if given.device == "cuda":
        found["one by NCCL"] = ("1", "--backend", "nccl")
    return found


def speed(given: argparse.Namespace, ranks: str, *options: str) -> float:
    """Tokens per second in the second half of a short training."""
    size = ["--preset", "tiny", "--seq-len", "32"] if given.quick else ["--preset", "124m", "--seq-len", "512"]
    steps = 4 if given.quick else STEPS
    with tempfile.TemporaryDirectory(prefix="orch-benchmark-exchange-") as folder:
        words = [
            "gpt2", *size, "--batch-size", "4", "--data-dir", given.data_dir.resolve(), "--run-dir", folder,
            "--max-steps", steps, "--log-every", steps // 2, "--eval-every", "0", "--checkpoint-every", "0",
            "--no-compile", "--shares", "equal", *options,
        ]  # fmt: skip
        torchrun = [
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            ranks,
            "-m",
            "trainer",
            *map(str, words),
        ]
        environ = {**os.environ, "ORCH_EVENTS": "1", "PYTHONPATH": str(ROOT)}
        environ |= {"CUDA_VISIBLE_DEVICES": ""} if given.device == "cpu" else {}
        ran = subprocess.run(
            [sys.executable, "-m", *torchrun], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
        )
    lines = [line.partition("@orch ")[2] for line in ran.stdout.splitlines() if "@orch " in line]
    told = [event for event in map(json.loads, lines) if event["event"] == "step"]
    if ran.returncode or not told:
        raise SystemExit(f"{' '.join(torchrun)} ended with exit code {ran.returncode}\n{ran.stderr[-2000:]}")
    return float(told[-1]["per_s"])


def _text(values: Sequence[float], factor: float, unit: str) -> str:
    found = Spread.of(value * factor for value in values)
    assert found  # noqa: S101  # there is at least one round
    return found.text("{:,.1f}".format) + unit


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
