"""GPT-2 on your own text: commands, presets, data, loss and metrics."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from contract.cost_model.memory import TransformerTraining
from trainer.config import RankInfo, TrainOptions
from trainer.data.batch import Batch, BatchRequest
from trainer.data.manifests import PreparedTokens
from trainer.engine.workload import Outputs, Workload
from trainer.errors import ConfigurationError, OptionError
from trainer.option_layers import add_train_options, train_options
from trainer.options import add_options, option, out_of_range, values_given
from trainer.workloads import Actions, gpt2_actions

if TYPE_CHECKING:  # torch and numpy are imported by what needs them, so that --help stays quick
    from torch import Tensor, nn

    from trainer.data.order import Indices

CPU_LOSS_CHUNK = 1024
"""`token_loss.CHUNK`, which takes torch to import."""
CONTINUED_LR = 1e-4
"""Learning rate with --init-from: small, to keep what the model has learned."""


@dataclass(frozen=True, kw_only=True)
class Gpt2Preset:
    layers: int
    heads: int
    width: int
    seq_len: int
    batch_size: int
    lr: float
    warmup_steps: int = 20
    max_steps: int | None = None
    """Default if the user gives neither --max-steps nor --epochs."""


PRESETS = {
    "tiny": Gpt2Preset(layers=2, heads=2, width=64, seq_len=64, batch_size=8, lr=2e-3),
    # For five ranks on one small computer: with a vocabulary of 4096, words after a minute.
    "lab": Gpt2Preset(layers=2, heads=4, width=128, seq_len=64, batch_size=8, lr=6e-3, max_steps=300),
    "mini": Gpt2Preset(layers=4, heads=4, width=256, seq_len=128, batch_size=8, lr=1e-3),
    "30m": Gpt2Preset(layers=6, heads=6, width=384, seq_len=256, batch_size=8, lr=1e-3, warmup_steps=100),
    "124m": Gpt2Preset(layers=12, heads=12, width=768, seq_len=1024, batch_size=4, lr=6e-4, warmup_steps=700),
    "350m": Gpt2Preset(layers=24, heads=16, width=1024, seq_len=1024, batch_size=2, lr=3e-4, warmup_steps=700),
}

SHAPE = ("layers", "heads", "width", "seq_len")


@dataclass(frozen=True, kw_only=True)
class Gpt2Options:
    """Options of this workload."""

    layers: int | None = option(None, "number of blocks (default: the preset's)", section="model", at_least=1)
    heads: int | None = option(None, "attention heads (default: the preset's)", at_least=1)
    width: int | None = option(None, "size of the embedding (default: the preset's)", at_least=1)
    seq_len: int | None = option(None, "tokens of a sample (default: the preset's)", at_least=1)
    dropout: float = option(0.0, "dropout of embeddings and blocks", metavar="P", at_least=0, below=1)
    init_from: str | None = option(
        None, "start with the weights and shape of a GPT-2 of `transformers`", metavar="FOLDER|NAME"
    )
    gradient_checkpointing: int | Literal["selective"] = option(
        0, "compute blocks again in the backward pass, all or every N-th (less memory, up to a third more work), or"
        " in each all but its large products", metavar="N|selective", without_value=1, at_least=0,
        aliases=("--use-gradient-checkpointing",),
        constants={"--no-gradient-checkpointing": 0, "--no-use-gradient-checkpointing": 0},
    )  # fmt: skip
    loss_chunk: int | Literal["auto"] = option(
        "auto", "tokens whose logits are in memory at a time, 0: all", metavar="N|auto|0", at_least=0
    )


def add_commands(actions: Actions) -> None:
    train = actions.add_parser("train", help="the default action", allow_abbrev=False)
    add_train_options(train)
    train.add_argument("--preset", choices=PRESETS, help="default: 124m, the shape of GPT-2 small")
    add_options(train, Gpt2Options)
    train.set_defaults(run=_train, check=_check, sizes=_sizes)
    gpt2_actions.add(actions)
    evaluate = actions.add_parser("evaluate", help="a checkpoint, on the validation text", allow_abbrev=False)
    evaluate.add_argument("--checkpoint", type=Path, required=True, metavar="DIR|FILE")
    evaluate.add_argument("--data-dir", type=Path, default=TrainOptions.data_dir, metavar="DIR")
    evaluate.add_argument("--batch-size", type=int, default=8, metavar="N")
    evaluate.set_defaults(run=_evaluate)


def _check(given: argparse.Namespace, place: RankInfo, data: Path | None) -> None:
    options, shape, _ = _asked(given, place)
    if data is None:
        return
    tokens = PreparedTokens.open(data)
    if not given.init_from or given.seq_len:  # otherwise as long as the weights were trained for
        for split in ("train", "validation") if options.eval_every else ("train",):
            tokens.must_hold_a_window(split, shape["seq_len"])


def _sizes(given: argparse.Namespace, data: Path) -> TransformerTraining | None:
    """Sizes that decide how much memory the training takes. None: those of weights that are not here."""
    options, shape, how = _asked(given, RankInfo())
    if given.init_from:
        return None
    fixed = ("micro_batch_size", "checkpoint_async", "gradient_checkpointing")
    sizes = _training_sizes(options, {"vocab_size": PreparedTokens.open(data).vocab_size, **shape}, how)
    return replace(sizes, fixed=tuple(name for name in fixed if getattr(given, name, None) is not None))


def _training_sizes(options: TrainOptions, shape: Mapping[str, int], how: Mapping[str, Any]) -> TransformerTraining:
    width, layers, vocab_size = shape["width"], shape["layers"], shape["vocab_size"]
    hidden = layers * 12 * width * width
    parameters = hidden + layers * 13 * width + (vocab_size + shape["seq_len"] + 2) * width
    moments = {"adamw": 2 * parameters, "sgd": parameters, "muon": 2 * parameters - hidden}
    size = options.micro_batch_size
    micro_batch = options.batch_size if size is None else 1 if size == "auto" else size
    share = options.batches(1)
    return TransformerTraining(
        parameters=parameters,
        layers=layers,
        width=width,
        seq_len=shape["seq_len"],
        vocab_size=vocab_size,
        micro_batch=min(micro_batch, share),
        passes=-(-share // micro_batch),
        loss_chunk=CPU_LOSS_CHUNK if how["loss_chunk"] == "auto" else how["loss_chunk"],
        optimizer_values=moments[options.optimizer],
        optimizer_state=options.optimizer_state,
        gradient_checkpointing=how["gradient_checkpointing"],
        checkpoint_async=options.checkpoint_async,
        sync=options.sync,
    )


def _train(given: argparse.Namespace, place: RankInfo) -> int:
    options, shape, how = _asked(given, place)

    from trainer.engine import loop

    def build() -> Gpt2:
        if given.init_from:
            return Gpt2.continued(options, given.init_from, given.seq_len, how)
        return Gpt2(options, shape, how)

    return loop.train(build, options, place)


def _evaluate(given: argparse.Namespace, place: RankInfo) -> int:
    from trainer import checkpoint_folder
    from trainer.engine.evaluate import evaluate_checkpoint

    found = checkpoint_folder.locate(given.checkpoint, lambda line: print(line, file=sys.stderr))
    shape = dict(found.manifest.identity)
    if shape["workload"] != Gpt2.name:
        raise ConfigurationError(f"{found.path}: a checkpoint of {shape['workload']}, not of {Gpt2.name}")
    if shape["tokenizer_sha256"] != PreparedTokens.open(given.data_dir).tokenizer_sha256:
        raise ConfigurationError(f"{given.data_dir} has another tokenizer than {found.path}")
    options = TrainOptions(data_dir=given.data_dir, batch_size=given.batch_size, amp=False)
    shape = {name: shape[name] for name in (*SHAPE, "vocab_size")}
    how = {"dropout": 0.0, "gradient_checkpointing": 0, "loss_chunk": "auto"}
    print(json.dumps(evaluate_checkpoint(lambda: Gpt2(options, shape, how), found, options, place).figures))
    return 0


def _asked(given: argparse.Namespace, place: RankInfo) -> tuple[TrainOptions, dict[str, int], dict[str, Any]]:
    """Build the options, the model's shape, and how it computes. OptionError: they are invalid."""
    preset = PRESETS[given.preset or "124m"]
    chosen = Gpt2Options(**values_given(given, Gpt2Options))
    wrong = out_of_range(chosen)
    if given.init_from and any(getattr(given, name) for name in ("preset", "layers", "heads", "width")):
        wrong.append("--init-from brings its own shape: leave out --preset, --layers, --heads and --width")
    if wrong:
        raise OptionError("\n".join(wrong))
    own: dict[str, Any] = {
        "batch_size": preset.batch_size, "lr": CONTINUED_LR if given.init_from else preset.lr,
        "warmup_steps": preset.warmup_steps, "eval_batches": 20,
    }  # fmt: skip
    if given.epochs is None:
        own["max_steps"] = preset.max_steps
    options = train_options(given, own, place)
    shape = {name: getattr(chosen, name) or getattr(preset, name) for name in SHAPE}
    if shape["width"] % shape["heads"]:
        raise OptionError(f"--width {shape['width']} does not divide into --heads {shape['heads']}")
    how = {name: getattr(chosen, name) for name in ("dropout", "gradient_checkpointing", "loss_chunk")}
    return options, shape, how


