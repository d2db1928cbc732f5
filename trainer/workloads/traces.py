"""Common part of the two trace workloads: options, data, loss and metrics of anomaly detection."""

from __future__ import annotations

import argparse
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trainer.config import RankInfo, TrainOptions
from trainer.data.batch import Batch, BatchRequest
from trainer.data.prepared_folder import TRACES, read_manifest
from trainer.engine.workload import Outputs, Workload
from trainer.errors import ConfigurationError, OptionError
from trainer.option_layers import train_options
from trainer.options import option, out_of_range, values_given

if TYPE_CHECKING:  # torch is imported by what needs it, so that --help stays quick
    from torch import Tensor, nn

    from trainer.data.order import Indices
    from trainer.data.trace_stream import StreamedTraces
    from trainer.data.traces import Traces
    from trainer.models.traces import Calls, TraceModelShape

VOCABULARY = "traces.json"
MOST_WORKERS = 4
DEFAULTS = {
    "batch_size": 32, "lr": 3e-3, "weight_decay": 0.01,
    "eval_every": "epoch", "checkpoint_every": "epoch", "best": "auroc",
}  # fmt: skip


def _weight(text: str) -> float | str:
    return text if text == "auto" else float(text)


_weight.__name__ = "number or auto"


@dataclass(frozen=True, kw_only=True)
class TraceOptions:
    """Options of both trace workloads."""

    loader: str = option(
        "auto", "mapped: prepared shards in batches; stream: .pt files trace by trace (default: auto, by the contents"
        " of --data-dir)", section="traces", choices=("auto", "mapped", "stream"),
    )  # fmt: skip
    shuffle_buffer_size: int = option(
        1000, "traces to choose the next one from with --loader stream, 0: the order of the files", at_least=0
    )
    max_length: int = option(256, "calls of a trace that are read, the first ones", aliases=("--seq-len",), at_least=1)
    width: int = option(64, "size of the hidden state", section="model", at_least=1)
    layers: int = option(1, "number of layers", at_least=1)
    dropout: float = option(0.0, "dropout between layers", metavar="P", at_least=0, below=1)
    pos_weight: str | float = option(
        1.0, "weight of an anomaly in the loss; auto: the ratio of normal traces to anomalies", metavar="W|auto",
        read=_weight, above=0,
    )  # fmt: skip
    convolution: str = ""

    def __post_init__(self) -> None:
        if wrong := out_of_range(self):
            raise OptionError("\n".join(wrong))


def is_stream(loader: str, folder: Path) -> bool:
    """Return whether traces are streamed: by --loader, or if it is auto, by a folder of .pt files without a
    manifest."""
    if loader == "auto":
        return not (folder / "manifest.json").exists() and next(folder.rglob("*.pt"), None) is not None
    return loader == "stream"


class TraceParts(NamedTuple):
    """Differences of the two kinds. They need torch."""

    model: Callable[[TraceModelShape, Calls], nn.Module]
    to_batch: Callable[[Traces], Batch]
    """Create a batch, labels last."""
    dataset: type[StreamedTraces]
    """Dataset of single samples, with a `collate` for them."""


