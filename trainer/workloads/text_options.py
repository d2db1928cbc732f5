"""Options of the `text` workload."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.errors import OptionError
from trainer.option_layers import add_train_options

if TYPE_CHECKING:
    from trainer.data.text_manifest import TextManifest
HEADS = {"modo": 0.1, "causa": 0.6, "prioridad": 0.3}
TEXT_COLUMN = "descripcion"
MODEL_NAME = "dccuchile/bert-base-spanish-wwm-cased"
MODEL_HELP = "a model of the hub, a folder with one, or random:tiny|mini|small|medium|base for one from nothing"
HEADS_HELP = "columns and their weights in the loss"


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Options of this workload, checked against the prepared data."""

    heads: Mapping[str, float]
    class_weights: tuple[str, ...] = ()
    label_smoothing: float = 0.0
    dropout: float = 0.1
    max_length: int
    bucketing: bool = True
    model_name: str
    freeze_layers: int = 0
    gradient_checkpointing: bool = False
    cache_frozen: bool = True
    cache_dtype: str = "fp32"
    cache_dir: Path | None = None


def add_training(parser: argparse.ArgumentParser) -> None:
    add_train_options(parser)
    model = parser.add_argument_group("model")
    model.add_argument("--model-name", metavar="NAME", help="default: the one that the data was prepared for")
    model.add_argument("--heads", metavar="NAME[:W],…", help=f"{HEADS_HELP} (default: as prepared)")
    model.add_argument("--dropout", type=float, metavar="P", help="default 0.1, as BERT")
    model.add_argument("--freeze-layers", type=int, metavar="N", help="the first N and the embeddings (default 0)")
    model.add_argument(
        "--gradient-checkpointing", "--use-gradient-checkpointing", action=argparse.BooleanOptionalAction,
        help="less memory, a third more work: layers are computed again in the backward pass",
    )  # fmt: skip
    model.add_argument(
        "--cache-frozen", action=argparse.BooleanOptionalAction,
        help="compute what frozen layers make of a text once and keep it on the disk (default: with --freeze-layers)",
    )  # fmt: skip
    model.add_argument(
        "--cache-dtype", choices=("fp32", "bf16", "fp16"), help="default fp32: exact; else half the size"
    )
    model.add_argument("--cache-dir", type=Path, metavar="DIR", help="default: DATA-frozen, or RUN/frozen")
    loss = parser.add_argument_group("loss")
    loss.add_argument(
        "--class-weights", metavar="HEAD,…|all|none", help="balance the classes of these heads (default: causa)"
    )
    loss.add_argument("--label-smoothing", type=float, metavar="P", help="default 0")
    texts = parser.add_argument_group("texts")
    texts.add_argument("--max-length", type=int, metavar="N", help="tokens, longer texts are cut (default 128)")
    texts.add_argument(
        "--bucketing", action=argparse.BooleanOptionalAction,
        help="texts of like length together, padded to their longest (default); --no-bucketing: all to --max-length",
    )  # fmt: skip


def add_preparation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--csv", required=True, metavar="FILE|demo|spanish",
        help="`demo`: made-up reports of failures; `spanish`: paragraphs from Debian's packages and their source",
    )  # fmt: skip
    parser.add_argument("--data-dir", type=Path, default=Path("Data"), metavar="DIR")
    parser.add_argument("--text-column", metavar="NAME", help=f"default {TEXT_COLUMN}")
    parser.add_argument("--heads", metavar="NAME[:W],…", help=f"{HEADS_HELP} (default {written(HEADS)})")
    parser.add_argument("--validation-csv", type=Path, metavar="FILE", help="default: part of --csv")
    parser.add_argument("--validation-share", type=float, default=0.1, metavar="S", help="of --csv (default 0.1)")
    parser.add_argument("--model-name", default=MODEL_NAME, metavar="NAME", help=f"{MODEL_HELP} (default {MODEL_NAME})")
    parser.add_argument("--vocab-size", type=int, default=8192, metavar="N", help="of random: models (default 8192)")
    parser.add_argument("--rows", type=int, default=3000, metavar="N", help="that `demo` makes (default 3000)")


def add_prediction(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="DIR|FILE")
    parser.add_argument("--csv", type=Path, required=True, metavar="FILE")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: standard output")
    parser.add_argument("--text-column", default=TEXT_COLUMN, metavar="NAME", help=f"default {TEXT_COLUMN}")
    parser.add_argument("--all-probabilities", action="store_true", help="a column for each class of each head")
    parser.add_argument("--batch-size", type=_at_least_1, default=32, metavar="N")


