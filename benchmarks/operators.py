"""CPU time of a step of GPT-2 by operator: our model beside transformers', with the same optimizer and clipping.

    python -m benchmarks.operators                     # GPT-2 124M, batches of 4 × 256, float32
    python -m benchmarks.operators --precision bf16 --threads 2
    python -m benchmarks.operators --quick             # test that everything runs

Both are in one process and take steps in turn, so that whatever else the machine does affects both; times are CPU
seconds of all threads, without those of other processes. The profiled step is one more. The last table has the output
layer by itself: with the weights padded in each pass, as they are used, padded once before, and not padded.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpt2_peers import BETAS, CLIP, LR, WEIGHT_DECAY
from benchmarks.report import Spread
from trainer.models import token_loss
from trainer.models.gpt2 import GPT2, Gpt2Shape
from trainer.workloads.gpt2 import PRESETS

Step = Callable[[], float]
"""Takes one step; returns its loss."""
LEAST = 0.005
"""Share of a step from which an operator has a row of its own."""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operators", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--batch-size", type=int, default=4, metavar="N")
    parser.add_argument("--seq-len", type=int, default=256, metavar="N")
    parser.add_argument("--steps", type=int, default=5, metavar="N", help="of each, in turn (default 5)")
    parser.add_argument("--threads", type=int, metavar="N")
    parser.add_argument("--quick", action="store_true", help="small and short, to test that everything runs")
    given = parser.parse_args(argv)
    if given.threads:
        torch.set_num_threads(given.threads)
    preset, vocabulary = (PRESETS["tiny"], 1001) if given.quick else (PRESETS["124m"], 50257)
    if given.quick:
        given.batch_size, given.seq_len, given.steps = 2, 16, 2
    shape = Gpt2Shape(
        layers=preset.layers, heads=preset.heads, width=preset.width, seq_len=given.seq_len, vocab_size=vocabulary
    )
    tokens = torch.randint(shape.vocab_size, (given.batch_size, given.seq_len + 1))
    steps = {"ours": ours(shape, tokens, given.precision), "transformers": theirs(shape, tokens, given.precision)}
    seconds = in_turn(steps, given.steps)
    print(f"{given.batch_size} × {given.seq_len} tokens, {given.precision}, {torch.get_num_threads()} threads\n")
    print("| | CPU time of a step | relative to transformers |\n|---|---|---|")
    for name, own in seconds.items():
        print(f"| {name} | {_spread(own)} s | {_ratio(own, seconds['transformers'])} |")
    print("\n| operator, self CPU time | ours | transformers |\n|---|---|---|")
    table = {name: by_operator(step) for name, step in steps.items()}
    for operator in rows(table):
        print(
            f"| {operator} | " + " | ".join(f"{1000 * one.get(operator, 0.0):.0f} ms" for one in table.values()) + " |"
        )
    print("\n| output layer, forward and backward | CPU time | relative to as it is used |\n|---|---|---|")
    heads = in_turn(output_layers(shape, tokens, given.precision), given.steps)
    for name, own in heads.items():
        print(f"| {name} | {_spread(own)} s | {_ratio(own, next(iter(heads.values())))} |")
    return 0


def ours(shape: Gpt2Shape, tokens: Tensor, precision: str) -> Step:
    torch.manual_seed(0)
    model = GPT2(shape)
    return _step(model, precision, lambda: model(tokens[:, :-1], tokens[:, 1:]) / tokens[:, 1:].numel())


def theirs(shape: Gpt2Shape, tokens: Tensor, precision: str) -> Step:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=shape.vocab_size, n_positions=shape.seq_len, n_embd=shape.width, n_layer=shape.layers,
        n_head=shape.heads, bos_token_id=0, eos_token_id=0, attn_implementation="sdpa", resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).train()
    read = tokens[:, :-1].contiguous()
    return _step(model, precision, lambda: model(input_ids=read, labels=read).loss)


def _step(model: nn.Module, precision: str, loss_of: Callable[[], Tensor]) -> Step:
    """Take a step as HF Trainer does with its usual optimizer, and as our loop does."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True)

    def step() -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_of()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own gap
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def output_layers(shape: Gpt2Shape, tokens: Tensor, precision: str) -> dict[str, Step]:
    """Loss and gradients of the output layer alone."""
    torch.manual_seed(0)
    rows = -(-shape.vocab_size // token_loss.ALIGNMENT) * token_loss.ALIGNMENT
    following = tokens[:, 1:].flatten()
    hidden = torch.randn(len(following), shape.width, requires_grad=True)
    chunk = token_loss.chunk_for(len(following), shape.vocab_size, 0)

    def of(rows: int, loss: Callable[[Tensor], Tensor]) -> Step:
        weight = nn.Parameter(torch.randn(rows, shape.width) * 0.02)

        def step() -> float:
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                found = loss(weight)
            found.backward()  # type: ignore[no-untyped-call]  # torch's own gap
            hidden.grad = weight.grad = None
            return float(found.detach())

        return step

    def whole(weight: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(hidden, weight).float(), following, reduction="sum")

    return {
        "as it is used: in chunks, padded in each pass": of(
            shape.vocab_size, lambda weight: token_loss.token_loss(hidden, weight, following, chunk)
        ),
        "in chunks, padded once": of(rows, lambda weight: token_loss.token_loss(hidden, weight, following, chunk)),
        "at once, not padded": of(shape.vocab_size, whole),
    }


def in_turn(steps: dict[str, Step], count: int) -> dict[str, list[float]]:
    """CPU seconds of the steps of each, after one more."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for number in range(count + 1):
        for name, step in steps.items():
            began = time.process_time()
            step()
            if number:
                seconds[name].append(time.process_time() - began)
    return dict(seconds)


def by_operator(step: Step) -> dict[str, float]:
    """Self CPU seconds of each operator in the thread that computes: those of its helpers are within."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        step()
    return {one.key: one.self_cpu_time_total / 1e6 for one in profiled.key_averages()}


def rows(table: dict[str, dict[str, float]]) -> list[str]:
    """Operators that take a share worth a row, the longest first."""
    longest = {key: max(one.get(key, 0.0) for one in table.values()) for one in table.values() for key in one}
    total = max(sum(one.values()) for one in table.values())
    return sorted((key for key, value in longest.items() if value > LEAST * total), key=lambda key: -longest[key])


def _spread(values: Sequence[float]) -> str:
    found = Spread.of(values)
    assert found  # noqa: S101  # there is at least one step
    return found.text("{:.2f}".format)


def _ratio(own: Sequence[float], others: Sequence[float]) -> str:
    return f"{median(one / other for one, other in zip(own, others, strict=True)):.3f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
