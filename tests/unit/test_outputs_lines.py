"""Lines about files that nodes lack before a start, as a terminal shows them."""

from __future__ import annotations

from typing import Any

from contract.event_lines import encode_event
from contract.events import OutputsCopied, OutputsDiffer, OutputsEvent, OutputsMissing
from orchestrator.render.recovery import file_size, recovery_line
from orchestrator.specs.run_events import RunLine


def line(event: OutputsEvent) -> str:
    """The line for an event that has travelled through a log."""
    return recovery_line(RunLine(node="alpha", node_rank=0, rank=None, time="", text=encode_event(event)))


def missing(**values: Any) -> OutputsMissing:
    of_rank_0: dict[str, Any] = {
        "source": "alpha", "nodes": ("beta", "gamma"), "path": "out/last.pt", "size": 12_000_000, "more": 3,
        "total": 12_400_000, "seconds": 1,
    }  # fmt: skip
    return OutputsMissing(**{**of_rank_0, **values})


def test_what_is_missing_where_and_what_is_done() -> None:
    assert line(missing()).split("\n") == [
        "! out/last.pt (12 MB) and 3 more files exist only on alpha;"
        " the ranks on beta and gamma would start without them",
        "  copying them (12 MB, about 1 s); --no-sync-outputs turns this off",
    ]
    assert line(missing(more=0, nodes=("beta",), why_not="off")).split("\n") == [
        "! out/last.pt (12 MB) exists only on alpha; the ranks on beta would start without it",
        "  not copied: --no-sync-outputs",
    ]
    assert line(missing(total=12_300_000_000, why_not="limit")).endswith(
        "\n  not copied: 12 GB are more than 10 GB; `orch resume` asks about them"
    )
    assert line(missing(outdated=True, more=0)).startswith(
        "! out/last.pt (12 MB) has changed on alpha since the copy on beta and gamma; the ranks on beta and gamma would"
    )


def test_files_of_other_ranks_are_listed() -> None:
    found = missing(source="beta", nodes=("alpha",), path="out/__1_0.distcp", other_ranks=True, why_not="other_ranks")
    assert line(found).split("\n") == [
        "· out/__1_0.distcp (12 MB) and 3 more files exist only on beta",
        "  not copied: --sync-outputs all copies files of other ranks, too",
    ]


def test_a_file_that_differs_and_a_copy() -> None:
    differs = OutputsDiffer(path="out/log.csv", nodes=("alpha", "beta"), more=0)
    assert line(differs) == "· out/log.csv differs between alpha and beta: each keeps its own"
    copied = OutputsCopied(source="beta", more=4, total=12_000_000, problem="")
    assert line(copied) == "· alpha and beta have copied 4 files (12 MB)"
    failed = OutputsCopied(source="beta", more=0, total=0, problem="out/last.pt: it is a program")
    assert line(failed) == "! alpha: not copied: out/last.pt: it is a program"


def test_an_event_of_any_program_is_one_line() -> None:
    hostile = missing(path="x\n! all is well\r\x1b[2J" * 99, source="a\nb", nodes=("c\nd",), why_not="\n")
    assert len(line(hostile).split("\n")) == 2
    assert line(OutputsMissing()) != ""
    assert line(OutputsCopied()) != ""
    assert line(OutputsDiffer()) != ""


def test_sizes_are_short() -> None:
    sizes = [7, 1957, 999_999, 1_200_000, 12_000_000, 1_500_000_000, 12_300_000_000]
    assert list(map(file_size, sizes)) == ["7 bytes", "2 kB", "1000 kB", "1.2 MB", "12 MB", "1.5 GB", "12 GB"]
