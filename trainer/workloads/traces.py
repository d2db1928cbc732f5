"""What the two trace workloads share: where traces come from, the loss, the measures of anomaly detection."""

from __future__ import annotations

import argparse
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import RankInfo, TrainOptions
from trainer.data.batch import Batch, BatchRequest
from trainer.data.prepared_folder import TRACES, read_manifest
from trainer.engine.workload import Outputs, Workload
from trainer.errors import ConfigurationError, OptionError
from trainer.option_layers import add_train_options, train_options

if TYPE_CHECKING:  # torch is imported by what needs it, so that --help stays quick
    from torch import Tensor, nn

    from trainer.data.order import Indices
    from trainer.data.trace_files import Vocabulary
    from trainer.data.trace_stream import StreamedTraces
    from trainer.data.traces import Traces
    from trainer.models.traces import Calls, TraceModelShape

LOADERS = ("auto", "mapped", "stream")
VOCABULARY = "traces.json"
MOST_WORKERS = 4
DEFAULTS = {
    "batch_size": 32,
    "lr": 3e-3,
    "weight_decay": 0.01,
    "eval_every": "epoch",
    "checkpoint_every": "epoch",
    "best": "auroc",
}


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The workload's own options."""

    loader: str = "auto"
    buffer: int = 1000
    longest: int = 256
    width: int = 64
    layers: int = 1
    dropout: float = 0.0
    pos_weight: str | float = 1.0
    convolution: str = ""

    def __post_init__(self) -> None:
        least = {"buffer": 0, "longest": 1, "width": 1, "layers": 1}
        names = {"buffer": "shuffle-buffer-size", "longest": "max-length"}
        wrong = [
            f"--{names.get(name, name)} {getattr(self, name)}: expected at least {smallest}"
            for name, smallest in least.items()
            if getattr(self, name) < smallest
        ]
        if not 0 <= self.dropout < 1:
            wrong.append(f"--dropout {self.dropout:g}: expected 0 or more and less than 1")
        if isinstance(self.pos_weight, float) and not self.pos_weight > 0:
            wrong.append(f"--pos-weight {self.pos_weight:g}: expected more than 0, or auto")
        if wrong:
            raise OptionError("\n".join(wrong))


def add_options(train: argparse.ArgumentParser) -> None:
    add_train_options(train)
    data = train.add_argument_group("traces")
    data.add_argument(
        "--loader", choices=LOADERS,
        help="mapped: prepared shards in batches; stream: .pt files trace by trace (auto: as what is in --data-dir)",
    )  # fmt: skip
    data.add_argument(
        "--shuffle-buffer-size", type=int, metavar="N", help="of --loader stream (default 1000; 0: the files' order)"
    )
    data.add_argument("--max-length", "--seq-len", type=int, metavar="N", help="calls of a trace that count (256)")
    model = train.add_argument_group("model")
    model.add_argument("--width", type=int, metavar="N", help="default 64")
    model.add_argument("--layers", type=int, metavar="N")
    model.add_argument("--dropout", type=float, metavar="P", help="default 0")
    model.add_argument(
        "--pos-weight", type=_weight, metavar="W|auto", help="how much an anomaly weighs (1; auto: as rare as they are)"
    )


def _weight(text: str) -> float | str:
    return text if text == "auto" else float(text)


_weight.__name__ = "number or auto"


def check(kind: type[TracesWorkload], given: argparse.Namespace, place: RankInfo, data: Path | None) -> None:
    choices, _ = _asked(kind, given, place)
    if data and not is_stream(choices.loader, data):
        read_manifest(data, TRACES)


def train(kind: type[TracesWorkload], given: argparse.Namespace, place: RankInfo) -> int:
    choices, options = _asked(kind, given, place)

    from trainer.engine import loop

    return loop.train(lambda: kind(options, choices), options, place)


def _asked(kind: type[TracesWorkload], given: argparse.Namespace, place: RankInfo) -> tuple[Choices, TrainOptions]:
    """The options of the workload and of the engine. OptionError where they cannot be."""
    own = {
        "loader": given.loader,
        "buffer": given.shuffle_buffer_size,
        "longest": given.max_length,
        "width": given.width,
        "layers": given.layers or kind.layers,
        "dropout": given.dropout,
        "pos_weight": given.pos_weight,
        "convolution": getattr(given, "convolution", None),
    }
    choices = Choices(**{name: value for name, value in own.items() if value is not None})
    return choices, train_options(given, DEFAULTS, place)


def is_stream(loader: str, folder: Path) -> bool:
    """What lies in the folder decides, unless the user does: a manifest, or .pt files as other tools leave them."""
    if loader == "auto":
        return not (folder / "manifest.json").exists() and next(folder.rglob("*.pt"), None) is not None
    return loader == "stream"


