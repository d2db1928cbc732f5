"""`orch lab`: a LAN in a box."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.consent import agreed
from orchestrator.cli.flags import CommandGroup
from orchestrator.cli.options import JsonOption, Output, YesOption
from orchestrator.cli.report import say, write_json
from orchestrator.render.printable import counted
from orchestrator.specs.errors import EXIT_INTERRUPTED, EXIT_OK, ConfigError, UsageError

NodeArgument = Annotated[list[str], typer.Argument(metavar="NODE...", help="Names, or positions from 1.")]


class LabEngine(StrEnum):
    """Kinds of node: a machine in Docker, a process without containers, or a machine of a Slurm cluster in Docker."""

    docker = "docker"
    process = "process"
    slurm = "slurm"


GROUP = CommandGroup(
    help="Simulate a LAN of machines on this computer.",
    epilog="orch lab up --nodes 5 --link 1gbit\norch lab cut gamma\norch lab heal gamma\norch lab down",
    no_args_is_help=True,
)


@GROUP.command(
    epilog="orch lab up\norch lab up --nodes 3 --link 100mbit --memory 4g\norch lab up --engine process\n"
    "orch lab up --engine slurm --nodes 3"
)
def up(
    *,
    nodes: int = typer.Option(5, "-n", "--nodes", metavar="N", help="Number of machines."),
    link: str | None = typer.Option(
        None, metavar="SPEED", help="Speed of every link in kbit, mbit or gbit per second (off: unlimited)."
    ),
    engine: LabEngine = typer.Option(
        LabEngine.docker,
        metavar="docker|process|slurm",
        help="docker: machines in containers; process: no containers; slurm: N compute nodes and a login node.",
    ),
    cpus: float | None = typer.Option(None, metavar="N", min=0.1, help="Cores of each machine (default: all)."),
    memory: str | None = typer.Option(None, metavar="SIZE", help="Memory of each machine, e.g. 4g."),
    name: str | None = typer.Option(None, metavar="NAME", help="Name of the lab (default: lab).", show_default=False),
    base: str | None = typer.Option(None, metavar="IMAGE", help="Debian base image of the machines."),
    output: Output,
) -> None:
    """Start N simulated machines and write their inventory.

    Each machine has its own sshd, Docker Engine, address and disk. A second `up` keeps the machines that exist and
    powers on those that are off. While the lab is up, commands in a folder without an inventory.yaml use
    the lab's.
    """
    from orchestrator.lab import up_down
    from orchestrator.lab.inventory import MachineSize
    from orchestrator.lab.state import inventory_file

    size = MachineSize(cpus=cpus, memory_mib=_size_mib(memory))
    request = up_down.LabRequest(
        nodes=nodes, name=name, engine=engine.value, link=link, size=size, base=base, make_base=_make_base
    )
    up_down.up(request, say)
    _show(output)
    say(f"inventory: {inventory_file()}")
    if engine is LabEngine.slurm:
        say("a Slurm cluster, with its workspace in /shared/orch\n  → orch lab shell login -- sinfo")
        return
    first = "orch build && orch prepare" if engine is LabEngine.docker else "orch prepare"
    say(
        "commands in folders without an inventory.yaml find it while the lab is up\n"
        f"  → {first} && orch launch --nodes {nodes} -- gpt2 --preset lab"
    )


def _make_base() -> None:
    """Make the base of the node images, as `orch build` does, unless it exists."""
    from orchestrator.fleet.images.base_image import ensure_base
    from orchestrator.nodes.local import LocalNode
    from orchestrator.plan.image import DEFAULT_BASE

    with closing(LocalNode()) as controller:
        ensure_base(controller, DEFAULT_BASE, lambda _node, progress: say(progress.text))


@GROUP.command(epilog="orch lab down")
def down(
    name: str | None = typer.Option(
        None, metavar="NAME", help="Remove the lab with this name, even if another folder started it."
    ),
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> int:
    """Remove the lab and its disks, but not the images.

    Asks first if the machines hold checkpoints. To keep one on this computer: orch checkpoints pull RUN
    """
    from orchestrator.lab.up_down import down as take_down

    if not _may_be_lost(name, yes=yes):
        say("nothing was removed")
        return EXIT_INTERRUPTED
    gone = take_down(name)
    if as_json:
        write_json({"removed": gone})
    say("\n".join(f"removed {thing}" for thing in gone) or "no lab is up: nothing to remove")
    return EXIT_OK


def _may_be_lost(name: str | None, *, yes: bool) -> bool:
    """Return whether data that only the machines of the lab hold may be removed with them."""
    from orchestrator.lab.state import inventory_file
    from orchestrator.lab.up_down import saved_on_cluster, strange_folders

    if yes:
        return True
    lost = [f"the lab {name} was brought up from {folder}" for folder in (strange_folders(name) if name else ())]
    if runs := saved_on_cluster():
        lost.append(f"{counted(len(runs), 'run')} with checkpoints in its shared folder: {', '.join(runs)}")
    elif inventory_file().exists():
        lost += _only_there(inventory_file())
    for line in lost:
        say(line)
    return not lost or agreed("Remove the lab and everything on its machines?", yes=False)


def _only_there(inventory: Path) -> list[str]:
    """Return lines about runs with data on the machines alone, as far as those answer."""
    from orchestrator.cli.context import load_inventory
    from orchestrator.fleet.checkpoints.survey import places_in, survey
    from orchestrator.fleet.connect import connected

    try:
        lab = load_inventory(inventory).inventory
    except ConfigError as error:
        return [f"whether its machines hold checkpoints is unknown: {error.message}"]
    with connected(lab.nodes) as nodes:
        found = survey(nodes, places_in(lab.nodes, lab.project))
    runs = list(dict.fromkeys(one.run_id for one in found.held))
    lines = []
    if runs:
        lines = [f"{counted(len(runs), 'run')} with checkpoints on its machines: {', '.join(runs)}"]
        lines += [f"  → to keep one on this computer: orch checkpoints pull {runs[0]}"]
    if silent := ", ".join(found.unreachable):
        lines += [f"whether {silent} holds checkpoints is unknown: no answer"]
    return lines


@GROUP.command(epilog="orch lab status\norch lab status -o name")
def status(output: Output) -> None:
    """Show address, state, engine, containers and link of every machine."""
    _show(output)


@GROUP.command(epilog="orch lab shell alpha\norch lab shell 2 -- docker ps")
def shell(
    node: str = typer.Argument(metavar="NODE", help="Name, or position from 1."),
    command: list[str] | None = typer.Argument(
        None, metavar="[-- COMMAND...]", help="Command to run instead of a login shell."
    ),
) -> None:
    """Log in to a machine over SSH, or run a command there."""
    from orchestrator.lab.control import shell_command

    argv = shell_command(node, command or ())
    try:
        os.execvp(argv[0], argv)  # noqa: S606  # this process becomes ssh: terminal, signals and exit code are its own
    except FileNotFoundError:
        raise ConfigError("there is no ssh on this computer", hint="sudo apt-get install openssh-client") from None


@GROUP.command(epilog="orch lab cut gamma")
def cut(nodes: NodeArgument) -> None:
    """Disconnect machines from the network, as if their cables were unplugged.

    Packets are dropped in both directions, without a TCP reset or an ICMP error.
    """
    _act("cut off", lambda control: control.cut(nodes))


@GROUP.command(epilog="orch lab heal gamma")
def heal(nodes: NodeArgument) -> None:
    """Reconnect machines to the network."""
    _act("back on the network", lambda control: control.heal(nodes))


@GROUP.command(epilog="orch lab kill gamma delta")
def kill(nodes: NodeArgument) -> None:
    """Power machines off at once, as in a power failure."""
    _act("powered off", lambda control: control.kill(nodes))


@GROUP.command(epilog="orch lab start gamma delta")
def start(nodes: NodeArgument) -> None:
    """Power machines on again and wait for them."""
    _act("on again", lambda control: control.start(nodes, say))


@GROUP.command(epilog="orch lab link 100mbit\norch lab link 1gbit gamma")
def link(
    speed: str = typer.Argument(
        metavar="SPEED", help="Speed in kbit, mbit or gbit per second, e.g. 100mbit; or off for unlimited."
    ),
    nodes: list[str] | None = typer.Argument(None, metavar="NODE...", help="Machines (default: all)."),
) -> None:
    """Change the speed of network links while the machines run."""
    _act(f"link {speed}", lambda control: control.set_link(speed, nodes or ()))


def _size_mib(text: str | None) -> int | None:
    from orchestrator.specs.inventory_types import parse_size_mib

    try:
        return None if text is None else int(str(parse_size_mib(text)))
    except ValueError as error:
        raise UsageError(f"--memory: '{text}' is not {error}") from None


def _act(what: str, act: Callable[[Any], Sequence[str]]) -> None:
    """Change the lab through its control module, imported here, and name the machines that changed."""
    from orchestrator.lab import control

    say(f"{what}: {', '.join(act(control)) or 'no node, nothing to do'}")


def _show(output: Output) -> None:
    from orchestrator.lab import control
    from orchestrator.render.table import Column, Table

    nodes = control.status()
    columns = (
        Column("#", 3), Column("node"), Column("address", 2), Column("state"), Column("engine", 4),
        Column("containers", 5), Column("link", 1),
    )  # fmt: skip
    rows = [
        (str(number), node.name, node.address, node.state, node.engine or "-", str(node.containers), node.link)
        for number, node in enumerate(nodes, start=1)
    ]
    table = Table(columns=columns, rows=rows, wide=output.wide)
    output.write({"nodes": [asdict(node) for node in nodes]}, [node.name for node in nodes], table)
