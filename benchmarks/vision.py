"""Image classification: our optimizations enabled one by one, compared with a plain loop and timm's recipe.

    python -m benchmarks.vision               # CUDA: ResNet-50 at 224, batches of 64; a CPU: ResNet-18 at 96, of 16
    python -m benchmarks.vision --quick       # test that everything runs

Images are generated JPEG files, one folder per class. The warm-up is one epoch, so that caches are full when timing
starts. All use random crops and flips; none mixes or distorts images, save in the table `augmentation`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks import pictures, vision_peers
from benchmarks.ours import steps_of
from benchmarks.report import Table
from benchmarks.side_by_side import Candidate, Comparison, compare
from benchmarks.stopwatch import Measured, Stopwatch

LR = 1e-3
RUNGS = (
    ("+tf32", "--no-tf32", "--tf32"),
    ("+amp", "--no-amp", "--amp"),
    ("+compile", "--no-compile", "--compile"),
    ("+workers", "--num-workers 0", "--num-workers {workers}"),
    ("+channels-last", "--no-channels-last", "--channels-last"),
    ("+cache", "--no-cache", "--cache-mib 16384"),
    ("+fused", "--no-fused", "--fused"),
    ("+checkpointing", "", "--use-gradient-checkpointing"),
)
"""Name of the optimization, the options without it, and the options with it."""
CHANCE = (
    ("+randaugment", "--randaugment 2,9"),
    ("+mixup", "--mixup 0.2"),
    ("+randaugment+mixup", "--randaugment 2,9 --mixup 0.2"),
)


def ours(flags: str) -> Callable[[argparse.Namespace], Measured]:
    def measure(given: argparse.Namespace) -> Measured:
        watch = Stopwatch.of(given)
        work = ["--images", given.images, "--image-size", given.image_size, "--model", given.model]
        work += ["--batch-size", given.batch_size, "--lr", LR, "--schedule", "constant", "--warmup-steps", 0]
        last = steps_of(watch, ["vision", *map(str, work), *flags.format(workers=given.workers).split()])
        return watch.measured(given.batch_size, "images", loss=last["loss"], more={"waiting": last["waiting"]})

    return measure


def _rung(height: int) -> str:
    """The options with the first `height` optimizations enabled and all others disabled."""
    return " ".join(on if number < height else off for number, (_, off, on) in enumerate(RUNGS))


NEEDS = ("PIL",)
CONTESTANTS = (
    *vision_peers.CONTESTANTS,
    Candidate(name="ours", measure=ours(""), needs=NEEDS, note="the trainer with its default options"),
    Candidate(
        name="ours-uncached",
        measure=ours("--no-cache"),
        needs=NEEDS,
        note="without the cache of decoded pictures, as with more pictures than it holds",
    ),
    Candidate(name="ours-compiled", measure=ours("--compile"), needs=NEEDS, note="and compiled from the start"),
    Candidate(
        name="ours-compiled-uncached",
        measure=ours("--no-cache --compile --num-workers {workers}"),
        needs=NEEDS,
        note="compiled from the start, without the cache, with as many workers as timm",
    ),
    Candidate(
        name="ours-plain", measure=ours(_rung(0)), needs=NEEDS, note="the trainer with all optimizations disabled"
    ),
    *(
        Candidate(name=name, measure=ours(f"--no-cache {flags}"), needs=NEEDS, note=f"and `{flags}`")
        for name, flags in CHANCE
    ),
    *(
        Candidate(
            name=name,
            measure=ours(_rung(height)),
            needs=NEEDS,
            only_on="cuda" if name == "+tf32" else "",
            note=f"`{on}`, and all above",
        )
        for height, (name, _, on) in enumerate(RUNGS, start=1)
    ),
)

TABLES = (
    Table(
        name="peers",
        title="Beside the peers",
        names=("naive", "timm", "ours-compiled", "ours", "ours-uncached", "ours-plain"),
        baseline="naive",
    ),
    Table(
        name="ladder",
        title="Ladder: one more optimization per row",
        names=("naive", "ours-plain", *(name for name, _, _ in RUNGS)),
        baseline="naive",
        ladder=True,
    ),
    Table(
        name="augmentation",
        title="What random changes of pictures cost",
        names=("ours-uncached", *(name for name, _ in CHANCE)),
        baseline="ours-uncached",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="resnet18, resnet50, …: by the same name with timm and with us")
    parser.add_argument("--image-size", type=int, metavar="N", help="side of a crop")
    parser.add_argument("--batch-size", type=int, metavar="N")
    parser.add_argument("--workers", type=int, metavar="N", help="worker processes, for candidates that have them")
    parser.add_argument("--warmup", type=int, metavar="N", help="steps before the timed ones: one epoch")
    parser.add_argument("--steps", type=int, metavar="N", help="that are timed; a multiple of --warmup")
    parser.add_argument("--images", type=Path, metavar="FOLDER", help="your own images, one folder per class")


def settle(given: argparse.Namespace) -> None:
    # model, crop, batch, workers, warm-up steps, timed steps
    cores = given.threads
    usual = {
        "cpu": ("resnet18", 96, 16, max(1, cores // 2), 6, 12),
        "cuda": ("resnet50", 224, 64, max(1, min(12, cores - 2)), 20, 40),
    }
    defaults = ("resnet18", 32, 8, 1, 2, 2) if given.quick else usual[given.device]
    names = ("model", "image_size", "batch_size", "workers", "warmup", "steps")
    for name, value in zip(names, defaults, strict=True):
        if getattr(given, name) is None:
            setattr(given, name, value)
    given.own_pictures = given.images is not None
    if given.images is None:
        count = given.batch_size * given.warmup
        given.images = Path(tempfile.gettempdir()) / f"orch-benchmark-pictures-{count}-{given.image_size}"
    given.images = given.images.resolve()


def prepare(given: argparse.Namespace) -> None:
    if not given.own_pictures:
        # Only our trainer holds out a part of each class for validation; a tenth more images make up for it.
        pictures.make(given.images, round(1.15 * given.batch_size * given.warmup), given.image_size)


COMPARISON = Comparison(
    title="Training an image classifier",
    module="benchmarks.vision",
    candidates=CONTESTANTS,
    tables=TABLES,
    arguments=add_arguments,
    settle=settle,
    prepare=prepare,
)


if __name__ == "__main__":
    sys.exit(compare(COMPARISON, sys.argv[1:]))
