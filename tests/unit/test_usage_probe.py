"""Resources in use on a machine, read by one command over the open connection."""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest

from contract.resources import GpuUsage, ResourceUsage
from orchestrator.nodes.fake import FakeNode
from orchestrator.nodes.local import LocalNode
from orchestrator.nodes.probes import usage_probe
from orchestrator.nodes.probes.usage_probe import UsageReader, samples

USAGE = ResourceUsage(cpu_percent=40.0, cpus=2.0, ram_used_mib=10, ram_limit_mib=4096)


def line(up: str, busy: int, idle: int, **more: str) -> str:
    values = {"up": up, "cpu": f"{busy} 0 0 {idle} 0 0 0 0 0 0", "cpus": "4", "MemTotal": "8388608",
              "MemAvailable": "2097152", "SwapTotal": "1048576", "SwapFree": "524288", "free": "10485760"}  # fmt: skip
    return "\t".join(f"{key}={value}" for key, value in {**values, **more}.items())


def test_rates_are_those_between_two_lines_by_the_clock_of_the_machine() -> None:
    reader = UsageReader()
    assert reader.read(line("100.00", 1000, 1000, disk="0 0", network="0 0")) is None
    usage = reader.read(line("102.00", 1300, 1100, disk="4096 8192", network=f"{4 << 20} {1 << 20}"))
    assert usage is not None
    assert (usage.cpu_percent, usage.cpus) == (75.0, 4.0)
    assert (usage.ram_used_mib, usage.ram_limit_mib, usage.swap_used_mib) == (6144, 8192, 512)
    assert (usage.disk_read_mib_s, usage.disk_write_mib_s, usage.disk_free_mib) == (1.0, 2.0, 10240)
    assert (usage.network_in_mib_s, usage.network_out_mib_s) == (2.0, 0.5)


def test_counters_that_start_again_are_no_rates() -> None:
    reader = UsageReader()
    reader.read(line("500.00", 9000, 9000, network="900000000 9"))
    assert reader.read(line("3.00", 10, 10, network="5 5")) is None
    usage = reader.read(line("5.00", 20, 30, network="0 5"))
    assert usage is not None
    assert (usage.network_in_mib_s, usage.cpu_percent) == (0.0, 33.3)


def test_gpus() -> None:
    reader = UsageReader()
    reader.read(line("1", 1, 1))
    rows = ("0, RTX 3050, 97, 3500, 4096, 84, 34.5, 1200, 0x0000000000000024\tgpu=1, RTX 3050, [N/A], 1, 4096, [N/A], "
            "[Not Supported], 210\tgpu=Unable to determine the device handle for GPU1")  # fmt: skip
    usage = reader.read(line("3", 1, 2, gpu=rows))
    assert usage is not None
    assert usage.gpus == (
        GpuUsage(index=0, name="RTX 3050", utilization_percent=97, memory_used_mib=3500, memory_total_mib=4096,
                 temperature_c=84, power_w=34.5, clock_mhz=1200, slowed_by="power, temperature"),
        GpuUsage(index=1, name="RTX 3050", memory_used_mib=1, memory_total_mib=4096, clock_mhz=210),
    )  # fmt: skip


def test_the_agents_sample_counts_where_there_is_one() -> None:
    saved = json.dumps({"t": 5.0, **asdict(USAGE)})
    assert UsageReader().read(line("1", 1, 1, kept=saved)) == USAGE


@pytest.mark.parametrize(
    "text",
    ["", "up=", "up=1e400\tcpu=1", "no", "up=1\tcpu=" + "9" * 400, "kept=[1]", "kept={", "kept=" + "[" * 5000,
     "gpu=" + '"' * 9, "\x1b[2J", "up=5\tcpu=a b c d e f g h"],
)  # fmt: skip
def test_lines_of_other_programs_are_no_samples(text: str) -> None:
    reader = UsageReader()
    assert [reader.read(text), reader.read(text)] == [None, None]


def test_lines_may_come_in_pieces_and_a_line_without_end_is_bounded() -> None:
    node = FakeNode("alpha")
    first, second = line("1", 1, 1), line("3", 2, 2)
    chunks = [first.encode()[:9], first.encode()[9:] + b"\n" + second.encode(), b"\n", b"x" * 2**20]
    node.stream = lambda argv, timeout_s=0: iter(chunks)  # type: ignore[method-assign]  # in pieces
    assert [usage and usage.cpu_percent for usage in samples(node)] == [None, 50.0]


def test_this_machine_is_sampled_and_nothing_is_left(tmp_path: Path) -> None:
    reading = samples(LocalNode("here"), folder=str(tmp_path / "not there yet"))
    usage = next(usage for usage in reading if usage)
    assert usage.ram_limit_mib > 100
    assert usage.cpus >= 1
    assert usage.disk_free_mib
    reading.close()  # type: ignore[attr-defined]  # a generator
    assert str(tmp_path) not in _commands(until_without=str(tmp_path))


def test_it_ends_by_itself() -> None:
    argv = ["sh", "-c", usage_probe.SCRIPT, "sh", "2", "0", "", ""]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True)
    assert len([one for one in ran.stdout.splitlines() if one]) == 2
    assert ran.stderr == ""


def test_it_ends_when_its_output_is_not_read() -> None:
    argv = ["sh", "-c", usage_probe.SCRIPT, "sh", "1000", "0.05", "", ""]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout
        process.stdout.readline()
        process.stdout.close()
        process.wait(10)


def test_a_file_that_stays_the_same_is_of_a_run_that_is_over(tmp_path: Path) -> None:
    saved = tmp_path / "resources-0.jsonl"
    saved.write_text(json.dumps({"t": 1.0, **asdict(USAGE)}) + "\n")
    argv = ["sh", "-c", usage_probe.SCRIPT, "sh", "8", "0", str(saved), ""]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True)
    reader = UsageReader()
    of_agent = [reader.read(one) == USAGE for one in ran.stdout.splitlines() if one]
    assert of_agent == [True] * 5 + [False] * 3


def _commands(until_without: str) -> str:
    """Command lines of all processes, once none holds these words any more, or after five seconds."""
    deadline = time.monotonic() + 5
    while True:
        found = ""
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                found += file.read_text(errors="replace")
        if until_without not in found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)
