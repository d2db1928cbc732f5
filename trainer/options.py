"""The training options on the command line, and how they become what the engine is told.

Where else their values may come from stands in option_layers.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from trainer.config import (
    BACKENDS,
    CODECS,
    OPTIMIZERS,
    PRECISIONS,
    SCHEDULES,
    SDPA,
    SYNCS,
    WORKLOAD,
    OptionValue,
    RankInfo,
    TrainOptions,
)


def train_options(given: argparse.Namespace, defaults: Mapping[str, Any], place: RankInfo) -> TrainOptions:
    """What the user gave, else what the preset says, else the defaults of TrainOptions."""
    chosen = dict(defaults)
    chosen["run_dir"] = Path(place.run_dir or ".")
    chosen["backend"] = place.backend
    for field in fields(TrainOptions):
        value = getattr(given, field.name, None)
        if value is not None:
            chosen[field.name] = value
    if given.from_scratch:
        chosen["resume"] = "never"
    said = {name: OptionValue(value, WORKLOAD) for name, value in defaults.items()}
    said |= {name: OptionValue(getattr(given, name), origin) for name, origin in getattr(given, "origins", {}).items()}
    if chosen.get("early_stopping") == "none":
        chosen["early_stopping"] = None
    return TrainOptions(**chosen, said=said)


# ── Declarations. Every default is None, so that whoever comes next in the order above may speak. ─────────────────────


def add_train_options(parser: argparse.ArgumentParser) -> None:
    _where(parser.add_argument_group("where"))
    _how_much(parser.add_argument_group("how much"))
    _learning(parser.add_argument_group("learning"))
    _hardware(parser.add_argument_group("speed and precision"))
    _together(parser.add_argument_group("training together"))
    _trust(parser.add_argument_group("what can go wrong"))
    _kept(parser.add_argument_group("what is seen and kept"))


def _where(group: Any) -> None:
    group.add_argument("--config", metavar="FILE", help="YAML, a line `option: value` each; flags go first")
    group.add_argument(
        "--data-dir", "--preprocessed-dir", type=Path, metavar="DIR", help="prepared data (default: Data)"
    )
    group.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="for checkpoints/, tensorboard/ (default: $ORCH_RUN_DIR or .)"
    )
    group.add_argument("--resume", metavar="auto|never|PATH", help="default auto: the newest sound checkpoint")
    group.add_argument("--from-scratch", action="store_const", const=True, help="the same as --resume never")


def _how_much(group: Any) -> None:
    group.add_argument("--epochs", type=int, metavar="N", help="default 1, unless --max-steps is given")
    group.add_argument("--max-steps", type=int, metavar="N", help="stop after optimizer step N")
    group.add_argument("--batch-size", type=int, metavar="N", help="samples per rank, before accumulation")
    group.add_argument(
        "--micro-batch-size", type=number_or("auto"), metavar="N|auto",
        help="samples per forward pass (default: --batch-size; auto: as many as the memory holds, found by trial)",
    )  # fmt: skip
    group.add_argument(
        "--grad-accum", "--gradient-accumulation-steps", type=int, metavar="N",
        help="batches per optimizer step (default 1)",
    )  # fmt: skip
    group.add_argument("--global-batch-size", type=int, metavar="N", help="samples per step over all ranks")


def _learning(group: Any) -> None:
    group.add_argument("--optimizer", choices=OPTIMIZERS)
    group.add_argument("--lr", "--learning-rate", type=float, help="highest learning rate")
    group.add_argument(
        "--find-lr", type=int, nargs="?", const=100, metavar="STEPS",
        help="look for a good --lr with a range test of STEPS (100), and end",
    )  # fmt: skip
    group.add_argument("--min-lr", type=float, help="at the end (default: a tenth of --lr)")
    group.add_argument("--schedule", choices=SCHEDULES, help="of the learning rate")
    group.add_argument("--warmup-steps", type=int, metavar="N")
    group.add_argument("--weight-decay", type=float, metavar="W")
    group.add_argument("--betas", type=_pair, metavar="B1,B2", help="of AdamW")
    group.add_argument(
        "--clip", "--max-norm", type=float, metavar="NORM", help="largest gradient norm, 0 for none (default 1)"
    )


def _hardware(group: Any) -> None:
    group.add_argument(
        "--precision", choices=PRECISIONS,
        help="of matrix products (auto: bf16 where the hardware has it, fp16 on older GPUs, else fp32)",
    )  # fmt: skip
    group.add_argument("--amp", "--use-amp", action="store_const", const=True, help="the default: as --precision says")
    group.add_argument("--no-amp", dest="amp", action="store_const", const=False, help="float32 everywhere")
    group.add_argument("--tf32", action=argparse.BooleanOptionalAction, help="on Ampere and newer (default on)")
    group.add_argument("--sdpa", choices=SDPA, help="which kernel computes attention")
    group.add_argument("--fused", action=argparse.BooleanOptionalAction, help="the optimizer's fused kernels")
    group.add_argument(
        "--compile", "--use-compile", type=_switch_or_auto, nargs="?", const=True, metavar="auto",
        help="torch.compile (default auto: where it pays within the run)",
    )  # fmt: skip
    group.add_argument("--no-compile", dest="compile", action="store_const", const=False)
    group.add_argument(
        "--static-graph", action=argparse.BooleanOptionalAction, help="off for models whose steps use different weights"
    )
    group.add_argument(
        "--num-workers", type=number_or("auto"), metavar="N|auto", help="processes that load data (auto: measured)"
    )


def _together(group: Any) -> None:
    group.add_argument("--backend", choices=BACKENDS, help="default auto: $ORCH_BACKEND, else nccl if all have a GPU")
    group.add_argument(
        "--sync", choices=("auto", *SYNCS),
        help="how gradients or weights travel (auto: measured, the fastest whose loss is fp32's)",
    )  # fmt: skip
    group.add_argument("--shares", choices=("auto", "equal"), help="of each step's samples (auto: by measured speed)")
    group.add_argument(
        "--forecast", action="store_const", const=True, help="measure speeds and links, tell how fast each way is, end"
    )
    group.add_argument("--sync-codec", choices=CODECS, help="what local steps and powersgd send (default int8)")
    group.add_argument("--sync-every", type=int, metavar="H", help="local steps between exchanges (default 20)")
    group.add_argument("--sync-warmup", type=int, metavar="N", help="steps by the mean gradient before local ones")
    group.add_argument("--sync-fragments", type=int, metavar="F", help="parts of the model, each exchanged in its turn")
    group.add_argument("--sync-delay", type=int, metavar="N", help="steps that go on while a fragment travels")
    group.add_argument("--sync-rank", type=int, metavar="R", help="of PowerSGD's matrices (default 4)")
    group.add_argument("--sync-density", type=float, metavar="D", help="share of values that topk sends (default 0.02)")
    group.add_argument("--outer-lr", type=float, help="of DiLoCo's outer optimizer (default 0.7)")
    group.add_argument("--outer-momentum", type=float, help="of the same (default 0.9)")


def _trust(group: Any) -> None:
    group.add_argument("--seed", type=int)
    group.add_argument(
        "--deterministic", action=argparse.BooleanOptionalAction, help="only kernels that repeat bit for bit"
    )
    group.add_argument("--on-nan", choices=("stop", "skip"), help="a loss that is no number (default stop)")
    group.add_argument(
        "--on-spike", choices=("off", "warn", "skip", "stop"), help="a loss far above the last ones (default warn)"
    )
    group.add_argument("--spike-factor", type=float, metavar="X", help="how far: times their median (default 3)")


def _kept(group: Any) -> None:
    group.add_argument("--log-every", type=int, metavar="N", help="steps between two lines (default 10)")
    group.add_argument("--eval-every", type=number_or("epoch"), metavar="N|epoch", help="steps; 0 for never")
    group.add_argument("--eval-batches", type=int, metavar="N", help="of --batch-size samples (default: all)")
    group.add_argument(
        "--early-stopping", metavar="METRIC|none", help="end when METRIC has not improved for --patience evaluations"
    )
    group.add_argument("--patience", type=int, metavar="N", help="default 3")
    group.add_argument("--best", metavar="METRIC", help="what makes a checkpoint the best one")
    group.add_argument("--checkpoint-every", type=number_or("epoch"), metavar="N|epoch", help="steps; 0: at the end")
    group.add_argument(
        "--checkpoint-async", action=argparse.BooleanOptionalAction,
        help="train on while one is written; off where memory for a copy is missing (default on)",
    )  # fmt: skip
    group.add_argument("--keep-checkpoints", type=int, metavar="K", help="the newest K, and the best (default 3)")
    group.add_argument("--keep-hours", type=float, metavar="H", help="beside them, all of the last H hours (default 0)")
    group.add_argument(
        "--profile", type=int, nargs="?", const=10, metavar="STEPS", help="leave a trace and a summary of STEPS (10)"
    )
    group.add_argument("--prompt", "--sample-at-end", metavar="TEXT", help="write a sample from TEXT at the end")


def number_or(word: str) -> Callable[[str], int | str]:
    def read(text: str) -> int | str:
        return word if text == word else int(text)

    read.__name__ = f"number or {word}"  # argparse names the type in its sentence
    return read


def _switch_or_auto(text: str) -> bool | str:
    if text != "auto":
        raise ValueError(text)
    return text


def _pair(text: str) -> tuple[float, float]:
    first, second = text.split(",")
    return float(first), float(second)


_pair.__name__ = "pair of numbers"
_switch_or_auto.__name__ = "word (auto, or nothing)"
