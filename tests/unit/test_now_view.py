"""The first view of the page: health decided in Python, the place of a run, the last lines of all nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contract.events import OutputProgress
from orchestrator.checks.output_progress import output_share
from orchestrator.checks.stragglers import Straggler
from orchestrator.cli.web.now_view import LAST_LINES, health, last_lines, now_view
from orchestrator.render.live import KeptLine, LiveNode, LiveRun, LiveSnapshot
from tests.page_scene import usage

RUN = LiveRun(run_id="r1", state="running", step=5, final_step=10)
ALPHA = LiveNode(name="alpha", state="running", node_rank=0, heard_s=0.1)
BETA = replace(ALPHA, name="beta", node_rank=1)
SLOWED = replace(usage(0, 0.0), gpus=(replace(usage(0, 0.0).gpus[0], slowed_by="heat"),))
SLOW = Straggler(node="beta", reason="link", text="its link is slow")


@pytest.mark.parametrize(
    ("run", "nodes", "severity", "lines"),
    [
        (RUN, (), "ok", []),
        (None, (ALPHA, BETA), "ok", []),
        (RUN, (ALPHA, replace(BETA, heard_s=None)), "info", ["waiting for beta"]),
        (replace(RUN, restarts=2), (ALPHA,), "info", ["ranks restarted 2 times"]),
        (replace(RUN, restarting=True), (ALPHA,), "warning", ["ranks restart; figures are those before"]),
        (replace(RUN, straggler=SLOW), (ALPHA,), "warning", ["beta its link is slow"]),
        (replace(RUN, liveness="· rank 1 waits"), (ALPHA,), "warning", ["ranks rank 1 waits"]),
        (replace(RUN, liveness="! rank 1 hangs"), (ALPHA,), "error", ["ranks rank 1 hangs"]),
        (replace(RUN, state="failed"), (), "error", ["run r1 failed: orch why r1"]),
        (
            RUN,
            (replace(BETA, silent=True, heard_s=12, problem="no route"),),
            "error",
            ["beta silent for 12 s: no route"],
        ),
        (RUN, (replace(BETA, silent=True, heard_s=None),), "error", ["beta does not answer"]),
        (
            RUN,
            (replace(ALPHA, usage=SLOWED), replace(BETA, state="failed", problem="exit code 1")),
            "error",
            ["beta failed: exit code 1", "alpha GPU 0 is slowed by heat"],
        ),
    ],
)
def test_health_names_what_is_wrong_the_worst_first(
    run: LiveRun | None, nodes: tuple[LiveNode, ...], severity: str, lines: list[str]
) -> None:
    found = health(run, nodes)
    assert (found["severity"], [f"{one['about']} {one['text']}" for one in found["lines"]]) == (severity, lines)
    assert bool(found["fine"]) == (severity == "ok" and bool(nodes))


@pytest.mark.parametrize(
    ("run", "place"),
    [
        (RUN, "step 5 of 10"),
        (replace(RUN, step=None), ""),
        (
            replace(RUN, output="epoch 3/10 · step 120/400 · loss 2.31 · 12 min left   (read from its output)"),
            "epoch 3/10 · step 120/400 · from its output",
        ),
    ],
)
def test_the_place_of_a_run(run: LiveRun, place: str) -> None:
    snapshot = LiveSnapshot(at=0.0, run=run, looked=True, nodes=(), faults=())
    assert now_view(snapshot, lambda _name: [])["run"]["place"] == place


@pytest.mark.parametrize(
    ("event", "share"),
    [
        (OutputProgress(step=30, steps=120), 0.25),
        (OutputProgress(epoch=3, epochs=4, step=1, steps=2), 0.625),
        (OutputProgress(epoch=1.5, epochs=3), 0.5),
        (OutputProgress(epoch=0, epochs=3, step=1, steps=2), 0.0),
        (OutputProgress(epoch=9, epochs=3), 1.0),
        (OutputProgress(epoch=3), None),
        (OutputProgress(step=3), None),
    ],
)
def test_the_part_of_a_training_that_its_output_says_is_done(event: OutputProgress, share: float | None) -> None:
    assert output_share(event) == share


def test_the_newest_lines_of_all_nodes_in_order_of_time() -> None:
    def tail(name: str) -> list[KeptLine]:
        rank = int(name == "beta")
        return [KeptLine(number=n, time=f"{2 * n + rank:04d}", rank=rank, text=str(n or " ")) for n in range(50)]

    found = last_lines(("alpha", "beta"), tail)
    assert len(found) == LAST_LINES
    assert [(one["time"], one["node"], one["rank"]) for one in found[-2:]] == [
        ("0098", "alpha", 0), ("0099", "beta", 1)
    ]  # fmt: skip
    assert last_lines((), tail) == []
