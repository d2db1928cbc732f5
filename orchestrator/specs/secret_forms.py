"""Forms by which a value is known to be a secret, whatever it is called."""

from __future__ import annotations

import re

REDACTED = "***"
_LOGIN = re.compile(r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{0,31}://[^/\s:@]{0,256}:([^/\s@]{1,1024})@")
"""User and password before the host of an address."""
_USER = re.compile(r"(?<=://)[^/\s@]{1,1280}(?=@)")
_QUERY = re.compile(
    r"(?<=[?&])[\w.-]{0,64}(?:token|api_?key|access_?key|sig|signature|password|secret)=([^&\s#\"']+)", re.IGNORECASE
)
"""A token in the query of an address."""
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:gh[opsru]_[A-Za-z0-9]{20,255}|github_pat_\w{20,255}|glpat-[\w-]{20,255}|hf_[A-Za-z0-9]{20,255}"
    r"|sk-(?:proj|ant|svcacct|admin|or)-[\w-]{20,255}|sk-[A-Za-z0-9]{20,255}|(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Z0-9])"
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,255}|AIza[\w-]{35}|npm_[A-Za-z0-9]{36}|pypi-AgE[\w-]{20,255}|dckr_pat_[\w-]{20,255}"
    r"|eyJ[\w-]{8,4096}\.eyJ[\w-]{8,4096}\.[\w-]{8,4096})"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY.{0,65536}?(?:-----END [A-Z ]{0,60}-----|\Z)",
    re.DOTALL,
)
"""Tokens of GitHub, GitLab, Hugging Face, OpenAI, Anthropic, AWS, Slack, Google, npm, PyPI and Docker; JSON Web Tokens;
private keys in PEM."""


def secrets_in(value: str) -> list[str]:
    """Tokens, private keys, and passwords of addresses in a value."""
    addresses = [*_LOGIN.finditer(value), *(_QUERY.finditer(value) if "://" in value else ())]
    return [*(found[0] for found in _TOKEN.finditer(value)), *(found[1] for found in addresses)]


def hide_secrets(text: str) -> str:
    """A text without what has the form of a secret: tokens, private keys, and the credentials of addresses."""
    text = _USER.sub(REDACTED, _TOKEN.sub(REDACTED, text))
    return _QUERY.sub(lambda found: found[0].removesuffix(found[1]) + REDACTED, text)
