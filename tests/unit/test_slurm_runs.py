"""Runs on a cluster, from launch to stop, on the double of Slurm: its commands and the batch script are real
processes of this computer; a stand-in takes the place of the agent."""

from __future__ import annotations

import getpass
import json
import os
import re
import signal
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from orchestrator.checks.failure import Failure
from orchestrator.cli.launching.stopping import StoppedRun
from orchestrator.fleet.connect import connect
from orchestrator.fleet.runs.launch import launch
from orchestrator.nodes import slurm
from orchestrator.nodes.carrier import CarriedAttempt
from orchestrator.nodes.local import LocalNode
from orchestrator.nodes.slurm_answers import carried, read_look
from orchestrator.specs import labels as names_of
from orchestrator.specs.cluster import ClusterSpec
from orchestrator.specs.errors import PartialError
from orchestrator.specs.request import RunIdentity
from orchestrator.state.next_step import next_step
from orchestrator.store.run_record import RunRecord
from tests import fake_slurm, lan
from tests.json_output import json_data
from tests.unit.conftest import Orch
from tests.unit.slurm_double import Cluster, around_sbatch, uni, until

__all__ = ["uni"]


def test_a_run_from_launch_to_end(uni: Cluster) -> None:
    ran = uni.launch()
    assert ran.code == 0, ran.err
    assert "submitted to uni as job 1" in ran.err
    assert "attempt 0 of run" in ran.err
    assert "hello of attempt 0 from c2: gpt2" in ran.out
    assert f"checkpoints  uni:{uni.workspace}" in ran.err
    assert "orch sample" not in ran.err
    run = json_data(uni("runs", "--json").out)["runs"][0]
    assert (run["state"], run["nnodes"], run["master"]) == ("succeeded", 2, "c1")
    assert [member["node"] for member in run["members"]] == ["c1", "c2"]
    assert uni("wait", run["run_id"]).code == 0
    assert "has succeeded" in uni("why").out
    saved = RunRecord(run["run_id"]).plan()
    assert saved
    assert (saved.cluster, [part.node for part in saved.nodes], saved.master_addr) == ("uni", ["c1", "c2"], "10.0.0.1")


def test_what_is_printed_is_what_is_submitted(uni: Cluster) -> None:
    """Byte for byte, but for the random end of the run's id."""
    printed = uni.launch("--dry-run", STEPS="2")
    assert printed.code == 0
    assert not uni.state.joinpath("1.json").exists()
    run = uni.start(STEPS="2")
    sent = (uni.run_folder(run) / "job-0.sbatch").read_text()
    other = next(line for line in printed.out.splitlines() if "--job-name" in line).rpartition(":")[2]
    port = [words[words.index("--port") + 1] for words in (sent.split(), printed.out.split())]
    assert printed.out.replace(other, run).replace(f"--port {port[1]}", f"--port {port[0]}") == sent


def test_an_error_of_the_users_code(uni: Cluster) -> None:
    run = uni.start(MODE="raise", STEPS="5")
    assert uni("wait", run).code == 1
    why = uni("why").out
    assert "rank 1 on c2: ValueError: boom" in why
    assert "train.py:3" in why
    assert "reproduce it on one node: orch launch --on uni --nodes 1 -- …" in why
    assert f"→ orch logs {run} --nodes c2" in why
    output = uni("logs", run, "--nodes", "c2").out
    assert "hello of attempt 0 from c2" in output
    assert "from c1" not in output
    assert uni("status", run).code == 1
    assert len(list(uni.state.glob("[0-9]*.json"))) == 1
    assert uni.job()["restart"] == 0  # never queued again


def test_the_end_of_a_launch_that_failed(uni: Cluster) -> None:
    output = uni.launch(MODE="no gpu", STEPS="5").err
    assert "in the inventory; then: orch check-gpus --on uni --nodes 2\n" in output
    assert re.search(r"→ orch logs t-\S+ --nodes c2\n", output)