class Gpt2(Workload):
    name = "gpt2"
    same_shapes = True
    unit = "tokens"

    def __init__(self, options: TrainOptions, shape: Mapping[str, int], how: Mapping[str, Any]) -> None:
        """`shape`: its `vocab_size` is the data's unless it names one. `how`: dropout, and fields of `Computation`."""
        import torch
        from tokenizers import Tokenizer

        from trainer.data.shards import Windows
        from trainer.engine.hardware.attention import must_have_kernel
        from trainer.models.gpt2 import GPT2, Computation, Gpt2Shape

        must_have_kernel(options.sdpa, "cuda" if torch.cuda.is_available() else "cpu")
        data = PreparedTokens.open(options.data_dir)
        shape = {"vocab_size": data.vocab_size, **shape}
        self._windows = {"train": Windows(data, "train", shape["seq_len"])}
        if options.eval_every:
            self._windows["validation"] = Windows(data, "validation", shape["seq_len"])
        self._bytes_per_token = data.validation_bytes_per_token
        self._tokenizer = Tokenizer.from_file(str(data.tokenizer_file))
        self._options, self._shape, self._how = options, shape, how
        computation = Computation(**{name: value for name, value in how.items() if name != "dropout"})
        self._gpt2 = GPT2(Gpt2Shape(**shape), how["dropout"], computation)
        self.model = self._gpt2
        self.identity = {"workload": self.name, **shape, "tokenizer_sha256": data.tokenizer_sha256}
        self.attachments = {"tokenizer.json": data.tokenizer_file}
        self.train_samples = self._windows["train"].everywhere
        self.held_samples = len(self._windows["train"]) if data.is_part else None
        self.validation_samples = len(self._windows.get("validation", ()))

    @classmethod
    def continued(cls, options: TrainOptions, source: str, seq_len: int | None, how: Mapping[str, Any]) -> Gpt2:
        """Build from weights as `transformers` saves them; with a `seq_len` of fewer positions than they have, the
        first."""
        from trainer.models import pretrained_gpt2

        shape = pretrained_gpt2.shape_of(source, seq_len)
        workload = cls(options, asdict(shape), how)
        pretrained_gpt2.must_be_the_datas(source, shape, workload._tokenizer, options.data_dir)
        workload._gpt2.load_state_dict(pretrained_gpt2.weights_of(source, shape))
        return workload

    def batch(self, request: BatchRequest) -> Batch:
        import torch

        tokens = torch.from_numpy(self._windows[request.split].take(request.indices))
        return tokens[:, :-1], tokens[:, 1:]

    def target_counts(self, split: str, indices: Indices) -> tuple[float, ...]:
        return (float(self.count_units(indices)),)

    def count_units(self, indices: Indices) -> int:
        return len(indices) * self._windows["train"].length

    def flops_per_unit(self) -> float:
        return self._gpt2.shape.flops_per_token

    def loss_sums(self, model: nn.Module, batch: Batch) -> Tensor:
        tokens, following = batch
        loss: Tensor = model(tokens, following)
        return loss.unsqueeze(0)

    def metrics(self, losses: Mapping[str, float], outputs: Outputs, indices: Indices) -> dict[str, float]:
        # A byte costs the same in any vocabulary; a token does not.
        loss = losses["loss"]
        return {
            "perplexity": math.exp(min(loss, 700.0)),
            "bits_per_byte": loss / math.log(2) / self._bytes_per_token,
        }

    def generate(self, prompt: str) -> str:
        request = gpt2_actions.GenerationRequest(prompt=prompt, seed=self._options.seed)
        return gpt2_actions.write_on(self._gpt2, self._tokenizer, request)[0]

    def parameter_groups(self) -> list[dict[str, Any]]:
        return self._gpt2.parameter_groups(self._options.weight_decay)
