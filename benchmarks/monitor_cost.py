"""Cost of `orch monitor` on a terminal: time to its first screen and to the values of all nodes, then processor time
and memory while it refreshes. It needs nodes, such as those of `orch lab up --nodes 5`; a run on them is optional.

    python -m benchmarks.monitor_cost --seconds 60
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

SETTLED_S = 10.0
"""Seconds after which only refreshes are counted."""
ORCH = (sys.executable, "-m", "orchestrator")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="how long it is watched after the first ten seconds"
    )
    parser.add_argument("--interval", default="2")
    given = parser.parse_args()
    listed = subprocess.run((*ORCH, "inventory", "list", "-o", "name"), capture_output=True, text=True, check=True)
    began = time.perf_counter()
    subprocess.run((*ORCH, "version"), capture_output=True, check=True)
    start_up_s = time.perf_counter() - began
    figures = watch(listed.stdout.split(), given.seconds, (*ORCH, "monitor", "--interval", given.interval))
    print(json.dumps({"start_up_s": round(start_up_s, 2), **figures, "load": os.getloadavg()[0]}))


def watch(names: list[str], seconds: float, argv: tuple[str, ...]) -> dict[str, float]:
    """Figures of one screen, which is ended by its key."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.setdefault("TERM", "xterm-256color")
        os.execvp(argv[0], argv)  # noqa: S606  # the child becomes the monitor
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    began, shown, figures, used = time.monotonic(), b"", dict[str, float](), 0.0
    while (passed := time.monotonic() - began) < SETTLED_S + seconds:
        if select.select([terminal], [], [], 0.02)[0]:
            shown += os.read(terminal, 65536)
        if "first_screen_s" not in figures and all(name.encode() in shown for name in names):
            figures |= {"first_screen_s": round(passed, 2), "first_screen_cpu_s": cpu_s(pid)}
        if "values_s" not in figures and shown.count(b" G") >= len(names):
            figures |= {"values_s": round(passed, 2), "values_cpu_s": cpu_s(pid)}
        used = cpu_s(pid) if passed < SETTLED_S else used
    figures["core_share"] = round((cpu_s(pid) - used) / seconds, 4)
    status = Path(f"/proc/{pid}/status").read_text().split()
    figures["memory_mib"] = round(int(status[status.index("VmHWM:") + 1]) / 1024, 1)
    os.write(terminal, b"q")
    os.waitpid(pid, 0)
    return figures


def cpu_s(pid: int) -> float:
    """Processor time of the process so far, in seconds."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
