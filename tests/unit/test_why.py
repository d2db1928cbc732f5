"""`orch why`: from the record alone and with the nodes, of a run that failed, hangs, survived, or ended well."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from string import Formatter

import pytest

from contract.event_lines import kind_of
from contract.failures.classify import SIGNATURES, Classified
from contract.failures.signature import Signature
from orchestrator.checks.causes import Cause, cause_areas, causes_of
from orchestrator.checks.cluster_job import ClusterJob
from orchestrator.checks.doctor import AREAS
from orchestrator.cli import COMMANDS
from orchestrator.nodes.probes.kernel_probe import SCRIPT
from orchestrator.render.why import why_lines
from orchestrator.specs.finding_pages import all_findings
from orchestrator.specs.pages import entries_of
from orchestrator.specs.run import ContainerFacts
from orchestrator.specs.run_events import RunLine
from orchestrator.state.journal import Journal
from orchestrator.state.journal_entries import EndEntry
from orchestrator.state.postmortem import Evidence, Postmortem, write_postmortem
from orchestrator.store.run_record import RunRecord
from orchestrator.watch.evidence import LAST_LINES, evidence_lines
from tests import lan
from tests.each_case import failures_of
from tests.json_output import json_data
from tests.unit.conftest import THREE, Orch, detached
from tests.unit.programs import program_of

SAYS = (
    "[rank0]: rank 0 joined",
    "[rank0]: Traceback (most recent call last):",
    '[rank0]:   File "/workspace/code/train.py", line 24, in main',
    '[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 9, in _call_impl',
    "[rank0]: ValueError: label 11, but there are 10 classes",
)


def wrote(second: int, text: str, rank: int | None = 0, node: str = "") -> RunLine:
    """A line of the node that holds this rank, one rank each."""
    node = node or lan.NAMES[rank or 0]
    return RunLine(time=lan.moment(second), node=node, node_rank=lan.NAMES.index(node), rank=rank, text=text)


def event(second: int, kind: str, rank: int | None = None, node: str = "alpha", **values: object) -> RunLine:
    words = {"event": kind, "rank": rank, "node": node, **values}
    return wrote(second, f"@orch {json.dumps(words)}", rank, node)


def story(*lines: RunLine, now: int = 0, running: bool = False, outcome: tuple[str, str] | None = None) -> Postmortem:
    held = ContainerFacts(id="c", name="c", image="", labels={}, status="running")
    return write_postmortem(
        Evidence(
            run_id="r1",
            plan=lan.plan(THREE),
            lines=lines,
            containers=dict.fromkeys(THREE, held) if running else {},
            journal=Journal(end=EndEntry(state=outcome[0], reason=outcome[1]) if outcome else None),
            now=tell_time(now),
        )
    )


def tell_time(second: int) -> float:
    from orchestrator.checks.hang import timestamp

    return timestamp(lan.moment(second))


def text(of: Postmortem) -> str:
    return "\n".join(why_lines(of))


# ── The command ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_failed_run_is_explained(orch: Orch) -> None:
    here = lan.lan(*THREE, says=SAYS, ends_with=1)
    run = detached(orch, here)
    ran = orch("why", on=here)
    assert ran.code == 0
    assert f"run {run} failed at " in ran.out
    assert "✗ rank 0 on alpha: ValueError: label 11, but there are 10 classes (exit code 1)" in ran.out
    assert "  where     /workspace/code/train.py:24 in main" in ran.out
    assert f"  → orch logs {run} --nodes alpha" in ran.out


def test_for_programs(orch: Orch) -> None:
    here = lan.lan(*THREE, says=SAYS, ends_with=1)
    run = detached(orch, here)
    data = json_data(orch("why", run, "--json", on=here).out)
    cause = data["failure"]["cause"]
    assert (data["run_id"], data["state"], data["failure"]["rank"]) == (run, "failed", 0)
    assert (cause["id"], cause["owner"]) == ("code.exception", "user")


def test_the_record_suffices_when_machines_and_inventory_are_gone(orch: Orch) -> None:
    here = lan.lan(*THREE, says=SAYS, ends_with=1)
    run = detached(orch, here)
    assert orch("why", run, on=here).code == 0  # brings the lines here
    for node in here.nodes.values():
        for container in list(node.engine.made):
            node.engine.remove(container)
    Path("inventory.yaml").unlink()
    ran = orch("why", run)
    assert "ValueError: label 11" in ran.out
    assert "no node is asked, only the records on this computer are read" in ran.err


def test_of_a_long_log_only_the_end_the_events_and_each_ranks_last_line_are_read() -> None:
    record, plan = RunRecord("long-1"), lan.plan(("alpha",))
    plan = replace(plan, nodes=(replace(plan.nodes[0], nproc_per_node=2),))
    with record.open_log("alpha") as saved:
        saved.add(event(0, "stacks", node="alpha", ranks=[{"rank": 1, "frames": ["train.py:7 in load"]}]))
        for number in range(25):
            saved.add(wrote(1, f"rank 1 loads file {number}", 1, "alpha"))
        for number in range(30_000):
            saved.add(wrote(2 + number // 1000, f"rank 0 waits, try {number}", 0, "alpha"))
    lines = evidence_lines(record, plan)
    assert len(lines) == 1 + LAST_LINES + 1
    assert kind_of(lines[0].event) == "stacks"
    assert [line.text for line in lines if line.rank == 1] == ["rank 1 loads file 24"]
    assert lines[-1].text == "rank 0 waits, try 29999"


def test_the_newest_run_may_have_left_nothing_on_the_nodes(orch: Orch) -> None:
    here = lan.lan(*THREE, says=SAYS, ends_with=1)
    detached(orch, here)
    newer = replace(lan.plan(THREE), run_id="newer-1", started_at="2999-01-02T15:04:05+00:00")
    RunRecord("newer-1").save_plan(newer)
    assert "run newer-1 ended in an unknown state" in orch("why", on=here).out


def test_a_plan_that_cannot_be_read_hides_no_log(orch: Orch) -> None:
    here = lan.lan(*THREE, says=SAYS, ends_with=1)
    run = detached(orch, here)
    (RunRecord(run).folder / "plan-0.json").write_text("{}")
    assert "ValueError: label 11" in orch("why", run, on=here).out


def test_a_run_that_no_node_knows(orch: Orch) -> None:
    ran = orch("why", "nope", on=lan.lan(*THREE))
    assert ran.code == 3
    assert "no run nope on any node" in ran.err


def test_the_engine_and_the_kernel_are_asked(orch: Orch) -> None:
    here = lan.lan(*THREE, says=("[rank0]: step 4",), ends_with=1)
    alpha = here.nodes["alpha"]
    xid = "NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.\n"
    alpha.answers = {("sh", "-c", SCRIPT, "*"): (0, xid, ""), **alpha.answers}
    run = detached(orch, here)
    data = json_data(orch("why", run, "--json", on=here).out)
    assert (data["failure"]["node"], data["failure"]["cause"]["id"]) == ("alpha", "gpu.lost")
    for held in here.nodes["beta"].engine.made:
        here.nodes["beta"].engine.finish(held, 137, oom_killed=True)
    data = json_data(orch("why", run, "--json", on=here).out)
    assert (data["failure"]["node"], data["failure"]["cause"]["id"]) == ("beta", "memory.limit")


# ── Supervisors ───────────────────────────────────────────────────────────────────────────────────────────────────────

OVER = {"outcome": "infrastructure", "node": "gamma", "rank": 2, "exit_code": -9, "reason": "ended by SIGKILL"}


def test_the_supervisors_verdict_decides_who_it_was() -> None:
    lost = "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.13]:33515"
    found = story(
        wrote(2, lost), wrote(3, "step 11", 2), wrote(4, f"@orch {json.dumps({'event': 'finished', **OVER})}", None)
    )
    assert found.failure is not None
    assert found.failure.cause is not None
    assert (found.failure.node, found.failure.rank, found.failure.exit_code) == ("gamma", 2, -9)
    assert found.failure.cause.id == "memory.killed"


@pytest.mark.parametrize("wording", ["sent no heartbeat", "gave no sign of life"])  # the second one: older agents
def test_a_frozen_rank(wording: str) -> None:
    why = f"frozen: local rank 0 {wording} for 61 s"
    found = story(
        wrote(3, "step 11", 2), wrote(4, f"@orch {json.dumps({'event': 'finished', **OVER, 'reason': why})}", None)
    )
    assert found.failure is not None
    assert found.failure.cause is not None
    assert (found.failure.reason, found.failure.cause.id) == (why, "node.frozen")


def test_a_node_that_the_supervisors_lost() -> None:
    gone = {**OVER, "rank": None, "exit_code": None, "reason": "no word from it for 60 s"}
    data = story(wrote(3, "step 11", 2), wrote(4, f"@orch {json.dumps({'event': 'finished', **gone})}", None))
    assert data.failure is not None
    assert data.failure.cause is not None
    assert (data.failure.node, data.failure.reason) == ("gamma", "no word from it for 60 s")
    assert data.failure.cause.id == "node.lost"


def test_what_the_run_survived_is_reported_once() -> None:
    again = {"event": "restarting", "generation": 1, **OVER, "restarts_left": 2}
    found = story(
        *(wrote(5, f"@orch {json.dumps(again)}", None, node) for node in THREE),
        *(event(6, "generation", node=node, generation=2) for node in THREE),
        wrote(9, "step 30"),
        running=True,
        now=10,
    )
    assert (found.state, found.failure, len(found.earlier)) == ("running", None, 1)
    assert "rank 2 on gamma: ended by SIGKILL" in text(found)


def test_only_the_last_epoch_counts() -> None:
    old = (wrote(1, "Traceback (most recent call last):"), wrote(2, "ValueError: old"))
    found = story(*old, event(3, "generation", generation=1), wrote(4, "step 1"), running=True, now=5)
    assert found.failure is None


@pytest.mark.parametrize("judged", ["user", "configuration", "infrastructure"])
def test_a_verdict_does_not_overwrite_the_owner_of_the_failure(judged: str) -> None:
    reason = "TrainerError: No space left on device for the checkpoint of step 40"
    last = event(4, "finished", node="alpha", rank=0, exit_code=1, reason=reason, outcome=judged)
    found = story(wrote(3, reason), last, outcome=("failed", ""))
    assert found.failure
    assert found.failure.cause
    assert (found.failure.cause.id, found.failure.cause.owner) == ("storage.full", "configuration")


@pytest.mark.parametrize(("kind", "state"), [("done", "succeeded"), ("stopped", "stopped")])
def test_a_good_end(kind: str, state: str) -> None:
    found = story(wrote(1, "Traceback (most recent call last):"), event(4, "finished", outcome=kind))
    assert (found.state, found.failure) == (state, None)


def test_a_lost_node_that_this_computer_saw() -> None:
    found = story(wrote(1, "step 1"), wrote(2, "step 2", 1), outcome=("failed", "no answer in 34 s"))
    assert found.failure is not None
    assert (found.failure.reason, found.state) == ("no answer in 34 s", "failed")


# ── Waiting ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_who_is_silent_longest_stands_first() -> None:
    found = story(wrote(1, "step 3", 1), wrote(2, "step 3", 2), wrote(50, "step 4"), running=True, now=60)
    assert [(one.rank, one.silent_s, one.word) for one in found.heard] == [
        (0, 10.0, "step 4"), (1, 59.0, "step 3"), (2, 58.0, "step 3"),
    ]  # fmt: skip
    lines = [line for line in text(found).splitlines() if "ago" in line]
    assert lines[0] == "    rank 1 on beta           59 s ago  step 3"


def test_a_rank_of_the_trainer_that_has_not_begun() -> None:
    found = story(event(1, "started", 0), event(2, "started", 1, "beta"), running=True, now=30)
    assert "rank 2 on gamma has not begun" in found.waits
    assert "none of ranks 0, 1 has joined the others yet" in found.waits


def test_supervisors_say_whom_they_wait_for() -> None:
    found = story(
        event(1, "waiting", nodes=["gamma"], seconds=20),
        event(2, "stalled", node="beta", nodes=["gamma"], seconds=8),
        running=True,
    )
    assert found.waits[:2] == (
        "alpha has waited 21 s for gamma to come", "beta has heard nothing of gamma for 8 s",
    )  # fmt: skip
    last = story(event(1, "stalled", nodes=["gamma"], seconds=8), event(2, "recovered", nodes=["gamma"]), running=True)
    assert not any("heard nothing" in sentence for sentence in last.waits)


def test_nccl_tells_who_is_behind() -> None:
    watchdog = "[Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE, x) ran"
    found = story(
        *(wrote(1, watchdog.format(rank), rank) for rank in (0, 1)),
        *(wrote(2, f"detected by watchdog at work: 8, last completed NCCL work: {7 - rank}.", rank) for rank in (0, 1)),
        wrote(1, "loading a checkpoint", 2),
        outcome=("failed", ""),
    )
    assert "rank 0 on alpha gave up waiting in allreduce" in found.waits
    assert "rank 1 is behind: the last collective that it completed is number 6" in found.waits
    assert "they waited for rank 2 on gamma: no timeout was reported there" in found.waits


# ── The rules ─────────────────────────────────────────────────────────────────────────────────────────────────────────


CAUSES = {id: cause for area in cause_areas() for id, cause in causes_of(area).items()}
ON_CLUSTER = {id: cause for area in cause_areas() for id, cause in causes_of(area, on_cluster=True).items()}


def test_every_signature_has_its_cause_on_the_page_of_its_area() -> None:
    assert {one.id: one.owner for one in SIGNATURES} == {id: cause.owner for id, cause in CAUSES.items()}
    assert all(id in causes_of(id.partition(".")[0]) for id in CAUSES)
    silent = {one.id for one in SIGNATURES if not (one.patterns or one.exit_codes)}
    assert silent == {
        "code.exception",
        "code.exit",
        "node.lost",
        "data.read_only",
        "data.not_brought",
        "start.not_built",
        "start.not_on_path",
    }


def test_every_placeholder_of_a_cause_is_given() -> None:
    assert failures_of(check_placeholders, SIGNATURES) == []


def check_placeholders(signature: Signature) -> None:
    cause = CAUSES[signature.id]
    named = {name for text in (cause.explanation, *cause.fix) for _, name, _, _ in Formatter().parse(text) if name}
    found = [set(re.compile(pattern).groupindex) for pattern in signature.patterns]
    groups = set.intersection(*found) if found else set()  # by whichever pattern it is recognised
    looked_up = {
        "data.not_brought": {"path", "launch"},
        "start.not_built": {"module", "package", "build"},
        "start.not_on_path": {"module", "launch"},
        "start.module": {"package"},
        "start.built_module": {"package"},
    }.get(signature.id, set())
    assert named <= {"node", "rank", "run", "again", *groups, *looked_up}
    there = {name for text in ON_CLUSTER[signature.id].fix for _, name, _, _ in Formatter().parse(text) if name}
    assert there <= {"node", "rank", "run", "again", "cluster", "on", "test", "without", *groups, *looked_up}


def commands_of(cause: Cause) -> Iterator[tuple[str, list[str]]]:
    """The commands in its steps, each with its words before `--` and without `orch`."""
    for line in cause.fix:
        for command in re.findall(r"\borch (?:[^;:,()]|,(?=\S))+", line):
            yield command, shlex.split(command.split(" -- ")[0].replace("…", ""))[1:]


def there(id: str) -> Cause:
    """A cause with its steps on the cluster uni."""
    found = Classified(signature=next(one for one in SIGNATURES if one.id == id), values={})
    return Cause.of(found, job=ClusterJob(cluster="uni", nodes=3), node="c2", rank="1", run="r1")


def test_on_a_cluster_nodes_are_a_number_and_no_step_needs_rights() -> None:
    assert failures_of(check_on_a_cluster, CAUSES) == []


def check_on_a_cluster(id: str) -> None:
    """Check the texts on a cluster: a job has nodes that no inventory names, and they are an administrator's."""
    cause = there(id)
    for command, words in commands_of(cause):
        assert words[0] in ("check-gpus", "checkpoints", "docs", "doctor", "explain", "launch", "logs", "prepare",
                            "resume", "status", "stop", "test", "why"), command  # fmt: skip
        if words[0] in ("check-gpus", "doctor", "launch", "test"):
            assert words[words.index("--on") + 1] == "uni", command
        if "--nodes" in words and words[0] != "logs":
            assert words[words.index("--nodes") + 1].isdecimal(), command
    of_machines = r"sudo|journalctl|docker|memtester|inventory\.yaml|device:|limits:|^reboot"
    assert not re.search(of_machines, "\n".join(cause.fix))


