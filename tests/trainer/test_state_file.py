"""Files of a training's state that are something else: each names the file and the node."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from contract import environment
from trainer.engine.checkpoints import rank_state
from trainer.engine.checkpoints.state_file import read_state
from trainer.engine.group import Group
from trainer.engine.sync.strategy import RankState, Sync
from trainer.errors import ConfigurationError, TrainerError


def saved(content: object, *, plain: bool = False) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=not plain)
    return buffer.getvalue()


def with_pickle(text: bytes) -> bytes:
    """A whole archive, each sum of it right, whose pickle is this one."""
    given, made = zipfile.ZipFile(io.BytesIO(saved({"model": {}}))), io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for entry in given.infolist():
            archive.writestr(entry.filename, text if entry.filename.endswith("/data.pkl") else given.read(entry))
    return made.getvalue()


WRONG = {
    "AttributeError": with_pickle(
        b"\x80\x02(X\x07\x00\x00\x00storageK\x01X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x01tQ."
    ),
    "UnpicklingError": with_pickle(b"\x80\x02\xff."),
    "IndexError": with_pickle(b"\x80\x02."),
    "KeyError": with_pickle(b"\x80\x02h\x01."),
    "EOFError": with_pickle(b"\x80\x02"),
    "TypeError": with_pickle(b"\x80\x02}]K\x01s."),
    "error": with_pickle(b"\x80\x02J\x01"),
    "AssertionError": with_pickle(b"\x80\x02K\x01Q."),
    "empty": b"",
    "half an archive": saved({"model": {}})[:200],
    "a list": saved([1]),
    "a text": saved("x"),
    "no part": saved({"step": 1}),
    "parts of another kind": saved({"model": [1], "layout": 1, "state": [1]}),
    "of an older torch": saved({"model": None}, plain=True),
}
READERS: dict[str, Callable[[Path], Any]] = {
    "state": read_state,
    "rank": lambda path: rank_state._read(path, 0, 1, cast("Sync", SimpleNamespace(layout="x")), _raise),
}


def _raise(text: str) -> None:
    raise ConfigurationError(text)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", WRONG)
def test_a_file_of_something_else_is_named_with_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str, name: str
) -> None:
    monkeypatch.setenv(environment.NODE, "beta")
    path = tmp_path / "rank-0-of-1.pt"
    path.write_bytes(WRONG[name])
    with pytest.raises(ConfigurationError, match=f"beta: {path} is no state of this model: ") as refused:
        READERS[reader](path)
    if name.endswith(("Error", "error")):
        assert f": {name}: " in str(refused.value), "the text no longer causes the error that it is here for"


def test_a_file_that_cannot_be_read_is_no_mistake_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match="cannot be read: ") as refused:
        read_state(tmp_path)
    assert refused.value.exit_code == 1


def test_a_state_of_no_tensors_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "rank-0-of-1.pt"
    path.write_bytes(saved({"layout": "x", "state": {"unsent": 1}}))
    with pytest.raises(ConfigurationError, match=r"rank-0-of-1\.pt is not used: .*no tensors alone"):
        READERS["rank"](path)
    path.write_bytes(saved({"layout": "x", "state": {"unsent": torch.zeros(1)}}))
    assert READERS["rank"](path).state["unsent"].tolist() == [0.0]


@pytest.mark.parametrize(
    ("files", "named"), [(["0-of-1"], "/rank-0-of-1.pt"), (["0-of-2"], "/rank-0-of-2.pt"), (["0-of-2", "1-of-2"], "")]
)
def test_state_of_other_shapes_is_named_with_its_file_and_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], named: str
) -> None:
    """State of this rank, of one of another number of ranks, or of several."""

    class OneTensor:
        layout = "x"

        def state(self) -> dict[str, torch.Tensor]:
            return {"unsent": torch.zeros(3)}

        def restore(self, stored: Sequence[RankState], *, exact: bool) -> None:
            for one in stored:
                torch.zeros(3 if exact else 4).copy_(one.state["unsent"])

    folder = tmp_path / "ranks" / "step-00000004"
    folder.mkdir(parents=True)
    for name in files:
        (folder / f"rank-{name}.pt").write_bytes(saved({"layout": "x", "state": {"unsent": torch.zeros(5)}}))
    monkeypatch.setenv(environment.NODE, "beta")
    alone = SimpleNamespace(place=SimpleNamespace(rank=0, world_size=1), all_gather_scalar=lambda value: [value])
    with pytest.raises(
        ConfigurationError, match=f"^beta: {folder}{named} is no state of this model: RuntimeError: .*size"
    ):
        rank_state.restore(tmp_path, 4, cast("Sync", OneTensor()), cast("Group", alone), _raise)
