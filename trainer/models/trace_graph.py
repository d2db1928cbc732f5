"""The graph model of traces."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GCNConv, GINConv, SAGEConv, global_max_pool, global_mean_pool

from trainer.models.traces import Calls, Head, TraceModelShape


class GraphModel(nn.Module):
    """Messages between callers and called in both directions; then all calls of a trace are pooled."""

    def __init__(self, shape: TraceModelShape, calls: Calls) -> None:
        super().__init__()
        self.calls = calls
        self.dropout = shape.dropout
        self.layers = nn.ModuleList(_convolution(shape.convolution, shape.width) for _ in range(shape.layers))
        self.norms = nn.ModuleList(nn.LayerNorm(shape.width) for _ in range(shape.layers))
        self.head = Head(2 * shape.width, shape)

    def forward(self, events: Tensor, features: Tensor, edges: Tensor, graph: Tensor, graphs: int) -> Tensor:
        """(calls,) events of all graphs to (graphs,) logits."""
        x = self.calls(events, features)
        both_ways = torch.cat([edges, edges.flip(0)], dim=1)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + F.dropout(F.relu(layer(norm(x), both_ways)), self.dropout, self.training)
        pooled = torch.cat([global_mean_pool(x, graph, graphs), global_max_pool(x, graph, graphs)], dim=1)
        logits: Tensor = self.head(pooled)
        return logits


def _convolution(name: str, width: int) -> nn.Module:
    if name == "gin":
        layer: nn.Module = GINConv(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)))
    else:
        layer = {"sage": SAGEConv, "gcn": GCNConv}[name](width, width)
    return layer
