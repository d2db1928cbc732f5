"""Gradients of real runs (ranks, accumulation, uneven shares, bfloat16) against one process in float64.

SGD's momentum after the first step is the gradient itself, and a checkpoint keeps it. The references below know nothing
of the engine's sums and scales: they are plain means of torch's own losses over all samples of the step at once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.trainer.conftest import AS_ONE, Call
from tests.trainer.observed import state
from trainer.cli import main
from trainer.config import RankInfo, TrainOptions
from trainer.data.batch import BatchRequest
from trainer.data.manifests import PreparedText
from trainer.engine.hardware.precision import has_native_bf16
from trainer.engine.optimization.optimizer import build_optimizer
from trainer.engine.seeding import seed_everything
from trainer.engine.workload import Workload
from trainer.models.gpt2 import GPT2
from trainer.workloads.gpt2 import Gpt2
from trainer.workloads.text import Text
from trainer.workloads.text_options import TextOptions

SAMPLES = 7
"""Samples of the one step: 2 ranks have 3 and 4 of them, 3 ranks 2, 2 and 3; parts of 2 leave one over."""
STEP = (
    "--max-steps", "1", "--global-batch-size", str(SAMPLES), "--optimizer", "sgd", "--lr", "10", "--clip", "0",
    "--weight-decay", "0", "--warmup-steps", "0", "--schedule", "constant", "--eval-every", "0", "--dropout", "0",
    "--num-workers", "0", "--log-every", "1", "--no-compile",
)  # fmt: skip
OPTIONS = TrainOptions(optimizer="sgd", weight_decay=0.0)
FP32 = 8 * torch.finfo(torch.float32).eps
"""9.5e-7 of the gradient's norm; measured were 1.1e-7 to 2.5e-7."""
BF16 = torch.finfo(torch.bfloat16).eps
"""7.8e-3 of it; measured were 2.5e-3 to 2.7e-3, whether accumulated, on ranks, or at once."""


def gradient(run_dir: Path, workload: Workload) -> dict[str, Tensor]:
    """Compute the gradients by the names of the weights."""
    optimizer = build_optimizer(workload.model, workload.parameter_groups(), OPTIONS, torch.float32)
    optimizer.load_state_dict(state(run_dir, 1)["optimizer"])
    names = {parameter: name for name, parameter in workload.model.named_parameters()}
    return {names[parameter]: saved["momentum_buffer"].double() for parameter, saved in optimizer.state.items()}


def error(found: dict[str, Tensor], loss: Tensor, model: nn.Module) -> float:
    """The distance to the loss's true gradient, in proportion to it. Each weight is there."""
    model.zero_grad()
    loss.backward()
    exact = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert found.keys() == exact.keys()
    distance = [found[name] - grad for name, grad in exact.items() if grad is not None]
    return float(norm(distance) / norm([grad for grad in exact.values() if grad is not None]))


def norm(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in parts]).norm()


def portion(workload: Workload) -> BatchRequest:
    indices = workload.order(OPTIONS.seed).take(0, SAMPLES)
    return BatchRequest(split="train", indices=indices, positions=indices)


# ── GPT-2 ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def gpt2(data_dir: Path) -> Gpt2:
    """Model as the run builds it."""
    seed_everything(OPTIONS.seed)
    shape = {"layers": 1, "heads": 2, "width": 32, "seq_len": 16}
    how = {"dropout": 0.0, "gradient_checkpointing": False, "loss_chunk": 0}
    return Gpt2(TrainOptions(data_dir=data_dir, eval_every=0), shape, how)


def gpt2_error(run_dir: Path, gpt2: Gpt2) -> float:
    found = gradient(run_dir, gpt2)
    model = gpt2.model.double()
    assert isinstance(model, GPT2)
    tokens, following = gpt2.batch(portion(gpt2))
    return error(found, F.cross_entropy(model(tokens).flatten(0, 1), following.flatten()), model)


@pytest.mark.parametrize("parts", [("--batch-size", "7"), ("--batch-size", "2"), ("--micro-batch-size", "3")])
def test_accumulation(parts: tuple[str, str], train: Call, gpt2: Gpt2, tmp_path: Path) -> None:
    run = train(tmp_path, *STEP, *parts)
    assert run.code == 0, run.err
    assert gpt2_error(tmp_path, gpt2) < FP32