def test_the_fix_of_a_cause_can_be_done() -> None:
    assert failures_of(check_fix, [*CAUSES.values(), *map(there, CAUSES)]) == []


def check_fix(cause: Cause) -> None:
    """Its commands exist with their options, areas and findings, and its own finding too."""
    findings = {finding.id: finding.area for finding in all_findings()}
    assert cause.fix
    assert cause.finding in ("", *findings)
    assert cause.finding or cause.id not in findings, "orch explain would show the finding"
    for command, words in commands_of(cause):
        assert words[0] in COMMANDS, command
        declared = program_of(words[0]).commands[words[0]]
        options = {option for parameter in declared.params for option in parameter.opts}
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= options, command
        if "--only" in words:
            areas = set(words[words.index("--only") + 1].split(","))
            assert areas <= {*AREAS, *findings.values()}, command
        if words[0] == "explain":
            assert words[1] in findings


HOSTILE = "c2; touch /tmp/x"


def on_uni(*lines: RunLine, plan: bool = True) -> str:
    """Print the answer for a run on three nodes of the cluster uni, also where this computer has no plan of it."""
    held = ContainerFacts(id="c", name="c", image="", labels={}, status="exited", exit_code=1)
    known = replace(lan.plan(THREE), cluster="uni") if plan else None
    evidence = Evidence(run_id="r1", plan=known, cluster="uni", lines=lines, containers=dict.fromkeys(THREE, held))
    return text(write_postmortem(evidence))


