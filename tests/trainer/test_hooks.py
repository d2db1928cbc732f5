"""`orch_hooks` in a user's own script: gradients, checkpoints, steps, callbacks, and modules with the names of ours."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import orch_hooks
from contract import environment
from contract.checkpoint import FOLDER, decode_manifest
from contract.cost_model.measurement import Measurement, NodeSpeed, SyncCost
from contract.event_lines import decode_event
from contract.events import CheckpointWritten, StepDone, TrainingResumed
from orch_hooks import functions
from orch_hooks.callbacks import LightningMethods, TransformersMethods
from tests.trainer.conftest import ROOT
from tests.trainer.hooked_ranks import METHODS
from tests.trainer.shared_ranks import BATCH, SAMPLES, Slow, data, train
from trainer.agent.rank_signs import RankSignsReader
from trainer.errors import ConfigurationError
from trainer.hooks import checkpoints, gradients, steps
from trainer.hooks.shares import SharedBatches

EXACT = ("fp32", "fp16", "int8", "int4+8", "int4", "powersgd")


def environ(folder: Path, **others: str) -> dict[str, str]:
    return {environment.RUN_DIR: str(folder / "run"), environment.EVENTS: "1", environment.RUN_ID: "first", **others}


# ── Two ranks ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def hooked(forked: Callable[..., Any], tmp_path: Path) -> dict[str, Any]:
    result = forked(2, str(tmp_path), module="tests.trainer.hooked_ranks").result()
    assert result.code == 0, result.out + result.err
    found: dict[str, Any] = json.loads(next(line for line in result.out.splitlines() if line.startswith("{")))
    return found | {"out": result.out}


def test_a_script_of_two_ranks(hooked: Mapping[str, Any]) -> None:
    """One pair of ranks for all of it: starting them takes most of the time."""
    for name in METHODS:
        each = hooked[name]
        assert each["spread"] == 0, f"{name}: the ranks have other weights"
        assert each["same bits"] == (name == "fp32"), f"{name}: only DDP's own exchange has DDP's own bits"
        assert each["first steps"], f"{name}: the first step is exact"
    for name in EXACT:
        assert hooked[name]["loss"] == pytest.approx(hooked[name]["plain loss"], rel=0.01), name
    assert hooked["auto spread"] == 0
    assert "sync auto: " in hooked["out"]
    for name in ("local", "diloco"):
        assert "cannot be a hook of DDP: expected auto or one of fp32, fp16, int8" in hooked["refused"][name]
    assert hooked["refused"]["bf16"] == f"sync 'bf16': expected auto or one of {', '.join(METHODS)}"
    assert "expects a DistributedDataParallel, not a Linear" in hooked["not ddp"]
    assert hooked["resumed before"] is None
    # Found by rank 0, received by the other node: both ranks have read a file of this length, both times.
    assert hooked["resumed"] == ["checkpoints/step-00000006/mine.pt", [2 * 25600, 2 * 25600]]


def test_ranks_of_one_node_are_summed_first(forked: Callable[..., Any], tmp_path: Path) -> None:
    """Two nodes with two ranks each: every rank exchanges half of a bucket with its counterpart, of PowerSGD's one of
    each node all of it."""
    result = forked(4, str(tmp_path), module="tests.trainer.hooked_ranks", nodes=(2, 2)).result()
    assert result.code == 0, result.out + result.err
    found = json.loads(next(line for line in result.out.splitlines() if line.startswith("{")))
    for name in METHODS[1:]:
        each = found[name]
        assert each["spread"] == 0, f"{name}: the ranks have other weights"
        assert each["first steps"], f"{name}: the first step is exact"
        halves = {part / whole for part, whole in each["shards"]}  # of rank 0; rounded to what a codec packs
        assert halves == {1.0} if name == "powersgd" else 0.5 <= min(halves) <= max(halves) < 0.51, (name, halves)
        assert each["loss"] == pytest.approx(found["plain loss"], rel=0.01 if name in EXACT else 0.5), name


@pytest.mark.parametrize(("sync", "tolerance"), [("fp32", 1e-5), ("int8", 2e-2)])
def test_batches_follow_the_speed_of_the_ranks(
    forked: Callable[..., Any], tmp_path: Path, sync: str, tolerance: float
) -> None:
    """The weights are those of a process alone with the whole step: the same samples, each of the same weight."""
    words = (str(tmp_path), sync, "2", "0.005", "0.02")
    result = forked(2, *words, module="tests.trainer.shared_ranks").result()
    assert result.code == 0, result.out + result.err
    found = json.loads(next(line for line in result.out.splitlines() if line.startswith("{")))
    fast, slow = found["sizes"]
    assert fast[0] == slow[0] == BATCH
    assert fast[-1] > BATCH > slow[-1] >= 1
    assert {sum(step) for step in zip(fast, slow, strict=True)} == {2 * BATCH}
    *_, event = result.events("rebalanced")
    assert list(event["shares"].values()) == [fast[-1], slow[-1]]
    alone = SharedBatches(SAMPLES, 2 * BATCH, (0, 1), seed=3)
    _, weights = train(Slow(0.0), DataLoader(data(), batch_sampler=alone))
    assert found["weights"] == pytest.approx(weights, abs=tolerance)


def test_batches_of_an_epoch() -> None:
    ranks = [SharedBatches(10, 2, (rank, 2), seed=None) for rank in range(2)]
    assert [list(one) for one in ranks] == [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [0, 1]]]
    for one in ranks:
        one.change((3, 1), since=1)
    assert [list(one) for one in ranks] == [[[0, 1, 2], [4, 5, 6], [8, 9, 0]], [[3], [7], [1]]]
    first, second = map(iter, ranks)
    assert (next(first), next(second)) == ([0, 1, 2], [3])
    for one in ranks:
        one.change((1, 3), since=2)  # in the middle of an epoch, one batch ahead
    assert (list(first), list(second)) == ([[4, 5, 6], [8]], [[7], [9, 0, 1]])
    assert [ranks[0].use() for _ in range(3)] == [3, 3, 1]
    shuffled = SharedBatches(10, 2, (0, 1), seed=1)
    orders = []
    for epoch in (0, 1, 0):
        shuffled.set_epoch(epoch)
        orders.append(list(shuffled))
    assert orders[0] == orders[2] != orders[1]
    assert sorted(at for batch in orders[0] for at in batch) == list(range(10))
    with pytest.raises(ValueError, match="both must be at least 1"):
        SharedBatches(0, 2, (0, 1), seed=1)


def test_auto_is_the_most_exact_method_that_is_hardly_slower() -> None:
    def cost(name: str, size: float, codec: float, *, proven: bool = True) -> SyncCost:
        return SyncCost(
            sync=name, bytes_per_parameter=size, codec_s_per_parameter=codec, collectives=2, every=1, overlap=0.5,
            pattern="ring", proven=proven,
        )  # fmt: skip

    def measured(link: float) -> Measurement:
        nodes = tuple(
            NodeSpeed(node=name, rank=rank, sample_s=0, step_s=0, upload=link, download=link)
            for rank, name in enumerate(("alpha", "beta"))
        )
        costs = (cost("fp32", 4, 0), cost("int8", 1, 1e-8), cost("int2", 0.25, 1e-9, proven=False))
        return Measurement(
            nodes=nodes, latency_s=0, parameters=10**6, samples_per_step=2, units_per_sample=1, unit="s", costs=costs
        )

    slow = gradients.exchange_s(measured(1e6))
    assert slow == {"fp32": pytest.approx(4), "int8": pytest.approx(1.01)}
    assert gradients.most_exact(slow) == "int8"
    assert gradients.most_exact(gradients.exchange_s(measured(1e9))) == "fp32"
    assert gradients.most_exact({"fp32": 1.04, "fp16": 1.0}) == "fp32"


def test_a_rank_alone_has_nothing_to_exchange(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    gradients.ddp(model, environ(tmp_path), "int8", {})
    with pytest.raises(ValueError, match="expected auto or one of"):
        gradients.ddp(model, environ(tmp_path, ORCH_SYNC="fp64"), "auto", {})


def test_the_example_of_the_guide_runs_and_resumes(forked: Callable[..., Any], tmp_path: Path) -> None:
    example = re.findall(r"```python\n(.*?)```", (ROOT / "docs/own-scripts.md").read_text("utf-8"), re.DOTALL)[2]
    for epochs, first, last in ((1, 1, 32), (2, 33, 64)):
        script = tmp_path / "train.py"
        script.write_text(example.replace("range(epoch, 20)", f"range(epoch, {epochs})"))
        result = forked(2, str(script), str(tmp_path), "fp16", module="tests.trainer.own_script").result()
        assert result.code == 0, result.out + result.err
        assert result.events("step")[0]["step"] == first
        assert [event["step"] for event in result.events("checkpoint")] == [last]
        assert [event["step"] for event in result.events("resumed")] == [last - 32] * (first > 1)


def test_the_script_of_the_tutorial_runs_and_resumes(forked: Callable[..., Any], tmp_path: Path) -> None:
    text = (ROOT / "docs/tutorials/own-script.md").read_text("utf-8")
    whole, rest = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    lasting = whole[: whole.index("for step in")] + rest.replace("% 1000", "% 10")
    script = tmp_path / "fit.py"
    for last, first in ((20, 1), (40, 21)):
        script.write_text(lasting.replace("20001", str(last + 1)))
        result = forked(2, str(script), str(tmp_path), "fp32", module="tests.trainer.own_script").result()
        assert result.code == 0, result.out + result.err
        assert result.events("step")[0]["step"] == first
        assert [event["step"] for event in result.events("checkpoint")] == [last - 10, last]
        assert [event["step"] for event in result.events("resumed")] == [20] * (first > 1)


# ── Checkpoints ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_becomes_a_checkpoint_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "epoch=1-step=7.ckpt"
    written.write_bytes(b"weights")
    checkpoints.register(written, environ(tmp_path), 7, keep=3)
    folder = tmp_path / "run/checkpoints/step-00000007"
    manifest = decode_manifest((folder / "manifest.json").read_bytes(), step=7)
    assert (manifest.run_id, manifest.entry) == ("first", "epoch-1-step-7.ckpt")
    event = decode_event(capsys.readouterr().out.splitlines()[-1])
    assert isinstance(event, CheckpointWritten)
    assert (event.step, event.path, event.verified) == (7, str(folder), True)
    written.write_bytes(b"overwritten by the script")
    assert checkpoints.newest(environ(tmp_path)) == folder / "epoch-1-step-7.ckpt"
    assert (folder / "epoch-1-step-7.ckpt").read_bytes() == b"weights"
    resumed = decode_event(capsys.readouterr().out.splitlines()[0])
    assert isinstance(resumed, TrainingResumed)
    assert resumed.step == 7


def test_a_folder_becomes_a_checkpoint_and_the_oldest_go(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    for name in ("model.safetensors", "optimizer.pt"):
        (tmp_path / "saved" / name).write_text(name)
    for _ in range(4):
        checkpoints.register(tmp_path / "saved", environ(tmp_path), None, keep=2)
    root = tmp_path / "run/checkpoints"
    assert sorted(path.name for path in root.iterdir()) == ["step-00000003", "step-00000004"]
    found = checkpoints.newest(environ(tmp_path))
    assert found == root / "step-00000004" / FOLDER
    assert sorted(path.name for path in found.iterdir()) == ["manifest.json", "model.safetensors", "optimizer.pt"]


def test_only_rank_0_registers(tmp_path: Path) -> None:
    (tmp_path / "mine.pt").write_text("x")
    checkpoints.register(tmp_path / "mine.pt", environ(tmp_path, RANK="1", WORLD_SIZE="2"), 1, keep=3)
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_a_checkpoint_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    (saved / "inner").mkdir(parents=True)
    with pytest.raises(ValueError, match="a checkpoint has no subfolders"):
        checkpoints.register(saved, environ(tmp_path), 1, keep=3)
    (saved / "inner").rmdir()
    with pytest.raises(ValueError, match="has 0 files"):
        checkpoints.register(saved, environ(tmp_path), 1, keep=3)
    (saved / "manifest.json").write_text("{}")
    with pytest.raises(ValueError, match=r"is not manifest\.json"):
        checkpoints.register(saved, environ(tmp_path), 1, keep=3)
    assert not (tmp_path / "run").exists()


def test_a_damaged_checkpoint_is_not_resumed_from(tmp_path: Path) -> None:
    for step in (1, 2):
        (tmp_path / "mine.pt").write_text(f"step {step}")
        checkpoints.register(tmp_path / "mine.pt", environ(tmp_path), step, keep=3)
    root = tmp_path / "run/checkpoints"
    (root / "step-00000002/mine.pt").write_text("step 3")
    assert checkpoints.newest(environ(tmp_path)) == root / "step-00000001/mine.pt"
    (root / "step-00000001/mine.pt").unlink()
    with pytest.raises(ConfigurationError, match="no sound checkpoint is left"):
        checkpoints.newest(environ(tmp_path))


def test_a_manifest_lists_what_is_to_be_loaded() -> None:
    files = {"mine.pt": {"bytes": 1, "sha256": "0" * 64}}
    assert decode_manifest(json.dumps({"step": 1, "files": files, "entry": "mine.pt"})).entry == "mine.pt"
    for entry in ("state.pt", "../mine.pt", ".."):
        with pytest.raises(ValueError, match="does not list"):
            decode_manifest(json.dumps({"step": 1, "files": files, "entry": entry}))


# ── Steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_steps_are_reported_at_most_once_a_second(tmp_path: Path) -> None:
    began, now, out = time.time(), [0.0], io.StringIO()
    reporter = steps.StepReporter(environ(tmp_path), out, lambda: now[0])
    for number in range(1, 8):
        reporter.step(number, {"loss": torch.tensor(float(number), requires_grad=True), "rank": 8}, samples=32)
        now[0] += 0.4
    reporter.close()
    events = [event for line in out.getvalue().splitlines() if isinstance(event := decode_event(line), StepDone)]
    assert [(event.step, event.loss) for event in events] == [(1, 1.0), (4, 4.0), (7, 7.0)]
    assert [event.per_s for event in events] == [None, pytest.approx(80), pytest.approx(80)]
    assert [event.others for event in events] == [{"rank_": 8.0}] * 3, "a figure replaces no field of the event"
    assert all(event.t and event.ended_at and began <= event.ended_at <= event.t for event in events)
    assert "step 4  loss 4  rank_ 8  80 samples/s" in out.getvalue()
    saved = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in saved] == [1, 4, 7]


def test_the_remaining_time_of_a_script_that_names_its_last_step(tmp_path: Path) -> None:
    now, out = [0.0], io.StringIO()
    reporter = steps.StepReporter(environ(tmp_path), out, lambda: now[0])
    for number, seconds in enumerate((30.0, 2.0, 2.0), start=1):
        now[0] += seconds
        reporter.step(number, {}, total=48)
    reporter.close()
    events = [event for line in out.getvalue().splitlines() if isinstance(event := decode_event(line), StepDone)]
    assert [(event.final_step, event.remaining_s) for event in events] == [(48, None), (48, 92.0), (48, 90.0)]
    assert out.getvalue().splitlines()[-1] == "step 3/48  0.5 steps/s  1.5 min left"


def test_every_rank_writes_its_status_and_only_rank_0_figures(tmp_path: Path) -> None:
    program = (
        "import os, time, orch_hooks as hooks\nfrom pathlib import Path\nhooks.step(12, loss=1.0)\n"
        "status = Path(os.environ['ORCH_BEATS']) / f'{os.getpid()}.status'\n"
        "while not status.exists() or '\"step\": 12' not in status.read_text(): time.sleep(0.05)"
    )
    (tmp_path / "beats").mkdir()
    own = environ(tmp_path, RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", ORCH_BEATS=str(tmp_path / "beats"))
    ran = subprocess.run(
        (sys.executable, "-c", program), env={**os.environ, **own, "PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
    found = RankSignsReader(tmp_path / "beats", "alpha", 0, 5.0).final(0)
    assert [(one.rank, one.step, one.part) for one in found] == [(1, 12, "step")]


# ── Everywhere ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_outside_of_a_run_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(environment.RUN_DIR, raising=False)
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Linear(1, 1)
    assert orch_hooks.ddp(model, "int8") is model
    assert orch_hooks.step(3, loss=1.0) == 3
    assert orch_hooks.checkpoint("mine.pt") == "mine.pt"
    assert orch_hooks.resume() is None
    assert not orch_hooks.active()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(AttributeError, match="has no attribute"):
        _ = orch_hooks.something


def test_a_project_may_have_modules_with_the_names_of_ours(tmp_path: Path) -> None:
    """Its main file is called trainer.py, and it has a package `contract`, imported before the hooks and after."""
    (tmp_path / "contract").mkdir()
    (tmp_path / "contract/__init__.py").write_text("MINE = 1\n")
    (tmp_path / "trainer.py").write_text(
        "import contract\nimport orch_hooks as hooks\n"
        "hooks.step(1, loss=0.5)\nopen('mine.pt', 'w').write('x')\nhooks.checkpoint('mine.pt')\n"
        "import trainer, sys\n"
        "if __name__ == '__main__':\n"
        "    assert contract.MINE == 1 and sys.modules['contract'] is contract\n"
        "    assert trainer.__file__ == __file__ and not hasattr(trainer, 'config')\n"
        "    print(hooks.resume())\n"
    )
    ran = subprocess.run(
        (sys.executable, "trainer.py"), env={**os.environ, **environ(tmp_path), "PYTHONPATH": str(ROOT)}, cwd=tmp_path,
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == str(tmp_path / "run/checkpoints/step-00000001/mine.pt")


# ── Callbacks ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The hooks that a callback calls, as ranks of a run see them."""
    called: list[tuple[Any, ...]] = []
    monkeypatch.setattr(functions, "ddp", lambda model, sync: called.append(("ddp", model, sync)))
    monkeypatch.setattr(functions, "step", lambda number, **figures: called.append(("step", number, figures)))
    monkeypatch.setattr(functions, "checkpoint", lambda path, step: called.append(("checkpoint", str(path), step)))
    return called


