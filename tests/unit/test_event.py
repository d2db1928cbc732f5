"""Events that ranks write between their lines."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.cost_model.forecast import read_forecast
from contract.cost_model.measurement import read_measurement
from contract.event_lines import decode_event, encode_event, kind_of
from contract.event_values import INT_LIMIT, RankPosition
from contract.events import (
    Event,
    StepDone,
    UnknownEvent,
)
from contract.log_lines import EVENT_MARK, split_rank
from contract.resources import GpuUsage, ResourceUsage
from tests import lan
from tests.unit.measurements import measured


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
    event = decode_event('@orch {"event": "step", "rank": 4, "step": 7, "loss": 1.5}', rank=4)
    assert isinstance(event, StepDone)
    assert (event.kind, event.rank, event.step, event.loss) == ("step", 4, 7, 1.5)


@pytest.mark.parametrize(
    ("times", "late_s"),
    [({"t": 9.5, "ended_at": 7.0}, 2.5), ({"t": 9.5, "ended_at": 9.6}, 0.0), ({"t": 9.5}, 0.0), ({"ended_at": 7}, 0.0)],
)
def test_lateness_of_a_report(times: dict[str, float], late_s: float) -> None:
    assert StepDone(**times).late_s == late_s  # type: ignore[arg-type]  # of the right types, by name


def test_rank_of_the_line_where_the_event_says_none() -> None:
    event = decode_event('@orch {"event": "step"}', rank=4)
    assert event is not None
    assert event.rank == 4


def test_kinds_of_newer_trainers_stay() -> None:
    event = decode_event('@orch {"event": "warmed up", "degrees": 7}')
    assert isinstance(event, UnknownEvent)
    assert kind_of(event) == "warmed up"
    assert encode_event(event) == '@orch {"event": "warmed up", "degrees": 7}'


@pytest.mark.parametrize(
    "text",
    ["step 1", "@orch", "@orch ", "@orch []", "@orch 7", '@orch "event"', "@orch {}", '@orch {"event": "step"',
     "@orch null", " @orch {}", "@orch " + "[" * 100_000],
)  # fmt: skip
def test_what_only_looks_like_an_event(text: str) -> None:
    assert decode_event(text) is None


@given(st.text())
def test_no_line_of_a_node_raises(text: str) -> None:
    decode_event(EVENT_MARK + text)
    split_rank(text)


OWN = {"event", *(one.name for one in fields(StepDone))}
KEYS = st.text().filter(lambda key: key not in OWN)
WHOLE = st.integers(-INT_LIMIT, INT_LIMIT)


@given(st.dictionaries(KEYS, WHOLE | st.text()))
def test_values_arrive_as_sent(values: dict[str, int | str]) -> None:
    event = decode_event(EVENT_MARK + json.dumps({"event": "step", **values}))
    assert event is not None
    assert event.values() == values


@pytest.mark.parametrize("cls", Event.kinds.values(), ids=lambda cls: cls.kind)
def test_every_event_survives_its_encoding(cls: type[Event]) -> None:
    examples: dict[str, object] = {
        "Text": "a\nñ", "Flag": True, "Int": -7, "Float": 0.5, "StepNumber": 8, "RankNumber": 3, "Texts": ("beta", "c"),
        "Rows": (("lr", "0.1", "option"), ("a\nñ", "", "default")),
        "Figures": {"alpha": 1.5, "beta": None},
        "RankPositions": (RankPosition(rank=3, process=77, step=9, frames=("a.py:1 in f",), state="D"),),
        "RankNumbers": (0, 3),
        "Measurement": read_measurement(measured()), "Forecast": read_forecast(lan.forecast()),
        "ResourceUsage": ResourceUsage(
            cpu_percent=12.5, cpus=2.0, ram_used_mib=10, ram_limit_mib=20, gpus=(GpuUsage(index=1, name="a\nñ"),)
        ),
    }  # fmt: skip
    given = {one.name: examples[str(one.type).removesuffix(" | None")] for one in fields(cls) if one.name != "others"}
    event = cls(**given)  # type: ignore[arg-type]  # of the right types, by name
    assert decode_event(encode_event(event)) == event


@pytest.mark.parametrize(
    "values",
    [
        {"event": "step", "step": -1},
        {"event": "step", "step": 10**13},
        {"event": "step", "step": True},
        {"event": "step", "rank": 10**7},
        {"event": "step", "compute_s": {"alpha": "fast"}},
        {"event": "checkpoint", "verified": "yes"},
        {"event": "stalled", "nodes": "beta"},
        {"event": "stalled", "nodes": [["beta"]]},
        {"event": "stacks", "ranks": [{"frames": []}]},
        {"event": "stacks", "ranks": [{"rank": 1, "frames": [7]}]},
        {"event": "step", "deep": [[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]},
        {"event": "step", "long": [0] * 5000},
        {"event": "step", "large": 2**64},
    ],
)
def test_a_value_out_of_its_bounds_makes_an_ordinary_line(values: dict[str, object]) -> None:
    assert decode_event(EVENT_MARK + json.dumps(values)) is None
