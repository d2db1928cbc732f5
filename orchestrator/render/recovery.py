"""Decisions of the supervisor after a fault, and reports about files that ranks wrote, in a line or two each."""

from __future__ import annotations

from contract.events import OutputsCopied, OutputsDiffer, OutputsEvent, OutputsMissing
from contract.result_files import COPY_LIMIT_BYTES
from orchestrator.render.printable import counted
from orchestrator.specs.run_events import ContainerRemoved, Replanned, RunLine
from orchestrator.state.recovery import AddNodes, GiveUp, NoNodeAnswers, Replan, StartContainer, StopOthers, Update


def recovery_line(update: Update) -> str:
    """One line for the terminal, with a second that begins with two spaces where something is done about it; empty for
    an update that needs none."""
    if isinstance(update, RunLine):
        return outputs_lines(update.event, update.node) if isinstance(update.event, OutputsEvent) else ""
    if isinstance(update, ContainerRemoved):
        return "" if update.is_requested else f"! the container on {update.node} was removed"
    if isinstance(update, Replanned):
        plan = update.plan
        names = ", ".join(part.node for part in plan.nodes)
        begins = "continues" if plan.attempt else "starts"
        return f"✓ {begins} as attempt {plan.attempt} on {names}; master {plan.master}"
    return _of_decision(update)


def _of_decision(update: Update) -> str:
    if isinstance(update, StartContainer):
        return f"→ the container on {update.node} was killed: starting it again"
    if isinstance(update, StopOthers) and update.nodes:
        return f"→ stopping {', '.join(update.nodes)}"
    if isinstance(update, GiveUp):
        return f"✗ {', '.join(update.nodes)} gone for {update.seconds:.0f} s: stopping the run"
    if isinstance(update, Replan):
        return f"→ {', '.join(update.without)} given up: continuing with {', '.join(update.left)}"
    if isinstance(update, AddNodes):
        return f"→ {', '.join(update.nodes)} back and fit: added after this checkpoint"
    if isinstance(update, NoNodeAnswers):
        return f"! no node has answered for {update.seconds:.0f} s"
    return ""


def outputs_lines(event: OutputsEvent, node: str) -> str:
    """One line, and a second that says what is done about it. `node`: the one whose agent sent the event."""
    source, nodes = _word(event.source), " and ".join(map(_word, event.nodes or ())) or "?"
    if isinstance(event, OutputsDiffer):
        others = f" and {counted(event.more, 'more file')}" if event.more else ""
        verb, own = ("differ", "their") if event.more else ("differs", "its")
        return f"· {_word(event.path)}{others} {verb} between {nodes}: each keeps {own} own"
    if isinstance(event, OutputsCopied):
        copied = f"{counted(event.more or 0, 'file')} ({file_size(event.total or 0)})"
        problem = f"! {node}: not copied: {_word(event.problem)}" if event.problem else ""
        return problem or f"· {node} and {source} have copied {copied}"
    if not isinstance(event, OutputsMissing):
        return ""
    others = f" and {counted(event.more, 'more file')}" if event.more else ""
    files = f"{_word(event.path)} ({file_size(event.size or 0)}){others}"
    exist = "exist" if event.more else "exists"
    size = file_size(event.total or 0)
    if event.other_ranks:
        done = "copying them" if event.why_not is None else _NOT_COPIED.get(event.why_not, "not copied")
        return f"· {files} {exist} only on {source}\n  {done}"
    if event.outdated:
        verb = "have" if event.more else "has"
        first = f"! {files} {verb} changed on {source} since the copy on {nodes}"
    else:
        first = f"! {files} {exist} only on {source}"
    done = f"copying them ({size}, about {event.seconds or 1:.0f} s); --no-sync-outputs turns this off"
    if event.why_not is not None:
        done = _NOT_COPIED.get(event.why_not, "not copied").format(size=size)
    return f"{first}; the ranks on {nodes} would start without {'them' if event.more else 'it'}\n  {done}"


_NOT_COPIED = {
    "off": "not copied: --no-sync-outputs",
    "limit": f"not copied: {{size}} are more than {COPY_LIMIT_BYTES / 1e9:.0f} GB; `orch resume` asks about them",
    "connection": "not copied: the connection was lost at each try; `orch test` examines the link",
    "other_ranks": "not copied: --sync-outputs all copies files of other ranks, too",
}


def file_size(size: int) -> str:
    """Bytes as text: 12 MB."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}" if size < 10 * unit and unit > 1e3 else f"{size / unit:.0f} {name}"
    return f"{size} bytes"


def _word(text: str | None) -> str:
    return " ".join((text or "?").split())[:200]
