"""`orch check-gpus`: nvidia-smi on every node and inside its container."""

from __future__ import annotations

import secrets

import typer

from orchestrator.cli.context import ChosenNodes
from orchestrator.cli.options import Output
from orchestrator.cli.report import say
from orchestrator.render.printable import counted
from orchestrator.specs.errors import EXIT_OK, PreflightError

EXAMPLES = "orch check-gpus\norch check-gpus --nodes gamma --json"


def check_gpus(
    *,
    chosen: ChosenNodes,
    image: str | None = typer.Option(None, metavar="TAG", help="Image to check (default: the project's CUDA image)."),
    no_container: bool = typer.Option(False, "--no-container", help="Check the hosts only."),
    output: Output,
) -> int:
    """On each node, compare the GPUs that nvidia-smi shows on the host and in a container.

    Exit code 4: a launch would be refused; each problem is shown with its fix. Nodes without a GPU are not a problem.
    """
    from orchestrator.fleet.connect import connected
    from orchestrator.fleet.readiness.check_gpus import GpuCheck
    from orchestrator.fleet.readiness.check_gpus import check_gpus as ask_all
    from orchestrator.render.gpus import gpu_data, gpu_report

    loaded, specs = chosen.load()
    check = GpuCheck(
        project=loaded.inventory.project,
        image=image or f"orch/{loaded.inventory.project}:cuda",
        suffix=secrets.token_hex(3),
        container=not no_container,
    )
    say(f"asking {counted(len(specs), 'node')} for GPUs")
    with connected(specs) as reached:
        report = ask_all(specs, reached, check)
    names = [node.node for node in report.nodes if node.host and node.host.gpus]
    output.write(gpu_data(report), names, gpu_report(report, wide=output.wide))
    return PreflightError.exit_code if report.unfit else EXIT_OK
