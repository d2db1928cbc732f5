"""Registry of the workloads. A workload is one module with `add_commands(actions)`.

The modules import torch only in the functions that train, so that `--help` stays quick.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any, Protocol

WORKLOADS = {
    "gpt2": "GPT-2 language model on your own text (Spanish by default)",
    "vision": "image classifier: a folder for each class, or Fashion-MNIST",
    "text": "classes of texts by a BERT-type encoder with several heads (BETO by default)",
    "traces-lstm": "detection of anomalous traces by the order of their calls (LSTM)",
    "traces-gnn": "detection of anomalous traces by the graph of their calls (graph network)",
    "custom": "your own model, data and loss: --module my_pkg:build",
}


class Actions(Protocol):
    """Return type of argparse's `add_subparsers`, as far as a workload needs it."""

    def add_parser(self, name: str, **kwargs: Any) -> argparse.ArgumentParser: ...


def train_parser(workload: str, kind: type[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Create a parser for the options of the workload's `train`."""
    parsers = kind(add_help=False).add_subparsers()
    add_commands(workload, parsers)
    return parsers.choices["train"]


def add_commands(workload: str, actions: Actions) -> None:
    """Add `train` and the workload's other actions; each parser's default `run` executes it."""
    import_module(f"trainer.workloads.{workload.replace('-', '_')}").add_commands(actions)
