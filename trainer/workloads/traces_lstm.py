"""Anomalous traces told by the order of their calls."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.config import RankInfo
from trainer.data.batch import Batch
from trainer.workloads import Actions, traces, traces_commands

if TYPE_CHECKING:
    from torch import Tensor, nn

    from trainer.data.order import Order
    from trainer.data.trace_stream import StreamedTraces
    from trainer.data.traces import Traces
    from trainer.models.traces import Calls, TraceModelShape

GROUP = 256
"""Traces of like length that stand together: a large step's, or those of some small ones."""


def add_commands(actions: Actions) -> None:
    train = actions.add_parser("train", help="the default action", allow_abbrev=False)
    traces.add_options(train)
    train.set_defaults(run=_train, check=_check)
    traces_commands.add(actions, LstmTraces)


def _check(given: argparse.Namespace, place: RankInfo, data: Path | None) -> None:
    traces.check(LstmTraces, given, place, data)


def _train(given: argparse.Namespace, place: RankInfo) -> int:
    return traces.train(LstmTraces, given, place)


class LstmTraces(traces.TracesWorkload):
    name = "traces-lstm"
    kind = "lstm"
    layers = 1

    @staticmethod
    def build(shape: TraceModelShape, calls: Calls) -> nn.Module:
        from trainer.models.traces import SequenceModel

        return SequenceModel(shape, calls)

    @staticmethod
    def to_batch(traces: Traces) -> Batch:
        from trainer.data.traces import sequences

        return sequences(traces)

    @staticmethod
    def dataset() -> type[StreamedTraces]:
        from trainer.data.trace_stream import StreamedTraces

        return StreamedTraces

    @staticmethod
    def logits(model: nn.Module, batch: Batch) -> Tensor:
        events, features, lengths, _ = batch
        found: Tensor = model(events, features, lengths)
        return found

    def order(self, seed: int) -> Order:
        """An LSTM takes as many steps as the longest trace of its batch has calls."""
        from trainer.data.order import BlockShuffled
        from trainer.data.trace_order import ByLength

        if self.streamed:
            return BlockShuffled(self.train_samples, seed)
        return ByLength(self.train_samples, seed, self.mapped["train"].lengths, GROUP)
