"""Anomalous traces told by who calls whom."""

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

CONVOLUTIONS = ("gin", "sage", "gcn")


def add_commands(actions: Actions) -> None:
    train = actions.add_parser("train", help="the default action", allow_abbrev=False)
    traces.add_options(train)
    train.add_argument("--convolution", choices=CONVOLUTIONS, help="how messages are mixed (default gin)")
    train.set_defaults(run=_train, check=_check)
    traces_commands.add(actions, GnnTraces)


def _check(given: argparse.Namespace, place: RankInfo, data: Path | None) -> None:
    traces.check(GnnTraces, given, place, data)


def _train(given: argparse.Namespace, place: RankInfo) -> int:
    given.convolution = given.convolution or CONVOLUTIONS[0]
    return traces.train(GnnTraces, given, place)


class GnnTraces(traces.TracesWorkload):
    name = "traces-gnn"
    kind = "gnn"
    layers = 3

    @staticmethod
    def build(shape: TraceModelShape, calls: Calls) -> nn.Module:
        from trainer.models.trace_graph import GraphModel

        return GraphModel(shape, calls)

    @staticmethod
    def to_batch(traces: Traces) -> Batch:
        from trainer.data.traces import graphs

        return graphs(traces)

    @staticmethod
    def dataset() -> type[StreamedTraces]:
        from trainer.data.trace_stream import StreamedGraphs

        return StreamedGraphs

    @staticmethod
    def logits(model: nn.Module, batch: Batch) -> Tensor:
        events, features, edges, graph, labels = batch
        found: Tensor = model(events, features, edges, graph, len(labels))
        return found

    def order(self, seed: int) -> Order:
        from trainer.data.order import BlockShuffled

        return BlockShuffled(self.train_samples, seed)
