"""Contract of both sides: the trainer reads the plan's words, the orchestrator understands the trainer's output."""

from __future__ import annotations

import importlib.util
import io
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from contract.cost_model.choice import choose_sync
from contract.cost_model.forecast import forecast
from contract.event_lines import decode_event
from contract.events import CheckpointWritten, ForecastMade, RankFailed, StepDone
from contract.log_lines import split_rank
from orchestrator.plan.launch import plan_launch
from orchestrator.specs.plan import NodePlan
from orchestrator.specs.program import Program
from orchestrator.specs.request import LaunchRequest
from tests import lan
from tests.trainer import forecasts
from trainer import cli
from trainer.agent import options as survive
from trainer.config import RankInfo
from trainer.engine.reporting.events import Events
from trainer.option_layers import train_options
from trainer.workloads import WORKLOADS

ALL_OPTIONS = (
    "--epochs", "3", "--max-steps", "9", "--batch-size", "2", "--seq-len", "128", "--grad-accum", "2",
    "--global-batch-size", "20", "--lr", "1e-3", "--min-lr", "0", "--warmup-steps", "5", "--weight-decay",
    "0.2", "--clip", "0", "--seed", "7", "--no-amp", "--no-compile", "--backend", "gloo", "--log-every", "1",
    "--eval-every", "epoch", "--eval-batches", "3", "--checkpoint-every", "4", "--keep-checkpoints", "2",
    "--keep-hours", "1.5", "--no-checkpoint-async",
    "--data-dir", "Other", "--resume", "never", "--preset", "tiny", "--layers", "1", "--heads", "1", "--width",
    "8", "--dropout", "0.1", "--micro-batch-size", "auto", "--optimizer", "muon", "--schedule", "linear", "--betas",
    "0.8,0.9", "--precision", "bf16", "--no-tf32", "--sdpa", "math", "--no-fused", "--no-static-graph",
    "--num-workers", "2", "--deterministic", "--on-nan", "skip", "--on-spike", "stop", "--spike-factor", "4",
    "--early-stopping", "loss", "--patience", "2", "--best", "perplexity", "--profile", "5",
    "--init-from", "gpt2", "--use-gradient-checkpointing", "--loss-chunk", "512",
    "--sync", "diloco", "--sync-codec", "int8", "--sync-every", "30", "--sync-warmup", "5", "--sync-fragments", "3",
    "--sync-delay", "2", "--sync-rank", "8", "--sync-density", "0.1", "--outer-lr", "0.5", "--outer-momentum", "0.8",
    "--shares", "equal", "--forecast", "--optimizer-state", "bf16", "--no-cuda-graphs",
    "--reporter", "own.py:Sink",
)  # fmt: skip
PROMPT = ("--prompt", "En un lugar de la Mancha, 'de cuyo nombre'")


def parts(command: tuple[str, ...], **changes: object) -> tuple[NodePlan, ...]:
    nodes = (lan.spec("alpha", nproc_per_node=2), lan.spec("beta"), lan.spec("gamma", nproc_per_node=2))
    request = LaunchRequest(project="orch", nodes=nodes, command=command, **changes)  # type: ignore[arg-type]
    return plan_launch(request, {node.name: lan.facts(node.name) for node in nodes}, lan.IDENTITY).nodes


def trainer_words(part: NodePlan) -> list[str]:
    """Return the words that torchrun hands to each rank."""
    words = list(part.container.command)
    start = words.index("-m", words.index("torchrun"))
    assert words[start : start + 2] == ["-m", "trainer"]
    return words[start + 2 :]


