"""`orch init`: from a list of addresses to an inventory.yaml whose machines let your SSH key in."""

from __future__ import annotations

from collections.abc import Sequence
from getpass import getuser
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.consent import agreed, asked, can_ask, chosen, require_consent
from orchestrator.cli.context import load_inventory
from orchestrator.cli.first_contact import let_in
from orchestrator.cli.options import YesOption
from orchestrator.cli.report import exit_code, invocation, report_errors, say
from orchestrator.render.printable import counted
from orchestrator.specs.errors import EXIT_INTERRUPTED, ConfigError, EngineError, UsageError

if TYPE_CHECKING:
    from orchestrator.specs.inventory import Inventory, NodeSpec

EXAMPLES = """\
orch init 192.168.1.11 192.168.1.12
orch init ana@192.168.1.11:2222 'node[1-5]'
orch init --scan 192.168.1.0/24 --user ana
orch init -i hosts.ini
orch init --local
"""


def init(
    machines: list[str] | None = typer.Argument(
        None, metavar="[MACHINE]...", help="Addresses or names: 192.168.1.11, ana@host:2222, node[1-5]."
    ),
    scan: str | None = typer.Option(None, metavar="NETWORK", help="Find machines with SSH, such as 192.168.1.0/24."),
    user: str | None = typer.Option(None, metavar="NAME", help="SSH user for machines without one."),
    local: bool = typer.Option(False, "--local", help="This computer alone, without SSH."),
    inventory: Path | None = typer.Option(
        None, "-i", "--inventory", metavar="FILE", help="The machines of this inventory, also an Ansible one."
    ),
    file: Path = typer.Option(Path("inventory.yaml"), "--file", "-f", metavar="FILE", help="File to write."),
    force: bool = typer.Option(False, "--force", help="Replace the file without asking."),
    ask_each: bool = typer.Option(
        False, "--ask-each", help="Ask for the SSH password of each machine, not once for all."
    ),
    yes: YesOption = False,
) -> int:
    """Write inventory.yaml for machines that you reach by SSH, and copy your public key to them.

    Shows all host keys at once, copies your public key with a password that is asked for and never stored, and looks
    at each machine. A password is tried only on machines that you typed, on those with a known host key, and on others
    if you agree. With -i: the machines of that inventory, which is not changed. Can be repeated: finished steps are
    skipped. Exit code 5: some machines were left out; 4: all were.
    """
    require_consent(yes=yes)
    if local and (machines or scan or user):
        raise UsageError("--local is this computer alone, without SSH: no machine, --scan or --user goes with it")
    if given := inventory or invocation.current.inventory:
        if machines or scan or user or local:
            raise UsageError(f"-i {given} names the machines: no machine, --scan, --user or --local goes with it")
        return _of_inventory(given, each=ask_each, yes=yes)
    if file.exists() and yes and not force:
        raise UsageError(f"{file} is there already; nothing was done", hint="--force replaces it; --file names another")
    if local:
        specs = fit = list(this_computer().nodes)
    else:
        typed, found = _words(machines or [], scan, yes=yes)
        specs = list(_specs([*typed, *found], user, yes=yes))
        places = {word if ":" in word else f"{word}:22" for word in found}
        named = [spec.name for spec in specs if f"{spec.address}:{spec.port}" not in places]
        fit = let_in(specs, named=named, each=ask_each, yes=yes)
    left_out = [spec.name for spec in specs if spec not in fit]
    if not fit:
        say("no machine can be used; nothing was written")
        return exit_code(len(specs), len(specs))
    if left_out and not agreed(
        f"Leave out {', '.join(left_out)} and write the others?", yes=yes, default=True, ends=True
    ):
        say("nothing was written; what was done on the machines stays: repeat this command")
        return EXIT_INTERRUPTED
    if not write_inventory(fit, file, force=force, yes=yes):
        return EXIT_INTERRUPTED
    where = "" if file == Path("inventory.yaml") else f" -i {quote(str(file))}"
    say(f"next: orch {_next_after_a_look(fit)}{where}")
    return exit_code(len(left_out), len(specs))


def this_computer(engine: str = "") -> Inventory:
    """Return an inventory with this computer as its only node."""
    from orchestrator.specs.inventory_files.inventory_file import parse_inventory

    own = f", engine: {engine}" if engine == "process" else ""
    return parse_inventory(f"nodes: {{here: {{address: 127.0.0.1, connection: local{own}}}}}", filename="this computer")


def _of_inventory(file: Path, *, each: bool, yes: bool) -> int:
    """Bring the key to the machines of an inventory, and look at them."""
    specs = load_inventory(file).inventory.nodes
    fit = let_in(specs, listed=[spec.name for spec in specs], each=each, yes=yes)
    if left_out := [spec.name for spec in specs if spec not in fit]:
        say(f"without your key: {', '.join(left_out)}; {file} was left as it is")
    if fit:
        chosen_ones = f" -n {','.join(spec.name for spec in fit)}" if left_out else ""
        say(f"next: orch {_next_after_a_look(fit)} -i {quote(str(file))}{chosen_ones}")
    return exit_code(len(left_out), len(specs))


