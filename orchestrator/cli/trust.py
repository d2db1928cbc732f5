"""`orch trust`: accept a node's SSH host key, after its fingerprint was shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.consent import agreed, can_ask
from orchestrator.cli.context import load_inventory
from orchestrator.cli.options import InventoryOption, NodesOption, YesOption
from orchestrator.cli.report import report_error, say
from orchestrator.specs.errors import EXIT_OK, OrchError, PartialError, UsageError
from orchestrator.specs.inventory import NodeSpec

if TYPE_CHECKING:
    from paramiko import PKey

ANSWER_S = 5.0
TIMEOUT_S = 40.0
"""Timeout of all nodes, which are asked in parallel: a DNS answer can be late."""

EXAMPLES = "orch trust -n alpha,beta"


def trust(
    listed: str | None = typer.Argument(None, hidden=True),
    nodes: NodesOption = None,
    inventory: InventoryOption = None,
    yes: YesOption = False,
) -> int:
    """Show the SSH host key of each node, and save it if you accept it.

    A host key that differs from the saved one is always refused, also if it has another type: remove
    the old line from known_hosts yourself if you know why. Exit code 4: no node could be trusted; 5: some could not.
    """
    from orchestrator.fleet.fan_out import fan_out

    specs = [spec for spec in load_inventory(inventory).select(nodes or listed) if spec.connection == "ssh"]
    failed: list[OrchError] = []
    for outcome in fan_out(specs, shown_by, timeout_s=TIMEOUT_S):
        try:
            accept_key(outcome.value(), yes=yes)
        except UsageError:
            raise
        except OrchError as error:
            error.node = error.node or outcome.item.name
            report_error(error)
            failed.append(error)
    if failed and len(failed) < len(specs):
        raise PartialError(f"{len(failed)} of {len(specs)} nodes did not answer or were not trusted")
    return failed[0].exit_code if failed else EXIT_OK


@dataclass(frozen=True, kw_only=True)
class ShownKey:
    """A machine with the host key that it shows."""

    name: str
    address: str
    port: int
    names: tuple[str, ...]
    """Its other names in files of known hosts."""
    key: PKey


def shown_by(spec: NodeSpec) -> ShownKey:
    """Ask a node for its host key, at the address that the SSH configuration gives it."""
    from getpass import getuser

    from orchestrator.nodes.host_keys import offered_key
    from orchestrator.nodes.ssh import resolve
    from orchestrator.nodes.ssh_config import login_of
    from orchestrator.nodes.ssh_login import REFUSALS, Attempt, Keys, refusal

    login = login_of(spec)
    spec, address = login.spec, resolve(login.spec)
    try:
        key = offered_key(address, spec.port, timeout_s=ANSWER_S, names=login.key_names)
    except REFUSALS as error:
        no_keys = Keys(files=(), in_agent=frozenset())  # no login takes place
        user = spec.user or getuser()
        raise refusal(Attempt(spec=spec, user=user, error=error, waited_s=ANSWER_S, keys=no_keys)) from error
    return ShownKey(name=spec.name, address=address, port=spec.port, names=login.key_names, key=key)


def accept_key(machine: ShownKey, *, yes: bool) -> bool:
    """Show an unknown key and ask for consent; return whether the key is trusted. OrchError: it has changed."""
    from orchestrator.nodes.host_keys import accept, changed_key, fingerprint, known_keys, where_to_compare

    name, address, port, key = machine.name, machine.address, machine.port, machine.key
    known = known_keys(address, port, machine.names)
    if key in known:
        say(f"{name}: known already, {fingerprint(key)}")
        return True
    if known:
        raise changed_key(name, address, port, known, key)
    say(f"{name} {address}:{port} shows {fingerprint(key)}")
    say(f"  compare it with what this shows on {name} itself: {where_to_compare(key)}")
    if not yes and not can_ask():
        raise UsageError("no terminal to confirm the host key on", hint=f"orch trust -n {name} --yes")
    if agreed("Is that its key?", yes=yes):
        say(f"{name}: kept in {accept(address, port, key, machine.names)}")
        return True
    say(f"{name}: not accepted")
    return False