@pytest.mark.parametrize(
    ("ranks", "parts"),
    [(2, ("--batch-size", "2")), (3, ("--batch-size", "3"))],
    ids=["accumulated by 2 ranks", "at once on 3 ranks"],
)
def test_ranks(
    ranks: int, parts: tuple[str, str], forked: Callable[..., Any], train_command: Any, gpt2: Gpt2, tmp_path: Path
) -> None:
    run = forked(ranks, *train_command(tmp_path), *STEP, *parts).result()
    assert run.code == 0, run.err
    assert gpt2_error(tmp_path, gpt2) < FP32


needs_bf16 = pytest.mark.skipif(not has_native_bf16(), reason="this CPU has no native bfloat16")


@needs_bf16
@pytest.mark.parametrize("parts", [("--batch-size", "7"), ("--batch-size", "2")])
def test_bfloat16_rounds_and_is_not_biased_by_accumulation(
    parts: tuple[str, str], train: Call, gpt2: Gpt2, tmp_path: Path
) -> None:
    run = train(tmp_path, *STEP, *parts, "--precision", "bf16")
    assert run.code == 0, run.err
    assert FP32 < gpt2_error(tmp_path, gpt2) < BF16


@needs_bf16
def test_ranks_in_bfloat16(forked: Callable[..., Any], train_command: Any, gpt2: Gpt2, tmp_path: Path) -> None:
    run = forked(2, *train_command(tmp_path), *STEP, "--batch-size", "2", "--precision", "bf16").result()
    assert run.code == 0, run.err
    assert FP32 < gpt2_error(tmp_path, gpt2) < BF16


def test_the_step_goes_along_the_gradient(train: Call, gpt2: Gpt2, tmp_path: Path) -> None:
    """Nesterov's first step is 1.9 times the gradient."""
    assert train(tmp_path, *STEP, "--batch-size", "2").code == 0
    before = {name: value.detach().clone().double() for name, value in gpt2.model.named_parameters()}
    after = state(tmp_path, 1)["model"]
    for name, grad in gradient(tmp_path, gpt2).items():
        torch.testing.assert_close(after[name].double(), before[name] - 10 * 1.9 * grad, rtol=1e-6, atol=1e-6)


# ── Text: classes have weights, and so each sample its own ────────────────────────────────────────


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts") / "Data"
    words = ("--csv", "demo", "--rows", "120", "--model-name", "random:tiny", "--vocab-size", "500")
    assert main(["text", "prepare", *words, "--data-dir", str(folder)]) == 0
    return folder


def text_words(texts: Path, run_dir: Path) -> list[str]:
    return [
        "text", "train", "--data-dir", str(texts), "--run-dir", str(run_dir), "--precision", "fp32", *STEP,
        "--class-weights", "all", "--label-smoothing", "0.1", "--max-length", "48",
    ]  # fmt: skip


def text_error(run_dir: Path, texts: Path) -> float:
    """Compare with torch's weighted mean of each head."""
    prepared = PreparedText.open(texts)
    heads, sizes = prepared.head_weights, [len(classes) for classes in prepared.heads.values()]
    choice = TextOptions(
        heads=heads, max_length=48, model_name="random:tiny", dropout=0.0, class_weights=tuple(heads),
        label_smoothing=0.1,
    )  # fmt: skip
    seed_everything(OPTIONS.seed)
    options = TrainOptions(data_dir=texts, run_dir=run_dir, global_batch_size=SAMPLES)
    text = Text(prepared, options, choice, RankInfo())
    found = gradient(run_dir, text)
    labels, _, tokens, mask, *_ = text.batch(portion(text))
    model = text.model.double()
    by_head = torch.split(model(tokens, mask[:, None, None, :] if mask.shape[1] else None), sizes, dim=1)
    loss = torch.zeros((), dtype=torch.float64)
    for at, (share, logits) in enumerate(zip(heads.values(), by_head, strict=True)):
        every = torch.from_numpy(text._rows["train"].labels[:, at])
        weights = len(every) / sizes[at] / torch.bincount(every, minlength=sizes[at]).clamp_min(1).double()
        loss = loss + share * F.cross_entropy(logits, labels[:, at], weight=weights, label_smoothing=0.1)
    return error(found, loss, model)


def test_weighted_classes_accumulated(call: Call, texts: Path, tmp_path: Path) -> None:
    run = call(*text_words(texts, tmp_path), "--batch-size", "2")
    assert run.code == 0, run.err
    assert text_error(tmp_path, texts) < FP32


def test_weighted_classes_on_ranks(forked: Callable[..., Any], texts: Path, tmp_path: Path) -> None:
    run = forked(3, *text_words(texts, tmp_path), "--batch-size", "2", *AS_ONE).result()
    assert run.code == 0, run.err
    assert text_error(tmp_path, texts) < FP32
