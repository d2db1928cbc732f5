"""`orch search`: lines with these words in all runs on record."""

from __future__ import annotations

import pytest

from orchestrator.specs.run_events import RunLine
from orchestrator.store import search
from orchestrator.store.read_lines import WantedLines
from orchestrator.store.run_record import RunRecord
from orchestrator.store.segments import parse_line
from tests import lan
from tests.json_output import json_data
from tests.unit.conftest import Orch


def keep(run: str, *texts: str, node: str = "alpha", rank: int | None = 0, start: int = 0) -> RunRecord:
    record = RunRecord(run)
    with record.open_log(node, "c1") as log:
        for second, text in enumerate(texts, start):
            number = lan.NAMES.index(node)
            log.add(RunLine(time=lan.moment(second), node=node, node_rank=number, rank=rank, text=text))
    return record


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs; in one of them every few lines are a block."""
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setattr("orchestrator.store.line_log.SEGMENT_BYTES", 500)
    keep("red-1", *(f"step {number}" for number in range(60)), "RuntimeError: CUDA out of memory. Tried 2 GiB")
    keep("red-1", "connection reset by peer", "Out Of Memory again", node="beta", rank=None, start=100)
    keep("blue-1", "all is well", "out of\tmemory\x1b[31m?", start=200)
    RunRecord("blue-1").save_outcome("failed", "beta: no memory left")


@pytest.mark.usefixtures("records")
def test_newest_lines_first_with_run_node_and_time(orch: Orch) -> None:
    ran = orch("search", "memory", "out")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        "blue-1  2026-01-02T15:03:21.000+00:00  [0 alpha r0] out of\tmemory?",
        "red-1  2026-01-02T15:01:41.000+00:00  [1 beta] Out Of Memory again",
        "red-1  2026-01-02T15:01:00.000+00:00  [0 alpha r0] RuntimeError: CUDA out of memory. Tried 2 GiB",
    ]


@pytest.mark.usefixtures("records")
@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (("error",), ["RuntimeError: CUDA out of memory. Tried 2 GiB"]),
        (("out of memory",), ["Out Of Memory again", "RuntimeError: CUDA out of memory. Tried 2 GiB"]),
        (("no memory",), ["failed: beta: no memory left"]),
        (("59",), ["step 59"]),
        (("step", "5", "--limit", "2"), ["step 59", "step 58"]),
        (("of", "--run", "blue"), ["out of\tmemory\x1b[31m?"]),
        (("memory", "-n", "b*"), ["Out Of Memory again"]),
        (("of", "--since", "2026-01-02T15:01:41Z", "--until", "2026-01-02T15:03:00Z"), []),
        (("of", "--since", "2026-01-02T15:01:40Z", "--until", "2026-01-02T15:03:00Z"), ["Out Of Memory again"]),
        (("peer ", "nothing"), []),
    ],
)
def test_what_is_found(orch: Orch, words: tuple[str, ...], texts: list[str]) -> None:
    ran = orch("search", *words, "--json")
    found = json_data(ran.out)
    assert [one["text"] for one in found["results"]] == texts
    assert (ran.code, found["more"]) == (0, "--limit" in words)


@pytest.mark.usefixtures("records")
def test_forms_and_messages(orch: Orch) -> None:
    assert orch("search", "memory", "-o", "name").out.split() == ["blue-1", "red-1"]
    again = orch("search", "step", "--run", "red", "--limit", "1").err
    assert again == "there are more\n  → orch search step --run red --limit 10\n"
    nothing = orch("search", "no such", "words")
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "no line on record has no such and words\n")


@pytest.mark.usefixtures("records")
@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (("x", "--run", "green"), 3, "no run green on record"),
        (("x", "-n", "gamma"), 3, "no node 'gamma'"),
        (("x", "--since", "soon"), 2, "--since soon"),
        ((" ",), 2, "is empty"),
        ((), 2, "WORDS"),
    ],
)
def test_what_is_refused(orch: Orch, words: tuple[str, ...], code: int, problem: str) -> None:
    ran = orch("search", *words)
    assert (ran.code, ran.out) == (code, "")
    assert problem in ran.err


def test_no_record_at_all(orch: Orch) -> None:
    assert orch("search", "loss").err == "no line on record has loss\n"


def test_no_line_without_the_words_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.store.line_log.SEGMENT_BYTES", 500)
    record = keep("r1", *(f"step {number} of the training" for number in range(100)), "a needle", *["hay stack"] * 50)
    decoded: list[bytes] = []

    def counted(raw: bytes, stem: str = "") -> RunLine | None:
        decoded.append(raw)
        return parse_line(raw, stem)

    monkeypatch.setattr("orchestrator.store.read_lines.parse_line", counted)
    found = list(
        record.lines(None, WantedLines(needles=search.words(["NEEDLE!"]), passes=lambda line: "needle" in line.text))
    )
    assert ([line.text for line in found], len(decoded)) == (["a needle"], 1)
    assert len(list(record.lines())) == 151


def test_a_run_of_which_only_lines_are_known(orch: Orch) -> None:
    keep("elsewhere-1", "a needle")
    (RunRecord("elsewhere-1").folder.parent / "a foreign folder").mkdir()
    assert "a needle" in orch("search", "needle").out
