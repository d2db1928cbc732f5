"""The lab's own keys: one for its user, one for every node's sshd, made here so that nothing is trusted unseen."""

from __future__ import annotations

from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat


@dataclass(frozen=True, kw_only=True)
class KeyPair:
    """An ed25519 key in OpenSSH's formats."""

    private: str
    public: str


def new_key_pair(comment: str) -> KeyPair:
    """A fresh key without a passphrase."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return KeyPair(private=private.decode(), public=f"{public.decode()} {comment}")


def known_hosts_line(address: str, key: KeyPair) -> str:
    """The line that pins a node's host key."""
    kind, value, *_ = key.public.split()
    return f"{address} {kind} {value}\n"
