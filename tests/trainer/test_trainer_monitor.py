"""Resources in use: read, printed by the monitor, sampled by an agent."""

from __future__ import annotations

import json
import threading
import time
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import psutil
import pynvml
import pytest

from contract.event_lines import decode_event, encode_event
from contract.events import ResourcesSampled
from contract.resources import GpuUsage, ResourceUsage
from tests.trainer.conftest import Call
from trainer import resources
from trainer.agent.sampler import REPORT_EVERY, ResourceSampler, summary
from trainer.resources import CpuMeter, ResourceMeter
from trainer.tools.monitor import as_line

GPU = GpuUsage(
    index=0, name="GeForce", utilization_percent=90, memory_used_mib=100, memory_total_mib=4096, temperature_c=60,
    power_w=75.5, clock_mhz=1500,
)  # fmt: skip
USAGE = ResourceUsage(cpu_percent=51.0, cpus=2.0, ram_used_mib=10, ram_limit_mib=4096, gpus=(GPU,))


def test_one_json_object_a_line(call: Call) -> None:
    result = call("monitor", "--interval", "0.01", "--count", "2", "--json")
    assert result.code == 0
    readings = [json.loads(line) for line in result.out.splitlines()]
    assert len(readings) == 2
    for reading in readings:
        assert set(reading) == {"t", "node", *ResourceUsage.__dataclass_fields__}
        assert 0 < reading["ram_used_mib"] <= reading["ram_limit_mib"]
        assert reading["cpus"] > 0
        assert reading["disk_free_mib"] > 0


def test_the_share_is_of_what_the_container_may_use() -> None:
    times, used = iter([0.0, 10.0]), iter([5.0, 15.0])
    meter = CpuMeter(clock=lambda: next(times), used=lambda: next(used), cpus=2.0)
    assert meter.percent() == pytest.approx(50)


def test_a_line_for_people() -> None:
    silent = GpuUsage(index=0, name="GeForce", memory_used_mib=100, memory_total_mib=4096)
    hot = GpuUsage(index=1, name="GeForce", slowed_by="temperature")
    usage = ResourceUsage(
        cpu_percent=51.0, cpus=2.0, ram_used_mib=10, ram_limit_mib=4096, swap_used_mib=7, disk_write_mib_s=2.04,
        network_in_mib_s=11.26, gpus=(silent, hot),
    )  # fmt: skip
    line = as_line(usage, 0.0, "beta")
    assert (
        " beta  CPU  51.0 % of 2  RAM 10 / 4096 MiB + 7 swap  disk 0.0 read 2.0 written MiB/s  network 11.3 in" in line
    )
    assert "GPU 0 - % 100 / 4096 MiB - °C - W - MHz  GPU 1" in line
    assert line.endswith("(slowed by temperature)")
    assert as_line(ResourceUsage(cpu_percent=0, cpus=1, ram_used_mib=1, ram_limit_mib=2), 0.0).endswith("no GPU")


Disk = namedtuple("Disk", "read_bytes write_bytes")
Card = namedtuple("Card", "bytes_recv bytes_sent")


