"""Exchange of gradients on one device: what each sync method computes itself, and whole steps of ranks that share it.

    python -m benchmarks.exchange --data-dir Data            # GPT-2 124M
    python -m benchmarks.exchange --data-dir Data --quick    # test that everything runs

The first table has the time to encode and decode all gradients once, with peers that answer at once: on a GPU this is
part of each step, whatever the link. Beside it are the forward and backward passes of one rank that exchanges with
itself, by NCCL on a GPU: what a method adds to them is the part of its work that they do not hide. The second table has
steps of two ranks that exchange by gloo on this machine, and of one without an exchange.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report import Spread
from benchmarks.side_by_side import ROOT

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.engine.sync.strategy import Sync
    from trainer.models.gpt2 import GPT2

ROUNDS = 3
STEPS = 12
WARM_UP, PASSES = 2, 5
"""Passes before the timed ones, and timed ones."""


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
    whole = passes(given, rounds)
    print("| sync method | encode and decode once | bytes per parameter | both passes, with the exchange |")
    print(f"|---|---|---|---|\n| none | | | {_text(whole['none'], 1000, ' ms')} |")
    for row in work["methods"]:
        once = _text(row["seconds"], 1000, " ms")
        both = _text(whole[row["sync"]], 1000, " ms") if row["sync"] in whole else "not in each step"
        print(f"| {row['sync']} | {once} | {row['bytes_per_parameter']:.3g} | {both} |")
    print(f"\n{work['parameters']:,} parameters.\n\n| ranks | speed |\n|---|---|", flush=True)
    ranks = {}
    for name, words in trainings(given).items():
        ranks[name] = [speed(given, *words) for _ in range(rounds)]
        print(f"| {name} | {_text(ranks[name], 1, ' tokens/s')} |", flush=True)
    if given.out:
        given.out.write_text(json.dumps({**work, "passes": whole, "tokens_per_s": ranks}, indent=1) + "\n", "utf-8")
    return 0


def codecs(given: argparse.Namespace, rounds: int) -> dict[str, Any]:
    import torch

    from trainer.config import RankInfo, TrainOptions
    from trainer.engine.autotune.measure import SAMPLE, codec_s
    from trainer.engine.group import Group
    from trainer.engine.sync.buckets import cut
    from trainer.engine.sync.methods import ladder

    device = torch.device(given.device)
    model = _model(given)
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


def passes(given: argparse.Namespace, rounds: int) -> dict[str, list[float]]:
    """Seconds of both passes over one micro-batch, without an exchange (`none`) and with that of each method, which one
    rank makes with itself."""
    import torch
    import torch.distributed as dist

    from trainer.config import RankInfo, TrainOptions
    from trainer.engine.group import BOTH, Group
    from trainer.engine.sync.ddp import Alone
    from trainer.engine.sync.every_step import EveryStep
    from trainer.engine.sync.methods import ladder

    on_gpu, device = given.device == "cuda", torch.device(given.device)
    dist.init_process_group(BOTH if on_gpu else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    group = Group(place=RankInfo(), backend="nccl" if on_gpu else "gloo", device=device)
    model = _model(given)
    tokens = torch.randint(model.shape.vocab_size, (4, model.shape.seq_len + 1), device=device)
    methods = {one.name: one.mean_of for one in ladder(TrainOptions(), model) if one.mean_of and one.every == 1}
    seconds: dict[str, list[float]] = {name: [] for name in ("none", *methods)}
    for _ in range(rounds):
        for name in seconds:
            sync = EveryStep(name, model, group, methods[name]) if name in methods else Alone(model)
            seconds[name].append(_pass_s(model, sync, tokens))
            sync.close()
    dist.destroy_process_group()
    return seconds


def _pass_s(model: GPT2, sync: Sync, tokens: Tensor) -> float:
    import torch

    from benchmarks.stopwatch import synchronize

    began = 0.0
    for number in range(-WARM_UP, PASSES):
        if number == 0:
            synchronize()
            began = time.perf_counter()
        with sync.gradients(last=True):
            with torch.autocast(tokens.device.type, torch.bfloat16, enabled=tokens.is_cuda):
                loss = model(tokens[:, :-1], tokens[:, 1:])
            loss.backward()
        sync.finish()
        model.zero_grad(set_to_none=True)
    synchronize()
    return (time.perf_counter() - began) / PASSES


def _model(given: argparse.Namespace) -> GPT2:
    from trainer.models.gpt2 import GPT2, Gpt2Shape
    from trainer.workloads.gpt2 import PRESETS

    preset = PRESETS["tiny" if given.quick else "124m"]
    vocab_size = json.loads((given.data_dir / "manifest.json").read_text())["vocab_size"]
    shape = Gpt2Shape(
        layers=preset.layers, heads=preset.heads, width=preset.width, seq_len=preset.seq_len, vocab_size=vocab_size
    )
    return GPT2(shape).to(given.device)


def trainings(given: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """Words of torchrun's options and the trainer's, by name."""
    found: dict[str, tuple[str, ...]] = {
        f"two by gloo, --sync {sync}": ("2", "--backend", "gloo", "--sync", sync)
        for sync in (("int8",) if given.quick else ("fp32", "int8", "int4+8"))
    }
    return {"one, no exchange": ("1",), **found}


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
    step_events = [event for event in map(json.loads, lines) if event["event"] == "step"]
    if ran.returncode or not step_events:
        raise SystemExit(f"{' '.join(torchrun)} ended with exit code {ran.returncode}\n{ran.stderr[-2000:]}")
    return float(step_events[-1]["per_s"])


def _text(values: Sequence[float], factor: float, unit: str) -> str:
    found = Spread.of(value * factor for value in values)
    assert found  # noqa: S101  # there is at least one round
    return found.text("{:,.1f}".format) + unit


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
