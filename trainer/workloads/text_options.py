"""Options of the `text` workload."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from trainer.errors import OptionError
from trainer.options import option, out_of_range, values_given

if TYPE_CHECKING:
    from trainer.data.manifests import PreparedText
HEADS = {"modo": 0.1, "causa": 0.6, "prioridad": 0.3}
TEXT_COLUMN = "descripcion"
MODEL_NAME = "dccuchile/bert-base-spanish-wwm-cased"
MODEL_HELP = "a model of the hub, a folder with one, or random:tiny|mini|small|medium|base for one from nothing"
HEADS_HELP = "columns and their weights in the loss"


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Options of this workload, checked against the prepared data."""

    model_name: str = option(
        "", "model to train (default: the one that the data was prepared for)", section="model", metavar="NAME"
    )
    heads: Mapping[str, float] = option(None, f"{HEADS_HELP} (default: as prepared)", metavar="NAME[:W],…", read=str)
    dropout: float = option(0.1, "dropout of the encoder", metavar="P", at_least=0, below=1)
    freeze_layers: int = option(0, "do not train the embeddings and the first N layers")
    gradient_checkpointing: int | Literal["selective"] = option(
        0, "compute layers again in the backward pass, all or every N-th (less memory, up to a third more work), or"
        " in each all but its large products", metavar="N|selective", without_value=1, at_least=0,
        aliases=("--use-gradient-checkpointing",),
        constants={"--no-gradient-checkpointing": 0, "--no-use-gradient-checkpointing": 0},
    )  # fmt: skip
    cache_frozen: bool = option(True, "with --freeze-layers: keep the outputs of frozen layers on disk")
    cache_dtype: str = option("fp32", "fp32 is exact, the others take half the size", choices=("fp32", "bf16", "fp16"))
    cache_dir: Path | None = option(None, "folder of --cache-frozen (default: DATA-frozen, or RUN/frozen)")

    class_weights: tuple[str, ...] = option(
        (), "heads with equal total weight of all classes (default: causa)", section="loss", metavar="HEAD,…|all|none",
        read=str,
    )  # fmt: skip
    label_smoothing: float = option(0.0, "share of a label spread over all classes", metavar="P", at_least=0, below=1)

    max_length: int = option(128, "tokens of a text, longer texts are cut", section="texts")
    bucketing: bool = option(
        True, "batches of texts of similar length, padded to the longest; off: all padded to --max-length"
    )
    packed: bool | None = option(
        None, "texts of a batch one after the other instead of padded to one length (default: without a GPU, where a"
        " batch has texts of all lengths: in evaluations, and with --no-bucketing)",
    )  # fmt: skip


def add_preparation(parser: argparse.ArgumentParser) -> None:
    default_heads = ",".join(f"{name}:{weight:g}" for name, weight in HEADS.items())
    parser.add_argument(
        "--csv", required=True, metavar="FILE|demo|spanish",
        help="`demo`: made-up reports of failures; `spanish`: paragraphs from Debian's packages and their source",
    )  # fmt: skip
    parser.add_argument("--data-dir", type=Path, default=Path("Data"), metavar="DIR")
    parser.add_argument("--text-column", metavar="NAME", help=f"default {TEXT_COLUMN}")
    parser.add_argument("--heads", metavar="NAME[:W],…", help=f"{HEADS_HELP} (default {default_heads})")
    parser.add_argument(
        "--validation-csv", type=Path, metavar="FILE", help="rows for validation (default: part of --csv)"
    )
    parser.add_argument(
        "--validation-share", type=float, default=0.1, metavar="S", help="share of --csv for validation (default 0.1)"
    )
    parser.add_argument("--model-name", default=MODEL_NAME, metavar="NAME", help=f"{MODEL_HELP} (default {MODEL_NAME})")
    parser.add_argument(
        "--vocab-size", type=int, default=8192, metavar="N", help="vocabulary of a random: model (default 8192)"
    )
    parser.add_argument(
        "--rows", type=int, default=3000, metavar="N", help="rows that --csv demo writes (default 3000)"
    )


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


def choose(given: argparse.Namespace, prepared: PreparedText) -> TextOptions:
    """Build the options. OptionError: all values that are invalid, or that do not fit the prepared data."""
    chosen = values_given(given, TextOptions)
    heads = parse_heads(given.heads, prepared.head_weights) if given.heads else prepared.head_weights
    known = ", ".join(prepared.heads)
    wrong = [f"--heads {head}: prepared are {known}" for head in heads if head not in prepared.heads]
    weighted = _weighted(given.class_weights, heads, wrong)
    model_name, layers = _model(given.model_name, prepared, wrong)
    longest = prepared.longest
    chosen |= {"heads": heads, "class_weights": weighted, "model_name": model_name}
    options = TextOptions(**{"max_length": min(128, longest), **chosen})
    wrong += out_of_range(options)
    if not 0 <= options.freeze_layers <= layers:
        wrong.append(f"--freeze-layers {options.freeze_layers}: expected 0 to {layers}, the layers of {model_name}")
    if not 3 <= options.max_length <= longest:
        wrong.append(f"--max-length {options.max_length}: expected 3 to {longest}, the limit of {model_name}")
    if wrong:
        raise OptionError("\n".join(wrong))
    return options


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


def _weighted(asked: str | None, heads: Mapping[str, float], wrong: list[str]) -> tuple[str, ...]:
    if asked is None:
        return tuple(name for name in heads if name == "causa")
    if asked in ("all", "none"):
        return tuple(heads) if asked == "all" else ()
    names = tuple(name.strip() for name in asked.split(","))
    wrong += [f"--class-weights {name}: the heads are {', '.join(heads)}" for name in names if name not in heads]
    return names


def _model(asked: str | None, prepared: PreparedText, wrong: list[str]) -> tuple[str, int]:
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


def _at_least_1(text: str) -> int:
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


_at_least_1.__name__ = "number"
