"""Reasons why a node could not be asked."""

from __future__ import annotations

from enum import StrEnum


class Reach(StrEnum):
    """Kind of obstacle that a connection met: determined by the step that failed, never by the text of an error."""

    NO_ADDRESS = "no address"
    NO_ANSWER = "no answer"
    REFUSED = "refused"
    """The machine is there, and nothing listens on its port."""
    KEY_UNKNOWN = "unknown host key"
    KEY_CHANGED = "changed host key"
    LOGIN = "login refused"
    NO_KEY = "no key to log in with"
    IDENTITY_MISSING = "the key of the inventory is missing"
    KEY_LOCKED = "key locked by a passphrase"
    PROXY_COMMAND = "the ProxyCommand failed"
    SHELL = "the login shell runs no commands"
    OTHER = "other"
