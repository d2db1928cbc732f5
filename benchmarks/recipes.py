"""Figures of the recipes in examples/: what a step sends, and what memory it takes. `python -m benchmarks.recipes`

Traffic is that of the cost model for plain DDP on five nodes, nothing hidden behind computing. Memory is a forecast:
weights, gradients, DDP's copy of them, AdamW's moments, activations and the CUDA context; no card has confirmed it.
"""

from __future__ import annotations

from dataclasses import dataclass

from contract.cost_model.measurement import Measurement, NodeSpeed, SyncCost
from contract.cost_model.memory import MIB, TransformerTraining, forecast_memory
from contract.cost_model.step_time import VALUE, node_set, step_time

NODES = 5
RATES = {"100 Mbit/s": 100e6 / 8, "1 Gbit/s": 1e9 / 8}
CARDS_GB = (4, 8, 24)
CONTEXT_MIB = 600
"""CUDA's context and cuBLAS' workspaces (estimate)."""
SHARE_OF_CARD = 0.9
"""Share of a card that a forecast may fill: a screen or a forecast that is too low takes the rest."""
NF4_BYTES = 0.516
"""Bytes of a weight in nf4 with double quantisation."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One model that a recipe trains, and the sizes on which its figures depend."""

    folder: str
    model: str
    trainable: int
    layers: int = 0
    """0: no transformer; its activations are not forecast."""
    width: int = 0
    seq_len: int = 0
    vocab_size: int = 0
    batch: int = 1
    frozen: int = 0
    """Weights that are not trained, without embeddings."""
    embeddings: int = 0
    frozen_bytes: float = 2
    recomputed: bool = False
    """True if blocks are computed again in the backward pass."""


def qwen(model: str, trainable: int, whole: int, layers: int, width: int) -> tuple[Recipe, Recipe]:
    """Return a model of Qwen3 with LoRA (rank 16, all linear layers): its base in 16 bits, and in 4."""
    embeddings = 151_936 * width
    sizes = {"folder": "lora", "trainable": trainable, "layers": layers, "width": width, "seq_len": 1024}
    sizes |= {"vocab_size": 151_936, "frozen": whole - embeddings, "embeddings": embeddings, "recomputed": True}
    return Recipe(model=model, **sizes), Recipe(model=f"{model} --bits 4", frozen_bytes=NF4_BYTES, **sizes)  # type: ignore[arg-type]  # sizes are all numbers


RECIPES = (
    Recipe(folder="ddp", model="width=64", trainable=1_189_512),
    Recipe(folder="trainer", model="distilbert-base-multilingual-cased", trainable=135_326_210,
           layers=6, width=768, seq_len=128, vocab_size=2, batch=16),
    Recipe(folder="lightning", model="--width 384 --layers 6", trainable=10_822_756,
           layers=6, width=384, seq_len=256, vocab_size=100, batch=32),
    *qwen("Qwen3-0.6B", 10_092_544, 596_049_920, 28, 1024),
    *qwen("Qwen3-1.7B", 17_432_576, 1_720_574_976, 28, 2048),
    *qwen("Qwen3-4B", 33_030_144, 4_022_468_096, 36, 2560),
    *qwen("Qwen3-8B", 43_646_976, 8_190_735_360, 36, 4096),
)  # fmt: skip


def sent(trainable: int, rate: float = RATES["1 Gbit/s"], nodes: int = NODES) -> tuple[float, float]:
    """Return bytes that each node sends in a step of plain DDP, and the seconds that they take."""
    speeds = tuple(
        NodeSpeed(node=str(number), rank=number, sample_s=1e-6, step_s=0, upload=rate, download=rate)
        for number in range(nodes)
    )
    cost = SyncCost(sync="fp32", bytes_per_parameter=VALUE, codec_s_per_parameter=0, collectives=0, every=1,
                    overlap=0, pattern="ring", proven=True)  # fmt: skip
    measured = Measurement(nodes=speeds, latency_s=0, parameters=trainable, samples_per_step=nodes,
                           units_per_sample=1, unit="samples", costs=(cost,))  # fmt: skip
    row = step_time(measured, node_set(speeds, nodes), cost, 1)
    return row.sent_bytes, row.exchange_s


def memory_gb(recipe: Recipe) -> float:
    """Return the forecast of a card's memory for one rank, in GB (10⁹ bytes)."""
    training = TransformerTraining(
        parameters=recipe.trainable, layers=recipe.layers, width=recipe.width, seq_len=recipe.seq_len,
        vocab_size=recipe.vocab_size, micro_batch=recipe.batch, passes=1, loss_chunk=0,
        optimizer_values=2 * recipe.trainable, gradient_checkpointing=int(recipe.recomputed), sync="fp32",
    )  # fmt: skip
    parts = forecast_memory(training, ranks=1, world_size=NODES, first=False).parts
    own = sum(parts[name] for name in ("weights", "gradients", "optimizer", "activations")) + CONTEXT_MIB
    base = recipe.frozen * recipe.frozen_bytes + recipe.embeddings * 2
    untrained = 2 * VALUE * recipe.embeddings  # a frozen output layer has no float32 copy and no gradient
    return (own * MIB + VALUE * recipe.trainable + base - untrained) / 1e9


def row(recipe: Recipe) -> str:
    """Return the line of the recipe's README."""
    count, times = sent(recipe.trainable)[0], [sent(recipe.trainable, rate)[1] for rate in RATES.values()]
    cells = [f"`{recipe.model}`", f"{recipe.trainable / 1e6:.1f} M", f"{count / 1e6:.0f} MB"]
    cells += [f"{seconds:.2g} s" for seconds in times]
    if recipe.layers:
        needed = memory_gb(recipe)
        fits = [f"{size} GB" for size in CARDS_GB if needed <= SHARE_OF_CARD * size]
        cells += [f"{needed:.1f} GB", fits[0] if fits else "none of these"]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    for one in RECIPES:
        print(one.folder, row(one))
