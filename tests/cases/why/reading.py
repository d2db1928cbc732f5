"""A recorded case as the evidence that `orch why` is given: `NAME.log` with a head and a part for each node."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from contract.event_lines import decode_event
from contract.events import GenerationStarted
from contract.log_lines import split_rank
from orchestrator.specs.run import ContainerFacts
from orchestrator.specs.run_events import RunLine
from orchestrator.state.journal import Journal
from orchestrator.state.journal_entries import EndEntry
from orchestrator.state.postmortem import Evidence

LOGS = Path(__file__).parent / "logs"
_RANK_FAILED = re.compile(r"^E\d{4} (?P<at>[\d:.]+) .*failed \(exitcode", re.MULTILINE)
"""Torchrun's own clock says which node's rank failed first."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One log, and what is to be found in it."""

    name: str
    cause: str
    """The rule's id: what the file is called, without what follows a second dot."""
    made: str
    rank: int
    frame: str
    evidence: Evidence


def cases() -> list[Path]:
    return sorted(LOGS.glob("*.log"))


def read_case(path: Path, *, with_nodes: bool = True) -> Case:
    """`with_nodes`: whether the nodes still answer, with their exit codes; else the log is all there is."""
    head, _, body = path.read_text().partition("\n\n")
    reported = dict(line.split(": ", 1) if ": " in line else (line.rstrip(":"), "") for line in head.splitlines())
    lines: list[RunLine] = []
    kernel: dict[str, tuple[str, ...]] = {}
    containers: dict[str, ContainerFacts] = {}
    for part in sorted(body.split("--- ")[1:], key=_ended_at):
        title, *texts = part.splitlines()
        if title.startswith("kernel "):
            kernel[title.removeprefix("kernel ")] = tuple(texts)
            continue
        node, seat, code, *oom = title.split()
        containers[node] = _ended(node, _as_of_a_container(int(code.removeprefix("exit="))), bool(oom))
        for text, second in zip(texts, _seconds(texts, len(lines)), strict=True):
            rank, message = split_rank(text)
            time = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
            lines.append(RunLine(time=time, node=node, node_rank=int(seat), rank=rank, text=message))
    return Case(
        name=path.stem,
        cause=".".join(path.stem.split(".")[:2]),
        made=reported["made"],
        rank=int(reported["rank"]),
        frame=reported["frame"],
        evidence=Evidence(
            run_id="recorded-1",
            lines=tuple(lines),
            containers=containers if with_nodes else {},
            kernel=kernel if with_nodes else {},
            journal=Journal(end=None if with_nodes else EndEntry(state="failed", reason="exit code 1")),
        ),
    )


def _seconds(texts: Sequence[str], first: int) -> Iterator[float]:
    """Yield the time of each line: by the clock of the node's supervisor if it reports, otherwise in order."""
    second = float(first)
    events = [decode_event(text) for text in texts]
    supervised = any(isinstance(event, GenerationStarted) for event in events)
    for event in events:
        second = event.t or 0.0 if event and supervised else second + (0.0 if supervised else 1.0)
        yield second


def _ended_at(part: str) -> str:
    found = _RANK_FAILED.search(part)
    return found["at"] if found else "~"


def _as_of_a_container(code: int) -> int:
    """A process that a signal ended is a container that exits with 128 and its number."""
    return code if code >= 0 else 128 - code


def _ended(node: str, code: int, oom_killed: bool) -> ContainerFacts:
    return ContainerFacts(
        id=node, name=node, image="", labels={}, status="exited", exit_code=code, oom_killed=oom_killed
    )
