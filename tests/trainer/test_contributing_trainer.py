"""The worked examples of CONTRIBUTING.md for the trainer, followed without a change of a file: what each adds works."""

from __future__ import annotations

import argparse
from inspect import signature
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.trainer import test_sync_codec as suite
from trainer import workloads
from trainer.config import SYNCS, TrainOptions
from trainer.engine.sync import methods
from trainer.engine.sync.exchange import Codecs
from trainer.options import declared


class ThreeBits:
    """-3 to 3 and, for each block of 64 values, a float32 that one unit of them stands for."""

    name = "int3"
    block = 64

    def payload_bytes(self, count: int) -> int:
        blocks = -(-count // self.block)
        return blocks * (4 + 3 * self.block // 8)

    def encode(self, values: Tensor) -> Tensor:
        rows = F.pad(values, (0, -values.numel() % self.block)).view(-1, self.block)
        units = rows.abs().amax(1, keepdim=True) / 3
        units = units.masked_fill(units < torch.finfo(torch.float32).tiny, 0)
        levels = (rows / units).round().masked_fill(units == 0, 0).nan_to_num(0).to(torch.int64) + 3
        bits = levels[..., None] >> torch.arange(3) & 1
        packed = (bits.view(-1, 8) << torch.arange(8)).sum(1).to(torch.uint8)
        return torch.cat((units.flatten().view(torch.uint8), packed))

    def decode(self, payload: Tensor, count: int) -> Tensor:
        blocks = -(-count // self.block)
        units = payload[: 4 * blocks].clone().view(torch.float32)[:, None]
        bits = payload[4 * blocks :, None].long() >> torch.arange(8) & 1
        levels = (bits.view(-1, 3) << torch.arange(3)).sum(1).view(-1, self.block) - 3
        return (levels * units).flatten()[:count]


def test_a_codec_of_three_bits_passes_what_all_codecs_pass() -> None:
    """Each test of the suite that takes a codec; its other cases are those of the suite itself."""
    codec, followed = ThreeBits(), 0
    for name, test in vars(suite).items():
        if name.startswith("test_") and "codec" in signature(test).parameters:
            for case in cases_of(test):
                test(codec=codec, **case)
            followed += 1
    assert followed >= 7


def cases_of(test: object) -> list[dict[str, object]]:
    """The values of each parameter but the codec, as pytest would give them."""
    cases: list[dict[str, object]] = [{}]
    for mark in getattr(test, "pytestmark", ()):
        if mark.name == "parametrize" and mark.args[0] != "codec":
            cases = [{**case, mark.args[0]: value} for case in cases for value in mark.args[1]]
    return cases


def test_a_sync_method_follows_from_its_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes, collectives and overlap are those that the forecast reads; `--sync` offers every name of SYNCS."""
    known = methods.codecs_named
    added = {"int3": Codecs.both(ThreeBits())}
    monkeypatch.setattr(methods, "SYNCS", (*SYNCS, "int3"))
    monkeypatch.setattr(methods, "codecs_named", lambda name, density: added.get(name) or known(name, density))
    model = nn.Sequential(nn.Linear(256, 1024), nn.Linear(1024, 256))
    rungs = {rung.name: rung for rung in methods.ladder(TrainOptions(), model)}
    assert rungs["int3"].bytes_per_parameter == pytest.approx(3.5 / 8, rel=0.01)
    assert (rungs["int3"].collectives, rungs["int3"].overlap) == (rungs["int4"].collectives, rungs["int4"].overlap)
    assert not rungs["int3"].proven
    offered = {name: spec.choices for name, _, spec in declared(TrainOptions)}
    assert offered["sync"] == ("auto", *SYNCS)


MEAN = """
from trainer.engine.workload import Workload
from trainer.option_layers import add_train_options, train_options

def add_commands(actions):
    train = actions.add_parser("train", help="the default action", allow_abbrev=False)
    add_train_options(train)
    train.set_defaults(run=_train, check=lambda given, place, _data: train_options(given, {}, place))

def _train(given, place):
    from trainer.engine import loop

    return loop.train(Mean, train_options(given, {}, place), place)

class Mean(Workload):
    name, unit, train_samples, identity = "mean", "numbers", 40, {"workload": "mean"}
    def __init__(self):
        import torch
        self.model = torch.nn.Linear(1, 1)
    def batch(self, request):
        import torch
        return (torch.from_numpy(request.indices).float()[:, None] / 40,)
    def loss_sums(self, model, batch):
        return (model(batch[0]) - 3).square().sum()[None]
"""


def test_a_workload_trains_two_steps(call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mean.py").write_text(MEAN, "utf-8")
    monkeypatch.setattr(workloads, "__path__", [*workloads.__path__, str(tmp_path)])
    monkeypatch.setitem(workloads.WORKLOADS, "mean", "the mean of numbers")
    monkeypatch.setenv("ORCH_EVENTS", "1")
    assert "--max-steps" in workloads.train_parser("mean", argparse.ArgumentParser).format_help()
    run = call("mean", "--run-dir", str(tmp_path / "run"), "--max-steps", "2", "--log-every", "1", "--num-workers", "0")
    assert run.code == 0, run.err
    assert list(run.losses()) == [1, 2]
    assert (tmp_path / "run" / "checkpoints").is_dir()
    refused = call("mean", "--max-steps", "none")
    assert refused.code == 2
