"""Next steps after a failed launch: a resume only where it can help, and lines that can be pasted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from contract.downloads import read_source
from orchestrator.fleet.planning.request import build_request
from orchestrator.plan.launch import plan_launch
from orchestrator.specs.inventory import Inventory
from orchestrator.specs.launch_line import launch_words
from orchestrator.specs.launch_options import OFFLINE, LaunchOptions
from orchestrator.specs.plan_json import from_json, to_json
from tests import lan
from tests.json_output import json_data
from tests.unit.conftest import THREE, Orch

MISSING = "[rank0]: python: can't open file '/workspace/code/trian.py': [Errno 2] No such file or directory"
NO_MODULE = "[rank0]: ModuleNotFoundError: No module named 'einops'"
BROKEN = lan.event(
    "finished", outcome="user", node="alpha", rank=0, exit_code=1, cause="code.exception", reason="ValueError: label 11"
)
CHECKPOINT = lan.event(
    "checkpoint", step=40, path="/workspace/runs/x/checkpoints/step-00000040", verified=True, sha256="a" * 64
)


@pytest.mark.parametrize("says", [MISSING, NO_MODULE], ids=["no script", "no module"])
def test_a_wrong_word_is_not_repeated_by_a_resume(orch: Orch, says: str) -> None:
    ran = orch("launch", "--no-supervise", on=lan.lan(*THREE, says=(says,), ends_with=2))
    assert ran.code == 1
    assert "orch resume" not in ran.err
    assert "  → correct that, then launch again: orch launch --nodes alpha,beta,gamma -- gpt2" in ran.err
    assert "orch resume" not in orch("why", on=lan.lan(*THREE)).out


def test_where_there_is_a_checkpoint_a_resume_helps(orch: Orch) -> None:
    ran = orch("launch", "--no-supervise", "--name", "x", on=lan.lan(*THREE, says=(CHECKPOINT, NO_MODULE), ends_with=1))
    assert "launch again" not in ran.err
    assert "  → orch resume x" in ran.err


@pytest.mark.parametrize("saves", [False, True])
def test_code_is_resumed_with_the_corrected_code_if_it_has_saved_a_checkpoint(
    orch: Orch, tmp_path: Path, *, saves: bool
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "train.py").write_text("raise ValueError\n")
    says = (*([CHECKPOINT] if saves else []), BROKEN)
    words = ("launch", "--no-supervise", "--workdir", str(mine), "--", "python", "train.py")
    here = lan.lan(*THREE, says=says, ends_with=1)
    ran = orch(*words, on=here)
    launch = f"orch launch --nodes alpha,beta,gamma --workdir {mine} -- python train.py"
    assert ("  → with the corrected code: orch resume " in ran.err) == saves
    assert (f" --workdir {mine}\n" in ran.err) == saves
    assert (f"  → correct that, then launch again: {launch}\n" in ran.err) == (not saves)
    why = orch("why", on=here).out
    assert ("  → then continue from the last checkpoint: orch resume " in why) == saves
    assert (f"   # with corrected code: --workdir {mine}\n" in why) == saves
    assert (f"  → then launch again: {launch}\n" in why) == (not saves)


def test_a_launch_that_is_proposed_has_the_options_of_the_run(orch: Orch, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "train.py").write_text("raise ValueError\n")
    options = (
        "--name mine --workdir {} --offline --mount /srv/x:/x:ro --env LR=a,b=c --env MY_TOKEN=abc --max-restarts 0"
    )
    words = [*options.format(mine).split(), "--hang-timeout", "10m", "--no-sync-outputs", "--independent"]
    ran = orch(
        "launch", "--no-supervise", *words, "--", "python", "train.py", on=lan.lan(*THREE, says=(BROKEN,), ends_with=1)
    )
    assert (
        f"launch again: orch launch --nodes alpha,beta,gamma --name mine --workdir {mine} --offline"
        " --mount /srv/x:/x:ro --env LR=a,b=c --env 'MY_TOKEN=***' --max-restarts 0 --hang-timeout 600 --independent"
        " --no-sync-outputs -- python train.py\n"
    ) in ran.err


def test_a_launch_that_is_proposed_has_the_options_of_its_attempt() -> None:
    """--master only while that node is there; --offline is implied by --fetch-once."""
    inventory = Inventory(nodes=tuple(lan.spec(name) for name in THREE))
    typed = ["--master", "beta", "--master-port", "12400", "--fetch-once", "hf:openai-community/gpt2"]
    options = LaunchOptions(
        command=("gpt2",), master="beta", master_port=12400, fetch_once=(read_source("hf:openai-community/gpt2"),)
    )
    request = build_request(inventory, options, None, {})
    plan = plan_launch(request, {name: lan.facts(name) for name in THREE}, lan.IDENTITY)
    assert from_json(to_json(plan), where="plan.json") == plan
    assert list(launch_words(plan)) == ["orch", "launch", "--nodes", "beta,alpha,gamma", *typed, "--", "gpt2"]
    left = tuple(part for part in plan.nodes if part.node != "beta")
    words = launch_words(replace(plan, nodes=left, master="alpha"))
    assert words[2:5] == ("--nodes", "alpha,gamma", "--master-port")
    on_cluster = launch_words(replace(plan, cluster="uni", environment=OFFLINE))
    assert list(on_cluster[2:-2]) == ["--on", "uni", "--nodes", "3", "--offline", "--master-port", "12400"]


def test_a_run_whose_gpu_failed_is_launched_again_as_it_was(orch: Orch) -> None:
    says = ("[rank0]: RuntimeError: CUDA error: uncorrectable ECC error encountered",)
    ran = orch("launch", "--no-supervise", on=lan.lan(*THREE, says=says, ends_with=1))
    assert "the memory of a GPU of alpha is faulty" in ran.err
    assert "  → launch again: orch launch --nodes alpha,beta,gamma -- gpt2" in ran.err


def test_why_names_the_missing_script_and_the_fix(orch: Orch) -> None:
    """The supervisors' verdict is read too, whose reason is the line itself."""
    over = {"outcome": "configuration", "node": "alpha", "rank": 0, "exit_code": 2, "cause": "start.script_missing"}
    here = lan.lan(*THREE, says=(MISSING, lan.event("finished", **over, reason=MISSING[9:])), ends_with=3)
    assert orch("launch", "--no-supervise", "--name", "x", on=here).code == 1
    shown = orch("why", on=here).out
    assert "the container on alpha has no file /workspace/code/trian.py" in shown
    assert "  evidence  python: can't open file '/workspace/code/trian.py'" in shown
    assert "orch launch --workdir FOLDER -- python SCRIPT" in shown
    cause = json_data(orch("why", "--json", on=here).out)["failure"]["cause"]
    assert (cause["id"], cause["owner"]) == ("start.script_missing", "configuration")


TRACEBACK = (
    "[rank0]: Traceback (most recent call last):",
    '[rank0]:   File "/srv/alpha/runs/x/code/train.py", line 3, in main',
    "[rank0]:     torch.cuda.set_device(0)",
    "[rank0]: AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'",
)


def test_a_traceback_that_stands_above_is_not_repeated(orch: Orch) -> None:
    ran = orch("launch", "--no-supervise", on=lan.lan(*THREE, says=TRACEBACK, ends_with=1))
    above, _, summary = ran.err.partition("✗ run ")
    assert (ran.out + above).count("torch.cuda.set_device(0)") >= 1
    assert "    at train.py:3 in main\n  rank 0 on alpha asks for a GPU" in summary
    assert "set_device(0)" not in summary
    assert summary.count("_cuda_setDevice") == 1


def test_of_one_rank_no_others_were_stopped(orch: Orch) -> None:
    ran = orch("launch", "--no-supervise", "--nodes", "alpha", on=lan.lan(*THREE, says=(NO_MODULE,), ends_with=1))
    assert "the image has no Python module einops" in ran.err
    assert "the other ranks were stopped" not in ran.err
