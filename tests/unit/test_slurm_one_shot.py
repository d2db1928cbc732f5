"""`orch test --on` and `orch bench --on`: temporary runs as jobs, on the shipped double of Slurm."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from orchestrator.nodes import fake_slurm
from orchestrator.plan.sbatch import HELD_S
from orchestrator.specs.request import RunIdentity
from orchestrator.store.measurements import measurements_folder
from orchestrator.store.run_record import RunRecord
from tests.json_output import json_data
from tests.lan import event
from tests.unit.conftest import Ran
from tests.unit.measurements import measured
from tests.unit.slurm_double import Cluster, around_sbatch, uni, until
from tests.unit.test_test_command import a_test

__all__ = ["uni"]

TESTED = event("tested", **a_test(nodes=["c1", "c2"], mbit_s=[[None, 940.0], [940.0, None]],
                                  latency_ms=[[None, 0.2], [0.2, None]]))  # fmt: skip
MEASURED = event("measured", **measured())


def interrupted(uni: Cluster, monkeypatch: pytest.MonkeyPatch, before: Callable[[], object] = lambda: None) -> Ran:
    """`orch test`, interrupted once its job runs; `before` that, something else happens."""

    def interrupt(*_words: object, **_how: object) -> None:
        until(lambda: uni.job()["steps"])
        before()
        raise KeyboardInterrupt

    monkeypatch.setattr("orchestrator.fleet.supervise.one_shot.follow_job", interrupt)
    ran = uni("test", "--on", "uni", "--nodes", "2")
    assert ran.code == 130, ran.err
    return ran


def endless(uni: Cluster) -> None:
    """Let runs end only when they are asked to."""
    agent = Path(uni.keys["python"])
    agent.write_text(agent.read_text().replace('os.environ.get("STEPS", "2")', '"2000"'))


def nothing_is_left(uni: Cluster) -> None:
    assert list((uni.workspace / "orch" / "runs").iterdir()) == []
    assert not [one for one in uni.state.glob("[0-9]*.json") if '"RUNNING"' in one.read_text()]


def test_the_links_of_a_jobs_nodes(uni: Cluster) -> None:
    uni.tell(event("started"), TESTED)
    ran = uni("test", "--on", "uni", "--nodes", "2")
    assert ran.code == 0, ran.err
    assert "✓ gloo on cpu: right on all 2: all_reduce, broadcast, all_gather, barrier" in ran.out
    assert "testing 2 nodes of uni, gloo" in ran.err
    assert "c1, c2 reached the master (2 of 2)" in ran.err
    nothing_is_left(uni)
    (record,) = Path(RunRecord("x").folder).parent.glob("test-*")
    kept = RunRecord(record.name).plan()
    assert kept
    assert kept.command == ("test-ddp", "--backend", "auto")
    assert kept.nodes[0].container.environment["PET_RDZV_CONF"] == "timeout=90"
    assert kept.max_restarts == 0
    assert "hello of attempt 0" in uni("logs", record.name).out  # from the record


def test_the_job_is_short_and_its_verdict_is_data(uni: Cluster) -> None:
    uni.tell(TESTED)
    uni.write(time="08:00:00")
    around_sbatch(uni, f"""for script; do :; done\ncp "$script" '{uni.folder}/sent'\nexec "$sbatch" "$@\"""")
    ran = uni("test", "--on", "uni", "-n", "2", "--json")
    assert ran.code == 0, ran.err
    found = json_data(ran.out)
    assert (found["ok"], found["verdict"]["nodes"]) == (True, ["c1", "c2"])
    assert f"#SBATCH --time={HELD_S // 60}\n" in (uni.folder / "sent").read_text()


def test_a_test_without_a_verdict(uni: Cluster) -> None:
    ran = uni("test", "--on", "uni", "--nodes", "2")
    assert ran.code == 1
    assert "the test ended without a verdict" in ran.err
    nothing_is_left(uni)


def test_a_measurement_is_shown_and_not_saved(uni: Cluster) -> None:
    uni.tell(MEASURED)
    ran = uni("bench", "--on", "uni", "--nodes", "2", "--", "gpt2", "--batch-size", "2")
    assert ran.code == 0, ran.err
    assert "6,384" in ran.out
    assert "saved" not in ran.err
    assert not list(measurements_folder().glob("*.json"))
    nothing_is_left(uni)
    uni.tell()
    ran = uni("bench", "--on", "uni", "--nodes", "2", "--", "gpt2")
    assert ran.code == 1
    assert "the trainer ended without a measurement" in ran.err


@pytest.mark.parametrize("command", ["test", "bench"])
def test_a_job_that_waits_is_withdrawn(uni: Cluster, command: str) -> None:
    (uni.state / "held").write_text("AssocGrpCPUMinutesLimit")
    ran = uni(command, "--on", "uni", "--nodes", "2", "--wait", "0")
    assert ran.code == 7, ran.err
    assert "job 1 is queued (AssocGrpCPUMinutesLimit)" in ran.err
    assert "job 1 did not start within 0 s (AssocGrpCPUMinutesLimit); it was withdrawn" in ran.err
    assert uni.job()["state"] == "CANCELLED"
    nothing_is_left(uni)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--on", "unu", "-n", "2"], 3, "no cluster 'unu'"),
        (["--on", "uni"], 2, "no --nodes: on a cluster it is the number of nodes"),
        (["--on", "uni", "--nodes", "$(touch x)"], 2, "on a cluster it is the number of nodes"),
        (["--on", "uni", "-n", "2", "--master", "c1"], 2, "--master: not with --on"),
        (["--wait", "3"], 2, "--wait needs --on"),
    ],
)
def test_wrong_words(uni: Cluster, words: list[str], code: int, says: str) -> None:
    for command in ("test", "bench"):
        ran = uni(command, *words)
        assert ran.code == code, ran.err
        assert says in ran.err
    assert not list(uni.state.glob("*.json"))


