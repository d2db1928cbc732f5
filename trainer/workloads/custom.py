"""Training of a user's own model and data: `--module my_pkg:build`."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import RankInfo, TrainOptions
from trainer.data.batch import Batch, BatchRequest
from trainer.engine.workload import Outputs, Workload
from trainer.errors import ConfigurationError, OptionError
from trainer.option_layers import add_train_options, train_options
from trainer.own_module import imported, split
from trainer.workloads import Actions

if TYPE_CHECKING:  # torch is imported by what needs it, so that --help stays quick
    from torch import Tensor, nn

    from trainer.data.order import Indices

EXPECTED = "--module my_pkg:build, or --module file.py:build, with the function that builds the training"


@dataclass(frozen=True, kw_only=True)
class Task:
    """Model, samples and loss, as returned by `build`. For more than this, `build` returns a subclass of `Workload`."""

    model: nn.Module
    train: Any
    """Dataset with `len()` and an index; a sample is a tuple of tensors or numbers: the model's inputs, and last the
    target. Randomness in a sample should depend only on its index, as any process may load it."""
    loss: Callable[[Any, Tensor], Tensor]
    """Function of the model's output and the targets: (batch,) the loss of each sample, or () their mean."""
    validation: Any = None
    metrics: Mapping[str, Callable[[Any, Tensor], Tensor]] = field(default_factory=dict)
    """Functions of output and targets: (batch,) one number for each sample; their mean is reported."""
    name: str = "custom"
    unit: str = "samples"


def add_commands(actions: Actions) -> None:
    train = actions.add_parser("train", help="the default action", allow_abbrev=False)
    add_train_options(train)
    evaluate = actions.add_parser("evaluate", help="a checkpoint, on the validation samples", allow_abbrev=False)
    evaluate.add_argument("--checkpoint", type=Path, required=True, metavar="DIR|FILE")
    evaluate.add_argument("--data-dir", type=Path, default=TrainOptions.data_dir, metavar="DIR")
    evaluate.add_argument("--batch-size", type=int, default=64, metavar="N")
    train.set_defaults(check=_check)
    for parser, run in ((train, _train), (evaluate, _evaluate)):
        module = parser.add_argument_group("module")
        module.add_argument("--module", metavar="MODULE:FUNCTION", help="e.g. my_pkg:build, or my_file.py:build")
        module.add_argument(
            "--set", action="append", metavar="NAME=VALUE", help="an argument of the function; may be given again"
        )
        parser.set_defaults(run=run)


def _check(given: argparse.Namespace, place: RankInfo, _data: Path | None) -> None:
    train_options(given, {}, place)
    _named(given.module)
    _assigned(given.set or [])


def _train(given: argparse.Namespace, place: RankInfo) -> int:
    options = train_options(given, {}, place)
    make = _maker(given, options.data_dir)

    from trainer.engine import loop

    return loop.train(make, options, place)


def _evaluate(given: argparse.Namespace, place: RankInfo) -> int:
    from trainer import checkpoint_folder
    from trainer.engine.evaluate import evaluate_checkpoint

    found = checkpoint_folder.locate(given.checkpoint, lambda line: print(line, file=sys.stderr))
    options = TrainOptions(data_dir=given.data_dir, batch_size=given.batch_size, amp=False)
    print(json.dumps(evaluate_checkpoint(_maker(given, given.data_dir), found, options, place).figures))
    return 0


def _maker(given: argparse.Namespace, data_dir: Path) -> Callable[[], Workload]:
    """Bind the user's function to its arguments. OptionError: they do not fit; raised before anything starts."""
    build = find(given.module)
    settings = _settings(given.set or [], build)
    arguments = dict(settings)
    if "data_dir" in inspect.signature(build).parameters:
        arguments.setdefault("data_dir", data_dir)
    try:
        inspect.signature(build).bind(**arguments)
    except TypeError as error:
        raise OptionError(f"{given.module}{inspect.signature(build)}: {error}; --set NAME=VALUE gives them") from None

    def make() -> Workload:
        built = build(**arguments)
        if isinstance(built, Workload):
            return built
        if isinstance(built, Task):
            return Custom(built, given.module, settings)
        raise ConfigurationError(f"{given.module} returned a {type(built).__name__}: expected a Task or a Workload")

    return make


def _settings(words: list[str], build: Callable[..., Any]) -> dict[str, Any]:
    """Parse values of --set by the annotation of the argument, or without one as YAML 1.2."""
    from trainer.scalars import scalar

    arguments = inspect.signature(build).parameters
    settings = {}
    for name, value in _assigned(words).items():
        try:
            settings[name] = scalar(value, str(arguments[name].annotation) if name in arguments else "")
        except ValueError as error:
            raise OptionError(f"--set {name}={value}: {error}") from None
    return settings


def _assigned(words: list[str]) -> dict[str, str]:
    pairs = [word.partition("=") for word in words]
    wrong = [f"--set {name}: expected NAME=VALUE" for name, equals, _ in pairs if not equals or not name.isidentifier()]
    if wrong:
        raise OptionError("\n".join(wrong))
    return {name: value for name, _, value in pairs}


def find(named: str | None) -> Callable[..., Any]:
    """Import the function of `--module` from the working folder or an installed package."""
    _named(named)
    return imported(named or "", "--module")


def _named(named: str | None) -> None:
    """OptionError: it is no MODULE:FUNCTION, or the file does not exist."""
    module, _, function = (named or "").rpartition(":")
    if not module or not function:
        raise OptionError(f"expected {EXPECTED}" + (f", not {named}" if named else ""))
    split(named or "", "--module")


class Custom(Workload):
    """Workload of a `Task`."""

    def __init__(self, task: Task, module: str, settings: Mapping[str, Any]) -> None:
        self._task = task
        self.name, self.unit, self.model = task.name, task.unit, task.model
        self.train_samples = len(task.train)
        self.validation_samples = 0 if task.validation is None else len(task.validation)
        self.identity = {"workload": task.name, "module": module, "settings": json.dumps(settings, sort_keys=True)}

    def batch(self, request: BatchRequest) -> Batch:
        from torch.utils.data import default_collate

        samples = self._task.train if request.split == "train" else self._task.validation
        return tuple(default_collate([samples[int(index)] for index in request.indices]))

    def loss_sums(self, model: nn.Module, batch: Batch) -> Tensor:
        *inputs, targets = batch
        return self._sum(self._task.loss(model(*inputs), targets), len(targets))

    def evaluate_batch(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        import torch

        *inputs, targets = batch
        outputs = model(*inputs)
        measured = [
            metric(outputs, targets).double().reshape(len(targets), 1) for metric in self._task.metrics.values()
        ]
        table = torch.cat(measured, dim=1) if measured else torch.empty(len(targets), 0)
        return self._sum(self._task.loss(outputs, targets), len(targets)), table

    def metrics(self, losses: Mapping[str, float], outputs: Outputs, indices: Indices) -> dict[str, float]:
        import numpy as np

        return dict(zip(self._task.metrics, np.mean(outputs, axis=0).tolist(), strict=True))

    def _sum(self, loss: Tensor, samples: int) -> Tensor:
        """Return the sum, (1,): the engine divides it by the samples of the step over all ranks."""
        if loss.shape == ():
            return (loss * samples).reshape(1)
        if loss.shape == (samples,):
            return loss.sum().reshape(1)
        raise ConfigurationError(
            f"the loss of {self.name} has the shape {tuple(loss.shape)}: expected ({samples},), one for each sample,"
            " or (), their mean"
        )
