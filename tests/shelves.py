"""Machines in memory whose checkpoints are real files in folders of the test: every script is really run."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.nodes.fake import Answer, FakeNode
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.plan import Plan
from tests import lan
from tests.contract.played import play

RUN = "0102-1504-ab12"


def write_checkpoint(root: Path, step: int, *, run_id: str = RUN, age_s: float = 0.0, size: int = 3000) -> Path:
    """A sound one of RUN/checkpoints, whose content is its step's."""
    folder = root / "runs" / run_id / "checkpoints" / f"step-{step:08d}"
    folder.mkdir(parents=True)
    contents = {"state.pt": bytes([step % 251, 255, 10]) * (size // 3), "vocabulary.json": b"{}\n"}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    files = {name: {"bytes": len(it), "sha256": hashlib.sha256(it).hexdigest()} for name, it in contents.items()}
    (folder / "manifest.json").write_text(json.dumps({"step": step, "run_id": run_id, "files": files}, indent=2))
    written = time.time() - age_s
    os.utime(folder / "manifest.json", (written, written))
    return folder


def mark_best(root: Path, step: int) -> None:
    (root / "runs" / RUN / "best.json").write_text(json.dumps({"step": step, "checkpoint": f"step-{step:08d}"}))


def flip(file: Path) -> None:
    """One bit of it, its size kept."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def steps_in(root: Path, run_id: str = RUN) -> list[int]:
    """List what is there, half-done copies included."""
    folder = root / "runs" / run_id / "checkpoints"
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    assert all(name.startswith("step-") for name in names), names
    return [int(name.removeprefix("step-")) for name in names]


@dataclass
class Shelves:
    """Machines by name; `root(name)` is the project's folder on it."""

    folder: Path
    names: Sequence[str] = lan.NAMES[:3]
    nodes: dict[str, FakeNode] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.names:
            self.root(name).mkdir(parents=True)
            self.nodes[name] = FakeNode(name, address=lan.address_of(name), programs=self.play)

    @staticmethod
    def play(argv: Sequence[str], stdin: bytes, timeout_s: float) -> Answer:
        return play(argv, stdin, timeout_s)

    def root(self, name: str) -> Path:
        return self.folder / name / "orch"

    @property
    def all(self) -> list[FakeNode]:
        return list(self.nodes.values())

    @property
    def specs(self) -> tuple[NodeSpec, ...]:
        return tuple(lan.spec(name, workspace=str(self.folder / name)) for name in self.names)

    @property
    def places(self) -> dict[str, str]:
        return {name: str(self.root(name)) for name in self.names}

    @property
    def plan(self) -> Plan:
        """Plan of `RUN`, on all of them, the first one leading."""
        return lan.plan_of(*self.specs)

    def connect(self, spec: NodeSpec) -> FakeNode:
        return self.nodes[spec.name]
