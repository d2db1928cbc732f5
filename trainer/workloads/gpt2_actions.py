"""Commands of GPT-2 other than training: prepare data, generate text, export to `transformers`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import RankInfo
from trainer.data import texts
from trainer.errors import ConfigurationError, OptionError
from trainer.options import add_options, option, out_of_range, values_given
from trainer.workloads import Actions

if TYPE_CHECKING:
    from trainer.checkpoint_folder import Checkpoint
    from trainer.models.gpt2 import GPT2

VOCABULARY = 16384
SHORTEST_PRESET = 64
"""Tokens of a sample of the smallest presets."""
TOKENIZER = "tokenizer.json"
"""Name in a checkpoint."""


def add(actions: Actions) -> None:
    prepare = actions.add_parser("prepare", help="texts to tokens", allow_abbrev=False)
    prepare.add_argument(
        "--text", action="append", required=True, metavar="PATH|hf:NAME|spanish",
        help="a file or folder of text, JSON lines or Parquet, also .gz and .zst; a data set of Hugging Face; `spanish`"
        " for texts from Debian's packages; may be repeated",
    )  # fmt: skip
    prepare.add_argument(
        "--text-key", default=texts.TEXT_KEY, metavar="NAME",
        help="field of a JSON line, or column, with the text (default: %(default)s)",
    )  # fmt: skip
    prepare.add_argument("--data-dir", type=Path, default=Path("Data"), metavar="DIR")
    prepare.add_argument("--vocab-size", type=int, metavar="N", help=f"default {VOCABULARY}")
    prepare.add_argument(
        "--tokenizer", metavar="FILE|FOLDER|NAME", help="tokenizer of a model of `transformers` instead of a new one"
    )
    prepare.set_defaults(run=_prepare)

    sample = actions.add_parser("sample", help="let a checkpoint write", allow_abbrev=False)
    sample.add_argument("--checkpoint", type=Path, required=True, metavar="DIR|FILE")
    sample.add_argument("--prompt", required=True, metavar="TEXT")
    add_options(sample, GenerationRequest)
    sample.set_defaults(run=_sample)

    export = actions.add_parser("export", help="a checkpoint to a folder for `transformers`", allow_abbrev=False)
    export.add_argument("--checkpoint", type=Path, required=True, metavar="DIR|FILE")
    export.add_argument("--to", type=Path, required=True, metavar="FOLDER")
    export.set_defaults(run=_export)


def _prepare(given: argparse.Namespace, _place: RankInfo) -> int:
    from trainer.data import prepare_tokens, spanish

    tokenizer = None
    if given.tokenizer:
        if given.vocab_size:
            raise OptionError("--tokenizer brings its own vocabulary: leave out --vocab-size")
        from trainer.models import pretrained_gpt2

        tokenizer = pretrained_gpt2.tokenizer_of(given.tokenizer)
    sources: list[texts.Texts] = []
    for source in given.text:
        if source == "spanish":
            print("Spanish text from Debian's packages:")
            sources.append(spanish.fetch(print))
        elif source.startswith(texts.HUB):
            sources.append(texts.HubTexts(name=source.removeprefix(texts.HUB), key=given.text_key))
        else:
            sources.append(texts.texts_of(Path(source), given.text_key))
    everything = texts.AllTexts(sources=sources)
    data, new = prepare_tokens.prepare(everything, given.data_dir, given.vocab_size or VOCABULARY, tokenizer, _say)
    splits = data.manifest["splits"]
    print(
        f"{given.data_dir}: {'prepared' if new else 'already there, kept as it is'}:"
        f" {splits['train']['tokens']} tokens to train, {splits['validation']['tokens']} to validate,"
        f" vocabulary {data.vocab_size}, {data.manifest['bytes_per_token']:.2f} bytes per token"
    )
    if given.vocab_size and data.vocab_size < given.vocab_size:
        print(f"note: these texts give {data.vocab_size} entries, fewer than --vocab-size {given.vocab_size}")
    if (longest := min(data.longest_window(name) for name in splits)) < SHORTEST_PRESET:
        print(f"note: little text: train with --seq-len {longest} or less, or prepare more")
    return 0


def _say(line: str) -> None:
    print(line, flush=True)


def _sample(given: argparse.Namespace, _place: RankInfo) -> int:
    from tokenizers import Tokenizer

    request = GenerationRequest(prompt=given.prompt, **values_given(given, GenerationRequest))
    if wrong := out_of_range(request):
        raise OptionError("\n".join(wrong))
    found, model = _model_of(given.checkpoint)
    model.to(_device())
    print("\n\n".join(write_on(model, Tokenizer.from_file(str(found.path / TOKENIZER)), request)))
    return 0


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _export(given: argparse.Namespace, _place: RankInfo) -> int:
    from trainer.models import pretrained_gpt2

    found, model = _model_of(given.checkpoint)
    pretrained_gpt2.export(model, found.path / TOKENIZER, given.to)
    print(f"{given.to}: GPT2LMHeadModel and AutoTokenizer of `transformers` load it with from_pretrained")
    return 0


def _model_of(path: Path) -> tuple[Checkpoint, GPT2]:
    from trainer import checkpoint_folder
    from trainer.engine.checkpoints.state_file import must_fit_in, read_state
    from trainer.models.gpt2 import GPT2, Gpt2Shape

    found = checkpoint_folder.locate(path, print)
    identity = found.manifest.identity
    if identity["workload"] != "gpt2":
        raise ConfigurationError(f"{found.path}: a checkpoint of {identity['workload']}, not of gpt2")
    names = ("layers", "heads", "width", "seq_len", "vocab_size")
    model = GPT2(Gpt2Shape(**{name: identity[name] for name in names}))
    state = read_state(found.state_file)
    with must_fit_in(found.state_file):
        model.load_state_dict(state["model"])
    return found, model


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """Request to generate texts from a prompt."""

    prompt: str
    tokens: int = option(80, "tokens to generate at most", at_least=1)
    temperature: float = option(0.6, "low, as small models know few words well; 0: always the likeliest token")
    top_k: int = option(50, "choose from the K likeliest tokens; 0: from all", metavar="K")
    top_p: float = option(
        1.0, "choose from the likeliest tokens that have probability P together", metavar="P", above=0, at_most=1
    )
    samples: int = option(1, "texts to generate at once", at_least=1)
    seed: int = option(1337, "seed of the choice of tokens")


def write_on(model: GPT2, tokenizer: Any, request: GenerationRequest) -> list[str]:
    """Generate texts, each with the prompt, up to the end of text."""
    import torch

    from trainer.data.tokenizer import END_OF_TEXT
    from trainer.models.gpt2 import Sampling, generate

    end = tokenizer.token_to_id(END_OF_TEXT)
    start = tokenizer.encode(request.prompt).ids or [end]
    sampling = Sampling(temperature=request.temperature, top_k=request.top_k, top_p=request.top_p)
    written = generate(model, torch.tensor([start] * request.samples), request.tokens, sampling, request.seed, end)
    texts = [tokens[: tokens.index(end)] if end in tokens else tokens for tokens in written.tolist()]
    return [str(tokenizer.decode([*start, *tokens])) for tokens in texts]
