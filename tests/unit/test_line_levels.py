"""Levels of log lines, context around lines, and the same line of several nodes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.events import Event
from orchestrator.checks.line_levels import LevelReader, LineLevel, level_of, levels_newest_first, near_level
from orchestrator.fleet.runs.read_logs import LogSource, select_lines
from orchestrator.nodes.interface import LogLine
from orchestrator.specs.run_events import RunLine
from orchestrator.store.line_filter import Filter
from orchestrator.store.run_record import RunRecord
from orchestrator.store.segments import as_json, parse_line
from tests import lan
from tests.unit.conftest import THREE, Orch, detached


def wrote(text: str, second: float = 0, node: str = "alpha", rank: int | None = 0) -> RunLine:
    return RunLine(time=lan.moment(second), node=node, node_rank=lan.NAMES.index(node), rank=rank, text=text)


ERRORS = (
    "Traceback (most recent call last):", '  File "/workspace/train.py", line 3, in <module>', "ValueError: no",
    "torch.OutOfMemoryError: CUDA out of memory.", "KeyboardInterrupt", "error: unknown option", "python: error: no",
    "ERROR:root:it broke", "2026-01-02 15:04:05,123 - train - CRITICAL - it broke", "[ERROR] it broke",
    "[E1124 12:00:00.000000 12 loop.py:3] it broke", "[rank0]: ValueError: no",
    '@orch {"event": "failed", "rank": 0, "exit_code": 1}',
)  # fmt: skip
WARNINGS = (
    "/opt/venv/x.py:12: UserWarning: slow", "FutureWarning: old", "warning: odd", "WARNING:root:odd",
    "node1:12:34 [0] NCCL WARN no route", "W1124 12:00:00.000000 12 loop.py:3] odd", "Warning: odd",
    '@orch {"event": "waiting", "nodes": ["beta"]}',
)  # fmt: skip
OTHERS = (
    "step 1 loss 2.3", "0 errors, 0 warnings", "error rate 0.1", "INFO:root:ERROR count is 0", "INFO no ERROR", "",
    "    indented", "it's 'ERROR'", "x" * 200 + " ERROR", "ErrorHandler ready", '@orch {"event": "step", "step": 3}',
    "I1124 12:00:00.000000 12 loop.py:3] ERROR is a word", "terror: x",
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "level"),
    [(text, level) for level, texts in zip(LineLevel, (OTHERS, WARNINGS, ERRORS), strict=True) for text in texts],
)
def test_the_level_of_a_line(text: str, level: LineLevel) -> None:
    assert level_of(wrote(text)) is level


PARTS = st.sampled_from((
    *"aeEfW09 :'_.[]/é", "Error", "ERROR", "FATAL", "WARN", "Warning", "Interrupt", "error: ", "321 02:07:08.4 ",
    'File "', ", line ", "Traceback (most recent call last):", "[rank1]: ", "\x1b[31m", "\t",
))  # fmt: skip


@given(parts=st.lists(PARTS, max_size=9))
def test_each_line_of_a_level_has_a_mark_by_which_its_segment_is_found(parts: list[str]) -> None:
    line = wrote("".join(parts))
    for level in (LineLevel.WARNING, LineLevel.ERROR):
        near = near_level(level)
        assert near is not None
        if level_of(line).reaches(level):
            assert near(as_json(line).lower())


@pytest.mark.parametrize("kind", sorted(Event.kinds))
def test_each_event_of_a_level_has_one_too(kind: str) -> None:
    line = wrote(f'@orch {{"event": "{kind}"}}')
    for level in (LineLevel.WARNING, LineLevel.ERROR):
        near = near_level(level)
        assert near is not None
        assert near(as_json(line).lower()) >= level_of(line).reaches(level)


@pytest.mark.parametrize("tail", [None, 3])
def test_errors_are_found_without_decoding_the_segments_between_them(
    monkeypatch: pytest.MonkeyPatch, tail: int | None
) -> None:
    monkeypatch.setattr("orchestrator.store.line_log.SEGMENT_BYTES", 700)
    texts = [f"step {number}" for number in range(200)]
    texts[20:20] = ["RuntimeError: Error(s) in loading state_dict for Net:", *("\tMissing key" for _ in range(5))]
    texts[90] = "[E1124 12:00:00.000000 12 loop.py:3] it broke"
    found = source(*(wrote(text, number) for number, text in enumerate(texts)))
    decoded = list[bytes]()

    def counted(raw: bytes, stem: str = "") -> RunLine | None:
        decoded.append(raw)
        return parse_line(raw, stem)

    for module in ("read_lines", "run_store"):
        monkeypatch.setattr(f"orchestrator.store.{module}.parse_line", counted)
    shown = [line.text for line, _ in select_lines(found, Filter(level=LineLevel.ERROR, tail=tail))]
    errors = [*texts[20:26], texts[90]]
    assert shown == (errors if tail is None else errors[-tail:])
    assert 3 <= len(decoded) <= 40
    assert [line.text for line, _ in select_lines(found, Filter())] == texts


LINES = [
    wrote("fine", 1), wrote("Traceback (most recent call last):", 2), wrote('  File "a.py", line 1, in f', 3),
    wrote("    f()", 4), wrote("   other rank", 5, rank=1), wrote("ValueError: no", 6),
    wrote("    more of it", 7), wrote("fine again", 8), wrote("  indented", 9),
]  # fmt: skip


def test_indented_lines_belong_to_the_line_before_them_in_both_directions() -> None:
    reader = LevelReader()
    forwards = [(line, reader.hear(line)) for line in LINES]
    assert [line.text for line, level in forwards if level is LineLevel.ERROR] == [
        line.text for line in LINES[1:7] if line.rank == 0
    ]
    backwards = list(levels_newest_first(reversed(LINES)))
    assert sorted(backwards, key=lambda one: one[0].time) == forwards


def source(*lines: RunLine) -> LogSource:
    record = RunRecord("r1")
    for line in lines:
        with record.open_log(line.node, "c1") as log:
            log.add(line)
    return LogSource(record=record, names=("alpha", "beta"), unreachable={})


@pytest.mark.parametrize("tail", [None, 99])
@pytest.mark.parametrize(
    ("wanted", "shown"),
    [
        ({"level": LineLevel.ERROR}, "1! 3! 4! 8!"),
        ({"level": LineLevel.WARNING}, "1! 3! 4! 6! 8!"),
        ({"grep": re.compile("fine"), "context": 1}, "0! 1 1 2! 4 5! 6 6 8 9! 9!"),
        ({"grep": re.compile("no"), "level": LineLevel.ERROR, "context": 1}, "0 1! 3 4! 5"),
        ({"grep": re.compile("fine"), "context": 1, "until": lan.moment(2)}, "0! 1 1 2!"),
        ({"grep": re.compile("fine"), "nodes": frozenset({"beta"}), "context": 2}, "1 2! 6 9!"),
    ],
)
def test_context_and_level(tail: int | None, wanted: dict[str, object], shown: str) -> None:
    lines = [
        wrote("fine", 0), wrote("ERROR no", 1), wrote("tab", 1, "beta"), wrote("fine", 2, "beta"),
        wrote("Traceback (most recent call last):", 3), wrote("  x no", 4), wrote("fine", 5),
        wrote('@orch {"event": "step", "step": 1}', 5), wrote("WARNING odd", 6), wrote("b", 6, "beta"),
        wrote("fine", 9, "beta"), wrote("KeyError", 8), wrote("fine", 9),
    ]  # fmt: skip
    found = select_lines(source(*lines), Filter(tail=tail, **wanted))  # type: ignore[arg-type]
    assert " ".join(f"{int(line.time[17:19])}{'!' if matched else ''}" for line, matched in found) == shown


def test_of_a_tail_with_context_the_last_matches_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.store.line_log.SEGMENT_BYTES", 700)
    lines = [wrote(f"{'x' if number % 10 == 5 else ''}{number}", number) for number in range(60)]
    found = select_lines(source(*lines), Filter(tail=2, grep=re.compile("x"), context=1))
    assert [line.text for line, _ in found] == ["44", "x45", "46", "54", "x55", "56"]


# ── The command ───────────────────────────────────────────────────────────────────────────────────────────────────────


def three(orch: Orch, *says: str) -> tuple[lan.Lan, str]:
    here = lan.lan(*THREE, says=says)
    return here, detached(orch, here)


def test_the_same_line_of_several_nodes_is_shown_once(orch: Orch) -> None:
    here, run = three(orch, "[rank0]: hello", "[rank0]: world")
    for name, text, second in (("alpha", "mine", 2), ("beta", "two", 3), ("gamma", "two", 3.9), ("alpha", "two", 9)):
        (container,) = here.nodes[name].engine.made
        here.nodes[name].engine.write(container, lan.moment(second, round(second % 1 * 1e9)), f"[rank0]: {text}")
    assert orch("logs", run, on=here).out.splitlines() == [
        "[all 3 nodes] hello", "[all 3 nodes] world", "[0 alpha] mine", "[beta, gamma] two", "[0 alpha] two",
    ]  # fmt: skip
    for words in (("--json",), ("--grep", "hello"), ("-n", "alpha,beta"), ("--rank", "0")):
        assert len([line for line in orch("logs", run, *words, on=here).out.splitlines() if "hello" in line]) > 1, words


def test_level_context_and_until_of_the_command(orch: Orch) -> None:
    here, run = three(orch, "[rank0]: a", "[rank0]: b", "[rank0]: ERROR \x1b[31mbad\x07", "[rank0]: c")
    ran = orch("logs", run, "--level", "error", "-C", "1", "-n", "beta", on=here)
    assert ran.out.splitlines() == ["[1 beta ] b", "[1 beta ] ERROR bad", "[1 beta ] c"]
    ran = orch("logs", run, "--grep", "bad", "-C", "1", "-n", "beta", "--json", on=here)
    assert [json.loads(line).get("context") for line in ran.out.splitlines()] == [True, None, True]
    ran = orch("logs", run, "--until", "2026-01-02T15:00:01Z", "-n", "beta", on=here)
    assert ran.out.splitlines() == ["[1 beta ] a", "[1 beta ] b"]


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (("--rank", "9"), 2, "has no rank 9; it has 0 to 2"),
        (("--rank", "-1"), 2, "has no rank -1"),
        (("-n", "delta"), 3, "no node 'delta'"),
        (("--until", "later"), 2, "--until later: expected 10m"),
        (("-f", "--until", "10m"), 2, "--follow shows new lines"),
        (("--level", "loud"), 2, "'loud'"),
        (("-C", "-1"), 2, "-1 is not in the range"),
        (("--grep", "("), 2, "not a regular expression"),
    ],
)
def test_what_is_refused(orch: Orch, words: tuple[str, ...], code: int, problem: str) -> None:
    here, run = three(orch, "[rank0]: a")
    ran = orch("logs", run, *words, on=here)
    assert (ran.code, ran.out) == (code, "")
    assert problem in ran.err


class Speaking(lan.Actor):
    """A container that writes more lines once it is followed, and ends."""

    def logs(
        self, container: str, *, follow: bool = False, since: str = "", tail: int | None = None
    ) -> Iterator[LogLine]:
        if follow and self._is_running(container):
            for second, text in enumerate(("b", "ERROR bad", "c", "d"), 3):
                self.write(container, lan.moment(second), f"[rank0]: {text}")
            self.finish(container, 0)
        yield from super().logs(container, follow=follow, since=since, tail=tail)


def test_lines_that_are_followed_have_level_and_context_too(orch: Orch) -> None:
    here = lan.lan(*THREE, says=("[rank0]: a",), ends_with=None)
    run = detached(orch, here)
    for node in here.nodes.values():
        node.engine.__class__ = Speaking
    ran = orch("logs", run, "-f", "--level", "error", "-C", "1", "-n", "beta", on=here)
    assert ran.out.splitlines() == ["[1 beta ] b", "[1 beta ] ERROR bad", "[1 beta ] c"]
