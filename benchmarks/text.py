"""Text classification with three heads: compare ours with HF Trainer with fixed padding and with a plain loop.

    python -m benchmarks.text                 # a BERT with 4 layers of width 512; on CUDA 12 × 768
    python -m benchmarks.text --table frozen  # effect of frozen layers, recomputed and cached
    python -m benchmarks.text --quick         # test that everything runs

All read the same prepared tokens, truncated to --max-length, with the same shape, dropout, heads, weights and
optimizer. One whole epoch is timed, because with bucketing steps differ in length, after a few warm-up steps, or with
cached frozen layers after one epoch that computes them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks import text_peers
from benchmarks.ours import steps_of
from benchmarks.report import Table
from benchmarks.side_by_side import ROOT, Candidate, Comparison, compare
from benchmarks.stopwatch import Measured, Stopwatch


def ours(flags: str, *, epoch_before: bool = False) -> Callable[[argparse.Namespace], Measured]:
    def measure(given: argparse.Namespace) -> Measured:
        watch = Stopwatch.of(given, warmup=given.steps if epoch_before else None)
        work = ["--data-dir", given.data_dir.resolve(), "--max-length", given.max_length, "--lr", text_peers.LR]
        work += ["--schedule", "constant", "--warmup-steps", 0, "--num-workers", 0]
        if "--grad-accum" not in flags:
            work += ["--batch-size", given.batch_size]
        with tempfile.TemporaryDirectory(prefix="orch-benchmark-frozen-") as folder:
            work += ["--cache-dir", folder]
            asked = flags.format(freeze=given.freeze_layers, quarter=max(given.batch_size // 4, 1)).split()
            last = steps_of(watch, ["text", *map(str, work), *asked])
        return watch.measured(given.batch_size, "texts", loss=last["loss"])

    return measure


PLAIN = "--no-bucketing --no-amp --no-compile"
BUCKETED = "--no-amp --no-compile"
FREEZE = "--freeze-layers {freeze}"
CONTESTANTS = (
    *text_peers.CONTESTANTS,
    Candidate(name="ours", measure=ours(""), note="the trainer with its default options"),
    Candidate(name="ours-padded", measure=ours(PLAIN), note="all padded to --max-length, float32, not compiled"),
    Candidate(name="ours-fp32", measure=ours(BUCKETED), note="texts grouped by length, float32"),
    Candidate(
        name="ours-packed-fp32",
        measure=ours(f"{BUCKETED} --packed"),
        note="grouped by length, no padding at all, float32",
    ),
    Candidate(
        name="ours-compiled", measure=ours("--compile"), only_on="cuda", note="grouped by length, padded, compiled"
    ),
    Candidate(
        name="ours-graphs",
        measure=ours("--compile --cuda-graphs"),
        only_on="cuda",
        note="compiled, by CUDA graphs, padded to multiples of 16",
    ),
    Candidate(name="ours-packed", measure=ours("--no-compile --packed"), note="the same in the default precision"),
    Candidate(
        name="ours-mixed-packed",
        measure=ours("--no-compile --packed --no-bucketing"),
        note="no padding, texts of all lengths in a step",
    ),
    Candidate(
        name="ours-mixed-padded",
        measure=ours("--no-compile --no-bucketing"),
        note="texts of all lengths in a step, all padded to --max-length",
    ),
    Candidate(name="+amp", measure=ours("--no-compile"), note="and its default precision"),
    Candidate(
        name="+accumulation",
        measure=ours("--no-compile --batch-size {quarter} --grad-accum 4"),
        note="and the batch in four micro-batches: saves memory, not time",
    ),
    Candidate(
        name="+freeze", measure=ours(f"--no-compile {FREEZE} --no-cache-frozen"), note="and the lower layers frozen"
    ),
    Candidate(
        name="+cache",
        measure=ours(f"--no-compile {FREEZE}", epoch_before=True),
        note="and their outputs cached: from the second epoch on",
    ),
    Candidate(
        name="+freeze-graphs",
        measure=ours(f"--compile --cuda-graphs {FREEZE} --no-cache-frozen"),
        only_on="cuda",
        note="frozen, compiled, by CUDA graphs",
    ),
    Candidate(name="ours-frozen-fp32", measure=ours(f"{BUCKETED} {FREEZE} --no-cache-frozen"), note="frozen, float32"),
    Candidate(
        name="ours-kept-fp32",
        measure=ours(f"{BUCKETED} {FREEZE}", epoch_before=True),
        note="frozen with cached outputs, float32: from the second epoch on",
    ),
)

TABLES = (
    Table(
        name="peers",
        title="Beside the peers",
        names=("plain", "hf-trainer", "hf-trainer-tuned", "ours-fp32", "ours"),
        baseline="hf-trainer",
    ),
    Table(
        name="ladder",
        title="Ladder: one more optimization per row",
        names=("plain", "ours-padded", "ours-fp32", "+amp", "+accumulation", "+freeze", "+cache"),
        baseline="plain",
        ladder=True,
    ),
    Table(
        name="packed",
        title="Texts padded or one after the other",
        names=("ours-fp32", "ours-packed-fp32", "+amp", "ours-packed", "ours-mixed-padded", "ours-mixed-packed"),
        baseline="+amp",
    ),
    Table(
        name="graphs",
        title="Steps of many small kernels",
        names=("+amp", "ours-compiled", "ours-graphs", "ours-packed"),
        baseline="+amp",
    ),
    Table(
        name="frozen",
        title="An epoch with frozen layers",
        names=("hf-trainer", "hf-trainer-frozen", "ours-fp32", "ours-frozen-fp32", "ours-kept-fp32"),
        baseline="hf-trainer",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model-name", help="random:SIZE (default random:small, on CUDA random:base)")
    parser.add_argument("--max-length", type=int, default=128, metavar="N", help="default 128")
    parser.add_argument("--batch-size", type=int, default=16, metavar="N", help="texts in a step (default 16)")
    parser.add_argument("--freeze-layers", type=int, metavar="N", help="default: 10 of 12, or as many in proportion")
    parser.add_argument("--rows", type=int, metavar="N", help="synthetic failure reports")
    parser.add_argument("--warmup", type=int, metavar="N", help="steps before the timed epoch")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="prepared texts; created if missing")


def settle(given: argparse.Namespace) -> None:
    from trainer.models import sizes

    # model, rows, warm-up steps
    usual = {"cpu": ("random:small", 712, 4), "cuda": ("random:base", 7112, 20)}[given.device]
    defaults = ("random:tiny", 72, 2) if given.quick else usual
    for name, value in zip(("model_name", "rows", "warmup"), defaults, strict=True):
        if getattr(given, name) is None:
            setattr(given, name, value)
    if given.freeze_layers is None:
        given.freeze_layers = max(sizes.of(given.model_name)[0] * 10 // 12, 1)
    given.steps = given.rows * 9 // 10 // given.batch_size  # a tenth is held out
    if given.data_dir is None:
        name = f"orch-benchmark-text-{given.model_name.replace(':', '-')}-{given.rows}"
        given.data_dir = Path(tempfile.gettempdir()) / name


def prepare(given: argparse.Namespace) -> None:
    """Prepare data with the trainer's own command; existing data is kept."""
    if (given.data_dir / "manifest.json").exists():
        return
    argv = [sys.executable, "-m", "trainer", "text", "prepare", "--csv", "demo", "--rows", str(given.rows)]
    argv += ["--model-name", given.model_name, "--data-dir", str(given.data_dir.resolve())]
    subprocess.run(argv, cwd=ROOT, check=True, stdout=sys.stderr)


COMPARISON = Comparison(
    title="Training a text classifier with three heads",
    module="benchmarks.text",
    candidates=CONTESTANTS,
    tables=TABLES,
    arguments=add_arguments,
    settle=settle,
    prepare=prepare,
)


if __name__ == "__main__":
    sys.exit(compare(COMPARISON, sys.argv[1:]))
