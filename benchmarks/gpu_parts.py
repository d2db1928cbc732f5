"""Parts of the proof on a card, the most valuable first, and the goals for their figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.waves import Contestant

ROWS = 1024
"""Prepared texts, of which a tenth is held out."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Contestants that start together and are measured in turn."""

    name: str
    title: str
    module: str
    options: tuple[str, ...]
    """Options of all contestants, on a card. `{data}`: the prepared data; `{pictures}`: its pictures, repeated."""
    names: tuple[str, ...]
    """Candidates; `@` begins a remark that tells two contestants of one candidate apart."""
    twice: tuple[str, ...] = ()
    """Those that are measured first and again last, to show the drift of the card."""
    more: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Further options of a contestant."""
    rehearsal: tuple[str, ...] = ()
    """Options in place of `options`, on a CPU."""
    limit_s: float = 150.0

    def contestants(self, folders: Mapping[str, Path], *, rehearsed: bool) -> tuple[Contestant, ...]:
        """List the contestants; in a rehearsal only one compiles: on a CPU that takes a minute, and shows nothing
        about a card."""
        words = self.rehearsal if rehearsed else (*self.options, "--device", "cuda")
        words = tuple(word.format(**folders) for word in words)
        more = {} if rehearsed else self.more
        return tuple(
            Contestant(
                part=self.name,
                name=name,
                argv=(f"benchmarks.{self.module}", *words, *more.get(name, ()), "--measure", candidate_of(name)),
                turns=2 if name in self.twice else 1,
                environ={"TORCH_COMPILE_DISABLE": "1"} if rehearsed and name not in self.twice else {},
            )
            for name in self.names
        )


def candidate_of(name: str) -> str:
    return name.partition("@")[0]


SHORT = ("--windows", "1", "--steps", "10", "--settle-steps", "2", "--warmup", "5")
TOKENS = ("--data-dir", "{data}/tokens")
TINY = ("--quick", "--device", "cpu", "--threads", "1", "--windows", "2", "--settle-steps", "1")
TINY_TOKENS = (*TINY, *TOKENS)
PARTS = (
    Part(
        name="gpt2",
        title="GPT-2 124M, 16 × 1024 tokens, bfloat16",
        module="gpt2",
        options=(
            *TOKENS, "--batch-size", "16", "--warmup", "10", "--steps", "20", "--windows", "3", "--settle-steps", "5",
        ),
        names=("ours-compiled", "nanogpt-like", "hf-trainer-tuned", "ours-amp"),
        twice=("ours-compiled",),
        rehearsal=TINY_TOKENS,
        limit_s=170,
    ),
    Part(
        name="shipped",
        title="GPT-2 124M, 16 × 1024 tokens, as HF Trainer is shipped: float32, alone on the card",
        module="gpt2",
        options=(*TOKENS, "--batch-size", "16", "--warmup", "3", "--steps", "5"),
        names=("hf-trainer",),
        rehearsal=TINY_TOKENS,
        limit_s=60,
    ),
    Part(
        name="vision",
        title="ResNet-50 at 224, batches of 64, every picture decoded in every epoch",
        module="vision",
        # Loaders have up to two batches per worker ready when their turn comes: these are not timed.
        options=(
            "--images", "{pictures}", "--warmup", "6", "--steps", "20", "--windows", "3", "--settle-steps", "30",
        ),
        names=("ours-compiled-uncached", "timm", "naive"),
        more={"naive": ("--steps", "5", "--settle-steps", "1")},
        rehearsal=(*TINY, "--images", "{pictures}"),
        limit_s=140,
    ),
    Part(
        name="text",
        title="BERT-base with three heads, batches of 16; a window is an epoch",
        module="text",
        options=(
            "--data-dir", "{data}/texts", "--rows", str(ROWS), "--warmup", "20", "--windows", "3",
            "--settle-steps", "37",
        ),
        names=("+cache", "+freeze-graphs", "ours-graphs", "ours", "plain"),
        rehearsal=(*TINY, "--data-dir", "{data}/texts"),
        limit_s=100,
    ),
    Part(
        name="memory",
        title="GPT-2 124M, compiled: memory, at 16 × 1024 tokens unless another batch is named",
        module="gpt2",
        options=(*TOKENS, *SHORT, "--batch-size", "16"),
        names=(
            "ours-most-frugal", "ours-frugal", "ours-chunks",
            "ours-compiled@8", "ours-compiled-fp32@8", "ours-compiled@64",
        ),
        more={
            "ours-compiled@8": ("--batch-size", "8"),
            "ours-compiled-fp32@8": ("--batch-size", "8"),
            "ours-compiled@64": ("--batch-size", "64"),
        },
        rehearsal=TINY_TOKENS,
        limit_s=110,
    ),
)  # fmt: skip
"""The most valuable first: a card may be lent for less time than all of them take."""


# ── Goals ─────────────────────────────────────────────────────────────────────────────────────────

Found = Mapping[tuple[str, str], Mapping[str, Any]]
"""Results by part and contestant."""


@dataclass(frozen=True, kw_only=True)
class Goal:
    text: str
    figure: Callable[[Found], float]
    """KeyError: a result or a figure that it needs is missing."""
    at_least: float = -math.inf
    at_most: float = math.inf


def of(part: str, name: str, figure: str = "units_per_s") -> Callable[[Found], float]:
    return lambda found: float(found[part, name][figure])


def ratio(mine: Callable[[Found], float], other: Callable[[Found], float]) -> Callable[[Found], float]:
    return lambda found: mine(found) / other(found)


def _drift(found: Found) -> float:
    one = found["gpt2", "ours-compiled"]
    return float(one["drift"])


def _frozen_texts(found: Found) -> float:
    """Return the speed of the faster of the two ways to train with frozen layers."""
    speeds = [found.get(("text", name), {}).get("units_per_s", 0.0) for name in ("+cache", "+freeze-graphs")]
    if not any(speeds):
        raise KeyError("neither was measured")
    return float(max(speeds))


OURS = of("gpt2", "ours-compiled")
GOALS = (
    Goal(text="tests of tests/gpu that fail", figure=of("tests", "", "failed"), at_most=0),
    Goal(text="tests of tests/gpu that passed", figure=of("tests", "", "passed"), at_least=1),
    Goal(text="GPT-2: MFU", figure=of("gpt2", "ours-compiled", "MFU"), at_least=0.42),
    Goal(text="GPT-2: speed, to a nanoGPT-like loop", figure=ratio(OURS, of("gpt2", "nanogpt-like")), at_least=1.0),
    Goal(text="GPT-2: speed, to HF Trainer tuned", figure=ratio(OURS, of("gpt2", "hf-trainer-tuned")), at_least=1.05),
    Goal(text="GPT-2: speed, to HF Trainer as shipped", figure=ratio(OURS, of("shipped", "hf-trainer")), at_least=4),
    Goal(text="GPT-2: last turn to first turn (drift)", figure=_drift, at_least=0.97, at_most=1.03),
    Goal(
        text="pictures: speed, to the simple script",
        figure=ratio(of("vision", "ours-compiled-uncached"), of("vision", "naive")),
        at_least=5,
    ),
    Goal(
        text="pictures: speed, to timm",
        figure=ratio(of("vision", "ours-compiled-uncached"), of("vision", "timm")),
        at_least=1.0,
    ),
    Goal(
        text="texts: speed, frozen in bfloat16, to the simple script in float32",
        figure=ratio(_frozen_texts, of("text", "plain")),
        at_least=8,
    ),
    Goal(
        text="memory: bfloat16, to float32 (8 × 1024)",
        figure=ratio(of("memory", "ours-compiled@8", "peak_mib"), of("memory", "ours-compiled-fp32@8", "peak_mib")),
        at_most=0.6,
    ),
    Goal(
        text="memory: blocks checkpointed and chunks, to neither, not compiled",
        figure=ratio(of("memory", "ours-most-frugal", "peak_mib"), of("gpt2", "ours-amp", "peak_mib")),
        at_most=0.4,
    ),
    Goal(
        text="memory: the same, to neither, compiled",
        figure=ratio(of("memory", "ours-most-frugal", "peak_mib"), of("gpt2", "ours-compiled", "peak_mib")),
        at_most=0.5,
    ),
    Goal(text="speed of that, to compiled", figure=ratio(of("memory", "ours-most-frugal"), OURS), at_least=0.7),
)


def summary(found: Found, *, rehearsed: bool) -> list[str]:
    rows = ["| goal | wanted | found | |", "|---|---|---|---|"]
    for goal in GOALS:
        bounds = (("at least", goal.at_least), ("at most", goal.at_most))
        wanted = " and ".join(f"{word} {bound:g}" for word, bound in bounds if math.isfinite(bound))
        try:
            figure = goal.figure(found)
        except KeyError:
            rows.append(f"| {goal.text} | {wanted} | | not measured |")
            continue
        met = "met" if goal.at_least <= figure <= goal.at_most else "missed"
        rows.append(f"| {goal.text} | {wanted} | {figure:.3g} | {'rehearsed' if rehearsed else met} |")
    return rows
