"""`orch why`: the first failure of a run, its meaning and fix; for a hang, the ranks that wait and for which."""

from __future__ import annotations

from orchestrator.cli.context import known_nodes
from orchestrator.cli.options import InventoryOption, JsonOption, RunArgument
from orchestrator.cli.report import say, write_json
from orchestrator.specs.errors import EXIT_OK

EXAMPLES = """\
orch why
orch why RUN --json
"""


def why(run: RunArgument = None, as_json: JsonOption = False, inventory: InventoryOption = None) -> int:
    """Explain why a run failed or what it is waiting for: node, rank, time, evidence and what to do.

    Uses the logs collected on this computer, plus exit codes, memory and kernel messages of the nodes that answer. Exit
    code 0 for every answer; 3: unknown run.
    """
    from orchestrator.fleet.connect import connected_for
    from orchestrator.render.console import stdout
    from orchestrator.render.printable import printable
    from orchestrator.render.why import why_data, why_lines, why_text
    from orchestrator.state.postmortem import write_postmortem
    from orchestrator.store.run_record import spoken_by_nodes
    from orchestrator.watch.evidence import gather_evidence
    from orchestrator.watch.words import condition_lines, unsupervised_lines

    with connected_for(known_nodes(inventory, run), run) as nodes:
        evidence = gather_evidence(nodes, run)
    if line := spoken_by_nodes(evidence.run_id):
        say(f"note: {line}")
    story = write_postmortem(evidence)
    if as_json:
        write_json(why_data(story))
        return EXIT_OK
    console = stdout()
    for line in why_lines(story):
        console.print(why_text(printable(line)))
    for line in (line for one in story.data for line in condition_lines(one, story.run_id)):
        console.print(why_text(f"  {line}"))
    if story.is_unsupervised:
        for line in unsupervised_lines(story.run_id):
            console.print(why_text(f"  {line}"))
    return EXIT_OK
