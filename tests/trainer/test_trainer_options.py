"""The command line and the environment: what is understood, and what is refused how."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NEEDS_TORCH
from trainer.cli import Parser, parse
from trainer.config import RankInfo, TrainOptions
from trainer.data.files import not_permitted
from trainer.errors import OptionError
from trainer.option_layers import add_train_options, train_options


def options_of(*argv: str, environ: dict[str, str] | None = None) -> TrainOptions:
    return train_options(parse(["gpt2", *argv]), {}, RankInfo.from_environ(environ or {}))


def test_the_seeds_options_work_as_written_there() -> None:
    given = parse(["gpt2", "--epochs", "1", "--batch-size", "2", "--seq-len", "128"])
    assert (given.action, given.preset) == ("train", None)
    assert (given.epochs, given.batch_size, given.seq_len) == (1, 2, 128)


@NEEDS_TORCH
def test_run_dir_comes_from_the_option_then_the_environment_then_here() -> None:
    assert options_of().run_dir == Path()
    assert options_of(environ={"ORCH_RUN_DIR": "/runs/7"}).run_dir == Path("/runs/7")
    both = options_of("--run-dir", "/other", environ={"ORCH_RUN_DIR": "/runs/7"})
    assert both.run_dir == Path("/other")


def test_backend_comes_from_the_option_then_the_environment() -> None:
    assert options_of(environ={"ORCH_BACKEND": "gloo"}).backend == "gloo"
    assert options_of("--backend", "nccl", environ={"ORCH_BACKEND": "gloo"}).backend == "nccl"


def test_from_scratch_is_never_resuming() -> None:
    assert options_of().resume == "auto"
    assert options_of("--from-scratch").resume == "never"


def test_environment_of_torchrun_and_the_orchestrator() -> None:
    place = RankInfo.from_environ(
        {
            "RANK": "3", "WORLD_SIZE": "5", "LOCAL_RANK": "1",
            "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "12355",
            "ORCH_RUN_ID": "r1", "ORCH_NODE": "delta", "ORCH_NODE_RANK": "2", "ORCH_ATTEMPT": "4",
            "ORCH_PG_TIMEOUT_S": "120", "ORCH_EVENTS": "1",
        }
    )  # fmt: skip
    assert (place.rank, place.world_size, place.local_rank, place.master) == (3, 5, 1, "10.0.0.1:12355")
    assert (place.run_id, place.node, place.node_rank, place.attempt) == ("r1", "delta", 2, 4)
    assert (place.pg_timeout_s, place.events, place.name) == (120, True, "rank 3 of 5 (delta)")
    assert RankInfo.from_environ({}) == RankInfo(master=":")


@pytest.mark.parametrize(
    ("environ", "word"),
    [
        ({"RANK": "x"}, "RANK"),
        ({"RANK": "5", "WORLD_SIZE": "5"}, "WORLD_SIZE"),
        ({"ORCH_BACKEND": "mpi"}, "gloo"),
    ],
)
def test_a_wrong_environment_is_named(environ: dict[str, str], word: str) -> None:
    with pytest.raises(OptionError, match=word):
        RankInfo.from_environ(environ)


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["gpt3"], "gpt3"),
        (["gpt2", "--epoch", "1"], "--epoch"),
        (["gpt2", "--preset", "huge"], "huge"),
        (["gpt2", "fly"], "fly"),
        (["gpt2", "--batch-size", "0", "--clip", "-1"], "--batch-size 0: expected at least 1\n--clip -1"),
        (["gpt2", "--width", "30", "--heads", "4"], "--width 30"),
        (["gpt2", "--layers", "0"], "--layers 0"),
        (["gpt2", "--dropout", "1"], "--dropout"),
        (["gpt2", "prepare"], "--text"),
        (["monitor", "--interval", "0"], "--interval"),
        ([], "COMMAND"),
    ],
)
def test_usage_errors_end_with_2_and_say_what(call, argv, word) -> None:
    result = call(*argv)
    assert result.code == 2
    assert word in result.err


def test_sequences_per_step() -> None:
    assert TrainOptions(batch_size=4).batches(5) == 20
    assert TrainOptions(batch_size=4, grad_accum=3).batches(5) == 60
    assert TrainOptions(batch_size=4, global_batch_size=13).batches(5) == 13
    assert TrainOptions(batch_size=4, grad_accum=3, global_batch_size=60).batches(5) == 60
    with pytest.raises(OptionError, match="leave one of them out"):
        TrainOptions(batch_size=4, grad_accum=3, global_batch_size=61).batches(5)
    with pytest.raises(OptionError, match="without a sample"):
        TrainOptions(global_batch_size=4).batches(5)


def test_fragments_of_none_are_refused_like_any_other_value() -> None:
    with pytest.raises(OptionError, match=r"^--sync-fragments 0: expected at least 1$"):
        TrainOptions(sync_fragments=0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"betas": (0.9, 1.0)}, "--betas 1: expected at least 0 and less than 1"),
        ({"sync_density": 0.0}, "--sync-density 0: expected more than 0 and at most 1"),
        ({"lr": math.nan}, "--lr nan: expected at least 0"),
        ({"outer_momentum": 1.0}, "--outer-momentum 1: expected at least 0 and less than 1"),
    ],
)
def test_a_value_beyond_its_declared_limits_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as refused:
        TrainOptions(**values)
    assert str(refused.value) == message


def test_the_table_of_options_in_the_documentation_is_that_of_help() -> None:
    parser = Parser()
    add_train_options(parser)
    lines = ["| option | meaning |", "|---|---|"]
    for group in parser._action_groups:
        if group._group_actions and group.title != "options":
            lines.append(f"| **{group.title}** | |")
        for action in group._group_actions:
            if "--help" not in action.option_strings:
                flags = ", ".join(f"`{flag}`" for flag in action.option_strings)
                choices = f"{', '.join(map(str, action.choices))}: " if action.choices else ""
                lines.append(f"| {flags} | {choices}{(action.help or '').replace('%%', '%')} |")
    table = "\n".join(lines)
    page = (Path(__file__).parents[2] / "docs" / "trainer.md").read_text("utf-8")
    assert table in page, f"the table in docs/trainer.md should be:\n{table}"


def test_a_folder_of_another_user_is_named_with_its_owner(tmp_path: Path) -> None:
    denied = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "missing/.options.yaml.7.tmp"))
    own = f"{os.getuid()}:{os.getgid()}"
    assert not_permitted(denied) == (
        f"{tmp_path}/missing/.options.yaml.7.tmp: Permission denied: this process is user {own}, and {tmp_path} belongs"
        f" to {own}; with docker compose: export ORCH_UID=$(id -u) ORCH_GID=$(id -g)"
    )
    assert not_permitted(OSError(errno.ENOSPC, "No space left on device", "x")) == ""
    assert not_permitted(PermissionError(errno.EPERM, "Operation not permitted")) == ""