class TracesWorkload(Workload):
    """A binary classifier of traces. `kind` models differ in how a batch looks, not in what it means."""

    kind: str
    layers: int
    unit = "traces"
    compile_gain = 0.0
    """Each batch has another size."""

    def __init__(self, options: TrainOptions, choices: Choices) -> None:
        from trainer.models.traces import Calls, TraceModelShape

        self._options, self._choices = options, choices
        self.streamed = is_stream(choices.loader, options.data_dir)
        about = self._open_folder() if self.streamed else self._open_shards()
        self.train_samples, self.validation_samples = (about["samples"][split] for split in ("train", "validation"))
        positives = about["positives"]
        self._refuse_one_class(positives)
        negatives = self.train_samples - positives["train"]
        chosen = choices.pos_weight
        self._pos_weight = negatives / positives["train"] if isinstance(chosen, str) else chosen
        sizes: dict[str, Any] = {"event_kinds": about["event_kinds"], "features": about["features"]}
        sizes |= {"width": choices.width, "layers": choices.layers}
        if choices.convolution:
            sizes["convolution"] = choices.convolution
        shape = TraceModelShape(**sizes, dropout=choices.dropout)
        self.model = self.build(shape, Calls(shape, about["mean"], about["deviation"]))
        self.identity = {"workload": self.name, **sizes, "max_length": choices.longest}

    # ── What the two kinds differ in ──────────────────────────────────────────────────────────────

    @staticmethod
    @abstractmethod
    def build(shape: TraceModelShape, calls: Calls) -> nn.Module:
        """The model."""

    @staticmethod
    @abstractmethod
    def to_batch(traces: Traces) -> Batch:
        """Labels come last."""

    @staticmethod
    @abstractmethod
    def dataset() -> type[StreamedTraces]:
        """Of samples that its own `collate` takes."""

    @staticmethod
    @abstractmethod
    def logits(model: nn.Module, batch: Batch) -> Tensor:
        """(traces,)"""

    # ── Data ──────────────────────────────────────────────────────────────────────────────────────

    def _open_shards(self) -> dict[str, Any]:
        from trainer.data.trace_shards import MappedTraces, PreparedTraces

        prepared = PreparedTraces.open(self._options.data_dir)
        manifest, splits = prepared.manifest, ("train", "validation")
        self.mapped = {name: MappedTraces(prepared, name, self._choices.longest) for name in splits}
        self.attachments = {VOCABULARY: prepared.folder / "manifest.json"}
        return {
            "samples": {name: prepared.split(name)["samples"] for name in splits},
            "positives": {name: prepared.split(name)["positives"] for name in splits},
            "event_kinds": manifest["event_kinds"],
            "features": len(manifest["features"]),
            "mean": manifest["mean"],
            "deviation": manifest["deviation"],
        }

    def _open_folder(self) -> dict[str, Any]:
        from trainer.data.trace_stream import StreamSettings
        from trainer.data.trace_tensors import open_folder

        self._folder = open_folder(self._options.data_dir, self.kind)
        self._held_back = self.dataset()(
            self._folder.validation, StreamSettings(buffer=0, longest=self._choices.longest)
        )
        return {**vars(self._folder), "samples": {name: self._folder.samples(name) for name in ("train", "validation")}}

    def _refuse_one_class(self, positives: Mapping[str, int]) -> None:
        samples = {"train": self.train_samples, "validation": self.validation_samples}
        for split, count in samples.items():
            if not 0 < positives[split] < count:
                raise ConfigurationError(
                    f"{self._options.data_dir}: {positives[split]} of {count} {split} traces are anomalies:"
                    " both kinds are needed, to learn and to judge by; prepare more traces"
                )

    def batch(self, request: BatchRequest) -> Batch:
        if self.streamed:
            return self.collate([self._held_back.sample(int(number)) for number in request.indices])
        return self.to_batch(self.mapped[request.split].take(request.indices))

    def stream(self, rank: int, world_size: int, skip: int, share: int) -> Iterable[Batch]:
        from trainer.data.trace_stream import StreamSettings

        reading = StreamSettings(
            buffer=self._choices.buffer,
            longest=self._choices.longest,
            seed=self._options.seed,
            rank=rank,
            world_size=world_size,
            endless=True,
            skip=skip,
            batch_size=share,
        )
        return self.dataset()(self._folder.train, reading)

    @property
    def stream_workers(self) -> int | None:
        return min(len(self._folder.train), MOST_WORKERS) if self.streamed else None

    def collate(self, samples: list[Batch]) -> Batch:
        return self.dataset().collate(samples)

    def count_samples(self, batch: Batch) -> int:
        return len(batch[-1])  # a batch of graphs holds their calls one after another

    # ── Loss and measures ─────────────────────────────────────────────────────────────────────────

    def loss_sums(self, model: nn.Module, batch: Batch) -> Tensor:
        return self._loss(self.logits(model, batch), batch[-1])

    def evaluate_batch(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        import torch

        logits = self.logits(model, batch)
        return self._loss(logits, batch[-1]), torch.stack([logits.float().sigmoid(), batch[-1]], dim=1)

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        import torch
        from torch.nn import functional as F

        weight = torch.tensor(self._pos_weight, device=logits.device)
        total = F.binary_cross_entropy_with_logits(logits.float(), labels, pos_weight=weight, reduction="sum")
        return total.reshape(1)

    def metrics(self, losses: Mapping[str, float], outputs: Outputs, indices: Indices) -> dict[str, float]:
        from trainer.workloads.traces_metrics import measures

        return measures(outputs)

    def save_report(self, outputs: Outputs, indices: Indices, folder: Path) -> list[Path]:
        from trainer.workloads.traces_metrics import draw

        return draw(outputs, folder)


def vocabulary_of(manifest: Mapping[str, Any]) -> Vocabulary:
    """As `prepare` numbered the events."""
    from trainer.data.trace_files import Vocabulary

    events = {name: number for number, name in enumerate(manifest["events"], start=1)}
    return Vocabulary(events=events, features=list(manifest["features"]))
