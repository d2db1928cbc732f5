"""Detection of anomalous traces by a graph network over their calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer.data.batch import Batch
from trainer.errors import ConfigurationError
from trainer.options import option
from trainer.workloads import Actions, traces, traces_commands

if TYPE_CHECKING:
    from torch import Tensor, nn

    from trainer.data.order import Order


@dataclass(frozen=True, kw_only=True)
class GnnOptions(traces.TraceOptions):
    """Options of `traces-gnn`."""

    layers: int = option(3, "number of layers", at_least=1)
    convolution: str = option("gin", "graph convolution", choices=("gin", "sage", "gcn"))


def add_commands(actions: Actions) -> None:
    traces_commands.add(actions, GnnTraces)


class GnnTraces(traces.TracesWorkload):
    name = "traces-gnn"
    kind = "gnn"
    options = GnnOptions
    packages = ("torch-geometric",)

    @staticmethod
    def parts() -> traces.TraceParts:
        from trainer.data.trace_stream import StreamedGraphs
        from trainer.data.traces import graphs

        try:
            from trainer.models.trace_graph import GraphModel
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"traces-gnn needs torch-geometric, and there is no module {error.name} here\n"
                "  → echo torch-geometric >> requirements.txt && orch build --requirements requirements.txt\n"
                "  → pip install '.[gnn]'   # in the clone of orch, without containers"
            ) from None

        return traces.TraceParts(GraphModel, graphs, StreamedGraphs)

    @staticmethod
    def logits(model: nn.Module, batch: Batch) -> Tensor:
        events, features, edges, graph, labels = batch
        found: Tensor = model(events, features, edges, graph, len(labels))
        return found

    def order(self, seed: int) -> Order:
        from trainer.data.order import BlockShuffled

        return BlockShuffled(self.samples_here, seed)
