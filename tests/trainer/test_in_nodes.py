"""Ranks that share nodes: summed within each node, exchanged between nodes (sync_ranks.py is what they run)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.conftest import MODEL, Ranks
from tests.trainer.sync_ranks import WAYS
from tests.trainer.test_sync import LARGEST_ERROR, WITH_FEEDBACK
from trainer.config import RankInfo
from trainer.engine.group import Group
from trainer.engine.sync.in_nodes import by_node, in_two_levels, owners

pytestmark = pytest.mark.slow

NODES = {"two on each": (2, 2), "two and one": (2, 1)}


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, dict[str, float]]]:
    @cache
    def run(nodes: str) -> dict[str, dict[str, float]]:
        folder = str(tmp_path_factory.mktemp("nodes"))
        ranks = Ranks(sum(NODES[nodes]), folder, module="tests.trainer.sync_ranks", nodes=NODES[nodes])
        with closing(ranks):
            result = ranks.result()
        assert result.code == 0, result.err
        found: dict[str, dict[str, float]] = json.loads(result.out.splitlines()[-1])
        return found

    return run


Measured = Callable[[str], dict[str, dict[str, float]]]


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("way", WAYS)
def test_every_method_works_on_sums_of_nodes(reported: Measured, way: str, nodes: str) -> None:
    found = reported(nodes)[way]
    assert found["alike"] == found["fewer"] == 0  # all ranks have the same weights to the last bit
    assert found["error"] < LARGEST_ERROR[way]
    assert found["resumed"] == 0


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("way", [*WITH_FEEDBACK, "powersgd"])
def test_other_nodes_still_send_what_these_had_left(reported: Measured, way: str, nodes: str) -> None:
    """The last rank is left out: two and one become one node, two on each become two and one."""
    found = reported(nodes)[way]
    assert found["unsent"] > 0
    assert found["lost"] < 1e-6 * max(1.0, found["unsent"])


@pytest.mark.parametrize("way", [way for way in WAYS if way != "fp32"])
def test_nodes_of_two_ranks_send_half(reported: Measured, way: str) -> None:
    """PowerSGD's factors are so thin here that flat they are mostly padding for four ranks."""
    found = reported("two on each")[way]
    assert 0 < found["sent"] <= 0.52 * found["flat"]
    assert way == "powersgd" or found["sent"] >= 0.48 * found["flat"]


def test_fp32_sends_each_value_as_four_bytes(reported: Measured) -> None:
    found = reported("two on each")
    assert found["fp32"]["sent"] == 2 * found["fp16"]["sent"]
    steps, nodes, values = 6, 2, 1024  # 875 parameters, in parts of a multiple of 128
    copies = 2 * (nodes - 1) / nodes  # as the cost model has it
    assert found["fp32"]["sent"] == steps * nodes * copies * 4 * values


@pytest.mark.parametrize(
    ("nodes", "ranks", "two_levels", "fewest"),
    [
        ((0, 0, 2, 2), [[0, 1], [2, 3]], True, 2),
        ((0, 1, 1, 3, 3, 3), [[0], [1, 2], [3, 4, 5]], True, 1),
        ((0, 1, 0, 1), [[0, 2], [1, 3]], True, 2),
        ((0, 0, 0), [[0, 1, 2]], False, 3),
        ((0, 1, 2), [[0], [1], [2]], False, 1),
    ],
)
def test_levels_follow_from_where_ranks_run(
    nodes: Sequence[int], ranks: list[list[int]], two_levels: bool, fewest: int
) -> None:
    assert (by_node(nodes), in_two_levels(nodes), owners(nodes)) == (ranks, two_levels, fewest)


def test_nodes_that_are_not_known_are_no_levels() -> None:
    assert not in_two_levels(Group(place=RankInfo(world_size=4), backend="gloo", device="cpu").nodes)  # type: ignore[arg-type]


# ── Whole runs ────────────────────────────────────────────────────────────────────────────────────


def words(data_dir: Path, folder: Path, *options: str) -> list[str]:
    return [
        "gpt2", "train", *MODEL, "--data-dir", str(data_dir), "--run-dir", str(folder), "--log-every", "1",
        "--precision", "fp32", "--num-workers", "0", "--no-compile", "--eval-every", "0", *options,
    ]  # fmt: skip


def test_what_is_measured_and_predicted_is_of_nodes(forked: Any, data_dir: Path, tmp_path: Path) -> None:
    run = forked(4, *words(data_dir, tmp_path, "--sync", "int8", "--forecast"), nodes=(2, 2)).result()
    assert run.code == 0, run.err
    (measured,) = run.events("measured")
    assert [node["host"] for node in measured["nodes"]] == [0, 0, 2, 2]
    assert all(node["inside"] > 0 for node in measured["nodes"])
    rates = [(node["upload"], node["download"]) for node in measured["nodes"]]
    assert rates[0] == rates[1]
    assert rates[2] == rates[3]
    (forecast,) = run.events("forecast")
    (row,) = (row for row in forecast["rows"] if row["sync"] == "int8" and len(row["nodes"]) == 4)
    assert row["sent_mb"] == pytest.approx((1 + 2 / 128) * measured["parameters"] / 1e6, rel=1e-2)


@pytest.mark.parametrize(("way", "tolerance"), [("fp32", 1e-6), ("int8", 2e-3), ("int4+8", 1e-2)])
def test_a_training_on_two_nodes_of_two_learns_as_on_four(
    way: str, tolerance: float, forked: Any, data_dir: Path, tmp_path: Path
) -> None:
    options = ("--sync", way, "--max-steps", "12", "--shares", "equal")
    losses = []
    for nodes in ((1, 1, 1, 1), (2, 2)):
        folder = tmp_path / str(len(nodes))
        run = forked(4, *words(data_dir, folder, *options), nodes=nodes).result()
        assert run.code == 0, run.err
        losses.append(run.losses())
    flat, levels = losses
    assert len(levels) == 12
    assert levels == pytest.approx(flat, rel=tolerance)
