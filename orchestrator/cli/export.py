"""`orch export`: the plan of a launch as a file for another engine."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.completion import workloads
from orchestrator.cli.flags import CommandGroup, expand
from orchestrator.cli.launching.command_words import WORDS_LAST, must_run, with_command
from orchestrator.cli.options import InventoryOption, JsonOption
from orchestrator.cli.report import say, write_document, write_json
from orchestrator.specs.errors import EXIT_OK, ConfigError, UsageError
from orchestrator.specs.labels import MOST_ATTEMPTS
from orchestrator.specs.launch_options import LaunchOptions

if TYPE_CHECKING:  # loaded when a command runs: help stays quick
    from orchestrator.plan.pod import ClusterPlace
    from orchestrator.specs.plan import Plan

GROUP = CommandGroup(
    help="Write the plan of a launch as a file for Kubernetes.\n\nSchema-checked, not run. The batch script of a Slurm"
    " cluster: orch launch --on CLUSTER --dry-run",
    epilog="orch export jobset --nodes 3 -- gpt2 --max-steps 100",
    no_args_is_help=True,
)
EXAMPLES = """\
orch export jobset --nodes 3 --cpus 8 --memory 32g --gpus 1 --image registry.example/orch:cuda -- gpt2
orch export jobset --nodes 3 --name first --to first.yaml -- python mine/train.py --lr 1e-3
"""
_IMAGE = re.compile(
    r"[a-z0-9][A-Za-z0-9._/-]*(:[0-9]+/[A-Za-z0-9._/-]+)?(:[A-Za-z0-9_][A-Za-z0-9._-]*)?(@sha256:[0-9a-f]{64})?"
)


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """A cluster of equal machines, which is described and not asked."""

    count: Annotated[
        int | None,
        typer.Option("-n", "--nodes", min=1, max=1000, metavar="N", help="Machines, with one pod each. Required."),
    ] = None
    cpus: Annotated[
        float | None,
        typer.Option("--cpus", min=0.1, max=1024, metavar="N", help="CPU cores of each for the run (default: 2)."),
    ] = 2.0
    memory: Annotated[
        str | None, typer.Option("--memory", metavar="SIZE", help="Memory of each for the run (default: 4g).")
    ] = "4g"
    gpus: Annotated[
        int | None, typer.Option("--gpus", min=0, max=64, metavar="N", help="GPUs of each (default: 0).")
    ] = 0
    reference: Annotated[
        str | None,
        typer.Option(
            "--image",
            metavar="REF",
            help="Name by which the machines have or pull the image of `orch build` (default: its own).",
        ),
    ] = None
    namespace: Annotated[
        str | None, typer.Option("--namespace", metavar="NAME", help="Namespace (default: that of kubectl).")
    ] = None
    claim: Annotated[
        str | None,
        typer.Option(
            "--claim",
            metavar="NAME",
            help="Volume claim, ReadWriteMany, with data, code and checkpoints (default: orch-workspace).",
        ),
    ] = "orch-workspace"
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="Id of the run; the same command line then writes the same file (default: made from the time).",
        ),
    ] = None
    attempt: Annotated[
        int | None,
        typer.Option(
            "--attempt",
            min=0,
            max=MOST_ATTEMPTS,
            metavar="N",
            help="Number of its first attempt; to resume an ended run, one more than its last attempt (default: 0).",
        ),
    ] = 0
    inventory: InventoryOption = None
    to: Annotated[Path | None, typer.Option("--to", metavar="FILE", help="The file to write (default: stdout).")] = None
    as_json: JsonOption = False


@GROUP.command(epilog=EXAMPLES, context_settings=WORDS_LAST)
@expand(
    only=(
        "environment", "secrets", "max_restarts", "hang_timeout_s", "independent", "no_warm_start", "count", "cpus",
        "memory", "gpus", "reference", "namespace", "claim", "name", "attempt", "inventory", "to", "as_json",
    )
)  # fmt: skip
def jobset(
    context: typer.Context,
    options: LaunchOptions,
    cluster: ClusterOptions,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND...]",
            autocompletion=workloads,
            help="A workload of the trainer with its options, or your own: python SCRIPT ...; data and code lie in the "
            "workspace of the machines.",
        ),
    ] = None,
) -> int:
    """Write a run as a JobSet of Kubernetes (v1alpha2).

    Schema-checked, not run: its fields, names and sizes are those that JobSet's API takes, but no cluster has run one
    yet. No machine is asked. The comments at its top are the steps to start it. Exit code 3: a value that Kubernetes
    would refuse, with its field.
    """
    from orchestrator.checks.manifest import refused_values
    from orchestrator.plan.jobset import jobset as as_jobset
    from orchestrator.plan.pod import cluster_notes
    from orchestrator.render.manifest import manifest_text

    plan, place = _on_kubernetes(context, options, cluster, command)
    manifest = as_jobset(plan, place)
    if problems := refused_values(manifest):
        raise ConfigError("Kubernetes would refuse this jobset", problems=problems)
    notes = [*cluster_notes(plan, place, str(cluster.to or f"{plan.run_id}.yaml"))]
    notes += [f"note: {note}" for note in plan.notes]
    if cluster.as_json:
        write_json({"run_id": plan.run_id, "manifest": manifest, "notes": notes})
        return EXIT_OK
    text = manifest_text(manifest, notes)
    if not cluster.to:
        write_document(text)
        return EXIT_OK
    file = cluster.to.expanduser()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"{file} cannot be written: {reason}", hint="another file: --to FILE") from None
    say(f"✓ {file}: schema-checked, not run; the steps to start it are at its top")
    return EXIT_OK


def _on_kubernetes(
    context: typer.Context, options: LaunchOptions, cluster: ClusterOptions, command: list[str] | None
) -> tuple[Plan, ClusterPlace]:
    """The plan for machines as they are described, and the names of the cluster. UsageError, ConfigError."""
    from orchestrator.fleet.planning.export import Machines, described, export_identity, export_request
    from orchestrator.plan.launch import plan_launch
    from orchestrator.plan.pod import ClusterPlace
    from orchestrator.specs.inventory_types import parse_size_mib

    options = with_command(context, options, command)
    if not cluster.count:
        raise UsageError(
            "--nodes N is missing: on how many machines?", hint=f"{context.command_path} --nodes 3 -- gpt2"
        )
    try:
        memory_mib = parse_size_mib(cluster.memory)
    except ValueError as error:
        raise UsageError(f"--memory {cluster.memory}: expected {error}") from None
    machines = Machines(
        count=cluster.count, cpus=cluster.cpus or 0, memory_mib=int(str(memory_mib)), gpus=cluster.gpus or 0
    )
    project, master_port = _project(cluster.inventory)
    checked = must_run(context.command_path, options)
    nodes, facts = described(machines)
    request = export_request(options, nodes, os.environ, project=project, master_port=master_port, sizes=checked.sizes)
    place = ClusterPlace(
        namespace=cluster.namespace or "",
        claim=str(cluster.claim),
        image=_image(cluster.reference) if cluster.reference else "",
    )
    return plan_launch(request, facts, export_identity(cluster.name or "", cluster.attempt or 0)), place


def _project(inventory: Path | None) -> tuple[str, int]:
    """Project and port of the inventory, of which a cluster needs nothing else; the defaults where there is none."""
    from orchestrator.cli.context import load_inventory
    from orchestrator.cli.inventory_place import GIVEN, inventory_place
    from orchestrator.specs.inventory import Inventory

    file, origin = inventory_place(inventory)
    if origin != GIVEN and not file.exists():
        fields = Inventory.model_fields
        return fields["project"].default, fields["master_port"].default
    found = load_inventory(inventory).inventory
    return found.project, found.master_port


def _image(reference: str) -> str:
    if not _IMAGE.fullmatch(reference):
        raise UsageError(f"--image {reference}: expected the name of an image, such as registry.example/team/mine:1")
    return reference