def test_a_node_without_its_ranks_is_excluded_in_the_inventory() -> None:
    plan = replace(lan.plan(("alpha", "beta")), cluster="uni")
    failure = Failure(node="beta", rank=-1, exit_code=None, reason="no answer", lines=())
    step = next_step(plan, failure, from_checkpoint=True)
    assert step.endswith("   without beta: first add `exclude: beta` to `options:` of cluster uni in the inventory")
    assert next_step(replace(plan, cluster=""), failure, from_checkpoint=True).endswith(
        "   without beta: --nodes alpha"
    )


def test_a_run_that_was_not_stopped_everywhere_is_stopped_again_and_not_cleaned() -> None:
    """`orch clean` asks machines of the inventory alone."""
    left = StoppedRun(run_id="r1", nodes=(), checkpoint_step=None, left={"c1": "no answer"}, cluster="uni")
    with pytest.raises(PartialError) as raised:
        left.require_all()
    assert raised.value.hint == "once uni can be reached: orch stop r1"


def test_a_slow_node(uni: Cluster) -> None:
    run = uni.start(MODE="slow", STEPS="2000")
    advice = f"add `exclude: c2` to `options:` of cluster uni in the inventory, then: orch restart {run}"
    until(lambda: "c2 takes 3.0 x" in uni("status", run).err)
    output = uni("status", run).err
    assert "orch doctor --on uni --nodes 2" in output
    assert advice in output
    assert uni("stop", run).code == 0
    assert advice.partition(", then")[0] in uni.launch(MODE="slow").err


def test_stop_asks_the_agents_and_keeps_the_checkpoint(uni: Cluster) -> None:
    run = uni.start(STEPS="2000")
    assert uni.status(run)["state"] == "running"
    ran = uni("stop", run)
    assert ran.code == 0, ran.err
    assert "stopped, checkpoint of step" in ran.err
    assert uni.job()["state"] == "FAILED"  # Slurm's word for 143: it was asked, not cancelled
    assert uni.status(run)["state"] == "stopped"


def test_stop_without_a_run_asks_machines_and_clusters(uni: Cluster) -> None:
    here = lan.lan("alpha", ends_with=None)
    machines = {"alpha": {"address": lan.address_of("alpha")}}
    inventory = {"nodes": machines, "clusters": {"uni": uni.keys}}
    Path("inventory.yaml").write_text(json.dumps(inventory))
    uni.machines = here.nodes
    user = getpass.getuser()
    on_machine = RunIdentity(run_id="m1", user=user, started_at=datetime.now(UTC).isoformat())
    launch(here.nodes, lan.plan(("alpha",), on_machine))
    on_cluster = uni.start(STEPS="2000")
    ran = uni("stop")
    assert ran.code == 2, ran.err
    assert "2 of your runs are active: name the run" in ran.err
    assert all(f"  {run}  by {user}" in ran.err for run in ("m1", on_cluster))
    assert uni("stop", on_cluster).code == 0
    ran = uni("stop")  # the newest run on record is the cluster's, which has ended
    assert ran.code == 0, ran.err
    assert "✓ run m1 stopped" in ran.err
    assert here.containers == {}


def test_a_cancelled_job_is_stopped_and_not_failed(uni: Cluster) -> None:
    run = uni.start(STEPS="2000")
    uni_login = connect_login(uni)
    assert uni_login.run(["scancel", "1"]).exit_code == 0
    until(lambda: uni.job().get("exit_code") is not None)
    assert uni.status(run)["state"] == "stopped"
    assert uni("wait", run).code == 0


def connect_login(uni: Cluster) -> Any:
    from orchestrator.fleet.connect import login_node
    from orchestrator.specs.inventory_files.inventory_file import read_inventory

    return connect(login_node(read_inventory("inventory.yaml").cluster("uni")))


