"""Manifests of prepared tokens and labelled texts. Needs no packages: the controller checks options against them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from contract.data_parts import here
from trainer.data.prepared_folder import LABELLED_TEXT, TOKENS, PreparedFolder
from trainer.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class PreparedTokens(PreparedFolder):
    kind = TOKENS

    @property
    def tokenizer_file(self) -> Path:
        return self.folder / str(self.manifest["tokenizer"]["file"])

    @property
    def tokenizer_sha256(self) -> str:
        return str(self.manifest["tokenizer"]["sha256"])

    @property
    def vocab_size(self) -> int:
        return int(self.manifest["vocab_size"])

    @property
    def validation_bytes_per_token(self) -> float:
        split = self.manifest["splits"]["validation"]
        return float(split["bytes"] / split["tokens"])

    def longest_window(self, split: str) -> int:
        """The largest `--seq-len` of which this split holds a sample: that many tokens and the one after."""
        shards = self.manifest["splits"][split]["shards"]
        held = here(shards) if self.is_part else range(len(shards))
        return max((int(shards[number]["tokens"]) - 1 for number in held), default=0)

    def must_hold_a_window(self, split: str, length: int) -> None:
        if (longest := self.longest_window(split)) < length:
            raise ConfigurationError(
                f"{self.folder}: the {split} split has fewer than --seq-len {length} + 1 tokens:"
                f" give --seq-len {longest} or less, or prepare more text"
            )


@dataclass(frozen=True, kw_only=True)
class PreparedText(PreparedFolder):
    """Labelled texts as token ids and labels, and their model: nodes need neither the hub nor `transformers`."""

    kind = LABELLED_TEXT

    @property
    def model_name(self) -> str:
        return str(self.manifest["model_name"])

    @property
    def layers(self) -> int:
        """Number of the model's layers."""
        return int(self.manifest["shape"]["layers"])

    @property
    def longest(self) -> int:
        """Tokens of the longest text that the model reads."""
        shape = self.manifest["shape"]
        return int(shape["positions"]) - int(shape["first_position"])

    @property
    def weights_file(self) -> Path | None:
        """Weights of a pretrained model; None: random ones."""
        return self.file("weights") if "weights" in self.manifest["files"] else None

    @property
    def heads(self) -> dict[str, list[str]]:
        """The classes of each head."""
        return {head["name"]: list(head["classes"]) for head in self.manifest["heads"]}

    @property
    def head_weights(self) -> dict[str, float]:
        return {head["name"]: float(head["weight"]) for head in self.manifest["heads"]}

    @property
    def sha256(self) -> str:
        """Hash of all prepared content."""
        return str(self.manifest["content_sha256"])

    def file(self, role: str) -> Path:
        return self.folder / str(self.manifest["files"][role]["file"])
