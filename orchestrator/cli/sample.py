"""`orch sample`: let the model of a run write text."""

from __future__ import annotations

import sys

import typer

from orchestrator.cli.model_use import Choice, use_model
from orchestrator.cli.options import RunArgument
from orchestrator.cli.report import say, write_json, write_line
from orchestrator.specs.errors import EXIT_OK

EXAMPLES = """\
orch sample --prompt "En el principio"
orch sample RUN --prompt "Once upon" --tokens 200 --temperature 0.8
orch sample RUN --prompt - < prompt.txt
"""


def sample(
    *,
    run: RunArgument = None,
    prompts: list[str] = typer.Option(
        ..., "--prompt", metavar="PROMPT", help="Beginning of the text, - for stdin. Repeatable."
    ),
    tokens: int | None = typer.Option(None, min=1, metavar="N", help="Tokens to generate (default: 80)."),
    temperature: float | None = typer.Option(
        None, min=0, metavar="T", help="0: always the likeliest token (default: 0.6)."
    ),
    top_k: int | None = typer.Option(
        None, min=0, metavar="K", help="Choose from the K likeliest tokens, 0: from all (default: 50)."
    ),
    seed: int | None = typer.Option(None, metavar="N", help="Seed of the choice of tokens (default: 1337)."),
    choice: Choice,
) -> int:
    """Generate text with a checkpoint of a run, on a node that holds it.

    The trainer runs in a container without network, which is removed at the end. The run may still be active.
    """
    texts = [sys.stdin.read() if prompt == "-" else prompt for prompt in prompts]
    values = {"--tokens": tokens, "--temperature": temperature, "--top-k": top_k, "--seed": seed}
    given = [f"{name}={value}" for name, value in values.items() if value is not None]
    used = use_model("sample", run, choice, options=[(f"--prompt={text}", *given) for text in texts])
    written = [text.removesuffix("\n") for text in used.printed]
    if choice.as_json:
        pairs = zip(texts, written, strict=True)
        write_json(used.data(samples=[{"prompt": prompt, "text": text} for prompt, text in pairs]))
    else:
        write_line("\n\n".join(written))
    say(f"✓ step {used.held.step} of run {used.held.run_id}, on {used.held.node}")
    return EXIT_OK
