"""The main job on five real machines in a box: build, check, launch, logs, stop, resume, and a rank that dies."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from orchestrator.fleet.connect import connected
from orchestrator.fleet.images.build_context import archive_of
from orchestrator.fleet.images.distribute_image import distribute_image
from orchestrator.nodes.interface import BuildRequest
from orchestrator.nodes.local import LocalNode
from orchestrator.plan.image import DEFAULT_BASE
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.inventory_files.inventory_file import parse_inventory
from tests.conftest import Figure
from tests.lab import underway as faults
from tests.lab.conftest import NAMES, TINY, Orch, on_node, read_until, running_on
from tests.lab.underway import PROBE

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

THREE = NAMES[:3]
LOSS = re.compile(r"step (\d+)/\d+  loss ([0-9.]+)")


def losses(orch: Orch, run: str) -> dict[int, float]:
    """Loss by step, from the events of rank 0."""
    lines = [json.loads(line) for line in orch("logs", run, "--json").out.splitlines()]
    events = [line["event"] for line in lines if line.get("event")]
    return {event["step"]: event["loss"] for event in events if event["kind"] == "step"}


def run_id(text: str) -> str:
    found = re.search(r"run (\S+) (?:succeeded|stopped|failed|continues)", text)
    assert found, text
    return found[1]


@pytest.fixture(scope="module")
def five(orch: Orch, figure: Figure) -> tuple[str, str, float]:
    """A whole run on five nodes: its id, what the user saw, and how long it took."""
    done = orch.launch("--name", "five", "--", *TINY, "--max-steps", "12", "--log-every", "1")
    assert done.code == 0, done.out + done.err
    figure(f"launch of 12 steps on five nodes, command to end: {done.seconds:.0f} s")
    for phase in re.findall(r"✓ (.*): alpha.*\((.* s)\)", done.err):
        figure(f"  {phase[0]} after {phase[1]}")
    return run_id(done.err), done.out + done.err, done.seconds


def test_every_node_has_the_same_image_and_a_second_build_moves_nothing(orch: Orch) -> None:
    done = orch("build", "--profile", "cpu", "--yes", "--json")
    assert done.code == 0, done.err
    placed = {image["node"]: image for image in done.json}
    assert set(placed) >= set(NAMES)
    assert len({image["image_id"] for image in placed.values()}) == 1
    assert sum(image["moved_bytes"] for image in placed.values()) == 0


def test_a_layer_missing_on_all_nodes_is_sent_to_all_at_once(orch: Orch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer alone is sent, over SSH."""
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, orch.environment[name])
    file = orch.folder / "state" / "orch" / "lab" / "inventory.yaml"
    tag = "orch/lab-layer:cpu"
    request = BuildRequest(tag=tag, dockerfile="Dockerfile", args={}, labels={})
    files = {
        "Dockerfile": f"FROM {DEFAULT_BASE}\nCOPY content /content-of-a-test\n".encode(),
        "content": os.urandom(100_000),
    }
    here = LocalNode()
    try:
        for _ in here.engine.build(request, archive_of(files)):
            pass
        image = here.engine.image(tag)
        assert image is not None
        inventory = parse_inventory(file.read_bytes(), filename=str(file))
        folders = {spec.name: spec.folder(inventory.project) for spec in inventory.nodes}
        with connected(inventory.nodes) as nodes:
            placed = distribute_image(image, [tag], here.engine, nodes, folders, lambda node, progress: None)
            assert [node.engine.image(tag) for node in nodes] == [image] * len(NAMES)
            for node in nodes:
                node.engine.remove_image(tag)
        assert all(100_000 < outcome.value().moved_bytes < 150_000 for outcome in placed)
    finally:
        here.engine.remove_image(tag)
        here.close()


def test_cpu_nodes_are_no_error_for_check_gpus(orch: Orch) -> None:
    done = orch("check-gpus")
    assert done.code == 0, done.err
    for name in NAMES:
        assert name in done.out


def test_the_user_sees_every_phase_and_the_falling_loss(five: tuple[str, str, float]) -> None:
    _, seen, _ = five
    for phase in ("image checked", "container started", "reached the master", "5/5 joined", "first step"):
        assert re.search(rf"✓ {phase}: alpha, beta, gamma, delta, epsilon \(\d+\.\d s\)", seen), seen
    shown = [(int(step), float(loss)) for step, loss in LOSS.findall(seen)]
    assert [step for step, _ in shown] == list(range(1, 13))
    assert shown[-1][1] < shown[0][1] - 0.05
    assert "checkpoints  alpha:/home/orch/orch/lab/runs/" in seen


def test_five_nodes_train_as_one_process_does(orch: Orch, five: tuple[str, str, float]) -> None:
    alone = orch.launch(
        "--name", "alone", "--", *TINY, "--max-steps", "12", "--log-every", "1", "--global-batch-size", "10", nodes="1"
    )
    assert alone.code == 0, alone.out + alone.err
    together, single = losses(orch, five[0]), losses(orch, run_id(alone.err))
    assert together.keys() == single.keys() == set(range(1, 13))
    for step, loss in single.items():
        assert together[step] == pytest.approx(loss, rel=2e-5), f"step {step}"


