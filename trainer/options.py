"""The training options on the command line, and where else their values may come from.

What the command line says goes first, then the environment (`TRAINER_GRAD_ACCUM=2`), then the file of `--config`, then
the workload's preset, then the defaults in config.py. A run prints what is not a default with its origin, and keeps it.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from trainer.config import BACKENDS, OPTIMIZERS, PRECISIONS, SCHEDULES, SDPA, Place, TrainOptions
from trainer.errors import ConfigurationError, UsageError

ENVIRONMENT = "TRAINER_"
Parse = Callable[[Sequence[str]], argparse.Namespace]


def train_options(given: argparse.Namespace, defaults: Mapping[str, Any], place: Place) -> TrainOptions:
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
    if chosen.get("early_stopping") == "none":
        chosen["early_stopping"] = None
    return TrainOptions(**chosen)


def layered(given: argparse.Namespace, declared: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    """Fill in what the command line left open, and note in `given.origins` where each value comes from."""
    by_name = {option.removeprefix("--"): action for action in declared._actions for option in action.option_strings}
    names = {action.dest for action in by_name.values()} - {"help"}
    origins = {name: "command line" for name in names if getattr(given, name) is not None}
    said = list(_from_environment(by_name, environ))
    config = given.config or environ.get(f"{ENVIRONMENT}CONFIG")
    if config:
        said += _from_file(Path(config), by_name)
    wrong = []
    for origin, words in said:
        try:
            layer = declared.parse_args(words)
        except UsageError as error:
            wrong.append(f"{origin}: {error}")
            continue
        for name in names:
            value = getattr(layer, name)
            if value is not None and getattr(given, name) is None:
                setattr(given, name, value)
                origins[name] = origin
    if wrong:
        raise ConfigurationError("\n".join(wrong))
    given.origins = origins


def _from_environment(
    by_name: Mapping[str, argparse.Action], environ: Mapping[str, str]
) -> Iterator[tuple[str, list[str]]]:
    for variable in sorted(environ):
        name = variable.removeprefix(ENVIRONMENT).lower().replace("_", "-")
        if not variable.startswith(ENVIRONMENT) or name == "config":
            continue
        if name not in by_name:
            raise ConfigurationError(f"{variable} in the environment: {_unknown(name, by_name)}")
        yield variable, _words(name, yaml.safe_load(environ[variable]), by_name)


def _from_file(path: Path, by_name: Mapping[str, argparse.Action]) -> Iterator[tuple[str, list[str]]]:
    """One entry for each line `option: value`."""
    try:
        root = yaml.compose(path.read_text("utf-8"), yaml.SafeLoader)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}; --config takes a YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: not YAML: {error}") from None
    if root is None:
        return
    if not isinstance(root, yaml.MappingNode):
        raise ConfigurationError(f"{path}: expected lines of `option: value`")
    values = yaml.SafeLoader("").construct_document(root)
    seen: dict[str, int] = {}
    wrong = []
    for key, _ in root.value:
        name, line = str(key.value).replace("_", "-"), key.start_mark.line + 1
        if name not in by_name or name in ("config", "help"):
            wrong.append(f"{path}:{line}: {_unknown(name, by_name)}")
        elif name in seen:
            wrong.append(f"{path}:{line}: {name} is given already in line {seen[name]}")
        seen.setdefault(name, line)
    if wrong:
        raise ConfigurationError("\n".join(wrong))
    for key, _ in root.value:
        name = str(key.value).replace("_", "-")
        yield f"{path}:{key.start_mark.line + 1}", _words(name, values[key.value], by_name)


def _words(name: str, value: object, by_name: Mapping[str, argparse.Action]) -> list[str]:
    """The value as it would stand on the command line."""
    if value is True:
        return [f"--{name}"]
    if value is False:
        opposite = name.removeprefix("no-") if name.startswith("no-") else f"no-{name}"
        # A switch without an opposite is off unless it is named.
        return [f"--{opposite}"] if opposite in by_name else []
    if value is None:
        return []
    if isinstance(value, list):
        return [f"--{name}", *map(str, value)] if by_name[name].nargs else [f"--{name}={item}" for item in value]
    return [f"--{name}={value}"]


def _unknown(name: str, by_name: Mapping[str, argparse.Action]) -> str:
    close = difflib.get_close_matches(name, by_name, 1)
    return f"unknown option {name!r}" + (f" (did you mean {close[0]!r}?)" if close else "; see --help")


# ── Declarations. Every default is None, so that whoever comes next in the order above may speak. ─────────────────────


def add_train_options(parser: argparse.ArgumentParser) -> None:
    _where(parser.add_argument_group("where"))
    _how_much(parser.add_argument_group("how much"))
    _learning(parser.add_argument_group("learning"))
    _hardware(parser.add_argument_group("speed and precision"))
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
    group.add_argument("--backend", choices=BACKENDS, help="default auto: $ORCH_BACKEND, else nccl if all have a GPU")


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
    group.add_argument("--keep-checkpoints", type=int, metavar="K", help="the newest K, and the best (default 3)")
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
