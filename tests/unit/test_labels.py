"""Labels of containers are text that anybody with Docker on a node may write: a stray costs its own row alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from orchestrator.fleet.runs.find_runs import find_runs
from orchestrator.specs import labels
from orchestrator.specs.labels import MOST_ATTEMPTS, MOST_NODES, read_labels
from tests import lan
from tests.unit.conftest import THREE, Orch, detached

OF_A_RUN = lan.plan().nodes[1].container.labels
NOT_YET = "9000-01-01T00:00:00+00:00"
STRANGE = [
    (labels.LABEL_RUN, ""),
    (labels.LABEL_RUN, "../elsewhere"),
    (labels.LABEL_ATTEMPT, "x"),
    (labels.LABEL_ATTEMPT, "-1"),
    (labels.LABEL_ATTEMPT, "²"),
    (labels.LABEL_ATTEMPT, "9" * 5000),
    (labels.LABEL_ATTEMPT, str(MOST_ATTEMPTS + 1)),
    (labels.LABEL_NODE_RANK, "x"),
    (labels.LABEL_NODE_RANK, "3"),
    (labels.LABEL_NNODES, "0"),
    (labels.LABEL_NNODES, str(MOST_NODES + 1)),
    (labels.LABEL_NNODES, "1000000000"),
    (labels.LABEL_STARTED, "x"),
    (labels.LABEL_STARTED, "2026-01-02T15:04:05"),
    (labels.LABEL_STARTED, NOT_YET),
    (labels.LABEL_USER, "a" * 300),
    (labels.LABEL_COMMAND, "a" * 70000),
]


def brief(value: object) -> str:
    return str(value)[:24]


def test_what_a_launch_writes_is_understood() -> None:
    says = read_labels(OF_A_RUN)
    assert (says.run_id, says.attempt, says.node_rank, says.nnodes) == (lan.IDENTITY.run_id, 0, 1, 2)
    assert (says.user, says.started_at, says.command, says.master) == ("ana", lan.IDENTITY.started_at, "gpt2", "alpha")


@pytest.mark.parametrize(("label", "value"), STRANGE, ids=brief)
def test_what_no_run_has_is_refused_in_words(label: str, value: str) -> None:
    with pytest.raises(ValueError, match=rf"^label {label} is '.*, not ") as caught:
        read_labels({**OF_A_RUN, label: value}, latest=datetime.now(UTC) + timedelta(days=1))
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize(("label", "value"), STRANGE, ids=brief)
def test_a_stray_container_is_named_and_changes_no_run(label: str, value: str) -> None:
    here = lan.lan(*THREE, ends_with=None)
    for part in lan.plan(THREE).nodes:
        here.nodes[part.node].engine.create(part.container)
    before = find_runs(list(here.nodes.values())).runs
    stray = replace(lan.plan(THREE).nodes[1].container, name="stray")
    here.nodes["beta"].engine.create(replace(stray, labels={**stray.labels, label: value}))
    found = find_runs(list(here.nodes.values()))
    assert found.runs == before
    (line,) = found.not_understood
    assert line.startswith(f"beta: container stray is not understood and left out: label {label} is ")


@pytest.mark.parametrize("words", [("status",), ("runs",), ("logs",), ("why",), ("clean",), ("stop",)], ids=" ".join)
def test_every_command_on_runs_works_beside_a_stray(orch: Orch, words: tuple[str, ...]) -> None:
    """Strays have labels of all kinds at once, on one node, next to a run of one's own."""
    here = lan.lan(*THREE, says=("[rank0]: hello",), ends_with=None)
    run_id = detached(orch, here)
    plan = lan.plan(THREE).nodes[1].container
    for number, (label, value) in enumerate(STRANGE):
        stray = replace(plan, name=f"stray-{number}", labels={**plan.labels, label: value})
        here.nodes["beta"].engine.create(stray)
    ran = orch(*words, on=here)
    assert ran.code == 0, ran.err
    if words[0] in ("status", "runs", "stop", "clean"):
        assert ran.err.count("note: beta: container stray-") == len(STRANGE)
    if words[0] == "stop":
        assert f"stopping run {run_id} on alpha, beta, gamma" in ran.err
        assert {len(node.engine.made) for name, node in here.nodes.items() if name != "beta"} == {0}


def test_a_run_is_as_most_of_its_containers_describe_it() -> None:
    """One node with other labels does not rename the run, its user or its size."""
    here = lan.lan(*THREE, ends_with=None)
    for part in lan.plan(THREE).nodes:
        message = {labels.LABEL_NNODES: "4000", labels.LABEL_USER: "eve"} if part.node == "alpha" else {}
        container = replace(part.container, labels={**part.container.labels, **message})
        here.nodes[part.node].engine.create(container)
    (run,) = find_runs(list(here.nodes.values())).runs
    assert (run.user, run.nnodes, len(run.members)) == ("ana", 3, 3)
