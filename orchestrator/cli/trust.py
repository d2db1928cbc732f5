"""`orch trust`: accept a node's SSH host key, after its fingerprint was shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.consent import can_ask, chosen
from orchestrator.cli.context import LoadedInventory, load_inventory
from orchestrator.cli.options import InventoryOption, NodesOption, YesOption
from orchestrator.cli.report import report_error, say
from orchestrator.specs.errors import EXIT_OK, ConfigError, OrchError, PartialError, UsageError

if TYPE_CHECKING:
    from paramiko import PKey

    from orchestrator.fleet.fan_out import Outcome
    from orchestrator.specs.inventory import NodeSpec

ANSWER_S = 5.0
TIMEOUT_S = 40.0
"""Timeout of all nodes, which are asked in parallel: a DNS answer can be late."""

EXAMPLES = "orch trust -n alpha,beta\norch trust --hooks DIGEST"


def trust(
    nodes: NodesOption = None,
    inventory: InventoryOption = None,
    hooks: str | None = typer.Option(
        None, metavar="DIGEST", help="Agree to the hooks of the inventory that have this digest, as a launch shows it."
    ),
    yes: YesOption = False,
) -> int:
    """Show the SSH host keys of the nodes, and save those that you accept.

    A host key that differs from the saved one is always refused, also if it has another type: remove
    the old line from known_hosts yourself if you know why. Exit code 4: no node could be trusted; 5: some could not.
    """
    from orchestrator.fleet.fan_out import fan_out

    if hooks is not None:
        return _trust_hooks(load_inventory(inventory), hooks)
    specs = [spec for spec in load_inventory(inventory).select(nodes) if spec.connection == "ssh"]
    _, failed = accept_keys(fan_out(specs, shown_by, timeout_s=TIMEOUT_S), yes=yes)
    if failed and len(failed) < len(specs):
        raise PartialError(f"{len(failed)} of {len(specs)} nodes did not answer or were not trusted")
    return failed[0].exit_code if failed else EXIT_OK


def _trust_hooks(loaded: LoadedInventory, given: str) -> int:
    """Grant the hooks of an inventory, if they are those whose digest was given."""
    from orchestrator.fleet.supervise.hooks import SHOWN_DIGITS, grant, hook_lines, hooks_digest

    hooks, folder = loaded.inventory.hooks, loaded.path.absolute().parent
    digest = hooks_digest(hooks, folder)
    if not digest:
        raise ConfigError(f"{loaded.path} has no hooks")
    lines = hook_lines(hooks, folder)
    if len(given) < SHOWN_DIGITS or not digest.startswith(given):
        raise ConfigError(
            f"the hooks of {loaded.path} have another digest",
            problems=lines,
            hint=f"orch trust --hooks {digest[:SHOWN_DIGITS]}   # if they are as they should be",
        )
    grant(digest, folder)
    say(f"hooks of {loaded.path} may run, until they change:")
    for line in lines:
        say(f"  {line}")
    return EXIT_OK


@dataclass(frozen=True, kw_only=True)
class ShownKey:
    """A machine with the host key that it shows."""

    name: str
    address: str
    port: int
    names: tuple[str, ...]
    """Its other names in files of known hosts."""
    key: PKey

    @property
    def place(self) -> str:
        return f"{self.address}:{self.port}"


def shown_by(spec: NodeSpec) -> ShownKey:
    """Ask a node for its host key, at the address that the SSH configuration gives it, through its jump hosts."""
    from orchestrator.nodes.ssh_connection import shown_key

    login, address, key = shown_key(spec, timeout_s=ANSWER_S)
    return ShownKey(name=spec.name, address=address, port=login.spec.port, names=login.key_names, key=key)


def is_known(machine: ShownKey) -> bool:
    """Return whether the host key of the machine is on record; a changed one is not."""
    from orchestrator.nodes.host_keys import known_keys

    return machine.key in known_keys(machine.address, machine.port, machine.names)


def accept_keys(
    outcomes: Sequence[Outcome[NodeSpec, ShownKey]], *, yes: bool, again: str = ""
) -> tuple[list[NodeSpec], list[OrchError]]:
    """Show all unknown keys and ask for consent once; return the trusted machines, and the errors, which are reported.

    A changed key is an error. `again`: the command that comes after it was removed (default: `orch trust`).
    """
    from orchestrator.nodes.host_keys import accept, changed_key, known_keys

    new: list[ShownKey] = []
    trusted: list[str] = []
    failed: list[OrchError] = []
    for outcome in outcomes:
        try:
            machine = outcome.value()
            known = known_keys(machine.address, machine.port, machine.names)
            if known and machine.key not in known:
                raise changed_key(machine.name, machine.address, machine.port, known, machine.key, then=again)
        except OrchError as error:
            error.node = error.node or outcome.item.name
            report_error(error)
            failed.append(error)
        else:
            if known:
                trusted.append(machine.name)
            else:
                new.append(machine)
    if trusted:
        say(f"host key known already: {', '.join(trusted)}")
    accepted = _accepted(new, yes=yes)
    files = {str(accept(one.address, one.port, one.key, one.names)) for one in accepted}
    if accepted:
        say(f"host keys saved in {', '.join(files)}: {', '.join(one.name for one in accepted)}")
    trusted += [one.name for one in accepted]
    return [outcome.item for outcome in outcomes if outcome.item.name in trusted], failed


def _accepted(new: Sequence[ShownKey], *, yes: bool) -> list[ShownKey]:
    """Show the keys in one table, and return those that are accepted."""
    from orchestrator.nodes.host_keys import where_to_compare
    from orchestrator.render.console import stderr
    from orchestrator.render.table import Column, Table

    if not new:
        return []
    rows = [(one.name, one.place, one.key.get_name(), one.key.fingerprint) for one in new]
    stderr().print(Table(columns=[Column("machine"), Column("address"), Column("type"), Column("host key")], rows=rows))
    compare = " or ".join(dict.fromkeys(where_to_compare(one.key) for one in new))
    say(f"compare with what this shows on the machine itself: {compare}")
    names = [one.name for one in new]
    if not yes and not can_ask():
        raise UsageError("no terminal to confirm the host keys on", hint=f"orch trust -n {','.join(names)} --yes")
    accepted = chosen("Are these their keys?" if len(new) > 1 else "Is that its key?", names, yes=yes)
    if refused := [name for name in names if name not in accepted]:
        say(f"not accepted: {', '.join(refused)}")
    return [one for one in new if one.name in accepted]
