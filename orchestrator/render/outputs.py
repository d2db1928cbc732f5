"""Lines about files that ranks wrote, as the agents compare them before a start."""

from __future__ import annotations

from contract.events import OutputsCopied, OutputsDiffer, OutputsEvent, OutputsMissing
from contract.result_files import COPY_LIMIT_BYTES
from orchestrator.render.printable import counted


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
