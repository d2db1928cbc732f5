"""A checkpoint's model as a file that nothing can run in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model
from torch import nn

from tests.trainer.conftest import Call
from tests.trainer.observed import Net, Wishes, same, state
from trainer.models.gpt2 import GPT2, Gpt2Shape
from trainer.tools.export import split_tied

SHORT: dict[str, Any] = {"batch_size": 4, "max_steps": 3}


def metadata(file: Path) -> dict[str, str]:
    with safe_open(file, "pt") as opened:
        found: dict[str, str] = opened.metadata()
    return found


def test_any_workloads_weights_with_what_they_are(observe: Any, call: Call, tmp_path: Path) -> None:
    assert observe(tmp_path / "run", **SHORT, checkpoint_every=2).code == 0
    file = tmp_path / "out" / "net.safetensors"
    reported = call("export", str(tmp_path / "run"), "--to", str(file))
    assert reported.code == 0, reported.err
    assert "4 tensors, 41 numbers, of step 3 of observed" in reported.out
    net = Net(Wishes(), short=False)
    net.load_state_dict(load_file(file))
    assert same(dict(net.state_dict()), dict(state(tmp_path / "run", 3)["model"]))
    about = metadata(file)
    assert (about["format"], about["step"], about["workload"]) == ("pt", "3", "observed")
    assert json.loads(about["identity"]) == {"workload": "observed"}

    assert call("export", str(tmp_path / "run/checkpoints/step-00000002"), "--to", str(file)).code == 0
    assert metadata(file)["step"] == "2"


def test_gpt2_of_another_program(train: Call, call: Call, tmp_path: Path) -> None:
    assert train(tmp_path, "--max-steps", "2", "--batch-size", "2").code == 0
    file = tmp_path / "gpt2.safetensors"
    assert call("export", str(tmp_path), "--to", str(file)).code == 0
    identity = json.loads(metadata(file)["identity"])
    shape = Gpt2Shape(**{name: identity[name] for name in ("layers", "heads", "width", "seq_len", "vocab_size")})
    model = GPT2(shape)
    assert load_model(model, file) == (set(), [])
    assert same(dict(model.state_dict()), dict(state(tmp_path, 2)["model"]))


def test_weights_that_share_memory_are_written_once() -> None:
    net = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    net[1].weight = net[0].weight
    whole = torch.arange(6.0)
    weights = {**net.state_dict(), "whole": whole, "part": whole[:2], "turned": whole.view(2, 3).T}
    tensors, twins = split_tied(weights)
    assert twins == {"1.weight": "0.weight"}
    assert set(tensors) == {"0.weight", "whole", "part", "turned"}
    assert all(tensor.is_contiguous() and torch.equal(tensor, weights[name]) for name, tensor in tensors.items())
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors.values()}) == 4


@pytest.mark.parametrize("harm", ["flip", "nothing there", "a folder"])
def test_what_cannot_be_exported_is_refused(observe: Any, call: Call, tmp_path: Path, harm: str) -> None:
    checkpoint, to = tmp_path / "run/checkpoints/step-00000003", tmp_path / "net.safetensors"
    if harm != "nothing there":
        assert observe(tmp_path / "run", **SHORT).code == 0
    if harm == "flip":
        content = bytearray((checkpoint / "state.pt").read_bytes())
        content[len(content) // 2] ^= 1
        (checkpoint / "state.pt").write_bytes(content)
    if harm == "a folder":
        to.mkdir()
    refused = call("export", str(checkpoint), "--to", str(to))
    assert refused.code == 3
    expected = {
        "flip": "state.pt has changed",
        "nothing there": "manifest.json is missing",
        "a folder": "a folder; give",
    }
    assert expected[harm] in refused.err
    assert not to.is_file()
