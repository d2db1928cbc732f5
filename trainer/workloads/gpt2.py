"""GPT-2 on your own text: its commands, presets, data, loss and measures."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import Place, TrainOptions
from trainer.engine.workload import Batch, Outputs, Portion, Workload
from trainer.errors import ConfigurationError, UsageError
from trainer.options import add_train_options, train_options
from trainer.workloads import Actions

if TYPE_CHECKING:  # torch and numpy are imported by what needs them, so that --help stays quick
    from torch import Tensor, nn

    from trainer.data.order import Indices
    from trainer.models.gpt2 import GPT2

SAMPLE_TOKENS = 80
TEMPERATURE = 0.6
"""Low, as small models know few words well; a large one may be given more."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    layers: int
    heads: int
    width: int
    seq_len: int
    batch_size: int
    lr: float
    warmup_steps: int = 20
    max_steps: int | None = None
    """Where the user names neither --max-steps nor --epochs."""


PRESETS = {
    "tiny": Preset(layers=2, heads=2, width=64, seq_len=64, batch_size=8, lr=2e-3),
    # For five ranks on one small computer: with a vocabulary of 4096, words after a minute.
    "lab": Preset(layers=2, heads=4, width=128, seq_len=64, batch_size=8, lr=6e-3, max_steps=300),
    "mini": Preset(layers=4, heads=4, width=256, seq_len=128, batch_size=8, lr=1e-3),
    "30m": Preset(layers=6, heads=6, width=384, seq_len=256, batch_size=8, lr=1e-3, warmup_steps=100),
    "124m": Preset(layers=12, heads=12, width=768, seq_len=1024, batch_size=4, lr=6e-4, warmup_steps=700),
    "350m": Preset(layers=24, heads=16, width=1024, seq_len=1024, batch_size=2, lr=3e-4, warmup_steps=700),
}


def add_commands(actions: Actions) -> None:
    train = actions.add_parser("train", help="the default action", allow_abbrev=False)
    add_train_options(train)
    model = train.add_argument_group("model")
    model.add_argument("--preset", choices=PRESETS, help="default 124m, the shape of GPT-2 small")
    for name in ("layers", "heads", "width", "seq-len"):
        model.add_argument(f"--{name}", type=int, metavar="N", help="instead of the preset's")
    model.add_argument("--dropout", type=float, metavar="P", help="default 0")
    train.set_defaults(run=_train)

    prepare = actions.add_parser("prepare", help="texts to tokens", allow_abbrev=False)
    prepare.add_argument(
        "--text", action="append", required=True, metavar="PATH|spanish",
        help="a file or folder of UTF-8 text, or `spanish` for texts from Debian's packages; may be repeated",
    )  # fmt: skip
    prepare.add_argument("--data-dir", type=Path, default=Path("Data"), metavar="DIR")
    prepare.add_argument("--vocab-size", type=int, default=16384, metavar="N")
    prepare.set_defaults(run=_prepare)

    sample = actions.add_parser("sample", help="let a checkpoint write", allow_abbrev=False)
    sample.add_argument("--checkpoint", type=Path, required=True, metavar="DIR|FILE")
    sample.add_argument("--prompt", required=True, metavar="TEXT")
    sample.add_argument("--tokens", type=int, default=SAMPLE_TOKENS, metavar="N")
    sample.add_argument("--temperature", type=float, default=TEMPERATURE, help="0: always the likeliest token")
    sample.add_argument("--top-k", type=int, default=50, metavar="K", help="0: all tokens")
    sample.add_argument("--seed", type=int, default=1337)
    sample.set_defaults(run=_sample)


def _train(given: argparse.Namespace, place: Place) -> int:
    preset = PRESETS[given.preset or "124m"]
    shape = {}
    for name in ("layers", "heads", "width", "seq_len"):
        own_choice = getattr(given, name)
        shape[name] = getattr(preset, name) if own_choice is None else own_choice
    wrong = [f"--{name.replace('_', '-')} {size}: expected 1 or more" for name, size in shape.items() if size < 1]
    if not wrong and shape["width"] % shape["heads"]:
        wrong = [f"--width {shape['width']} does not divide into --heads {shape['heads']}"]
    if wrong:
        raise UsageError("\n".join(wrong))
    dropout = given.dropout or 0.0
    if not 0 <= dropout < 1:
        raise UsageError(f"--dropout {dropout:g}: expected 0 or more and less than 1")
    own: dict[str, Any] = {name: getattr(preset, name) for name in ("batch_size", "lr", "warmup_steps")}
    own["eval_batches"] = 20
    if given.epochs is None:
        own["max_steps"] = preset.max_steps
    options = train_options(given, own, place)

    from trainer.engine import loop

    return loop.train(lambda: Gpt2(options, shape, dropout), options, place)


