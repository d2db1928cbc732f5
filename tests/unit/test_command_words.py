"""The words after `--`, looked at before any node is asked: on every command that takes them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from orchestrator.nodes.probes import probe
from tests import lan
from tests.json_output import json_data
from tests.unit.conftest import THREE, Orch, detached

COMMANDS = (("launch", "-y"), ("launch", "--dry-run"), ("launch", "--nodes", "auto", "-y"), ("bench",), ("plan",))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("gtp2", "no workload 'gtp2' (did you mean gpt2?)"),
        ("gpt2 --epoch 3", "unrecognized arguments: --epoch 3 (did you mean --epochs?)"),
        ("vision --mixup -3", "--mixup -3: expected at least 0"),
        ("zsh run.sh", "the image has no zsh"),
    ],
)
def test_what_cannot_run_is_refused_before_a_node_is_asked(
    orch: Orch, command: tuple[str, ...], words: str, message: str
) -> None:
    ran = orch(*command, "--", *words.split(), on=lan.Lan())  # which has no node that could be asked
    assert ran.code == 2
    assert message in ran.err
    assert "\n  → " in ran.err


def test_a_resumed_run_is_looked_at_as_well(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=0)
    run = detached(orch, here)
    ran = orch("resume", run, "-y", "--", "gpt2", "--epoch", "3", on=here)
    assert (ran.code, "did you mean --epochs?" in ran.err) == (2, True)


def test_a_launcher_is_left_out_with_a_note(orch: Orch) -> None:
    Path("train.py").touch()
    ran = orch(
        "launch", "--dry-run", "--json", "--", "torchrun", "--nproc-per-node", "2", "train.py", on=lan.lan(*THREE)
    )
    assert json_data(ran.out)["command"] == ["python", "train.py"]
    assert "`torchrun` is left out, --nproc-per-node 2 (nproc_per_node in inventory.yaml)" in ran.err


def test_without_dashes_what_follows_the_first_word_is_the_commands(orch: Orch) -> None:
    Path("train.py").touch()
    here = lan.lan(*THREE)
    ran = orch("launch", "--dry-run", "--json", "--nodes", "2", "python", "train.py", "--lr", "1", on=here)
    plan = json_data(ran.out)
    assert (plan["command"], plan["nnodes"]) == (["python", "train.py", "--lr", "1"], 2)


@pytest.mark.parametrize(
    ("typed", "corrected"),
    [
        ("launch python train.py --nodes 3", "orch launch -- python train.py --nodes 3"),
        ("plan --nodes 2 gpt2 --epochs 3", "orch plan --nodes 2 -- gpt2 --epochs 3"),
        ("resume 0102-1504 python train.py --lr 1", "orch resume 0102-1504 -- python train.py --lr 1"),
        ("resume 0102-1504 --nodes 2 gpt2 --epochs 3", "orch resume 0102-1504 --nodes 2 -- gpt2 --epochs 3"),
    ],
)
def test_what_could_be_either_ones_needs_the_dashes(orch: Orch, typed: str, corrected: str) -> None:
    ran = orch(*shlex.split(typed), on=lan.Lan())
    assert ran.code == 2
    assert f"  → {corrected}" in ran.err


def test_an_option_that_resume_does_not_know_is_still_named(orch: Orch) -> None:
    ran = orch("resume", "0102-1504", "--nods", "2", on=lan.Lan())
    assert (ran.code, "no option --nods of orch resume (did you mean --nodes?)" in ran.err) == (2, True)


def test_the_workloads_help_needs_neither_inventory_nor_node(orch: Orch) -> None:
    Path("inventory.yaml").unlink()
    ran = orch("launch", "--", "gpt2", "--help", on=lan.Lan())
    assert ran.code == 0
    assert ran.out.startswith("usage: orch launch -- gpt2 train")


def test_nothing_starts_where_there_is_nothing_to_train_on(orch: Orch) -> None:
    here = lan.lan(*THREE)
    for name, node in here.nodes.items():
        node.answers["sh", "-c", probe.SCRIPT, "*"] = (0, lan.probe_answer(name, data="no"), "")
    ran = orch("launch", "-y", "--nodes", "3", on=here)
    assert ran.code == 4
    assert "no prepared data here in ./Data, nor on alpha, beta, gamma" in ran.err
    assert "orch prepare -- gpt2 --text spanish" in ran.err
    assert not here.containers
    elsewhere = orch("launch", "-y", "-d", "--mount", "/data/es:/workspace/Data:ro", on=here)
    assert elsewhere.code == 0, elsewhere.err


def test_a_folder_of_texts_in_place_of_data_is_named(orch: Orch) -> None:
    Path("books").mkdir()
    Path("books/a.txt").write_text("…")
    ran = orch("launch", "-y", "--data", "books", on=lan.Lan())
    assert ran.code == 3
    assert "books holds no prepared data: there is no manifest.json\n  → orch prepare -- gpt2 --text books " in ran.err


def test_data_of_another_workload_is_named_before_a_node_is_asked(orch: Orch) -> None:
    Path("Data").mkdir()
    Path("Data/manifest.json").write_text('{"kind": "images", "format": 1}')
    ran = orch("launch", "-y", "--", "gpt2", "--epochs", "1", on=lan.Lan())
    assert ran.code == 3
    assert "error: Data holds images; gpt2 reads tokens\n  → orch prepare --data Data-gpt2 -- gpt2" in ran.err
