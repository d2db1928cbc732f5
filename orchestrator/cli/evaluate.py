"""`orch evaluate`: how good the model of a run is on its validation data."""

from __future__ import annotations

from pathlib import Path

from orchestrator.cli.model_use import Choice, ToOption, use_model
from orchestrator.cli.options import RunArgument
from orchestrator.cli.report import say, write_json, write_line
from orchestrator.specs.errors import EXIT_OK

EXAMPLES = """\
orch evaluate
orch evaluate RUN --checkpoint best
orch evaluate RUN --to ~/results
"""


def evaluate(
    *,
    run: RunArgument = None,
    to: ToOption = Path(),
    choice: Choice,
) -> int:
    """Evaluate a checkpoint of a run on its validation data, on a node that holds it.

    The figures are printed; tables and pictures go to DIR/runs/RUN/evaluate.
    """
    used = use_model("evaluate", run, choice, to=to)
    text = "".join(used.printed).rstrip("\n")
    folder = used.folder if used.folder.is_dir() else None
    if choice.as_json:
        write_json(used.data(text=text, folder=str(folder or "")))
    else:
        write_line(text)
    where = f": {folder}" if folder else ""
    say(f"✓ step {used.held.step} of run {used.held.run_id}, on {used.held.node}{where}")
    return EXIT_OK
