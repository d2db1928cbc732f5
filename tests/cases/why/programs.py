"""The programs of programs.yaml, as what is run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

JOIN = """import os, signal, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=int(os.environ.get("PG_S", "60"))))
print(f"rank {rank} joined", flush=True)
"""
STEPS = """
for step in range(40):
    dist.all_reduce(torch.ones(1))
    if step % 5 == 0:
        print(f"step {step}", flush=True)
    if step == 12 and rank == 1:
        fail()
    time.sleep(0.02)
dist.destroy_process_group()
"""


@dataclass(frozen=True, kw_only=True)
class Program:
    """One recording."""

    script: str
    nodes: int = 1
    ranks: tuple[int, ...] = ()
    """`--node-rank` of each node that is started; 0 to nodes-1 where empty."""
    options: tuple[str, ...] = ()
    """More for torchrun."""
    before: str = ""
    """Shell words that torchrun is run under, such as `unshare -m`."""
    keep: tuple[str, ...] = ()
    """Nodes whose log is kept, where the others' machines are gone; all where empty."""
    supervised: bool = False
    """True if torchrun is started as in a container, by its supervisor."""
    environment: dict[str, str] = field(default_factory=dict)
    rank: int = 0
    """Rank that is to be named."""
    frame: str = ""
    """`LINE in FUNCTION` of the script."""


def programs() -> dict[str, Program]:
    """Load the programs by the name of their case."""
    written = YAML(typ="safe").load((Path(__file__).parent / "programs.yaml").read_text())
    return {name: _program(entry) for name, entry in written.items()}


def _program(entry: dict[str, Any]) -> Program:
    rest = {key: value for key, value in entry.items() if key not in ("alone", "joined", "at_step_12")}
    if "alone" in entry:
        return Program(script=entry["alone"], **rest)
    if "joined" in entry:
        return Program(script=JOIN + entry["joined"], **rest)
    fail = "".join(f"    {line}\n" for line in entry["at_step_12"].splitlines())
    return Program(**{"script": f"{JOIN}\n\ndef fail():\n{fail}{STEPS}", "nodes": 2, "rank": 1, **rest})
