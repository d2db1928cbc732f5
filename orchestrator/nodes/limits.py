"""How much a command may write before its caller stops listening: a node that never ends fills no memory here."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.specs.errors import CommandFailedError

MIB = 1024 * 1024
OUTPUT_LIMIT = 16 * MIB
"""Of stdout and of stderr, in bytes; what is longer is read as a stream."""


class Output(bytearray):
    """What a command writes, as far as it is kept."""

    def __init__(self, argv: Sequence[str], node: str) -> None:
        super().__init__()
        self._command, self._node = argv[0], node

    def add(self, chunk: bytes) -> None:
        """CommandFailedError where it is too much."""
        if len(self) + len(chunk) > OUTPUT_LIMIT:
            raise CommandFailedError(
                f"{self._command} wrote more than {OUTPUT_LIMIT // MIB} MiB, the limit of one command; it was ended",
                node=self._node,
            )
        self += chunk

    @property
    def text(self) -> str:
        return self.decode(errors="replace")
