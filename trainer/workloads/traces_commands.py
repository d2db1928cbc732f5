"""Commands of the two trace workloads."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import RankInfo
from trainer.errors import ConfigurationError, OptionError
from trainer.option_layers import add_train_options
from trainer.options import add_options
from trainer.workloads import Actions
from trainer.workloads.traces import VOCABULARY, TracesWorkload, is_stream

if TYPE_CHECKING:
    from torch import nn

    from trainer.data.batch import Batch
    from trainer.data.trace_shards import TraceSource

BATCH = 256
Kind = type[TracesWorkload]


def add(actions: Actions, kind: Kind) -> None:
    train = actions.add_parser("train", help="the default action", allow_abbrev=False)
    add_train_options(train)
    add_options(train, kind.options)
    train.set_defaults(run=kind.train, check=kind.check, packages=kind.packages)

    prepare = actions.add_parser("prepare", help="convert traces to shards", allow_abbrev=False)
    sources = prepare.add_mutually_exclusive_group(required=True)
    sources.add_argument(
        "--input", type=Path, nargs="+", metavar="PATH", help="JSON lines or CSV files, or folders of them"
    )
    sources.add_argument("--preprocessed-dir", type=Path, metavar="DIR", help=".pt files of tensors")
    sources.add_argument("--record-own", type=int, metavar="N", help="N real traces of Python's own library at work")
    prepare.add_argument("--seed", type=int, default=1337, help="seed of --record-own")
    prepare.add_argument("--data-dir", type=Path, default=Path("Data"), metavar="DIR")
    prepare.set_defaults(run=partial(_prepare, kind))

    predict = actions.add_parser("predict", help="score how anomalous traces are", allow_abbrev=False)
    _add_inputs(predict)
    predict.add_argument("--output", type=Path, metavar="FILE", help=".jsonl or .csv (default: JSON lines on stdout)")
    predict.set_defaults(run=partial(_predict, kind))

    evaluate = actions.add_parser(
        "evaluate", help="measure how well a checkpoint detects anomalies", allow_abbrev=False
    )
    _add_inputs(evaluate)
    evaluate.add_argument("--pictures", type=Path, metavar="DIR", help="write roc.png and confusion.png there")
    evaluate.set_defaults(run=partial(_evaluate, kind))


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="DIR|FILE")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--input", type=Path, nargs="+", metavar="PATH", help="JSON lines, CSV or .pt files")
    where.add_argument("--data-dir", type=Path, metavar="DIR", help="the validation split of prepared traces")


# ── prepare ───────────────────────────────────────────────────────────────────────────────────────


def _prepare(kind: Kind, given: argparse.Namespace, _place: RankInfo) -> int:
    from trainer.data.trace_shards import prepare

    if given.record_own is not None and given.record_own < 1:
        raise OptionError(f"--record-own {given.record_own}: expected at least 1")
    data, new = prepare(_source(kind, given), given.data_dir)
    train, validation = data.split("train"), data.split("validation")
    calls = train["calls"] + validation["calls"]
    print(
        f"{given.data_dir}: {'prepared' if new else 'already there, kept as it is'}:"
        f" {train['samples']} traces to train ({train['positives']} anomalies),"
        f" {validation['samples']} to validate ({validation['positives']}), {calls} calls,"
        f" {data.manifest['event_kinds'] - 1} kinds of events,"
        f" features: {', '.join(data.manifest['features']) or 'none'}"
    )
    return 0


def _source(kind: Kind, given: argparse.Namespace) -> TraceSource:
    from trainer.data import trace_files

    if given.input:
        paths = trace_files.files_in(given.input)
        traces = (trace for path in paths for trace in trace_files.read(path))
        return trace_files.source_of(trace_files.describe(paths), traces)
    if given.preprocessed_dir:
        from trainer.data import trace_tensors

        return trace_tensors.source_of(given.preprocessed_dir, kind.kind)
    from trainer.data.trace_recorder import record

    described = {"record_own": given.record_own, "seed": given.seed}
    return trace_files.source_of(described, record(given.record_own, given.seed))


# ── predict and evaluate ──────────────────────────────────────────────────────────────────────────


def _predict(kind: Kind, given: argparse.Namespace, _place: RankInfo) -> int:
    from trainer.workloads.traces_metrics import THRESHOLD

    counted = 0
    with _writer(given.output) as write:
        for names, scores, _ in _scored(kind, given):
            for name, score in zip(names, scores, strict=True):
                write({"trace": name, "score": round(score, 6), "anomalous": score > THRESHOLD})
            counted += len(names)
    if given.output:
        print(f"{given.output}: {counted} scores")
    return 0


@contextmanager
def _writer(path: Path | None) -> Iterator[Callable[[dict[str, Any]], None]]:
    if path is None:
        yield lambda row: print(json.dumps(row))
        return
    if path.suffix not in (".jsonl", ".csv"):
        raise OptionError(f"--output {path}: expected a name ending in .jsonl or .csv")
    with path.open("w", encoding="utf-8", newline="") as file:
        if path.suffix == ".jsonl":
            yield lambda row: print(json.dumps(row), file=file)
        else:
            table = csv.DictWriter(file, ("trace", "score", "anomalous"))
            table.writeheader()
            yield table.writerow


def _evaluate(kind: Kind, given: argparse.Namespace, _place: RankInfo) -> int:
    import numpy as np

    from trainer.workloads.traces_metrics import draw, measures

    rows = [row for _, scores, labels in _scored(kind, given) for row in zip(scores, labels, strict=True)]
    outputs = np.array(rows, np.float64).reshape(-1, 2)
    if not len(outputs) or np.isnan(outputs[:, 1]).any():
        raise ConfigurationError("to evaluate, every trace needs a label, 0 or 1")
    print(json.dumps({"traces": len(outputs), **measures(outputs)}))
    if given.pictures:
        for path in draw(outputs, given.pictures):
            print(path, file=sys.stderr)
    return 0


def _scored(kind: Kind, given: argparse.Namespace) -> Iterator[tuple[list[str], list[float], list[float]]]:
    import torch

    model, longest, manifest = _load(kind, given.checkpoint)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device).eval()
    with torch.no_grad():
        for names, batch in _batches(kind, given, longest, manifest):
            logits = kind.logits(model, tuple(part.to(device) for part in batch))
            yield names, logits.float().sigmoid().tolist(), batch[-1].tolist()


def _load(kind: Kind, path: Path) -> tuple[nn.Module, int, dict[str, Any] | None]:
    """Return the model, the number of calls of a trace that it reads, and the manifest of its data."""
    from trainer import checkpoint_folder
    from trainer.engine.checkpoints.state_file import must_fit_in, read_state
    from trainer.models.traces import Calls, TraceModelShape

    found = checkpoint_folder.locate(path, lambda line: print(line, file=sys.stderr))
    identity = dict(found.manifest.identity)
    if identity["workload"] != kind.name:
        raise ConfigurationError(f"{found.path}: a checkpoint of {identity['workload']}, not of {kind.name}")
    del identity["workload"]
    longest = identity.pop("max_length")
    shape = TraceModelShape(**identity)
    model = kind.parts().model(shape, Calls(shape))
    state = read_state(found.state_file)
    with must_fit_in(found.state_file):
        model.load_state_dict(state["model"])
    vocabulary = found.path / VOCABULARY
    return model, longest, json.loads(vocabulary.read_text("utf-8")) if vocabulary.exists() else None


def _batches(
    kind: Kind, given: argparse.Namespace, longest: int, manifest: dict[str, Any] | None
) -> Iterator[tuple[list[str], Batch]]:
    if given.data_dir and not is_stream("auto", given.data_dir):
        yield from _prepared(kind, given.data_dir, longest)
        return
    if given.data_dir:
        from trainer.data.trace_tensors import open_folder

        files = [Path(path) for path, _ in open_folder(given.data_dir, kind.kind).validation]
    else:
        files = [path for named in given.input for path in (sorted(named.rglob("*.pt")) or [named])]
    for path in files:
        if path.suffix == ".pt":
            yield from _of_tensors(kind, path, longest)
        else:
            yield from _of_names(kind, path, longest, manifest)


def _prepared(kind: Kind, folder: Path, longest: int) -> Iterator[tuple[list[str], Batch]]:
    import numpy as np

    from trainer.data.trace_shards import MappedTraces, PreparedTraces

    mapped = MappedTraces(PreparedTraces.open(folder), "validation", longest)
    for at in range(0, len(mapped), BATCH):
        indices = np.arange(at, min(at + BATCH, len(mapped)))
        yield [str(index) for index in indices], kind.parts().to_batch(mapped.take(indices))


def _of_tensors(kind: Kind, path: Path, longest: int) -> Iterator[tuple[list[str], Batch]]:
    from trainer.data.trace_stream import StreamSettings
    from trainer.data.trace_tensors import TensorFile

    count = len(TensorFile(path))
    dataset = kind.parts().dataset([(str(path), count)], StreamSettings(buffer=0, longest=longest))
    for at in range(0, count, BATCH):
        numbers = range(at, min(at + BATCH, count))
        yield [f"{path.name}:{number}" for number in numbers], dataset.collate([dataset.sample(n) for n in numbers])


def _of_names(
    kind: Kind, path: Path, longest: int, manifest: dict[str, Any] | None
) -> Iterator[tuple[list[str], Batch]]:
    from trainer.data.trace_files import Vocabulary, chunked, files_in, read

    if not manifest or not manifest["events"]:
        raise ConfigurationError(
            f"{path}: the checkpoint was trained on numbers without names: give .pt files with the same numbers"
        )
    events = {name: number for number, name in enumerate(manifest["events"], start=1)}  # as `prepare` assigned them
    vocabulary = Vocabulary(events=events, features=list(manifest["features"]))
    for file in files_in([path]):
        for chunk in chunked(read(file)):
            for at in range(0, len(chunk), BATCH):
                part = chunk[at : at + BATCH]
                yield [trace.id for trace in part], kind.parts().to_batch(vocabulary.encode(part).first(longest))