def first(node: str, cause: str) -> RunLine:
    """The failure that the agents agreed on."""
    values = {"event": "finished", "node": node, "outcome": "infrastructure", "rank": 1, "exit_code": 1}
    return wrote(9, f"@orch {json.dumps({**values, 'cause': cause, 'reason': 'it failed'})}")


@pytest.mark.parametrize("plan", [True, False])
def test_steps_for_a_run_on_a_cluster(plan: bool) -> None:
    lines = [wrote(number, line, 0, "alpha") for number, line in enumerate(SAYS)]
    assert "reproduce it on one node: orch launch --on uni --nodes 1 -- …" in on_uni(*lines, plan=plan)
    found = on_uni(first("beta", "gpu.lost"), plan=plan)
    assert "continue without it: add `exclude: beta` to `options:` of cluster uni in the inventory" in found
    assert found.endswith("  → orch logs r1 --nodes beta")
    assert "then: orch check-gpus --on uni --nodes 3" in on_uni(first("beta", "gpu.none"), plan=plan)


def test_a_hostile_name_is_one_word_of_a_line_to_paste() -> None:
    frozen = first(HOSTILE, "node.frozen")
    for each in (on_uni(frozen), text(story(frozen))):
        assert f"orch logs r1 --nodes '{HOSTILE}'" in each
        assert f"--nodes {HOSTILE}" not in each
    assert f"add `exclude: '{HOSTILE}'` to" in on_uni(frozen)


