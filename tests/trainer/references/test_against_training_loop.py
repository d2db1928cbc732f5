"""Whole trainings of a GPT-2 against a loop written by hand, with transformers' model and torch's plain AdamW: one and
several ranks, uneven shares, micro-batches, a resume with another number of ranks, and float16."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import GPT2LMHeadModel

from tests.trainer.conftest import Call, Result
from tests.trainer.observed import state
from tests.trainer.references.conftest import Agrees
from trainer.data.order import Shuffled
from trainer.data.shards import PreparedTokens
from trainer.engine.hardware import device
from trainer.models import pretrained_gpt2
from trainer.models.gpt2 import GPT2, Gpt2Shape

STEPS, SAMPLES, LENGTH, SEED = 12, 7, 16, 7
OPTIONS = (
    "--max-steps", str(STEPS), "--global-batch-size", str(SAMPLES), "--batch-size", "2", "--warmup-steps", "4",
    "--seed", str(SEED), "--weight-decay", "0.1", "--clip", "1.0", "--eval-every", "0", "--keep-checkpoints", "9",
)  # fmt: skip
Losses = dict[int, tuple[float, float]]
"""Loss and norm of the gradient of each step."""


def batches(data: Path) -> Iterator[torch.Tensor]:
    """The samples of each step: windows of the token files, in the order of the seed."""
    manifest = json.loads((data / "manifest.json").read_text())
    windows = []
    for shard in manifest["splits"]["train"]["shards"]:
        tokens = np.fromfile(data / shard["file"], manifest["dtype"]).astype(np.int64)
        windows += [tokens[at : at + LENGTH + 1] for at in range(0, len(tokens) - LENGTH, LENGTH)]
    order = Shuffled(len(windows), SEED).take(0, STEPS * SAMPLES)
    for step in range(STEPS):
        yield torch.from_numpy(np.stack([windows[at] for at in order[step * SAMPLES : (step + 1) * SAMPLES]]))


def their_model(data: Path, folder: Path) -> GPT2LMHeadModel:
    """Build their model with the weights with which the trainer begins."""
    prepared = PreparedTokens.open(data)
    torch.manual_seed(SEED)
    ours = GPT2(Gpt2Shape(layers=1, heads=2, width=32, seq_len=LENGTH, vocab_size=prepared.vocab_size))
    pretrained_gpt2.export(ours, prepared.tokenizer_file, folder)
    return GPT2LMHeadModel.from_pretrained(folder).train()


def loop_by_hand(data: Path, folder: Path, rates: Mapping[int, float], *, half: bool = False) -> Losses:
    """The whole batch at once. `rates`: of each step, for the schedule has tests of its own."""
    model, found = their_model(data, folder), {}
    decaying = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decaying, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        betas=(0.9, 0.95), fused=False, foreach=False,
    )  # fmt: skip
    scaler = torch.amp.GradScaler("cpu", enabled=half)
    for step, batch in enumerate(batches(data), 1):
        for group in optimizer.param_groups:
            group["lr"] = rates[step]
        with torch.autocast("cpu", torch.float16, enabled=half):
            logits = model(batch[:, :-1]).logits
        loss = F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        found[step] = loss.item(), norm.item()
    return found


def compared(
    what: str, results: list[Result], expected: Losses, agrees: Agrees, within: tuple[float, float] = (3e-6, 3e-6)
) -> None:
    """Measured: at most 3.3e-7, 3.4e-7; in float16 3.1e-6, 1.3e-4."""
    events = [event for result in results for event in result.events("step")]
    assert [event["step"] for event in events] == list(expected)
    loss, norm = (
        max(abs(event[name] / expected[event["step"]][at] - 1) for event in events)
        for at, name in enumerate(("loss", "grad_norm"))
    )
    agrees(what, "loop written by hand", loss=(loss, within[0]), norm=(norm, within[1]))


def rates_of(*results: Result) -> dict[int, float]:
    return {event["step"]: event["lr"] for result in results for event in result.events("step")}


def test_one_rank(train: Call, data_dir: Path, tmp_path: Path, agrees: Agrees) -> None:
    ran = train(tmp_path / "run", *OPTIONS)
    assert ran.code == 0, ran.err
    expected = loop_by_hand(data_dir, tmp_path / "theirs", rates_of(ran))
    compared("12 steps, 7 samples in micro-batches of 2, 1 rank", [ran], expected, agrees)


@pytest.mark.parametrize(("ranks", "shares"), [(2, "3 + 4"), (3, "2 + 2 + 3")])
def test_several_ranks(
    ranks: int, shares: str, forked: Callable[..., Any], train_command: Any, data_dir: Path, tmp_path: Path,
    agrees: Agrees,
) -> None:  # fmt: skip
    ran = forked(ranks, *train_command(tmp_path / "run"), *OPTIONS).result()
    assert ran.code == 0, ran.err
    expected = loop_by_hand(data_dir, tmp_path / "theirs", rates_of(ran))
    compared(f"12 steps, {ranks} ranks with {shares} samples", [ran], expected, agrees)


def test_resumes_with_other_numbers_of_ranks(
    forked: Callable[..., Any], train: Call, train_command: Any, data_dir: Path, tmp_path: Path, agrees: Agrees
) -> None:
    """Each time within an epoch."""
    run, options = tmp_path / "run", (*OPTIONS, "--schedule", "constant", "--max-steps")
    parts = [
        train(run, *options, "4"),
        forked(3, *train_command(run), *options, "8").result(),
        train(run, *options, "12"),
    ]
    assert [part.code for part in parts] == [0, 0, 0], parts[1].err
    expected = loop_by_hand(data_dir, tmp_path / "theirs", rates_of(*parts))
    compared("12 steps, resumed: 1 rank, then 3, then 1", parts, expected, agrees)


def test_float16(train: Call, data_dir: Path, tmp_path: Path, agrees: Agrees, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs on a CPU, for which the trainer refuses float16 because it is slow there."""
    monkeypatch.setattr(device, "choose_dtype", lambda *_, **__: (torch.float16, "as an old GPU would"))
    ran = train(tmp_path / "run", *OPTIONS)
    assert ran.code == 0, ran.err
    expected = loop_by_hand(data_dir, tmp_path / "theirs", rates_of(ran), half=True)
    assert state(tmp_path / "run", STEPS)["scaler"]["_growth_tracker"] == STEPS
    # float16 has 11 bits, 4.9e-4; the micro-batches' gradients are rounded one by one.
    compared("12 steps in float16 with a scaled loss, 1 rank", [ran], expected, agrees, (3e-5, 1.3e-3))
