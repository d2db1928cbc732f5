"""Classification of texts by a BERT-type encoder with several heads: commands, model, data, loss and metrics."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import RankInfo, TrainOptions
from trainer.data.batch import Batch, BatchRequest
from trainer.data.manifests import PreparedText
from trainer.engine.workload import Outputs, Workload
from trainer.errors import OptionError
from trainer.option_layers import add_train_options, train_options
from trainer.options import add_options
from trainer.workloads import Actions, text_options
from trainer.workloads.text_options import TextOptions

if TYPE_CHECKING:  # torch is imported by what needs it, so that --help stays quick
    from torch import Tensor, nn

    from trainer.data.order import Indices, Order

WARMUP_SHARE = 0.1
WIDTHS_OF_GRAPHS = 16
"""Texts are padded to a multiple of it with --cuda-graphs: each width is recorded on its own."""


def add_commands(actions: Actions) -> None:
    train = actions.add_parser("train", help="the default action", allow_abbrev=False)
    add_train_options(train)
    add_options(train, TextOptions)
    train.set_defaults(run=_train, check=_check)
    prepare = actions.add_parser("prepare", help="CSV to tokens, and the model they are for", allow_abbrev=False)
    text_options.add_preparation(prepare)
    prepare.set_defaults(run=lambda given, _: import_module("trainer.workloads.text_prepare").prepare(given))
    predict = actions.add_parser("predict", help="CSV in, CSV with predicted labels out", allow_abbrev=False)
    text_options.add_prediction(predict)
    predict.set_defaults(run=lambda given, _: import_module("trainer.workloads.text_predict").predict(given))
    lengths = actions.add_parser("lengths", help="how many tokens texts have, and what to cut", allow_abbrev=False)
    text_options.add_lengths(lengths)
    lengths.set_defaults(run=lambda given, _: import_module("trainer.workloads.text_prepare").lengths(given))


def _check(given: argparse.Namespace, place: RankInfo, data: Path | None) -> None:
    if data:
        _asked(given, place, PreparedText.open(data))


def _train(given: argparse.Namespace, place: RankInfo) -> int:
    prepared = PreparedText.open(given.data_dir or Path("Data"))
    choice, options = _asked(given, place, prepared)
    if given.warmup_steps is None:
        per_epoch = -(-prepared.manifest["texts"]["train"] // options.batches(place.world_size))
        steps = options.max_steps or per_epoch * (options.epochs or 1)
        options = replace(options, warmup_steps=int(steps * WARMUP_SHARE))

    from trainer.engine import loop

    return loop.train(lambda: Text(prepared, options, choice, place), options, place)


def _asked(given: argparse.Namespace, place: RankInfo, prepared: PreparedText) -> tuple[TextOptions, TrainOptions]:
    """Build the options of the workload and of the engine. OptionError: they are invalid, or do not fit the data."""
    choice = text_options.choose(given, prepared)
    if choice.packed and given.cuda_graphs:
        raise OptionError("--packed gives each batch another shape, and --cuda-graphs records each shape: choose one")
    if choice.freeze_layers and choice.cache_frozen and given.cuda_graphs:
        raise OptionError(
            "cached outputs of frozen layers are computed outside of the steps that --cuda-graphs records:"
            " add --no-cache-frozen, or leave --cuda-graphs out"
        )
    watched = f"{max(choice.heads, key=lambda head: choice.heads[head])}_f1"
    defaults: dict[str, Any] = {
        # As BERT is fine-tuned (Devlin et al. 2019, arXiv 1810.04805, A.3); a model from nothing takes larger steps.
        "lr": 5e-5 if prepared.weights_file else 5e-4,
        "min_lr": 0.0, "schedule": "linear", "batch_size": 16, "weight_decay": 0.01, "betas": (0.9, 0.999),
        "eval_every": "epoch", "checkpoint_every": "epoch", "early_stopping": watched, "best": watched, "patience": 3,
    }  # fmt: skip
    if choice.bucketing:  # short texts have larger losses: the loss differs between batches without any fault
        defaults["on_spike"] = "off"
    if given.max_steps is None:
        defaults["epochs"] = 5
    return choice, train_options(given, defaults, place)


class Text(Workload):
    name = "text"
    unit = "texts"

    def __init__(self, prepared: PreparedText, options: TrainOptions, choice: TextOptions, place: RankInfo) -> None:
        from trainer.data.text_prepared import SPLITS, Rows
        from trainer.models import pretrained
        from trainer.models.encoder import Dropout, Encoder, EncoderShape

        self._choice, self._run_dir, self._prepared = choice, options.run_dir, prepared
        self._rows = {split: Rows(prepared, split, choice.max_length) for split in SPLITS}
        self._multiple = WIDTHS_OF_GRAPHS if options.cuda_graphs else 1
        self._packs = {split: self._is_faster_packed(split) for split in SPLITS}
        self.classes = {head: prepared.heads[head] for head in choice.heads}
        self._columns = [list(prepared.heads).index(head) for head in choice.heads]
        self._class_weights = self._balanced_class_weights()
        self.step_sizes = [(0, options.batches(place.world_size))]
        self.loss_weights = dict(choice.heads)
        self.train_samples, self.validation_samples = (len(self._rows[split]) for split in SPLITS)

        shape = EncoderShape(**prepared.manifest["shape"])
        if choice.model_name != prepared.model_name:
            shape = pretrained.random_shape(choice.model_name, shape.vocab_size)
        dropout = Dropout(hidden=choice.dropout, attention=choice.dropout, head=choice.dropout)
        classes = sum(len(names) for names in self.classes.values())
        self._encoder = Encoder(
            shape, classes, dropout, choice.freeze_layers, checkpointing=choice.gradient_checkpointing
        )
        pretrained.fill(self._encoder, prepared.weights_file)
        self.model = self._encoder
        self.identity = {
            "workload": self.name, "model_name": choice.model_name, "data_sha256": prepared.sha256,
            "heads": ",".join(choice.heads), "max_length": choice.max_length, "freeze_layers": choice.freeze_layers,
        }  # fmt: skip
        self.attachments = {
            "tokenizer.json": prepared.file("tokenizer"),
            "text.json": prepared.folder / "manifest.json",
        }
        self._frozen: dict[str, Any] = {}
        if choice.freeze_layers and choice.cache_frozen:
            self._keep_frozen()
            # A checkpoint may bring other frozen weights than those that were just made.
            self._encoder.register_load_state_dict_post_hook(self._keep_frozen)  # type: ignore[no-untyped-call]  # torch's own gap
        if place.rank == 0:
            print(self._summary())

    def batch(self, request: BatchRequest) -> Batch:
        """Labels, row numbers, tokens, mask, cached outputs of the frozen layers, and which rows have them. A second
        dimension of 0 in the last three: no padding, nothing cached, all cached."""
        import numpy as np
        import torch

        from trainer.models import frozen

        if self._packs[request.split]:
            return self._packed_batch(request)
        rows = self._rows[request.split]
        lengths = rows.lengths[request.indices]
        longest = -(-int(lengths.max()) // self._multiple) * self._multiple
        width = min(longest, self._choice.max_length) if self._choice.bucketing else self._choice.max_length
        padded = bool((lengths < width).any())
        mask = np.arange(width if padded else 0) < lengths[:, None]
        cached = self._frozen.get(request.split)
        return (
            torch.from_numpy(rows.labels[request.indices][:, self._columns]),
            torch.from_numpy(np.array(request.indices)),
            torch.from_numpy(rows.take(request.indices, width)),
            torch.from_numpy(mask),
            *frozen.known_rows(cached, request.indices, width),
        )

    def _is_faster_packed(self, split: str) -> bool:
        """Decide as requested, or as measured: without a GPU, if the texts of a batch have many lengths."""
        import torch

        if self._choice.packed is not None:
            return self._choice.packed
        mixed = split != "train" or not self._choice.bucketing
        return mixed and not torch.cuda.is_available()

    def _packed_batch(self, request: BatchRequest) -> Batch:
        """Labels, row numbers, tokens in one row, fields of `Packed`, and cached outputs if all texts have them."""
        import numpy as np
        import torch

        from trainer.models import frozen

        rows, indices = self._rows[request.split], request.indices
        tokens, places, starts, bounds = rows.pack(indices)
        return (
            torch.from_numpy(rows.labels[indices][:, self._columns]),
            *map(torch.from_numpy, (np.array(indices), tokens, places, starts, bounds)),
            frozen.known_packed(self._frozen.get(request.split), indices[starts.argsort()]),
        )

    def order(self, seed: int) -> Order:
        from trainer.data.order import Bucketed

        if not self._choice.bucketing:
            return super().order(seed)
        return Bucketed(self._rows["train"].lengths, seed, self.step_sizes)

    def loss_sums(self, model: nn.Module, batch: Batch) -> Tensor:
        return self._losses(self._logits(model, batch, "train"), batch[0])

    def target_counts(self, split: str, indices: Indices) -> tuple[float, ...]:
        """Count targets; with class weights their sum, as in torch's own weighted mean: exact for any number of
        ranks."""
        labels = self._rows[split].labels[indices][:, self._columns]
        return tuple(
            float(len(indices)) if weights is None else float(weights[labels[:, at]].sum())
            for at, weights in enumerate(self._class_weights)
        )

    def evaluate_batch(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        import torch

        logits = self._logits(model, batch, "validation")
        found = torch.stack([own.argmax(dim=1) for own in self._by_head(logits)], dim=1)
        return self._losses(logits, batch[0]), found

    def metrics(self, losses: Mapping[str, float], outputs: Outputs, indices: Indices) -> dict[str, float]:
        from trainer.workloads import text_report

        return text_report.metrics(self.classes, outputs, self._labels(indices))

    def save_report(self, outputs: Outputs, indices: Indices, folder: Path) -> list[Path]:
        from trainer.workloads import text_report

        history = text_report.history(self._run_dir, list(self.classes))
        return text_report.save_report(self.classes, outputs, self._labels(indices), history, folder)

    # ── The frozen part, the heads ────────────────────────────────────────────────────────────────

    def _logits(self, model: nn.Module, batch: Batch, split: str) -> Tensor:
        from trainer.models import frozen

        if self._packs[split]:
            return self._packed_logits(model, batch, split)
        _, rows, tokens, mask, hidden, known = batch
        among = mask[:, None, None, :] if mask.shape[1] else None
        cached = self._frozen.get(split)
        if cached is None:
            logits: Tensor = model(tokens, among)
        else:
            logits = model(frozen.completed(self._encoder, cached, (rows, tokens, among, hidden, known)), among)
        return logits.float()

    def _packed_logits(self, model: nn.Module, batch: Batch, split: str) -> Tensor:
        from trainer.models import frozen
        from trainer.models.packed import Packed

        _, rows, tokens, places, starts, bounds, hidden = batch
        among = Packed(places, starts, bounds, self._choice.max_length)
        if (cached := self._frozen.get(split)) is not None:
            tokens = (
                hidden.float() if len(hidden) else frozen.completed_packed(self._encoder, cached, rows, tokens, among)
            )
        logits: Tensor = model(tokens, among)
        return logits.float()

    def _by_head(self, logits: Tensor) -> tuple[Tensor, ...]:
        import torch

        return torch.split(logits, [len(names) for names in self.classes.values()], dim=1)

    def _losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        import torch
        from torch.nn import functional as F

        from trainer.data.to_device import constant

        sums, smoothing = [], self._choice.label_smoothing
        for at, own in enumerate(self._by_head(logits)):
            weights = self._class_weights[at]  # on the CPU, where `target_counts` looks at them
            if weights is not None:
                weights = constant(tuple(weights.tolist()), own.device)
            sums.append(F.cross_entropy(own, labels[:, at], weight=weights, label_smoothing=smoothing, reduction="sum"))
        return torch.stack(sums)

    def _labels(self, indices: Indices) -> Indices:
        return self._rows["validation"].labels[indices][:, self._columns]

    def _balanced_class_weights(self) -> list[Tensor | None]:
        """Weights of the classes of each head: equal in total for all classes, for any number of rows."""
        import numpy as np
        import torch

        weights: list[Tensor | None] = []
        for head, column in zip(self.classes, self._columns, strict=True):
            counts = np.bincount(self._rows["train"].labels[:, column], minlength=len(self.classes[head]))
            balanced = counts.sum() / (len(counts) * np.maximum(counts, 1))
            weights.append(torch.tensor(balanced, dtype=torch.float32) if head in self._choice.class_weights else None)
        return weights

    def _keep_frozen(self, *_: object) -> None:
        from trainer.models import frozen

        folder = self._choice.cache_dir
        if folder is None:  # next to the data for later runs, and not in it: data is copied to all nodes
            data = self._prepared.folder.absolute()
            next_to_it = data.with_name(f"{data.name}-frozen")
            folder = next_to_it if os.access(data.parent, os.W_OK) else self._run_dir / "frozen"
        made_of = f"{self._prepared.sha256} {self._choice.max_length}"
        self._frozen = {
            split: frozen.keep(self._encoder, rows.lengths, folder, f"{made_of} {split}", self._choice.cache_dtype)
            for split, rows in self._rows.items()
        }

    def _summary(self) -> str:
        sizes = [(p.numel(), p.requires_grad) for p in self._encoder.parameters()]
        total, trained = sum(size for size, _ in sizes), sum(size for size, is_trained in sizes if is_trained)
        text = f"{trained:,} of {total:,} parameters are trained ({trained / total:.1%})"
        if self._frozen:
            size = sum(cached.nbytes for cached in self._frozen.values()) / 2**20
            text += f"; the outputs of the frozen ones are cached, up to {size:.0f} MiB"
        return text
