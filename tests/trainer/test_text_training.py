"""The text workload from a CSV file to predictions, through the command line and the engine."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.trainer.conftest import AS_ONE
from trainer.config import RankInfo, TrainOptions
from trainer.data.batch import BatchRequest
from trainer.data.manifests import PreparedText
from trainer.engine.optimization.optimizer import usual_groups
from trainer.workloads import text_report
from trainer.workloads.text import Text
from trainer.workloads.text_options import TextOptions

ROWS = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from trainer.cli import main

    folder = tmp_path_factory.mktemp("prepared") / "Data"
    words = ("--csv", "demo", "--rows", str(ROWS), "--model-name", "random:tiny", "--vocab-size", "500")
    assert main(["text", "prepare", *words, "--validation-share", "0.2", "--data-dir", str(folder)]) == 0
    return folder


@pytest.fixture
def fit(call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable:
    monkeypatch.setenv("ORCH_EVENTS", "1")
    return lambda run_dir, *options: call(*words(folder, run_dir), *options)


def words(folder: Path, run_dir: Path) -> list[str]:
    return [
        "text", "train", "--data-dir", str(folder), "--run-dir", str(run_dir), "--log-every", "1", "--dropout", "0",
        "--no-amp", "--max-length", "48", "--num-workers", "0", "--cache-dir", str(run_dir / "frozen"), "--no-compile",
    ]  # fmt: skip


def workload(folder: Path, tmp_path: Path, **choice: object) -> Text:
    prepared = PreparedText.open(folder)
    asked = {"heads": prepared.head_weights, "max_length": 48, "model_name": "random:tiny", "dropout": 0.0, **choice}
    options = TrainOptions(data_dir=folder, run_dir=tmp_path, batch_size=8)
    torch.manual_seed(0)
    return Text(prepared, options, TextOptions(**asked, cache_dir=tmp_path / "frozen"), RankInfo())


def portion(indices: np.ndarray, split: str = "train") -> BatchRequest:
    return BatchRequest(split=split, indices=indices, positions=indices)


def test_lengths_are_printed_by_prepare_and_on_their_own(call, folder: Path, tmp_path: Path) -> None:
    reported = call("text", "lengths", "--data-dir", str(folder), "--max-length", "64")
    assert reported.code == 0
    assert "tokens per text, of 120 texts: p50 " in reported.out
    assert "--max-length 64" in reported.out
    assert json.loads(call("text", "lengths", "--data-dir", str(folder), "--json").out)["texts"] == ROWS
    again = call("text", "prepare", "--csv", str(folder / "demo.csv"), "--model-name", "random:mini", "--heads",
                 "causa,modo", "--data-dir", str(tmp_path), "--vocab-size", "500")  # fmt: skip
    assert "causa (weight 0.6): 8 classes: " in again.out
    assert "advice: --max-length " in again.out


@pytest.mark.slow
def test_training_evaluates_each_head_each_epoch_and_stops_in_order(fit, tmp_path: Path) -> None:
    run = fit(tmp_path, "--epochs", "12", "--batch-size", "16", "--lr", "1e-3", "--early-stopping", "none")
    assert run.code == 0, run.err
    losses = [*run.losses().values()]
    assert sum(losses[-6:]) / 6 < 0.85 * losses[0]
    evaluations = run.events("evaluation")
    assert len(evaluations) == 12
    assert {f"{head}_{measure}" for head in ("modo", "causa", "prioridad") for measure in ("f1", "accuracy")} <= set(
        evaluations[-1]
    )
    assert "parameters are trained (100.0%)" in run.out


def test_frozen_layers_give_the_same_losses_from_the_disk(fit, tmp_path: Path) -> None:
    options = ("--freeze-layers", "1", "--epochs", "3", "--batch-size", "16", "--lr", "1e-3")
    saved, computed = (
        fit(tmp_path / name, *options, *more) for name, more in (("a", ()), ("b", ("--no-cache-frozen",)))
    )
    assert (saved.code, computed.code) == (0, 0), saved.err + computed.err
    assert len(saved.losses()) > 10
    assert saved.losses() == pytest.approx(computed.losses(), rel=1e-5)
    assert saved.events("evaluation")[-1]["loss"] == pytest.approx(computed.events("evaluation")[-1]["loss"], rel=1e-5)
    assert len(list((tmp_path / "a" / "frozen").glob("*.rows"))) == 2
    assert not (tmp_path / "b" / "frozen").exists()
    assert "the outputs of the frozen ones are cached" in saved.out


def test_padding_to_the_full_length_gives_the_same_loss(folder: Path, tmp_path: Path) -> None:
    indices = np.arange(8)
    bucketed, padded = (workload(folder, tmp_path / str(b), bucketing=b, packed=False) for b in (True, False))
    padded.model.load_state_dict(bucketed.model.state_dict())
    short, long = bucketed.batch(portion(indices)), padded.batch(portion(indices))
    assert short[2].shape[1] <= long[2].shape[1] == 48
    for one in (bucketed, padded):
        one.model.eval()
    torch.testing.assert_close(
        bucketed.loss_sums(bucketed.model, short), padded.loss_sums(padded.model, long), rtol=1e-5, atol=1e-5
    )


def test_a_batch_of_one_length_has_no_mask(folder: Path, tmp_path: Path) -> None:
    text = workload(folder, tmp_path)
    lengths = text._rows["train"].lengths
    same = np.flatnonzero(lengths == np.bincount(lengths).argmax())
    assert len(same) > 1
    assert text.batch(portion(same))[3].shape == (len(same), 0)
    assert text.batch(portion(np.array([lengths.argmin(), lengths.argmax()])))[3].any(dim=1).all()


def test_weighted_heads_are_torchs_weighted_mean_however_a_step_is_cut(folder: Path, tmp_path: Path) -> None:
    text = workload(folder, tmp_path, class_weights=("causa", "modo"), label_smoothing=0.1)
    text.model.eval()
    indices = np.arange(30)
    parts = [indices[:7], indices[7:10], indices[10:]]
    with torch.no_grad():
        sums = sum(text.loss_sums(text.model, text.batch(portion(part))) for part in parts)
        batch = text.batch(portion(indices))
        logits = text._by_head(text._logits(text.model, batch, "train"))
    means = sums / torch.tensor(text.target_counts("train", indices))
    expected = [
        F.cross_entropy(own, batch[0][:, at], weight=text._class_weights[at], label_smoothing=0.1)
        for at, own in enumerate(logits)
    ]
    torch.testing.assert_close(means, torch.stack(expected))
    assert text.target_counts("train", indices)[2] == 30.0
    assert text.target_counts("train", indices)[1] != 30.0
    assert dict(text.loss_weights) == {"modo": 0.1, "causa": 0.6, "prioridad": 0.3}


def test_balanced_classes_weigh_the_same_in_all(folder: Path, tmp_path: Path) -> None:
    text = workload(folder, tmp_path, class_weights=("causa",))
    weights, labels = text._class_weights[1], text._rows["train"].labels[:, 1]
    each = [float(weights[own]) * int((labels == own).sum()) for own in range(8)]
    assert each == pytest.approx([each[0]] * 8)
    assert text._class_weights[0] is None


@pytest.mark.parametrize(("dtype", "within"), [("fp32", 1e-6), ("fp16", 2e-3), ("bf16", 2e-2)])
def test_rows_that_are_partly_stored_are_completed(folder: Path, tmp_path: Path, dtype: str, within: float) -> None:
    text = workload(folder, tmp_path / "kept", freeze_layers=1, cache_dtype=dtype)
    plain = workload(folder, tmp_path / "plain", freeze_layers=1, cache_frozen=False)
    plain.model.load_state_dict(text.model.state_dict())
    first, all_of_them = portion(np.arange(3)), portion(np.array([5, 0, 4, 2, 1]))
    text.loss_sums(text.model, text.batch(first))
    mixed = text.batch(all_of_them)
    assert mixed[5][:, 0].tolist() == [False, True, False, True, True]
    expected = plain.loss_sums(plain.model, plain.batch(all_of_them))
    torch.testing.assert_close(text.loss_sums(text.model, mixed), expected, rtol=within, atol=within)
    whole = text.batch(all_of_them)
    assert whole[4].shape[1] == whole[2].shape[1]
    assert whole[5].shape[1] == 0
    torch.testing.assert_close(text.loss_sums(text.model, whole), expected, rtol=within, atol=within)


def test_other_frozen_weights_do_not_meet_stored_rows(folder: Path, tmp_path: Path) -> None:
    text = workload(folder, tmp_path, freeze_layers=1)
    text.loss_sums(text.model, text.batch(portion(np.arange(3))))
    assert text.batch(portion(np.arange(3)))[4].shape[1] > 0
    changed = {
        name: value + 1 if name.startswith("layers.0") else value for name, value in text.model.state_dict().items()
    }
    text.model.load_state_dict(changed)
    assert text.batch(portion(np.arange(3)))[4].shape[1] == 0


def test_only_what_is_trained_goes_to_the_optimizer(folder: Path, tmp_path: Path) -> None:
    text = workload(folder, tmp_path, freeze_layers=1)
    given = {id(p) for group in usual_groups(text.model, 0.1) for p in group["params"]}
    frozen = {id(p) for module in text.model.frozen_modules() for p in module.parameters()}
    assert given | frozen == {id(p) for p in text.model.parameters()}
    assert not given & frozen


def test_two_ranks_train_as_one(fit, forked, folder: Path, tmp_path: Path) -> None:
    # Shares of 4 and 5 texts, and so 2 and 3 forward passes.
    options = ("--global-batch-size", "9", "--micro-batch-size", "2", "--max-steps", "5", "--eval-every", "5",
               "--freeze-layers", "1", "--class-weights", "all", "--checkpoint-every", "0")  # fmt: skip
    two = forked(2, *words(folder, tmp_path / "two"), *options, *AS_ONE).result()
    assert two.code == 0, two.err
    one = fit(tmp_path / "one", *options)
    assert two.losses() == pytest.approx(one.losses(), rel=1e-5)
    assert two.events("evaluation")[0] | {"t": 0} == pytest.approx(
        one.events("evaluation")[0] | {"t": 0, "node": "alpha"}
    )


def test_predictions_are_written_beside_the_rows(fit, call, folder: Path, tmp_path: Path) -> None:
    assert fit(tmp_path / "run", "--epochs", "1", "--heads", "causa:1,prioridad:1").code == 0
    (tmp_path / "in.csv").write_text("id;descripcion\n7;La bomba no arranca\n8;" + "fuga de aceite " * 40 + "\n")
    out = tmp_path / "out.csv"
    reported = call("text", "predict", "--checkpoint", str(tmp_path / "run"), "--csv", str(tmp_path / "in.csv"),
                "--out", str(out), "--all-probabilities")  # fmt: skip
    assert reported.code == 0, reported.err
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == ["7", "8"]
    classes = [name for name in rows[0] if name.startswith("causa_p:")]
    assert len(classes) == 8
    for row in rows:
        likeliest = max(classes, key=lambda name: float(row[name]))
        assert likeliest == f"causa_p:{row['causa_predicted']}"
        assert sum(float(row[name]) for name in classes) == pytest.approx(1, abs=1e-3)
        assert row["prioridad_predicted"] in ("alta", "media", "baja")
    wrong = call("text", "predict", "--checkpoint", str(tmp_path / "run"), "--csv", str(tmp_path / "in.csv"),
                 "--text-column", "descripción")  # fmt: skip
    assert (wrong.code, "in.csv:1: no column 'descripción' (did you mean 'descripcion'?)" in wrong.err) == (3, True)


def test_predictions_are_those_of_the_evaluation(fit, folder: Path, tmp_path: Path) -> None:
    from trainer.workloads import text_predict

    assert fit(tmp_path / "run", "--epochs", "1", "--max-length", "40").code == 0
    predictor = text_predict.open_checkpoint(tmp_path / "run")
    with (folder / "demo.csv").open() as file:
        texts = [row["descripcion"] for row in csv.DictReader(file)][:5]
    alone = [text_predict.probabilities(predictor, [text], 1)[1][0] for text in texts]
    together = text_predict.probabilities(predictor, texts, 4)[1]
    np.testing.assert_allclose(together, np.stack(alone), atol=1e-5)


def test_what_does_not_fit_is_reported_at_once(fit, tmp_path: Path) -> None:
    run = fit(tmp_path, "--freeze-layers", "9", "--max-length", "600", "--class-weights", "cuasa", "--dropout", "1",
              "--model-name", "dccuchile/bert-base-spanish-wwm-cased")  # fmt: skip
    assert run.code == 2
    for part in ("--freeze-layers 9: expected 0 to 2", "--max-length 600: expected 3 to 512", "--dropout 1",
                 "--class-weights cuasa: the heads are modo, causa, prioridad", "prepare it again"):  # fmt: skip
        assert part in run.err


@pytest.mark.parametrize("heads", ["modo:x", "modo:0.1,causa", ":1", "modo:-1"])
def test_heads_that_make_no_sense_are_refused(fit, tmp_path: Path, heads: str) -> None:
    run = fit(tmp_path, "--heads", heads)
    assert (run.code, "--heads" in run.err) == (2, True)


def test_unknown_classes_in_validation_are_named_with_their_line(call, folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "v.csv"
    own.write_text("descripcion,modo,causa,prioridad\nno arranca,falla de arranque,brujería,alta\n")
    reported = call("text", "prepare", "--csv", str(folder / "demo.csv"), "--validation-csv", str(own), "--data-dir",
                str(tmp_path), "--model-name", "random:tiny", "--vocab-size", "500")  # fmt: skip
    assert reported.code == 3
    assert f"{own}:2: causa 'brujería' is no class of the training texts" in reported.err


# ── Measures ──────────────────────────────────────────────────────────────────────────────────────

CLASSES = {"causa": ["a", "b", "c"]}
TRUE = np.array([[0], [0], [0], [1], [1], [2]])
FOUND = np.array([[0.0], [0.0], [1.0], [1.0], [1.0], [0.0]])


def test_f1_and_accuracy_of_a_head() -> None:
    figures = text_report.metrics(CLASSES, FOUND, TRUE)
    assert figures == pytest.approx({"causa_f1": (2 / 3 + 0.8 + 0) / 3, "causa_accuracy": 4 / 6})


def test_table_and_picture_of_the_heads(tmp_path: Path) -> None:
    lines = [{"kind": "validation", "step": step, "causa_f1": step / 10} for step in (4, 8)]
    lines.insert(1, {"kind": "train", "step": 5, "loss": 1.0})
    (tmp_path / "metrics.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    known = text_report.history(tmp_path, ["causa"])
    assert known == {4: {"causa": 0.4}, 8: {"causa": 0.8}}
    files = text_report.save_report(CLASSES, FOUND, TRUE, known, tmp_path / "best")
    assert [file.name for file in files] == ["classes.csv", "classes.json", "heads.png"]
    with files[0].open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["class"], row["texts"], row["f1"]) for row in rows] == [
        ("a", "3", "0.6667"), ("b", "2", "0.8"), ("c", "1", "0.0"),
    ]  # fmt: skip
    assert files[2].read_bytes().startswith(b"\x89PNG")
