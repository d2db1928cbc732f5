"""Figures that `--forecast` measures beside a step, all of which it prints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from contract.cost_model.capacity import Query, plan_capacity
from contract.cost_model.measurement import read_measurement
from tests.trainer.conftest import Result
from trainer.engine.autotune.host_stats import disk_rates

AROUND = {"loaded_per_s", "memory_peak", "memory_limit", "gpu_peak", "gpu_memory", "disk_write", "disk_read"}


def test_a_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    write, read = disk_rates(tmp_path / "run")
    assert write > 0
    assert read > 0
    assert list((tmp_path / "run").iterdir()) == []


def test_a_folder_that_is_none_cannot_be_measured(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert disk_rates(tmp_path / "file" / "run") == (0.0, 0.0)


@pytest.mark.parametrize("ranks", [1, 2])
def test_all_measurements_are_reported_and_can_be_computed_with(
    observe: Callable[..., Result], tmp_path: Path, ranks: int
) -> None:
    ran = observe(tmp_path, ranks, {"sample_s": (0.001,) * ranks}, global_batch_size=8, forecast=True)
    assert ran.code == 0, ran.err
    (reported,) = ran.events("measured")
    measured = read_measurement(reported)
    (forecast,) = ran.events("forecast")
    assert (len(measured.nodes), measured.samples_per_step, reported["samples_per_epoch"] > 0) == (ranks, 8, True)
    found = plan_capacity(measured, Query(sync="fp32", equal=True))
    assert found.alone.step_s == forecast["rows"][0]["step_s"]
    assert len(measured.links) == ranks
    assert len(reported["around"]) == ranks
    for around in reported["around"]:
        assert set(around) == AROUND
        assert 0 < around["memory_peak"] < around["memory_limit"]
        assert min(around["loaded_per_s"], around["disk_write"], around["disk_read"]) > 0
    assert not ran.events("step")
    assert all(path.name.startswith("seen-") for path in tmp_path.iterdir())  # the observer's own