def test_the_time_limit_queues_again_after_a_checkpoint(uni: Cluster) -> None:
    run = uni.start(STEPS="80")
    os.kill(uni.job()["batch"], signal.SIGUSR1)
    until(lambda: (uni.run_folder(run) / "place-1.json").exists())
    until(lambda: uni.status(run)["state"] == "succeeded", 30)
    found = uni.status(run)
    assert (found["attempt"], found["members"][0]["restarts"]) == (1, 1)
    output = uni("logs", run).out
    assert "hello of attempt 0" in output
    assert "hello of attempt 1" in output


@pytest.mark.parametrize(
    ("state", "code", "shown"),
    [
        ("COMPLETING", 143, ["running"]),  # it may be queued again
        ("PENDING", 143, ["stopped", "queued"]),
        ("", 143, ["stopped"]),
        ("COMPLETING", 0, ["exited"]),
    ],
)
def test_a_job_that_is_leaving_its_nodes_may_be_queued_again(state: str, code: int, shown: list[str]) -> None:
    labels = {names_of.LABEL_RUN: "t-1", names_of.LABEL_PROJECT: "orch"}
    submitted = {"job": "7", "attempt": 0, "nnodes": 1, "labels": labels}
    place = {"attempt": 0, "job": "7", "restart": 0, "names": ["c1"], "at": 1e9}
    files = {"submitted-0.json": json.dumps(submitted), "place-0.json": json.dumps(place), "ended.7.0": str(code)}
    text = "".join(f"file\tt-1/{name}\t{content}\n" for name, content in files.items())
    queue = f"7|{state}|orch:t-1|None\n" if state else ""
    found = carried(read_look(f"{text}squeue\t0\n{queue}"), {}, "orch")
    assert [one.status for one in found.attempts] == shown


def test_the_time_limit_ends_a_run_without_progress(uni: Cluster) -> None:
    run = uni.start(STEPS="2000", MODE="no checkpoint")
    os.kill(uni.job()["batch"], signal.SIGUSR1)
    until(lambda: uni.job().get("exit_code") is not None)
    assert uni.job()["restart"] == 0
    assert "not queued again" in (uni.run_folder(run) / "logs" / "batch.1.log").read_text()


def test_a_job_that_waits(uni: Cluster) -> None:
    (uni.state / "held").write_text("AssocGrpCPUMinutesLimit")
    run = str(json_data(uni.launch("--detach", "--json").out)["run_id"])
    found = uni.status(run)
    assert (found["state"], found["members"][0]["node"]) == ("queued", "uni-0")
    assert "AssocGrpCPUMinutesLimit" in uni("status", run).out
    assert f"run {run} is queued\n  · the scheduler's reason: AssocGrpCPUMinutesLimit" in uni("why", run).out
    again = uni("resume", run)
    assert again.code == 6
    assert f"orch stop {run}" in again.err
    assert uni("stop", run).code == 0
    assert uni.job()["state"] == "CANCELLED"


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("Batch job submission failed: Job violates accounting/QOS policy", 3, "a limit of the account or the user"),
        ("invalid account or account/partition combination", 3, "the account does not exist"),
        ("Batch job submission failed: I/O error writing script", 4, "I/O error writing script"),
    ],
)
def test_a_refused_job(uni: Cluster, text: str, code: int, says: str) -> None:
    (uni.state / "refused").write_text(text)
    ran = uni.launch()
    assert ran.code == code
    assert says in ran.err
    assert "→ " in ran.err
    assert json_data(uni("runs", "--json").out) == {"runs": [], "history": [], "unreachable": {}, "more": 0}


def test_lines_of_a_site_around_the_number_of_a_job(uni: Cluster) -> None:
    around_sbatch(uni, "echo 'Welcome to uni, 2 partitions'; \"$sbatch\" \"$@\"; echo 'Remaining hours: 30'")
    ran = uni.launch("--detach", "--json")
    assert ran.code == 0, ran.err
    assert json_data(ran.out)["job"] == "1"


