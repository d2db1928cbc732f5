"""Train a character model on a text file, with Lightning.

torchrun --nproc-per-node 2 train.py --text data/quijote.txt
torchrun --nproc-per-node 2 train.py --tiny         a tiny model and a text made here
"""

import argparse
import os
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, Dataset

TINY_TEXT = "".join(f"{a} and {b} are {a + b}.\n" for a in range(40) for b in range(20))


class Characters(Dataset):
    """Pieces of a text, each with the same piece one character later."""

    def __init__(self, text, alphabet, length):
        number = {character: position for position, character in enumerate(alphabet)}
        self.tokens = torch.tensor([number[character] for character in text])
        self.length = length

    def __len__(self):
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, index):
        first = index * self.length
        piece = self.tokens[first : first + self.length + 1]
        return piece[:-1], piece[1:]


class CharacterModel(lightning.LightningModule):
    def __init__(self, alphabet, length, width, layers, lr):
        super().__init__()
        self.save_hyperparameters()  # so that `load_from_checkpoint` needs the file alone
        self.embedding = nn.Embedding(len(alphabet), width)
        self.position = nn.Parameter(torch.randn(length, width) * 0.02)
        options = {"activation": "gelu", "batch_first": True, "norm_first": True}
        layer = nn.TransformerEncoderLayer(width, width // 32, 4 * width, 0.1, **options)
        self.blocks = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, len(alphabet))

    def forward(self, tokens):
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        hidden = self.embedding(tokens) + self.position[:length]
        return self.head(self.blocks(hidden, mask=mask, is_causal=True))

    def training_step(self, batch, _):
        loss = nn.functional.cross_entropy(self(batch[0]).flatten(0, 1), batch[1].flatten())
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, _):
        loss = nn.functional.cross_entropy(self(batch[0]).flatten(0, 1), batch[1].flatten())
        self.log("val_loss", loss, prog_bar=True, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="file in UTF-8")
    parser.add_argument("--tiny", action="store_true", help="a tiny model and a text made here")
    parser.add_argument("--out", default="out", help="(default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=10, help="(default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank (default: %(default)s)")
    parser.add_argument("--length", type=int, default=256, help="characters of a piece (default: %(default)s)")
    parser.add_argument("--width", type=int, default=384, help="(default: %(default)s)")
    parser.add_argument("--layers", type=int, default=6, help="(default: %(default)s)")
    parser.add_argument("--lr", type=float, default=3e-4, help="(default: %(default)s)")
    parser.add_argument("--save-steps", type=int, default=100, help="(default: %(default)s)")
    args = parser.parse_args()
    if bool(args.text) == args.tiny:
        parser.error("expected --text FILE or --tiny")
    if args.tiny:
        args.width, args.layers, args.length = 32, 1, 32
    lightning.seed_everything(1)
    text = TINY_TEXT if args.tiny else args.text.read_text(encoding="utf-8")
    alphabet = "".join(sorted(set(text)))
    held_out = max(len(text) // 10, args.length + 1)
    parts = [Characters(part, alphabet, args.length) for part in (text[:-held_out], text[-held_out:])]
    train, val = DataLoader(parts[0], args.batch_size, shuffle=True), DataLoader(parts[1], args.batch_size)
    # torchrun says how many ranks there are; Lightning alone would take one node.
    ranks, of_node = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    trainer = lightning.Trainer(
        max_epochs=args.epochs, devices=of_node, num_nodes=ranks // of_node, strategy="ddp", log_every_n_steps=10,
        logger=False, gradient_clip_val=1.0, enable_model_summary=False,
        callbacks=[ModelCheckpoint(args.out, save_last=True, every_n_train_steps=args.save_steps)],
    )  # fmt: skip
    last = Path(args.out, "last.ckpt")
    if last.exists():
        print(f"resumed from {last}", flush=True)
    model = CharacterModel(alphabet, args.length, args.width, args.layers, args.lr)
    trainer.fit(model, train, val, ckpt_path=last if last.exists() else None)
    trainer.save_checkpoint(Path(args.out, "final.ckpt"), weights_only=True)
    trainer.strategy.barrier()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
