"""One host of an Ansible inventory as a node: the variables that say how to reach a machine."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.specs.inventory_files.ansible_vars import VAULT
from orchestrator.specs.inventory_files.inventory_import import ImportedNode
from orchestrator.specs.inventory_files.inventory_yaml import shown

_SPELLINGS = {
    "address": ("ansible_host", "ansible_ssh_host"),
    "user": ("ansible_user", "ansible_ssh_user"),
    "port": ("ansible_port", "ansible_ssh_port"),
    "identity": ("ansible_private_key_file", "ansible_ssh_private_key_file"),
}
"""Names of one key: if both are given, the later one wins, as in Ansible's ssh connection."""
_KEY_OF = {variable: key for key, variables in _SPELLINGS.items() for variable in variables}
_ARGUMENTS = ("ansible_ssh_common_args", "ansible_ssh_extra_args")
_CONNECTION = "ansible_connection"
REACH = frozenset({*_KEY_OF, *_ARGUMENTS, _CONNECTION})
"""Variables that say how to reach a machine."""
_SSH = ("ssh", "smart", "paramiko", "paramiko_ssh")
_TEMPLATE = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_TEMPLATES_DEEP, _TEMPLATE_CHARACTERS = 8, 1000
_WITH_VALUE = ("-o", "-J", "-W", "-i", "-p", "-l", "-F")
_TARGET = re.compile(r"(?:[\w.-]+@)?[\w.-]+(?::\d{1,5})?")

UNUSED = "the variable "
"""Beginning of the notes on variables that say nothing about how to reach a machine."""

Note = Callable[[str], None]


def node_of(host: str, variables: Mapping[str, Any], groups: Sequence[str], note: Note) -> ImportedNode | None:
    """The host as a node, or None where no node can be made of it; `note` is called with each thing left out."""
    variables = {"inventory_hostname": host, "inventory_hostname_short": host.partition(".")[0], **variables}
    connection = str(variables.get(_CONNECTION, "ssh")).removeprefix("ansible.builtin.")
    if connection != "local" and connection not in _SSH:
        note(f"{host} left out: Ansible reaches it by {shown(connection)}, orch by SSH only")
        return None
    values: dict[str, Any] = {"address": host}
    if _CONNECTION in variables:
        values["connection"] = "local" if connection == "local" else "ssh"
    for key, spellings in _SPELLINGS.items():
        given = {name: resolved(variables[name], variables) for name in spellings if name in variables}
        if len({str(value) for value in given.values()}) > 1:
            note(f"{host}: {' and '.join(given)} differ; took {shown(list(given.values())[-1])}")
        for name, value in given.items():
            if obstacle := _unreadable(value):
                left_out = " left out: its" if key == "address" else ":"
                note(f"{host}{left_out} {name} is {obstacle}; write its value yourself")
                if key == "address":
                    return None
            else:
                values[key] = int(value) if key == "port" and _is_port(value) else value
    for name in _ARGUMENTS:
        if name in variables:
            _read_arguments(host, name, str(resolved(variables[name], variables)), values, note)
    for name in variables:
        if name not in REACH and not name.startswith("inventory_hostname"):
            note(f"{UNUSED}{shown(name)} is not supported in an inventory")
    if groups:
        values["labels"] = {"group": ",".join(groups)}
    return ImportedNode(name=host, values=values)


def _unreadable(value: Any) -> str:
    """Description of a value that only Ansible itself can read; empty for others."""
    if (isinstance(value, dict) and "__ansible_vault" in value) or str(value).startswith(VAULT):
        return "encrypted by ansible-vault"
    return f"a template, {shown(value)}" if isinstance(value, str) and "{{" in value else ""


def resolved(value: Any, variables: Mapping[str, Any]) -> Any:
    """The value with `{{ name }}` replaced by that variable of the same host; other templates stay as they are."""

    def plain(match: re.Match[str]) -> str:
        given = variables.get(match[1], match[0])
        return match[0] if isinstance(given, (dict, list)) else str(given)

    for _ in range(_TEMPLATES_DEEP):
        if not isinstance(value, str) or len(value) > _TEMPLATE_CHARACTERS:
            break
        value = _TEMPLATE.sub(plain, value)
    return value


def _read_arguments(host: str, name: str, text: str, values: dict[str, Any], note: Note) -> None:
    """A jump host of ssh's options: `-J`, `-o ProxyJump=`, or `-o ProxyCommand="ssh -W %h:%p …"`."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    rest: list[str] = []
    for option, value in _options(words):
        key, _, given = value.partition("=")
        if option == "-J" or (option == "-o" and key.lower() == "proxyjump"):
            jump = value if option == "-J" else given
        elif option == "-o" and key.lower() == "proxycommand":
            jump = jump_of_command(given)
        else:
            rest.append(f"{option} {value}".strip())
            continue
        if _TARGET.fullmatch(jump):
            values["jump"] = jump
        else:
            rest.append(f"{option} {value}")
    if rest or not words:
        note(f"{host}: of {name}, {shown(' '.join(rest) or text)} is not supported; see jump and identity")


def _options(words: Sequence[str]) -> list[tuple[str, str]]:
    """Options of ssh with their values: `-o X=Y`, `-oX=Y`, `-J host`, `-q`; a word of its own has an empty option."""
    pairs: list[tuple[str, str]] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word in _WITH_VALUE:
            pairs.append((word, left.pop(0) if left else ""))
        elif word.startswith(("-o", "-J")):
            pairs.append((word[:2], word[2:]))
        else:
            pairs.append((word, "") if word.startswith("-") else ("", word))
    return pairs


def jump_of_command(command: str) -> str:
    """The jump host of `ProxyCommand ssh -W %h:%p [-q] [-p PORT] [USER@]HOST`; empty for every other command."""
    try:
        words = shlex.split(command)
    except ValueError:
        return ""
    if not words or words[0].rpartition("/")[2] != "ssh" or "-W" not in words:
        return ""
    port, target = "", ""
    for option, value in _options(words[1:]):
        if option == "-p":
            port = value
        elif not option and not target:
            target = value
        elif option not in ("-W", "-q"):
            return ""
    return f"{target}:{port}" if port and target else target


def _is_port(value: Any) -> bool:
    return isinstance(value, int) or (str(value).isascii() and str(value).isdecimal() and len(str(value)) <= 5)
