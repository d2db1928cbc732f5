"""Tokens that Muon needs to reach AdamW's loss, each at the best of several learning rates.

    python -m benchmarks.muon --data-dir Data            # about 20 minutes on two cores
    python -m benchmarks.muon --data-dir Data --quick    # test that everything runs
    python -m benchmarks.muon --data-dir Data --steps 4000 --rates 3e-4 6e-4 1.2e-3 -- --preset 124m    # on a GPU

AdamW trains for all steps, Muon for several fractions of them, each in a separate run with a complete schedule: in the
middle of a longer run the learning rate would not have decayed yet. Both train on the same batches; options after `--`
are passed to every run of the trainer.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).parents[1]
SMALL = ("--layers=4", "--heads=4", "--width=128", "--seq-len=128", "--batch-size=8", "--precision=fp32")
"""1.3 million parameters with a vocabulary of 4096."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    optimizer: str
    lr: float
    seed: int
    share: float = 1.0
    """Share of the steps."""


Losses = dict[Trial, float]
"""Losses on the whole validation split, after the last step."""


def main(argv: Sequence[str]) -> int:
    given = _parse(argv)
    losses: Losses = {}
    run = _runner(given, losses)
    first, *others = given.seeds
    run(Trial(optimizer=optimizer, lr=lr, seed=first) for optimizer in ("adamw", "muon") for lr in given.rates)
    best = {name: _best_rate(losses, name) for name in ("adamw", "muon")}
    run(Trial(optimizer="adamw", lr=best["adamw"], seed=seed) for seed in others)
    run(
        Trial(optimizer="muon", lr=best["muon"], seed=seed, share=share)
        for share in given.shares
        for seed in given.seeds
    )
    needed = {seed: tokens_needed(losses, best, seed, given.shares) for seed in given.seeds}
    result = {
        "steps": given.steps,
        "trainer": given.trainer,
        "best_lr": best,
        "muon_tokens_to_adamws_loss": needed,
        "trials": [{**asdict(trial), "loss": loss} for trial, loss in losses.items()],
    }
    text = _markdown(losses, best, needed, given)
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    if given.markdown:
        given.markdown.write_text(text, "utf-8")
    print(text, end="")
    return 0


def _best_rate(losses: Losses, optimizer: str) -> float:
    return min((loss, trial.lr) for trial, loss in losses.items() if trial.optimizer == optimizer)[1]


def tokens_needed(losses: Losses, best: dict[str, float], seed: int, shares: Sequence[float]) -> float | None:
    """Fraction of AdamW's tokens at which Muon reaches its loss, interpolated between two of the fractions. None: it
    needs more than all of them. The smallest fraction if that is enough."""
    wanted = losses[Trial(optimizer="adamw", lr=best["adamw"], seed=seed)]
    before: tuple[float, float] | None = None
    for share in shares:
        loss = losses[Trial(optimizer="muon", lr=best["muon"], seed=seed, share=share)]
        if loss <= wanted:
            if before is None:
                return share
            return before[0] + (share - before[0]) * (before[1] - wanted) / (before[1] - loss)
        before = share, loss
    return None


def _runner(given: argparse.Namespace, losses: Losses) -> Callable[[Iterator[Trial]], None]:
    def run(trials: Iterator[Trial]) -> None:
        missing = [trial for trial in dict.fromkeys(trials) if trial not in losses]
        with ThreadPoolExecutor(given.at_once) as pool:
            for trial, loss in zip(missing, pool.map(lambda trial: _train(trial, given), missing), strict=True):
                losses[trial] = loss

    return run


def _train(trial: Trial, given: argparse.Namespace) -> float:
    steps = max(1, round(given.steps * trial.share))
    with tempfile.TemporaryDirectory(prefix="orch-benchmark-muon-") as folder:
        words = [
            "gpt2", "train", "--data-dir", given.data_dir.resolve(), "--run-dir", folder, *given.trainer,
            "--optimizer", trial.optimizer, "--lr", trial.lr, "--seed", trial.seed,
            "--max-steps", steps, "--warmup-steps", steps // 20, "--eval-every", steps, "--checkpoint-every", 0,
            "--eval-batches", 1_000_000,
        ]  # fmt: skip
        argv = [sys.executable, "-m", "trainer", *map(str, words)]
        ran = subprocess.run(argv, cwd=ROOT, check=False, capture_output=True, text=True)
        if ran.returncode:
            raise SystemExit(f"{trial}: exit code {ran.returncode}\n{ran.stderr[-2000:]}")
        lines = (Path(folder) / "metrics.jsonl").read_text("utf-8").splitlines()
    *_, last = (record for line in lines if (record := json.loads(line))["kind"] == "validation")
    print(f"{trial}: loss {last['loss']:.4f}", file=sys.stderr, flush=True)
    return float(last["loss"])


def _markdown(
    losses: Losses, best: dict[str, float], needed: dict[int, float | None], given: argparse.Namespace
) -> str:
    first = given.seeds[0]
    rows = [f"{given.steps} steps, seeds {', '.join(map(str, given.seeds))}; `{' '.join(given.trainer)}`", ""]
    rows += ["| validation loss, first seed | " + " | ".join(f"lr {lr:g}" for lr in given.rates) + " |"]
    rows += ["|---" * (len(given.rates) + 1) + "|"]
    for optimizer in ("adamw", "muon"):
        found = [losses[Trial(optimizer=optimizer, lr=lr, seed=first)] for lr in given.rates]
        rows.append(f"| {optimizer} | " + " | ".join(f"{loss:.4f}" for loss in found) + " |")
    rows += ["", "| fraction of the tokens | AdamW | " + " | ".join(f"Muon {share:g}" for share in given.shares) + " |"]
    rows += ["|---" * (len(given.shares) + 2) + "|"]
    for seed in given.seeds:
        found = [losses[Trial(optimizer="adamw", lr=best["adamw"], seed=seed)]]
        found += [losses[Trial(optimizer="muon", lr=best["muon"], seed=seed, share=share)] for share in given.shares]
        rows.append(f"| seed {seed} | " + " | ".join(f"{loss:.4f}" for loss in found) + " |")
    reached = [share for share in needed.values() if share is not None]
    each = ", ".join("more than all" if share is None else f"{share:.2f}" for share in needed.values())
    summary = f"{mean(reached):.2f} on average" if len(reached) == len(needed) else "not reached by all"
    return "\n".join([*rows, "", f"Muon needs of AdamW's tokens: {each} ({summary})", ""])


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.muon", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True, help="of `gpt2 prepare`, with --vocab-size 4096")
    parser.add_argument("--steps", type=int, default=800, metavar="N", help="of AdamW")
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 2e-3, 4e-3, 8e-3], metavar="LR")
    parser.add_argument(
        "--shares", type=float, nargs="+", default=[0.4, 0.5, 0.6, 0.7, 1.0], metavar="S", help="of them for Muon"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="SEED")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="runs side by side")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    words = list(argv)
    at = words.index("--") if "--" in words else len(words)
    given = parser.parse_args(words[:at])
    given.trainer = words[at + 1 :] or list(SMALL)
    if given.quick:
        given.steps, given.rates, given.seeds, given.shares = 4, given.rates[:1], given.seeds[:1], [0.5, 1.0]
    return given


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