def test_explain_prints_the_steps_on_a_cluster(orch: Orch) -> None:
    ran = orch("explain", "gpu.busy")
    assert "  on a cluster:\n  → look for the process: orch check-gpus --on CLUSTER --nodes 2" in ran.out
    (step, _) = json_data(orch("explain", "gpu.busy", "--json").out)["on_cluster"]
    assert step.endswith("add `exclude: NODE` to `options:` of cluster CLUSTER in the inventory")
    assert "on a cluster" not in orch("explain", "code.shapes").out


def test_the_manual_lists_every_cause() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "why.md").read_text()
    owners = {"configuration": "configuration", "user": "you", "infrastructure": "infrastructure"}
    rows = {
        f"| [`{id}`](causes/{area}.md#{entry.anchor}) | {owners[CAUSES[id].owner]} | {entry.title} |"
        for area in cause_areas()
        for id, entry in entries_of("causes", area).items()
    }
    assert {line for line in manual.splitlines() if line.startswith("| [`")} == rows


def test_explain_prints_a_cause(orch: Orch) -> None:
    ran = orch("explain", "memory.kernel")
    assert ran.code == 0
    assert ran.out.startswith("memory.kernel: a node ran out of memory\n\nNODE ran out of memory, and its kernel")
    assert "  → stop other programs that use memory on NODE\n" in ran.out
    assert json_data(orch("explain", "memory.kernel", "--json").out)["owner"] == "infrastructure"