def test_the_callback_for_transformers(calls: list[tuple[Any, ...]]) -> None:
    args = SimpleNamespace(world_size=2, train_batch_size=4, gradient_accumulation_steps=3, output_dir="out")
    state = SimpleNamespace(global_step=5, max_steps=40, is_world_process_zero=True)
    callback = TransformersMethods(SimpleNamespace(args=args, model_wrapped="wrapped"), sync="int8")
    callback.on_train_begin(args, state, None, model="inner")
    callback.on_step_end(args, state, None)
    callback.on_log(args, state, None, logs={"loss": 2.5, "learning_rate": 0.1, "total_flos": 3, "epoch": 1})
    callback.on_step_end(args, state, None)
    callback.on_save(args, state, None)
    callback.on_save(args, SimpleNamespace(global_step=5, is_world_process_zero=False), None)
    TransformersMethods().on_train_begin(args, state, None)
    assert calls == [
        ("ddp", "wrapped", "int8"),
        ("step", 5, {"samples": 24, "total": 40}),
        ("step", 5, {"samples": 24, "total": 40, "loss": 2.5, "lr": 0.1}),
        ("checkpoint", "out/checkpoint-5", 5),
    ]


def test_the_callback_for_lightning(calls: list[tuple[Any, ...]]) -> None:
    files = SimpleNamespace(last_model_path="", best_model_path="resumed.ckpt")
    trainer = SimpleNamespace(
        world_size=2, strategy=SimpleNamespace(model="wrapped"), global_step=8, callback_metrics={"loss": 2.0},
        checkpoint_callback=files, is_global_zero=True, estimated_stepping_batches=30,
    )  # fmt: skip
    callback = LightningMethods()
    callback.on_train_start(trainer, None)
    for step in (8, 9, 9):  # the second batch ends a step, the third one accumulates gradients
        callback.on_train_batch_start(trainer, None, None, 0)
        trainer.global_step = step
        callback.on_train_batch_end(trainer, None, {}, None, 0)
    files.best_model_path = "epoch=1.ckpt"
    callback.on_train_batch_start(trainer, None, None, 0)
    trainer.is_global_zero = False
    files.last_model_path = "last.ckpt"
    callback.on_fit_end(trainer, None)
    trainer.is_global_zero = True
    callback.on_fit_end(trainer, None)
    assert calls == [
        ("ddp", "wrapped", "auto"),
        ("step", 9, {"total": 30, "loss": 2.0}),
        ("checkpoint", "epoch=1.ckpt", 9),
        ("checkpoint", "last.ckpt", 9),
    ]