def test_a_wrong_backend_and_a_script(uni: Cluster) -> None:
    ran = uni("test", "--on", "uni", "-n", "2", "--backend", "mpi")
    assert (ran.code, "expected auto, gloo or nccl" in ran.err) == (2, True)
    ran = uni("bench", "--on", "uni", "-n", "2", "--", "python", "train.py")
    assert (ran.code, "is your own script" in ran.err) == (2, True)
    assert not list(uni.state.glob("*.json"))


def test_a_test_that_is_interrupted_leaves_nothing(uni: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = interrupted(uni, monkeypatch)
    assert "stopped; nothing of it is left on uni" in ran.err
    assert uni.job()["state"] != "RUNNING"
    nothing_is_left(uni)


def test_what_could_not_be_removed_is_said(uni: Cluster) -> None:
    uni.tell(TESTED)
    remove = uni.folder / "slurm" / "bin" / "rm"
    remove.write_text(
        '#!/bin/sh\ncase "$*" in */runs/test-*) echo "rm: disk is read-only" >&2; exit 1;; esac\n/bin/rm "$@"\n'
    )
    remove.chmod(0o755)
    ran = uni("test", "--on", "uni", "--nodes", "2")
    assert ran.code == 0, ran.err
    assert "disk is read-only; job 1 and its folder may be left" in ran.err
    assert "scancel 1; rm -r " in ran.err


def test_no_folder_is_removed_before_the_scheduler_says_that_the_job_is_gone(
    uni: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.nodes.slurm.CANCEL_S", 1.0)
    ran = interrupted(uni, monkeypatch, (uni.state / "down").touch)
    assert "job 1 and its folder may be left" in ran.err
    assert "nothing of it is left" not in ran.err
    assert list((uni.workspace / "orch" / "runs").iterdir())


def test_a_busy_scheduler_is_asked_again_and_a_damaged_record_hides_no_job(
    uni: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damage() -> None:
        (record,) = (uni.workspace / "orch" / "runs").glob("*/submitted-0.json")
        record.write_text("{")
        for name in ("scancel", "squeue"):  # each fails once
            program, once = uni.folder / "slurm" / "bin" / name, uni.folder / f"{name}.once"
            program.rename(program.with_name(f"{name}.real"))
            program.write_text(
                f"#!/bin/sh\n[ -e '{once}' ] || {{ : >'{once}'; echo 'Socket timed out' >&2; exit 1; }}\n"
                f"echo 'welcome to uni'\nexec '{program}.real' \"$@\"\n"
            )
            program.chmod(0o755)

    ran = interrupted(uni, monkeypatch, damage)
    assert "stopped; nothing of it is left on uni" in ran.err
    assert uni.job()["state"] != "RUNNING"
    nothing_is_left(uni)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_a_submission_that_is_broken_off_leaves_nothing(
    uni: Cluster, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_words: object) -> None:
        raise error

    endless(uni)
    monkeypatch.setattr(RunRecord, "save_plan", fail)
    ran = uni("test", "--on", "uni", "--nodes", "2")
    assert ran.code != 0
    assert uni.job()["state"] == "CANCELLED"
    nothing_is_left(uni)


def test_a_refused_job_leaves_no_folder(uni: Cluster) -> None:
    (uni.state / "refused").write_text("Batch job submission failed: Invalid account")
    ran = uni("test", "--on", "uni", "--nodes", "2")
    assert ran.code != 0
    assert list((uni.workspace / "orch" / "runs").iterdir()) == []


def test_another_runs_folder_is_never_removed(uni: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    other = uni.workspace / "orch" / "runs" / "test-aaaa"
    other.mkdir(parents=True)
    (other / "checkpoint").write_text("mine")
    same = RunIdentity(run_id="test-aaaa", user="ana", started_at="2026-01-02T03:04:05+00:00")
    monkeypatch.setattr("orchestrator.cli.launching.cluster_launch.new_identity", lambda *_: same)
    ran = uni("test", "--on", "uni", "--nodes", "2")
    assert ran.code == 6, ran.err
    assert "a run test-aaaa exists already" in ran.err
    assert (other / "checkpoint").read_text() == "mine"
    assert not list(uni.state.glob("[0-9]*.json"))


def test_a_job_that_was_stopped_has_no_old_image(uni: Cluster) -> None:
    around_sbatch(uni, f"""for script; do :; done\ncp "$script" '{uni.folder}/sent'\nexec "$sbatch" "$@\"""")
    endless(uni)

    def cancel() -> None:
        until(lambda: uni.state.joinpath("1.json").exists() and uni.job()["steps"])
        until(lambda: list((uni.workspace / "orch" / "runs").glob("*/place-0.json")))
        fake_slurm.send([uni.job()["batch"], *uni.job()["steps"]], signal.SIGTERM)

    thread = Thread(target=cancel)
    thread.start()
    ran = uni("test", "--on", "uni", "--nodes", "2")
    thread.join()
    assert ran.code == 1, ran.err
    assert "its job was stopped before, by scancel" in ran.err
    assert "image" not in ran.err
    assert "#SBATCH --no-requeue\n" in (uni.folder / "sent").read_text()


def test_a_test_brings_no_data(uni: Cluster) -> None:
    Path("Data").mkdir()
    (Path("Data") / "manifest.json").write_text("{}")
    uni.tell(TESTED)
    ran = uni("test", "--on", "uni", "--nodes", "2")
    assert ran.code == 0, ran.err
    assert "data copied" not in ran.err
    assert not list((uni.workspace / "orch" / "data").glob("*"))
