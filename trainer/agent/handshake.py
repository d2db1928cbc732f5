"""Mutual authentication of a node and the coordinator of an attempt.

Both have the attempt's token, which is never sent: each signs the random nonce of the other (HMAC), so that no answer
from earlier, or for another node or attempt, is valid. Later messages on the connection are not signed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainer.agent.messages import MisfitError, values_of, whole
from trainer.errors import ConfigurationError

SHORTEST = 32
"""Minimum number of characters of a token: 128 bits in hexadecimal."""
MESSAGES, FILES, OWNERS = PURPOSES = ("messages", "files", "owners")
"""Uses of a connection; the last one is for the questions of `connection_owner`."""
_NONCE = re.compile(r"[0-9a-f]{32}")
_PROOF = re.compile(r"[0-9a-f]{64}")


def read_token(file: Path) -> bytes:
    """Read the attempt's token. ConfigurationError: it is missing or too short."""
    try:
        token = file.read_bytes().strip()
    except OSError as error:
        raise ConfigurationError(
            f"the token of this attempt, with which its nodes authenticate each other, cannot be read: {error}; "
            "`orch launch` writes it on every node"
        ) from error
    if len(token) < SHORTEST:
        raise ConfigurationError(f"{file} has {len(token)} characters; the token of an attempt has {SHORTEST} or more")
    return token


@dataclass(frozen=True, kw_only=True)
class Greeting:
    """Values that a node and the coordinator sign on one connection."""

    run: str
    """Run and attempt."""
    node_rank: int
    asked: str
    """Nonce of the coordinator."""
    drawn: str = ""
    """Nonce of the node."""
    purpose: str = MESSAGES
    """Use of the connection: `messages`, or another one beside them."""

    def signed(self, token: bytes, who: str) -> str:
        """Sign as `node` or `coordinator`: proof that the signer has the token."""
        text = json.dumps([who, self.run, self.node_rank, self.asked, self.drawn, self.purpose])
        return hmac.new(token, text.encode(), hashlib.sha256).hexdigest()

    def is_proven(self, token: bytes, who: str, proof: str) -> bool:
        return hmac.compare_digest(self.signed(token, who), proof)

    def as_message(self, token: bytes) -> Mapping[str, object]:
        proof = self.signed(token, "node")
        return {
            "run": self.run, "node_rank": self.node_rank, "drawn": self.drawn, "purpose": self.purpose, "proof": proof,
        }  # fmt: skip


def draw() -> str:
    return secrets.token_hex(16)


def read_asked(line: bytes) -> str:
    """Decode the coordinator's nonce, its first line. MisfitError: the peer is not a coordinator."""
    return _word(values_of(line), "asked", _NONCE)


def read_greeting(line: bytes, asked: str, nodes: int, token: bytes) -> Greeting:
    """Decode the greeting of a node. MisfitError: it is invalid, or the sender does not have the token."""
    values = values_of(line)
    run = values.get("run")
    greeting = Greeting(
        run=run if isinstance(run, str) else "",
        node_rank=whole(values, "node_rank", least=1, most=nodes - 1),
        asked=asked,
        drawn=_word(values, "drawn", _NONCE),
        purpose=next((one for one in PURPOSES if one == values.get("purpose")), MESSAGES),
    )
    if not greeting.is_proven(token, "node", _word(values, "proof", _PROOF)):
        raise MisfitError("it does not have the token of this attempt")
    return greeting


def read_welcome(line: bytes, greeting: Greeting, token: bytes) -> None:
    """Verify the coordinator's answer. MisfitError: it lacks the token, or refuses this node for this reason."""
    values = values_of(line)
    if not greeting.is_proven(token, "coordinator", _word(values, "proof", _PROOF)):
        raise MisfitError("the process that answers does not have the token of this attempt")
    if refused := values.get("refused"):
        raise MisfitError(str(refused)[:200])


def _word(values: Mapping[str, object], key: str, shape: re.Pattern[str]) -> str:
    word = values.get(key)
    if not isinstance(word, str) or not shape.fullmatch(word):
        raise MisfitError(f"{key} is missing or has an invalid format")
    return word
