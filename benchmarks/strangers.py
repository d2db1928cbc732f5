"""Flood the agents' port of a run in a lab with connections: count lost steps, and measure the slowdown.

    python -m benchmarks.strangers --rate 100 --seconds 60

Start a lab with image and data, train, open the given number of connections per second to the agents' port of the run
(silent, slow, with a wrong token, with garbage, huge, half closed, reset), and remove the lab. The exit code is 1 if
the run was disturbed. See docs/adr/0028-agent-authentication.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from tests.lab.chaos import BACK_S, until
from tests.lab.conftest import NAMES, Orch, a_lab
from tests.lab.underway import EXACT, Record, Reported, records
from tests.strangers import attack

WORDS = (*EXACT, "--no-compile", "--schedule", "constant", "--log-every", "1", "--checkpoint-every", "50")
SETTLED = 30
"""Steps before the measurement."""
CALM_S = 20.0
"""Seconds of measuring before the attack."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=100.0, help="connections a second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--nodes", type=int, default=3, choices=range(2, len(NAMES) + 1))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="strangers-") as folder, a_lab(Path(folder), given.nodes, say) as orch:
        try:
            with a_run(orch, NAMES[: given.nodes]) as record:
                attacked(orch, record, given.rate, given.seconds)
        except AssertionError as disturbed:
            say(f"DISTURBED: {disturbed}")
            return 1
    return 0


def attacked(orch: Orch, record: Record, rate: float, seconds: float) -> None:
    until(lambda: record.step() > SETTLED, "its first steps", BACK_S)
    calm_from = time.time()
    time.sleep(CALM_S)
    began = time.time()
    plan = json.loads((records(orch) / record.run_id / "plan-0.json").read_text("utf-8"))
    became = attack(plan["master_addr"], plan["supervisor_port"], rate=rate, seconds=seconds)
    ended = time.time()
    until(lambda: record.events("step")[-1].at > ended + 2, "a step after the attack", BACK_S)
    stopped = orch("stop", record.run_id, "--timeout", "60")
    require(stopped.code == 0, stopped.err)

    events = record.events("step")
    steps = [int(one.values["step"]) for one in events]
    require(steps == list(range(1, len(steps) + 1)), "steps are missing or were repeated")
    broken = [one.kind for one in record.events("restarting", "resumed", "stalled", "waiting") if one.at > calm_from]
    require(not broken, f"it was disturbed: {broken}")
    require(became.answers <= {b'{"asked": '}, f"strangers received {became.answers}")
    calm, under = (step_s(events, *span) for span in ((calm_from, began), (began, ended)))
    opened = sum(became.begun.values())
    say(f"{opened} connections in {became.seconds:.0f} s ({', '.join(f'{n} {k}' for k, n in became.begun.items())})")
    say(f"{became.cut_off} cut off, {became.stayed} not, {became.refused} not even opened")
    say(f"{len(steps)} steps, none lost or repeated, no restart")
    say(f"a step took {calm:.3f} s before, {under:.3f} s during the attack (medians)")


def step_s(events: Sequence[Reported], since: float, until: float) -> float:
    at = [one.at for one in events if since <= one.at <= until]
    return statistics.median(after - before for before, after in pairwise(at))


@contextmanager
def a_run(orch: Orch, nodes: Sequence[str]) -> Iterator[Record]:
    """Connect until stopped; all connections are closed."""
    words = ("--nodes", ",".join(nodes), "--master", nodes[0], "--name", "strangers", "--detach", "--yes")
    launched = orch("launch", *words, "--", *WORDS, "--max-steps", "1000000")
    require(launched.code == 0, launched.err)
    run_id = launched.out.split()[0]
    try:
        yield Record(orch, run_id)
    finally:
        orch("stop", run_id, "--timeout", "5")
        orch("clean", run_id)


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
