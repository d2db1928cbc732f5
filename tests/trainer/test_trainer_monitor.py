"""The resource monitor."""

from __future__ import annotations

import json

import pytest

from trainer.tools.monitor import CpuMeter, GpuUsage, ResourceUsage, as_line


def test_one_json_object_a_line(call) -> None:
    result = call("monitor", "--interval", "0.01", "--count", "2", "--json")
    assert result.code == 0
    readings = [json.loads(line) for line in result.out.splitlines()]
    assert len(readings) == 2
    for reading in readings:
        assert set(reading) == {"t", "node", "cpu_percent", "cpus", "ram_used_mib", "ram_limit_mib", "gpus"}
        assert 0 < reading["ram_used_mib"] <= reading["ram_limit_mib"]
        assert reading["cpus"] > 0


def test_the_share_is_of_what_the_container_may_use() -> None:
    times, used = iter([0.0, 10.0]), iter([5.0, 15.0])
    meter = CpuMeter(clock=lambda: next(times), used=lambda: next(used), cpus=2.0)
    assert meter.percent() == pytest.approx(50)


def test_a_line_for_people() -> None:
    gpu = GpuUsage(
        index=0, name="GeForce", utilization_percent=None, memory_used_mib=100, memory_total_mib=4096,
        temperature_c=None,
    )  # fmt: skip
    reading = ResourceUsage(
        t=0.0, node="beta", cpu_percent=51.0, cpus=2.0, ram_used_mib=10, ram_limit_mib=4096, gpus=(gpu,)
    )
    assert " beta  CPU  51.0 % of 2  RAM 10 / 4096 MiB  GPU 0 - % 100 / 4096 MiB - °C" in as_line(reading)
