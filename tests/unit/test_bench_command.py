"""`orch bench`: measured as `--forecast` measures, shown node by node, and kept for plans."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from contract.cost_model.measurement import read_measurement
from orchestrator.render.bars import bar, stacked
from orchestrator.specs.measurement import SavedMeasurement, core, option, read_saved
from orchestrator.store.measurements import keep, measurements_folder, recall
from tests import lan
from tests.json_output import json_data
from tests.lan import event
from tests.unit.conftest import THREE, Orch
from tests.unit.measurements import COMMAND, measured

REPORTED = (event("measured", **measured()), event("forecast", **lan.forecast()), event("done", step=0))


def measurement(nodes: tuple[str, ...] = THREE, time: str = "2026-01-02", **changes: Any) -> SavedMeasurement:
    values = {
        "time": time,
        "project": "orch",
        "nodes": nodes,
        "command": COMMAND,
        "measured": read_measurement(measured()),
    }
    return SavedMeasurement(**{**values, **changes})


def test_it_measures_shows_keeps_and_leaves_nothing(orch: Orch) -> None:
    here = lan.lan(*THREE, says=REPORTED)
    ran = orch("bench", "--", *COMMAND, on=here)
    assert (ran.code, here.containers) == (0, {})
    assert ran.out.splitlines()[:9] == [
        "node   a sample  optimizer  batch  samples/s  tokens/s  loader/s      memory  disk write      read",
        "alpha   0.020 s    0.001 s      2         50     6,384     4,000  2 of 4 GiB    250 MB/s  500 MB/s",
        "beta    0.040 s    0.001 s      2         25     3,196     4,000  2 of 4 GiB    250 MB/s  500 MB/s",
        "gamma   0.060 s    0.001 s      2         17     2,132     4,000  2 of 4 GiB    250 MB/s  500 MB/s",
        "",
        "alpha  ████████████████████████████████████████ 6,384 tokens/s",
        "beta   ████████████████████ 3,196 tokens/s",
        "gamma  █████████████▍ 2,132 tokens/s",
        "",
    ]
    assert "gamma         94    94      –" in ran.out
    assert "saved; next: orch plan -- gpt2 --batch-size 2" in ran.err
    assert "▶" not in ran.err
    known = recall("orch", COMMAND, THREE)
    assert known is not None
    assert (known.nodes, known.command, known.measured.unit) == (THREE, COMMAND, "tokens")
    assert known.time.startswith("20")


def test_a_forecast_is_saved_too(orch: Orch) -> None:
    assert orch("launch", "--forecast", "--", *COMMAND, on=lan.lan(*THREE, says=REPORTED)).code == 0
    assert recall("orch", COMMAND, THREE) is not None


def test_for_programs_it_is_json(orch: Orch) -> None:
    ran = orch("bench", "--json", "--", *COMMAND, on=lan.lan(*THREE, says=REPORTED))
    known = read_saved(json_data(ran.out))
    assert known is not None
    assert known == recall("orch", COMMAND, THREE)


def test_a_measurement_that_failed_is_reported_and_not_saved(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    here.add("beta", says=("[rank1]: no data",), ends_with=3)
    ran = orch("bench", on=here)
    assert (ran.code, here.containers, list(measurements_folder().glob("*"))) == (1, {}, [])
    assert "rank 1 on beta: exit code 3" in ran.err


def test_an_older_image_is_named(orch: Orch) -> None:
    ran = orch("bench", on=lan.lan(*THREE, says=(event("forecast", **lan.forecast()),)))
    assert ran.code == 1
    assert "is its image older than this orch?\n  → orch build" in ran.err


def test_what_is_tight_or_starved_is_reported(orch: Orch) -> None:
    around = measured()["around"]
    tight = {**around[0], "memory_peak": 3.9 * 2**30, "loaded_per_s": 30.0}
    gpu = {**around[0], "gpu_peak": 3.0 * 2**30, "gpu_memory": 4.0 * 2**30}
    reported = event("measured", **measured(around=[tight, gpu, around[0]]))
    ran = orch("bench", on=lan.lan(*THREE, says=(reported,)))
    assert "! alpha holds 3.9 of 4 GiB: a smaller --micro-batch-size leaves room" in ran.out
    assert "! alpha loads 30 samples/s and computes 50" in ran.out
    assert "3 of 4 GiB" in ran.out
    assert "! beta" not in ran.out


# ── What is kept ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("message", "saved"),
    [
        ("gpt2 --epochs 3 --batch-size 2 --lr=1e-3", "gpt2 --batch-size 2"),
        ("gpt2 --from-scratch --forecast --batch-size=2", "gpt2 --batch-size=2"),
        ("gpt2 --sync int4 --sync-rank 8 --shares equal", "gpt2 --sync-rank 8"),
        ("vision --epochs", "vision"),
        ("text", "text"),
    ],
)
def test_what_makes_two_command_lines_one_workload(message: str, saved: str) -> None:
    assert core(message.split()) == tuple(saved.split())


def test_the_value_of_an_option() -> None:
    words = ("gpt2", "--sync", "int4", "--epochs=2", "--sync=int8", "--prompt")
    assert option(words, "--sync") == "int8"
    assert option(words, "--epochs") == "2"
    assert option(words, "--prompt") == ""
    assert option(words, "--max-steps") is None


def test_the_newest_of_the_same_nodes_goes_before_one_of_more() -> None:
    keep(measurement(THREE, "2026-01-03"))
    keep(measurement(THREE[:2], "2026-01-01"))
    keep(measurement(THREE[:2], "2026-01-02", command=(*COMMAND, "--epochs", "9")))
    found = recall("orch", COMMAND, THREE[:2])
    assert found is not None
    assert (found.time, found.nodes) == ("2026-01-02", THREE[:2])
    assert len(list(measurements_folder().glob("*.json"))) == 2  # the newer one took the place of the older
    wider = recall("orch", COMMAND, THREE[2:])
    assert wider is not None
    assert wider.nodes == THREE


@pytest.mark.parametrize("asked", [("other", COMMAND, THREE), ("orch", ("text",), THREE), ("orch", COMMAND, ("zeta",))])
def test_another_workload_project_or_node_is_not_there(asked: Any) -> None:
    keep(measurement())
    assert recall(*asked) is None


def test_a_broken_file_hides_no_other(tmp_path: Path) -> None:
    keep(measurement())
    (measurements_folder() / "broken.json").write_text("{")
    (measurements_folder() / "other.json").write_text('{"time": 3}')
    assert recall("orch", COMMAND, THREE) == read_saved(json.loads(json.dumps(asdict(measurement()))))


@pytest.mark.parametrize("broken", [{"nodes": []}, {"unit": None}, {"links": 3}])
def test_figures_that_are_none_are_no_measurement(broken: dict[str, Any]) -> None:
    assert read_saved(asdict(measurement()) | {"measured": measured(**broken)}) is None


# ── Bars ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("value", "drawn"), [(8, "████"), (4, "██"), (1, "▌"), (0, ""), (0.001, "▏"), (99, "████")])
def test_a_bar_is_as_long_as_its_value(value: float, drawn: str) -> None:
    assert bar(value, 8, width=4).plain == drawn


def test_parts_of_a_bar_add_up() -> None:
    assert stacked([(1, "a", ""), (2, "b", ""), (1, "c", "")], 4, width=8).plain == "aabbbbcc"
    assert stacked([(0.3, "a", ""), (0.3, "b", "")], 1, width=10).plain == "aaabbb"
    assert stacked([(1, "a", "")], 0).plain == ""
