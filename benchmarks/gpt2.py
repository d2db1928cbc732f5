"""GPT-2 from scratch: compare our trainer with HF Trainer, Lightning and plain loops.

    python -m benchmarks.gpt2                 # 124M; on a CPU batches of 4 × 256 tokens, on CUDA of 16 × 1024
    python -m benchmarks.gpt2 --quick         # test that everything runs: a tiny model, one round
    python -m benchmarks.gpt2 --table memory --memory-gib 4     # as on a laptop's card

All read the same prepared tokens: by default the standard library's source files, which every Python has. Equal
settings mean the same shape, batch, precision, optimizer and clipping, no dropout; "as shipped" means a peer's
defaults.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks import gpt2_peers
from benchmarks.ours import steps_of
from benchmarks.report import Table
from benchmarks.side_by_side import ROOT, Candidate, Comparison, compare
from benchmarks.stopwatch import Measured, Stopwatch


def ours(*flags: str) -> Callable[[argparse.Namespace], Measured]:
    """The trainer with these options in addition to those that define the work."""

    def measure(given: argparse.Namespace) -> Measured:
        gpt2_peers.limit_memory(given)
        watch = Stopwatch.of(given)
        work = ["--preset", given.preset, "--batch-size", given.batch_size, "--seq-len", given.seq_len]
        data = ["--data-dir", given.data_dir.resolve(), "--lr", gpt2_peers.LR, "--schedule", "constant"]
        last = steps_of(watch, ["gpt2", *map(str, [*work, *data]), "--warmup-steps", "0", *flags])
        # Where the memory did not hold the batch, ours has halved it; the peers fail.
        return gpt2_peers.result(given, watch, last["loss"], micro_batch=last["micro_batch"])

    return measure


CONTESTANTS = (
    Candidate(name="ours", measure=ours(), note="the trainer with its default options"),
    Candidate(name="ours-fp32", measure=ours("--no-amp", "--no-compile"), note="float32, not compiled"),
    Candidate(name="ours-amp", measure=ours("--no-compile"), note="its default precision, not compiled"),
    Candidate(name="ours-compiled", measure=ours("--compile"), note="and compiled, on a CPU too"),
    Candidate(name="ours-compiled-fp32", measure=ours("--compile", "--no-amp"), note="compiled, in float32"),
    Candidate(name="ours-checkpointing", measure=ours("--use-gradient-checkpointing")),
    Candidate(
        name="ours-selective",
        measure=ours("--compile", "--gradient-checkpointing", "selective"),
        note="compiled; all but large products is computed again",
    ),
    Candidate(
        name="ours-chunks", measure=ours("--compile", "--loss-chunk", "2048"), note="compiled; the loss in chunks"
    ),
    Candidate(
        name="ours-frugal",
        measure=ours("--compile", "--loss-chunk", "2048", "--gradient-checkpointing", "selective"),
        note="compiled, with both",
    ),
    Candidate(
        name="ours-most-frugal",
        measure=ours("--compile", "--loss-chunk", "2048", "--gradient-checkpointing"),
        note="compiled; the loss in chunks, all blocks computed again",
    ),
    Candidate(
        name="ours-bf16-moments",
        measure=ours("--compile", "--optimizer-state", "bf16"),
        note="compiled; AdamW's moments in bfloat16",
    ),
    Candidate(
        name="ours-int8-moments",
        measure=ours("--compile", "--optimizer-state", "int8"),
        note="compiled; AdamW's moments in 8 bits",
    ),
    Candidate(
        name="ours-least",
        measure=ours(
            "--compile",
            "--loss-chunk",
            "256",
            "--gradient-checkpointing",
            "--optimizer-state",
            "int8",
        ),
        note="compiled; all that saves memory",
    ),
    Candidate(
        name="ours-graphs", measure=ours("--compile", "--cuda-graphs"), only_on="cuda", note="compiled, by CUDA graphs"
    ),
    Candidate(
        name="ours-flash",
        measure=ours("--compile", "--sdpa", "flash"),
        note="compiled; attention by torch's flash, not by the fastest kernel",
    ),
    Candidate(name="ours-muon", measure=ours("--optimizer", "muon")),
    *gpt2_peers.CONTESTANTS,
)

TABLES = (
    Table(
        name="peers",
        title="Beside the peers",
        names=(
            "ours", "ours-fp32",
            "hf-trainer", "hf-trainer-equal", "hf-trainer-tuned",
            "lightning", "lightning-tuned", "plain", "plain-tuned",
        ),
        baseline="hf-trainer-equal",
    ),
    Table(
        name="ladder",
        title="Ladder: one more optimization per row",
        names=("plain", "ours-fp32", "ours-amp", "ours-flash", "ours-compiled", "ours-graphs"),
        baseline="plain",
        ladder=True,
    ),
    Table(
        name="memory",
        title="Memory",
        names=("ours-amp", "ours", "ours-checkpointing", "ours-frugal", "ours-least", "hf-trainer-tuned"),
        baseline="ours-amp",
    ),
    Table(
        name="frugal",
        title="Memory, all compiled",
        names=(
            "ours-compiled", "ours-chunks", "ours-selective", "ours-frugal", "ours-most-frugal",
            "ours-bf16-moments", "ours-int8-moments", "ours-least",
        ),
        baseline="ours-compiled",
    ),
    Table(
        name="tuned",
        title="Beside the peers at their tuned best, at equal precision",
        names=("ours-amp", "ours-compiled", "hf-trainer-tuned", "lightning-tuned", "plain-tuned"),
        baseline="hf-trainer-tuned",
    ),
    Table(name="optimizer", title="Optimizer: time of a step", names=("ours", "ours-muon"), baseline="ours"),
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--preset", help="of the trainer (default 124m; with --quick tiny)")
    parser.add_argument("--batch-size", type=int, metavar="N", help="sequences in a step")
    parser.add_argument("--seq-len", type=int, metavar="N")
    parser.add_argument("--vocab-size", type=int, metavar="N", help="default 50257, GPT-2's; with --quick 1024")
    parser.add_argument("--warmup", type=int, metavar="N", help="steps before the timed ones")
    parser.add_argument("--steps", type=int, metavar="N", help="that are timed; a multiple of --warmup")
    parser.add_argument("--memory-gib", type=float, metavar="GIB", help="limit of CUDA memory per candidate")
    parser.add_argument("--text", type=Path, metavar="PATH", help="instead of the standard library's sources")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="prepared tokens; created if missing")


def settle(given: argparse.Namespace) -> None:
    # preset, vocabulary, batch, length, warm-up steps, timed steps
    usual = {"cpu": ("124m", 50257, 4, 256, 2, 10), "cuda": ("124m", 50257, 16, 1024, 10, 30)}[given.device]
    defaults = ("tiny", 1024, 2, 64, 2, 4) if given.quick else usual
    for name, value in zip(("preset", "vocab_size", "batch_size", "seq_len", "warmup", "steps"), defaults, strict=True):
        if getattr(given, name) is None:
            setattr(given, name, value)
    if given.data_dir is None:
        given.data_dir = Path(tempfile.gettempdir()) / f"orch-benchmark-gpt2-{given.vocab_size}"


def prepare(given: argparse.Namespace) -> None:
    """Prepare data with the trainer's own command; existing data is kept."""
    if (given.data_dir / "manifest.json").exists():
        return
    with tempfile.TemporaryDirectory(prefix="orch-benchmark-text-") as folder:
        text = given.text
        if text is None:
            text = Path(folder)
            (text / "sources.txt").write_text(standard_library(), "utf-8")
        argv = [sys.executable, "-m", "trainer", "gpt2", "prepare", "--text", str(text.resolve())]
        argv += ["--data-dir", str(given.data_dir.resolve()), "--vocab-size", str(given.vocab_size)]
        subprocess.run(argv, cwd=ROOT, check=True, stdout=sys.stderr)


def standard_library() -> str:
    """The standard library's source files, without tests and site-packages: about 10 MB."""
    root = Path(sysconfig.get_path("stdlib"))
    files = (path for path in sorted(root.rglob("*.py")) if not {"site-packages", "test", "tests"} & set(path.parts))
    return "\n".join(path.read_text("utf-8", errors="ignore").replace("\0", "") for path in files)


COMPARISON = Comparison(
    title="Training GPT-2",
    module="benchmarks.gpt2",
    candidates=CONTESTANTS,
    tables=TABLES,
    arguments=add_arguments,
    settle=settle,
    prepare=prepare,
)


if __name__ == "__main__":
    sys.exit(compare(COMPARISON, sys.argv[1:]))
