"""What ranks write between their lines."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.log_lines import EVENT_MARK, split_rank
from orchestrator.specs.event import WHOLE_LIMIT, parse_event


@pytest.mark.parametrize(
    ("line", "rank", "text"),
    [
        ("[rank3]: step 1", 3, "step 1"),
        ("[rank12]:", 12, ""),
        ("[rank0]: [rank0]: Traceback", 0, "[rank0]: Traceback"),
        ("[rank0]:   indented", 0, "  indented"),
        ("W1121 10:17 torch", None, "W1121 10:17 torch"),
        ("[rankx]: no", None, "[rankx]: no"),
        (" [rank1]: no", None, " [rank1]: no"),
    ],
)
def test_rank_of_a_line(line: str, rank: int | None, text: str) -> None:
    assert split_rank(line) == (rank, text)


def test_event() -> None:
    event = parse_event('@orch {"event": "step", "rank": 4, "step": 7, "loss": 1.5}', rank=4)
    assert event is not None
    assert (event.kind, event.rank, event.values["step"], event.values["loss"]) == ("step", 4, 7, 1.5)


def test_rank_of_the_line_where_the_event_says_none() -> None:
    event = parse_event('@orch {"event": "step"}', rank=4)
    assert event is not None
    assert event.rank == 4


def test_kinds_of_newer_trainers_are_kept() -> None:
    event = parse_event('@orch {"event": "warmed up"}')
    assert event is not None
    assert event.kind == "warmed up"


@pytest.mark.parametrize(
    "text",
    ["step 1", "@orch", "@orch ", "@orch []", "@orch 7", '@orch "event"', "@orch {}", '@orch {"event": "step"',
     "@orch null", " @orch {}", "@orch " + "[" * 100_000],
)  # fmt: skip
def test_what_only_looks_like_an_event(text: str) -> None:
    assert parse_event(text) is None


@given(st.text())
def test_no_line_of_a_node_raises(text: str) -> None:
    parse_event(EVENT_MARK + text)
    split_rank(text)


KEYS = st.text().filter(lambda key: key not in ("event", "rank"))
WHOLE = st.integers(-WHOLE_LIMIT, WHOLE_LIMIT)


@given(st.dictionaries(KEYS, WHOLE | st.text()))
def test_values_arrive_as_sent(values: dict[str, int | str]) -> None:
    event = parse_event(EVENT_MARK + json.dumps({"event": "step", **values}))
    assert event is not None
    assert event.values == values
