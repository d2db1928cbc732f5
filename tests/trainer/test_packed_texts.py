"""Texts one after the other, without padding, give what padded ones give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.test_text_training import fit, folder, portion, workload  # noqa: F401  # fixtures
from trainer.models.encoder import Dropout, Encoder, EncoderShape
from trainer.models.layers import recompute
from trainer.models.packed import Packed, by_length, nested

PROTOTYPE = "ignore:The PyTorch API of nested tensors:UserWarning"
"""Warning of the older nested tensors, which only the kernel for CPUs uses."""
NONE = Dropout(hidden=0.0, attention=0.0, head=0.0)


def pair(folder: Path, tmp_path: Path, **choice: Any) -> list[Any]:  # noqa: F811  # the fixture's result
    """The workload with padded and with packed texts, with the same weights."""
    padded, packed = (
        workload(folder, tmp_path / str(how), packed=how, max_length=192, **choice) for how in (False, True)
    )
    packed.model.load_state_dict(padded.model.state_dict())
    return [padded, packed]


@pytest.mark.parametrize("bucketing", [True, False])
def test_losses_logits_and_gradients_are_those_of_padded_texts(
    folder: Path,  # noqa: F811  # the fixture
    tmp_path: Path,
    bucketing: bool,
) -> None:
    indices = np.random.default_rng(0).permutation(90)[:16]
    losses, gradients, outputs = [], [], []
    for one in pair(folder, tmp_path, bucketing=bucketing, class_weights=("causa",)):
        batch = one.batch(portion(indices))
        assert one.count_samples(batch) == 16
        loss = one.loss_sums(one.model, batch)
        loss.sum().backward()
        losses.append(loss.detach())
        gradients.append(torch.cat([p.grad.flatten() for p in one.model.parameters() if p.grad is not None]))
        with torch.no_grad():
            outputs.append(one._logits(one.model, batch, "train"))
    lengths = one._rows["train"].lengths[indices]
    assert len(batch[2]) == lengths.sum()  # no token of padding
    assert len(set(lengths)) > 4
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-5)


def test_real_spanish_paragraphs_have_the_same_logits(tmp_path: Path) -> None:
    """Logits of a model with several layers, from the shortest paragraph to one that is cut."""
    from tokenizers import Tokenizer

    from trainer.data.text_prepared import Rows

    texts = [
        "El sistema se inicia en varias etapas, una tras otra.",
        "Orden.",
        "La orden muestra en la salida estándar el contenido de los ficheros, en el orden en que se nombran, y continúa"
        " con la entrada estándar cuando no se nombra ninguno o cuando el nombre es un guion.",
        "Véase también la página de manual.",
        "Orden.",
    ]
    tokenizer = Tokenizer.from_str(trained_on(texts))
    encoded = [tokenizer.encode(text).ids for text in texts]
    rows = Rows.__new__(Rows)
    rows._padding, rows.max_length = 0, 24
    rows._tokens = np.concatenate(encoded).astype(np.int32)
    rows._offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in encoded])])
    rows.full_lengths = np.diff(rows._offsets)
    rows.lengths = np.minimum(rows.full_lengths, 24)
    assert rows.lengths[2] < rows.full_lengths[2]
    indices = np.array([3, 2, 1, 0, 4])
    tokens, places, starts, bounds = map(torch.from_numpy, rows.pack(indices))
    width = int(rows.lengths.max())
    padded = torch.from_numpy(rows.take(indices, width))
    mask = torch.from_numpy(np.arange(width) < rows.lengths[indices, None])
    shape = EncoderShape(layers=3, attention_heads=4, width=32, inner_width=64, vocab_size=400, positions=40)
    torch.manual_seed(0)
    model = Encoder(shape, 6, NONE).eval()
    expected = model(padded, mask[:, None, None, :])
    torch.testing.assert_close(model(tokens, Packed(places, starts, bounds, 24)), expected, rtol=1e-4, atol=1e-5)


def trained_on(texts: list[str]) -> str:
    from trainer.data.tokenizer import train_wordpiece

    return str(train_wordpiece(texts, 400).to_str())


def a_row(dtype: torch.dtype = torch.float64) -> tuple[list[torch.Tensor], Packed]:
    lengths = [1, 3, 3, 7]
    bounds = torch.tensor([0, 1, 4, 7, 14], dtype=torch.int32)
    places = torch.cat([torch.arange(length) for length in lengths])
    torch.manual_seed(0)
    parts = [torch.randn(14, 2, 8, dtype=dtype, requires_grad=True) for _ in range(3)]
    return parts, Packed(places, bounds[:-1].long(), bounds, 10)


@pytest.mark.filterwarnings(PROTOTYPE)
def test_the_ways_to_attend_agree_forward_and_backward() -> None:
    """The kernel of a CPU agrees with the one for GPUs, in which torch's nested tensors take another kernel here."""
    found = []
    for attend in (by_length, nested):
        parts, packed = a_row()
        out = attend(*parts, packed, 0.0)
        out.square().sum().backward()
        found.append([out.detach(), *(part.grad for part in parts)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings(PROTOTYPE)
@pytest.mark.parametrize("attend", [by_length, nested])
def test_attention_has_its_dropout(attend: Any) -> None:
    parts, packed = a_row(torch.float32)
    torch.manual_seed(1)
    plain, noisy = attend(*parts, packed, 0.0), attend(*parts, packed, 0.5)
    assert plain.shape == noisy.shape == (14, 2, 8)
    assert not torch.equal(plain, noisy)


def test_recomputed_layers_give_the_same_gradients() -> None:
    tokens = torch.randint(3, 50, (14,), generator=torch.Generator().manual_seed(0))
    _, packed = a_row()
    found = []
    for how in (0, 1):
        torch.manual_seed(0)
        shape = EncoderShape(layers=3, attention_heads=4, width=32, inner_width=64, vocab_size=50, positions=40)
        model = Encoder(shape, 6, Dropout(hidden=0.3, attention=0.3, head=0.3)).train()
        recompute(model.layers, how)
        torch.manual_seed(3)
        model(tokens, packed).square().sum().backward()
        found.append({name: p.grad for name, p in model.named_parameters()})
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_frozen_rows_are_stored_by_either_and_read_by_either(
    folder: Path,  # noqa: F811  # the fixture
    tmp_path: Path,
    dtype: str,
) -> None:
    padded, packed = pair(folder, tmp_path, freeze_layers=1, cache_dtype=dtype)
    indices, more = np.array([5, 0, 9, 3]), np.array([5, 7, 0])
    for one in (packed, padded):
        one.model.eval()
    first = packed.loss_sums(packed.model, packed.batch(portion(indices)))
    expected = padded.loss_sums(padded.model, padded.batch(portion(indices)))
    again = packed.batch(portion(indices))
    assert again[-1].shape == (packed._rows["train"].lengths[indices].sum(), packed._encoder.heads.in_features)
    torch.testing.assert_close(packed.loss_sums(packed.model, again), first, rtol=0, atol=0)
    tolerance = 1e-5 if dtype == "fp32" else 2e-2
    torch.testing.assert_close(first, expected, rtol=tolerance, atol=tolerance)
    assert not len(packed.batch(portion(more))[-1])  # one is not known yet
    packed.loss_sums(packed.model, packed.batch(portion(more)))
    # The padded way reads from the same file what the packed one has stored.
    padded._frozen = packed._frozen
    reads = padded.batch(portion(more))
    assert reads[4].shape[1] > 0
    torch.testing.assert_close(
        padded.loss_sums(padded.model, reads), packed.loss_sums(packed.model, packed.batch(portion(more))),
        rtol=1e-5, atol=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize("more", [(), ("--freeze-layers", "1"), ("--no-bucketing",)], ids=" ".join)
def test_a_training_has_the_losses_and_the_evaluation_of_a_padded_one(fit: Any, tmp_path: Path, more: Any) -> None:  # noqa: F811  # the fixture
    options = ("--epochs", "1", "--batch-size", "16", "--lr", "1e-3", "--max-length", "192", *more)
    padded, packed = (fit(tmp_path / how, *options, f"--{how}packed") for how in ("no-", ""))
    assert (padded.code, packed.code) == (0, 0), padded.err + packed.err
    assert len(packed.losses()) > 4
    assert packed.losses() == pytest.approx(padded.losses(), rel=1e-4)
    assert packed.events("evaluation")[-1]["loss"] == pytest.approx(padded.events("evaluation")[-1]["loss"], rel=1e-4)