def test_no_job_is_left_of_which_the_number_is_not_known(uni: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The values of its secrets do not stay on the shared storage either."""
    monkeypatch.setenv("HF_TOKEN", "hf_of_ana")
    around_sbatch(uni, '"$sbatch" "$@" >/dev/null; echo submitted')
    (uni.state / "held").write_text("Priority")
    ran = uni.launch("--secret", "HF_TOKEN")
    assert ran.code == 4, ran.err
    assert "submitted" in ran.err
    assert "squeue --me" in ran.err
    assert uni.job()["state"] == "CANCELLED"
    assert not [file for file in uni.workspace.rglob("*HF_TOKEN*") if file.is_file()]


def test_data_that_is_not_there(uni: Cluster) -> None:
    (uni.data / "manifest.json").unlink()
    ran = uni.launch()
    assert ran.code == 4
    assert "orch prepare" in ran.err
    assert "nothing was started" in ran.err
    assert not list(uni.state.glob("*.json"))


def test_a_partition_that_does_not_exist(uni: Cluster) -> None:
    uni.write(partition="nope")
    ran = uni.launch()
    assert ran.code == 3
    assert "there is no such partition" in ran.err
    assert "→ sinfo -o" in ran.err


def test_a_line_for_the_login_node_logs_in_as_the_inventory_says() -> None:
    keys = {"name": "uni", "login": "ana@10.0.0.5:2222", "workspace": "/s", "identity": "/k/a b", "jump": "gate"}
    carrier = slurm.SlurmCarrier(LocalNode("uni"), ClusterSpec.model_validate(keys))
    assert carrier.on_login("sinfo -R") == "ssh -p 2222 -i '/k/a b' -J gate ana@10.0.0.5 'sinfo -R'"


def test_a_scheduler_that_does_not_answer(uni: Cluster) -> None:
    run = uni.start(STEPS="1")
    until(lambda: uni.job().get("exit_code") == 0)
    (uni.state / "down").touch()
    assert uni.status(run)["state"] == "succeeded"  # the run's folder says so
    ran = uni.launch()
    assert ran.code == 4
    assert "Unable to contact slurm controller" in ran.err


def test_a_run_whose_job_may_still_run_is_not_resumed(uni: Cluster) -> None:
    run = uni.start(STEPS="2000")
    queue = uni.folder / "slurm" / "bin" / "squeue"
    queue.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Socket timed out' >&2; exit 1\n")
    ran = uni("resume", run, "--detach")
    assert ran.code == 4
    assert "Socket timed out" in ran.err
    assert not (uni.state / "2.json").exists()


def test_a_scheduler_that_has_forgotten_the_job(uni: Cluster) -> None:
    run = uni.start(STEPS="3", MODE="raise")
    until(lambda: uni.job().get("exit_code") is not None)
    (uni.state / "1.json").unlink()
    assert uni.status(run)["state"] == "failed"
    assert "ValueError: boom" in uni("why", run).out
    assert "hello of attempt 0 from c1" in uni("logs", run).out


def test_the_files_of_a_look_do_not_grow_with_the_nodes(uni: Cluster) -> None:
    run = uni.start(STEPS="3", MODE="raise")
    until(lambda: uni.job().get("exit_code") is not None)
    for rank in range(8):
        (uni.run_folder(run) / f"over-{rank}.json").write_text(f"{{}} of rank {rank}")
    looked = connect_login(uni).run(["sh", "-c", slurm._LOOK, "sh", str(uni.workspace / "orch"), "10", "1000", ""])
    assert "of rank 0" in looked.stdout
    assert "of rank 1" not in looked.stdout


def test_a_job_that_was_killed_leaves_no_exit_code(uni: Cluster) -> None:
    run = uni.start(STEPS="2000")
    fake_slurm.send([*uni.job()["steps"], uni.job()["batch"]], signal.SIGKILL)
    until(lambda: uni.job().get("exit_code") is not None)
    found = uni.status(run)
    assert found["state"] == "failed"
    assert "left no exit code" in uni("status", run).out


def test_a_job_whose_tasks_were_lost_is_no_success(uni: Cluster) -> None:
    """srun ends with 0 where the processes of Slurm that hold its tasks were killed."""
    ran = uni.launch(MODE="lost")
    assert ran.code == 1, ran.err
    run = json_data(uni("runs", "--json").out)["runs"][0]["run_id"]
    assert uni.status(run)["state"] == "failed"
    assert "the agent of rank 0 noted no end" in (uni.run_folder(run) / "logs" / "batch.1.log").read_text()


def test_agents_that_do_not_begin(uni: Cluster) -> None:
    ran = uni.launch(MODE="no place")
    assert ran.code == 1
    assert "error: it could not start" in ran.out + ran.err


def test_from_another_computer(uni: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The run's folder is enough: no record of it is needed."""
    run = uni.start(STEPS="2000")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    assert uni.status(run)["state"] == "running"
    assert "hello of attempt 0 from c2" in uni("logs", run).out
    assert uni("stop", run, "--yes").code == 0


def test_steps_on_another_computer(uni: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The other computer has no plan of the run: that this is a job of a cluster is known from the cluster itself."""
    run = uni.start(MODE="raise", STEPS="5")
    assert uni("wait", run).code == 1
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    assert "reproduce it on one node: orch launch --on uni --nodes 1 -- …" in uni("why", run).out


def test_a_command_beside_the_ranks(uni: Cluster) -> None:
    run = uni.start(STEPS="2000")
    ran = uni("exec", run, "--", "sh", "-c", "echo I am $SLURMD_NODENAME")
    assert ran.code == 0, ran.err
    assert "I am c1" in ran.out
    assert "I am c2" in ran.out


def test_options_that_the_scheduler_decides_on(uni: Cluster) -> None:
    ran = uni("launch", "--on", "uni", "--nodes", "2", "--master", "c1", "--", "gpt2")
    assert ran.code == 2
    assert "--master: not with --on" in ran.err
    assert uni("launch", "--on", "uni", "--", "gpt2").code == 2
    assert uni("launch", "--on", "unj", "--nodes", "2", "--", "gpt2").code == 3


def test_without_a_terminal_an_error_is_reported_before_the_question(uni: Cluster, orch: Orch) -> None:
    """The same as on machines: `--yes` alone would not start it either."""
    words = ("launch", "--on", "uni", "--nodes", "2", "--", "python")
    refused = orch(*words, "missing.py", on=uni, says=None)
    assert (refused.code, "no missing.py in " in refused.err) == (3, True)
    Path("train.py").write_text("import torch\n")
    asked = orch(*words, "train.py", on=uni, says=None)
    assert (asked.code, "add --yes to agree" in asked.err) == (2, True)
    assert not list(uni.state.glob("*.json"))


def test_a_job_chooses_its_checkpoint_itself(uni: Cluster) -> None:
    run = uni.start(STEPS="2000", MODE="no checkpoint")
    assert uni("stop", run).code == 0
    refused = uni("resume", run, "--checkpoint", "3")
    assert refused.code == 2
    assert "resumes from the newest checkpoint that it finds" in refused.err
    assert not (uni.state / "2.json").exists()


def test_a_dry_run_needs_the_values_of_its_secrets(uni: Cluster) -> None:
    ran = uni.launch("--dry-run", "--secret", "NOT_SET_HERE")
    assert ran.code == 3
    assert "NOT_SET_HERE" in ran.err


def test_resume_is_the_next_attempt_in_a_new_job(uni: Cluster) -> None:
    run = uni.start(STEPS="2000", MODE="no checkpoint")
    assert uni("stop", run).code == 0
    ran = uni("resume", run, "--nodes", "3", "--env", "STEPS=2")
    assert ran.code == 0, ran.err
    assert "hello of attempt 1 from c3" in ran.out
    found = uni.status(run)
    assert (found["attempt"], found["nnodes"], found["state"]) == (1, 3, "succeeded")
    assert uni.job(2)["name"] == f"orch:{run}"


def test_restart_stops_and_submits_again(uni: Cluster) -> None:
    run = uni.start(STEPS="2000", MODE="no checkpoint")
    ran = uni("restart", run, "--detach", "--json")
    assert ran.code == 0, ran.err
    assert json_data(ran.out) == {"run_id": run, "job": "2"}
    assert uni("supervise", run).code == 2
    assert uni("stop", run).code == 0


def test_a_run_of_a_cluster_is_not_repeated_on_machines(uni: Cluster) -> None:
    ran = uni.launch(STEPS="1")
    assert ran.code == 0, ran.err
    run = str(json_data(uni("runs", "--json").out)["runs"][0]["run_id"])
    again = uni("runs", "rerun", run, "--yes")
    assert again.code == 2
    assert f"run {run} was a job of cluster uni: `rerun` repeats runs on machines" in again.err
    assert "orch launch --on uni --nodes 2 --name t --env STEPS=1 -- gpt2" in again.err


def test_a_restart_that_is_refused_stops_nothing(uni: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret that this computer has no more, and a time limit that is too short."""
    monkeypatch.setenv("HF_TOKEN", "hf_of_ana")
    ran = uni.launch("--detach", "--json", "--secret", "HF_TOKEN", STEPS="2000", MODE="no checkpoint")
    run = str(json_data(ran.out)["run_id"])
    until(lambda: uni.job()["steps"])
    monkeypatch.delenv("HF_TOKEN")
    ran = uni("restart", run, "--detach")
    assert ran.code == 3
    assert "--secret HF_TOKEN" in ran.err
    monkeypatch.setenv("HF_TOKEN", "hf_of_ana")
    uni.write(time="2")
    ran = uni("restart", run, "--detach")
    assert ran.code == 3
    assert "at least 180 s" in ran.err
    assert uni.status(run)["state"] == "running"
    assert uni("stop", run).code == 0


def test_a_secret_is_hidden_on_another_computer_too(
    uni: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_of_ana")
    ran = uni.launch("--detach", "--json", "--secret", "HF_TOKEN", STEPS="2000", MODE="no checkpoint")
    run = str(json_data(ran.out)["run_id"])
    folder = uni.run_folder(run)
    log = folder / "logs" / "1.1.0.log"
    until(lambda: uni.job()["steps"] and log.exists() and "hello" in log.read_text())
    with log.open("a") as file:
        file.write("2100-01-01T00:00:00.000000Z the token is hf_of_ana\n")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    output = uni("logs", run).out
    assert "the token is" in output
    assert "hf_of_ana" not in output
    assert (folder / "secrets" / "HF_TOKEN").read_text() == "hf_of_ana"
    assert uni("stop", run, "--yes").code == 0
    assert not (folder / "secrets").exists()


def test_a_job_that_was_killed_leaves_no_secret(uni: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_of_ana")

    def kill() -> None:
        until(lambda: uni.state.joinpath("1.json").exists() and uni.job()["steps"])
        until(lambda: list(uni.workspace.rglob("place-*.json")))
        fake_slurm.send([uni.job()["batch"], *uni.job()["steps"]], signal.SIGKILL)

    killer = Thread(target=kill)
    killer.start()
    ran = uni.launch("--secret", "HF_TOKEN", STEPS="2000")
    killer.join()
    assert ran.code == 1, ran.err
    assert list(uni.workspace.rglob("logs"))
    assert not list(uni.workspace.rglob("secrets"))


def test_the_newest_lines_alone_are_read(uni: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of any size; and lines after the last known one, whether it is among those or not."""
    submitted = slurm.SlurmCarrier(connect_login(uni), ClusterSpec.model_validate({"name": "uni", **uni.keys}))
    attempt = CarriedAttempt(run_id="t-1", attempt=0, job="1", restart=0, labels={}, nnodes=1, status="exited")
    log = uni.run_folder("t-1") / "logs" / "0.1.0.log"
    log.parent.mkdir(parents=True)
    texts = [f"{number:05}" + "x" * 995 for number in range(3000)]
    times = [f"2026-01-01T00:{number // 60:02}:{number % 60:02}.000000Z" for number in range(3000)]
    log.write_text("".join(f"{one} {text}\n" for one, text in zip(times, texts, strict=True)))
    read = list[int]()
    whole = submitted.read_log

    def counted(run_id: str, name: str, offset: int) -> bytes:
        found = whole(run_id, name, offset)
        read.append(len(found))
        return found

    monkeypatch.setattr(submitted, "read_log", counted)

    def lines(**asked: Any) -> list[str]:
        read.clear()
        return [line.text for line in submitted.lines(attempt, 0, **asked)]

    assert lines(tail=3) == texts[-3:]
    assert sum(read) < 4000
    assert lines(tail=0) == []
    assert lines(since=times[2995]) == texts[2996:]
    assert sum(read) < 1_100_000
    assert lines(since=times[2995], tail=2) == texts[2998:]
    assert lines(since=times[10]) == texts[11:]
    assert lines() == texts


@pytest.mark.parametrize("number", ["two", "-1", "99999", ""])
def test_a_damaged_record_of_a_job_is_left_out(number: str) -> None:
    labels = {names_of.LABEL_RUN: "t-1", names_of.LABEL_PROJECT: "orch", names_of.LABEL_NPROC: number}
    content = json.dumps({"job": "7", "attempt": 0, "nnodes": 1, "labels": labels})
    found = carried(read_look(f"file\tt-1/submitted-0.json\t{content}\nsqueue\t0\n"), {}, "orch")
    assert found.attempts == ()
    assert found.strange == ("t-1/submitted-0.json is not understood and left out",)


def test_a_checkpoint_that_is_gone_is_not_started_from_the_beginning_unasked(uni: Cluster) -> None:
    run = uni.start(STEPS="2000")
    assert "checkpoint of step" in uni("stop", run).err
    ran = uni("resume", run)
    assert ran.code == 4
    assert "--from-scratch" in ran.err
    assert not (uni.state / "2.json").exists()


def test_event_files_of_a_run_of_a_cluster(uni: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert uni.launch().code == 0
    run = json_data(uni("runs", "--json").out)["runs"][0]["run_id"]
    board, python = uni.folder / "tensorboard", uni.folder / "python-of-tensorboard"
    board.write_text(f"#!{python}\n")
    python.write_text("#!/bin/sh\nexit 3\n")
    for program in (board, python):
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uni.folder}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = next(uni.workspace.rglob(f"runs/{run}"))
    (folder / "events.out.tfevents.1").write_text("figures")
    ran = uni("tensorboard", run)
    assert (ran.code, "TensorBoard ended with exit code 3" in ran.err) == (1, True), ran.err
    copied = tmp_path / "cache" / "orch" / "tensorboard" / run / "uni" / "events.out.tfevents.1"
    assert copied.read_text() == "figures"


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_a_submission_that_is_broken_off_leaves_no_job(
    uni: Cluster, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_words: object) -> None:
        raise error

    agent = Path(uni.keys["python"])
    agent.write_text(agent.read_text().replace('os.environ.get("STEPS", "2")', '"2000"'))
    monkeypatch.setattr(RunRecord, "save_plan", fail)
    ran = uni("launch", "--on", "uni", "--nodes", "2", "--yes", "--", "test-ddp")
    assert ran.code != 0
    assert uni.job()["state"] == "CANCELLED"
