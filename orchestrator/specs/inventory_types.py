"""Patterns and types of the values in `inventory.yaml`, each with a description of what is valid."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from orchestrator.specs.labels import NODE_NAME

NAME = NODE_NAME
HOST = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?$"
"""An IPv4 address or a host name: begins with a letter or digit, so never an option of some command."""
USER = r"^[A-Za-z_][A-Za-z0-9_.-]{0,31}$"
JUMP = r"^([A-Za-z_][A-Za-z0-9_.-]{0,31}@)?[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?(:[1-9][0-9]{0,4})?$"
INTERFACE = r"^[A-Za-z0-9_][A-Za-z0-9_.@-]{0,14}$"
PATH = r"""^~?/[^\x00-\x1f\x7f:;|&$<>`"'\\*?!(){}\[\]#]*$"""
"""Absolute or under the home of the node's user; no colon, which separates the parts of a mount, and nothing a shell
would read as more than a path."""
SIZE = r"^([0-9]{1,7}(?:\.[0-9]{1,3})?) ?([mM]|[gG])([iI]?[bB])?$"
FILE = r"^[^\x00-\x1f\x7f]+$"
"""A file of this computer: it reaches no shell and no node. At most `LONGEST_TEXT` characters, which the field says:
pydantic's engine takes 8 MiB and 20 ms for a pattern that repeats a class of characters up to 4,096 times."""
LONGEST_TEXT = 4096
LABEL_KEY = r"^[A-Za-z0-9_][A-Za-z0-9_./-]{0,62}$"
LABEL_VALUE = r"^[^\x00-\x1f\x7f]*$"
LONGEST_LABEL = 253

_SIZE = re.compile(SIZE)
HOST_EXPECTED = "a host name or an IPv4 address"


@dataclass(frozen=True)
class Expected:
    """Description of valid values for messages: `expected …`."""

    text: str


def parse_size_mib(value: object) -> object:
    """`512m`, `4g` (powers of 1024) into MiB."""
    if isinstance(value, str) and (match := _SIZE.fullmatch(value)):
        factor = 1024 if match.group(2) in "gG" else 1
        return int(float(match.group(1)) * factor)
    raise ValueError("a size such as 512m or 4g")


def _ipv4_only(value: object) -> object:
    if isinstance(value, str) and ":" in value:
        try:
            IPv6Address(value.strip("[]"))
        except AddressValueError:
            return value
        raise ValueError(f"{HOST_EXPECTED}; IPv6 is not supported for now, IPv4 only")
    return value


def real_ipv4(value: str) -> str:
    """The host name or address; ValueError for four numbers that are no address of a machine."""
    if not re.fullmatch(r"[0-9.]+", value):
        return value
    try:
        address = IPv4Address(value)
    except AddressValueError as error:
        raise ValueError(f"{HOST_EXPECTED}: four numbers from 0 to 255") from error
    if address.is_unspecified or address.is_multicast or address == IPv4Address("255.255.255.255"):
        raise ValueError(f"{HOST_EXPECTED} of one machine")
    return value


def no_number(value: str) -> str:
    """The name; ValueError for digits alone, which `--nodes` reads as a count."""
    if value.isdecimal():
        raise ValueError("a name that is not only digits, because --nodes 5 means five nodes")
    return value


NAME_EXPECTED = Expected("lower-case letters, digits, '-', '.' or '_', at most 63, a letter or digit at both ends")
SIZE_EXPECTED = Expected("a size such as 512m or 4g")
PATH_EXPECTED = Expected("a path that begins with / or ~/, without colons and shell characters")

SizeMib = Annotated[
    int,
    BeforeValidator(parse_size_mib),
    Field(gt=0),
    WithJsonSchema({"type": "string", "pattern": SIZE}),
]
Host = Annotated[str, BeforeValidator(_ipv4_only), Field(pattern=HOST), AfterValidator(real_ipv4)]
Port = Annotated[int, Field(ge=1, le=65535)]
LabelKey = Annotated[str, Field(pattern=LABEL_KEY)]
LabelValue = Annotated[str, Field(pattern=LABEL_VALUE, max_length=LONGEST_LABEL)]


class InventoryModel(BaseModel):
    """A part of the inventory: frozen, without unknown keys, values of exactly their type."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=False)
