"""`orch check-gpus`: nvidia-smi on every node and inside its container."""

from __future__ import annotations

import secrets
from dataclasses import replace

import typer

from orchestrator.cli.context import NodesToCheck
from orchestrator.cli.options import Output
from orchestrator.cli.report import say
from orchestrator.render.printable import counted
from orchestrator.specs.errors import EXIT_OK, PreflightError

EXAMPLES = "orch check-gpus\norch check-gpus --nodes gamma --json\norch check-gpus --on uni --nodes 3"


def check_gpus(
    *,
    chosen: NodesToCheck,
    image: str | None = typer.Option(None, metavar="TAG", help="Image to check (default: the project's CUDA image)."),
    no_container: bool = typer.Option(False, "--no-container", help="Check the hosts only."),
    output: Output,
) -> int:
    """Compare the GPUs that nvidia-smi shows on the host and in a container of each node.

    Exit code 4: a launch would be refused; each problem is shown with its fix. Nodes without a GPU are not a problem.
    With --on, a job of a cluster holds nodes for the check, and no container is started there.
    """
    from orchestrator.checks.cluster_findings import for_cluster_users
    from orchestrator.fleet.readiness.check_gpus import GpuCheck
    from orchestrator.fleet.readiness.check_gpus import check_gpus as ask_all
    from orchestrator.render.gpus import gpu_data, gpu_report

    with chosen.connected() as checked:
        project = checked.loaded.inventory.project
        check = GpuCheck(
            project=project,
            image=image or f"orch/{project}:cuda",
            suffix=secrets.token_hex(3),
            container=not no_container,
        )
        say(f"asking {counted(len(checked.specs), 'node')} for GPUs")
        report = ask_all(checked.specs, checked.nodes, check)
    if checked.cluster:
        report = replace(report, findings=for_cluster_users(report.findings, checked.cluster))
    names = [node.node for node in report.nodes if node.host and node.host.gpus]
    output.write(gpu_data(report), names, gpu_report(report, wide=output.wide))
    return PreflightError.exit_code if report.unfit else EXIT_OK
