"""A checkpoint goes there and back over every seam, and arrives as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.fleet.checkpoints.copy import copy_checkpoint
from orchestrator.fleet.checkpoints.survey import survey, verify
from orchestrator.nodes.interface import Node, Progress
from orchestrator.nodes.local import LocalNode
from orchestrator.specs.errors import RunFailedError
from tests.shelves import RUN, flip, write_checkpoint


def quiet(_node: str, _progress: Progress) -> None:
    return


def test_there_and_back(node: Node, tmp_path: Path) -> None:
    here, there, back = (tmp_path / name for name in ("here", "there", "back"))
    write_checkpoint(here, 40, size=3 * 2**20)
    controller, end = LocalNode("controller"), Path("runs") / RUN / "checkpoints"
    (held,) = survey([controller], {"controller": str(here)}).held
    copy_checkpoint(controller, held, node, str(there / end), quiet)
    (copied,) = verify([node], survey([node], {node.name: str(there)}).held)
    assert (copied.problem, copied.hashed, copied.identity) == ("", True, held.identity)
    copy_checkpoint(node, copied, controller, str(back / end), quiet)
    (again,) = verify([controller], survey([controller], {"controller": str(back)}).held)
    assert (again.problem, again.identity) == ("", held.identity)


def test_damage_is_found_before_it_has_a_name(node: Node, tmp_path: Path) -> None:
    flip(write_checkpoint(tmp_path / "there", 40) / "state.pt")
    (held,) = survey([node], {node.name: str(tmp_path / "there")}).held
    assert "sha256 differs" in verify([node], [held])[0].problem
    with pytest.raises(RunFailedError, match="not what its manifest says"):
        copy_checkpoint(node, held, LocalNode("controller"), str(tmp_path / "back"), quiet)
    assert list((tmp_path / "back").iterdir()) == []