def _words(given: Sequence[str], scan: str | None, *, yes: bool) -> tuple[list[str], list[str]]:
    """Machines that were typed, on the command line or the terminal, and those that were found by a scan or mDNS."""
    typed, found = list(given), list[str]()
    if scan:
        from orchestrator.fleet.readiness.find_machines import find_machines, subnet

        network = subnet(scan)
        say(f"looking for SSH servers in {network}")
        found = list(find_machines(network))
        say(f"{counted(len(found), 'machine')} with SSH: {', '.join(found) or '-'}")
        if found and not yes and can_ask():
            found = list(chosen("Use them?", found, yes=yes, default=True))
    if not typed and not scan and not yes and can_ask():
        found = _announced()
        typed = [] if found else asked("Addresses of your machines, separated by spaces").split()
    if not typed and not found:
        raise UsageError("no machines", hint="orch init 192.168.1.11 192.168.1.12, or --scan 192.168.1.0/24")
    return typed, found


def _announced() -> list[str]:
    """Those of the machines that announce SSH by mDNS that the user wants."""
    from orchestrator.fleet.readiness.find_machines import announced_machines

    if not (found := announced_machines()):
        return []
    say(f"announced by mDNS: {', '.join(f'{word} ({host})' for word, host in found.items())}")
    return list(chosen("Use them?", tuple(found), yes=False, default=True))


def _specs(words: Sequence[str], user: str | None, *, yes: bool) -> tuple[NodeSpec, ...]:
    """Validated nodes; the user of addresses without one is asked for."""
    from orchestrator.specs.inventory_files.inventory_file import parse_inventory
    from orchestrator.specs.inventory_files.inventory_import import ImportedInventory, inventory_text
    from orchestrator.specs.inventory_files.machine_words import machines_of

    found = machines_of(words, user=user)
    nameless = [one for one in found if "user" not in one.values and one.name.startswith("node")]
    if nameless and user is None and not yes and can_ask():
        user = asked("User on these machines", default=getuser()).strip()
        found = machines_of(words, user=user if user != getuser() else None)
    text, notes = inventory_text(ImportedInventory(nodes=found), source="the command line")
    if notes:
        raise UsageError(notes[0], hint="expected 192.168.1.11, ana@host:2222 or node[1-5]")
    return parse_inventory(text, filename="the machines").nodes


def write_inventory(specs: Sequence[NodeSpec], file: Path, *, force: bool, yes: bool) -> bool:
    """Write the inventory; return whether the file has it now. An existing one is replaced on consent only."""
    from orchestrator.specs.inventory_files.inventory_import import ImportedInventory, ImportedNode, inventory_text

    keys = {"address", "user", "port", "connection", "engine"}
    nodes = tuple(ImportedNode(name=one.name, values=one.model_dump(include=keys, exclude_unset=True)) for one in specs)
    text, _ = inventory_text(ImportedInventory(nodes=nodes), source="the command line", command="init")
    try:
        if file.exists() and file.read_text(encoding="utf-8", errors="replace") == text:
            say(f"{file} is up to date")
            return True
        if file.exists() and not force and not agreed(f"{file} is there already. Replace it?", yes=yes):
            say(f"{file} was left as it is; --file writes another one")
            return False
        new = file.with_name(f".{file.name}.new")
        new.write_text(text, encoding="utf-8")
        new.replace(file)
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}") from error
    say(f"wrote {file}: {counted(len(specs), 'node')}")
    return True


def _next_after_a_look(specs: Sequence[NodeSpec]) -> str:
    """Report what a first look at the machines finds, and return the command that comes next."""
    from orchestrator.fleet.connect import connected
    from orchestrator.fleet.gather import gather_facts
    from orchestrator.fleet.readiness.quick_look import quick_look
    from orchestrator.render.findings import sentence
    from orchestrator.specs.request import LaunchRequest

    say(f"looking at {counted(len(specs), 'machine')}")
    with connected(specs) as nodes:
        outcomes = gather_facts(nodes, LaunchRequest(project="orch", nodes=tuple(specs)))
    errors = [outcome.error for outcome in outcomes if outcome.error]
    without = [error for error in errors if isinstance(error, EngineError)]
    report_errors(error for error in errors if error not in without)
    facts = {outcome.item.name: outcome.result for outcome in outcomes if outcome.result}
    for finding in quick_look([spec for spec in specs if spec.name in facts], facts, {}):
        if not finding.id.startswith("image."):
            say(f"{sentence([finding.node], finding)} [{finding.id}]\n  → {finding.fix}")
    for reason in dict.fromkeys(error.message for error in without):
        say(f"{', '.join(error.node for error in without if error.message == reason)}: {reason}")
    if without:
        return "setup"
    return "doctor" if errors else "build"