class Gpt2(Workload):
    name = "gpt2"
    unit = "tokens"

    def __init__(self, options: TrainOptions, shape: Mapping[str, int], dropout: float) -> None:
        from trainer.data import shards, tokenizer
        from trainer.models.gpt2 import GPT2, Shape

        data = shards.open_prepared(options.data_dir)
        self._windows = {"train": shards.Windows(data, "train", shape["seq_len"])}
        if options.eval_every:
            self._windows["validation"] = shards.Windows(data, "validation", shape["seq_len"])
        self._bytes_per_token = data.validation_bytes_per_token
        self._tokenizer = tokenizer.load(data.tokenizer_file)
        self._seed = options.seed
        self._gpt2 = GPT2(Shape(**shape, vocab_size=data.vocab_size), dropout)
        self.model = self._gpt2
        self.identity = {
            "workload": self.name,
            **shape,
            "vocab_size": data.vocab_size,
            "tokenizer_sha256": data.tokenizer_sha256,
        }
        self.attachments = {"tokenizer.json": data.tokenizer_file}
        self.train_samples = len(self._windows["train"])
        self.validation_samples = len(self._windows.get("validation", ()))

    def batch(self, portion: Portion) -> Batch:
        import torch

        tokens = torch.from_numpy(self._windows[portion.split].take(portion.indices))
        return tokens[:, :-1], tokens[:, 1:]

    def targets(self, split: str, indices: Indices) -> tuple[float, ...]:
        return (float(self.units(indices)),)

    def units(self, indices: Indices) -> int:
        return len(indices) * self._windows["train"].length

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        from torch.nn import functional as F

        tokens, following = batch
        logits = model(tokens)
        return F.cross_entropy(logits.flatten(0, 1).float(), following.flatten(), reduction="sum").unsqueeze(0)

    def quality(self, losses: Mapping[str, float], outputs: Outputs, indices: Indices) -> dict[str, float]:
        # A byte costs the same in any vocabulary; a token does not.
        loss = losses["loss"]
        return {
            "perplexity": math.exp(min(loss, 700.0)),
            "bits_per_byte": loss / math.log(2) / self._bytes_per_token,
        }

    def sample(self, prompt: str) -> str:
        return write_on(self._gpt2, self._tokenizer, prompt, {"tokens": SAMPLE_TOKENS, "seed": self._seed})


def write_on(model: GPT2, tokenizer: Any, prompt: str, how: Mapping[str, Any]) -> str:
    """The prompt and what the model writes after it."""
    from trainer.data.tokenizer import END_OF_TEXT
    from trainer.models.gpt2 import generate

    start = tokenizer.encode(prompt).ids or [tokenizer.token_to_id(END_OF_TEXT)]
    written = generate(
        model,
        start,
        how["tokens"],
        temperature=how.get("temperature", TEMPERATURE),
        top_k=how.get("top_k", 50),
        seed=how["seed"],
    )
    return str(tokenizer.decode([*start, *written]))


def _prepare(given: argparse.Namespace, _place: Place) -> int:
    from trainer.data import shards, spanish, texts

    documents = []
    for source in given.text:
        if source == "spanish":
            print("Spanish text from Debian's packages:")
            documents += spanish.fetch(print)
        else:
            documents += texts.read_texts(Path(source))
    data, new = shards.prepare(documents, given.data_dir, given.vocab_size)
    splits = data.manifest["splits"]
    print(
        f"{given.data_dir}: {'prepared' if new else 'already there, kept as it is'}:"
        f" {splits['train']['tokens']} tokens to train, {splits['validation']['tokens']} to validate,"
        f" vocabulary {data.vocab_size}, {data.manifest['bytes_per_token']:.2f} bytes per token"
    )
    return 0


def _sample(given: argparse.Namespace, _place: Place) -> int:
    import torch

    from trainer.data import tokenizer
    from trainer.engine import checkpoint
    from trainer.models.gpt2 import GPT2, Shape

    found = checkpoint.locate(given.checkpoint, print)
    identity = found.manifest["identity"]
    if identity["workload"] != Gpt2.name:
        raise ConfigurationError(f"{found.path}: a checkpoint of {identity['workload']}, not of {Gpt2.name}")
    names = ("layers", "heads", "width", "seq_len", "vocab_size")
    model = GPT2(Shape(**{name: identity[name] for name in names}))
    model.load_state_dict(torch.load(found.state_file, map_location="cpu", weights_only=True)["model"])
    print(write_on(model, tokenizer.load(found.path / "tokenizer.json"), given.prompt, vars(given)))
    return 0
