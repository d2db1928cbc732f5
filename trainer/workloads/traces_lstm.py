"""Detection of anomalous traces by an LSTM over their calls in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.data.batch import Batch
from trainer.workloads import Actions, traces, traces_commands

if TYPE_CHECKING:
    from torch import Tensor, nn

    from trainer.data.order import Order

GROUP = 256
"""Traces of similar length that are placed together: those of a large step, or of several small ones."""


def add_commands(actions: Actions) -> None:
    traces_commands.add(actions, LstmTraces)


class LstmTraces(traces.TracesWorkload):
    name = "traces-lstm"
    kind = "lstm"

    @staticmethod
    def parts() -> traces.TraceParts:
        from trainer.data.trace_stream import StreamedTraces
        from trainer.data.traces import sequences
        from trainer.models.traces import SequenceModel

        return traces.TraceParts(SequenceModel, sequences, StreamedTraces)

    @staticmethod
    def logits(model: nn.Module, batch: Batch) -> Tensor:
        events, features, lengths, _ = batch
        found: Tensor = model(events, features, lengths)
        return found

    def order(self, seed: int) -> Order:
        """Order by length: an LSTM takes as many steps as the longest trace of its batch has calls."""
        from trainer.data.order import BlockShuffled, ByLength

        if self.streamed:
            return BlockShuffled(self.samples_here, seed)
        return ByLength(self.samples_here, seed, self.mapped["train"].lengths, GROUP)
