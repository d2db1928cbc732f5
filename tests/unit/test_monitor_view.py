"""A snapshot of machines and their run for people, at any width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from rich.cells import cell_len
from rich.text import Text

from contract.resources import GpuUsage, ResourceUsage
from orchestrator.checks.stragglers import Straggler
from orchestrator.render.bars import sparkline
from orchestrator.render.live import Fault, LiveNode, LiveRun, LiveSnapshot
from orchestrator.render.monitor import (
    COLUMNS,
    detail_lines,
    fault_lines,
    fitting,
    node_cells,
    node_table,
    ordered,
    orders,
    run_lines,
)
from tests.unit.test_live_model import AT

GPU = GpuUsage(
    index=0, name="RTX 3050", utilization_percent=97, memory_used_mib=3584, memory_total_mib=4096, temperature_c=84,
    power_w=34.6, clock_mhz=1200,
)  # fmt: skip


def usage(**changes: Any) -> ResourceUsage:
    values: dict[str, Any] = {
        "cpu_percent": 51.4, "cpus": 4.0, "ram_used_mib": 3277, "ram_limit_mib": 8192, "disk_free_mib": 20480,
        "disk_read_mib_s": 0.12, "disk_write_mib_s": 2.0, "network_in_mib_s": 11.26, "network_out_mib_s": 10.9,
    }  # fmt: skip
    return ResourceUsage(**{**values, **changes})


def nodes() -> tuple[LiveNode, ...]:
    return (
        LiveNode(name="alpha", node_rank=0, state="running", heard_s=0.5, usage=usage(gpus=(GPU,)), compute_s=0.5),
        LiveNode(name="beta", node_rank=1, state="running", heard_s=1.0, usage=usage(cpu_percent=99.0), compute_s=1.25),
        LiveNode(name="gamma", node_rank=2, state="running", heard_s=7.0, silent=True, usage=usage(), usage_age_s=7.0),
        LiveNode(name="delta", state="idle", heard_s=0.5, usage=usage(swap_used_mib=2048)),
        LiveNode(name="epsilon", state="no answer", silent=True, problem="no answer in 5 s"),
    )


def snapshot(**changes: Any) -> LiveSnapshot:
    run = LiveRun(
        run_id="gpt2-a3f9", state="running", attempt=2, step=1240, final_step=10000, remaining_s=7200.0, loss=2.345678,
        losses=tuple(4.0 - n / 100 for n in range(200)), per_s=12345.6, unit="tokens", of_forecast=0.97, waiting=0.12,
        exchanging=0.31, restarts=1, step_age_s=2.0,
        straggler=Straggler(node="beta", reason="compute", text="takes 2.5 x the others' time"),
    )  # fmt: skip
    values: dict[str, Any] = {
        "at": AT, "run": run, "looked": True, "nodes": nodes(),
        "faults": (Fault(at=AT - 60, node="gamma", text="gamma no longer answers: cut"),),
    }  # fmt: skip
    return LiveSnapshot(**{**values, **changes})


def plain(lines: list[Text]) -> list[str]:
    return [line.plain for line in lines]


def rows(shown: LiveSnapshot, width: int) -> list[list[str]]:
    columns = fitting(width, shown)
    return [[one.title for one in columns], *([c.plain for c in node_cells(n, shown, columns)] for n in shown.nodes)]


def test_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    lines = plain(run_lines(snapshot(), 200))
    assert lines[0] == "run gpt2-a3f9  running, gamma silent  attempt 2"
    assert lines[1].startswith("██▌················· 12% · step 1,240/10,000 · 2.0 h left, until ")
    assert lines[1].endswith(
        " · 12,346 tokens/s (97% of the forecast) · 12% waiting for data · 31% exchanging · 1 restart"
    )
    assert lines[2] == f"loss {sparkline(snapshot().run.losses, 60)} 2.346"  # type: ignore[union-attr]  # there is one
    assert lines[3] == "compute: beta takes 2.5 x the others' time"


def test_the_nodes_on_a_wide_terminal() -> None:
    titles, alpha, beta, gamma, delta, epsilon = rows(snapshot(), 200)
    assert titles == [one.title for one in COLUMNS]
    assert dict(zip(titles, alpha, strict=True)) == {
        "#": "0", "node": "alpha", "state": "running", "CPU": "51 %", "memory": "3.2/8.0 G", "GPU": "97 %",
        "GPU mem": "3.5/4.0 G", "temp": "84 °C", "power": "35 W", "clock": "1200 MHz", "swap": "",
        "disk MiB/s": "0.1/2.0",
        "net MiB/s": "11.3/10.9", "part of step": "0.5 s", "note": "",
    }  # fmt: skip
    assert (beta[2], beta[-1]) == ("running", "◀ compute")
    assert gamma[2] == "silent 7 s"
    assert (delta[0], delta[2], delta[-1]) == ("", "idle", "swapping")
    assert (epsilon[2], epsilon[3], epsilon[-1]) == ("no answer", "", "no answer in 5 s")


def test_a_silent_row_is_grey_and_its_state_red() -> None:
    shown = snapshot()
    columns = fitting(200, shown)
    cells = node_cells(shown.nodes[2], shown, columns)
    assert {str(cell.style) for cell, one in zip(cells, columns, strict=True) if one.title != "state"} == {
        "bright_black"
    }
    assert str(cells[2].style) == "bold red"


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (20, ["node", "state"]),
        (40, ["node", "state", "CPU", "memory"]),
        (80, ["#", "node", "state", "CPU", "memory", "GPU", "GPU mem", "note"]),
    ],
)
def test_narrow_terminals_have_the_columns_that_matter_most(width: int, titles: list[str]) -> None:
    assert rows(snapshot(), width)[0] == titles


def test_columns_of_which_nothing_is_known_are_left_out() -> None:
    idle = snapshot(run=None, nodes=(LiveNode(name="a", state="connecting"), LiveNode(name="b", state="connecting")))
    assert rows(idle, 200) == [["node", "state"], ["a", "connecting"], ["b", "connecting"]]


@pytest.mark.parametrize("width", [1, 5, 20, 40, 80, 200])
def test_no_line_about_the_run_is_wider_than_the_terminal(width: int) -> None:
    strange = LiveRun(run_id="r" * 100, state="running", reason="x" * 500, step=10**12, losses=(1e308, -1e308, 5.0))
    for shown in (snapshot(), snapshot(run=None), snapshot(run=strange)):
        assert [line for line in plain(run_lines(shown, width)) if cell_len(line) > width] == []


def test_what_is_not_known_is_said() -> None:
    def second(**known: Any) -> str:
        return plain(run_lines(snapshot(run=LiveRun(run_id="r", **known)), 80))[1]

    assert second(state="running") == "no step reported yet"
    assert second(state="failed") == "no step reported"
    assert second(state="running", step=5, step_age_s=180.0) == "step 5 · last step 3.0 min ago"
    idle = "! rank 1 on beta has been idle for 61 s; rank 0 is waiting for it"
    assert second(state="running", step=5, step_age_s=180.0, liveness=idle) == f"step 5 · {idle}"
    assert second(state="running", step=5, remaining_s=1e300) == "step 5"
    assert plain(run_lines(snapshot(run=None, looked=False), 80)) == ["looking for a run  3 of 5 nodes answer"]
    assert plain(run_lines(snapshot(run=None), 80)) == ["no run  3 of 5 nodes answer"]
    past = LiveRun(run_id="r", state="failed", reason="rank 1: ValueError", as_of="2026", step=5)
    assert plain(run_lines(snapshot(run=past), 80)) == [
        "run r  failed  from the record on this computer", "step 5", "rank 1: ValueError",
    ]  # fmt: skip


def test_control_characters_reach_no_terminal() -> None:
    bad = "\x1b[2J\x1b]0;x\x07\u202e"
    gpu = GpuUsage(index=0, name=f"{bad}card", utilization_percent=5, slowed_by=f"{bad}heat")
    node = LiveNode(
        name=f"{bad}al", state="running", node_rank=0, problem=f"{bad}why", heard_s=0.0, usage=usage(gpus=(gpu,))
    )
    shown = snapshot(
        run=LiveRun(run_id=f"{bad}r", state="running"), nodes=(node,), faults=(Fault(at=0, node="", text=bad),)
    )
    lines = [*run_lines(shown, 80), *detail_lines(node, shown, 80), *fault_lines(shown, 9)]
    text = "".join([*plain(lines), *(cell for row in rows(shown, 200) for cell in row)])
    assert {letter for letter in bad if letter in text} <= set("[2J]0;x")
    assert "card" in text
    assert "slowed: heat" in text


@pytest.mark.parametrize(
    ("order", "first"),
    [("node", "alpha"), ("CPU", "beta"), ("swap", "delta"), ("GPU", "alpha"), ("part of step", "beta")],
)
def test_orders(order: str, first: str) -> None:
    assert order in orders()
    assert ordered(snapshot(), order)[0].name == first


def test_several_gpus_in_one_row_and_each_in_the_details() -> None:
    slow = GpuUsage(
        index=1, name="RTX 3050", utilization_percent=3, temperature_c=90, power_w=5.0, slowed_by="temperature"
    )
    node = LiveNode(name="alpha", state="running", node_rank=0, heard_s=0.1, usage=usage(gpus=(GPU, slow)),
                    cpu_history=(10.0, 90.0), gpu_history=(50.0,), compute_s=0.25)  # fmt: skip
    shown = snapshot(run=None, nodes=(node,))
    titles, cells = rows(shown, 200)
    row = dict(zip(titles, cells, strict=True))
    assert (row["GPU"], row["temp"], row["power"], row["note"]) == (
        "2x 50 %",
        "90 °C",
        "40 W",
        "GPU slowed: temperature",
    )
    assert plain(detail_lines(node, shown, 80)) == [
        "alpha  running",
        "CPU      51 % of 4  ▁█",
        "memory   3.2 of 8.0 GiB, swap 0.0 GiB",
        "disk     0.1 read, 2.0 written MiB/s, 20.0 GiB free",
        "network  11.3 in, 10.9 out MiB/s",
        "step     0.25 s for its part",
        "GPU 0    RTX 3050, 97 %, 3.5 of 4.0 GiB, 84 °C, 35 W, 1200 MHz",
        "GPU 1    RTX 3050, 3 %, 90 °C, 5 W, slowed by temperature",
        "GPUs     ▅",
    ]


def test_details_of_a_silent_node_are_old() -> None:
    shown = snapshot()
    assert plain(detail_lines(shown.nodes[2], shown, 80))[-1] == "as of 7 s ago"
    assert plain(detail_lines(shown.nodes[4], shown, 80)) == [
        "epsilon  no answer", "no answer in 5 s", "its resources are not known yet",
    ]  # fmt: skip


def test_the_table_of_plain_lines_has_the_same_cells() -> None:
    table = node_table(snapshot(), 80)
    assert [column.title for column in table.columns] == rows(snapshot(), 80)[0]


@pytest.mark.parametrize(
    ("values", "width", "shown"),
    [
        ((), 5, ""), ((1.0,), 5, "▁"), ((0.0, 7.0), 5, "▁█"), (tuple(range(8)), 8, "▁▂▃▄▅▆▇█"),
        ((3.0, 3.0, 3.0), 2, "▁▁"), ((1.0, 2.0), 0, ""),
        (tuple(range(100)), 4, "▁▃▆█"), ((1.0, float("nan"), 2.0), 9, "▁█"), ((float("inf"),), 9, ""),
    ],
)  # fmt: skip
def test_sparkline(values: tuple[float, ...], width: int, shown: str) -> None:
    assert sparkline(values, width) == shown


def test_sparkline_of_other_encodings_and_scales() -> None:
    draw: Callable[..., str] = sparkline
    assert draw((0.0, 1.0, 2.0), 5, ascii_only=True).isascii()
    assert draw((50.0, 150.0, -5.0), 5, scale=(0.0, 100.0)) == "▅█▁"
