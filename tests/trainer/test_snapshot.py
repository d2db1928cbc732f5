"""A copy in memory: of the same values, in the same memory each time, and as large as what it copies."""

from __future__ import annotations

import io
from collections import OrderedDict
from typing import Any

import torch
from torch import nn

from trainer.engine.checkpoints.snapshot import Snapshot


def tree() -> dict[str, Any]:
    net = nn.Sequential(nn.Embedding(7, 4), nn.BatchNorm1d(4), nn.Linear(4, 7, bias=False))
    net[2].weight = net[0].weight
    optimizer = torch.optim.AdamW(net.parameters())
    net[0].weight.sum().backward()
    optimizer.step()
    one = torch.arange(12.0)
    views = {"view": one.view(3, 4).T, "part": one[4:7]}
    return {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "views": views, "numbers": [1, (2.5, None)]}


def saved(state: object) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def test_it_is_saved_to_the_same_bytes() -> None:
    state = tree()
    assert saved(Snapshot().take(state)) == saved(state)


def test_tensors_that_share_memory_still_do() -> None:
    taken = Snapshot().take(tree())
    assert taken["model"]["0.weight"].data_ptr() == taken["model"]["2.weight"].data_ptr()
    assert taken["views"]["view"].stride() == (1, 4)


def test_what_happens_afterwards_is_not_in_it() -> None:
    state = tree()
    before = saved(state)
    taken = Snapshot().take(state)
    for tensor in state["model"].values():
        tensor.zero_()
    state["numbers"][0] = 2
    state["optimizer"]["param_groups"][0]["lr"] = 7.0
    assert saved(taken) == before


def test_the_same_memory_serves_again_and_grows_with_what_is_copied() -> None:
    snapshot = Snapshot()
    first = snapshot.take({"a": torch.ones(5), "b": torch.ones(3)})
    second = snapshot.take({"a": torch.zeros(5), "b": torch.zeros(4), "c": torch.zeros(2)})
    assert first["a"].data_ptr() == second["a"].data_ptr()
    assert first["a"].tolist() == [0.0] * 5
    assert first["b"].tolist() == [1.0] * 3  # too small for the second
    assert [len(tensor) for tensor in second.values()] == [5, 4, 2]


def test_a_modules_own_notes_stay_with_its_state() -> None:
    """`load_state_dict` asks them which version of a layer it was."""
    taken = Snapshot().take(nn.BatchNorm1d(2).state_dict())
    assert isinstance(taken, OrderedDict)
    assert taken._metadata == nn.BatchNorm1d(2).state_dict()._metadata  # type: ignore[attr-defined]  # torch puts it on the dict