def rank_environment(part: NodePlan, local_rank: int, world_size: int) -> dict[str, str]:
    """The plan's variables, and what torchrun adds for one rank."""
    return {
        **part.container.environment,
        "RANK": str(part.first_rank + local_rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(part.nproc_per_node),
    }


def test_every_option_of_gpt2_arrives() -> None:
    (first, *_) = parts(("gpt2", *ALL_OPTIONS, *PROMPT))
    given = cli.parse(trainer_words(first))
    place = RankInfo.from_environ(rank_environment(first, 0, 5))
    options = train_options(given, {}, place)
    assert (options.epochs, options.max_steps, options.batch_size, options.global_batch_size) == (3, 9, 2, 20)
    assert (options.lr, options.min_lr, options.clip, options.amp, options.compile) == (1e-3, 0.0, 0.0, False, False)
    assert (options.data_dir, options.resume, options.prompt) == (Path("Other"), "never", PROMPT[1])
    assert (options.eval_every, options.micro_batch_size, options.num_workers) == ("epoch", "auto", 2)
    assert (options.optimizer, options.schedule, options.betas) == ("muon", "linear", (0.8, 0.9))
    assert (options.precision, options.tf32, options.sdpa, options.fused) == ("bf16", False, "math", False)
    assert (options.static_graph, options.deterministic, options.profile) == (False, True, 5)
    assert (options.on_nan, options.on_spike, options.spike_factor) == ("skip", "stop", 4.0)
    assert (options.early_stopping, options.patience, options.best) == ("loss", 2, "perplexity")
    assert (given.init_from, given.gradient_checkpointing, given.loss_chunk) == ("gpt2", True, 512)
    assert (given.preset, given.layers, given.heads, given.width, given.dropout) == ("tiny", 1, 1, 8, 0.1)


def test_every_option_is_tried_here() -> None:
    """A new option of the trainer fails here until it is tried."""
    parser = cli.build_parser("gpt2")
    train = _action(_action(parser, "gpt2"), "train")
    meaning = {option: action.dest for action in train._actions for option in action.option_strings}
    aside = {"help", "run_dir", "from_scratch", "config", "prompt"}
    assert set(meaning.values()) - aside == {meaning[word] for word in ALL_OPTIONS if word.startswith("--")}


def test_the_seeds_command_line_arrives() -> None:
    (first, *_) = parts(("gpt2", "--epochs", "1", "--batch-size", "2", "--seq-len", "128"))
    given = cli.parse(trainer_words(first))
    assert (given.action, given.epochs, given.batch_size, given.seq_len) == ("train", 1, 2, 128)


@pytest.mark.parametrize("command", [*WORKLOADS, "test-ddp"])
def test_every_command_that_is_launched(command: str) -> None:
    (first, *_) = parts((command,))
    assert cli.parse(trainer_words(first)).command == command


def test_every_supervisor_knows_its_place() -> None:
    for rank, part in enumerate(parts(("gpt2",), max_restarts=2)):
        command = part.container.command
        assert command[:4] == ("python", "-P", "-m", "trainer.agent")
        options = survive.read(command[4:], part.container.environment)
        assert (options.node, options.node_rank, options.first_rank) == (part.node, rank, part.first_rank)
        assert (options.address, options.restarts, options.absence_s) == ("10.0.0.11", 2, 900)
        assert options.port == lan.plan(("alpha", "beta", "gamma")).supervisor_port
        assert options.names == ("alpha", "beta", "gamma")
        assert options.run == f"{lan.IDENTITY.run_id}.0"
        assert str(options.folder) == f"/workspace/runs/{lan.IDENTITY.run_id}"
        assert options.command[0] == "torchrun"


def test_every_rank_knows_its_place() -> None:
    nodes = parts(("gpt2",), process_group_timeout_s=120)
    places = [
        RankInfo.from_environ(rank_environment(part, local, 5))
        for part in nodes
        for local in range(part.nproc_per_node)
    ]
    assert [place.rank for place in places] == [0, 1, 2, 3, 4]
    assert [place.node for place in places] == ["alpha", "alpha", "beta", "gamma", "gamma"]
    assert [place.node_rank for place in places] == [0, 0, 1, 2, 2]
    for place in places:
        assert (place.master, place.run_id, place.attempt) == ("10.0.0.11:12355", lan.IDENTITY.run_id, 0)
        assert (place.backend, place.pg_timeout_s, place.events) == ("gloo", 120, True)
        assert place.run_dir == f"/workspace/runs/{lan.IDENTITY.run_id}"


def test_data_lies_where_the_trainer_looks() -> None:
    (first, *_) = parts(("gpt2",), data=lan.data())
    place = RankInfo.from_environ(rank_environment(first, 0, 5))
    options = train_options(cli.parse(trainer_words(first), rank_environment(first, 0, 5)), {}, place)
    assert str(options.data_dir) in [mount.target for mount in first.container.mounts if mount.read_only]


def test_a_module_of_ones_own_finds_itself_and_the_data() -> None:
    words = ("custom", "--module", "digits.py:build", "--set", "width=4")
    assert Program.of(words).brings_own_code
    (first, *_) = parts(words, own_code=True, data=lan.data())
    given = cli.parse(trainer_words(first), rank_environment(first, 0, 5))
    assert (given.module, given.set) == ("digits.py:build", ["width=4"])
    assert first.container.working_dir == f"/workspace/runs/{lan.IDENTITY.run_id}/code"
    assert str(given.data_dir) in [mount.target for mount in first.container.mounts]


def test_events_are_understood() -> None:
    (_, beta, _) = parts(("gpt2",))
    out, err = io.StringIO(), io.StringIO()
    events = Events(RankInfo.from_environ(rank_environment(beta, 0, 5)), out, err, clock=lambda: 7.0)
    events.emit(StepDone(step=3, loss=float("nan"), per_s=12.5))
    events.emit(CheckpointWritten(step=3, path="/workspace/x", verified=True))
    events.failed(ValueError("loss is nan"))

    step, checkpoint, failed = (decode_event(line) for line in out.getvalue().splitlines())

    assert isinstance(step, StepDone)
    assert (step.kind, step.rank, step.step, step.loss, step.values()["loss"]) == ("step", 2, 3, None, None)
    assert isinstance(checkpoint, CheckpointWritten)
    assert checkpoint.verified is True
    assert isinstance(failed, RankFailed)
    assert (failed.kind, failed.error, failed.message) == ("failed", "ValueError", "loss is nan")
    assert split_rank(err.getvalue())[0] is None


def test_a_forecast_is_understood() -> None:
    """The trainer's own, of nodes of which one is left out."""
    nodes = [forecasts.node(rank, link=forecasts.GIGABIT / (10 if rank == 2 else 1)) for rank in range(3)]
    choice = choose_sync(forecasts.measured(nodes, samples_per_step=2000))
    out = io.StringIO()
    (first, *_) = parts(("gpt2",))
    events = Events(RankInfo.from_environ(rank_environment(first, 0, 5)), out, clock=lambda: 7.0)
    events.emit(ForecastMade(forecast=forecast(choice)))

    event = decode_event(out.getvalue().rstrip())

    assert isinstance(event, ForecastMade)
    known = event.forecast
    assert (known.chosen.sync, known.chosen.nodes) == (choice.chosen.sync, ("alpha", "beta"))
    assert [(row.sync, row.nodes, row.step_s, row.per_s) for row in known.rows] == [
        (row.sync, row.nodes, row.step_s, row.per_s) for row in choice.rows
    ]
    assert known.warnings == choice.warnings
    assert [(left.node, left.why) for left in known.left_out] == [("gamma", choice.left_out[0].why)]
    assert known.best_node == "alpha"


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the controller's environment has no torch")
def test_torchrun_takes_the_plans_words_and_each_line_has_its_rank(tmp_path: Path) -> None:
    """The real one: a container's command and environment on this computer, two ranks that say who they are."""
    (tmp_path / "who.py").write_text(
        "import os\nprint('I am', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], os.environ['NODE_RANK'])\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    node = lan.spec("alpha", address="127.0.0.1", nproc_per_node=2)
    request = LaunchRequest(project="orch", nodes=(node,), command=("python", "who.py"), master_port=port)
    facts = {"alpha": lan.facts("alpha", address="127.0.0.1")}
    container = plan_launch(request, facts, lan.IDENTITY).nodes[0].container
    words = [word.replace("/workspace", str(tmp_path)) for word in container.command]
    assert words[0] == "python"

    ran = subprocess.run(
        (sys.executable, *words[1:]),
        cwd=tmp_path,
        env={**os.environ, **container.environment, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    output = sorted(split_rank(line) for line in ran.stdout.splitlines() if "I am" in line)
    assert output == [(0, "I am 0 of 2 0"), (1, "I am 1 of 2 0")]


def _action(parser: object, name: str) -> object:
    """The parser of a sub-command, which argparse has no public way to."""
    (choices,) = [action.choices for action in parser._subparsers._group_actions]  # type: ignore[attr-defined]
    return choices[name]
