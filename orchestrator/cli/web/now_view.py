"""The first view of the page as plain data: everything that its scripts read of a snapshot, and whether it is well."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

from contract.cost_model.units import duration
from orchestrator.render.live import KeptLine, LiveNode, LiveRun, LiveSnapshot
from orchestrator.specs.run import State

LAST_LINES = 14
"""Newest lines of the run's ranks and agents, all nodes together."""
ENDED = (State.FAILED.value, State.LOST.value)


def now_view(snapshot: LiveSnapshot, tail: Callable[[str], Iterable[KeptLine]]) -> dict[str, Any]:
    """The snapshot for the page. `tail`: the newest log lines of a node."""
    run, nodes = snapshot.run, snapshot.nodes
    return {
        "at": snapshot.at,
        "looked": snapshot.looked,
        "run": run and {**asdict(run), "progress": run.progress, "place": _place(run)},
        "nodes": [asdict(node) for node in nodes],
        "faults": [asdict(fault) for fault in snapshot.faults],
        "health": health(run, nodes),
        "lines": last_lines((node.name for node in nodes), tail),
    }


def _place(run: LiveRun) -> str:
    """Step of the run, or epoch and step as its output has them; loss, speed and time left are fields of their own."""
    if run.output:
        words = run.output.partition("   ")[0].split(" · ")
        return " · ".join((*(word for word in words if word.startswith(("epoch", "step"))), "from its output"))
    if run.step is None:
        return ""
    return f"step {run.step:,}" + (f" of {run.final_step:,}" if run.final_step else "")


def health(run: LiveRun | None, nodes: tuple[LiveNode, ...]) -> dict[str, Any]:
    """The worst severity, `error`, `warning`, `info` or `ok`, and what it is about, the worst first."""
    order = ("error", "warning", "info")
    found = [*_of_run(run), *(one for node in nodes for one in _of_node(node))]
    found.sort(key=lambda one: order.index(one[0]))
    if not found and (waiting := [node.name for node in nodes if node.heard_s is None]):
        found = [("info", "waiting for", ", ".join(waiting))]
    lines = [{"severity": severity, "about": about, "text": text} for severity, about, text in found]
    return {"severity": found[0][0] if found else "ok", "lines": lines, "fine": "" if found else _fine(len(nodes))}


def _fine(nodes: int) -> str:
    if not nodes:
        return ""
    words = {1: "The node answers", 2: "Both nodes answer"}.get(nodes, f"All {nodes} nodes answer")
    return f"{words}; nothing is wrong."


def _of_run(run: LiveRun | None) -> Iterator[tuple[str, str, str]]:
    if run is None:
        return
    if run.state in ENDED:
        yield "error", f"run {run.run_id}", f"{run.state}: orch why {run.run_id}"
    if run.liveness:
        yield "error" if run.liveness.startswith("!") else "warning", "ranks", run.liveness[2:]
    if run.restarting:
        yield "warning", "ranks", "restart; figures are those before"
    elif run.restarts:
        yield (
            "info",
            "ranks",
            "restarted once" if run.restarts == 1 else f"restarted {run.restarts} times",
        )
    if run.straggler:
        yield "warning", run.straggler.node or "all nodes", run.straggler.text


def _of_node(node: LiveNode) -> Iterator[tuple[str, str, str]]:
    because = f": {node.problem}" if node.problem else ""
    if node.silent:
        silent = "does not answer" if node.heard_s is None else f"silent for {duration(node.heard_s)}"
        yield "error", node.name, f"{silent}{because}"
    elif node.state in ENDED:
        yield "error", node.name, f"{node.state}{because}"
    for gpu in node.usage.gpus if node.usage else ():
        if gpu.slowed_by:
            yield "warning", node.name, f"GPU {gpu.index} is slowed by {gpu.slowed_by}"


def last_lines(names: Iterable[str], tail: Callable[[str], Iterable[KeptLine]]) -> list[dict[str, Any]]:
    """The newest log lines of these nodes, in order of time."""
    found = [
        {"time": line.time, "node": name, "rank": line.rank, "text": line.text}
        for name in names
        for line in list(tail(name))[-LAST_LINES:]
        if line.text.strip()
    ]
    return sorted(found, key=lambda line: str(line["time"]))[-LAST_LINES:]