@pytest.mark.parametrize(("interface", "received"), [("", 6.0), ("wlan0", 4.0)])
def test_rates_are_those_since_the_last_reading(
    interface: str, received: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    mib = 1 << 20
    disks = iter([Disk(5 * mib, 0), Disk(9 * mib, 2 * mib)])
    cards = iter([
        {"lo": Card(0, 0), "eth0": Card(mib, 0), "wlan0": Card(0, 0)},
        {"lo": Card(99 * mib, 0), "eth0": Card(5 * mib, 0), "wlan0": Card(8 * mib, 0)},
    ])  # fmt: skip
    clock = iter([10.0, 12.0])
    monkeypatch.setattr(psutil, "disk_io_counters", lambda: next(disks))
    monkeypatch.setattr(psutil, "net_io_counters", lambda pernic: next(cards))
    monkeypatch.setattr(resources, "_gpu_handles", list)
    monkeypatch.setattr(resources, "CpuMeter", lambda: SimpleNamespace(cpus=1.0, percent=lambda: 3.0))
    monkeypatch.setattr(resources.time, "monotonic", lambda: next(clock))
    usage = ResourceMeter(interface=interface).read()
    assert (usage.disk_read_mib_s, usage.disk_write_mib_s, usage.network_in_mib_s) == (2.0, 1.0, received)


def test_gpus_are_read_by_nvml_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML's own answers, as of a card of 8 GiB of which 1 is in use, whose clock its temperature limits."""
    answers = {
        "nvmlInit": None, "nvmlDeviceGetCount": 1, "nvmlDeviceGetHandleByIndex": "handle",
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=8 << 30, free=7 << 30, used=1 << 30),
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=61, memory=12),
        "nvmlDeviceGetName": "NVIDIA GeForce RTX 3050", "nvmlDeviceGetTemperature": 87,
        "nvmlDeviceGetPowerUsage": 74500, "nvmlDeviceGetClockInfo": 1237,
        "nvmlDeviceGetCurrentClocksThrottleReasons":
            pynvml.nvmlClocksThrottleReasonSwThermalSlowdown | pynvml.nvmlClocksThrottleReasonGpuIdle,
    }  # fmt: skip
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, lambda *_, answer=answer: answer)
    (gpu,) = ResourceMeter().read().gpus
    assert gpu == GpuUsage(
        index=0, name="NVIDIA GeForce RTX 3050", utilization_percent=61, memory_used_mib=1024, memory_total_mib=8192,
        temperature_c=87, power_w=74.5, clock_mhz=1237, slowed_by="temperature",
    )  # fmt: skip

    def lost(*_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    for name in answers.keys() - {"nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"}:
        monkeypatch.setattr(pynvml, name, lost)
    (gpu,) = ResourceMeter().read().gpus
    assert (gpu.utilization_percent, gpu.memory_used_mib, gpu.power_w, gpu.slowed_by) == (None, None, None, "")


def test_an_event_has_means_of_rates_and_the_highest_levels() -> None:
    cool = GpuUsage(index=0, name="GeForce", utilization_percent=50, memory_used_mib=300, power_w=50.5)
    other = ResourceUsage(
        cpu_percent=100.0, cpus=2.0, ram_used_mib=900, ram_limit_mib=4096, network_out_mib_s=3.0, gpus=(cool,)
    )
    reported = summary([other, USAGE])
    assert (reported.cpu_percent, reported.ram_used_mib, reported.network_out_mib_s) == (75.5, 900, 1.5)
    (gpu,) = reported.gpus
    assert (gpu.utilization_percent, gpu.memory_used_mib, gpu.temperature_c, gpu.power_w) == (70, 300, 60, 63.0)
    event = ResourcesSampled(t=1.0, node="beta", node_rank=1, generation=1, usage=reported)
    assert decode_event(encode_event(event)) == event


@pytest.mark.parametrize(
    "values", ["", '"cpu_percent": "x"', '"cpu_percent": 1e300', '"gpus": [{"index": 0}]', '"gpus": 3']
)
def test_a_line_that_is_no_sample_is_an_ordinary_line(values: str) -> None:
    text = encode_event(ResourcesSampled(usage=USAGE))
    broken = text[:-1] + f", {values}" + "}" if values else text.replace("cpus", "cpu")
    assert decode_event(text) is not None
    assert decode_event(broken) is None


class Steady:
    def __init__(self, fails_at: int = 10**9) -> None:
        self.read_so_far, self.fails_at = 0, fails_at

    def read(self) -> ResourceUsage:
        self.read_so_far += 1
        if self.read_so_far == self.fails_at:
            raise FileNotFoundError("/proc/diskstats")
        return USAGE


def sampled(file: Path, meter: Steady, **options: int) -> list[ResourceUsage]:
    """Events until two have come or the meter has failed; its thread has ended, so that what it prints is there."""
    reports: list[ResourceUsage] = []
    others = threading.enumerate()
    sampler = ResourceSampler(file, reports.append, every_s=0.01, meter=lambda: meter, **options)
    deadline = time.monotonic() + 30
    while len(reports) < 2 and meter.read_so_far < meter.fails_at and time.monotonic() < deadline:
        time.sleep(0.01)
    sampler.stop()
    for thread in threading.enumerate():
        if thread not in others:
            thread.join()
    return reports


def test_samples_are_saved_and_every_fifth_makes_an_event(tmp_path: Path) -> None:
    data = sampled(tmp_path / "resources-0.jsonl", Steady())
    saved = [json.loads(line) for line in (tmp_path / "resources-0.jsonl").read_text().splitlines()]
    assert data[:2] == [USAGE, USAGE]
    assert len(saved) >= 2 * REPORT_EVERY
    assert (saved[0]["cpu_percent"], saved[0]["gpus"][0]["clock_mhz"]) == (51.0, 1500)
    assert abs(saved[0]["t"] - time.time()) < 60


def test_the_file_stays_below_its_limit(tmp_path: Path) -> None:
    sampled(tmp_path / "resources-0.jsonl", Steady(), most_bytes=1000)
    assert {file.name for file in tmp_path.iterdir()} <= {"resources-0.jsonl", "resources-0.jsonl.1"}
    assert 1000 < (tmp_path / "resources-0.jsonl.1").stat().st_size < 2000


def test_a_disk_without_room_costs_the_file_and_not_the_events(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert len(sampled(tmp_path / "gone" / "resources-0.jsonl", Steady())) >= 2
    assert capfd.readouterr().err.count("samples of resources are not kept: [Errno 2]") == 1


def test_a_sampler_that_fails_says_so_and_ends_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert len(sampled(tmp_path / "resources-0.jsonl", Steady(fails_at=8))) == 1
    assert "resources are not sampled: FileNotFoundError('/proc/diskstats')" in capfd.readouterr().err


def test_nothing_is_sampled_where_that_is_turned_off(tmp_path: Path) -> None:
    meter = Steady()
    sampler = ResourceSampler(tmp_path / "file", print, every_s=0, meter=lambda: meter)
    time.sleep(0.1)
    sampler.stop()
    assert (meter.read_so_far, list(tmp_path.iterdir())) == (0, [])
