"""Read the resources in use on a machine, every few seconds, by one command that ends by itself."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from contract.resources import GpuUsage, ResourceUsage, read_usage
from orchestrator.nodes.interface import Node
from orchestrator.nodes.probes.nvidia_smi import known
from orchestrator.specs.numbers import real, whole

EVERY_S, SAMPLES = 2, 900
"""Seconds between two samples, and samples of one command, which so ends after half an hour, whether read or not."""
TIMEOUT_S = 2.0 * EVERY_S * SAMPLES
LONGEST_LINE = 256 * 1024
"""Bytes. A sample of a machine with eight GPUs has about 2 KiB."""

# A constant: $1 samples, $2 seconds between them, $3 the agent's file of samples (empty: none), $4 a folder whose disk
# counts. One line for each sample: KEY=VALUE, separated by tabs. The shell itself reads what it can; it starts `sleep`,
# and `tail` where the agent of a run samples, otherwise `nvidia-smi` where there is a driver: that makes no CUDA
# context. An agent's line that stays the same is of a run that is over. A reader that is gone ends it.
SCRIPT = r"""
count=$1; every=$2; kept=$3; place=$4; tab=$(printf '\t'); before=; same=0; first=yes
case $place in "~"*) place=$HOME${place#"~"};; esac
until [ -d "$place" ] || [ -z "$place" ]; do place=${place%/*}; done
fields=index,name,utilization.gpu,memory.used,memory.total,temperature.gpu,power.draw,clocks.sm
slow=clocks_throttle_reasons.active
ask() { timeout 5 nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits 2>/dev/null; }
add() { line="$line$tab$1=$2"; }
while [ "$count" -gt 0 ]; do
  count=$((count - 1)); read -r up _ </proc/uptime; line="up=$up"; cpus=0
  while read -r key rest; do
    case $key in cpu) add cpu "$rest";; cpu*) cpus=$((cpus + 1));; *) break;; esac
  done </proc/stat
  add cpus "$cpus"
  while read -r key kib _; do
    case $key in
      MemTotal:|MemAvailable:|SwapTotal:) add "${key%:}" "$kib";;
      SwapFree:) add SwapFree "$kib"; break;;
    esac
  done </proc/meminfo
  while read -r _ _ name _ _ read _ _ _ written _; do
    case $name in loop*|ram*|zram*|dm-*|md*) continue;; esac
    [ -e "/sys/block/$name" ] && add disk "$read $written"
  done </proc/diskstats 2>/dev/null
  while IFS=' :' read -r name in _ _ _ _ _ _ _ out _; do
    case $name in lo|veth*|docker*|br-*|virbr*|Inter-*|face*) continue;; esac
    add network "$in $out"
  done </proc/net/dev
  newest=; [ -n "$kept" ] && newest=$(tail -n 1 -- "$kept" 2>/dev/null)
  if [ "$newest" = "$before" ]; then same=$((same + 1)); else same=0; before=$newest; fi
  if [ -n "$newest" ] && [ "$same" -lt 5 ]; then add kept "$newest"
  else
    free=$(df -Pk "${place:-/}" 2>/dev/null | { read -r _; read -r _ _ _ free _; printf %s "$free"; }); add free "$free"
    [ -r /proc/driver/nvidia/version ] && { echo || exit 0; }  # a sign of life: nvidia-smi may take seconds
    if [ -r /proc/driver/nvidia/version ] && gpus=$(ask "$fields,$slow" || ask "$fields"); then
      line="$line$(printf '%s\n' "$gpus" | while read -r gpu; do printf '\tgpu=%s' "$gpu"; done)"
    fi
  fi
  printf '%s\n' "$line" || exit 0
  if [ -n "$first" ]; then first=; sleep 0.5 2>/dev/null || sleep 1; else sleep "$every"; fi
done
"""

_SLOWED_BY = (("power", 0x04 | 0x80), ("temperature", 0x20 | 0x40), ("hardware", 0x08))
"""Bits of the reasons for a low clock, as in `trainer/resources.py`."""
_SECTOR, _MIB = 512, 1 << 20


@dataclass(frozen=True, kw_only=True)
class _Counted:
    """Counters since the machine has started."""

    up_s: float
    busy: int
    total: int
    bytes: tuple[int, int, int, int]
    """Read from disks, written to them, received, sent."""


def samples(node: Node, *, samples_file: str = "", folder: str = "") -> Iterator[ResourceUsage | None]:
    """Resources in use, again and again; None where a sample says only that the machine answers: rates need two.

    `samples_file`: the file on the node into which the agent of a run writes its samples. It is read as long as it
    grows: the shares in it are those of the container. `folder`: its disk counts. Raises as `Node.stream` does;
    closing it ends the command within one sample.
    """
    argv = ["sh", "-c", SCRIPT, "sh", str(SAMPLES), str(EVERY_S), samples_file, folder]
    reader, rest = UsageReader(), b""
    for chunk in node.stream(argv, timeout_s=TIMEOUT_S):
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[-LONGEST_LINE:]
        for line in lines:
            yield reader.read(line.decode(errors="replace"))


class UsageReader:
    """Reads the lines of one command. Values that are missing, or no numbers, count as 0 or stay unknown."""

    def __init__(self) -> None:
        self._before: _Counted | None = None

    def read(self, line: str) -> ResourceUsage | None:
        """None for the first line without a run, and for one that has no counters."""
        fields: dict[str, list[str]] = {}
        for part in line.split("\t")[:4096]:
            key, equals, value = part.partition("=")
            if equals:
                fields.setdefault(key, []).append(value)
        if of_agent := _of_agent(fields.get("kept", [""])[0]):
            return of_agent
        counted, before = _counted(fields), self._before
        self._before = counted or before
        if not counted or not before or counted.up_s <= before.up_s:
            return None
        return _usage(fields, counted, before)


def _of_agent(text: str) -> ResourceUsage | None:
    try:
        values = json.loads(text)
        values.pop("t", None)
        return read_usage(values)
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None


def _counted(fields: Mapping[str, Sequence[str]]) -> _Counted | None:
    up_s = real(fields.get("up", [""])[0])
    times = [whole(word, most=10**18) or 0 for word in fields.get("cpu", [""])[0].split()[:8]]
    if up_s is None or len(times) < 5:
        return None
    disks, networks = _sums(fields.get("disk", ())), _sums(fields.get("network", ()))
    return _Counted(
        up_s=up_s,
        busy=sum(times) - times[3] - times[4],  # idle, and waiting for a disk
        total=sum(times),
        bytes=(disks[0] * _SECTOR, disks[1] * _SECTOR, *networks),
    )


def _sums(pairs: Sequence[str]) -> tuple[int, int]:
    """Sums of the two columns."""
    rows = [[whole(word, most=10**18) or 0 for word in pair.split()] for pair in pairs]
    rows = [row for row in rows if len(row) == 2]
    return sum(row[0] for row in rows), sum(row[1] for row in rows)


def _usage(fields: Mapping[str, Sequence[str]], counted: _Counted, before: _Counted) -> ResourceUsage:
    def mib(key: str) -> int | None:
        kib = whole(fields.get(key, [""])[0])
        return None if kib is None else kib // 1024

    seconds = counted.up_s - before.up_s
    rates = [max(0, new - old) / seconds / _MIB for new, old in zip(counted.bytes, before.bytes, strict=True)]
    total, available = mib("MemTotal") or 0, mib("MemAvailable") or 0
    ticks = counted.total - before.total
    return ResourceUsage(
        cpu_percent=round(min(100.0, 100 * max(0, counted.busy - before.busy) / ticks), 1) if ticks > 0 else 0.0,
        cpus=float(whole(fields.get("cpus", [""])[0]) or 1),
        ram_used_mib=max(0, total - available),
        ram_limit_mib=total,
        swap_used_mib=max(0, (mib("SwapTotal") or 0) - (mib("SwapFree") or 0)),
        disk_free_mib=mib("free"),
        disk_read_mib_s=round(rates[0], 3),
        disk_write_mib_s=round(rates[1], 3),
        network_in_mib_s=round(rates[2], 3),
        network_out_mib_s=round(rates[3], 3),
        gpus=tuple(gpu for number, row in enumerate(fields.get("gpu", ())[:64]) if (gpu := _gpu(row, number))),
    )


def _gpu(row: str, position: int) -> GpuUsage | None:
    """A row of nvidia-smi; None for a message in its place."""
    try:
        cells = [cell.strip() for cell in next(csv.reader([row]), [])]
    except csv.Error:
        return None
    if len(cells) < 8:
        return None

    def number(cell: str) -> int | None:
        value = real(cell)
        return None if value is None else int(value)

    index = whole(cells[0])
    return GpuUsage(
        index=position if index is None else index,
        name=known(cells[1]),
        utilization_percent=number(cells[2]),
        memory_used_mib=number(cells[3]),
        memory_total_mib=number(cells[4]),
        temperature_c=number(cells[5]),
        power_w=real(cells[6]),
        clock_mhz=number(cells[7]),
        slowed_by=_slowed_by(cells[8] if len(cells) > 8 else ""),
    )


def _slowed_by(mask: str) -> str:
    try:
        bits = int(mask[:18], 16)
    except ValueError:
        return ""
    return ", ".join(reason for reason, some in _SLOWED_BY if bits & some)