def test_lines_in_a_record(orch: Orch) -> None:
    """A run whose containers and plan are gone, but not its lines."""
    record = RunRecord("old-1")
    record.save_plan(lan.plan(THREE))
    with record.open_log("alpha") as log:
        for number, line in enumerate(SAYS):
            log.add(wrote(number, line.partition(": ")[2]))
    ran = orch("why", "old-1", on=lan.lan(*THREE))
    assert "ValueError: label 11" in ran.out


def test_a_run_that_is_queued_again_names_the_node_that_it_lost() -> None:
    """No rank failed on the cluster for it, and no exit code is made up."""
    held = ContainerFacts(id="c", name="c", image="", labels={}, status="queued", error="BeginTime")
    lost = event(3, "restarting", node="beta", generation=1, outcome="infrastructure", reason="its connection ended")
    plan = replace(lan.plan(THREE), cluster="uni")
    evidence = Evidence(run_id="r1", plan=plan, lines=(lost,), containers={"uni-0": held})
    queued = write_postmortem(evidence)
    assert list(why_lines(queued)) == [
        "run r1 is queued", "  · the scheduler's reason: BeginTime", "", "  it survived before",
        f"    {lan.moment(3)[11:19]}  beta: its connection ended", "  → orch logs r1",
    ]  # fmt: skip
    again = replace(plan, attempt=1, started_at=lan.moment(9))
    runs = {"alpha": replace(held, status="running", error="")}
    running = write_postmortem(replace(evidence, plan=again, containers=runs))
    assert (running.state, [one.node for one in running.earlier]) == ("running", ["beta"])
