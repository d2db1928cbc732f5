"""The manifest of prepared texts. Needs Python alone: the controller checks options against it."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.data.prepared_folder import LABELLED_TEXT, PreparedFolder


@dataclass(frozen=True, kw_only=True)
class TextManifest(PreparedFolder):
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
        """How many tokens of a text that model reads."""
        shape = self.manifest["shape"]
        return int(shape["positions"]) - int(shape["first_position"])

    @property
    def has_weights(self) -> bool:
        """Whether the model was trained before; otherwise its weights are random."""
        return "weights" in self.manifest["files"]

    @property
    def heads(self) -> dict[str, list[str]]:
        """The classes of each head."""
        return {head["name"]: list(head["classes"]) for head in self.manifest["heads"]}

    @property
    def head_weights(self) -> dict[str, float]:
        return {head["name"]: float(head["weight"]) for head in self.manifest["heads"]}