def add_lengths(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-dir", type=Path, default=Path("Data"), metavar="DIR")
    parser.add_argument("--max-length", type=_at_least_1, metavar="N", help="one more length to show")
    parser.add_argument("--json", action="store_true")


def choose(given: argparse.Namespace, prepared: TextManifest) -> TextOptions:
    """Build the options. OptionError: all values that are invalid, or that do not fit the prepared data."""
    heads = parse_heads(given.heads, prepared.head_weights) if given.heads else prepared.head_weights
    wrong = [
        f"--heads {head}: prepared are {', '.join(prepared.heads)}" for head in heads if head not in prepared.heads
    ]
    weighted = _weighted(given.class_weights, heads, wrong)
    dropout, smoothing = _or(given.dropout, 0.1), _or(given.label_smoothing, 0.0)
    for name, share in (("dropout", dropout), ("label-smoothing", smoothing)):
        if not 0 <= share < 1:
            wrong.append(f"--{name} {share:g}: expected 0 or more and less than 1")
    model_name, layers = _model(given.model_name, prepared, wrong)
    frozen = _or(given.freeze_layers, 0)
    if not 0 <= frozen <= layers:
        wrong.append(f"--freeze-layers {frozen}: expected 0 to {layers}, the layers of {model_name}")
    longest = prepared.longest
    max_length = _or(given.max_length, min(128, longest))
    if not 3 <= max_length <= longest:
        wrong.append(f"--max-length {max_length}: expected 3 to {longest}, as far as {model_name} reads")
    if wrong:
        raise OptionError("\n".join(wrong))
    return TextOptions(
        heads=heads, class_weights=weighted, label_smoothing=smoothing, dropout=dropout, max_length=max_length,
        bucketing=_or(given.bucketing, True), model_name=model_name, freeze_layers=frozen,
        gradient_checkpointing=bool(given.gradient_checkpointing),
        cache_frozen=_or(given.cache_frozen, True), cache_dtype=given.cache_dtype or "fp32", cache_dir=given.cache_dir,
    )  # fmt: skip


def parse_heads(text: str, known: Mapping[str, float] = HEADS) -> dict[str, float]:
    """Parse `modo:0.1,causa:0.6`. Without any weight: the known ones if all names are known, otherwise equal ones."""
    heads: dict[str, float | None] = {}
    for part in text.split(","):
        name, colon, weight = part.strip().rpartition(":") if ":" in part else (part.strip(), "", "")
        try:
            heads[name] = float(weight) if colon else None
        except ValueError:
            raise OptionError(f"--heads {part}: expected NAME or NAME:WEIGHT") from None
    weights = [weight for weight in heads.values() if weight is not None]
    if "" in heads or any(weight <= 0 for weight in weights):
        raise OptionError(f"--heads {text}: expected names, and weights above 0")
    if not weights:
        same = all(name in known for name in heads)
        return {name: known[name] if same else 1 / len(heads) for name in heads}
    if len(weights) < len(heads):
        raise OptionError(f"--heads {text}: give each a weight, or none")
    return {name: weight for name, weight in heads.items() if weight is not None}


def written(heads: Mapping[str, float]) -> str:
    return ",".join(f"{name}:{weight:g}" for name, weight in heads.items())


def _weighted(asked: str | None, heads: Mapping[str, float], wrong: list[str]) -> tuple[str, ...]:
    if asked is None:
        return tuple(name for name in heads if name == "causa")
    if asked in ("all", "none"):
        return tuple(heads) if asked == "all" else ()
    names = tuple(name.strip() for name in asked.split(","))
    wrong += [f"--class-weights {name}: the heads are {', '.join(heads)}" for name in names if name not in heads]
    return names


def _model(asked: str | None, prepared: TextManifest, wrong: list[str]) -> tuple[str, int]:
    """Return the model and its number of layers. Random ones of any size share a tokenizer; others have their own."""
    from trainer.models import sizes

    name = asked or prepared.model_name
    if name == prepared.model_name:
        return name, prepared.layers
    if name.startswith(sizes.RANDOM) and prepared.model_name.startswith(sizes.RANDOM):
        return name, sizes.of(name)[0]
    wrong.append(
        f"--model-name {name}: the data was prepared for {prepared.model_name}, whose tokens differ;"
        f" prepare it again with --model-name {name}"
    )
    return name, prepared.layers


def _or(given: Any, default: Any) -> Any:
    return default if given is None else given


def _at_least_1(text: str) -> int:
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


_at_least_1.__name__ = "number"
