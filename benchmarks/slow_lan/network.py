"""Nodes joined by shaped links: a network namespace each, and one with the bridge between them.

The bridge has a namespace of its own: in the root namespace a Docker Engine's FORWARD policy drops its traffic. Names
contain the process id of their rig, so that leftovers of a killed rig can be recognized.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.slow_lan.rates import shape

PREFIX = "slowlan"
INTERFACE = "lan0"
CONGESTION = ("cubic", "reno")
"""Linux's default, whatever this machine has set for itself. A namespace may only use algorithms that the kernel allows
for all users; with the short round trips of a LAN, cubic behaves like reno, which is always allowed."""


class Network:
    """`close` undoes all of it, also after a failure half way."""

    def __init__(self, links: Sequence[float | None]) -> None:
        """A link's rate in bits per second, the same both ways; None: as fast as the machine copies."""
        self.bridge = f"{PREFIX}-{os.getpid()}-bridge"
        self.spaces = tuple(f"{PREFIX}-{os.getpid()}-{number}" for number in range(len(links)))
        self.links = tuple(links)

    def open(self) -> None:
        _ip("netns", "add", self.bridge)
        _ip("-n", self.bridge, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self.bridge, "link", "set", "bridge", "up")
        for number, (space, rate) in enumerate(zip(self.spaces, self.links, strict=True)):
            port = f"port{number}"
            _ip("netns", "add", space)
            _ip("-n", space, "link", "add", INTERFACE, "type", "veth", "peer", "name", port, "netns", self.bridge)
            _ip("-n", self.bridge, "link", "set", port, "master", "bridge", "up")
            _ip("-n", space, "address", "add", f"{self.address(number)}/24", "dev", INTERFACE)
            _ip("-n", space, "link", "set", INTERFACE, "up")
            _ip("-n", space, "link", "set", "lo", "up")
            _loss_based(space)
            if rate:
                _tbf(space, INTERFACE, rate, switch=False)
                _tbf(self.bridge, port, rate, switch=True)

    def shape(self, links: Sequence[float]) -> None:
        """Change the rates, in bits per second, of links that are already shaped."""
        for number, (space, rate) in enumerate(zip(self.spaces, links, strict=True)):
            _tbf(space, INTERFACE, rate, switch=False)
            _tbf(self.bridge, f"port{number}", rate, switch=True)
        self.links = tuple(links)

    def address(self, number: int) -> str:
        return f"10.77.0.{number + 1}"

    def sent(self, number: int) -> int:
        """Bytes counted by the node's interface since its creation."""
        counters = _run("ip", "-n", self.spaces[number], "-s", "-j", "link", "show", "dev", INTERFACE)
        return int(json.loads(counters)[0]["stats64"]["tx"]["bytes"])

    def dropped(self) -> int:
        """Packets dropped at a full queue, on all links."""
        places = [(self.bridge, f"port{n}") for n in range(len(self.spaces))]
        places += [(space, INTERFACE) for space in self.spaces]
        return sum(
            int(json.loads(_run("tc", "-n", space, "-s", "-j", "qdisc", "show", "dev", device))[0].get("drops", 0))
            for space, device in places
        )

    def close(self) -> None:
        for space in (*self.spaces, self.bridge):
            _remove(space)


def remove_stale() -> list[str]:
    """Remove leftovers of rigs with no running process; return their names."""
    stale = [name for name in _names() if is_stale(name, is_running)]
    for name in stale:
        _remove(name)
    return stale


def others_at_work() -> bool:
    """Return whether another rig is up on this machine: each slows the other."""
    mine = f"{PREFIX}-{os.getpid()}-"
    return any(name.startswith(f"{PREFIX}-") and not name.startswith(mine) for name in _names())


def is_stale(name: str, alive: Callable[[int], bool]) -> bool:
    """Return whether a namespace's (or cgroup's) name is one of ours and its rig is no longer `alive(pid)`."""
    found = re.fullmatch(rf"{PREFIX}-(\d+)(?:-\w+)?", name)
    return found is not None and not alive(int(found[1]))


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def sent_and_received(net_dev: str) -> tuple[int, int]:
    """Bytes counted by a process's interface, from the text of `/proc/PID/net/dev`."""
    for line in net_dev.splitlines():
        name, colon, counts = line.partition(":")
        if colon and name.strip() == INTERFACE:
            fields = counts.split()
            return int(fields[8]), int(fields[0])
    raise ValueError(f"no {INTERFACE} among the interfaces")


def _names() -> list[str]:
    return [line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line.strip()]


def _loss_based(space: str) -> None:
    for name in CONGESTION:
        words = ("sysctl", "-qw", f"net.ipv4.tcp_congestion_control={name}")
        if not subprocess.run(("ip", "netns", "exec", space, *words), capture_output=True, check=False).returncode:
            return


def _tbf(space: str, device: str, rate: float, *, switch: bool) -> None:
    how = shape(rate, switch=switch)
    words = ("rate", f"{how.bits_per_s}bit", "burst", str(how.burst_bytes), "limit", str(how.limit_bytes))
    _run("tc", "-n", space, "qdisc", "replace", "dev", device, "root", "tbf", *words)
    _ip("-n", space, "link", "set", device, "gso_max_size", str(how.packet_bytes))


def _remove(space: str) -> None:
    """Remove a namespace and kill the processes in it, which are all ours."""
    found = subprocess.run(("ip", "netns", "pids", space), capture_output=True, text=True, check=False)
    for pid in found.stdout.split():
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            continue
    subprocess.run(("ip", "netns", "delete", space), capture_output=True, check=False)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*argv: str) -> str:
    ran = subprocess.run(argv, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise OSError(f"{' '.join(argv)}: {ran.stderr.strip() or ran.returncode}")
    return ran.stdout
