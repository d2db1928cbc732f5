"""Forecast of the memory that the ranks of a node take, from the dimensions of a transformer. Pure.

On CPUs, where weights are float32: whatever is over the container's limit there ends it at once, and no error can be
caught. Calibrated against the peak of single processes (docs/launch.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

MIB = 2**20
VALUE = 4
"""Bytes of a float32."""
STATE_VALUE = {"fp32": VALUE, "bf16": 2, "int8": 1 + 1 / 256}
"""Bytes of a value of the optimizer's state."""
PROCESS_MIB = 370
"""A rank that has imported torch, built its first small model and joined its group."""
LAUNCHER_MIB = 260
"""Agent and torchrun, once in a node: torchrun imports torch, too."""
SAVED_PER_TOKEN = 16
"""Values of the width that a block keeps of each token for its backward pass: its input, the output of both norms, q, k
and v, the output of attention, the sum after it, and twice four of the MLP."""
RECOMPUTED = 5
"""Values of these that `--gradient-checkpointing selective` computes again, as it keeps the results of products: the
output of both norms, half of the MLP's, and the sum after attention, while the output after it is kept too."""
BUCKET = 1 << 22
"""Values that a compressed exchange sends together, unless a single tensor has more."""
IN_FLIGHT = 3
"""Such buckets that are sent at a time beside the largest tensor."""
COPIES = 5
"""Memory of a bucket in flight, in copies of its values: read, encoded, received, decoded."""
ERROR = 0.1
"""Share that a forecast may be too low."""


@dataclass(frozen=True, kw_only=True)
class TransformerTraining:
    """Sizes of a training on which its memory depends."""

    parameters: int
    layers: int
    width: int
    seq_len: int
    vocab_size: int
    micro_batch: int
    """Samples of a forward pass."""
    passes: int
    """Forward passes of a step."""
    loss_chunk: int
    """Tokens whose logits are in memory at a time; 0: all."""
    optimizer_values: int
    """Values that the optimizer keeps, of all parameters together."""
    optimizer_state: Literal["fp32", "bf16", "int8"] = "fp32"
    """Format of these values."""
    gradient_checkpointing: int | Literal["selective"] = 0
    """All of every so many blocks is computed again in the backward pass, 0: of none; or all but large products."""
    checkpoint_async: bool = True
    sync: str = "auto"
    fixed: tuple[str, ...] = ()
    """Names of options that the user has given: these are not changed."""


@dataclass(frozen=True, kw_only=True)
class MemoryForecast:
    """Peak of a node in MiB, by what it is for."""

    parts: Mapping[str, int]

    @property
    def total_mib(self) -> int:
        return sum(self.parts.values())

    @property
    def needed_mib(self) -> int:
        """Memory with which a node does not run out, should the forecast be too low."""
        return int(self.total_mib * (1 + ERROR))

    def __str__(self) -> str:
        return ", ".join(f"{name} {mib}" for name, mib in self.parts.items() if mib)


def forecast_memory(training: TransformerTraining, *, ranks: int, world_size: int, first: bool) -> MemoryForecast:
    """Forecast for a node with `ranks` of `world_size`. `first`: rank 0 is there, which writes the checkpoints."""
    weights = training.parameters * VALUE
    state = int(training.optimizer_values * STATE_VALUE[training.optimizer_state])
    compressed = world_size > 1 and training.sync != "fp32"  # `auto` may choose such an exchange
    unsent = _unsent(training, world_size) * compressed
    copied = (weights + state) * first + unsent * ranks if training.checkpoint_async else 0
    # Those of a single rank with one pass appear while activations are freed, and take over their memory.
    alone = world_size == 1 and training.passes == 1
    gradients = max(0, weights - _of_activations(training)) if alone else weights
    return MemoryForecast(
        parts={
            "processes": PROCESS_MIB * ranks + LAUNCHER_MIB,
            "weights": _mib(weights * ranks),
            "gradients": _mib(gradients * ranks),
            "optimizer": _mib(state * ranks),
            "activations": _mib(_of_activations(training) * ranks),
            "exchange": _mib(exchange_bytes(training, world_size=world_size) * compressed * ranks),
            "checkpoint copy": _mib(copied),
        }
    )


def smaller(training: TransformerTraining) -> Iterator[TransformerTraining]:
    """The training itself, then the same with less and less memory, by options that do not change its result: smaller
    micro-batches, no copy for checkpoints, blocks that are computed twice. The cheapest in time first."""
    yield training
    if "micro_batch_size" not in training.fixed:
        while training.micro_batch > 1:
            training = replace(training, micro_batch=training.micro_batch // 2, passes=training.passes * 2)
            yield training
    if training.checkpoint_async and "checkpoint_async" not in training.fixed:
        training = replace(training, checkpoint_async=False)
        yield training
    if not training.gradient_checkpointing and "gradient_checkpointing" not in training.fixed:
        yield replace(training, gradient_checkpointing=2)  # on a CPU cheaper than "selective", and less memory
        yield replace(training, gradient_checkpointing=1)


def words_of(asked: TransformerTraining, chosen: TransformerTraining) -> tuple[str, ...]:
    """Options of the trainer that turn the first into the second."""
    words: list[str] = []
    if chosen.micro_batch != asked.micro_batch:
        words += ["--micro-batch-size", str(chosen.micro_batch)]
    if chosen.checkpoint_async != asked.checkpoint_async:
        words.append("--no-checkpoint-async")
    if chosen.gradient_checkpointing != asked.gradient_checkpointing:
        words.append("--gradient-checkpointing")
        words += [str(chosen.gradient_checkpointing)] if chosen.gradient_checkpointing != 1 else []
    return tuple(words)


def _of_activations(training: TransformerTraining) -> int:
    """Bytes at the end of a forward pass, with the loss."""
    tokens = training.micro_batch * training.seq_len
    block = tokens * training.width * SAVED_PER_TOKEN * VALUE
    blocks, again = block * training.layers, training.gradient_checkpointing
    if again == "selective":  # and what one block computes again
        blocks -= (training.layers - 1) * tokens * training.width * RECOMPUTED * VALUE
    elif again:  # of these blocks the inputs, and one block that is computed again
        few = -(-training.layers // again)
        blocks -= (few - 1) * (block - tokens * training.width * VALUE)
    chunk = min(tokens, training.loss_chunk or tokens)
    # logits and their logarithms; a copy of the output layer and its gradient; gradients of hidden states
    loss = 2 * chunk * training.vocab_size + 2 * training.vocab_size * training.width + 3 * tokens * training.width
    return blocks + loss * VALUE


def exchange_bytes(training: TransformerTraining, *, world_size: int) -> int:
    """Bytes of a compressed exchange of gradients on each rank."""
    return _unsent(training, world_size) + _in_flight(training)


def _unsent(training: TransformerTraining, world_size: int) -> int:
    """Bytes of what is left to send: of all values, and of this rank's part of their mean."""
    weights = training.parameters * VALUE
    return weights + weights // world_size


def _in_flight(training: TransformerTraining) -> int:
    """Bytes of a compressed exchange while the ranks send."""
    largest = training.vocab_size * training.width
    return COPIES * VALUE * (largest + IN_FLIGHT * min(BUCKET, training.parameters // 8))


def _mib(count: int) -> int:
    return -(-count // MIB)
