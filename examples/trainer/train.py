"""Fine-tune an encoder on texts with labels, with the Trainer of Hugging Face.

torchrun --nproc-per-node 2 train.py --csv data/texts.csv --model distilbert-base-multilingual-cased
torchrun --nproc-per-node 2 train.py --tiny         a tiny random model and texts made here, without a network
"""

import argparse
import csv
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

TINY_TEXTS = [
    (f"{start} {number} {end}", label)
    for number in range(100)
    for start, end, label in [("the pump", "is running well", "fine"), ("smoke at pump", "stop it", "alarm")]
]


def read_csv(path):
    """Read the columns `text` and `label`."""
    with Path(path).open(encoding="utf-8", newline="") as file:
        return [(row["text"], row["label"]) for row in csv.DictReader(file)]


def load_model(name, labels):
    names = {"id2label": dict(enumerate(labels)), "label2id": {label: number for number, label in enumerate(labels)}}
    tokenizer = AutoTokenizer.from_pretrained(name)
    return AutoModelForSequenceClassification.from_pretrained(name, num_labels=len(labels), **names), tokenizer


def tiny_model(texts, labels):
    words = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=500, special_tokens=special))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=128, id2label=dict(enumerate(labels)),
        label2id={label: number for number, label in enumerate(labels)},
    )  # fmt: skip
    return BertForSequenceClassification(config), tokenizer


def newest_checkpoint(folder):
    """Return the newest complete checkpoint: the Trainer writes trainer_state.json last."""
    steps = [
        int(state.parent.name.rpartition("-")[2]) for state in Path(folder).glob("checkpoint-*/trainer_state.json")
    ]
    return f"{folder}/checkpoint-{max(steps)}" if steps else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", help="file with the columns text and label")
    parser.add_argument("--model", default="distilbert-base-multilingual-cased", help="(default: %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="a tiny random model and texts made here")
    parser.add_argument("--out", default="out", help="(default: %(default)s)")
    parser.add_argument("--epochs", type=float, default=3, help="(default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=16, help="of each rank (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=5e-5, help="(default: %(default)s)")
    parser.add_argument("--max-length", type=int, default=128, help="tokens of a text (default: %(default)s)")
    parser.add_argument("--save-steps", type=int, default=100, help="(default: %(default)s)")
    args = parser.parse_args()
    if bool(args.csv) == args.tiny:
        parser.error("expected --csv FILE or --tiny")
    if args.tiny:
        args.lr = 2e-3
    set_seed(1)
    rows = TINY_TEXTS if args.tiny else read_csv(args.csv)
    labels = sorted({label for _, label in rows})
    texts = [text for text, _ in rows]
    model, tokenizer = tiny_model(texts, labels) if args.tiny else load_model(args.model, labels)
    data = []
    for text, label in rows:
        tokens = tokenizer(text, truncation=True, max_length=args.max_length)
        data.append({"input_ids": tokens["input_ids"], "labels": labels.index(label)})
    held_out = max(1, len(data) // 10)
    on_gpu = torch.cuda.is_available()
    settings = TrainingArguments(
        output_dir=args.out, num_train_epochs=args.epochs, per_device_train_batch_size=args.batch_size,
        learning_rate=args.lr, logging_steps=10, save_steps=args.save_steps, save_total_limit=2, seed=1,
        report_to="none", use_cpu=not on_gpu,
        bf16=on_gpu and torch.cuda.is_bf16_supported(), dataloader_pin_memory=on_gpu,
        ddp_find_unused_parameters=False,
        average_tokens_across_devices=False,  # that is for losses per token: it multiplies this one by the ranks
    )  # fmt: skip
    trainer = Trainer(
        model, settings, DataCollatorWithPadding(tokenizer), data[held_out:], data[:held_out],
        processing_class=tokenizer,
        compute_metrics=lambda scored: {"accuracy": float((scored[0].argmax(-1) == scored[1]).mean())},
    )  # fmt: skip
    newest = newest_checkpoint(args.out)
    if newest:
        print(f"resumed from {newest}", flush=True)
    trainer.train(resume_from_checkpoint=newest)
    print(trainer.evaluate(), flush=True)
    trainer.save_model(f"{args.out}/final")  # on rank 0 alone
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