def test_what_the_run_wrote_belongs_to_the_nodes_user(five: tuple[str, str, float]) -> None:
    folder = f"/home/orch/orch/lab/runs/{five[0]}"
    assert on_node("alpha", "find", "/home/orch/orch", "!", "-user", "orch") == ""
    assert on_node("alpha", "ls", f"{folder}/checkpoints").split() == ["step-00000012"]
    assert on_node("beta", "ls", f"{folder}/checkpoints").split() == ["step-00000012"]  # a copy, while it was followed
    assert on_node("gamma", "find", folder, "-name", "step-*") == ""  # rank 0 alone writes them


def test_the_weights_come_as_safetensors(orch: Orch, five: tuple[str, str, float], tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    done = orch("checkpoints", "export", five[0], "--step", "12", "--to", str(file), "--json")
    assert done.code == 0, done.err
    length = int.from_bytes(file.read_bytes()[:8], "little")
    tensors = json.loads(file.read_bytes()[8 : 8 + length])
    assert len(tensors) > 5
    assert done.json["bytes"] == file.stat().st_size
    assert ".export-" not in on_node("alpha", "ls", "-a", f"/home/orch/orch/lab/runs/{five[0]}")
    assert on_node("alpha", "docker", "ps", "-aq", "--filter", "label=orch.purpose=export") == ""


def test_logs_of_an_ended_run_are_merged_and_filtered(orch: Orch, five: tuple[str, str, float]) -> None:
    run = five[0]
    whole = orch("logs", run)
    assert whole.code == 0
    assert {"step 1/12", "done: step 12"} <= set(re.findall(r"step 1/12|done: step 12", whole.out))
    assert "@orch" not in whole.out
    as_json = [json.loads(line) for line in orch("logs", run, "--json").out.splitlines()]
    assert [line["time"] for line in as_json] == sorted(line["time"] for line in as_json)
    assert {line["node"] for line in as_json} == set(NAMES)
    assert {line["rank"] for line in as_json if line.get("event")} == {*range(5), None}  # None: the supervisors
    third = [json.loads(line) for line in orch("logs", run, "--rank", "3", "--json").out.splitlines()]
    assert third
    assert {(line["node"], line["rank"]) for line in third} == {("delta", 3)}
    assert len(orch("logs", run, "--nodes", "alpha", "--grep", r"step \d+/12", "--tail", "4").out.splitlines()) == 4


def test_status_and_runs_tell_of_an_ended_run(orch: Orch, five: tuple[str, str, float]) -> None:
    status = orch("status", five[0], "--json")
    assert status.code == 0, status.err
    assert status.json["state"] == "succeeded"
    assert [(member["node"], member["exit_code"]) for member in status.json["members"]] == [(name, 0) for name in NAMES]
    listed = {run["run_id"]: run for run in orch("runs", "--json").json["runs"]}
    assert listed[five[0]]["nnodes"] == 5


def test_containers_are_hardened_and_a_second_launch_is_refused(orch: Orch) -> None:
    first = orch.begin("launch", "--yes", "--nodes", ",".join(THREE), "--name", "long", *PROBE.until(5000))
    try:
        read_until(first, "first step")
        for name in THREE:
            described = json.loads(on_node(name, "docker", "inspect", "orch-run"))[0]
            assert described["Config"]["User"] == "1000:1000"
            assert described["HostConfig"]["CapDrop"] == ["ALL"]
            assert not described["HostConfig"]["CapAdd"]
            assert described["HostConfig"]["ReadonlyRootfs"] is True
            assert described["HostConfig"]["Privileged"] is False
            assert "no-new-privileges:true" in described["HostConfig"]["SecurityOpt"]
            processes = on_node(name, "docker", "top", "orch-run", "-eo", "pid,uid").splitlines()[1:]
            assert len(processes) >= 3  # init, agent, one rank
            assert {line.split()[1] for line in processes} == {"1000"}
        assert [one["stdout"] for one in orch("exec", "long", "--json", "--", "id", "-u").json] == 3 * ["1000\n"]
        assert "train.py" in orch("exec", "long", "--rank", "1", "--", "cat", "/proc/1/cmdline").out
        assert orch("exec", "beta", "--", "hostname").out == "beta\n"
        second = orch.launch("--name", "second", "--", *TINY)
        assert second.code == 6, second.err
        assert re.search(r"alpha: run long-\w+ by \S+ holds this node since 20", second.err), second.err
        assert all(running_on(name) == ["orch-run"] for name in THREE)

        os.killpg(first.pid, signal.SIGINT)
        rest, _ = first.communicate(timeout=30)
        assert first.returncode == 130
        assert "continues without you" in rest
        assert "orch logs -f long-" in rest
        assert orch("status", "--json").json["state"] == "running"

        following = orch.begin("logs", "-f")
        read_until(following, "loss")
        os.killpg(following.pid, signal.SIGINT)
        following.communicate(timeout=30)
        assert following.returncode == 130
    finally:
        stopped = orch("stop", "--json")
    assert stopped.code == 0, stopped.err
    step = stopped.json["checkpoint_step"]
    assert step is not None
    assert step > 1
    run = stopped.json["run_id"]
    for name in THREE:
        assert on_node(name, "docker", "ps", "-aq", "--filter", f"label=orch.run_id={run}") == ""

    resumed = orch("launch", "--resume", run, "--yes", "--", *PROBE.command, str(step + 3))
    assert resumed.code == 0, resumed.err
    shown = [int(number) for number, _ in LOSS.findall(resumed.out)]
    assert shown == [step + 1, step + 2, step + 3]


def test_a_killed_rank_is_named_and_the_rest_is_stopped(orch: Orch, figure: Figure) -> None:
    run = orch.begin(
        "launch", "--yes", "--nodes", ",".join(THREE), "--name", "killed", "--max-restarts", "0", *PROBE.until(5000),
    )  # fmt: skip
    read_until(run, "first step")
    killed_at = faults.send("gamma", "KILL", faults.RANK)
    rest, _ = run.communicate(timeout=60)
    figure(f"rank killed with SIGKILL: failure named and everything stopped in {time.time() - killed_at:.1f} s")
    assert run.returncode == 1
    assert re.search(r"✗ run killed-\w+ failed: rank 2 on gamma: ended by SIGKILL \(exit code -9\)", rest), rest
    assert all(running_on(name) == [] for name in NAMES)


def test_an_error_in_a_script_of_ones_own_is_shown_with_its_last_lines(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, pathlib, sys, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "rank = dist.get_rank()\n"
        "names = ('NODE_RANK', 'MASTER_ADDR', 'MASTER_PORT', 'NNODES', 'GPUS_PER_NODE')\n"
        "print('seen', *[os.environ[name] for name in names], sys.argv[1:])\n"
        "pathlib.Path('mine.txt').write_text('kept')\n"
        "dist.barrier()\n"
        "if rank == 1 and '--fail' in sys.argv:\n"
        "    raise ValueError('a wrong shape')\n"
        "dist.barrier()\n"
        "dist.destroy_process_group()\n"
    )
    words = ("--workdir", str(tmp_path), "--", "python", "train.py", "--lr", "1e-3; echo $(id)")
    good = orch.launch("--name", "mine", *words, nodes="alpha,beta")
    assert good.code == 0, good.out + good.err
    assert re.search(r"\[1 beta *\] seen 1 \S+ 1235\d 2 1 \['--lr', '1e-3; echo \$\(id\)'\]", good.out), good.out
    pulled = orch("pull", run_id(good.err), "--to", str(tmp_path / "back"))
    assert pulled.code == 0, pulled.err
    came = tmp_path / "back" / "runs" / run_id(good.err)
    assert (came / "code" / "mine.txt").read_text() == "kept"
    assert not (came / "code" / "train.py").exists()
    assert not (came / "nodes").exists()  # both nodes wrote the same

    bad = orch.launch("--name", "bad", *words, "--fail", nodes="alpha,beta")
    assert bad.code == 1
    assert re.search(r"failed: rank 1 on beta", bad.err), bad.err
    assert "ValueError: a wrong shape" in bad.err


def test_a_node_that_is_cut_off_is_named_and_nothing_is_started(orch: Orch) -> None:
    assert orch("lab", "cut", "delta").code == 0
    try:
        refused = orch.launch("--", *TINY)
        assert refused.code == 4
        assert re.search(r"delta: .*no answer in 5 s", refused.err), refused.err
        assert "nothing was started" in refused.err
        assert all(running_on(name) == [] for name in NAMES)
        without = orch("launch", "--dry-run", "--nodes", "alpha,beta")
        assert without.code == 0
        assert without.out.count("torchrun --nnodes 2") == 2
    finally:
        assert orch("lab", "heal", "delta").code == 0


def test_every_pair_of_ranks_can_talk(orch: Orch) -> None:
    done = orch.launch("--name", "ddp", "--", "test-ddp", "--backend", "auto", nodes=",".join(THREE))
    assert done.code == 0, done.out + done.err
    assert "gloo" in done.out


def test_clean_leaves_no_container(orch: Orch) -> None:
    assert orch("clean").code == 0
    for name in NAMES:
        assert on_node(name, "docker", "ps", "-aq") == ""
    assert "history" in orch("runs", "--json").json


def test_the_dry_run_is_what_docker_gets(orch: Orch) -> None:
    """The lines of --dry-run, pasted: the same container as the SDK makes."""
    lines = orch("launch", "--dry-run", "--nodes", "1", "--", *TINY).out.splitlines()
    docker_line = next(line for line in lines if line.startswith("docker -H"))
    assert "--cap-drop ALL" in docker_line
    assert ContainerSpec.__dataclass_fields__["network"].default == "host"
    assert subprocess.run(["sh", "-n", "-c", "\n".join(lines)], check=False).returncode == 0
