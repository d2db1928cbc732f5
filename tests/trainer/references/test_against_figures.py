"""Figures of an evaluation by three ranks against those of all scores together, computed by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tests.trainer.observed import state
from tests.trainer.references.conftest import Agrees
from trainer.cli import main
from trainer.config import TrainOptions
from trainer.data.batch import BatchRequest
from trainer.workloads.traces import TraceOptions
from trainer.workloads.traces_lstm import LstmTraces
from trainer.workloads.traces_metrics import measures

Scores = NDArray[np.float64]


def by_hand(scores: Scores, anomalous: NDArray[np.bool_]) -> dict[str, float]:
    """AUROC as the share of pairs of an anomaly and a normal trace in which the anomaly has the higher score, ties
    count half (Mann and Whitney 1947); average precision as the mean precision over the thresholds at which recall
    rises."""
    of_anomalies, of_others = scores[anomalous, None], scores[None, ~anomalous]
    pairs = (of_anomalies > of_others) + 0.5 * (of_anomalies == of_others)
    precision_sum = 0.0
    for threshold in np.unique(scores):
        at_least = scores >= threshold
        precision_sum += anomalous[at_least].mean() * anomalous[scores == threshold].sum()
    message = scores > 0.5
    hits = float((message & anomalous).sum())
    return {
        "auroc": float(pairs.mean()),
        "average_precision": float(precision_sum / anomalous.sum()),
        "accuracy": float((message == anomalous).mean()),
        "precision": hits / max(1, message.sum()),
        "recall": hits / anomalous.sum(),
        "f1": 2 * hits / (message.sum() + anomalous.sum()),
    }


def farthest(found: dict[str, float], expected: dict[str, float]) -> float:
    return float(np.max([abs(found[name] - figure) for name, figure in expected.items()]))


def test_with_ties(agrees: Agrees) -> None:
    chance = np.random.default_rng(0)
    scores, anomalous = chance.integers(0, 12, 500) / 12, chance.random(500) < 0.2
    found = measures(np.stack([scores, anomalous], axis=1).astype(np.float64))
    deviation = farthest(found, by_hand(scores, anomalous))
    # Measured: 1.2e-8.
    agrees("AUROC and five others, 500 scores with ties", "pairs counted by hand", figures=(deviation, 2e-7))


def test_over_three_ranks(forked: Callable[..., Any], tmp_path: Path, agrees: Agrees) -> None:
    chance, traces = np.random.default_rng(0), tmp_path / "traces.jsonl"
    rows = []
    for _ in range(400):
        anomaly = chance.random() < 0.3
        events = [f"call{number}" for number in chance.integers(0, 6 + anomaly, chance.integers(3, 9))]
        rows.append({"events": events, "label": int(anomaly)})
    traces.write_text("\n".join(map(json.dumps, rows)))
    data, run = tmp_path / "Data", tmp_path / "run"
    assert main(["traces-lstm", "prepare", "--input", str(traces), "--data-dir", str(data)]) == 0
    ran = forked(
        3, "traces-lstm", "train", "--data-dir", str(data), "--run-dir", str(run), "--width", "8", "--batch-size", "4",
        "--max-steps", "10", "--eval-every", "10", "--lr", "0.03", "--no-amp", "--no-compile", "--sync", "fp32",
        "--shares", "equal", "--num-workers", "0",
    ).result()  # fmt: skip
    assert ran.code == 0, ran.err
    (found,) = ran.events("evaluation")

    workload = LstmTraces(TrainOptions(data_dir=data), TraceOptions(width=8))
    assert workload.validation_samples % 3
    workload.model.load_state_dict(state(run, 10)["model"])
    workload.model.eval()
    logits, labels = [], []
    for number in range(workload.validation_samples):  # one by one, without padding
        alone = np.array([number])
        batch = workload.batch(BatchRequest(split="validation", indices=alone, positions=alone))
        with torch.no_grad():
            logits.append(float(workload.logits(workload.model, batch)))
        labels.append(bool(batch[-1]))
    anomalous = np.array(labels)
    expected = by_hand(1 / (1 + np.exp(-np.array(logits))), anomalous)
    losses = [math.log1p(math.exp(-logit if label else logit)) for logit, label in zip(logits, labels, strict=True)]
    # Measured: 2.7e-8, 4.1e-8.
    agrees(
        f"evaluation of {len(labels)} traces by 3 ranks", "one by one, pairs counted by hand",
        loss=(abs(found["loss"] / float(np.mean(losses)) - 1), 3e-7), figures=(farthest(found, expected), 3e-7),
    )  # fmt: skip
    assert 0.5 < expected["auroc"] < 1
