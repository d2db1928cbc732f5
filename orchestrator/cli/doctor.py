"""`orch doctor`: every problem that would break a run, with the command that fixes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.consent import agreed, require_consent
from orchestrator.cli.context import CheckedNodes, NodesToCheck
from orchestrator.cli.options import Output
from orchestrator.cli.report import report_error, say, with_inventory
from orchestrator.cli.sudo import SudoPassword
from orchestrator.render.printable import counted
from orchestrator.specs.errors import EXIT_OK, OrchError, PreflightError, UsageError

if TYPE_CHECKING:
    from orchestrator.nodes.interface import Node
    from orchestrator.render.findings import DoctorReport
    from orchestrator.specs.node_report import Examined

EXAMPLES = """\
orch doctor
orch doctor --nodes beta,gamma --only network,clock.skew
orch doctor --fix
orch doctor --deep --fix
orch doctor --on uni --nodes 3
"""


def doctor(
    *,
    chosen: NodesToCheck,
    only: str = typer.Option(
        "", metavar="AREA|ID,...", help="Only these areas or findings, e.g. network or clock.skew."
    ),
    deep: bool = typer.Option(
        False, "--deep", help="Also read all data on the nodes, and compare it with what was sent; it may take hours."
    ),
    fix: bool = typer.Option(False, "--fix", help="Apply safe fixes, asking before each."),
    yes: bool = typer.Option(False, "--yes", "-y", help="With --fix: do not ask."),
    sudo: SudoPassword,
    output: Output,
) -> int:
    """Check every node and every network path; report each problem, its cause and the command that fixes it.

    Nothing is changed without --fix. With --on, a job of a cluster holds nodes for the check, and findings say what
    only the administrator can do. Exit code 4: a launch would be refused or fail, or a node could not be checked.
    """
    from orchestrator.render.findings import doctor_data, doctor_screen

    if deep and chosen.on:
        raise UsageError("--deep reads the data of nodes; a cluster's are compared by each run that reads them")
    if fix and chosen.on:
        raise UsageError(
            "--fix changes machines, and those of a cluster are its administrator's",
            hint=f"orch doctor --on {quote(chosen.on)}",
        )
    if fix:
        require_consent(yes=yes, look_first="orch doctor")
    words = _words(only)
    with chosen.connected() as checked:
        report = _look(checked, words, quiet=output.as_json, deep=deep)
        if fix and (fixed := _apply_fixes(checked, report, sudo, asking=not yes)):
            say(f"{fixed} fixed; checking again")
            report = _look(checked, words, quiet=output.as_json, deep=deep)
    names = [finding.id for finding in report.all_findings]
    output.write(doctor_data(report), names, doctor_screen(_to_paste(report), wide=output.wide))
    return PreflightError.exit_code if report.unfit else EXIT_OK


def _to_paste(report: DoctorReport) -> DoctorReport:
    """The report with fixes that name the inventory, where it was given by `-i`."""
    findings = {
        area: tuple(replace(one, fix=with_inventory(one.fix)) for one in found)
        for area, found in report.findings.items()
    }
    return replace(report, findings=findings)


def _words(only: str) -> tuple[str, ...]:
    """Return areas, ids and prefixes of ids. UsageError: another word, with the nearest id."""
    from orchestrator.checks.doctor import AREAS
    from orchestrator.specs.finding_pages import all_findings, explained_finding

    words = tuple(word.strip() for word in only.split(",") if word.strip())
    known = {*AREAS, *(finding.area for finding in all_findings())} if words else set[str]()
    for word in words:
        if word not in known:
            explained_finding(word)
    return words


def _look(checked: CheckedNodes, only: Sequence[str], *, quiet: bool, deep: bool) -> DoctorReport:
    import secrets
    import time
    from datetime import datetime

    from orchestrator.checks.cluster_findings import for_cluster_users
    from orchestrator.checks.doctor import areas_of, diagnose, not_checked
    from orchestrator.fleet.readiness.doctor import DATA, DEEP, NEEDED, WAVES, WAYS, examine, stages_of
    from orchestrator.render.findings import DoctorReport
    from orchestrator.render.progress import ExaminingView
    from orchestrator.specs.request import LaunchRequest
    from orchestrator.store.doctor_record import save_doctor_record

    nodes, inventory, cluster = checked.nodes, checked.loaded.inventory, checked.cluster
    request = LaunchRequest(
        project=inventory.project,
        nodes=checked.specs,
        master_port=inventory.master_port,
        image=inventory.image.reference or "",
    )
    areas = areas_of(only)
    stages = stages_of(areas) | ({DATA.name} if deep else set())
    if cluster:
        stages -= {WAYS}  # a listener would end with the step that starts it
    waves = DEEP if deep else WAVES
    say(f"checking {counted(len(nodes), 'node')}")
    began = time.monotonic()
    with ExaminingView([node.name for node in nodes], quiet=quiet) as view:
        seen = examine(nodes, request, suffix=secrets.token_hex(3), stages=stages, on_step=view.step, waves=waves)
    _tell_compared(seen.nodes)
    now = datetime.now().astimezone()
    found = diagnose(seen.nodes, only)
    if cluster:
        found = {area: for_cluster_users(of_area, cluster) for area, of_area in found.items() if area != "power"}
    else:
        save_doctor_record(seen.nodes, now)
    return DoctorReport(
        at=now,
        nodes=seen.nodes,
        findings=found,
        not_checked=not_checked(seen.nodes, areas),
        area_seconds={area: max(seen.seconds.get(stage, 0.0) for stage in NEEDED[area]) for area in found},
        seconds=time.monotonic() - began,
        stage_seconds=seen.seconds,
    )


def _tell_compared(nodes: Sequence[Examined]) -> None:
    from orchestrator.render.recovery import file_size

    compared = {node.name: node.data for node in nodes if node.data}
    if compared:
        say(f"compared {file_size(sum(one.size_bytes for one in compared.values()))} of data with what was sent")
    for name, one in compared.items():
        if one.unchecked:
            say(f"{name}: no sums beside data {', '.join(one.unchecked)}: not compared; the next launch writes them")


def _apply_fixes(checked: CheckedNodes, report: DoctorReport, sudo: SudoPassword, *, asking: bool) -> int:
    """Offer each safe fix, apply those that are confirmed, and return their number. The sudo password is asked for
    once, before the first fix that needs it."""
    from orchestrator.cli import main
    from orchestrator.fleet.readiness.doctor import apply_fix, fixable, needs_sudo
    from orchestrator.render.findings import sentence

    by_name, seen = {node.name: node for node in checked.nodes}, {node.name: node for node in report.nodes}
    proposed = fixable(report.all_findings)
    if not proposed:
        say("nothing that was found can be fixed from here")
    as_root = [finding.node for finding, fix in proposed if needs_sudo(finding, fix, seen)]
    fixed = 0
    for finding, fix in proposed:
        line = " ".join(("orch", *fix.orch) if fix.orch else fix.on_node)
        say(f"{sentence([finding.node], finding)} [{finding.id}]\n  → {fix.what}: {line}")
        if not agreed("Do that?", yes=not asking):
            continue
        try:
            if as_root and needs_sudo(finding, fix, seen):
                by_name |= _unlocked([by_name[name] for name in dict.fromkeys(as_root)], sudo)
                as_root = []
            if not fix.orch:
                apply_fix(finding, fix, by_name, seen)
            elif code := main((*fix.orch, "-i", str(checked.loaded.path))):
                raise PreflightError(f"orch {' '.join(fix.orch)} ended with {code}", hint="see its output above")
        except OrchError as error:
            report_error(error)
        else:
            fixed += 1
    return fixed


def _unlocked(nodes: Sequence[Node], sudo: SudoPassword) -> dict[str, Node]:
    """The nodes whose sudo asks for a password, with it. Without a way to ask: none, and their fixes fail with
    the line to paste."""
    from orchestrator.fleet.readiness.doctor import asks_for_password

    locked = [node for node in nodes if asks_for_password(node)]
    if not (locked and sudo.can_ask):
        return {}
    opened, errors = sudo.unlock(locked)
    for error in errors.values():
        report_error(error)
    return opened
