"""Parts of the models of traces, and the recurrent model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class TraceModelShape:
    event_kinds: int
    features: int
    width: int
    layers: int
    dropout: float = 0.0
    convolution: str = ""
    """Convolution of a graph model: gin, sage or gcn."""


class Calls(nn.Module):
    """Embedding of single calls: (…) events and (…, features) numbers to (…, width)."""

    def __init__(self, shape: TraceModelShape, mean: Sequence[float] = (), deviation: Sequence[float] = ()) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.event_kinds, shape.width)
        self.numbers = nn.Linear(shape.features, shape.width) if shape.features else None
        # Part of the state: a loaded model scales as in training.
        self.mean: Tensor
        self.deviation: Tensor
        self.register_buffer("mean", torch.tensor(list(mean) or [0.0] * shape.features))
        self.register_buffer("deviation", torch.tensor(list(deviation) or [1.0] * shape.features))

    def forward(self, events: Tensor, features: Tensor) -> Tensor:
        known = torch.where(events < self.embedding.num_embeddings, events, 0)
        calls: Tensor = self.embedding(known)
        if self.numbers is not None:
            # Durations span magnitudes: logarithms show the unusual ones.
            scaled = (features.sign() * features.abs().log1p() - self.mean) / self.deviation
            calls = calls + self.numbers(scaled)
        return calls


class SequenceModel(nn.Module):
    """An LSTM over the calls, with all its states pooled: a fault early in a long trace is not forgotten. Padding comes
    last, without packing, which is slower on a CPU and waits for the lengths on a GPU."""

    def __init__(self, shape: TraceModelShape, calls: Calls) -> None:
        super().__init__()
        self.calls = calls
        dropout = shape.dropout if shape.layers > 1 else 0.0
        self.lstm = nn.LSTM(shape.width, shape.width, shape.layers, batch_first=True, dropout=dropout)
        self.head = Head(3 * shape.width, shape)

    def forward(self, events: Tensor, features: Tensor, lengths: Tensor) -> Tensor:
        """(batch, length) events to (batch,) logits."""
        states, _ = self.lstm(self.calls(events, features))
        inside = (torch.arange(states.shape[1], device=lengths.device) < lengths[:, None]).unsqueeze(2)
        last = states[torch.arange(len(lengths), device=lengths.device), lengths - 1]
        mean = (states * inside).sum(1) / lengths[:, None]
        highest = states.masked_fill(~inside, -1.0).amax(1)  # an LSTM's states are between -1 and 1
        logits: Tensor = self.head(torch.cat([last, mean, highest], dim=1))
        return logits


class Head(nn.Module):
    def __init__(self, width: int, shape: TraceModelShape) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, shape.width), nn.ReLU(), nn.Dropout(shape.dropout), nn.Linear(shape.width, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits.squeeze(1)