class TracesWorkload(Workload):
    """Binary classifier of traces. The two kinds differ in the format of a batch, not in its meaning."""

    kind: str
    options: type[TraceOptions] = TraceOptions
    packages: tuple[str, ...] = ()
    """Packages that the training needs and that the image has only where a project adds them."""
    unit = "traces"

    def __init__(self, options: TrainOptions, choices: TraceOptions) -> None:
        from trainer.models.traces import Calls, TraceModelShape

        self._options, self._choices = options, choices
        self.streamed = is_stream(choices.loader, options.data_dir)
        about = self._open_folder() if self.streamed else self._open_shards()
        samples, positives = about["samples"], about["positives"]
        for split, count in samples.items():
            if not 0 < positives[split] < count:
                raise ConfigurationError(
                    f"{options.data_dir}: {positives[split]} of {count} {split} traces are anomalies:"
                    " both classes are needed, for training and for validation; prepare more traces"
                )
        self.train_samples, self.validation_samples = samples["train"], samples["validation"]
        negatives = self.train_samples - positives["train"]
        chosen = choices.pos_weight
        self._pos_weight = negatives / positives["train"] if isinstance(chosen, str) else chosen
        sizes: dict[str, Any] = {"event_kinds": about["event_kinds"], "features": about["features"]}
        sizes |= {"width": choices.width, "layers": choices.layers}
        if choices.convolution:
            sizes["convolution"] = choices.convolution
        shape = TraceModelShape(**sizes, dropout=choices.dropout)
        self.model = self.parts().model(shape, Calls(shape, about["mean"], about["deviation"]))
        self.identity = {"workload": self.name, **sizes, "max_length": choices.max_length}

    # ── Commands ──────────────────────────────────────────────────────────────────────────────────

    @classmethod
    def check(cls, given: argparse.Namespace, place: RankInfo, data: Path | None) -> None:
        options, _ = cls._asked(given, place)
        if data and not is_stream(options.loader, data):
            read_manifest(data, TRACES)

    @classmethod
    def train(cls, given: argparse.Namespace, place: RankInfo) -> int:
        own, options = cls._asked(given, place)

        from trainer.engine import loop

        return loop.train(lambda: cls(options, own), options, place)

    @classmethod
    def _asked(cls, given: argparse.Namespace, place: RankInfo) -> tuple[TraceOptions, TrainOptions]:
        """Build the options of the workload and of the engine. OptionError: they are invalid."""
        return cls.options(**values_given(given, cls.options)), train_options(given, DEFAULTS, place)

    @staticmethod
    @abstractmethod
    def parts() -> TraceParts: ...

    @staticmethod
    @abstractmethod
    def logits(model: nn.Module, batch: Batch) -> Tensor:
        """Compute the logits, (traces,)."""

    # ── Data ──────────────────────────────────────────────────────────────────────────────────────

    def _open_shards(self) -> dict[str, Any]:
        from trainer.data.trace_shards import MappedTraces, PreparedTraces

        prepared = PreparedTraces.open(self._options.data_dir)
        splits = ("train", "validation")
        self.mapped = {name: MappedTraces(prepared, name, self._choices.max_length) for name in splits}
        self.held_samples = len(self.mapped["train"]) if prepared.is_part else None
        self.attachments = {VOCABULARY: prepared.folder / "manifest.json"}
        counts = {key: {name: prepared.split(name)[key] for name in splits} for key in ("samples", "positives")}
        return {**prepared.manifest, **counts, "features": len(prepared.manifest["features"])}

    def _open_folder(self) -> dict[str, Any]:
        from trainer.data.trace_stream import StreamSettings
        from trainer.data.trace_tensors import open_folder

        self._folder = open_folder(self._options.data_dir, self.kind)
        reading = StreamSettings(buffer=0, longest=self._choices.max_length)
        self._held_back = self.parts().dataset(self._folder.validation, reading)
        return {**vars(self._folder), "samples": {name: self._folder.samples(name) for name in ("train", "validation")}}

    def batch(self, request: BatchRequest) -> Batch:
        if self.streamed:
            return self.collate([self._held_back.sample(int(number)) for number in request.indices])
        return self.parts().to_batch(self.mapped[request.split].take(request.indices))

    def stream(self, rank: int, world_size: int, skip: int, share: int) -> Iterable[Batch]:
        from trainer.data.trace_stream import StreamSettings

        reading = StreamSettings(
            buffer=self._choices.shuffle_buffer_size,
            longest=self._choices.max_length,
            seed=self._options.seed,
            rank=rank,
            world_size=world_size,
            endless=True,
            skip=skip,
            batch_size=share,
        )
        return self.parts().dataset(self._folder.train, reading)

    @property
    def stream_workers(self) -> int | None:
        return min(len(self._folder.train), MOST_WORKERS) if self.streamed else None

    def collate(self, samples: list[Batch]) -> Batch:
        return self.parts().dataset.collate(samples)

    def count_samples(self, batch: Batch) -> int:
        return len(batch[-1])  # a batch of graphs holds their calls one after another

    # ── Loss and metrics ──────────────────────────────────────────────────────────────────────────

    def loss_sums(self, model: nn.Module, batch: Batch) -> Tensor:
        return self._loss(self.logits(model, batch), batch[-1])

    def evaluate_batch(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        import torch

        logits = self.logits(model, batch)
        return self._loss(logits, batch[-1]), torch.stack([logits.float().sigmoid(), batch[-1]], dim=1)

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        import torch
        from torch.nn import functional as F

        weight = torch.full((), float(self._pos_weight), device=logits.device)
        total = F.binary_cross_entropy_with_logits(logits.float(), labels, pos_weight=weight, reduction="sum")
        return total.reshape(1)

    def metrics(self, losses: Mapping[str, float], outputs: Outputs, indices: Indices) -> dict[str, float]:
        from trainer.workloads.traces_metrics import measures

        return measures(outputs)

    def save_report(self, outputs: Outputs, indices: Indices, folder: Path) -> list[Path]:
        from trainer.workloads.traces_metrics import draw

        return draw(outputs, folder)
